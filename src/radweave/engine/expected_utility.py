"""Drafting by expected utility, from the calibration and candidates of a run folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from radweave.core.batch import Batch, VisionEncoder
from radweave.core.errors import InputError, UnusableModelError
from radweave.core.evidence import DraftEvidence, OwnReports
from radweave.drafting.calibration import RunCalibration, Source
from radweave.drafting.prior import only_of_one_patient, reported_classes
from radweave.drafting.smoothers import EmbeddedStudies, Evidence, Floats, PriorEvidence
from radweave.drafting.store import BANK, DraftingStore, load_drafting
from radweave.drafting.writer import UtilityDraft, UtilityWriter
from radweave.labels import NO_FINDING, get_labeler
from radweave.methods.model import Classifying, EvidenceSource, Proposing, ReportModel, named_parts, own_reports
from radweave.nn.connector import encode_views
from radweave.nn.decoding import DecodingConfig, ExpectedUtilityConfig
from radweave.nn.heads import DenseHead
from radweave.nn.memory.bank import BankLayout, Column, Owners, load_bank

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


def barred_rows(owners: Owners, batch: Batch) -> NDArray[np.bool_]:
    """True (B, J) for rows of each study itself and of its patient."""
    own = owners.of_queries(batch.study_ids, batch.patient_ids)
    return np.asarray(owners.barred(own, slice(0, len(owners))).numpy())


def training_reports_of(run: Path) -> list[str]:
    """The training reports that a run folder keeps; none of an export without them."""
    place = run / FOLDER / BANK
    return [str(row["text"]) for row in load_bank(place).rows] if place.is_dir() else []


def lacking(folder: Path, calibration: RunCalibration) -> str | None:
    """Reason why a run drafts by expected utility on request only; None if it is calibrated and has training reports.

    ``folder`` is that of its drafting.
    """
    if not (folder / BANK).is_dir():
        return "the run has no training reports to draft from"
    known = (name for name in calibration.classes if name != NO_FINDING)
    if not calibration.holds or not any(map(calibration.is_calibrated, known)):
        studies = f"{calibration.studies} studies of split {calibration.split}"
        return f"the run is not calibrated: in {studies} no finding is frequent enough"
    return None


@dataclass(slots=True)
class Drafting:
    """The drafting of a run; its folder is read with the first draft.

    ``reads_priors``: the model itself reads the prior of a study, else it gets none.
    """

    folder: Path
    model: ReportModel
    calibration: RunCalibration
    decode: Callable[[list[int]], str]
    reads_priors: bool = False
    _opened: Opened | None = None
    _writers: dict[tuple[ExpectedUtilityConfig, bool], UtilityWriter] = field(default_factory=dict)

    def write(self, batch: Batch, decoding: DecodingConfig) -> Iterator[UtilityDraft]:
        """A draft for each study of a batch.

        Raises:
            InputError: if the run has nothing to draft with, or its files do not fit the model.
        """
        if self._opened is None:
            self._opened = Opened.of(self.folder, self.model)
            facts = self._opened.store.facts
            if facts.source != self.calibration.source or facts.classes != tuple(self.calibration.classes):
                raise InputError("not what the run's calibration was made for", file=self.folder, field="source")
        config, marks = decoding.expected_utility, decoding.deidentification_marks == "keep"
        if (config, marks) not in self._writers:
            self._writers[config, marks] = UtilityWriter(self._opened.store, self.calibration, config, marks=marks)
        read = batch if self.reads_priors else replace(batch, priors=None, prior_of=())
        writer, evidence = self._writers[config, marks], self._opened.evidence_for(read)
        own = self._own(read, evidence, decoding)
        if decoding.asks_prior and batch.priors is not None:
            evidence = self._opened.add_priors(evidence, batch, batch.priors, config.prior)
        if batch.places is not None:
            evidence = [replace(one, places=places) for one, places in zip(evidence, batch.places, strict=True)]
        for row, barred, texts in zip(evidence, self._opened.barred(batch), own, strict=True):
            draft = writer.write(row, barred, texts)
            yield replace(draft, evidence={**texts.maps, **draft.evidence})

    def _own(self, batch: Batch, evidence: Sequence[Evidence], decoding: DecodingConfig) -> list[OwnReports]:
        """Texts of the method itself; none of a run that was not calibrated with them, whose drafts stay as they were.

        A witness proposes reports, which are no evidence of it.
        """
        assert self._opened is not None
        config, model = decoding.expected_utility, self.model
        enabled = config.written if isinstance(model, Proposing) else self._opened.store.facts.own_wording is not None
        if not (enabled and config.own):
            return [OwnReports()] * len(evidence)
        return own_reports(model, batch, evidence, decoding, self.decode)

    def classes(self, batch: Batch, decoding: DecodingConfig) -> list[DraftEvidence]:
        """Calibrated scores of the heads for each study; none without heads, or with an invalid calibration.

        These are the scores that were calibrated: a method's own evidence may be of fewer heads or another prompt.
        """
        if self.calibration.source != "heads" or not self.calibration.holds:
            return []
        config = decoding.expected_utility
        scores = class_scores(self.model, batch)
        return [self.calibration.evidence(row, config.thresholds, config.macro) for row in scores]


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
        return barred_rows(self.owners, batch)

    def add_priors(self, evidence: Sequence[Evidence], batch: Batch, priors: Batch, read: str) -> list[Evidence]:
        """The evidence for each study of a batch with that of its prior, where it has one.

        Raises:
            InputError: if a prior is of another patient.
        """
        only_of_one_patient([batch.patient_ids[row] for row in batch.prior_of], priors.patient_ids)
        labeler = get_labeler(self.store.facts.label_set)
        if read != "report" and self.store.prior is not None:
            scores = [one.scores for one in self.evidence_for(priors)]
        else:
            scores = [np.zeros(len(labeler.classes))] * len(priors)
        reports = priors.reports or [""] * len(priors)
        reported = reported_classes(reports, labeler)
        made = list(evidence)
        for number, row in enumerate(batch.prior_of):
            made[row] = replace(made[row], prior=PriorEvidence(scores[number], reported[number], reports[number]))
        return made

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
