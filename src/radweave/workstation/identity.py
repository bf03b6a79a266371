"""Patient and study of the images of a report, from their DICOM headers. They are never printed, logged or quoted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field, ValidationError

from radweave.core.errors import InputError
from radweave.core.study import Record
from radweave.io.images import sniff
from radweave.io.sandbox import lasting_child
from radweave.io.volumes import series_files

PARSERS = "radweave.workstation.identity_parse"
READ_TIMEOUT_S = 30.0
_ONE_PATIENT = ("patient_id", "patient_name", "issuer_of_patient_id", "study_instance_uid")


class Display(Record):
    """Grey values of an image, and the place of a slice (PS3.3 C.7.6.2.1.1), as its header states them.

    ``rescale`` is (slope, intercept), ``window`` (center, width) of ``function``, ``orientation`` the directions of
    rows and columns, ``spacing_mm`` that between rows and columns, ``pixel_ratio`` the height of a pixel by its width.
    ``has_table`` is True for a modality LUT.
    """

    is_localizer: bool = False
    is_inverted: bool = False
    has_table: bool = False
    rescale: tuple[float, float] | None = None
    window: tuple[float, float] | None = None
    function: str = "LINEAR"
    position_lps: tuple[float, float, float] | None = None
    orientation: tuple[float, float, float, float, float, float] | None = None
    spacing_mm: tuple[float, float] | None = None
    pixel_ratio: float = 1.0


class Identity(Record):
    """The patient, study and instance of one DICOM file; "" for unstated values, which ``repr`` hides.

    Fields are named after PS3.6. Names are in DICOM's form: Family^Given^Middle^Prefix^Suffix, up to three groups.
    """

    patient_name: str = Field(repr=False)
    patient_id: str = Field(repr=False)
    issuer_of_patient_id: str = Field(repr=False)
    patient_birth_date: str = Field(repr=False)
    patient_sex: str = Field(repr=False)
    patient_age: str = Field(repr=False)
    patient_identity_removed: str = Field(repr=False)
    deidentification_method: str = Field(repr=False)
    study_instance_uid: str = Field(repr=False)
    study_id: str = Field(repr=False)
    study_date: str = Field(repr=False)
    study_time: str = Field(repr=False)
    study_description: str = Field(repr=False)
    accession_number: str = Field(repr=False)
    referring_physician_name: str = Field(repr=False)
    series_instance_uid: str = Field(repr=False)
    modality: str = Field(repr=False)
    body_part_examined: str = Field(repr=False)
    sop_class_uid: str = Field(repr=False)
    sop_instance_uid: str = Field(repr=False)
    frame_of_reference_uid: str = Field(default="", repr=False)
    requested_procedure_priority: str = Field(default="", repr=False)
    rows: int | None
    columns: int | None
    display: Display = Field(default=Display(), repr=False)


def _keyword(field: str) -> str:
    words = (word.upper() if word in ("id", "uid", "sop") else word.capitalize() for word in field.split("_"))
    return "".join(words)


KEYWORDS = {field: _keyword(field) for field in Identity.model_fields}
"""Field of ``Identity`` -> keyword of PS3.6."""


def read_identities(files: Sequence[Path]) -> tuple[tuple[Identity, ...], tuple[str, ...]]:
    """Identities of the DICOM files of one study, and warnings; a folder is a series, other files are skipped.

    Raises:
        InputError: for an unusable header, or files of several patients or studies.
    """
    dicom = [file for path in files for file in _dicom_files(path)]
    if not dicom:
        return (), ()
    identities: list[Identity] = []
    warnings: dict[str, None] = {}
    for file in dicom:
        identity, notes = _read(file)
        identities.append(identity)
        warnings |= dict.fromkeys(notes)
    for field in _ONE_PATIENT:
        values = {getattr(identity, field) for identity in identities}
        if len(values) > 1:
            raise InputError(
                "the images belong to different patients or studies; ask for one report per study",
                file=dicom[0].parent,
                field=KEYWORDS[field],
                got=f"{len(values)} different values",
                expected="one",
            )
    return tuple(identities), tuple(warnings)


def _dicom_files(path: Path) -> list[Path]:
    if path.is_dir():
        return series_files(path)
    return [path] if sniff(path) == "dicom" else []


def by_file(files: Sequence[Path], identities: Sequence[Identity]) -> list[tuple[int, ...]]:
    """Indices of the identities of each file, in the order of ``read_identities``; () for one that is no DICOM."""
    rest = iter(range(len(identities)))
    return [tuple(next(rest) for _ in _dicom_files(path)) for path in files]


def _read(file: Path) -> tuple[Identity, list[str]]:
    fields, _ = lasting_child(PARSERS).call("identity", {"path": str(file.absolute())}, timeout_s=READ_TIMEOUT_S)
    warnings = [str(text) for text in fields.pop("warnings", ())]
    try:
        return Identity(**{field: fields.get(keyword) for field, keyword in KEYWORDS.items()}), warnings
    except ValidationError:
        raise InputError("the reader gave no sensible answer", file=file) from None
