"""Interface of importers: the raw studies of a source, before target texts and splits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, ValidationError, field_validator

from radweave.core.errors import InputError
from radweave.core.study import FindingBox, LabelState, Modality, Record, Split, TargetText, View
from radweave.data.targets import Sections, cleaner

SECTIONS: Final = tuple(section.name for section in fields(Sections))
Keep = Literal["complete", "text-only", "image-only", "all"]


class ImportOptions(Record):
    """Options of an import, stored in ``dataset.json`` with folders as names only.

    target: the sections of the target text.
    cleaning: steps applied to the target text, joined by "+"; see ``radweave.data.targets``.
    split: ``source`` (the data set's own split; ``r2gen`` and ``official`` are synonyms), ``test`` or
        ``train`` (every study), ``none``, a ratio such as ``7:1:2`` (by patient, from ``seed``), or ``valid-as-test``:
        the source's validation part becomes test, and 5 % of its training patients, by ``seed``, validation. CheXpert
        Plus also has the splits of papers by name (``mambaxray``, ``dast``), whose lists are in ``annotation``.
    keep: ``complete`` studies (an image and a target text), or also those without an image (``text-only``), without
        a target text (``image-only``), or ``all``.
    images: folder of the image files, if outside the source.
    annotation: R2Gen's annotation file, to take its split for an Open-i or Kaggle source; or the lists of a paper's
        split of CheXpert Plus; or texts by region for CTRG-Chest.
    views: view positions to take; empty takes all.
    separator: between several images, or views, in one cell of a table.
    labeler: the label file that becomes the set ``chexpert14``, if a source has several.
    link: hard links instead of copies of the images, where the file system can.
    verify: decode every image and leave out unreadable ones; the view of a DICOM header is used if the source gives
        none. By default only a plain folder is verified, since decoding takes longer than copying.
    extra_train: studies outside the lists of the source's split join its training part. One of a patient of
        validation or test, or with an image file of theirs, is left out.
    labels: ``given`` takes over the label states that the source has; with ``read`` studies come without, so that the
        rule-based labeler reads them from the target text.
    scrub: remove names, ids, dates and numbers from the texts by ``radweave.data.deidentify.texts``.
    scrub_names: a file with further names to remove, one a line.
    """

    target: TargetText = "findings"
    cleaning: str = "none"
    split: str = "source"
    seed: int = 0
    keep: Keep = "complete"
    images: Path | None = None
    annotation: Path | None = None
    views: tuple[View, ...] = ()
    separator: str = Field(default="|", min_length=1)
    labeler: Literal["chexpert", "chexbert", "negbio"] = "chexpert"
    link: bool = False
    verify: bool | None = None
    extra_train: bool = False
    labels: Literal["given", "read"] = "given"
    scrub: bool = False
    scrub_names: Path | None = None

    @field_validator("cleaning")
    @classmethod
    def _known_cleaning(cls, name: str) -> str:
        cleaner(name)
        return name

    @property
    def keeps_without_image(self) -> bool:
        return self.keep in ("text-only", "all")

    @property
    def keeps_without_text(self) -> bool:
        return self.keep in ("image-only", "all")


@dataclass(frozen=True, slots=True)
class RawImage:
    """An image of a source: ``file`` (a file, or the folder of a DICOM series) is copied to ``inside``, unchanged."""

    file: Path
    inside: str
    view: View = View.UNKNOWN
    modality: Modality = "xray"
    original_size_wh: tuple[int, int] | None = None
    spacing_mm: tuple[float, ...] | None = None
    boxes: tuple[FindingBox, ...] = ()


@dataclass(frozen=True, slots=True)
class RawStudy:
    """A study of a source, sections verbatim; ``report`` is set for a source without sections."""

    study_id: str
    patient_id: str
    split: Split | None = None
    images: tuple[RawImage, ...] = ()
    report: str | None = None
    sections: Sections = field(default_factory=Sections)
    study_time: str | None = None
    labels: dict[str, dict[str, LabelState]] = field(default_factory=dict)
    regions: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Problems:
    """Excluded studies, images and boxes: counts by reason, and rows with the ids."""

    studies: Counter[str] = field(default_factory=Counter)
    images: Counter[str] = field(default_factory=Counter)
    boxes: Counter[str] = field(default_factory=Counter)
    rows: list[dict[str, str]] = field(default_factory=list)

    def leave_out_study(self, study_id: str, reason: str, *, got: str | None = None) -> None:
        """Count an excluded study; ``got`` is the value of its row that the reason is about."""
        self.studies[reason] += 1
        value = {} if got is None else {"got": _printable(got)}
        self.rows.append({"study_id": _printable(study_id), "reason": reason, **value})

    def leave_out_image(self, study_id: str, image: str, reason: str) -> None:
        self.images[reason] += 1
        self.rows.append({"study_id": _printable(study_id), "image": _printable(image), "reason": reason})

    def leave_out_box(self, study_id: str, reason: str) -> None:
        self.boxes[reason] += 1
        self.rows.append({"study_id": _printable(study_id), "box": reason})

    def checked_box(self, study_id: str, label: str, box: Sequence[Any], sentence: str | None) -> Iterator[FindingBox]:
        """The box of a source, if it is one; else it is counted."""
        try:
            yield FindingBox.model_validate({"label": label, "box": tuple(box), "sentence": sentence or None})
        except TypeError:
            self.leave_out_box(study_id, "a box is a list of numbers")
        except ValidationError as error:
            reason = error.errors(include_url=False, include_input=False)[0]["msg"]
            self.leave_out_box(study_id, reason.removeprefix("Value error, ").partition(":")[0])


def box_of_pixels(corners: Sequence[float], size: tuple[float, float]) -> tuple[float, ...]:
    """Corners x0, y0, x1, y1 in pixels as shares of an image of ``size`` (width, height)."""
    # A last pixel that is counted from one is not outside.
    ends = (min(end, side) if end <= side + 1 else end for end, side in zip(corners[2:], size, strict=True))
    return tuple(value / side for value, side in zip((*corners[:2], *ends), (*size, *size), strict=True))


def _printable(text: str) -> str:
    """Text that can be written to a file: half of a surrogate pair becomes its escape."""
    return text.encode("utf-8", "backslashreplace").decode()


@dataclass(slots=True)
class Source:
    """An opened source. ``studies`` may be called more than once and yields in the same order each time.

    root: folder of all images, links followed.
    files: sources of the texts, splits and labels, hashed into the card.
    is_known_set: a published set, whose images are decoded during the import only on request.
    needs_split: studies outside the published split are left out unless ``keep`` is ``all``.
    tables: files to write beside the manifest, as rows of JSON with ``study_id``; only those of included studies.
    named_splits: words of ``ImportOptions.split`` that this source has beside the common ones; its studies carry them.
    has_priors: the studies of a patient come one after the other in order of time, and ``study_time`` is set.
    """

    name: str
    studies: Callable[[Problems], Iterator[RawStudy]]
    root: Path
    files: tuple[Path, ...]
    split_provenance: str
    modality: Modality = "xray"
    licence: str | None = None
    notes: tuple[str, ...] = ()
    needs_split: bool = False
    is_known_set: bool = True
    has_priors: bool = False
    named_splits: tuple[str, ...] = ()
    tables: Mapping[str, Callable[[], Iterable[dict[str, Any]]]] = field(default_factory=dict)


_VIEWS = {
    "PA": View.PA,
    "AP": View.AP,
    "AP AXIAL": View.AP,
    "PA LLD": View.PA,
    "PA RLD": View.PA,
    "AP LLD": View.AP,
    "AP RLD": View.AP,
    "FRONTAL": View.FRONTAL,
    "LATERAL": View.LATERAL,
    "LL": View.LATERAL,
    "RL": View.LATERAL,
    "LARGE LATERAL": View.LATERAL,
    "XTABLE LATERAL": View.LATERAL,
    "SWIMMERS": View.LATERAL,
    "L": View.LATERAL,
    "AXIAL": View.AXIAL,
}


def view_of(text: str | None) -> View:
    """View from the words of data sets (DICOM View Position, Frontal / Lateral); else UNKNOWN."""
    return _VIEWS.get((text or "").strip().upper(), View.UNKNOWN)


_SPLITS: dict[str, Split] = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validate": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}


def split_of(text: str | None) -> Split | None:
    """Split from the words of data sets; None for others."""
    return _SPLITS.get((text or "").strip().lower())


OTHER_SPLIT = "a training study of a patient of another split"


def splits_by_patient(rows: Iterable[tuple[str, Split | None]]) -> dict[str, set[Split]]:
    """Patient -> the splits that the patient's studies are in: with two, none of the studies may be trained on."""
    splits: dict[str, set[Split]] = {}
    for patient, split in rows:
        own = splits.setdefault(patient, set())
        if split is not None:
            own.add(split)
    return splits


_STATES = {1.0: LabelState.POSITIVE, 0.0: LabelState.NEGATIVE, -1.0: LabelState.UNCERTAIN}


def states_of(
    row: Mapping[str, Any], skip: frozenset[str], file: Path | str, line: int | None
) -> dict[str, LabelState]:
    """Label states of a row: 1 positive, 0 negative, -1 uncertain, empty not mentioned; columns in ``skip`` left out.

    Raises:
        InputError: for any other value, naming the class.
    """
    states: dict[str, LabelState] = {}
    for name, cell in row.items():
        if name in skip:
            continue
        text = "" if cell is None else str(cell).strip()
        if text in ("", "nan"):
            states[name] = LabelState.BLANK
            continue
        try:
            states[name] = _STATES[float(text)]
        except (KeyError, ValueError):
            raise InputError(
                "not a label", file=file, line=line, field=name, got=text[:20], expected="1, 0, -1 or empty"
            ) from None
    return states


def stated_or_none(value: str | None) -> str | None:
    """``text_or_none``, with None also for the word that ReXrank's files have for a missing section."""
    return None if value is not None and value.strip().lower() in ("none", "none.") else text_or_none(value)


def text_or_none(value: str | None) -> str | None:
    """The text, or None for an empty, blank or "nan" cell."""
    if value is None or not value.strip() or value.strip().lower() in ("nan", "<na>", "null"):
        return None
    return value
