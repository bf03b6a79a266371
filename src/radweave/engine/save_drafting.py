"""Calibration and candidates of a run, saved at the end of training for drafting by expected utility.

Heads are calibrated on the validation split, with and without what the method's own reports of these studies state. Its
reports have a share in the wording unless validation drafts are worth less with it, by more than a standard error.
What a prior study says is learned from the studies that the classes are calibrated on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from radweave.core.batch import Batch
from radweave.core.errors import InputError
from radweave.core.evidence import OwnReports
from radweave.data.loader import Example, StudyLoader
from radweave.data.tokenizer import decode
from radweave.drafting.calibration import RunCalibration, Source, save_calibration, stated_log_odds
from radweave.drafting.candidates import (
    CandidatePool,
    affirmed_classes,
    bleu_point,
    candidate_options,
    utilities,
    utility_options,
)
from radweave.drafting.prior import FEWEST, Known, PriorCalibration, only_of_one_patient, reported_classes
from radweave.drafting.smoothers import EmbeddedStudies, Evidence, Floats, PriorEvidence
from radweave.drafting.store import DraftingFacts, DraftingStore, labels_tensor, save_drafting
from radweave.drafting.writer import MOST_IN_PAIRS, UtilityWriter
from radweave.engine.expected_utility import (
    FOLDER,
    MOST_STUDIES,
    barred_rows,
    class_scores,
    embed,
    evidence_kind,
    knows_classes,
)
from radweave.labels import Labeler, get_labeler
from radweave.methods.model import EvidenceSource, ReportModel, TrainingView, device_of, own_reports, writes_own
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
    calibrated = _calibrated(training, studies, labels, labeler)
    calibration = calibrated.calibration
    save_calibration(calibration, training.folder)
    try:
        store = _store(training, studies, labels, calibration.source)
        priors = training.splits[calibration.split].priors
        prior = learn_priors(calibrated, priors, labeler, partial(_batches, training), training.watch.note)
        store = replace(store, prior=prior)
        store = _asked(training, studies, store, calibration)
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
    worth = utilities(pool.candidates, reports, config, point) if len(reports) <= MOST_IN_PAIRS else None
    return DraftingStore(studies.bank(labels), facts, pool.candidates, pool.asserts, worth)


@dataclass(frozen=True, slots=True)
class DraftingStudies:
    """Training studies with the evidence of the others for each, and embeddings for a model without own evidence."""

    examples: Sequence[Example]
    evidence: list[Evidence]
    embeddings: Floats | None
    embedded: EmbeddedStudies | None = None

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
    return DraftingStudies(view.examples, evidence, rows, studies)


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A calibration with what it was made of: N studies, their scores and findings (N, K); ``ask`` scores others."""

    calibration: RunCalibration
    examples: Sequence[Example]
    scores: Floats
    truth: Floats
    ask: Callable[[Batch], Floats]


def _calibrated(training: Training, studies: DraftingStudies, labels: Floats, labeler: Labeler) -> Calibrated:
    """Calibration of heads on the validation split, else of evidence on the training split without the patient."""
    model, classes = training.model, labeler.classes
    if isinstance(model, EvidenceSource) or not knows_classes(model):
        source: Source = evidence_kind(model) if isinstance(model, EvidenceSource) else "smoothers"
        scores = np.stack([row.scores for row in studies.evidence])
        fitted = RunCalibration.fit(source, "train", classes, scores, labels)
        return Calibrated(fitted, studies.examples, scores, labels, partial(_smoothed_scores, studies, model))
    examples = _validation(training)
    logits = np.concatenate([class_scores(model, batch) for batch in _batches(training, examples)])
    truth = affirmed_classes([example.report or "" for example in examples], labeler)
    fitted = RunCalibration.fit("heads", "val", classes, logits, truth)
    return Calibrated(fitted, examples, logits, truth, partial(class_scores, model))


def _smoothed_scores(studies: DraftingStudies, model: ReportModel, batch: Batch) -> Floats:
    """Scores (B, K) of training studies that are not among those in use, without what their patients teach."""
    if isinstance(model, EvidenceSource):
        return np.stack([one.scores for one in model.evidence_for(batch)])
    assert studies.embedded is not None, "a model without evidence of its own has embeddings"
    patients = np.array([example.patient_id for example in studies.examples])
    rows = zip(embed(model, batch), batch.patient_ids, strict=True)
    return np.stack([studies.embedded.evidence_for(row, patients == patient).scores for row, patient in rows])


def learn_priors(
    calibrated: Calibrated,
    priors: Mapping[str, Example],
    labeler: Labeler,
    batches: Callable[[Sequence[Example]], Iterable[Batch]],
    note: Callable[[str], None],
) -> PriorCalibration | None:
    """Weights of the priors of the studies that the classes are calibrated on; None, with a note, where few have one.

    A prior, by its study's id, is of the same split and patient. It is scored as its study is: by what never saw that
    patient.
    """
    calibration, classes = calibrated.calibration, tuple(calibrated.calibration.classes)
    rows = [row for row, example in enumerate(calibrated.examples) if example.study_id in priors]
    if len(rows) < FEWEST:
        if rows:
            note(f"drafts are not told of prior studies: {len(rows)} have one, {FEWEST} are needed")
        return None
    examples = [calibrated.examples[row] for row in rows]
    before = [priors[example.study_id] for example in examples]
    only_of_one_patient([one.patient_id for one in examples], [one.patient_id for one in before])
    scored = zip(calibrated.examples, calibrated.scores, strict=True)
    known = {example.study_id: row for example, row in scored}
    missing = list({one.study_id: one for one in before if one.study_id not in known}.values())
    for batch in batches(missing):
        known |= dict(zip(batch.study_ids, calibrated.ask(batch), strict=True))
    scores = np.stack([known[one.study_id] for one in before])
    reported = reported_classes([one.report or "" for one in before], labeler)
    return PriorCalibration.fit(
        calibration.split,
        classes,
        calibration.log_odds(calibrated.scores[rows]),
        PriorEvidence(calibration.log_odds(scores), reported),
        Known.of([one.report or "" for one in examples], calibrated.truth[rows], reported, labeler),
        calibration.threshold,
    )


def _validation(training: Training) -> Sequence[Example]:
    return training.splits["val"].of(training.last_stage.mixture).examples


def _batches(training: Training, examples: Sequence[Example]) -> Iterator[Batch]:
    for batch in StudyLoader(examples, 32, training.pad_id).epoch():
        yield batch.to(device_of(training.model))


# The method's own reports of validation studies: how much they say of each class, and of the wording.


MOST_ASKED = 512
"""Validation studies that a method writes reports for, evenly spread over the split."""
SHARES = (0.0, 0.125, 0.25)
"""Shares of a method's own reports in the wording: a run has the one whose validation drafts are worth most."""


@dataclass(frozen=True, slots=True)
class Validation:
    """N validation studies as drafting sees them: evidence, rows of the bank that are barred, the method's own reports,
    the findings (N, K) and the report of each.
    """

    evidence: list[Evidence]
    barred: list[NDArray[np.bool_]]
    own: list[OwnReports]
    truth: Floats
    reports: list[str]

    def scores(self) -> Floats:
        """Log-odds of the heads (N, K)."""
        return np.stack([one.scores for one in self.evidence])

    def stated(self, labeler: Labeler) -> Floats:
        """Log-odds by the method's own reports (N, K)."""
        counts = [affirmed_classes(one.written, labeler).sum(axis=0) for one in self.own]
        return np.stack([stated_log_odds(row, len(one.written)) for row, one in zip(counts, self.own, strict=True)])

    def worth(self, writer: UtilityWriter, share: float) -> Floats:
        """Utility (N,) of each draft if the study's report is the truth, with this share of own reports."""
        writer.own_wording = share
        drafts = [writer.write(*each).text for each in zip(self.evidence, self.barred, self.own, strict=True)]
        pairs = zip(drafts, self.reports, strict=True)
        words = np.array([float(writer.proposals.between([draft], [report])[0, 0]) for draft, report in pairs])
        stated = affirmed_classes(drafts, writer.labeler) * writer.counts
        return np.asarray(words + writer.config.findings * (stated * (self.truth - writer.thresholds)).sum(axis=1))


def _asked(
    training: Training, studies: DraftingStudies, store: DraftingStore, calibration: RunCalibration
) -> DraftingStore:
    """The store with what the method's own reports are worth; unchanged for a method without a decoder or embeddings.

    Classes are calibrated with them where the method has heads: smoothers are calibrated on studies that trained the
    decoder.
    """
    decoding = training.experiment.decoding
    if studies.embedded is None or not writes_own(training.model):
        return store
    labeler = get_labeler(training.experiment.data.label_set)
    validation = _ask(training, studies.embedded, store, heads=calibration.source == "heads")
    if calibration.source == "heads":
        stated = validation.stated(labeler)
        together = RunCalibration.fit("heads", "val", labeler.classes, validation.scores(), validation.truth, stated)
        store = replace(store, calibration=together)
    marks = decoding.deidentification_marks == "keep"
    writer = UtilityWriter(store, calibration, decoding.expected_utility, marks=marks)
    share = max(SHARES, key=lambda share: float(validation.worth(writer, share).mean()))
    return replace(store, facts=store.facts.model_copy(update={"own_wording": share}))


@torch.inference_mode()
def _ask(training: Training, embedded: EmbeddedStudies, store: DraftingStore, *, heads: bool) -> Validation:
    """Ask the model for evidence and reports of validation studies."""
    model, labeler, owners = training.model, get_labeler(training.experiment.data.label_set), store.bank.owners()
    examples = _validation(training)
    if len(examples) > MOST_ASKED:
        examples = [examples[number * len(examples) // MOST_ASKED] for number in range(MOST_ASKED)]
    reports = [example.report or "" for example in examples]
    validation = Validation([], [], [], affirmed_classes(reports, labeler), reports)
    for batch in _batches(training, examples):
        barred = barred_rows(owners, batch)
        evidence = [embedded.evidence_for(*each) for each in zip(embed(model, batch), barred, strict=True)]
        if heads:
            scores = class_scores(model, batch)
            evidence = [replace(one, scores=row) for one, row in zip(evidence, scores, strict=True)]
        validation.evidence.extend(evidence)
        validation.barred.extend(barred)
        decoding = training.experiment.decoding
        own = own_reports(model, batch, evidence, decoding, partial(decode, training.tokenizer))
        validation.own.extend(replace(one, maps={}) for one in own)
    return validation
