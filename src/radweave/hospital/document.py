"""Structured reports: the modules that both of ours share (PS3.3 C.17.1 to C.17.3), and items of their trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from pydicom.dataset import Dataset

from radweave.hospital.codes import Code
from radweave.hospital.envelope import coded, envelope, evidence_of, reference
from radweave.hospital.finished import FinishedReport, Signature
from radweave.hospital.identity import Identity
from radweave.hospital.uids import instance_uid, series_uid

Relation = Literal["CONTAINS", "HAS CONCEPT MOD", "HAS OBS CONTEXT", "HAS ACQ CONTEXT"]
SEPARATE: Final = "SEPARATE"


def document(
    report: FinishedReport, sop_class: str, *, kind: str, number: int, predecessor_class: str | None = None
) -> Dataset:
    """A structured report without its tree: unverified and preliminary until it is signed.

    ``predecessor_class`` is the SOP class of the predecessor where that is another one.

    Raises:
        InputError: as ``envelope`` does.
    """
    dataset = envelope(report, sop_class, kind=kind, modality="SR", number=number)
    dataset.ReferencedPerformedProcedureStepSequence = []
    dataset.PerformedProcedureCodeSequence = []
    dataset.CompletionFlag = "COMPLETE" if report.is_final else "PARTIAL"
    dataset.PreliminaryFlag = "FINAL" if report.is_final else "PRELIMINARY"
    dataset.VerificationFlag = "VERIFIED" if report.is_final else "UNVERIFIED"
    if report.signatures:
        dataset.VerifyingObserverSequence = [_verifier(one) for one in reversed(report.signatures)]
    if report.predecessor is not None:
        dataset.PredecessorDocumentsSequence = [_predecessor(report.predecessor, predecessor_class or sop_class, kind)]
    dataset.CurrentRequestedProcedureEvidenceSequence = [evidence_of(report)]
    return dataset


def _predecessor(before: FinishedReport, sop_class: str, kind: str) -> Dataset:
    """The document whose text this one took over (PS3.3 C.17.2.2): viewers may then hide it."""
    series, study = Dataset(), Dataset()
    series.SeriesInstanceUID = series_uid(before, kind)
    series.ReferencedSOPSequence = [reference(sop_class, instance_uid(before, kind))]
    study.StudyInstanceUID = before.patient.study_instance_uid
    study.ReferencedSeriesSequence = [series]
    return study


def _verifier(signature: Signature) -> Dataset:
    item = Dataset()
    item.VerifyingObserverName, item.VerifyingOrganization = signature.name, signature.organization
    item.VerificationDateTime = signature.time.strftime("%Y%m%d%H%M%S%z")
    item.VerifyingObserverIdentificationCodeSequence = []
    return item


def _item(relation: Relation, kind: str, name: Code | None) -> Dataset:
    item = Dataset()
    item.RelationshipType, item.ValueType = relation, kind
    if name is not None:
        item.ConceptNameCodeSequence = [coded(name)]
    return item


def container(name: Code, inside: Sequence[Dataset]) -> Dataset:
    item = _item("CONTAINS", "CONTAINER", name)
    item.ContinuityOfContent = SEPARATE
    item.ContentSequence = list(inside)
    return item


def text(name: Code, value: str, relation: Relation = "CONTAINS") -> Dataset:
    item = _item(relation, "TEXT", name)
    item.TextValue = value
    return item


def code(name: Code, value: Code, relation: Relation) -> Dataset:
    item = _item(relation, "CODE", name)
    item.ConceptCodeSequence = [coded(value)]
    return item


def uid_reference(name: Code, value: str, relation: Relation) -> Dataset:
    item = _item(relation, "UIDREF", name)
    item.UID = value
    return item


def image(source: Identity) -> Dataset:
    """A reference to an image of the study."""
    item = _item("CONTAINS", "IMAGE", None)
    item.ReferencedSOPSequence = [reference(source.sop_class_uid, source.sop_instance_uid)]
    return item
