"""The VDGen model: a baseline whose visual tokens are spread by VSE and taught by DID, with adapters on the decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from radweave.config import Config
from radweave.errors import InputError
from radweave.experiment import BuildContext, Experiment
from radweave.memory.bank import Bank
from radweave.methods.vdgen.distillation import (
    DiseaseDistillation,
    DiseaseDistillationConfig,
    DistillationConfig,
    NoDistillation,
)
from radweave.methods.vdgen.evidence import (
    SENTENCES,
    SentenceMemory,
    SentenceMemoryConfig,
    build_sentence_bank,
    sentence_fit,
)
from radweave.methods.vdgen.self_equilibration import (
    Augment,
    EquilibrationConfig,
    NoEquilibration,
    SelfEquilibration,
    SelfEquilibrationConfig,
    TwoViewEquilibration,
)
from radweave.nn.connector import Connector, ConnectorConfig
from radweave.nn.language_model import CausalLanguageModel, DecodingConfig, LanguageModelConfig
from radweave.nn.prompt import PromptFormat, PromptTemplate
from radweave.nn.sentences import SentenceSplitter
from radweave.nn.text_pretraining import hint_generator, word_hints
from radweave.nn.views import ViewTokens, connect_views, encode_views
from radweave.nn.vision import VisionEncoderConfig
from radweave.nn.word_head import NoWordHead, NoWordHeadConfig, WordHead, WordHeadConfig
from radweave.train.stage import StageConfig, check_terms
from radweave.train.view import TrainingView
from radweave.types import Batch, Generation


class VdgenModel(nn.Module):
    """Generate a report from normalised patch tokens; two contrastive losses shape their mean while training.

        X = LN(Swin(image)),   h = mean_s X_s
        report ~ LM([prompt; P X; prompt]),   L = L_report + L_vse(h) + L_did(h, LM's states of the report)   (Eq. 8)

    Source: VDGen, Sec. 3.
    Deviations: Swin has no class token, so none is appended. Several views of a study are concatenated, h is the mean
    over the tokens of all of them, and the connector adds an embedding of the kind of view and a LayerNorm.
    """

    LOSS_PARTS: ClassVar[dict[str, tuple[str, ...]]] = {
        "report": ("vision_encoder", "vision_norm", "connector", "language_model"),
        "vse": ("vision_encoder", "vision_norm", "vse"),
        "did": ("vision_encoder", "vision_norm", "did", "language_model"),
        "words": ("vision_encoder", "vision_norm", "word_head"),
        "text": ("language_model",),
        "text_in_context": ("language_model",),
    }

    def __init__(
        self,
        vision_encoder: nn.Module,
        vision_norm: nn.Module,
        connector: Connector,
        vse: SelfEquilibration | TwoViewEquilibration | NoEquilibration,
        did: DiseaseDistillation | NoDistillation,
        language_model: CausalLanguageModel,
        word_head: WordHead | NoWordHead,
        prompt: PromptTemplate,
        splitter: SentenceSplitter,
        sentences: SentenceMemoryConfig,
    ) -> None:
        super().__init__()
        self.vision_encoder = vision_encoder
        self.vision_norm = vision_norm
        self.connector = connector
        self.vse = vse
        self.did = did
        self.language_model = language_model
        self.word_head = word_head
        self.prompt = prompt
        self.splitter = splitter
        self.sentences = sentences
        self.memory: SentenceMemory | None = None

    def loss(self, batch: Batch, terms: Sequence[str]) -> dict[str, Tensor]:
        """Losses: ``report`` (Eq. 2), ``vse`` (Eq. 3), ``did`` (Eq. 6); ``words``, ``text`` and ``text_in_context``
        (reports after some of their own words, where the image will stand) of the stages before.
        """
        check_terms(terms, tuple(self.LOSS_PARTS))
        assert batch.input_ids is not None
        assert batch.labels is not None
        losses = {}
        if "text" in terms:
            losses["text"] = self.language_model.text_loss(batch.input_ids, batch.labels)
        if "text_in_context" in terms:
            losses["text_in_context"] = self._text_in_context_loss(batch.input_ids, batch.labels)
        if set(terms) <= {"text", "text_in_context"}:
            return losses
        views = self.encode(batch)
        if "words" in terms:
            losses["words"] = self.word_head.loss(views.tokens, views.view_mask, batch.labels)
        if "vse" in terms:
            losses["vse"] = self.vse.loss(views.mean(), lambda augment: self._encode_again(batch, augment))
        if "did" in terms:
            losses["did"] = self.did.loss(views.mean(), self.language_model, batch.input_ids, batch.labels)
        if "report" in terms:
            prefix, mask = self._prefix(views)
            losses["report"] = self.language_model.loss(prefix, mask, batch.input_ids, batch.labels)
        return losses

    @torch.no_grad()
    def generate(self, batch: Batch, decoding: DecodingConfig) -> Generation:
        """Decode a report per study.

        Evidence: the log-probability of each token, the similarity of each sentence with the image (``sentence_fit``),
        and the training sentences nearest to the image (``recalled``). The last two need DID.
        """
        views = self.encode(batch)
        prefix, mask = self._prefix(views)
        ids, log_probs = self.language_model.generate(prefix, mask, decoding)
        intermediates: list[dict[str, Any]] = [{"token_log_probs": values} for values in log_probs]
        if isinstance(self.did, DiseaseDistillation):
            mean = views.mean()
            fits = sentence_fit(self.did, self.language_model, self.splitter, mean, ids)
            for values, fit in zip(intermediates, fits, strict=True):
                values["sentence_fit"] = fit
            if self.memory is not None:
                recalled = self.memory.nearest(self.did, mean, batch, self.sentences.top_k)
                for values, rows in zip(intermediates, recalled, strict=True):
                    values["recalled"] = rows
        return Generation(token_ids=ids, intermediates=intermediates)

    def build_memories(self, stage: str, training: TrainingView) -> dict[str, Bank]:
        """The sentence bank, before the reports are learned; without DID there is no space for it."""
        if stage != "report" or isinstance(self.did, NoDistillation):
            return {}
        bank = build_sentence_bank(training, self.language_model, self.splitter, self.sentences.max_sentences)
        return {SENTENCES: bank}

    def set_memories(self, banks: Mapping[str, Bank]) -> None:
        """Take the banks of a run."""
        self.memory = SentenceMemory(banks[SENTENCES]) if SENTENCES in banks else None

    def encode(self, batch: Batch) -> ViewTokens:
        """Normalised tokens X of every view; their ``mean()`` is h."""
        views = encode_views(self.vision_encoder, batch)
        present = views.view_mask[:, :, None, None]
        return replace(views, tokens=self.vision_norm(views.tokens).masked_fill(~present, 0.0))

    def _encode_again(self, batch: Batch, augment: Augment) -> Float[Tensor, "batch dim"]:
        pixels = batch.pixel_values
        if pixels is None:
            raise InputError(
                "a second version of an image needs its pixels; features of a frozen encoder or volumes do not do",
                field="model.vse",
                got="two_views",
            )
        again = augment(pixels.flatten(0, 1)).view_as(pixels)
        return self.encode(replace(batch, pixel_values=again)).mean()

    def _text_in_context_loss(self, input_ids: Int[Tensor, "batch text"], labels: Int[Tensor, "batch text"]) -> Tensor:
        words, mask = word_hints(labels, hint_generator(self.language_model.training))
        embed = self.language_model.embed
        prefix, prefix_mask = self.prompt.splice(embed, {"image": (embed(words), mask)})
        return self.language_model.loss(prefix, prefix_mask, input_ids, labels)

    def _prefix(self, views: ViewTokens) -> tuple[Float[Tensor, "batch prefix width"], Bool[Tensor, "batch prefix"]]:
        return self.prompt.splice(self.language_model.embed, {"image": connect_views(self.connector, views)})


class LayerNormConfig(Config):
    """LayerNorm over the channels of each token, as in the paper."""

    kind: Literal["layer"] = "layer"

    def build(self, dim: int) -> nn.Module:
        return nn.LayerNorm(dim)


class NoNormConfig(Config):
    """The encoder's tokens as they are."""

    kind: Literal["none"] = "none"

    def build(self, dim: int) -> nn.Module:
        return nn.Identity()


class VdgenModelConfig(Config):
    """Parts of VDGen. ``prompt`` is text with the slot ``{image}``; ``prompt_format`` is as in the baseline."""

    vision_encoder: VisionEncoderConfig
    vision_norm: Annotated[LayerNormConfig | NoNormConfig, Field(discriminator="kind")] = LayerNormConfig()
    connector: ConnectorConfig
    vse: EquilibrationConfig = SelfEquilibrationConfig()
    did: DistillationConfig = DiseaseDistillationConfig()
    language_model: LanguageModelConfig
    word_head: WordHeadConfig = NoWordHeadConfig()
    prompt: str
    prompt_format: PromptFormat = "plain"
    sentences: SentenceMemoryConfig = SentenceMemoryConfig()

    def build(self, context: BuildContext) -> VdgenModel:
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
        dim, width = vision_encoder.dim, language_model.width
        with context.seeded("connector"):
            connector = self.connector.build(dim, width)
        with context.seeded("vse"):
            vse = self.vse.build(dim)
        with context.seeded("did"):
            did = self.did.build(dim, width)
        with context.seeded("word_head"):
            word_head = self.word_head.build(dim, len(tokenizer))
        return VdgenModel(
            vision_encoder=vision_encoder,
            vision_norm=self.vision_norm.build(dim),
            connector=connector,
            vse=vse,
            did=did,
            language_model=language_model,
            word_head=word_head,
            prompt=PromptTemplate.for_tokenizer(self.prompt, tokenizer, self.prompt_format, slots=("image",)),
            splitter=SentenceSplitter.for_tokenizer(tokenizer),
            sentences=self.sentences,
        )


class VdgenStages(Config):
    """Words from images and language from reports (both off unless given epochs), then report generation."""

    vision: StageConfig
    language: StageConfig
    report: StageConfig


class VdgenExperiment(Experiment):
    """VDGen with all its numbers."""

    method: Literal["vdgen"] = "vdgen"
    model: VdgenModelConfig
    stages: VdgenStages
