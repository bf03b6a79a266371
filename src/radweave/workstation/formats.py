"""Report formats by name and by suffix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

from radweave.core.errors import InputError
from radweave.core.extras import refuse_without
from radweave.core.replacing import FileKind
from radweave.core.storage import write_aside
from radweave.core.study import RESEARCH_ONLY
from radweave.workstation.finished import CAUTION, FinishedReport


@dataclass(frozen=True, slots=True)
class Format:
    """A way to write a report.

    Attributes:
        name: as users give it.
        suffix: of its files.
        writer: "module.function" of ``radweave.workstation``, imported on first use, since its libraries are heavy.
        start, mark: first bytes and content of a file of this format, which ``--overwrite`` may replace.
        needs_dicom: True if the format names the patient, and so needs DICOM images.
    """

    name: str
    suffix: str
    writer: str
    start: bytes
    mark: bytes
    needs_dicom: bool

    @property
    def needs_extra(self) -> bool:
        """True if the format needs libraries beyond those of the core."""
        return self.name not in ("sr-basic", "hl7", "text")

    def bytes_of(self, report: FinishedReport) -> bytes:
        """The report as a file of this format.

        Raises:
            InputError: if the report is empty, or the format needs DICOM images and there are none.
        """
        if not report.sections:
            raise InputError("the draft is empty: there is nothing to write", field="--format", got=self.name)
        if self.needs_dicom:
            report.patient  # noqa: B018 - raises without DICOM images
        if self.needs_extra:
            refuse_without("hospital", f"--format {self.name}", field="--format")
        module, function = self.writer.split(".")
        write: Callable[[FinishedReport], bytes] = getattr(import_module(f"radweave.workstation.{module}"), function)
        return write(report)


MAPS: Final = "map-dicom"
BOXES: Final = "box-dicom"
_DICOM = b"\0" * 128 + b"DICM"
_CAUTION = CAUTION.encode()
_LARGEST_BYTES = 1 << 28
_FORMATS: Final = (
    Format("sr-basic", ".dcm", "structured_reports.write_basic_sr", _DICOM, _CAUTION, needs_dicom=True),
    Format("sr-tid1500", ".dcm", "structured_reports.write_tid1500", _DICOM, _CAUTION, needs_dicom=True),
    Format("pdf-dicom", ".dcm", "pdf.write_encapsulated_pdf", _DICOM, _CAUTION, needs_dicom=True),
    Format(MAPS, ".dcm", "map_objects.write_maps", _DICOM, _CAUTION, needs_dicom=True),
    Format(BOXES, ".dcm", "box_objects.write_boxes", _DICOM, _CAUTION, needs_dicom=True),
    Format("pdf", ".pdf", "pdf.write_pdf", b"%PDF-", _CAUTION, needs_dicom=False),
    Format("fhir", ".json", "fhir.write_fhir", b"{", b'"urn:radweave:findings"', needs_dicom=False),
    Format("fhir-r5", ".json", "fhir.write_fhir_r5", b"{", b'"urn:radweave:findings"', needs_dicom=False),
    Format("hl7", ".hl7", "hl7.write_hl7", b"MSH|", b"|RADWEAVE|", needs_dicom=True),
    Format("text", ".txt", "hl7.write_text", b"", RESEARCH_ONLY.encode(), needs_dicom=False),
)
FORMATS: Final[Mapping[str, Format]] = {kind.name: kind for kind in _FORMATS}
MEDIA_TYPES: Final[Mapping[str, str]] = {
    ".dcm": "application/dicom",
    ".pdf": "application/pdf",
    ".json": "application/fhir+json",
    ".hl7": "x-application/hl7-v2+er7; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
}
BY_SUFFIX: Final[Mapping[str, Format]] = {kind.suffix: kind for kind in reversed(_FORMATS) if kind.suffix != ".txt"}
"""The first format of each suffix; ``.txt`` is left to files of many drafts, see ``generate``."""


def format_for(path: Path, named: str | None) -> Format | None:
    """The format of a name, or else of the file's suffix; None for a file of drafts.

    Raises:
        InputError: for an unknown name.
    """
    if named is None:
        return BY_SUFFIX.get(path.suffix.lower())
    if named not in FORMATS:
        raise InputError("no such format", field="--format", got=named, expected=f"one of {', '.join(FORMATS)}")
    return FORMATS[named]


def kind_of(chosen: Format) -> FileKind:
    """The kind of file that ``--overwrite`` may replace with this format."""

    def knows(path: Path) -> bool:
        if path.stat().st_size > _LARGEST_BYTES:
            return False
        data = path.read_bytes()
        return data.startswith(chosen.start) and chosen.mark in data

    return FileKind(f"a report as {chosen.name}", knows)


def write_report(report: FinishedReport, chosen: Format, path: Path) -> None:
    """Write a report, whole or not at all; an old file of that name is replaced.

    Raises:
        InputError: as ``Format.bytes_of`` does, or if the file cannot be written.
    """
    data = chosen.bytes_of(report)
    with write_aside(path) as partial:
        partial.write_bytes(data)
