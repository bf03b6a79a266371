"""Calibration and candidates of a run, saved at the end of training for drafting by expected utility."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from radweave.core.errors import InputError
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
from radweave.drafting.store import DraftingFacts, DraftingStore, labels_tensor, save_drafting
from radweave.drafting.writer import MOST_IN_PAIRS
from radweave.engine.expected_utility import FOLDER, MOST_STUDIES, class_scores, embed, evidence_kind, knows_classes
from radweave.labels import Labeler, get_labeler
from radweave.methods.model import EvidenceSource, ReportModel, TrainingView, device_of
from radweave.nn.memory.bank import Bank, patient_code

if TYPE_CHECKING:
    from radweave.engine.stages import Training


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
