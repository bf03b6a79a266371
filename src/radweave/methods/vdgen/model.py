"""The VDGen model: a baseline whose visual tokens are spread by VSE and taught by DID, with adapters on the decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from radweave.core.batch import Batch, Generation
from radweave.core.config import Prompt
from radweave.core.errors import InputError
from radweave.methods.experiment import BuildContext, Experiment, ModelConfig, VisionFirstStages, Without
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
    prompted_loss,
    prompted_nats,
    report_loss,
    required,
    text_loss,
    written,
)
from radweave.methods.vdgen.distillation import (
    DiseaseDistillation,
    DiseaseDistillationConfig,
    DistillationConfig,
    NoDistillation,
    NoSentences,
    SentenceMemoryConfig,
    Sentences,
)
from radweave.methods.vdgen.self_equilibration import (
    Augment,
    EquilibrationConfig,
    NoEquilibration,
    SelfEquilibration,
    SelfEquilibrationConfig,
    TwoViewEquilibration,
)
from radweave.nn.connector import Connector, ConnectorConfig, TokenNorm, ViewTokens, connect_views, encode_views
from radweave.nn.decoding import DecodingConfig, Prefixes
from radweave.nn.heads import NoWordHeadConfig, WordHeadConfig, WordPart
from radweave.nn.language_model import CausalLanguageModel, LanguageModelConfig
from radweave.nn.memory.bank import Bank, BankLayout
from radweave.nn.prompt import PromptFormat, PromptTemplate, SentenceSplitter, Slot
from radweave.nn.text_pretraining import hint_generator, word_hints
from radweave.nn.vision import VisionEncoderConfig, VisionPart

if TYPE_CHECKING:
    from radweave.methods.model import TrainingView


class Forward(ForwardPass["VdgenModel"]):
    """One batch as the model sees it."""

    @cached_property
    def views(self) -> ViewTokens:
        return self.model.normed(self.encoded)

    @cached_property
    def prefix(self) -> Slot:
        image = self.decoder_input("image", connect_views(self.model.connector, self.views))
        return self.spliced(self.model.prompt, {"image": image})

    def text_in_context(self) -> Tensor:
        """Reports after some of their own words, where the image will stand."""
        model = self.model
        words, mask = word_hints(required(self.batch.labels), hint_generator(model.language_model.training))
        embed = model.language_model.embed
        return prompted_loss(self, self.spliced(model.prompt, {"image": (embed(words), mask)}))

    def vse(self) -> Tensor:
        return self.model.vse.loss(self.views.mean(), self._encode_again)

    def did(self) -> Tensor:
        model, batch = self.model, self.batch
        return model.did.loss(
            self.views.mean(), model.language_model, required(batch.input_ids), required(batch.labels)
        )

    def _encode_again(self, augment: Augment) -> Float[Tensor, "batch dim"]:
        pixels = self.batch.pixel_values
        if pixels is None:
            raise InputError(
                "a second version of an image needs its pixels; features of a frozen encoder or volumes do not do",
                field="model.vse",
                got="two_views",
            )
        augmented = augment(pixels.flatten(0, 1)).view_as(pixels)
        return self.model.encode(replace(self.batch, pixel_values=augmented)).mean()


INPUTS = {"image": DecoderInput("projected patch tokens, shaped by VSE and DID")}
SIGHT = ("vision_encoder", "vision_norm")
TERMS: Mapping[str, Term[Forward]] = {
    "text": Term(("language_model",), text_loss),
    "text_in_context": Term(("language_model",), Forward.text_in_context),
    "words": WORDS_TERM,
    "vse": Term((*SIGHT, "vse"), Forward.vse),
    "did": Term((*SIGHT, "did", "language_model"), Forward.did),
    "report": Term((*SIGHT, "connector", "language_model"), report_loss),
}


@dataclass(eq=False, repr=False, kw_only=True)
class VdgenModel(ReportModel):
    """Generate a report from normalised patch tokens; two contrastive losses shape their mean while training.

        X = N(Swin(image)),   h = mean_s X_s
        report ~ LM([prompt; P X; prompt]),   L = L_report + L_vse(h) + L_did(h, LM's states of the report)   (Eq. 8)

    Source: VDGen, Sec. 3.
    Deviations: Swin has no class token, so none is appended. Several views of a study are concatenated, h is the mean
    over the tokens of all of them, and the connector adds an embedding of the kind of view and a LayerNorm.
    """

    vision_encoder: VisionPart
    vision_norm: nn.Module
    connector: Connector
    vse: SelfEquilibration | TwoViewEquilibration | NoEquilibration
    did: DiseaseDistillation | NoDistillation
    language_model: CausalLanguageModel
    word_head: WordPart
    prompt: PromptTemplate
    sentences: Sentences | NoSentences
    terms = TERMS
    inputs = INPUTS

    def loss(self, batch: Batch, terms: Sequence[str]) -> dict[str, Tensor]:
        """Losses: ``report`` (Eq. 2), ``vse`` (Eq. 3), ``did`` (Eq. 6); ``words``, ``text`` and ``text_in_context``
        (reports after some of their own words, where the image will stand) of the stages before.
        """
        return losses(self.terms, Forward(self, batch), terms)

    def prompt_tokens(self, study: StudySize) -> int:
        """The prompt with the tokens of all views."""
        return self.prompt.length({"image": study.views * study.tokens}, study.context)

    def report_nats(self, batch: Batch) -> Float[Tensor, " batch"]:
        """Mean negative log-likelihood per token of each study's report."""
        return prompted_nats(Forward(self, batch))

    @torch.no_grad()
    def generate(self, batch: Batch, decoding: DecodingConfig) -> Generation:
        """Decode a report per study.

        Evidence: the log-probability of each token, the similarity of each sentence with the image (``sentence_fit``),
        and the training sentences nearest to the image (``recalled``). The last two need DID.
        """
        return generation(self, batch, decoding)

    def to_write(self, batch: Batch) -> ToWrite:
        """Prefixes of the reports of a batch."""
        forward = Forward(self, batch)

        def finish(ids: list[list[int]], log_probs: list[list[float]]) -> Generation:
            return written(ids, log_probs, self.sentences.evidence(self.language_model, forward.views, ids, batch))

        return ToWrite(Prefixes(*forward.prefix), finish)

    def build_memories(self, stage: str, training: TrainingView) -> dict[str, Bank]:
        """The sentence bank, before the reports are learned; without DID there is no space for it."""
        return self.sentences.banks(training, self.language_model) if stage == "report" else {}

    def memory_layouts(self) -> Mapping[str, BankLayout]:
        """Sentences, where they are kept."""
        return self.sentences.layouts(self.language_model.width)

    def set_memories(self, banks: Mapping[str, Bank]) -> None:
        """Take the bank of sentences."""
        self.sentences.remember(banks)

    def encode(self, batch: Batch) -> ViewTokens:
        """Normalised tokens X of every view; their ``mean()`` is h."""
        return self.normed(encode_views(self.vision_encoder, batch))

    def normed(self, views: ViewTokens) -> ViewTokens:
        """The encoder's tokens, normalised; absent views stay zero and count in no statistics."""
        present = views.view_mask
        normed = self.vision_norm(views.tokens[present])
        tokens = normed.new_zeros(views.tokens.shape)
        tokens[present] = normed
        return replace(views, tokens=tokens)


class VdgenModelConfig(ModelConfig):
    """Parts of VDGen. ``prompt`` is text with the slot ``{image}``; ``prompt_format`` is as in the baseline.

    ``vision_norm`` is the paper's LayerNorm, or ``batch``: every channel over images and positions
    (``radweave.nn.connector.TokenNorm``), whose output VSE and DID shape and the decoder reads. A second such norm in
    the connector (``connector.input_norm``) would take out again what they have scaled.
    """

    vision_encoder: VisionEncoderConfig
    vision_norm: Literal["layer", "batch"] = "layer"
    connector: ConnectorConfig
    vse: EquilibrationConfig = SelfEquilibrationConfig()
    did: DistillationConfig = DiseaseDistillationConfig()
    sentences: SentenceMemoryConfig = SentenceMemoryConfig()
    word_head: WordHeadConfig = NoWordHeadConfig()
    language_model: LanguageModelConfig
    prompt: Prompt
    prompt_format: PromptFormat = "plain"

    def without_memories(self) -> Without:
        """Without the sentences that are shown beside a draft; the draft is the same."""
        if not self.sentences.recall:
            return Without(self)
        bare = self.model_copy(update={"sentences": self.sentences.model_copy(update={"recall": False})})
        return Without(bare, ("no training sentences are shown beside a draft (drafts are the same)",))

    def build(self, context: BuildContext) -> VdgenModel:
        encoder = context.vision_encoder(self.vision_encoder)
        language_model = context.part("language_model", lambda: self.language_model.build(**context.words))
        dim, width = encoder.dim, language_model.width
        did = context.part("did", lambda: self.did.build(dim, width))
        return VdgenModel(
            vision_encoder=encoder,
            vision_norm=TokenNorm(dim) if self.vision_norm == "batch" else nn.LayerNorm(dim),
            connector=context.part("connector", lambda: self.connector.build(dim, width)),
            vse=context.part("vse", lambda: self.vse.build(dim)),
            did=did,
            language_model=language_model,
            word_head=context.word_head(self.word_head, dim),
            prompt=context.prompt(self.prompt, self.prompt_format, "image"),
            sentences=did.sentences(SentenceSplitter.for_tokenizer(context.tokenizer), self.sentences),
        )


class VdgenExperiment(Experiment):
    """VDGen with all its numbers."""

    method: Literal["vdgen"] = "vdgen"
    model: VdgenModelConfig
    stages: VisionFirstStages
