"""The baseline model: visual tokens, projected, spliced into the prompt of a causal language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from radweave.core.batch import Batch, Generation
from radweave.core.config import Prompt
from radweave.methods.experiment import BuildContext, Experiment, ModelConfig, VisionFirstStages
from radweave.methods.model import (
    WORDS_TERM,
    DecoderInput,
    ForwardPass,
    ReportModel,
    StudySize,
    Term,
    ToWrite,
    generation,
    losses,
    prompted_nats,
    report_loss,
    text_loss,
    written,
)
from radweave.nn.connector import Connector, ConnectorConfig, connect_views
from radweave.nn.decoding import DecodingConfig, Prefixes
from radweave.nn.heads import NoWordHeadConfig, WordHeadConfig, WordPart
from radweave.nn.language_model import CausalLanguageModel, LanguageModelConfig
from radweave.nn.prompt import PromptFormat, PromptTemplate, Slot
from radweave.nn.vision import VisionEncoderConfig, VisionPart


class Forward(ForwardPass["BaselineModel"]):
    """One batch as the model sees it."""

    @cached_property
    def prefix(self) -> Slot:
        model, views = self.model, self.views
        hidden, mask = connect_views(model.connector, views)
        if model.views == "average":
            weight = views.view_mask[:, :, None, None].to(hidden.dtype)
            by_view = hidden.view(*views.tokens.shape[:3], -1)
            hidden = (by_view * weight).sum(1) / weight.sum(1)
            mask = mask[:, : hidden.shape[1]]
        return self.spliced(model.prompt, {"image": self.decoder_input("image", (hidden, mask))})


INPUTS = {"image": DecoderInput("projected patch tokens")}
TERMS: Mapping[str, Term[Forward]] = {
    "report": Term(("vision_encoder", "connector", "language_model"), report_loss),
    "words": WORDS_TERM,
    "text": Term(("language_model",), text_loss),
}


@dataclass(eq=False, repr=False, kw_only=True)
class BaselineModel(ReportModel):
    """Generate a report from the patch tokens of all views.

        x_v = E(image_v),   h_v = LN(P x_v + e_view),   report ~ LM([prompt; h_1; ...; h_V; prompt])

    ``views="average"`` averages h over the views instead, as R2GenGPT does.

    Source: Wang et al., R2GenGPT, Sec. 3.
    Deviations: R2GenGPT averages encoder outputs over views before the projection and has no view embedding; with one
    view and ``e_view = 0`` the two are the same.
    """

    vision_encoder: VisionPart
    connector: Connector
    language_model: CausalLanguageModel
    word_head: WordPart
    prompt: PromptTemplate
    views: Literal["concat", "average"]
    terms = TERMS
    inputs = INPUTS

    def loss(self, batch: Batch, terms: Sequence[str]) -> dict[str, Tensor]:
        """Losses: ``report`` per token given the image, ``text`` per token without it, ``words`` of the word head."""
        return losses(self.terms, Forward(self, batch), terms)

    def prompt_tokens(self, study: StudySize) -> int:
        """The prompt with the tokens of all views, or of their average."""
        views = 1 if self.views == "average" else study.views
        return self.prompt.length({"image": views * study.tokens}, study.context)

    def report_nats(self, batch: Batch) -> Float[Tensor, " batch"]:
        """Mean negative log-likelihood per token of each study's report."""
        return prompted_nats(Forward(self, batch))

    @torch.no_grad()
    def generate(self, batch: Batch, decoding: DecodingConfig) -> Generation:
        """Decode a report per study. Evidence: the log-probability of each token."""
        return generation(self, batch, decoding)

    def to_write(self, batch: Batch) -> ToWrite:
        """The image in the prompt."""
        return ToWrite(Prefixes(*Forward(self, batch).prefix), written)


class BaselineModelConfig(ModelConfig):
    """Parts of the baseline.

    ``prompt`` is text with the slot ``{image}``. ``prompt_format="chat"`` wraps it in the tokenizer's chat template as
    a user's turn.
    """

    vision_encoder: VisionEncoderConfig
    connector: ConnectorConfig
    language_model: LanguageModelConfig
    word_head: WordHeadConfig = NoWordHeadConfig()
    prompt: Prompt
    prompt_format: PromptFormat = "plain"
    views: Literal["concat", "average"] = "concat"

    def build(self, context: BuildContext) -> BaselineModel:
        encoder = context.vision_encoder(self.vision_encoder)
        language_model = context.part("language_model", lambda: self.language_model.build(**context.words))
        dim, width = encoder.dim, language_model.width
        return BaselineModel(
            vision_encoder=encoder,
            connector=context.part("connector", lambda: self.connector.build(dim, width)),
            language_model=language_model,
            word_head=context.word_head(self.word_head, dim),
            prompt=context.prompt(self.prompt, self.prompt_format, "image"),
            views=self.views,
        )


class BaselineExperiment(Experiment):
    """The baseline with all its numbers."""

    method: Literal["baseline"] = "baseline"
    model: BaselineModelConfig
    stages: VisionFirstStages
