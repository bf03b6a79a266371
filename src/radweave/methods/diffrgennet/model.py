"""The difference-aware model: similar reports, what differs from them, and a decoder that reads both with the image."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from radweave.core.batch import Batch, Generation
from radweave.core.config import Prompt, Width
from radweave.core.evidence import DraftEvidence, Maps, RecalledEvidence
from radweave.core.map_kinds import KEY as MAP_KIND
from radweave.methods.diffrgennet.aggregation import Aggregation, AggregationConfig, FlexiRouteConfig
from radweave.methods.diffrgennet.difference import (
    METRICS,
    CaseEmbedding,
    CaseEmbeddingConfig,
    Cases,
    DifferenceConfig,
    FeatureDifference,
    FeatureDifferenceConfig,
    NoDifference,
)
from radweave.methods.diffrgennet.diseases import STATES, DiseaseStates, DiseaseStatesConfig
from radweave.methods.diffrgennet.matching import (
    MatchingConfig,
    NegPosMatching,
    NegPosMatchingConfig,
    NoMatching,
    Outputs,
)
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
    NoRetrievalConfig,
    Recalled,
    RetrievalConfig,
)
from radweave.methods.experiment import WORDS, BuildContext, EncoderFirstStages, Experiment, ModelConfig, Without
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
    required,
    written,
)
from radweave.methods.stage import StageConfig
from radweave.nn.connector import Connector, ConnectorConfig, ViewTokens, connect_views
from radweave.nn.decoding import DecodingConfig
from radweave.nn.encoder_decoder import CrossAttentionLanguageModel
from radweave.nn.flexiroute import Routed
from radweave.nn.heads import POSITIVE, NoWordHeadConfig, WordHeadConfig, WordPart
from radweave.nn.language_model import study_nats
from radweave.nn.memory.bank import Bank, BankLayout
from radweave.nn.prompt import PromptFormat, PromptTemplate, all_there
from radweave.nn.text_encoder import TextEncoderConfig, TextPart
from radweave.nn.vision import VisionEncoderConfig, VisionPart

if TYPE_CHECKING:
    from radweave.methods.model import TrainingView

# Intermediate results of a batch before the decoder, and their evidence for users.


@dataclass(frozen=True, slots=True)
class ImageTokens:
    """Image tokens of all views in the shared width (B, M, d), which are there, and their mean (B, d)."""

    tokens: Float[Tensor, "batch cells dim"]
    mask: Bool[Tensor, "batch cells"]
    mean: Float[Tensor, "batch dim"]
    views: ViewTokens


@dataclass(frozen=True, slots=True)
class StudyFindings:
    """Features of a batch before the decoder; N cases, a prior being the last of them."""

    image: ImageTokens
    recalled: Recalled
    cases: Cases
    apart: Float[Tensor, "batch cases 3"]
    similar: Routed
    changes: Cases
    difference: Routed
    logits: Float[Tensor, "batch classes 4"]
    priors: dict[int, tuple[str, str]]

    @property
    def log_odds(self) -> Float[Tensor, "batch classes"]:
        """Of a class being stated against every other state."""
        states = self.logits.float()
        others = torch.cat([states[..., :POSITIVE], states[..., POSITIVE + 1 :]], dim=-1)
        return states[..., POSITIVE] - others.logsumexp(-1)

    def evidence(self, row: int, classes: tuple[str, ...]) -> DraftEvidence:
        """One study's evidence; maps are over its own views, (V, h, w), and sum to 1 over all of them."""
        probabilities = self.logits[row].float().softmax(-1)
        shown: DraftEvidence = {
            "class_probabilities": dict(zip(classes, probabilities[:, POSITIVE].tolist(), strict=True)),
            "disease_states": {
                name: STATES[state] for name, state in zip(classes, probabilities.argmax(-1).tolist(), strict=True)
            },
            "recalled": self._recalled(row),
            "routing": {
                name: [route[row].tolist() for route in routed.routes]
                for name, routed in (("similar", self.similar), ("difference", self.difference))
                if routed.tokens.shape[1]
            },
            "attention_maps": self._maps(row),
            MAP_KIND: "case attention",
        }
        return shown

    def _recalled(self, row: int) -> list[RecalledEvidence]:
        cases: list[RecalledEvidence] = [
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
            scores = self._distances(row, self.cases.present.shape[1] - 1)
            cases.append({"kind": "report", "study_id": study_id, "text": text, "scores": scores, "is_prior": True})
        return cases

    def _distances(self, row: int, place: int) -> dict[str, float]:
        return dict(zip(METRICS, self.apart[row, place].tolist(), strict=True))

    def _maps(self, row: int) -> Maps:
        """Attention of the cases to the image in the last layer of each pass, mean over the study's cases."""
        present, views = self.cases.present[row], self.image.views
        maps = {}
        for name, routed in (("similar reports", self.similar), ("differences", self.difference)):
            if routed.attention is not None and present.any():
                mean = routed.attention[row][present].mean(0)
                shape = (len(views.view_mask[row]), *views.grid)
                maps[name] = mean.view(shape)[views.view_mask[row]].float().cpu().numpy()
        return maps


def priors_by_row(batch: Batch) -> dict[int, tuple[str, str]]:
    """Row of the batch -> study id and report of its prior."""
    if batch.priors is None or batch.priors.reports is None:
        return {}
    return dict(zip(batch.prior_of, zip(batch.priors.study_ids, batch.priors.reports, strict=True), strict=True))


def mean_of(tokens: Float[Tensor, "batch n dim"], mask: Bool[Tensor, "batch n"]) -> Float[Tensor, "batch dim"]:
    """Mean over the tokens that are there; 0 where none is."""
    weight = mask[:, :, None].to(tokens.dtype)
    return (tokens * weight).sum(1) / weight.sum(1).clamp(min=1)


Projection = Callable[[Tensor], Tensor]


def _as_it_is(vectors: Tensor) -> Tensor:
    return vectors


Positions = Literal["none", "sine"]


class Forward(ForwardPass["DiffRGenNetModel"]):
    """One batch as the model sees it: its image tokens, its cases, and what they find in the image."""

    @cached_property
    def image(self) -> ImageTokens:
        model, views = self.model, self.views
        tokens, mask = connect_views(model.connector, views)
        if model.positions == "sine":
            cells = sine_positions(views.grid, tokens.shape[-1]).to(tokens)
            tokens = tokens + cells.repeat(views.tokens.shape[1], 1) * mask[:, :, None]
        return ImageTokens(tokens, mask, mean_of(tokens, mask), views)

    @cached_property
    def recalled(self) -> Recalled:
        return self.model.retrieval.recall(self.batch, self.model.cases.projection.in_features)

    @cached_property
    def cases(self) -> Cases:
        """The cases in the shared width; the patient's own prior is one more, for the studies that have one."""
        tokens, present = self._case_vectors(self.model.cases, _as_it_is), self.recalled.present
        is_prior = torch.zeros_like(present)
        if self.batch.priors is not None:
            has_prior = present.new_zeros(len(self.batch), 1)
            has_prior[list(self.batch.prior_of)] = True
            present = torch.cat([present, has_prior], dim=1)
            is_prior = torch.cat([is_prior, torch.ones_like(has_prior)], dim=1)
        return Cases(tokens, present, is_prior)

    @cached_property
    def compared(self) -> tuple[Float[Tensor, "batch width"], Cases]:
        """The image and the cases in the space in which Feature Difference compares them."""
        mean, matching = self.image.mean, self.model.matching
        if self.model.difference.space == "shared" or isinstance(matching, NoMatching):
            return mean, self.cases
        vectors = self._case_vectors(matching.of_report, matching.of_image)
        return matching.of_image(mean), replace(self.cases, tokens=vectors)

    def _case_vectors(self, of_report: Projection, of_image: Projection) -> Float[Tensor, "batch cases width"]:
        """The cases in a space: by their reports, and a prior, which is the last, by report and image."""
        vectors = of_report(self.recalled.text)
        if self.prior is None:
            return vectors
        report, image = self.prior
        prior = vectors.new_zeros(len(self.batch), 1, vectors.shape[-1])
        mean = (of_report(report[:, None])[:, 0] + of_image(image)) / 2
        prior[list(self.batch.prior_of), 0] = mean.to(prior.dtype)
        return torch.cat([vectors, prior], dim=1)

    @cached_property
    def prior(self) -> tuple[Float[Tensor, "priors text_dim"], Float[Tensor, "priors dim"]] | None:
        """Report features and mean image tokens of the priors."""
        if self.batch.priors is None:
            return None
        mean = self.image.mean
        report = self.model.text_encoder.encode(required(self.batch.priors.reports)).to(mean)
        return report, Forward(self.model, self.batch.priors).image.mean

    @cached_property
    def study(self) -> StudyFindings:
        model, image, cases = self.model, self.image, self.cases
        place = image.tokens, image.mask, image.views.grid
        changes = model.difference.of(*self.compared)
        marked, present = self.input_source("cases", (model.cases.marked(cases.tokens, cases.is_prior), cases.present))
        similar, cases = model.aggregation.similar(marked, present, *place), replace(cases, present=present)
        marked = model.cases.marked(changes.tokens, changes.is_prior)
        marked, present = self.input_source("changes", (marked, changes.present))
        return StudyFindings(
            image=image,
            recalled=self.recalled,
            cases=cases,
            similar=similar,
            changes=replace(changes, present=present),
            difference=model.aggregation.difference(marked, present, *place),
            apart=model.difference.apart(self.compared[0], self.compared[1].tokens),
            logits=model.diseases(image.mean, mean_of(similar.tokens, cases.present)),
            priors=priors_by_row(self.batch),
        )

    def reading(self, class_labels: Tensor | None) -> Reading:
        """Input of the decoder; of studies in training the labels may stand for what was found."""
        model, study = self.model, self.study
        states = model.diseases.shown(study.logits, class_labels)
        marked = model.bridge(study.image.tokens, study.similar.tokens, study.difference.tokens)
        masks = study.image.mask, study.cases.present, study.changes.present
        slots = [
            self.decoder_input(*one)
            for one in zip(("image", "similar", "difference"), zip(marked, masks, strict=True), strict=True)
        ]
        tokens, mask = (torch.cat(each, dim=1) for each in zip(*slots, strict=True))
        diseases = self.decoder_input("diseases", all_there(model.diseases.prompt(states)))
        return Reading(tokens, mask, diseases, self.context)

    def matching(self) -> Tensor:
        batch, mean = self.batch, self.image.mean
        target = self.model.text_encoder.encode(required(batch.reports)).to(mean)
        return self.model.matching.loss(mean, target, required(batch.class_labels), self.outputs)

    def outputs(self) -> Outputs:
        """Means of the outputs of both passes over each study's cases."""
        study = self.study
        similar = mean_of(study.similar.tokens, study.cases.present)
        return Outputs(similar, mean_of(study.difference.tokens, study.changes.present), study.cases.present.any(1))

    def disease(self) -> Tensor:
        return self.model.diseases.loss(self.study.logits, required(self.batch.class_labels))

    def report(self) -> Tensor:
        model, batch = self.model, self.batch
        reading = self.reading(required(batch.class_labels))
        ids, labels = required(batch.input_ids), required(batch.labels)
        return reading.loss(model.language_model, model.template, ids, labels, batch.label_weights)


PASSES = ("vision_encoder", "connector", "retrieval", "text_encoder", "cases", "aggregation")
FINDINGS = (*PASSES, "diseases")
INPUTS = {
    "image": DecoderInput("projected patch tokens F"),
    "similar": DecoderInput("similar reports, aggregated with the image (FlexiRoute)"),
    "difference": DecoderInput(
        "feature differences, aggregated with the image (FlexiRoute)",
        covered_by=("image", "similar"),
        because="differences are taken between image and similar cases",
    ),
    "diseases": DecoderInput("states of the disease heads"),
}
INPUT_SOURCES = {
    "cases": InputSource("report features of similar studies E", "similar"),
    "changes": InputSource("feature differences of image and cases (Eq. 1)", "difference"),
}
TERMS: Mapping[str, Term[Forward]] = {
    "words": WORDS_TERM,
    "matching": Term((*PASSES, "difference", "matching"), Forward.matching),
    "disease": Term(FINDINGS, Forward.disease),
    "report": Term((*FINDINGS, "difference", "matching", "bridge", "language_model"), Forward.report),
}


@dataclass(eq=False, repr=False, kw_only=True)
class DiffRGenNetModel(ReportModel):
    """F = P E(images), E_i = report features of similar studies, report ~ LM([F; similar; difference], diseases).

        similar = FlexiRoute(E, F),   difference = FlexiRoute(FeatureDifference(mean F, E), F)

    With ``data.priors`` a study's own prior is one more case: the mean of its report feature and its mean image token,
    marked as prior.

    Source: Bian et al., DiffRGenNet, MIDL 2025. Deviations: see docs/methods/diffrgennet.md.
    """

    vision_encoder: VisionPart
    connector: Connector
    retrieval: ImageRetrieval | NoRetrieval
    text_encoder: TextPart
    cases: CaseEmbedding
    difference: FeatureDifference | NoDifference
    aggregation: Aggregation
    diseases: DiseaseStates
    matching: NegPosMatching | NoMatching
    bridge: MemoryBridge
    language_model: Decoder
    word_head: WordPart
    template: PromptTemplate
    classes: tuple[str, ...]
    positions: Positions
    terms = TERMS
    inputs = INPUTS
    input_sources = INPUT_SOURCES

    @property
    def absent_inputs(self) -> frozenset[str]:
        if isinstance(self.retrieval, NoRetrieval):
            return frozenset({"similar", "difference"})
        return frozenset() if self.difference.tokens_per_case else frozenset({"difference"})

    def loss(self, batch: Batch, terms: Sequence[str]) -> dict[str, Tensor]:
        """Losses: ``report`` per token, ``disease`` (Eq. 9), ``matching`` (Eq. 8), and ``words`` of the word head."""
        return losses(self.terms, Forward(self, batch), terms)

    def class_logits(self, batch: Batch) -> Tensor:
        """The log-odds of each class being stated (B, K)."""
        return Forward(self, batch).study.log_odds

    def prompt_tokens(self, study: StudySize) -> int:
        """The memory [F; similar; difference] and a token per disease, in the prompt or read beside it."""
        cases = self.retrieval.num_cases + study.prior
        per_case = 1 + self.difference.tokens_per_case
        slots = {"memory": study.views * study.tokens + per_case * cases, "diseases": len(self.classes)}
        if isinstance(self.language_model, CrossAttentionLanguageModel):
            return sum(slots.values()) + study.context
        return self.template.length(slots, study.context)

    def report_nats(self, batch: Batch) -> Float[Tensor, " batch"]:
        """Mean negative log-likelihood per token of each study's report, after the heads' own states."""
        labels = required(batch.labels)
        reading = Forward(self, batch).reading(None)
        logits = reading.logits(self.language_model, self.template, required(batch.input_ids), labels)
        return study_nats(logits, labels)

    @torch.no_grad()
    def generate(self, batch: Batch, decoding: DecodingConfig) -> Generation:
        """Decode a report per study. Evidence: the retrieved reports with their three distances, the routing weights of
        each layer, disease states and their probabilities, and where the image agrees with the retrieved reports.
        """
        return generation(self, batch, decoding)

    def to_write(self, batch: Batch) -> ToWrite:
        """Prefixes of the reports of a batch."""
        forward = Forward(self, batch)

        def finish(ids: list[list[int]], log_probs: list[list[float]]) -> Generation:
            return written(ids, log_probs, [forward.study.evidence(row, self.classes) for row in range(len(batch))])

        return ToWrite(forward.reading(None).prompts(self.language_model, self.template), finish)

    @torch.no_grad()
    def build_memories(self, stage: str, training: TrainingView) -> dict[str, Bank]:
        """Before reports are trained: the text encoder and the class prior are fitted, the embedding of the retrieval
        takes the encoder as it is now, and training images and reports are banked.
        """
        if stage != "report":
            return {}
        self.text_encoder.fit(training.reports)
        self.diseases.set_prior(training.class_states)
        studies = (batch.to(self.diseases.prior.device) for batch in training.batches())
        return self.retrieval.banks(self.vision_encoder, self.text_encoder, studies)

    def memory_layouts(self) -> Mapping[str, BankLayout]:
        """Cases, where any are retrieved."""
        return self.retrieval.layouts(self.vision_encoder.dim, self.cases.projection.in_features)

    def set_memories(self, banks: Mapping[str, Bank]) -> None:
        """Take the bank of cases."""
        self.retrieval.remember(banks)


class DiffRGenNetModelConfig(ModelConfig):
    """Parts of the model.

    ``dim`` is the shared width d; None takes the decoder's. ``prompt`` is used by causal language models alone and has
    the slots ``{memory}`` and ``{diseases}``. ``positions`` adds fixed positions to the image tokens, which
    cross-attention would not know otherwise.
    """

    vision_encoder: VisionEncoderConfig
    connector: ConnectorConfig
    positions: Positions = "none"
    dim: Width | None = None
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
    prompt: Prompt = "{memory}{diseases}"
    prompt_format: PromptFormat = "plain"

    def without_memories(self) -> Without:
        """Without retrieved reports; what is left compares a study with its own prior, if that is given."""
        if "retrieval" in self.absent:
            return Without(self)
        bare = self.model_copy(update={"retrieval": NoRetrievalConfig()})
        lost = "no reports of similar training studies are retrieved, for the draft or for the disease states"
        return Without(bare, (lost,), heads_hold=False)

    def build(self, context: BuildContext) -> DiffRGenNetModel:
        encoder, text = context.vision_encoder(self.vision_encoder), context.text_encoder(self.text_encoder)
        language_model = context.part("language_model", lambda: self.language_model.build(**context.words))
        classes, part, width = context.classes, context.part, language_model.width
        dim, changes = self.dim or width, self.difference.kind != "none"
        matching = part("matching", lambda: self.matching.build(dim, text.width))
        compared = (matching.width if getattr(self.difference, "space", "") == "matching" else None) or dim
        return DiffRGenNetModel(
            vision_encoder=encoder,
            connector=part("connector", lambda: self.connector.build(encoder.dim, dim)),
            retrieval=self.retrieval.build(encoder),
            text_encoder=text,
            cases=part("cases", lambda: self.cases.build(text.width, dim)),
            difference=part("difference", lambda: self.difference.build(dim, compared)),
            aggregation=part("aggregation", lambda: self.aggregation.build(dim, with_difference=changes)),
            diseases=part("diseases", lambda: self.diseases.build(dim, width, len(classes))),
            matching=matching,
            bridge=part("bridge", lambda: self.bridge.build(dim, width)),
            language_model=language_model,
            word_head=context.word_head(self.word_head, encoder.dim),
            template=context.prompt(self.prompt, self.prompt_format, *SLOTS),
            classes=classes,
            positions=self.positions,
        )


class DiffRGenNetStages(EncoderFirstStages):
    """Words from images (off unless given epochs), then reports with all the method's losses."""

    vision: StageConfig = WORDS
    report: StageConfig


class DiffRGenNetExperiment(Experiment):
    """The method with all its numbers."""

    method: Literal["diffrgennet"] = "diffrgennet"
    model: DiffRGenNetModelConfig
    stages: DiffRGenNetStages
