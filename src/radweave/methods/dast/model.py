"""The dual-stage disease-aware model: disease tokens first, then reports from a frozen language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from radweave.config import Config
from radweave.data.tokenizer import encode
from radweave.experiment import BuildContext, Experiment
from radweave.memory.bank import Bank, patient_code
from radweave.methods.dast.alignment import Alignment, AlignmentConfig
from radweave.methods.dast.fusion import DvafConfig, Fused, FusionConfig
from radweave.methods.dast.retrieval import Dmsr, DmsrConfig, Exemplar, NoRetrieval, RetrievalConfig
from radweave.nn.connector import Connector, ConnectorConfig
from radweave.nn.disease_tokens import DiseaseReading, DiseaseTokens, DiseaseTokensConfig
from radweave.nn.language_model import CausalLanguageModel, DecodingConfig, LanguageModelConfig
from radweave.nn.prompt import PromptFormat, PromptTemplate, Slot
from radweave.nn.supervision import UncertainPolicy, binary_loss
from radweave.nn.text_encoder import TextEncoderConfig
from radweave.nn.text_pretraining import finding_names, hint_generator, pad_rows, similar_reports, word_hints
from radweave.nn.views import ViewTokens, encode_views
from radweave.nn.vision import VisionEncoderConfig
from radweave.train.stage import StageConfig, Trainability, check_terms
from radweave.types import Batch, Generation

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from radweave.train.view import TrainingView

BANK = "exemplars"


class DastModel(nn.Module):
    """V = E(images), (T', c) = disease tokens of V, report ~ LM([exemplar prompt; LN(P [V; fused])]).

    Stage ``disease`` trains E, the disease tokens and the projection of the contrastive term; stage ``report`` trains
    the fusion and the connector. The patches of all views of a study stand in one row.

    Source: the dual-stage disease-aware framework, Eq. 1-9. Deviations: see docs/methods/dast.md.
    """

    LOSS_PARTS: ClassVar[dict[str, tuple[str, ...]]] = {
        "disease": ("vision_encoder", "disease_tokens"),
        "contrastive": ("vision_encoder", "alignment", "text_encoder"),
        "text": ("language_model",),
        "text_in_context": ("language_model",),
        "report": ("vision_encoder", "disease_tokens", "fusion", "retrieval", "connector", "language_model"),
    }

    def __init__(
        self,
        *,
        vision_encoder: nn.Module,
        disease_tokens: DiseaseTokens,
        alignment: Alignment,
        text_encoder: nn.Module,
        fusion: nn.Module,
        retrieval: Dmsr | NoRetrieval,
        connector: Connector,
        language_model: CausalLanguageModel,
        prompts: Prompts,
        classes: tuple[str, ...],
        uncertain: UncertainPolicy,
    ) -> None:
        super().__init__()
        self.vision_encoder = vision_encoder
        self.disease_tokens = disease_tokens
        self.alignment = alignment
        self.text_encoder: Any = text_encoder
        self.fusion = fusion
        self.retrieval = retrieval
        self.connector = connector
        self.language_model = language_model
        self.prompts = prompts
        self.classes = classes
        self.uncertain = uncertain

    def loss(self, batch: Batch, terms: Sequence[str]) -> dict[str, Tensor]:
        """Losses: ``disease`` (binary cross-entropy) and ``contrastive`` of stage 1, ``report`` of stage 2, and for
        small language models ``text`` (reports alone) and ``text_in_context`` (reports after a context of text).
        """
        check_terms(terms, tuple(self.LOSS_PARTS))
        assert batch.input_ids is not None
        assert batch.labels is not None
        losses: dict[str, Tensor] = {}
        if {"disease", "contrastive"} & set(terms):
            losses = self._stage_one_losses(batch, terms)
        if "text" in terms:
            losses["text"] = self.language_model.text_loss(batch.input_ids, batch.labels)
        if "text_in_context" in terms:
            losses["text_in_context"] = self._text_in_context_loss(batch)
        if "report" in terms:
            prefix, mask = self._prefix(self._read(batch))
            losses["report"] = self.language_model.loss(prefix, mask, batch.input_ids, batch.labels)
        return losses

    @torch.no_grad()
    def generate(self, batch: Batch, decoding: DecodingConfig) -> Generation:
        """Decode a report per study. Evidence: probability and attention map of every class, the recalled report with
        its similarities, and what DVAF made of the disease tokens.
        """
        study = self._read(batch)
        prefix, mask = self._prefix(study)
        ids, log_probs = self.language_model.generate(prefix, mask, decoding)
        evidence = [
            {"token_log_probs": values, **study.evidence(row, self.classes)} for row, values in enumerate(log_probs)
        ]
        return Generation(token_ids=ids, intermediates=evidence)

    @torch.no_grad()
    def build_memories(self, stage: str, training: TrainingView) -> dict[str, Bank]:
        """Before stage 1 the text encoder is fitted; before stage 2 the features and reports of training are banked."""
        if stage == "disease":
            self.text_encoder.fit(training.reports)
        if stage != "report" or isinstance(self.retrieval, NoRetrieval):
            return {}
        visual, logits, rows = [], [], []
        for batch in training.batches():
            batch = batch.to(self.disease_tokens.tokens.device)
            assert batch.reports is not None
            views = encode_views(self.vision_encoder, batch)
            visual.append(views.mean().cpu())
            logits.append(self.disease_tokens(*views.flat()).logits.cpu())
            rows += [
                {"study_id": study_id, "patient": patient_code(patient_id), "text": text}
                for study_id, patient_id, text in zip(batch.study_ids, batch.patient_ids, batch.reports, strict=True)
            ]
        return {BANK: Bank({"visual": torch.cat(visual), "logits": torch.cat(logits)}, tuple(rows))}

    def set_memories(self, banks: Mapping[str, Bank]) -> None:
        """Take the bank of exemplars."""
        if BANK in banks:
            self.retrieval.remember(banks[BANK])

    def _stage_one_losses(self, batch: Batch, terms: Sequence[str]) -> dict[str, Tensor]:
        views = encode_views(self.vision_encoder, batch)
        losses = {}
        if "disease" in terms:
            assert batch.class_labels is not None
            logits = self.disease_tokens(*views.flat()).logits
            losses["disease"] = binary_loss(logits, batch.class_labels, self.uncertain)
        if "contrastive" in terms:
            assert batch.reports is not None
            visual = views.mean()
            losses["contrastive"] = self.alignment.loss(visual, self.text_encoder.encode(batch.reports).to(visual))
        return losses

    def _text_in_context_loss(self, batch: Batch) -> Tensor:
        assert batch.input_ids is not None
        assert batch.labels is not None
        assert batch.class_labels is not None
        generator = hint_generator(self.language_model.training)
        named, named_mask = finding_names(batch.class_labels, self.prompts.class_names, generator)
        words, words_mask = word_hints(batch.labels, generator, largest_share=0.15)
        embed = self.language_model.embed
        hints = embed(torch.cat([named, words], dim=1)), torch.cat([named_mask, words_mask], dim=1)
        slots, template = {"image": hints}, self.prompts.plain
        # Every other batch has exemplars, so that one language model serves with and without a retrieval.
        if torch.rand(1, generator=generator) < 0.5:
            ids, mask = similar_reports(batch.labels, batch.class_labels, batch.patient_ids, generator)
            slots["exemplar"], template = (embed(ids), mask), self.prompts.with_exemplar
        prefix, prefix_mask = template.splice(embed, slots)
        return self.language_model.loss(prefix, prefix_mask, batch.input_ids, batch.labels)

    def _read(self, batch: Batch) -> _Study:
        views = encode_views(self.vision_encoder, batch)
        patches, mask = views.flat()
        reading = self.disease_tokens(patches, mask)
        fused = self.fusion(reading.tokens, patches, mask)
        exemplars = self.retrieval.recall(views.mean(), reading.logits, batch.study_ids, batch.patient_ids)
        return _Study(views, reading, fused, exemplars)

    def _prefix(self, study: _Study) -> tuple[Float[Tensor, "batch prefix width"], Bool[Tensor, "batch prefix"]]:
        """The prompt with the exemplar and the projected tokens in their slots."""
        embed = self.language_model.embed
        image = self._image_slot(study.views, study.fused)
        if isinstance(self.retrieval, NoRetrieval):
            return self.prompts.plain.splice(embed, {"image": image})
        ids, mask = self.prompts.exemplar_ids(study.exemplars, self.retrieval.max_tokens)
        exemplar = embed(ids.to(image[0].device)), mask.to(image[0].device)
        return self.prompts.with_exemplar.splice(embed, {"image": image, "exemplar": exemplar})

    def _image_slot(self, views: ViewTokens, fused: Fused) -> Slot:
        """LN(P [V; fused]) (Eq. 7): one projection for all tokens; appended ones count as of unknown view."""
        patches, present = views.flat()
        kinds = views.view_ids[:, :, None].expand(views.tokens.shape[:3]).flatten(1)
        appended = fused.tokens.shape[1]
        tokens = torch.cat([patches, fused.tokens], dim=1)
        mask = torch.cat([present, present.new_ones(len(present), appended)], dim=1)
        kinds = torch.cat([kinds, kinds.new_zeros(len(kinds), appended)], dim=1)
        projected = self.connector(tokens[mask][:, None], kinds[mask])[:, 0]
        hidden = projected.new_zeros(*mask.shape, projected.shape[-1])
        hidden[mask] = projected
        return hidden, mask


@dataclass(frozen=True, slots=True)
class _Study:
    """What the vision side and the retrieval made of a batch."""

    views: ViewTokens
    reading: DiseaseReading
    fused: Fused
    exemplars: list[Exemplar | None]

    def evidence(self, row: int, classes: tuple[str, ...]) -> dict[str, Any]:
        """One study's evidence; maps are over its own views, (V, h, w), and sum to 1 over all of them."""
        present = self.views.view_mask[row]
        attention = self.reading.attention[row]
        maps = attention.reshape(len(attention), len(present), *self.views.grid)[:, present].float().cpu().numpy()
        probabilities = self.reading.logits[row].float().sigmoid().tolist()
        shown: dict[str, Any] = {
            "class_probabilities": dict(zip(classes, probabilities, strict=True)),
            "attention_maps": dict(zip(classes, maps, strict=True)),
            "recalled": [],
        }
        if (exemplar := self.exemplars[row]) is not None:
            scores = {"visual": exemplar.visual, "disease": exemplar.disease, "combined": exemplar.combined}
            shown["recalled"].append(
                {"kind": "report", "study_id": exemplar.study_id, "text": exemplar.text, "scores": scores}
            )
        if self.fused.gate is not None and self.fused.shares is not None:
            shown["fusion"] = {
                "disease_share": float(self.fused.gate[row].mean()),
                "class_shares": dict(zip(classes, self.fused.shares[row].tolist(), strict=True)),
            }
        return shown


class Prompts:
    """The prompt with and without an exemplar, and the tokens of exemplars and class names."""

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
        self.plain = PromptTemplate.for_tokenizer(prompt, tokenizer, prompt_format, slots=("image",))
        self.with_exemplar = PromptTemplate.for_tokenizer(
            exemplar_prompt + prompt, tokenizer, prompt_format, slots=("exemplar", "image")
        )

    def exemplar_ids(self, exemplars: Sequence[Exemplar | None], limit: int) -> tuple[Tensor, Tensor]:
        """Token ids (B, L) of the reports, cut at ``limit``, and where they are; nothing where there is no exemplar."""
        return pad_rows(
            [encode(self.tokenizer, found.text)[:limit] if found is not None else [] for found in exemplars]
        )


class DastModelConfig(Config):
    """Parts of the model. ``prompt`` has the slot ``{image}``, ``exemplar_prompt`` the slot ``{exemplar}`` and stands
    before it, unless there is no retrieval.

    ``uncertain`` says what an uncertain label counts as in stage 1.
    """

    vision_encoder: VisionEncoderConfig
    disease_tokens: DiseaseTokensConfig = DiseaseTokensConfig()
    alignment: AlignmentConfig = AlignmentConfig()
    text_encoder: TextEncoderConfig
    fusion: FusionConfig = DvafConfig()
    retrieval: RetrievalConfig = DmsrConfig()
    connector: ConnectorConfig
    language_model: LanguageModelConfig
    prompt: str
    exemplar_prompt: str
    prompt_format: PromptFormat = "plain"
    uncertain: UncertainPolicy = "positive"

    def build(self, context: BuildContext) -> DastModel:
        """Compose the model; each part starts from its own random numbers."""
        tokenizer = context.tokenizer
        with context.seeded("vision_encoder"):
            vision_encoder = self.vision_encoder.build(context.image_size, saved=context.saved("vision_encoder"))
        dim = vision_encoder.dim
        with context.seeded("text_encoder"):
            text_encoder = self.text_encoder.build(saved=context.saved("text_encoder"))
        with context.seeded("language_model"):
            language_model = self.language_model.build(
                vocab_size=len(tokenizer),
                bos_id=tokenizer.bos_token_id,
                eos_id=tokenizer.eos_token_id,
                pad_id=tokenizer.pad_token_id,
                saved=context.saved("language_model"),
            )
        with context.seeded("disease_tokens"):
            disease_tokens = self.disease_tokens.build(len(context.classes), dim)
        with context.seeded("alignment"):
            alignment = self.alignment.build(dim, text_encoder.width)
        with context.seeded("fusion"):
            fusion = self.fusion.build(dim)
        with context.seeded("connector"):
            connector = self.connector.build(dim, language_model.width)
        return DastModel(
            vision_encoder=vision_encoder,
            disease_tokens=disease_tokens,
            alignment=alignment,
            text_encoder=text_encoder,
            fusion=fusion,
            retrieval=self.retrieval.build(),
            connector=connector,
            language_model=language_model,
            prompts=Prompts(tokenizer, self.prompt, self.exemplar_prompt, self.prompt_format, context.classes),
            classes=context.classes,
            uncertain=self.uncertain,
        )


PARTS = (
    "vision_encoder",
    "disease_tokens",
    "alignment",
    "text_encoder",
    "fusion",
    "retrieval",
    "connector",
    "language_model",
)


def training(**trained: Trainability) -> dict[str, Trainability]:
    """All parts frozen but those named."""
    frozen: dict[str, Trainability] = dict.fromkeys(PARTS, "frozen")
    return frozen | trained


class DastStages(Config):
    """Disease tokens and alignment; language from reports (off unless given epochs); then report generation."""

    disease: StageConfig
    language: StageConfig = StageConfig(finetune=training(language_model="full"), losses={"text": 1.0}, epochs=0)
    report: StageConfig


class DastExperiment(Experiment):
    """The method with all its numbers."""

    method: Literal["dast"] = "dast"
    model: DastModelConfig
    stages: DastStages
