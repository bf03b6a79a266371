"""DICOM Basic Text SR (PS3.3 A.35.1, template TID 2000): sections as text, which every archive and viewer shows."""

from __future__ import annotations

from typing import Final

from pydicom.dataset import Dataset
from pydicom.uid import BasicTextSRStorage

from radweave.hospital import codes, document
from radweave.hospital.codes import Code
from radweave.hospital.envelope import coded, file_bytes
from radweave.hospital.finished import MAKER, FinishedReport
from radweave.hospital.uids import device_uid
from radweave.hospital.words import addendum_lines, caution_lines, evidence_lines

KIND: Final = "sr-basic"
SERIES_NUMBER: Final = 9901
SHOWN_IMAGES: Final = 8
"""References in the tree; the evidence names all images, of which a scan has hundreds."""
SECTION_CODES: Final[dict[str, tuple[Code, Code]]] = {
    "indication": (codes.INDICATIONS, codes.HISTORY),
    "technique": (codes.PROCEDURES, codes.PROCEDURE),
    "comparison": (codes.PREVIOUS_PROCEDURES, codes.PROCEDURE),
    "findings": (codes.FINDINGS, codes.FINDING),
    "impression": (codes.IMPRESSIONS, codes.IMPRESSION),
}
"""Section -> the codes of its heading and of its text."""


def write_basic_sr(
    report: FinishedReport, *, kind: str = KIND, number: int = SERIES_NUMBER, predecessor_class: str | None = None
) -> bytes:
    """The report as a file; its ``kind``, series ``number`` and predecessor are those of another form on request.

    Raises:
        InputError: if its images do not say whose they are, or of which study.
    """
    dataset = document.document(
        report, BasicTextSRStorage, kind=kind, number=number, predecessor_class=predecessor_class
    )
    dataset.ValueType, dataset.ContinuityOfContent = "CONTAINER", document.SEPARATE
    dataset.ConceptNameCodeSequence = [coded(codes.REPORT)]
    template = Dataset()
    template.MappingResource, template.TemplateIdentifier = "DCMR", "2000"
    dataset.ContentTemplateSequence = [template]
    dataset.ContentSequence = [*_context(report), *_sections(report)]
    return file_bytes(dataset)


def _context(report: FinishedReport) -> list[Dataset]:
    """The language, and that a device is the observer (TID 1001 and 1004)."""
    model = report.model
    facts = (
        (codes.DEVICE_NAME, f"{MAKER} {model.version}"),
        (codes.DEVICE_MAKER, MAKER),
        (codes.DEVICE_MODEL, model.method),
        (codes.DEVICE_SERIAL, model.digest[:16]),
    )
    return [
        document.code(codes.LANGUAGE, codes.ENGLISH, "HAS CONCEPT MOD"),
        document.code(codes.OBSERVER_TYPE, codes.DEVICE, "HAS OBS CONTEXT"),
        document.uid_reference(codes.DEVICE_UID, device_uid(model), "HAS OBS CONTEXT"),
        *(document.text(name, value, "HAS OBS CONTEXT") for name, value in facts),
    ]


def _sections(report: FinishedReport) -> list[Dataset]:
    texts = [
        document.container(
            SECTION_CODES[section.kind][0], [document.text(SECTION_CODES[section.kind][1], section.text)]
        )
        for section in report.sections
    ]
    caution = [document.text(codes.COMMENT, line) for line in caution_lines(report)]
    notes = [document.text(codes.COMMENT, line) for line in evidence_lines(report)]
    images = [document.image(source) for source in report.sources[:SHOWN_IMAGES]]
    texts += addenda(report)
    return [*caution, *texts, document.container(codes.SUMMARY, notes), document.container(codes.KEY_IMAGES, images)]


def addenda(report: FinishedReport) -> list[Dataset]:
    """A container of each addendum: who signed it and when, and its text."""
    return [
        document.container(
            codes.ADDENDUM, [document.text(codes.COMMENT, heading), document.text(codes.ADDENDUM_TEXT, text)]
        )
        for heading, text in addendum_lines(report)
    ]
