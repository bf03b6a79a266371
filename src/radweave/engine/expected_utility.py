"""Drafting by expected utility, from calibration and candidates that are made at the end of training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from radweave.core.batch import Batch, VisionEncoder
from radweave.core.errors import InputError, UnusableModelError
from radweave.data.loader import Example, StudyLoader
from radweave.drafting.calibration import RunCalibration, Source, save_calibration
from radweave.drafting.candidates import (
    CandidatePool,
    affirmed_classes,
    bleu_point,
    candidate_options,
    utilities,
    utility_options,
)
from radweave.drafting.smoothers import EmbeddedStudies, Evidence, Floats
from radweave.drafting.store import DraftingFacts, DraftingStore, labels_tensor, load_drafting, save_drafting
from radweave.drafting.writer import MOST_IN_PAIRS, UtilityDraft, UtilityWriter
from radweave.labels import Labeler, get_labeler
from radweave.methods.model import (
    Classifying,
    EvidenceSource,
    Proposing,
    ReportModel,
    TrainingView,
    device_of,
    named_parts,
)
from radweave.nn.connector import encode_views
from radweave.nn.decoding import DecodingConfig, ExpectedUtilityConfig
from radweave.nn.heads import DenseHead
from radweave.nn.memory.bank import Bank, BankLayout, Column, Owners, patient_code

if TYPE_CHECKING:
    from radweave.engine.stages import Training

FOLDER = "drafting"
MOST_STUDIES = 4096
"""Training studies to draft from, evenly sampled: time and memory grow with their square."""


def evidence_kind(model: EvidenceSource) -> Source:
    return "stack" if model.scores_are_log_odds() else "model"


@torch.no_grad()
def embed(model: ReportModel, batch: Batch) -> Floats:
    """Mean of the encoder's tokens over all views (B, D).

    Raises:
        UnusableModelError: if a value is not finite.
    """
    return _finite(encode_views(model.encoder, batch).mean())


def knows_classes(model: ReportModel) -> bool:
    """True for a model with heads that learned the classes: its own, or the dense head of its encoder."""
    return isinstance(model, Classifying) or _dense_head(model) is not None


def _dense_head(model: ReportModel) -> DenseHead | None:
    """The head of the stage ``encoder``, if that was trained."""
    head = named_parts(model).get("word_head")
    return head if isinstance(head, DenseHead) and bool(head.learned) else None


@torch.no_grad()
def class_scores(model: ReportModel, batch: Batch) -> Floats:
    """Mean log-odds (B, K) of the heads that learned the classes.

    Raises:
        UnusableModelError: if a value is not finite.
    """
    logits = [model.class_logits(batch)] if isinstance(model, Classifying) else []
    head = _dense_head(model)
    if head is not None:
        views = encode_views(model.encoder, batch)
        logits.append(head.class_logits(views.tokens, views.view_mask))
    return _finite(torch.stack(logits).mean(0))


def width_of(model: ReportModel) -> int:
    """The width of its encoder's tokens."""
    encoder = model.encoder
    assert isinstance(encoder, VisionEncoder)
    return encoder.dim


def _finite(values: torch.Tensor) -> Floats:
    if not bool(values.isfinite().all()):
        raise UnusableModelError("what the model sees is not finite: its weights or its precision cannot be used")
    return np.asarray(values.double().cpu().numpy())


@dataclass(slots=True)
class Drafting:
    """The drafting of a run; its folder is read with the first draft."""

    folder: Path
    model: ReportModel
    calibration: RunCalibration
    _opened: Opened | None = None
    _writers: dict[tuple[ExpectedUtilityConfig, bool], UtilityWriter] = field(default_factory=dict)

    def write(self, batch: Batch, decoding: DecodingConfig) -> Iterator[UtilityDraft]:
        """A draft for each study of a batch.

        Raises:
            InputError: if the run has nothing to draft with, or its files do not fit the model.
        """
        if self._opened is None:
            self._opened = Opened.of(self.folder, self.model)
            self._refuse_other_calibration(self._opened.store.facts)
        config, marks = decoding.expected_utility, decoding.deidentification_marks == "keep"
        if (config, marks) not in self._writers:
            self._writers[config, marks] = UtilityWriter(self._opened.store, self.calibration, config, marks=marks)
        writer, evidence = self._writers[config, marks], self._opened.evidence_for(batch)
        proposed: Sequence[Sequence[str]] = [()] * len(evidence)
        if config.written and isinstance(self.model, Proposing):
            proposed = self.model.propose(batch, evidence, decoding)
        each = zip(evidence, self._opened.barred(batch), proposed, strict=True)
        for row, own, texts in each:
            yield writer.write(row, own, texts)

    def classes(self, batch: Batch, decoding: DecodingConfig) -> list[dict[str, Any]]:
        """Calibrated scores of the heads for each study; none without heads, or with an invalid calibration.

        These are the scores that were calibrated: a method's own evidence may be of fewer heads or another prompt.
        """
        if self.calibration.source != "heads" or not self.calibration.holds:
            return []
        config = decoding.expected_utility
        scores = class_scores(self.model, batch)
        return [self.calibration.evidence(row, config.thresholds, config.macro) for row in scores]

    def _refuse_other_calibration(self, facts: DraftingFacts) -> None:
        if facts.source != self.calibration.source or facts.classes != tuple(self.calibration.classes):
            raise InputError("not what the run's calibration was made for", file=self.folder, field="source")


@dataclass(frozen=True, slots=True)
class Opened:
    """A drafting folder with its model."""

    model: ReportModel
    store: DraftingStore
    owners: Owners
    studies: EmbeddedStudies | None

    @classmethod
    def of(cls, folder: Path, model: ReportModel) -> Opened:
        """Read the folder.

        Raises:
            InputError: if it is missing or does not fit the model.
        """
        if not folder.is_dir():
            raise InputError(
                "this run has no reports to draft from: it was exported without them, or is older than they are",
                file=folder,
                field="decoding.kind",
                got="expected_utility",
                expected="decoding.kind=likelihood",
            )
        store = load_drafting(folder)
        source = store.facts.source
        own = evidence_kind(model) if isinstance(model, EvidenceSource) else None
        fits = source == own or (own is None and (source == "smoothers" or knows_classes(model)))
        embeddings = store.bank.tensors.get("embeddings")
        if not fits or (embeddings is None) != (own is not None):
            raise InputError("the folder does not fit this model", file=folder, field="source", got=source)
        studies = None
        if embeddings is not None:
            store.bank.refuse_misfit(FOLDER, BankLayout({"embeddings": Column("float", (width_of(model),))}))
            store.bank.refuse_non_finite(FOLDER)
            studies = EmbeddedStudies.fit(embeddings.double().numpy(), store.labels)
        return cls(model, store, store.bank.owners(), studies)

    def barred(self, batch: Batch) -> NDArray[np.bool_]:
        """True (B, J) for rows of the study itself and of its patient."""
        own = self.owners.of_queries(batch.study_ids, batch.patient_ids)
        return np.asarray(self.owners.barred(own, slice(0, len(self.owners))).numpy())

    def evidence_for(self, batch: Batch) -> list[Evidence]:
        """Evidence from the training studies for each study."""
        if isinstance(self.model, EvidenceSource):
            return self.model.evidence_for(batch)
        assert self.studies is not None
        evidence = [
            self.studies.evidence_for(row, barred)
            for row, barred in zip(embed(self.model, batch), self.barred(batch), strict=True)
        ]
        if self.store.facts.source == "heads":
            logits = class_scores(self.model, batch)
            evidence = [replace(one, scores=row) for one, row in zip(evidence, logits, strict=True)]
        return evidence


def save_for_drafting(training: Training, view: TrainingView) -> None:
    """Save the run's calibration and its candidates from the training split.

    Heads are calibrated on the validation split, everything else on the training split without the study's patient.
    Without usable reports, a run that drafts by its own decoder goes on without candidates.

    Raises:
        InputError: for expected utility without usable reports, or for a row of another split.
    """
    labeler = get_labeler(training.experiment.data.label_set)
    studies = _drafting_studies(training.model, view, labeler)
    labels = affirmed_classes([example.report or "" for example in studies.examples], labeler)
    calibration = _calibrated(training, studies, labels, labeler)
    save_calibration(calibration, training.folder)
    try:
        store = _store(training, studies, labels, calibration.source)
    except ValueError as error:
        if training.experiment.decoding.kind == "expected_utility":
            raise InputError(str(error), file=training.dataset.path, field="report") from None
        training.watch.note(f"the run will not draft by expected utility: {error}")
        return
    store.bank.refuse_others(FOLDER, [study.study_id for study in training.dataset.studies("train")])
    save_drafting(store, training.folder / FOLDER)


def _store(training: Training, studies: DraftingStudies, labels: Floats, source: Source) -> DraftingStore:
    experiment = training.experiment
    config, marks = experiment.decoding.expected_utility, experiment.decoding.deidentification_marks == "keep"
    labeler = get_labeler(experiment.data.label_set)
    reports = [example.report or "" for example in studies.examples]
    pool = CandidatePool.build(reports, labeler, config, marks=marks)
    point = bleu_point(pool.candidates, reports, [int(row.weights.argmax()) for row in studies.evidence])
    facts = DraftingFacts(
        classes=labeler.classes,
        label_set=experiment.data.label_set,
        source=source,
        bleu_matches=point.matches if point else (),
        bleu_candidates=point.candidates if point else (),
        bleu_reference=point.reference if point else 0.0,
        wording=utility_options(config),
        candidates=candidate_options(config, marks=marks),
    )
    # Precomputed for runs that draft by expected utility; others compute them on demand.
    ready = experiment.decoding.kind == "expected_utility" and len(reports) <= MOST_IN_PAIRS
    worth = utilities(pool.candidates, reports, config, point) if ready else None
    return DraftingStore(studies.bank(labels), facts, pool.candidates, pool.asserts, worth)


@dataclass(frozen=True, slots=True)
class DraftingStudies:
    """Training studies with the evidence of the others for each, and embeddings for a model without own evidence."""

    examples: Sequence[Example]
    evidence: list[Evidence]
    embeddings: Floats | None

    def bank(self, labels: Floats) -> Bank:
        """The studies as a memory bank."""
        rows = tuple(
            {"study_id": example.study_id, "patient": patient_code(example.patient_id), "text": example.report or ""}
            for example in self.examples
        )
        tensors = {"labels": labels_tensor(labels)}
        if self.embeddings is not None:
            tensors["embeddings"] = torch.from_numpy(self.embeddings).float()
        return Bank(tensors, rows)


def _drafting_studies(model: ReportModel, view: TrainingView, labeler: Labeler) -> DraftingStudies:
    if isinstance(model, EvidenceSource):
        evidence = model.left_out()
        return DraftingStudies(view.spread(len(evidence)).examples, evidence, None)
    view = view.spread(MOST_STUDIES)
    rows = np.concatenate([embed(model, batch.to(device_of(model))) for batch in view.batches()])
    studies = EmbeddedStudies.fit(rows, affirmed_classes(view.reports, labeler))
    patients = np.array([example.patient_id for example in view.examples])
    evidence = [studies.evidence_for(row, patients == patient) for row, patient in zip(rows, patients, strict=True)]
    return DraftingStudies(view.examples, evidence, rows)


def _calibrated(training: Training, studies: DraftingStudies, labels: Floats, labeler: Labeler) -> RunCalibration:
    """Calibration of heads on the validation split, else of evidence on the training split without the patient."""
    model = training.model
    if isinstance(model, EvidenceSource) or not knows_classes(model):
        source: Source = evidence_kind(model) if isinstance(model, EvidenceSource) else "smoothers"
        scores = np.stack([row.scores for row in studies.evidence])
        return RunCalibration.fit(source, "train", labeler.classes, scores, labels)
    prepared = training.splits["val"].of(training.last_stage.mixture)
    batches = StudyLoader(prepared.examples, 32, training.pad_id).epoch()
    logits = np.concatenate([class_scores(model, batch.to(device_of(training.model))) for batch in batches])
    truth = affirmed_classes([example.report or "" for example in prepared.examples], labeler)
    return RunCalibration.fit("heads", "val", labeler.classes, logits, truth)
