"""AM-MRG: disease tokens that associate with a bank of regions and a memory of reports, read by a language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn

from radweave.config import Config, Grid
from radweave.data.tokenizer import encode
from radweave.experiment import BuildContext, Experiment
from radweave.memory.bank import Bank
from radweave.methods.am_mrg.disease_queries import DiseaseHeads, DiseaseQueryFormer, QueryFormerConfig, Reading
from radweave.methods.am_mrg.memory import (
    Memory,
    NoMemory,
    Recollection,
    ReportMemoryConfig,
    ReportMemorySetting,
    VisualMemoryConfig,
    VisualMemorySetting,
)
from radweave.methods.am_mrg.regions import RegionConfig, build_visual_bank
from radweave.methods.am_mrg.report_bank import ReportDrawConfig, build_report_bank
from radweave.methods.am_mrg.stages import AmMrgStages
from radweave.nn.cam import view_maps
from radweave.nn.connector import Connector, ConnectorConfig
from radweave.nn.language_model import CausalLanguageModel, DecodingConfig, LanguageModelConfig
from radweave.nn.prompt import PromptFormat, PromptTemplate, Slot
from radweave.nn.supervision import UncertainPolicy, binary_loss
from radweave.nn.text_encoder import TextEncoderConfig
from radweave.nn.text_pretraining import finding_names, hint_generator, word_hints
from radweave.nn.views import ViewTokens, connect_views, encode_views
from radweave.nn.vision import VisionEncoderConfig
from radweave.nn.word_head import NoWordHead, NoWordHeadConfig, WordHead, WordHeadConfig
from radweave.train.stage import check_terms
from radweave.types import Batch, Generation

if TYPE_CHECKING:
    from radweave.train.view import TrainingView

SLOTS = ("image", "queries", "memory")
REGIONS, REPORTS = "regions", "reports"
RECALLED_PER_DISEASE = 3
SHOWN_FROM = 0.5
"""A class's map is shown from this probability on; of a study without any, the most probable class's."""


@dataclass(frozen=True, slots=True)
class MemorySources:
    """How the two banks are built."""

    regions: RegionConfig
    reports: ReportDrawConfig


class AmMrgModel(nn.Module):
    """Stage 1 learns disease tokens; stage 2 lets them recall regions and reports, and writes.

        F = E(images),   [F_d; Q_f] = QFormer(F),   y = heads(F_d)                                (stage 1, Eq. 11)
        F' = [V-Hopfield(F_d, V); R-Hopfield(F_d, R)]                                             (Eq. 6-9)
        report ~ LM([F; Q_f; F'; prompt])                                                         (Eq. 10, 12)

    The tokens of all views of a study stand in one row. Deviations: see docs/methods/am_mrg.md.
    """

    LOSS_PARTS: ClassVar[dict[str, tuple[str, ...]]] = {
        "disease": ("vision_encoder", "query_former", "heads"),
        "orthogonality": ("query_former",),
        "words": ("vision_encoder", "word_head"),
        "text": ("language_model",),
        "text_in_context": ("language_model",),
        # The banks hang on the heads (activation maps) and on the text encoder.
        "report": (
            "vision_encoder",
            "query_former",
            "heads",
            "text_encoder",
            "visual_memory",
            "report_memory",
            "connector",
            "query_projection",
            "language_model",
        ),
    }

    def __init__(
        self,
        *,
        vision_encoder: nn.Module,
        query_former: DiseaseQueryFormer,
        heads: DiseaseHeads,
        word_head: WordHead | NoWordHead,
        text_encoder: nn.Module,
        visual_memory: Memory,
        report_memory: Memory,
        connector: Connector,
        query_projection: nn.Module,
        language_model: CausalLanguageModel,
        prompt: PromptTemplate,
        classes: tuple[str, ...],
        class_ids: tuple[tuple[int, ...], ...],
        uncertain: UncertainPolicy,
        image_grid: int | None,
        sources: MemorySources,
    ) -> None:
        super().__init__()
        self.vision_encoder = vision_encoder
        self.query_former = query_former
        self.heads = heads
        self.word_head = word_head
        self.text_encoder: Any = text_encoder
        self.visual_memory = visual_memory
        self.report_memory = report_memory
        self.connector = connector
        self.query_projection = query_projection
        self.language_model = language_model
        self.prompt = prompt
        self.classes = classes
        self.class_ids = class_ids
        self.uncertain = uncertain
        self.image_grid = image_grid
        self.sources = sources

    def loss(self, batch: Batch, terms: Sequence[str]) -> dict[str, Tensor]:
        """Losses of stage 1: ``disease`` (binary cross-entropy, Eq. 11), ``orthogonality`` of the disease queries, and
        ``words`` for encoders that start from nothing. Of small language models: ``text`` and ``text_in_context``. Of
        stage 2: ``report`` (Eq. 12), per token.
        """
        check_terms(terms, tuple(self.LOSS_PARTS))
        assert batch.input_ids is not None
        assert batch.labels is not None
        losses: dict[str, Tensor] = {}
        if {"disease", "words"} & set(terms):
            losses = self._image_losses(batch, batch.labels, terms)
        if "orthogonality" in terms:
            losses["orthogonality"] = self.query_former.orthogonality()
        if "text" in terms:
            losses["text"] = self.language_model.text_loss(batch.input_ids, batch.labels)
        if "text_in_context" in terms:
            losses["text_in_context"] = self._text_in_context_loss(batch)
        if "report" in terms:
            prefix, mask = self._prefix(self._study(batch))
            losses["report"] = self.language_model.loss(prefix, mask, batch.input_ids, batch.labels)
        return losses

    @torch.no_grad()
    def generate(self, batch: Batch, decoding: DecodingConfig) -> Generation:
        """Decode a report per study. Evidence: the probability of every class, activation maps of those found, and for
        every class the regions and texts it recalled.
        """
        study = self._study(batch)
        prefix, mask = self._prefix(study)
        ids, log_probs = self.language_model.generate(prefix, mask, decoding)
        evidence = self._evidence(study)
        for values, shown in zip(log_probs, evidence, strict=True):
            shown["token_log_probs"] = values
        return Generation(token_ids=ids, intermediates=evidence)

    @torch.no_grad()
    def build_memories(self, stage: str, training: TrainingView) -> dict[str, Bank]:
        """Before stage 2: the bank of regions from stage 1's maps, and the memory of reports."""
        banks = {}
        if stage == "report" and not isinstance(self.visual_memory, NoMemory):
            banks[REGIONS] = build_visual_bank(training, self.vision_encoder, self.score, self.sources.regions)
        if stage == "report" and not isinstance(self.report_memory, NoMemory):
            self.text_encoder.fit(training.reports)
            banks[REPORTS] = build_report_bank(training, self.text_encoder, self.sources.reports)
        return banks

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

    def _image_losses(self, batch: Batch, labels: Tensor, terms: Sequence[str]) -> dict[str, Tensor]:
        views = encode_views(self.vision_encoder, batch)
        losses = {}
        if "disease" in terms:
            assert batch.class_labels is not None
            logits = self.score(views.tokens, views.view_mask)
            losses["disease"] = binary_loss(logits, batch.class_labels, self.uncertain)
        if "words" in terms:
            losses["words"] = self.word_head.loss(views.tokens, views.view_mask, labels)
        return losses

    def _text_in_context_loss(self, batch: Batch) -> Tensor:
        """Report after a context of text: some of its words where the image will stand, and the names of its findings
        where the memories will.
        """
        assert batch.input_ids is not None
        assert batch.labels is not None
        assert batch.class_labels is not None
        generator = hint_generator(self.language_model.training)
        ids, mask = word_hints(batch.labels, generator)
        names, name_mask = finding_names(batch.class_labels, self.class_ids, generator)
        embed = self.language_model.embed
        hints = embed(ids), mask
        slots = {"image": hints, "queries": (hints[0][:, :0], mask[:, :0]), "memory": (embed(names), name_mask)}
        prefix, prefix_mask = self.prompt.splice(embed, slots)
        return self.language_model.loss(prefix, prefix_mask, batch.input_ids, batch.labels)

    def _study(self, batch: Batch) -> _Study:
        views = encode_views(self.vision_encoder, batch)
        reading = self.query_former(*views.flat())
        return _Study(
            views,
            reading,
            regions=self.visual_memory(reading.diseases, batch.patient_ids),
            reports=self.report_memory(reading.diseases, batch.patient_ids),
        )

    def _prefix(self, study: _Study) -> tuple[Float[Tensor, "batch prefix width"], Bool[Tensor, "batch prefix"]]:
        """[F; Q_f; F'] in their slots of the prompt (Eq. 10)."""
        image = connect_views(self.connector, pooled(study.views, self.image_grid))
        queries = _all_there(self.query_projection(study.reading.image))
        recalled = _all_there(torch.cat([study.regions.tokens, study.reports.tokens], dim=1))
        slots = {"image": image, "queries": queries, "memory": recalled}
        return self.prompt.splice(self.language_model.embed, slots)

    def _evidence(self, study: _Study) -> list[dict[str, Any]]:
        probabilities = self.heads(study.reading.diseases).float().sigmoid()
        found = probabilities >= torch.minimum(
            probabilities.amax(1, keepdim=True), probabilities.new_full((1, 1), SHOWN_FROM)
        )
        asked = torch.nonzero(found.any(0)).flatten().tolist()
        views = study.views
        maps = view_maps(self.sources.regions.cam, views, lambda tokens: self.score(tokens, views.view_mask), asked)
        regions = self.visual_memory.recalled(study.regions, self.classes, RECALLED_PER_DISEASE)
        texts = self.report_memory.recalled(study.reports, self.classes, RECALLED_PER_DISEASE)
        kind = "sentence" if self.sources.reports.unit == "sentence" else "report"
        return [
            {
                "class_probabilities": dict(zip(self.classes, values, strict=True)),
                "attention_maps": {
                    self.classes[number]: maps[place, row, views.view_mask[row]].cpu().numpy()
                    for place, number in enumerate(asked)
                    if found[row, number]
                },
                "recalled": [_shown("region", item) for item in regions[row]]
                + [_shown(kind, item) for item in texts[row]],
            }
            for row, values in enumerate(probabilities.tolist())
        ]


@dataclass(frozen=True, slots=True)
class _Study:
    """What the vision side and the memories made of a batch."""

    views: ViewTokens
    reading: Reading
    regions: Recollection
    reports: Recollection


def _shown(kind: str, item: Mapping[str, Any]) -> dict[str, Any]:
    """A recalled row of a bank as evidence; the patient's code stays in the bank."""
    scores = {name: item[name] for name in ("weight", "activation") if name in item}
    rest = {name: item[name] for name in ("for", "text", "disease", "diseases", "view", "cell") if name in item}
    return {"kind": kind, "study_id": item["study_id"], "scores": scores, **rest}


def _all_there(tokens: Float[Tensor, "batch tokens width"]) -> Slot:
    return tokens, torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)


def pooled(views: ViewTokens, side: int | None) -> ViewTokens:
    """The tokens of each view averaged to ``side`` x ``side``; as they are for None."""
    if side is None:
        return views
    batch, num_views, _, dim = views.tokens.shape
    maps = views.tokens.flatten(0, 1).transpose(1, 2).reshape(batch * num_views, dim, *views.grid)
    small = F.adaptive_avg_pool2d(maps, side).flatten(2).transpose(1, 2)
    return ViewTokens(small.reshape(batch, num_views, -1, dim), views.view_mask, views.view_ids, (side, side))


class TokenProjectionConfig(Config):
    """Q_f to the language model's width: linear and LayerNorm, as for the other visual tokens."""

    norm_eps: float = Field(default=1e-5, gt=0)

    def build(self, dim: int, width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(dim, width), nn.LayerNorm(width, eps=self.norm_eps))


class AmMrgModelConfig(Config):
    """Parts of the model. ``prompt`` has the slots ``{image}`` (F), ``{queries}`` (Q_f) and ``{memory}`` (F').

    ``image_grid`` averages each view's tokens to that grid before the language model reads them, None keeps them all,
    as the paper does. ``uncertain`` says what an uncertain label counts as in stage 1.
    """

    vision_encoder: VisionEncoderConfig
    query_former: QueryFormerConfig = QueryFormerConfig()
    word_head: WordHeadConfig = NoWordHeadConfig()
    text_encoder: TextEncoderConfig
    visual_memory: VisualMemorySetting = VisualMemoryConfig()
    report_memory: ReportMemorySetting = ReportMemoryConfig()
    connector: ConnectorConfig
    query_projection: TokenProjectionConfig = TokenProjectionConfig()
    language_model: LanguageModelConfig
    prompt: str
    prompt_format: PromptFormat = "plain"
    uncertain: UncertainPolicy = "negative"
    image_grid: Grid | None = None

    def build(self, context: BuildContext) -> AmMrgModel:
        """Compose the model; each part starts from its own random numbers."""
        tokenizer = context.tokenizer
        with context.seeded("vision_encoder"):
            vision_encoder = self.vision_encoder.build(context.image_size, saved=context.saved("vision_encoder"))
        with context.seeded("language_model"):
            language_model = self.language_model.build(
                vocab_size=len(tokenizer),
                bos_id=tokenizer.bos_token_id,
                eos_id=tokenizer.eos_token_id,
                pad_id=tokenizer.pad_token_id,
                saved=context.saved("language_model"),
            )
        dim, state_dim, width = vision_encoder.dim, self.query_former.dim, language_model.width
        with context.seeded("text_encoder"):
            text_encoder = self.text_encoder.build(saved=context.saved("text_encoder"))
        with context.seeded("query_former"):
            query_former = self.query_former.build(len(context.classes), dim)
        with context.seeded("heads"):
            heads = DiseaseHeads(len(context.classes), state_dim)
        with context.seeded("word_head"):
            word_head = self.word_head.build(dim, len(tokenizer))
        with context.seeded("visual_memory"):
            visual_memory = self.visual_memory.build(state_dim, dim, width)
        with context.seeded("report_memory"):
            report_memory = self.report_memory.build(state_dim, text_encoder.width, width)
        with context.seeded("connector"):
            connector = self.connector.build(dim, width)
        with context.seeded("query_projection"):
            query_projection = self.query_projection.build(state_dim, width)
        reports = self.report_memory.reports if isinstance(self.report_memory, ReportMemoryConfig) else None
        return AmMrgModel(
            vision_encoder=vision_encoder,
            query_former=query_former,
            heads=heads,
            word_head=word_head,
            text_encoder=text_encoder,
            visual_memory=visual_memory,
            report_memory=report_memory,
            connector=connector,
            query_projection=query_projection,
            language_model=language_model,
            prompt=PromptTemplate.for_tokenizer(self.prompt, tokenizer, self.prompt_format, slots=SLOTS),
            classes=context.classes,
            class_ids=tuple(tuple(encode(tokenizer, name.lower())) for name in context.classes),
            uncertain=self.uncertain,
            image_grid=self.image_grid,
            sources=MemorySources(self.visual_memory.regions, reports or ReportDrawConfig()),
        )


class AmMrgExperiment(Experiment):
    """The method with all its numbers."""

    method: Literal["am_mrg"] = "am_mrg"
    model: AmMrgModelConfig
    stages: AmMrgStages
