"""The difference-aware model: similar reports, what differs from them, and a decoder that reads both with the image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from radweave.config import Config, Width
from radweave.experiment import BuildContext, Experiment
from radweave.memory.bank import Bank, patient_code
from radweave.methods.diffrgennet.aggregation import Aggregation, AggregationConfig, FlexiRouteConfig
from radweave.methods.diffrgennet.difference import (
    CaseEmbedding,
    CaseEmbeddingConfig,
    DifferenceConfig,
    FeatureDifference,
    FeatureDifferenceConfig,
    NoDifference,
    distances,
)
from radweave.methods.diffrgennet.diseases import DiseaseStates, DiseaseStatesConfig
from radweave.methods.diffrgennet.evidence import ImageTokens, StudyFindings, priors_by_row
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
    RetrievalConfig,
)
from radweave.nn.connector import Connector, ConnectorConfig
from radweave.nn.decoding import DecodingConfig
from radweave.nn.prompt import PromptFormat, PromptTemplate
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

    def _image(self, views: ViewTokens) -> ImageTokens:
        tokens, mask = connect_views(self.connector, views)
        if self.positions == "sine":
            cells = sine_positions(views.grid, tokens.shape[-1]).to(tokens)
            tokens = tokens + cells.repeat(views.tokens.shape[1], 1) * mask[:, :, None]
        weight = mask[:, :, None].to(tokens.dtype)
        return ImageTokens(tokens, mask, (tokens * weight).sum(1) / weight.sum(1), views)

    def _study(self, batch: Batch, image: ImageTokens) -> StudyFindings:
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
        return StudyFindings(
            image=image,
            recalled=recalled,
            present=present,
            is_prior=is_prior,
            apart=distances(image.mean, embedded, self.difference.dot_scale),
            similar=similar,
            difference=difference,
            logits=self.diseases(image.mean, mean_similar),
            priors=priors_by_row(batch),
        )

    def _prior_tokens(self, batch: Batch, image: ImageTokens) -> Float[Tensor, "batch 1 dim"]:
        """The prior as a case, zero for a study without one."""
        assert batch.priors is not None
        assert batch.priors.reports is not None
        report = self.text_encoder.encode(batch.priors.reports).to(image.mean)
        looks = self._image(encode_views(self.vision_encoder, batch.priors)).mean
        tokens = image.mean.new_zeros(len(batch), 1, image.mean.shape[-1])
        tokens[list(batch.prior_of), 0] = ((self.cases(report[:, None])[:, 0] + looks) / 2).to(tokens.dtype)
        return tokens

    def _reading(self, study: StudyFindings, states: Tensor) -> Reading:
        image, similar = study.image, study.similar.tokens
        masks = [image.mask, study.present]
        difference = similar[:, :0]
        if study.difference is not None:
            difference = study.difference.tokens
            masks.append(study.present)
        memory = self.bridge(image.tokens, similar, difference)
        return Reading(memory, torch.cat(masks, dim=1), self.diseases.prompt(states))


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
    dim: Width | None = None

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
