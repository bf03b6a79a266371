"""The dual-stage disease-aware model: disease tokens first, then reports from a frozen language model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from radweave.core.batch import Batch, Generation
from radweave.core.config import Config, Prompt
from radweave.core.evidence import DraftEvidence
from radweave.core.map_kinds import KEY as MAP_KIND
from radweave.data.tokenizer import encode
from radweave.methods.dast.fusion import ConcatFusion, Dvaf, DvafConfig, Fused, FusionConfig, MeanFusion, NoFusion
from radweave.methods.dast.retrieval import (
    Banked,
    Dmsr,
    DmsrConfig,
    Exemplar,
    NoRetrieval,
    NoRetrievalConfig,
    RetrievalConfig,
)
from radweave.methods.experiment import BuildContext, DiseaseFirstStages, Experiment, ModelConfig, Without
from radweave.methods.model import (
    WORDS_TERM,
    DecoderInput,
    ForwardPass,
    InputSource,
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
from radweave.nn.connector import Connector, ConnectorConfig
from radweave.nn.decoding import DecodingConfig, Prefixes
from radweave.nn.global_batch import symmetric_info_nce
from radweave.nn.heads import NoWordHeadConfig, UncertainPolicy, WordHeadConfig, WordPart, binary_loss
from radweave.nn.language_model import CausalLanguageModel, LanguageModelConfig
from radweave.nn.memory.bank import Bank, BankLayout
from radweave.nn.prompt import PromptFormat, PromptTemplate, Slot, all_there, nothing
from radweave.nn.query_transformer import DiseaseReading, DiseaseTokens, DiseaseTokensConfig
from radweave.nn.text_encoder import TextEncoderConfig, TextPart
from radweave.nn.text_pretraining import (
    Around,
    TokenSlot,
    finding_names,
    hint_generator,
    pad_rows,
    similar_reports,
    word_hints,
)
from radweave.nn.vision import VisionEncoderConfig, VisionPart

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from radweave.methods.model import TrainingView

# Images and reports that belong together lie close: the contrastive term of stage 1 (the paper's Eq. 3).


class Alignment(nn.Module):
    """InfoNCE between the projected mean patch and the text feature, by cosine.

        z_i = P mean(V_i),      loss = symmetric InfoNCE of (z_i, text_i) over the batch, temperature tau

    Deviations: the paper names no projection; its encoder and text encoder differ in width, so there is one, on the
    vision side, which is the side that trains. The temperature is not given either.
    """

    def __init__(self, dim: int, text_dim: int, temperature: float) -> None:
        super().__init__()
        self.projection = nn.Linear(dim, text_dim)
        self.temperature = temperature

    def loss(self, visual: Float[Tensor, "batch dim"], text: Float[Tensor, "batch text_dim"]) -> Float[Tensor, ""]:
        """Row i of ``visual`` and row i of ``text`` belong together."""
        return symmetric_info_nce(self.projection(visual), text, self.temperature)


class AlignmentConfig(Config):
    """The contrastive term; MambaXray-VL and CLIP start from the same temperature."""

    temperature: float = Field(default=0.07, gt=0)

    def build(self, dim: int, text_dim: int) -> Alignment:
        return Alignment(dim, text_dim, self.temperature)


# The prompt: a sentence with the exemplar, where there is one, and the image.


class Prompts:
    """One template with the slots ``exemplar`` and ``image``, and the tokens of exemplars and class names.

    The words around an exemplar come and go with it, study by study: one that may recall nothing is not told of a
    similar report.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        prompt: str,
        exemplar_prompt: str,
        prompt_format: PromptFormat,
        classes: tuple[str, ...],
    ) -> None:
        self.tokenizer = tokenizer
        self.class_names = [encode(tokenizer, f" {name.lower()}") for name in classes]
        self.template = PromptTemplate.for_tokenizer(
            f"{{exemplar}}{prompt}", tokenizer, prompt_format, slots=("exemplar", "image")
        )
        self.exemplar_sentence = Around.parse(exemplar_prompt, tokenizer, "exemplar")

    def exemplar_ids(self, texts: Sequence[str | None], limit: int) -> TokenSlot:
        """Token ids (B, L) of the reports, cut at ``limit``, in their sentence, and where they are; nothing where there
        is no exemplar.
        """
        return self.exemplar_sentence(
            *pad_rows([[] if text is None else encode(self.tokenizer, text)[:limit] for text in texts])
        )


class Forward(ForwardPass["DastModel"]):
    """One batch as the model sees it: tokens of its views, disease tokens, their fusion, an exemplar."""

    @cached_property
    def patches(self) -> Slot:
        return self.views.flat()

    @cached_property
    def reading(self) -> DiseaseReading:
        reading: DiseaseReading = self.model.disease_tokens(*self.patches)
        return reading

    @cached_property
    def fused(self) -> Fused:
        tokens, _ = self.input_source("diseases", all_there(self.reading.tokens))
        fused: Fused = self.model.fusion(tokens, *self.patches)
        return fused

    @cached_property
    def exemplars(self) -> list[Exemplar | None]:
        batch = self.batch
        return self.model.retrieval.recall(self.views.mean(), self.reading.logits, batch.study_ids, batch.patient_ids)

    @cached_property
    def prefix(self) -> Slot:
        """The prompt with the exemplar and the projected tokens in their slots."""
        model, image = self.model, self._image()
        texts = [None if exemplar is None else exemplar.text for exemplar in self.exemplars]
        ids, mask = model.prompts.exemplar_ids(texts, model.retrieval.max_tokens)
        embed, device = model.language_model.embed, image[0].device
        exemplar = self.decoder_input("exemplar", (embed(ids.to(device)), mask.to(device)))
        slots = {"image": image, "exemplar": exemplar}
        return self.spliced(model.prompts.template, slots)

    def disease(self) -> Tensor:
        return binary_loss(self.reading.logits, required(self.batch.class_labels), self.model.uncertain)

    def contrastive(self) -> Tensor:
        visual = self.views.mean()
        text = self.model.text_encoder.encode(required(self.batch.reports))
        return self.model.alignment.loss(visual, text.to(visual))

    def text_in_context(self) -> Tensor:
        """Reports after a context of text: names of findings, words, and every other batch a similar report."""
        model, batch = self.model, self.batch
        labels, class_labels = required(batch.labels), required(batch.class_labels)
        generator = hint_generator(model.language_model.training)
        named, named_mask = finding_names(class_labels, model.prompts.class_names, generator)
        words, words_mask = word_hints(labels, generator, largest_share=0.15)
        embed = model.language_model.embed
        image = embed(torch.cat([named, words], dim=1)), torch.cat([named_mask, words_mask], dim=1)
        exemplar = nothing(image)
        # Every other batch has exemplars, so that one language model serves with and without a retrieval.
        if torch.rand(1, generator=generator) < 0.5:
            similar = similar_reports(labels, class_labels, batch.patient_ids, generator)
            ids, mask = model.prompts.exemplar_sentence(*similar)
            exemplar = embed(ids), mask
        return prompted_loss(self, self.spliced(model.prompts.template, {"image": image, "exemplar": exemplar}))

    def _image(self) -> Slot:
        """LN(P [V; fused]) (Eq. 7): one projection for all tokens; appended ones count as of unknown view."""
        views, fused = self.views, self.fused
        patches, present = views.flat()
        kinds = views.view_ids[:, :, None].expand(views.tokens.shape[:3]).flatten(1)
        appended = fused.tokens.shape[1]
        tokens = torch.cat([patches, fused.tokens], dim=1)
        mask = torch.cat([present, present.new_ones(len(present), appended)], dim=1)
        kinds = torch.cat([kinds, kinds.new_zeros(len(kinds), appended)], dim=1)
        projected = self.model.connector(tokens[mask][:, None], kinds[mask])[:, 0]
        hidden = projected.new_zeros(*mask.shape, projected.shape[-1])
        hidden[mask] = projected
        number = patches.shape[1]
        image = self.decoder_input("image", (hidden[:, :number], mask[:, :number]))
        fusion = self.decoder_input("fusion", (hidden[:, number:], mask[:, number:]))
        return torch.cat([image[0], fusion[0]], dim=1), torch.cat([image[1], fusion[1]], dim=1)

    def evidence(self, row: int) -> DraftEvidence:
        """One study's evidence; maps are over its own views, (V, h, w), and sum to 1 over all of them."""
        classes, present = self.model.classes, self.views.view_mask[row]
        attention = self.reading.attention[row]
        maps = attention.reshape(len(attention), len(present), *self.views.grid)[:, present].float().cpu().numpy()
        probabilities = self.reading.logits[row].float().sigmoid().tolist()
        exemplar, fused = self.exemplars[row], self.fused
        shown: DraftEvidence = {
            "class_probabilities": dict(zip(classes, probabilities, strict=True)),
            "attention_maps": dict(zip(classes, maps, strict=True)),
            MAP_KIND: "class attention",
            "recalled": [] if exemplar is None else [exemplar.evidence()],
        }
        if fused.gate is not None and fused.shares is not None:
            shown["fusion"] = {
                "disease_share": float(fused.gate[row].mean()),
                "class_shares": dict(zip(classes, fused.shares[row].tolist(), strict=True)),
            }
        return shown


INPUTS = {
    "exemplar": DecoderInput(
        "report of a similar training study (DMSR)",
        covered_by=("image", "fusion"),
        because="it is found by image and diseases, and tells what they show",
    ),
    "image": DecoderInput("projected patch tokens"),
    "fusion": DecoderInput("disease tokens fused with the image (DVAF)"),
}
INPUT_SOURCES = {"diseases": InputSource("disease tokens T'", "fusion")}
TERMS: Mapping[str, Term[Forward]] = {
    "words": WORDS_TERM,
    "disease": Term(("vision_encoder", "disease_tokens"), Forward.disease),
    "contrastive": Term(("vision_encoder", "alignment", "text_encoder"), Forward.contrastive),
    "text": Term(("language_model",), text_loss),
    "text_in_context": Term(("language_model",), Forward.text_in_context),
    "report": Term(
        ("vision_encoder", "disease_tokens", "fusion", "retrieval", "connector", "language_model"), report_loss
    ),
}


@dataclass(eq=False, repr=False, kw_only=True)
class DastModel(ReportModel):
    """V = E(images), (T', c) = disease tokens of V, report ~ LM([exemplar prompt; LN(P [V; fused])]).

    Stage ``disease`` trains E, the disease tokens and the projection of the contrastive term; stage ``report`` trains
    the fusion and the connector. The patches of all views of a study stand in one row.

    Source: the dual-stage disease-aware framework, Eq. 1-9. Deviations: see docs/methods/dast.md.
    """

    vision_encoder: VisionPart
    word_head: WordPart
    disease_tokens: DiseaseTokens
    alignment: Alignment
    text_encoder: TextPart
    fusion: NoFusion | ConcatFusion | MeanFusion | Dvaf
    retrieval: Dmsr | NoRetrieval
    connector: Connector
    language_model: CausalLanguageModel
    prompts: Prompts
    classes: tuple[str, ...]
    uncertain: UncertainPolicy
    terms = TERMS
    inputs = INPUTS
    input_sources = INPUT_SOURCES

    @property
    def absent_inputs(self) -> frozenset[str]:
        tokens = {"exemplar": self.retrieval.max_tokens, "fusion": self.fusion.appended(len(self.classes))}
        return frozenset(name for name, most in tokens.items() if not most)

    def loss(self, batch: Batch, terms: Sequence[str]) -> dict[str, Tensor]:
        """Losses: ``disease`` (binary cross-entropy) and ``contrastive`` of stage 1, ``report`` of stage 2, and for
        small language models ``text`` (reports alone) and ``text_in_context`` (reports after a context of text).
        """
        return losses(self.terms, Forward(self, batch), terms)

    def class_logits(self, batch: Batch) -> Tensor:
        """Logits of the disease tokens for each class (B, K)."""
        return Forward(self, batch).reading.logits

    def prompt_tokens(self, study: StudySize) -> int:
        """The prompt with the patches, what the fusion appends, and an exemplar of full length in its sentence."""
        slots = {
            "image": study.views * study.tokens + self.fusion.appended(len(self.classes)),
            "exemplar": self.prompts.exemplar_sentence.length(self.retrieval.max_tokens),
        }
        return self.prompts.template.length(slots, study.context)

    def report_nats(self, batch: Batch) -> Float[Tensor, " batch"]:
        """Mean negative log-likelihood per token of each study's report."""
        return prompted_nats(Forward(self, batch))

    @torch.no_grad()
    def generate(self, batch: Batch, decoding: DecodingConfig) -> Generation:
        """Decode a report per study. Evidence: probability and attention map of every class, the recalled report with
        its similarities, and what DVAF made of the disease tokens.
        """
        return generation(self, batch, decoding)

    def to_write(self, batch: Batch) -> ToWrite:
        """Prefixes of the reports of a batch."""
        forward = Forward(self, batch)

        def finish(ids: list[list[int]], log_probs: list[list[float]]) -> Generation:
            return written(ids, log_probs, [forward.evidence(row) for row in range(len(batch))])

        return ToWrite(Prefixes(*forward.prefix), finish)

    @torch.no_grad()
    def build_memories(self, stage: str, training: TrainingView) -> dict[str, Bank]:
        """Before stage 1 the text encoder is fitted; before stage 2 the features and reports of training are banked."""
        if stage == "disease":
            self.text_encoder.fit(training.reports)
        return self.retrieval.banks(self._studies(training)) if stage == "report" else {}

    def memory_layouts(self) -> Mapping[str, BankLayout]:
        """Exemplars, where there is a retrieval."""
        return self.retrieval.layouts(self.vision_encoder.dim, len(self.classes))

    def set_memories(self, banks: Mapping[str, Bank]) -> None:
        """Take the bank of exemplars."""
        self.retrieval.remember(banks)

    def _studies(self, training: TrainingView) -> Iterator[Banked]:
        for batch in training.batches():
            forward = Forward(self, batch.to(self.disease_tokens.tokens.device))
            yield forward.batch, forward.views.mean(), forward.reading.logits


class DastModelConfig(ModelConfig):
    """Parts of the model. ``prompt`` has the slot ``{image}``, ``exemplar_prompt`` the slot ``{exemplar}`` and stands
    before it, for each study that has an exemplar.

    ``uncertain`` says what an uncertain label counts as in stage 1.
    """

    vision_encoder: VisionEncoderConfig
    word_head: WordHeadConfig = NoWordHeadConfig()
    disease_tokens: DiseaseTokensConfig = DiseaseTokensConfig()
    uncertain: UncertainPolicy = "positive"
    alignment: AlignmentConfig = AlignmentConfig()
    text_encoder: TextEncoderConfig
    fusion: FusionConfig = DvafConfig()
    retrieval: RetrievalConfig = DmsrConfig()
    connector: ConnectorConfig
    language_model: LanguageModelConfig
    prompt: Prompt
    exemplar_prompt: Prompt
    prompt_format: PromptFormat = "plain"

    def without_memories(self) -> Without:
        """Without exemplars; the language model has learned to write with and without one."""
        if "retrieval" in self.absent:
            return Without(self)
        bare = self.model_copy(update={"retrieval": NoRetrievalConfig()})
        return Without(bare, ("no report of a similar training study is retrieved, nor stands in the prompt",))

    def build(self, context: BuildContext) -> DastModel:
        encoder, text = context.vision_encoder(self.vision_encoder), context.text_encoder(self.text_encoder)
        language_model = context.part("language_model", lambda: self.language_model.build(**context.words))
        dim, classes = encoder.dim, context.classes
        return DastModel(
            classes=classes,
            uncertain=self.uncertain,
            vision_encoder=encoder,
            word_head=context.word_head(self.word_head, dim),
            disease_tokens=context.part("disease_tokens", lambda: self.disease_tokens.build(len(classes), dim)),
            alignment=context.part("alignment", lambda: self.alignment.build(dim, text.width)),
            text_encoder=text,
            fusion=context.part("fusion", lambda: self.fusion.build(dim, len(classes))),
            retrieval=self.retrieval.build(),
            connector=context.part("connector", lambda: self.connector.build(dim, language_model.width)),
            language_model=language_model,
            prompts=Prompts(context.tokenizer, self.prompt, self.exemplar_prompt, self.prompt_format, classes),
        )


class DastExperiment(Experiment):
    """The method with all its numbers."""

    method: Literal["dast"] = "dast"
    model: DastModelConfig
    stages: DiseaseFirstStages
