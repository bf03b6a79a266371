"""What a run drafts with by expected utility: made at the end of training, opened when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from radweave.base.batch import Batch, VisionEncoder
from radweave.base.errors import InputError, UnusableModelError
from radweave.contract.model import Classifying, Proposing, ReportModel, Witness, device_of, parts_of
from radweave.contract.view import TrainingView
from radweave.data.loader import Example, StudyLoader
from radweave.drafting.embedded import EmbeddedStudies
from radweave.drafting.pool import CandidatePool, bleu_point, candidate_options, stated, utilities, wording_options
from radweave.drafting.run_calibration import RunCalibration, Source, save_calibration
from radweave.drafting.smoothers import Evidence, Floats
from radweave.drafting.store import (
    DraftingFacts,
    DraftingStore,
    labels_tensor,
    load_drafting,
    save_drafting,
)
from radweave.drafting.writer import MOST_IN_PAIRS, UtilityWriter, Written
from radweave.labels import Labeler, get_labeler
from radweave.memory.bank import Bank, BankLayout, Column, Owners, patient_code
from radweave.nn.decoding import DecodingConfig, ExpectedUtilityConfig
from radweave.nn.dense_head import DenseHead
from radweave.nn.views import encode_views

if TYPE_CHECKING:
    from radweave.runs.stages import Training

FOLDER = "drafting"
MOST_STUDIES = 4096
"""Training studies that a network's run drafts from, evenly spread: time and memory grow with their square."""


def save_for_drafting(training: Training, view: TrainingView) -> None:
    """Make the run's calibration, and what it drafts with from its training split; keep them in the run folder.

    Heads are calibrated on the validation split, everything else on the training split, each study without its
    patient's others. Where no report can be used, a run that drafts by its own decoder goes on without.

    Raises:
        InputError: if no report can be used and the run drafts by expected utility, or for a row of another split.
    """
    labeler = get_labeler(training.experiment.data.label_set)
    seen = _seen(training.model, view, labeler)
    labels = stated([example.report or "" for example in seen.examples], labeler)
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
        wording=wording_options(config),
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
    if isinstance(model, Witness):
        said = model.left_out()
        return SeenStudies(view.spread(len(said)).examples, said, None)
    view = view.spread(MOST_STUDIES)
    rows = np.concatenate([embed(model, batch.to(device_of(model))) for batch in view.batches()])
    studies = EmbeddedStudies.fit(rows, stated(view.reports, labeler))
    patients = np.array([example.patient_id for example in view.examples])
    said = [studies.testify(row, patients == patient) for row, patient in zip(rows, patients, strict=True)]
    return SeenStudies(view.examples, said, rows)


def _calibrated(training: Training, seen: SeenStudies, labels: Floats, labeler: Labeler) -> RunCalibration:
    """Of heads on the validation split; else on the training split, each study without its patient's."""
    model = training.model
    if isinstance(model, Witness) or not knows_classes(model):
        source: Source = _testifying(model) if isinstance(model, Witness) else "smoothers"
        scores = np.stack([said.scores for said in seen.said])
        return RunCalibration.fit(source, "train", labeler.classes, scores, labels)
    prepared = training.splits["val"].of(training.last_stage.mixture)
    batches = StudyLoader(prepared.examples, 32, training.pad_id).epoch()
    logits = np.concatenate([class_scores(model, batch.to(device_of(training.model))) for batch in batches])
    truth = stated([example.report or "" for example in prepared.examples], labeler)
    return RunCalibration.fit("heads", "val", labeler.classes, logits, truth)


def _testifying(model: Witness) -> Source:
    return "stack" if model.speaks_log_odds() else "model"


@torch.no_grad()
def embed(model: ReportModel, batch: Batch) -> Floats:
    """Mean of the encoder's tokens over all views (B, D).

    Raises:
        UnusableModelError: if a value is not finite.
    """
    return _finite(encode_views(model.encoder, batch).mean())


def knows_classes(model: ReportModel) -> bool:
    """Whether the model has heads that learned the classes: the method's own, or the one that its eyes learned by."""
    return isinstance(model, Classifying) or _dense_head(model) is not None


def _dense_head(model: ReportModel) -> DenseHead | None:
    """The head of the stage ``eyes``, if that was trained."""
    head = parts_of(model).get("word_head")
    return head if isinstance(head, DenseHead) and bool(head.learned) else None


@torch.no_grad()
def class_scores(model: ReportModel, batch: Batch) -> Floats:
    """Mean log-odds (B, K) of the heads that learned the classes.

    Raises:
        UnusableModelError: if a value is not finite.
    """
    said = [model.class_logits(batch)] if isinstance(model, Classifying) else []
    head = _dense_head(model)
    if head is not None:
        views = encode_views(model.encoder, batch)
        said.append(head.class_logits(views.tokens, views.view_mask))
    return _finite(torch.stack(said).mean(0))


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
    """The drafting of a run; its folder is read when the first draft is asked for."""

    folder: Path
    model: ReportModel
    calibration: RunCalibration
    _opened: Opened | None = None
    _writers: dict[tuple[ExpectedUtilityConfig, bool], UtilityWriter] = field(default_factory=dict)

    def write(self, batch: Batch, decoding: DecodingConfig) -> Iterator[Written]:
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
        writer, said = self._writers[config, marks], self._opened.testify(batch)
        proposed: Sequence[Sequence[str]] = [()] * len(said)
        if config.written and isinstance(self.model, Proposing):
            proposed = self.model.propose(batch, said, decoding)
        each = zip(said, self._opened.barred(batch), proposed, strict=True)
        for testimony, own, texts in each:
            yield writer.write(testimony, own, texts)

    def classes(self, batch: Batch, decoding: DecodingConfig) -> list[dict[str, Any]]:
        """What the heads say of each study, calibrated; nothing where there are none, or the calibration does not hold.

        The scores are those that were calibrated: a method may note its own heads alone, or under another prompt.
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
    """A drafting folder with the model that it belongs to."""

    model: ReportModel
    store: DraftingStore
    owners: Owners
    studies: EmbeddedStudies | None

    @classmethod
    def of(cls, folder: Path, model: ReportModel) -> Opened:
        """Read the folder.

        Raises:
            InputError: if it is not there, or does not fit the model.
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
        own = _testifying(model) if isinstance(model, Witness) else None
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
        """The rows (B, J) of each study's own and its patient's."""
        own = self.owners.of_queries(batch.study_ids, batch.patient_ids)
        return np.asarray(self.owners.barred(own, slice(0, len(self.owners))).numpy())

    def testify(self, batch: Batch) -> list[Evidence]:
        """What the training studies say of each study."""
        if isinstance(self.model, Witness):
            return self.model.testify(batch)
        assert self.studies is not None
        said = [
            self.studies.testify(row, barred)
            for row, barred in zip(embed(self.model, batch), self.barred(batch), strict=True)
        ]
        if self.store.facts.source == "heads":
            logits = class_scores(self.model, batch)
            said = [replace(one, scores=row) for one, row in zip(said, logits, strict=True)]
        return said
