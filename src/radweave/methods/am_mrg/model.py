"""AM-MRG: disease tokens that associate with a bank of regions and a memory of reports, read by a language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from radweave.core.batch import Batch, Generation
from radweave.core.config import Grid, Prompt
from radweave.core.evidence import DraftEvidence, RecalledEvidence
from radweave.core.map_kinds import KEY as MAP_KIND
from radweave.data.tokenizer import encode
from radweave.methods.am_mrg.disease_queries import DiseaseHeads, DiseaseQueryFormer, QueryFormerConfig, Reading
from radweave.methods.am_mrg.memory import (
    Memory,
    NoReportMemoryConfig,
    NoVisualMemoryConfig,
    Recollection,
    ReportMemoryConfig,
    ReportMemorySetting,
    VisualMemoryConfig,
    VisualMemorySetting,
)
from radweave.methods.am_mrg.regions import RegionConfig, build_visual_bank
from radweave.methods.am_mrg.report_bank import ReportDrawConfig, build_report_bank
from radweave.methods.experiment import BuildContext, DiseaseFirstStages, Experiment, ModelConfig, Without
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
from radweave.nn.cam import view_maps
from radweave.nn.connector import Connector, ConnectorConfig, ViewTokens, connect_views
from radweave.nn.decoding import DecodingConfig, Prefixes
from radweave.nn.heads import NoWordHeadConfig, UncertainPolicy, WordHeadConfig, WordPart, binary_loss
from radweave.nn.language_model import CausalLanguageModel, LanguageModelConfig
from radweave.nn.memory.bank import Bank, BankLayout
from radweave.nn.prompt import PromptFormat, PromptTemplate, Slot, all_there, nothing
from radweave.nn.study_norm import MARKS, OverStudies, over_studies
from radweave.nn.text_encoder import TextEncoderConfig, TextPart
from radweave.nn.text_pretraining import finding_names, hint_generator, word_hints
from radweave.nn.vision import VisionEncoderConfig, VisionPart

if TYPE_CHECKING:
    from radweave.methods.model import TrainingView

REGIONS, REPORTS = "regions", "reports"
RECALLED_PER_DISEASE = 3
SHOWN_FROM = 0.5
"""A class's map is shown from this probability on; of a study without any, the most probable class's."""


class Forward(ForwardPass["AmMrgModel"]):
    """One batch as the model sees it: tokens of its views, disease tokens, what they recall."""

    @cached_property
    def reading(self) -> Reading:
        reading: Reading = self.model.query_former(*self.views.flat())
        return reading

    @cached_property
    def regions(self) -> Recollection:
        recollection: Recollection = self.model.visual_memory(self.reading.diseases, self.batch.patient_ids)
        return recollection

    @cached_property
    def reports(self) -> Recollection:
        recollection: Recollection = self.model.report_memory(self.reading.diseases, self.batch.patient_ids)
        return recollection

    @cached_property
    def prefix(self) -> Slot:
        """[F; Q_f; F'] in their slots of the prompt (Eq. 10)."""
        model = self.model
        recalled = paired(
            self.decoder_input("regions", all_there(self.regions.tokens)),
            self.decoder_input("reports", all_there(self.reports.tokens)),
        )
        slots = {
            "image": self.decoder_input("image", connect_views(model.connector, pooled(self.views, model.image_grid))),
            "queries": self.decoder_input("queries", all_there(model.query_projection(self.reading.image))),
            "memory": recalled,
        }
        return self.spliced(model.prompt, slots)

    def disease(self) -> Tensor:
        """Binary cross-entropy (Eq. 11)."""
        logits = self.model.heads(self.reading.diseases)
        return binary_loss(logits, required(self.batch.class_labels), self.model.uncertain)

    def orthogonality(self) -> Tensor:
        return self.model.query_former.orthogonality(self.reading.diseases)

    def text_in_context(self) -> Tensor:
        """Report after a context of text: some of its words where the image will stand, and the names of its findings
        where the memories will.
        """
        model, batch = self.model, self.batch
        generator = hint_generator(model.language_model.training)
        ids, mask = word_hints(required(batch.labels), generator)
        names, name_mask = finding_names(required(batch.class_labels), model.class_ids, generator)
        embed = model.language_model.embed
        hints = embed(ids), mask
        slots = {"image": hints, "queries": nothing(hints), "memory": (embed(names), name_mask)}
        return prompted_loss(self, self.spliced(model.prompt, slots))

    def evidence(self) -> list[DraftEvidence]:
        """Per study the probability of every class, maps of those found, and what every class recalled."""
        model, views, classes = self.model, self.views, self.model.classes
        probabilities = model.heads(self.reading.diseases).float().sigmoid()
        positive = probabilities >= torch.minimum(
            probabilities.amax(1, keepdim=True), probabilities.new_full((1, 1), SHOWN_FROM)
        )
        shown_classes = torch.nonzero(positive.any(0)).flatten().tolist()
        maps = view_maps(
            model.sources.regions.cam, views, lambda tokens: model.score(tokens, views.view_mask), shown_classes
        )
        regions = model.visual_memory.recalled(self.regions, classes, RECALLED_PER_DISEASE)
        texts = model.report_memory.recalled(self.reports, classes, RECALLED_PER_DISEASE)
        kind = "sentence" if model.sources.reports.unit == "sentence" else "report"
        return [
            {
                "class_probabilities": dict(zip(classes, values, strict=True)),
                "attention_maps": {
                    classes[number]: maps[place, row, views.view_mask[row]].cpu().numpy()
                    for place, number in enumerate(shown_classes)
                    if positive[row, number]
                },
                MAP_KIND: model.sources.regions.cam,
                "recalled": [_shown("region", item) for item in regions[row]]
                + [_shown(kind, item) for item in texts[row]],
            }
            for row, values in enumerate(probabilities.tolist())
        ]


INPUTS = {
    "image": DecoderInput("projected patch tokens F"),
    "queries": DecoderInput("image queries Q_f of the Q-Former"),
    "regions": DecoderInput(
        "regions that V-Hopfield recalls",
        covered_by=("image", "reports"),
        because="they and the sentences are recalled by what the image shows of each disease",
    ),
    "reports": DecoderInput("sentences that R-Hopfield recalls"),
}
DISEASES = ("vision_encoder", "query_former", "heads")
MEMORIES = ("text_encoder", "visual_memory", "report_memory")
TERMS: Mapping[str, Term[Forward]] = {
    "disease": Term(DISEASES, Forward.disease),
    "words": WORDS_TERM,
    "orthogonality": Term(("vision_encoder", "query_former"), Forward.orthogonality),
    "text": Term(("language_model",), text_loss),
    "text_in_context": Term(("language_model",), Forward.text_in_context),
    # The banks hang on the heads (activation maps) and on the text encoder.
    "report": Term((*DISEASES, *MEMORIES, "connector", "query_projection", "language_model"), report_loss),
}


@dataclass(frozen=True, slots=True)
class MemorySources:
    """Settings of the two banks."""

    regions: RegionConfig
    reports: ReportDrawConfig


@dataclass(eq=False, repr=False, kw_only=True)
class AmMrgModel(ReportModel):
    """Stage 1 learns disease tokens; stage 2 lets them recall regions and reports, and writes.

        F = E(images),   [F_d; Q_f] = QFormer(F),   y = heads(F_d)                                (stage 1, Eq. 11)
        F' = [V-Hopfield(F_d, V); R-Hopfield(F_d, R)]                                             (Eq. 6-9)
        report ~ LM([F; Q_f; F'; prompt])                                                         (Eq. 10, 12)

    The tokens of all views of a study stand in one row. Deviations: see docs/methods/am_mrg.md.
    """

    vision_encoder: VisionPart
    query_former: DiseaseQueryFormer
    heads: DiseaseHeads
    word_head: WordPart
    text_encoder: TextPart
    visual_memory: Memory
    report_memory: Memory
    connector: Connector
    query_projection: nn.Module
    language_model: CausalLanguageModel
    prompt: PromptTemplate
    classes: tuple[str, ...]
    class_ids: tuple[tuple[int, ...], ...]
    uncertain: UncertainPolicy
    image_grid: int | None
    sources: MemorySources
    terms = TERMS
    inputs = INPUTS

    @property
    def absent_inputs(self) -> frozenset[str]:
        parts = {"regions": self.visual_memory, "reports": self.report_memory}
        return frozenset(name for name, memory in parts.items() if not memory.tokens_per_class)

    def loss(self, batch: Batch, terms: Sequence[str]) -> dict[str, Tensor]:
        """Losses of stage 1: ``disease`` (binary cross-entropy, Eq. 11), ``orthogonality`` of the diseases, and
        ``words`` for encoders that start from nothing. Of small language models: ``text`` and ``text_in_context``. Of
        stage 2: ``report`` (Eq. 12), per token.
        """
        return losses(self.terms, Forward(self, batch), terms)

    def class_logits(self, batch: Batch) -> Tensor:
        """Logits of the heads for each class (B, K)."""
        logits: Tensor = self.heads(Forward(self, batch).reading.diseases)
        return logits

    def prompt_tokens(self, study: StudySize) -> int:
        """The prompt with [F; Q_f; F']: a token per disease of each memory that is there."""
        per_class = self.visual_memory.tokens_per_class + self.report_memory.tokens_per_class
        slots = {
            "image": study.views * (study.tokens if self.image_grid is None else self.image_grid**2),
            "queries": self.query_former.num_image_queries,
            "memory": per_class * len(self.classes),
        }
        return self.prompt.length(slots, study.context)

    def report_nats(self, batch: Batch) -> Float[Tensor, " batch"]:
        """Mean negative log-likelihood per token of each study's report."""
        return prompted_nats(Forward(self, batch))

    @torch.no_grad()
    def generate(self, batch: Batch, decoding: DecodingConfig) -> Generation:
        """Decode a report per study. Evidence: the probability of every class, activation maps of those found, and for
        every class the regions and texts it recalled.
        """
        return generation(self, batch, decoding)

    def to_write(self, batch: Batch) -> ToWrite:
        """Prefixes of the reports of a batch."""
        forward = Forward(self, batch)
        return ToWrite(Prefixes(*forward.prefix), lambda ids, log_probs: written(ids, log_probs, forward.evidence()))

    @torch.no_grad()
    def build_memories(self, stage: str, training: TrainingView) -> dict[str, Bank]:
        """Before stage 2: the bank of regions from stage 1's maps, and the memory of reports."""
        if stage != "report":
            return {}
        return {
            **self.visual_memory.banks(
                REGIONS, lambda: build_visual_bank(training, self.vision_encoder, self.score, self.sources.regions)
            ),
            **self.report_memory.banks(REPORTS, lambda: self._report_bank(training)),
        }

    def memory_layouts(self) -> Mapping[str, BankLayout]:
        """Regions and reports, where there are memories of them. No region is found where no study is positive."""
        return {
            **self.visual_memory.layouts(REGIONS, texts=False, may_be_empty=True),
            **self.report_memory.layouts(REPORTS, texts=True, may_be_empty=False),
        }

    def set_memories(self, banks: Mapping[str, Bank]) -> None:
        """Take the banks that are there."""
        if REGIONS in banks:
            self.visual_memory.remember(banks[REGIONS])
        if REPORTS in banks:
            self.report_memory.remember(banks[REPORTS])

    def score(
        self, tokens: Float[Tensor, "batch views tokens dim"], view_mask: Bool[Tensor, "batch views"]
    ) -> Float[Tensor, "batch classes"]:
        """Disease logits of visual tokens: what activation maps are the gradients of."""
        # A copy: a mask made in inference mode could not be remembered for the gradient.
        mask = view_mask.clone()[:, :, None].expand(tokens.shape[:3]).flatten(1, 2)
        logits: Tensor = self.heads(self.query_former(tokens.flatten(1, 2), mask).diseases)
        return logits

    def _report_bank(self, training: TrainingView) -> Bank:
        self.text_encoder.fit(training.reports)
        return build_report_bank(training, self.text_encoder, self.sources.reports)


def _shown(kind: str, item: Mapping[str, Any]) -> RecalledEvidence:
    """A recalled row of a bank as evidence; the patient's code stays in the bank."""
    scores = {name: item[name] for name in ("weight", "activation") if name in item}
    rest = {name: item[name] for name in ("for", "text", "disease", "diseases", "view", "cell") if name in item}
    return cast(RecalledEvidence, {"kind": kind, "study_id": item["study_id"], "scores": scores, **rest})


def pooled(views: ViewTokens, side: int | None) -> ViewTokens:
    """The tokens of each view averaged to ``side`` x ``side``; as they are for None."""
    if side is None:
        return views
    batch, num_views, _, dim = views.tokens.shape
    maps = views.tokens.flatten(0, 1).transpose(1, 2).reshape(batch * num_views, dim, *views.grid)
    small = F.adaptive_avg_pool2d(maps, side).flatten(2).transpose(1, 2)
    return ViewTokens(small.reshape(batch, num_views, -1, dim), views.view_mask, views.view_ids, (side, side))


def paired(regions: Slot, reports: Slot) -> Slot:
    """F' (B, 2 K, H) with its mask: regions and reports of each disease, one disease after the other (Eq. 8-9)."""
    both = [slot for slot in (regions, reports) if slot[0].shape[1]]
    if not both:
        return regions
    tokens, masks = zip(*both, strict=True)
    return torch.stack(tokens, dim=2).flatten(1, 2), torch.stack(masks, dim=2).flatten(1, 2)


class AmMrgModelConfig(ModelConfig):
    """Parts of the model. ``prompt`` has the slots ``{image}`` (F), ``{queries}`` (Q_f) and ``{memory}`` (F').

    ``image_grid`` averages each view's tokens to that grid before the language model reads them, None keeps them all,
    as the paper does. ``query_norm=studies`` normalises Q_f over studies before its projection. ``uncertain`` says
    what an uncertain label counts as in stage 1.
    """

    vision_encoder: VisionEncoderConfig
    query_former: QueryFormerConfig = QueryFormerConfig()
    word_head: WordHeadConfig = NoWordHeadConfig()
    text_encoder: TextEncoderConfig
    visual_memory: VisualMemorySetting = VisualMemoryConfig()
    report_memory: ReportMemorySetting = ReportMemoryConfig()
    uncertain: UncertainPolicy = "negative"
    image_grid: Grid | None = None
    query_norm: OverStudies = "none"
    connector: ConnectorConfig
    language_model: LanguageModelConfig
    prompt: Prompt
    prompt_format: PromptFormat = "plain"

    def without_memories(self) -> Without:
        """Without V-Hopfield and R-Hopfield."""
        bare: dict[str, Any] = {}
        if isinstance(self.visual_memory, VisualMemoryConfig):
            bare["visual_memory"] = NoVisualMemoryConfig(regions=self.visual_memory.regions)
        if isinstance(self.report_memory, ReportMemoryConfig):
            bare["report_memory"] = NoReportMemoryConfig()
        lost = {
            "visual_memory": "disease tokens recall no regions of training images",
            "report_memory": "disease tokens recall no sentences of training reports",
        }
        return Without(self.model_copy(update=bare), tuple(lost[name] for name in bare))

    def query_projection(self, width: int) -> nn.Sequential:
        """Q_f to the language model's width: linear and LayerNorm, as for the other visual tokens."""
        former = self.query_former
        projection = nn.Sequential(nn.Linear(former.dim, width), nn.LayerNorm(width))
        norm = over_studies(self.query_norm, former.num_image_queries, former.dim, MARKS)
        return projection if isinstance(norm, nn.Identity) else nn.Sequential(norm, *projection)

    def build(self, context: BuildContext) -> AmMrgModel:
        encoder, text = context.vision_encoder(self.vision_encoder), context.text_encoder(self.text_encoder)
        language_model = context.part("language_model", lambda: self.language_model.build(**context.words))
        dim, state_dim, width = encoder.dim, self.query_former.dim, language_model.width
        tokenizer, classes, part = context.tokenizer, context.classes, context.part
        states = len(classes), state_dim
        return AmMrgModel(
            vision_encoder=encoder,
            query_former=part("query_former", lambda: self.query_former.build(len(classes), dim)),
            heads=part("heads", lambda: DiseaseHeads(len(classes), state_dim)),
            word_head=context.word_head(self.word_head, dim),
            text_encoder=text,
            visual_memory=part("visual_memory", lambda: self.visual_memory.build(*states, dim, width)),
            report_memory=part("report_memory", lambda: self.report_memory.build(*states, text.width, width)),
            connector=part("connector", lambda: self.connector.build(dim, width)),
            query_projection=part("query_projection", lambda: self.query_projection(width)),
            language_model=language_model,
            prompt=context.prompt(self.prompt, self.prompt_format, "image", "queries", "memory"),
            classes=classes,
            class_ids=tuple(tuple(encode(tokenizer, name.lower())) for name in classes),
            uncertain=self.uncertain,
            image_grid=self.image_grid,
            sources=MemorySources(self.visual_memory.regions, self.report_memory.reports),
        )


class AmMrgExperiment(Experiment):
    """The method with all its numbers."""

    method: Literal["am_mrg"] = "am_mrg"
    model: AmMrgModelConfig
    stages: DiseaseFirstStages
