"""Studies and reports: typed records, sections of a report's text, and their display in notebooks.

Shape letters used everywhere: B batch, V views, C channels, S visual tokens, T text tokens, K classes.
This module does not import torch, so that reading a manifest is fast.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from html import escape
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from radweave.core.evidence import DraftEvidence

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
MOST_VIEWS: Final = 32
"""Images that a study of radiographs may have."""
Modality = Literal["xray", "ct"]
TargetText = Literal["findings", "impression", "findings+impression", "both", "regions"]
"""Target of training: ``findings+impression`` is one text, ``both`` has a heading over each section, ``regions`` is the
text of each region of a scan under the name of the region."""

Notice = Literal["Research software, not a medical device. A draft for a radiologist to check, never a diagnosis."]
"""The type of the notice: files with another one are refused."""
RESEARCH_ONLY: Notice = (
    "Research software, not a medical device. A draft for a radiologist to check, never a diagnosis."
)

LONGEST_TEXT = 1_000_000
"""Characters of a text in a manifest; the longest reports of the public sets have about a hundredth of it."""
_Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
_Name = Annotated[str, Field(max_length=200)]


# Sections. ``join_sections({"findings": "The lungs are clear.", "impression": "Normal."})`` gives
# "FINDINGS: The lungs are clear. IMPRESSION: Normal.", and ``split_sections`` is its inverse.

SECTIONS: Final = ("findings", "impression")
NO_SECTION: Final = ""
"""Name of the text of a report without headings."""

# Headings are in capitals; lower case, as after a tokenizer, counts only at the beginning of a sentence.
_HEADING = re.compile(r"\b(FINDINGS|IMPRESSION)\s*:\s*|(?:\A\s*|(?<=[.!?]\s))(?i:(findings|impression))\s*:\s*")


def join_sections(sections: Mapping[str, str]) -> str:
    """Join the non-empty sections, each under its heading; ``NO_SECTION`` comes first, without a heading."""
    texts = [sections.get(NO_SECTION, "")]
    texts += [f"{name.upper()}: {sections[name]}" for name in SECTIONS if sections.get(name)]
    return " ".join(text for text in texts if text)


def split_sections(text: str) -> dict[str, str]:
    """The sections of a text by its headings; empty without headings.

    Text before the first heading belongs to the findings, and a repeated section is continued.
    """
    texts: dict[str, list[str]] = {}
    for name, piece in _pieces(text):
        if piece:
            texts.setdefault(name, []).append(piece)
    return {name: " ".join(texts[name]) for name in SECTIONS if name in texts}


def without_headings(text: str) -> str:
    """The text without headings, findings first."""
    return " ".join(split_sections(text).values()) or text


def has_both_sections(text: str) -> bool:
    """True for the text of ``join_sections`` with both sections."""
    sections = split_sections(text) if text.startswith("FINDINGS: ") else {}
    return len(sections) == len(SECTIONS) and join_sections(sections) == text


def _pieces(text: str, first: str = NO_SECTION) -> list[tuple[str, str]]:
    """Section and text from one heading to the next, without headings.

    ``first`` is the section of the text before any heading; without it a text without headings has no pieces.
    """
    headings = list(_HEADING.finditer(text))
    if not headings and not first:
        return []
    ends = [*(heading.start() for heading in headings), len(text)]
    pieces = [
        ((heading[1] or heading[2]).lower(), text[heading.end() : end].strip())
        for heading, end in zip(headings, ends[1:], strict=True)
    ]
    return [(first or SECTIONS[0], text[: ends[0]].strip()), *pieces]


def join_sentences(sentences: Iterable[tuple[str, str]]) -> str:
    """One text of (section, sentence) pairs, in their order within each section."""
    texts: dict[str, list[str]] = {}
    for section, text in sentences:
        texts.setdefault(section, []).append(text)
    return join_sections({section: " ".join(sentences) for section, sentences in texts.items()})


def rows_by_section(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows about sentences, split at headings in their ``text``, without headings, with their ``section``."""
    split: list[dict[str, Any]] = []
    last = SECTIONS[0]
    for row in rows:
        pieces = _pieces(str(row.get("text", "")), row.get("section", last))
        split += [{**row, "section": section, "text": text} for section, text in pieces if text]
        last = pieces[-1][0]
    return split


def draft_sections(text: str, target: str) -> dict[str, str]:
    """The sections of a draft by a run that learned ``target``: one section, unless the draft has headings."""
    sections = split_sections(text) if target == "both" else {}
    if sections or not text.strip():
        return sections
    return {"impression" if target == "impression" else "findings": text}


class View(StrEnum):
    """Projection of a radiograph; ``AXIAL`` for a CT volume."""

    PA = "PA"
    AP = "AP"
    FRONTAL = "FRONTAL"
    LATERAL = "LATERAL"
    AXIAL = "AXIAL"
    UNKNOWN = "UNKNOWN"

    @property
    def is_frontal(self) -> bool:
        return self in (View.PA, View.AP, View.FRONTAL)


class LabelState(StrEnum):
    """State of a class in a report; ``BLANK`` if it is not mentioned."""

    BLANK = "blank"
    POSITIVE = "positive"
    NEGATIVE = "negative"
    UNCERTAIN = "uncertain"


class Record(BaseModel):
    """A frozen, schema-checked value. Unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class FindingBox(Record):
    """A finding marked on an image.

    ``box`` is in shares of the image: x0 y0 x1 y1 of a radiograph, x to the right and y down; z0 y0 x0 z1 y1 x1 of a
    volume, z to the head, y to the back, x to the patient's left. ``label`` is the class in the words of the source,
    ``sentence`` the report's words for it.
    """

    label: str = Field(min_length=1, max_length=200)
    box: tuple[float, ...]
    sentence: str | None = Field(default=None, max_length=LONGEST_TEXT)

    @field_validator("box")
    @classmethod
    def _is_box(cls, box: tuple[float, ...]) -> tuple[float, ...]:
        shown = " ".join(f"{value:.6g}" for value in box[:8])
        if len(box) not in (4, 6):
            raise ValueError(f"a box has 4 numbers, of a volume 6: {len(box)} ({shown})")
        half = len(box) // 2
        if not all(0 <= value <= 1 for value in box):
            raise ValueError(f"a box is in shares of the image, 0 to 1: {shown}")
        if any(low > high for low, high in zip(box[:half], box[half:], strict=True)):
            raise ValueError(f"a box goes from its low to its high corner: {shown}")
        if any(low == high for low, high in zip(box[:half], box[half:], strict=True)):
            raise ValueError(f"a box is not empty: {shown}")
        return box


class ImageRef(Record):
    """One image file of a study, inside a dataset folder.

    ``path`` is relative to the dataset folder, with forward slashes, and never leaves it. ``original_size_wh``
    (width, height in pixels) is set if the stored file was stretched; readers resize it back to that ratio.
    ``spacing_mm`` is (row, column) for a radiograph and (z, y, x) for a volume. ``boxes`` are the findings that are
    marked on it: a view that is left out takes its own along.
    """

    path: str
    modality: Modality = "xray"
    view: View = View.UNKNOWN
    original_size_wh: tuple[int, int] | None = None
    spacing_mm: tuple[float, ...] | None = None
    sha256: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")
    boxes: tuple[FindingBox, ...] = ()

    @model_validator(mode="after")
    def _boxes_fit(self) -> ImageRef:
        numbers = 4 if self.modality == "xray" else 6
        for each in self.boxes:
            if len(each.box) != numbers:
                raise ValueError(f"a box of this image has {numbers} numbers: {len(each.box)} of {each.label!r}")
        return self

    @field_validator("path")
    @classmethod
    def _stays_inside(cls, path: str) -> str:
        parts = path.split("/")
        if not path or path.startswith("/") or "\\" in path or "\0" in path or ".." in parts or ":" in parts[0]:
            raise ValueError("path must be relative and stay inside the dataset folder")
        if any("\ud800" <= c <= "\udfff" for c in path):  # half of a surrogate pair: no file has such a name
            raise ValueError("path must be valid Unicode")
        return path


class Study(Record):
    """One examination: images, report and metadata.

    ``report`` is the training target, made from the sections by the dataset's named cleaning; the sections are kept
    verbatim. ``labels`` maps a label set ("chexpert14", "ct18", ...) to class -> state. ``prior`` is the study_id of
    the patient's previous study. ``regions`` holds region reports of CT sets. ``truth`` holds the structured findings
    of phantom studies. ``origin`` names the data set of a study in a mixture.
    """

    study_id: str = Field(min_length=1, max_length=200)
    patient_id: str = Field(min_length=1, max_length=200)
    split: Split | None = None
    images: tuple[ImageRef, ...] = ()
    report: _Text | None = None
    findings: _Text | None = None
    impression: _Text | None = None
    indication: _Text | None = None
    comparison: _Text | None = None
    technique: _Text | None = None
    prior: _Name | None = None
    study_time: _Name | None = None
    labels: dict[_Name, dict[_Name, LabelState]] = Field(default_factory=dict)
    regions: dict[_Name, _Text] = Field(default_factory=dict)
    truth: tuple[dict[str, Any], ...] = ()
    origin: _Name | None = None

    @field_validator("study_id", "patient_id")
    @classmethod
    def _plain_id(cls, value: str) -> str:
        if any(c in value for c in "/\\\0\n\r") or value in (".", ".."):
            raise ValueError("an id must not hold path separators or control characters")
        return value

    @model_validator(mode="after")
    def _not_its_own_prior(self) -> Study:
        if self.prior is not None and self.prior == self.study_id:
            raise ValueError("a study cannot be its own prior")
        return self


_SHOWN_CLASSES = 5


@dataclass(frozen=True, slots=True)
class Report:
    """A generated report with its evidence. ``target`` is the training target of its run."""

    text: str
    study_id: str
    evidence: DraftEvidence = field(default_factory=DraftEvidence)
    warnings: tuple[str, ...] = ()
    notice: str = RESEARCH_ONLY
    target: str = "findings"

    @property
    def sections(self) -> dict[str, str]:
        """The draft by section ("findings", "impression"); empty for an empty draft."""
        return draft_sections(self.text, self.target)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        """Text, warnings, and the names of the evidence, whose values fill pages."""
        evidence = ", ".join(self.evidence)
        return f"Report({self.study_id!r}, {self.text!r}, warnings={list(self.warnings)}, evidence=[{evidence}])"

    def _repr_html_(self) -> str:
        """HTML for notebooks: text, class probabilities and warnings."""
        classes = self.evidence.get("class_probabilities")
        ranked = sorted(classes.items(), key=lambda item: -(item[1] or 0.0)) if isinstance(classes, Mapping) else []
        rows = [(str(name), "-" if value is None else f"{value:.2f}") for name, value in ranked[:_SHOWN_CLASSES]]
        probabilities = [html_table(("finding", "probability"), rows)] if rows else []
        return html_box(f"Draft: {self.study_id}", html_paragraph(self.text), *probabilities, warnings=self.warnings)


# HTML for notebooks, in which every text is escaped.


def html_box(title: str, *parts: str, warnings: Sequence[str] = ()) -> str:
    """A titled box of HTML parts, warnings and the notice."""
    marked = "".join(f"<li>{escape(text)}</li>" for text in warnings)
    return "".join(
        (
            '<div style="border-left:3px solid #0072B2;padding-left:.8em;max-width:60em">',
            f"<p><b>{escape(title)}</b></p>",
            *parts,
            f"<p>Mind:</p><ul>{marked}</ul>" if marked else "",
            f'<p style="font-size:smaller;opacity:.75">{escape(RESEARCH_ONLY)}</p></div>',
        )
    )


def html_paragraph(text: str) -> str:
    """A paragraph that keeps the line breaks of a text."""
    return f'<p style="white-space:pre-wrap">{escape(text)}</p>'


def html_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; its first column is text, the others are numbers."""

    def line(cells: Sequence[str], tag: str) -> str:
        sides = ("left", *["right"] * len(cells))
        return "".join(
            f'<{tag} style="text-align:{side}">{escape(cell)}</{tag}>' for cell, side in zip(cells, sides, strict=False)
        )

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f"<table><thead><tr>{line(columns, 'th')}</tr></thead><tbody>{body}</tbody></table>"
