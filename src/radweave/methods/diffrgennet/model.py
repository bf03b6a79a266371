"""The difference-aware model: similar reports, what differs from them, and a decoder that reads both with the image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from radweave.config import Config
from radweave.experiment import BuildContext, Experiment
from radweave.memory.bank import Bank, patient_code
from radweave.methods.diffrgennet.aggregation import Aggregation, AggregationConfig, FlexiRouteConfig
from radweave.methods.diffrgennet.difference import (
    METRICS,
    CaseEmbedding,
    CaseEmbeddingConfig,
    DifferenceConfig,
    FeatureDifference,
    FeatureDifferenceConfig,
    NoDifference,
    distances,
)
from radweave.methods.diffrgennet.diseases import STATES, DiseaseStates, DiseaseStatesConfig
from radweave.methods.diffrgennet.matching import MatchingConfig, NegPosMatching, NegPosMatchingConfig, NoMatching
from radweave.methods.diffrgennet.reading import (
    SLOTS,
    Decoder,
    DecoderConfig,
    MemoryBridge,
    MemoryBridgeConfig,
    Reading,
    sine_positions,
)
from radweave.methods.diffrgennet.retrieval import (
    ImageRetrieval,
    ImageRetrievalConfig,
    NoRetrieval,
    Recalled,
    RetrievalConfig,
)
from radweave.nn.connector import Connector, ConnectorConfig
from radweave.nn.decoding import DecodingConfig
from radweave.nn.flexiroute import Routed
from radweave.nn.prompt import PromptFormat, PromptTemplate
from radweave.nn.supervision import POSITIVE
from radweave.nn.text_encoder import TextEncoderConfig
from radweave.nn.views import ViewTokens, connect_views, encode_views
from radweave.nn.vision import VisionEncoderConfig
from radweave.nn.word_head import NoWordHead, NoWordHeadConfig, WordHead, WordHeadConfig
from radweave.train.stage import StageConfig, Trainability, check_terms
from radweave.types import Batch, Generation

if TYPE_CHECKING:
    from radweave.train.view import TrainingView

BANK = "cases"
Positions = Literal["none", "sine"]


class DiffRGenNetModel(nn.Module):
    """F = P E(images), E_i = report features of similar studies, report ~ LM([F; similar; difference], diseases).

        similar = FlexiRoute(E, F),   difference = FlexiRoute(FeatureDifference(mean F, E), F)

    With ``data.priors`` a study's own prior is one more case: the mean of its report feature and its mean image token,
    marked as prior.

    Source: Bian et al., DiffRGenNet, MIDL 2025. Deviations: see docs/methods/diffrgennet.md.
    """

    LOSS_PARTS: ClassVar[dict[str, tuple[str, ...]]] = {
        "words": ("vision_encoder", "word_head"),
        "matching": ("vision_encoder", "connector", "text_encoder", "matching"),
        "disease": (
            "vision_encoder",
            "connector",
            "retrieval",
            "text_encoder",
            "cases",
            "difference",
            "aggregation",
            "diseases",
        ),
        "report": (
            "vision_encoder",
            "connector",
            "retrieval",
            "text_encoder",
            "cases",
            "difference",
            "aggregation",
            "diseases",
            "bridge",
            "language_model",
        ),
    }

    def __init__(
        self,
        *,
        vision_encoder: nn.Module,
        connector: Connector,
        retrieval: ImageRetrieval | NoRetrieval,
        text_encoder: nn.Module,
        cases: CaseEmbedding,
        difference: FeatureDifference | NoDifference,
        aggregation: Aggregation,
        diseases: DiseaseStates,
        matching: NegPosMatching | NoMatching,
        bridge: MemoryBridge,
        language_model: Decoder,
        word_head: WordHead | NoWordHead,
        template: PromptTemplate,
        classes: tuple[str, ...],
        positions: Positions,
    ) -> None:
        super().__init__()
        self.vision_encoder = vision_encoder
        self.connector = connector
        self.retrieval = retrieval
        self.text_encoder: Any = text_encoder
        self.cases = cases
        self.difference = difference
        self.aggregation = aggregation
        self.diseases = diseases
        self.matching = matching
        self.bridge = bridge
        self.language_model = language_model
        self.word_head = word_head
        self.template = template
        self.classes = classes
        self.positions = positions

    def loss(self, batch: Batch, terms: Sequence[str]) -> dict[str, Tensor]:
        """Losses: ``report`` per token, ``disease`` (Eq. 9), ``matching`` (Eq. 8), and ``words`` of the word head."""
        check_terms(terms, tuple(self.LOSS_PARTS))
        assert batch.labels is not None
        losses: dict[str, Tensor] = {}
        views = encode_views(self.vision_encoder, batch)
        if "words" in terms:
            losses["words"] = self.word_head.loss(views.tokens, views.view_mask, batch.labels)
        if not {"report", "disease", "matching"} & set(terms):
            return losses
        assert batch.class_labels is not None
        image = self._image(views)
        if "matching" in terms:
            assert batch.reports is not None
            target = self.text_encoder.encode(batch.reports).to(image.mean)
            losses["matching"] = self.matching.loss(image.mean, target, batch.class_labels)
        if {"report", "disease"} & set(terms):
            study = self._study(batch, image)
            if "disease" in terms:
                losses["disease"] = self.diseases.loss(study.logits, batch.class_labels)
            if "report" in terms:
                assert batch.input_ids is not None
                states = self.diseases.shown(study.logits, batch.class_labels)
                reading = self._reading(study, states)
                losses["report"] = reading.loss(self.language_model, self.template, batch.input_ids, batch.labels)
        return losses

    @torch.no_grad()
    def generate(self, batch: Batch, decoding: DecodingConfig) -> Generation:
        """Decode a report per study. Evidence: the retrieved reports with their three distances, the routing weights of
        each layer, disease states and their probabilities, and where the image agrees with the retrieved reports.
        """
        study = self._study(batch, self._image(encode_views(self.vision_encoder, batch)))
        states = self.diseases.shown(study.logits, None)
        reading = self._reading(study, states)
        ids, log_probs = reading.generate(self.language_model, self.template, decoding)
        rows = [
            {"token_log_probs": values, **study.evidence(row, self.classes)} for row, values in enumerate(log_probs)
        ]
        return Generation(token_ids=ids, intermediates=rows)

    @torch.no_grad()
    def build_memories(self, stage: str, training: TrainingView) -> dict[str, Bank]:
        """Before reports are trained: the text encoder and the class prior are fitted, the embedding of the retrieval
        takes the encoder as it is now, and training images and reports are banked.
        """
        if stage != "report":
            return {}
        self.text_encoder.fit(training.reports)
        self.diseases.set_prior(training.class_states)
        if isinstance(self.retrieval, NoRetrieval):
            return {}
        self.retrieval.follow(self.vision_encoder)
        visual, text, rows = [], [], []
        for batch in training.batches():
            assert batch.reports is not None
            visual.append(self.retrieval.embed(batch.to(self.diseases.prior.device)).cpu())
            text.append(self.text_encoder.encode(batch.reports).float().cpu())
            rows += [
                {"study_id": study_id, "patient": patient_code(patient_id), "text": report}
                for study_id, patient_id, report in zip(batch.study_ids, batch.patient_ids, batch.reports, strict=True)
            ]
        return {BANK: Bank({"visual": torch.cat(visual), "text": torch.cat(text)}, tuple(rows))}

    def set_memories(self, banks: Mapping[str, Bank]) -> None:
        """Take the bank of cases."""
        if BANK in banks:
            self.retrieval.remember(banks[BANK])

    def _image(self, views: ViewTokens) -> _Image:
        tokens, mask = connect_views(self.connector, views)
        if self.positions == "sine":
            cells = sine_positions(views.grid, tokens.shape[-1]).to(tokens)
            tokens = tokens + cells.repeat(views.tokens.shape[1], 1) * mask[:, :, None]
        weight = mask[:, :, None].to(tokens.dtype)
        return _Image(tokens, mask, (tokens * weight).sum(1) / weight.sum(1), views)

    def _study(self, batch: Batch, image: _Image) -> _Study:
        recalled = self.retrieval.recall(batch, self.cases.projection.in_features)
        embedded, present, is_prior = self.cases(recalled.text), recalled.present, torch.zeros_like(recalled.present)
        if batch.priors is not None:
            prior = self._prior_tokens(batch, image)
            has_prior = present.new_zeros(len(batch), 1)
            has_prior[list(batch.prior_of)] = True
            embedded = torch.cat([embedded, prior], dim=1)
            present = torch.cat([present, has_prior], dim=1)
            is_prior = torch.cat([is_prior, torch.ones_like(has_prior)], dim=1)
        queries = self.cases.marked(embedded, is_prior)
        grid = image.views.grid
        similar = self.aggregation.similar(queries, present, image.tokens, image.mask, grid)
        difference = None
        if self.aggregation.difference is not None:
            change = self.cases.marked(self.difference(image.mean, embedded), is_prior)
            difference = self.aggregation.difference(change, present, image.tokens, image.mask, grid)
        weight = present[:, :, None].to(similar.tokens.dtype)
        mean_similar = (similar.tokens * weight).sum(1) / weight.sum(1).clamp(min=1)
        return _Study(
            image=image,
            recalled=recalled,
            present=present,
            is_prior=is_prior,
            apart=distances(image.mean, embedded, self.difference.dot_scale),
            similar=similar,
            difference=difference,
            logits=self.diseases(image.mean, mean_similar),
            priors=_priors_by_row(batch),
        )

    def _prior_tokens(self, batch: Batch, image: _Image) -> Float[Tensor, "batch 1 dim"]:
        """The prior as a case, zero for a study without one."""
        assert batch.priors is not None
        assert batch.priors.reports is not None
        report = self.text_encoder.encode(batch.priors.reports).to(image.mean)
        looks = self._image(encode_views(self.vision_encoder, batch.priors)).mean
        tokens = image.mean.new_zeros(len(batch), 1, image.mean.shape[-1])
        tokens[list(batch.prior_of), 0] = ((self.cases(report[:, None])[:, 0] + looks) / 2).to(tokens.dtype)
        return tokens

    def _reading(self, study: _Study, states: Tensor) -> Reading:
        image, similar = study.image, study.similar.tokens
        masks = [image.mask, study.present]
        difference = similar[:, :0]
        if study.difference is not None:
            difference = study.difference.tokens
            masks.append(study.present)
        memory = self.bridge(image.tokens, similar, difference)
        return Reading(memory, torch.cat(masks, dim=1), self.diseases.prompt(states))


@dataclass(frozen=True, slots=True)
class _Image:
    """Image tokens of all views in the shared width (B, M, d), which are there, and their mean (B, d)."""

    tokens: Float[Tensor, "batch cells dim"]
    mask: Bool[Tensor, "batch cells"]
    mean: Float[Tensor, "batch dim"]
    views: ViewTokens


@dataclass(frozen=True, slots=True)
class _Study:
    """What was made of a batch before the decoder; N cases, a prior being the last of them."""

    image: _Image
    recalled: Recalled
    present: Bool[Tensor, "batch cases"]
    is_prior: Bool[Tensor, "batch cases"]
    apart: Float[Tensor, "batch cases 3"]
    similar: Routed
    difference: Routed | None
    logits: Float[Tensor, "batch classes 4"]
    priors: dict[int, tuple[str, str]]

    def evidence(self, row: int, classes: tuple[str, ...]) -> dict[str, Any]:
        """One study's evidence; maps are over its own views, (V, h, w), and sum to 1 over all of them."""
        probabilities = self.logits[row].float().softmax(-1)
        shown: dict[str, Any] = {
            "class_probabilities": dict(zip(classes, probabilities[:, POSITIVE].tolist(), strict=True)),
            "disease_states": {
                name: STATES[state] for name, state in zip(classes, probabilities.argmax(-1).tolist(), strict=True)
            },
            "recalled": self._recalled(row),
            "routing": {
                name: [route[row].tolist() for route in routed.routes]
                for name, routed in (("similar", self.similar), ("difference", self.difference))
                if routed is not None
            },
            "attention_maps": self._maps(row),
        }
        return shown

    def _recalled(self, row: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = [
            {
                "kind": "report",
                "study_id": case.study_id,
                "text": case.text,
                "scores": {"similarity": case.similarity, **self._distances(row, place)},
            }
            for place, case in enumerate(self.recalled.cases[row])
        ]
        if row in self.priors:
            study_id, text = self.priors[row]
            scores = self._distances(row, self.present.shape[1] - 1)
            found.append({"kind": "report", "study_id": study_id, "text": text, "scores": scores, "is_prior": True})
        return found

    def _distances(self, row: int, place: int) -> dict[str, float]:
        return dict(zip(METRICS, self.apart[row, place].tolist(), strict=True))

    def _maps(self, row: int) -> dict[str, Any]:
        """Where the cases read the image in the last layer of each pass, mean over the study's cases."""
        there, views = self.present[row], self.image.views
        maps = {}
        for name, routed in (("similar reports", self.similar), ("differences", self.difference)):
            if routed is not None and routed.attention is not None and there.any():
                mean = routed.attention[row][there].mean(0)
                shape = (len(views.view_mask[row]), *views.grid)
                maps[name] = mean.view(shape)[views.view_mask[row]].float().cpu().numpy()
        return maps


def _priors_by_row(batch: Batch) -> dict[int, tuple[str, str]]:
    """Row of the batch -> study id and report of its prior."""
    if batch.priors is None or batch.priors.reports is None:
        return {}
    return dict(zip(batch.prior_of, zip(batch.priors.study_ids, batch.priors.reports, strict=True), strict=True))


class DiffRGenNetModelConfig(Config):
    """Parts of the model.

    ``dim`` is the shared width d; None takes the decoder's. ``prompt`` is used by causal language models alone and has
    the slots ``{memory}`` and ``{diseases}``. ``positions`` adds fixed positions to the image tokens, which
    cross-attention would not know otherwise.
    """

    vision_encoder: VisionEncoderConfig
    connector: ConnectorConfig
    retrieval: RetrievalConfig = ImageRetrievalConfig()
    text_encoder: TextEncoderConfig
    cases: CaseEmbeddingConfig = CaseEmbeddingConfig()
    difference: DifferenceConfig = FeatureDifferenceConfig()
    aggregation: AggregationConfig = FlexiRouteConfig()
    diseases: DiseaseStatesConfig = DiseaseStatesConfig()
    matching: MatchingConfig = NegPosMatchingConfig()
    bridge: MemoryBridgeConfig = MemoryBridgeConfig()
    language_model: DecoderConfig
    word_head: WordHeadConfig = NoWordHeadConfig()
    prompt: str = "{memory}{diseases}"
    prompt_format: PromptFormat = "plain"
    positions: Positions = "none"
    dim: int | None = None

    def build(self, context: BuildContext) -> DiffRGenNetModel:
        """Compose the model; each part starts from its own random numbers."""
        tokenizer = context.tokenizer
        with context.seeded("language_model"):
            language_model = self.language_model.build(
                vocab_size=len(tokenizer),
                bos_id=tokenizer.bos_token_id,
                eos_id=tokenizer.eos_token_id,
                pad_id=tokenizer.pad_token_id,
                saved=context.saved("language_model"),
            )
        width = language_model.width
        dim = self.dim or width
        with context.seeded("vision_encoder"):
            vision_encoder = self.vision_encoder.build(context.image_size, saved=context.saved("vision_encoder"))
        with context.seeded("text_encoder"):
            text_encoder = self.text_encoder.build(saved=context.saved("text_encoder"))
        with context.seeded("connector"):
            connector = self.connector.build(vision_encoder.dim, dim)
        with context.seeded("cases"):
            cases = self.cases.build(text_encoder.width, dim)
        with context.seeded("difference"):
            difference = self.difference.build(dim)
        with context.seeded("aggregation"):
            with_difference = not isinstance(difference, NoDifference)
            aggregation = self.aggregation.build(dim, with_difference=with_difference)
        with context.seeded("diseases"):
            diseases = self.diseases.build(dim, width, len(context.classes))
        with context.seeded("matching"):
            matching = self.matching.build(dim, text_encoder.width)
        with context.seeded("bridge"):
            bridge = self.bridge.build(dim, width)
        with context.seeded("word_head"):
            word_head = self.word_head.build(vision_encoder.dim, len(tokenizer))
        return DiffRGenNetModel(
            vision_encoder=vision_encoder,
            connector=connector,
            retrieval=self.retrieval.build(vision_encoder),
            text_encoder=text_encoder,
            cases=cases,
            difference=difference,
            aggregation=aggregation,
            diseases=diseases,
            matching=matching,
            bridge=bridge,
            language_model=language_model,
            word_head=word_head,
            template=PromptTemplate.for_tokenizer(self.prompt, tokenizer, self.prompt_format, slots=SLOTS),
            classes=context.classes,
            positions=self.positions,
        )


PARTS = tuple(DiffRGenNetModelConfig.model_fields)[:12]
"""The children of the model, each with its record."""


def training(**trained: Trainability) -> dict[str, Trainability]:
    """All parts frozen but those named."""
    frozen: dict[str, Trainability] = dict.fromkeys(PARTS, "frozen")
    return frozen | trained


class DiffRGenNetStages(Config):
    """Words from images (off unless given epochs), then reports with all the method's losses."""

    vision: StageConfig = StageConfig(
        finetune=training(vision_encoder="full", word_head="full"), losses={"words": 1.0}, epochs=0
    )
    report: StageConfig


class DiffRGenNetExperiment(Experiment):
    """The method with all its numbers."""

    method: Literal["diffrgennet"] = "diffrgennet"
    model: DiffRGenNetModelConfig
    stages: DiffRGenNetStages
