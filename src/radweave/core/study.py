"""The typed core: what a study is, what a report is, and what vision encoders are.

Shape letters used everywhere: B batch, V views, C channels, S visual tokens, T text tokens, K classes.
This module imports no torch at run time, so that reading a manifest stays light.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from html import escape
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

# Reports of two parts, findings and impression, each under its heading: put together, and taken apart again.
#
# whole({"findings": "The lungs are clear.", "impression": "Normal."})
# # "FINDINGS: The lungs are clear. IMPRESSION: Normal."


SECTIONS: Final = ("findings", "impression")
NO_SECTION: Final = ""
"""The part of a report that has no headings."""

# In capitals anywhere; a tokenizer may make them small, and then only where a sentence begins.
_HEADING = re.compile(r"\b(FINDINGS|IMPRESSION)\s*:\s*|(?:\A\s*|(?<=[.!?]\s))(?i:(findings|impression))\s*:\s*")


def join_sections(parts: Mapping[str, str]) -> str:
    """One text of those parts that say something, findings first, each under its heading; ``NO_PART`` has none."""
    said = [parts.get(NO_SECTION, ""), *(f"{name.upper()}: {parts[name]}" for name in SECTIONS if parts.get(name))]
    return " ".join(text for text in said if text)


def split_sections(text: str) -> dict[str, str]:
    """The parts of a text by its headings; none of a text without any.

    No word but headings is lost: what stands before the first is findings, and a part that comes again goes on.
    """
    said: dict[str, list[str]] = {}
    for name, piece in _pieces(text):
        if piece:
            said.setdefault(name, []).append(piece)
    return {name: " ".join(said[name]) for name in SECTIONS if name in said}


def without_headings(text: str) -> str:
    """The text without headings, findings first; one without any as it is."""
    return " ".join(split_sections(text).values()) or text


def has_both_sections(text: str) -> bool:
    """Whether a text is as ``whole`` writes both parts."""
    parts = split_sections(text) if text.startswith("FINDINGS: ") else {}
    return len(parts) == len(SECTIONS) and join_sections(parts) == text


def _pieces(text: str, first: str = NO_SECTION) -> list[tuple[str, str]]:
    """Part and text from one heading to the next, without headings; nothing where there is none and no ``first`` part.

    ``first`` is the part that what stands before any heading goes on with.
    """
    headings = list(_HEADING.finditer(text))
    if not headings and not first:
        return []
    ends = [*(heading.start() for heading in headings), len(text)]
    named = [
        ((heading[1] or heading[2]).lower(), text[heading.end() : end].strip())
        for heading, end in zip(headings, ends[1:], strict=True)
    ]
    return [(first or SECTIONS[0], text[: ends[0]].strip()), *named]


def join_sentences(sentences: Iterable[tuple[str, str]]) -> str:
    """One text of sentences, each with its part, in the order in which they stand within it."""
    said: dict[str, list[str]] = {}
    for part, text in sentences:
        said.setdefault(part, []).append(text)
    return join_sections({part: " ".join(texts) for part, texts in said.items()})


def rows_by_section(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows about sentences of a report of two parts, by their ``text``: without headings, with their ``section``."""
    found: list[dict[str, Any]] = []
    last = SECTIONS[0]
    for row in rows:
        said = _pieces(str(row.get("text", "")), row.get("section", last))
        found += [{**row, "section": part, "text": text} for part, text in said if text]
        last = said[-1][0]
    return found


def draft_sections(text: str, target: str) -> dict[str, str]:
    """What a draft says by section, of a run that learned ``target``: one section, unless the draft has headings."""
    parts = split_sections(text) if target == "both" else {}
    if parts or not text.strip():
        return parts
    return {"impression" if target == "impression" else "findings": text}


Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
Modality = Literal["xray", "ct"]
TargetText = Literal["findings", "impression", "findings+impression", "both"]
"""What a report to learn is made of: ``findings+impression`` is one text, ``both`` has a heading over each."""

Notice = Literal["Research software, not a medical device. A draft for a radiologist to check, never a diagnosis."]
"""The one notice: nothing that is read may bear another."""
RESEARCH_ONLY: Notice = (
    "Research software, not a medical device. A draft for a radiologist to check, never a diagnosis."
)


LONGEST_TEXT = 1_000_000
"""Characters of a text in a manifest; the longest reports of the public sets have about a hundredth of it."""
_Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
_Name = Annotated[str, Field(max_length=200)]


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
    """What a report says of a class. ``BLANK``: it is not mentioned."""

    BLANK = "blank"
    POSITIVE = "positive"
    NEGATIVE = "negative"
    UNCERTAIN = "uncertain"


class Record(BaseModel):
    """A frozen, schema-checked value. Unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ImageRef(Record):
    """One image file of a study, inside a dataset folder.

    ``path`` is relative to the dataset folder, with forward slashes, and never leaves it. ``original_size_wh``
    (width, height in pixels) is given when the stored file was stretched: readers resize back to that ratio.
    ``spacing_mm`` is (row, column) for a radiograph and (z, y, x) for a volume.
    """

    path: str
    modality: Modality = "xray"
    view: View = View.UNKNOWN
    original_size_wh: tuple[int, int] | None = None
    spacing_mm: tuple[float, ...] | None = None
    sha256: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")

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
    """One examination: its images, its report, and what is known about it.

    ``report`` is the training target, made from the sections by the dataset's named cleaning; the sections are kept
    verbatim. ``labels`` maps a label set ("chexpert14", "ct18", ...) to class -> state. ``prior`` is the study_id of
    the patient's previous study. ``regions`` holds region reports of CT sets. ``truth`` holds the structured findings
    of phantom studies. ``origin`` names the data set that a study of a mixture is of.
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
    """A generated report with its evidence, as users get it. ``target`` is what its run learned to write."""

    text: str
    study_id: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    notice: str = RESEARCH_ONLY
    target: str = "findings"

    @property
    def sections(self) -> dict[str, str]:
        """What it says by section: "findings", "impression" or both; none of an empty draft."""
        return draft_sections(self.text, self.target)

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        """What a notebook shows: the text, the class probabilities where there are some, and the warnings."""
        found = self.evidence.get("class_probabilities")
        ranked = sorted(found.items(), key=lambda item: -(item[1] or 0.0)) if isinstance(found, Mapping) else []
        rows = [(str(name), "-" if value is None else f"{value:.2f}") for name, value in ranked[:_SHOWN_CLASSES]]
        probabilities = [html_table(("finding", "probability"), rows)] if rows else []
        return html_box(f"Draft: {self.study_id}", html_paragraph(self.text), *probabilities, warnings=self.warnings)


# What a notebook shows of our objects: plain HTML in which every text is escaped, and the notice below.


_SMALL = 'style="font-size:smaller;opacity:.75"'


def html_box(title: str, *parts: str, warnings: Sequence[str] = ()) -> str:
    """A titled box with parts that are HTML already, with warnings and the notice that ends it."""
    marked = "".join(f"<li>{escape(text)}</li>" for text in warnings)
    return "".join(
        (
            '<div style="border-left:3px solid #0072B2;padding-left:.8em;max-width:60em">',
            f"<p><b>{escape(title)}</b></p>",
            *parts,
            f"<p>Mind:</p><ul>{marked}</ul>" if marked else "",
            f"<p {_SMALL}>{escape(RESEARCH_ONLY)}</p></div>",
        )
    )


def html_paragraph(text: str) -> str:
    """A paragraph that keeps the line breaks of a text."""
    return f'<p style="white-space:pre-wrap">{escape(text)}</p>'


def html_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; its first column is text, the others are numbers."""
    head = "".join(f'<th style="text-align:{_side(place)}">{escape(name)}</th>' for place, name in enumerate(columns))
    lines = (
        "".join(f'<td style="text-align:{_side(place)}">{escape(cell)}</td>' for place, cell in enumerate(row))
        for row in rows
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _side(place: int) -> str:
    return "left" if place == 0 else "right"
