"""Save what a run drafts with by expected utility, at the end of training."""

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
from radweave.engine.drafts import FOLDER, MOST_STUDIES, class_scores, embed, evidence_kind, knows_classes
from radweave.labels import Labeler, get_labeler
from radweave.methods.model import EvidenceSource, ReportModel, TrainingView, device_of
from radweave.nn.memory.bank import Bank, patient_code

if TYPE_CHECKING:
    from radweave.engine.stages import Training


def save_for_drafting(training: Training, view: TrainingView) -> None:
    """Make the run's calibration, and what it drafts with from its training split; keep them in the run folder.

    Heads are calibrated on the validation split, everything else on the training split, each study without its
    patient's others. Where no report can be used, a run that drafts by its own decoder goes on without.

    Raises:
        InputError: if no report can be used and the run drafts by expected utility, or for a row of another split.
    """
    labeler = get_labeler(training.experiment.data.label_set)
    seen = _seen(training.model, view, labeler)
    labels = affirmed_classes([example.report or "" for example in seen.examples], labeler)
    calibration = _calibrated(training, seen, labels, labeler)
    save_calibration(calibration, training.folder)
    try:
        store = _made(training, seen, labels, calibration.source)
    except ValueError as error:
        if training.experiment.decoding.kind == "expected_utility":
            raise InputError(str(error), file=training.dataset.path, field="report") from None
        training.watch.note(f"the run will not draft by expected utility: {error}")
        return
    store.bank.refuse_others(FOLDER, [study.study_id for study in training.dataset.studies("train")])
    save_drafting(store, training.folder / FOLDER)


def _made(training: Training, seen: SeenStudies, labels: Floats, source: Source) -> DraftingStore:
    experiment = training.experiment
    config, marks = experiment.decoding.expected_utility, experiment.decoding.deidentification_marks == "keep"
    labeler = get_labeler(experiment.data.label_set)
    reports = [example.report or "" for example in seen.examples]
    pool = CandidatePool.build(reports, labeler, config, marks=marks)
    point = bleu_point(pool.candidates, reports, [int(said.weights.argmax()) for said in seen.said])
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
    # A run that drafts this way by itself opens at once; any other makes them when it is asked to.
    ready = experiment.decoding.kind == "expected_utility" and len(reports) <= MOST_IN_PAIRS
    worth = utilities(pool.candidates, reports, config, point) if ready else None
    return DraftingStore(seen.bank(labels), facts, pool.candidates, pool.asserts, worth)


@dataclass(frozen=True, slots=True)
class SeenStudies:
    """The training studies in use, what the others say of each, and their embeddings where those are needed."""

    examples: Sequence[Example]
    said: list[Evidence]
    embeddings: Floats | None

    def bank(self, labels: Floats) -> Bank:
        """Their rows, as memories keep them."""
        rows = tuple(
            {"study_id": example.study_id, "patient": patient_code(example.patient_id), "text": example.report or ""}
            for example in self.examples
        )
        tensors = {"labels": labels_tensor(labels)}
        if self.embeddings is not None:
            tensors["embeddings"] = torch.from_numpy(self.embeddings).float()
        return Bank(tensors, rows)


def _seen(model: ReportModel, view: TrainingView, labeler: Labeler) -> SeenStudies:
    if isinstance(model, EvidenceSource):
        said = model.left_out()
        return SeenStudies(view.spread(len(said)).examples, said, None)
    view = view.spread(MOST_STUDIES)
    rows = np.concatenate([embed(model, batch.to(device_of(model))) for batch in view.batches()])
    studies = EmbeddedStudies.fit(rows, affirmed_classes(view.reports, labeler))
    patients = np.array([example.patient_id for example in view.examples])
    said = [studies.evidence_for(row, patients == patient) for row, patient in zip(rows, patients, strict=True)]
    return SeenStudies(view.examples, said, rows)


def _calibrated(training: Training, seen: SeenStudies, labels: Floats, labeler: Labeler) -> RunCalibration:
    """Of heads on the validation split; else on the training split, each study without its patient's."""
    model = training.model
    if isinstance(model, EvidenceSource) or not knows_classes(model):
        source: Source = evidence_kind(model) if isinstance(model, EvidenceSource) else "smoothers"
        scores = np.stack([said.scores for said in seen.said])
        return RunCalibration.fit(source, "train", labeler.classes, scores, labels)
    prepared = training.splits["val"].of(training.last_stage.mixture)
    batches = StudyLoader(prepared.examples, 32, training.pad_id).epoch()
    logits = np.concatenate([class_scores(model, batch.to(device_of(training.model))) for batch in batches])
    truth = affirmed_classes([example.report or "" for example in prepared.examples], labeler)
    return RunCalibration.fit("heads", "val", labeler.classes, logits, truth)
