"""The baseline model: visual tokens, projected, spliced into the prompt of a causal language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from radweave.config import Config
from radweave.experiment import BuildContext, Experiment
from radweave.nn.connector import Connector, ConnectorConfig
from radweave.nn.language_model import CausalLanguageModel, DecodingConfig, LanguageModelConfig
from radweave.nn.prompt import PromptFormat, PromptTemplate
from radweave.nn.views import connect_views, encode_views
from radweave.nn.vision import VisionEncoderConfig
from radweave.nn.word_head import NoWordHead, NoWordHeadConfig, WordHead, WordHeadConfig
from radweave.train.stage import StageConfig, check_terms
from radweave.types import Batch, Generation


class BaselineModel(nn.Module):
    """Generate a report from the patch tokens of all views.

        x_v = E(image_v),   h_v = LN(P x_v + e_view),   report ~ LM([prompt; h_1; ...; h_V; prompt])

    ``views="average"`` averages h over the views instead, as R2GenGPT does.

    Source: Wang et al., R2GenGPT, Sec. 3.
    Deviations: R2GenGPT averages encoder outputs over views before the projection and has no view embedding; with one
    view and ``e_view = 0`` the two are the same.
    """

    LOSS_PARTS: ClassVar[dict[str, tuple[str, ...]]] = {
        "report": ("vision_encoder", "connector", "language_model"),
        "words": ("vision_encoder", "word_head"),
        "text": ("language_model",),
    }

    def __init__(
        self,
        vision_encoder: nn.Module,
        connector: Connector,
        language_model: CausalLanguageModel,
        word_head: WordHead | NoWordHead,
        prompt: PromptTemplate,
        views: Literal["concat", "average"],
    ) -> None:
        super().__init__()
        self.vision_encoder = vision_encoder
        self.connector = connector
        self.language_model = language_model
        self.word_head = word_head
        self.prompt = prompt
        self.views = views

    def loss(self, batch: Batch, terms: Sequence[str]) -> dict[str, Tensor]:
        """Losses: ``report`` per token given the image, ``text`` per token without it, ``words`` of the word head."""
        check_terms(terms, tuple(self.LOSS_PARTS))
        assert batch.input_ids is not None
        assert batch.labels is not None
        losses = {}
        if "report" in terms:
            prefix, mask = self._prefix(batch)
            losses["report"] = self.language_model.loss(prefix, mask, batch.input_ids, batch.labels)
        if "words" in terms:
            losses["words"] = self._words_loss(batch, batch.labels)
        if "text" in terms:
            losses["text"] = self.language_model.text_loss(batch.input_ids, batch.labels)
        return losses

    @torch.no_grad()
    def generate(self, batch: Batch, decoding: DecodingConfig) -> Generation:
        """Decode a report per study. Evidence: the log-probability of each token."""
        prefix, mask = self._prefix(batch)
        ids, log_probs = self.language_model.generate(prefix, mask, decoding)
        intermediates: list[dict[str, Any]] = [{"token_log_probs": values} for values in log_probs]
        return Generation(token_ids=ids, intermediates=intermediates)

    def _words_loss(self, batch: Batch, labels: Tensor) -> Tensor:
        views = encode_views(self.vision_encoder, batch)
        return self.word_head.loss(views.tokens, views.view_mask, labels)

    def _prefix(self, batch: Batch) -> tuple[Float[Tensor, "batch prefix width"], Bool[Tensor, "batch prefix"]]:
        views = encode_views(self.vision_encoder, batch)
        hidden, mask = connect_views(self.connector, views)
        if self.views == "average":
            weight = views.view_mask[:, :, None, None].to(hidden.dtype)
            by_view = hidden.view(*views.tokens.shape[:3], -1)
            hidden = (by_view * weight).sum(1) / weight.sum(1)
            mask = mask[:, : hidden.shape[1]]
        return self.prompt.splice(self.language_model.embed, {"image": (hidden, mask)})


class BaselineModelConfig(Config):
    """Parts of the baseline.

    ``prompt`` is text with the slot ``{image}``. ``prompt_format="chat"`` wraps it in the tokenizer's chat template as
    a user's turn.
    """

    vision_encoder: VisionEncoderConfig
    connector: ConnectorConfig
    language_model: LanguageModelConfig
    word_head: WordHeadConfig = NoWordHeadConfig()
    prompt: str
    prompt_format: PromptFormat = "plain"
    views: Literal["concat", "average"] = "concat"

    def build(self, context: BuildContext) -> BaselineModel:
        """Compose the model from its parts."""
        tokenizer = context.tokenizer
        with context.seeded("language_model"):
            language_model = self.language_model.build(
                vocab_size=len(tokenizer),
                bos_id=tokenizer.bos_token_id,
                eos_id=tokenizer.eos_token_id,
                pad_id=tokenizer.pad_token_id,
                saved=context.saved("language_model"),
            )
        with context.seeded("vision_encoder"):
            vision_encoder = self.vision_encoder.build(context.image_size, saved=context.saved("vision_encoder"))
        with context.seeded("connector"):
            connector = self.connector.build(vision_encoder.dim, language_model.width)
        with context.seeded("word_head"):
            word_head = self.word_head.build(vision_encoder.dim, len(tokenizer))
        return BaselineModel(
            vision_encoder=vision_encoder,
            connector=connector,
            language_model=language_model,
            word_head=word_head,
            prompt=PromptTemplate.for_tokenizer(self.prompt, tokenizer, self.prompt_format, slots=("image",)),
            views=self.views,
        )


class BaselineStages(Config):
    """Words from images, language from reports (both off unless given epochs), then report generation."""

    vision: StageConfig = StageConfig(
        finetune={"vision_encoder": "full", "connector": "frozen", "language_model": "frozen", "word_head": "full"},
        losses={"words": 1.0},
        epochs=0,
    )
    language: StageConfig = StageConfig(
        finetune={"vision_encoder": "frozen", "connector": "frozen", "language_model": "full", "word_head": "frozen"},
        losses={"text": 1.0},
        epochs=0,
    )
    report: StageConfig


class BaselineExperiment(Experiment):
    """The baseline with all its numbers."""

    method: Literal["baseline"] = "baseline"
    model: BaselineModelConfig
    stages: BaselineStages
