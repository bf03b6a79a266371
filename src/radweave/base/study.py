"""The typed core: what a study is, what a report is, and what vision encoders are.

Shape letters used everywhere: B batch, V views, C channels, S visual tokens, T text tokens, K classes.
This module imports no torch at run time, so that reading a manifest stays light.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from radweave.base.parts import sections_of

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
        return sections_of(self.text, self.target)

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        """What a notebook shows: the text, the class probabilities where there are some, and the warnings."""
        from radweave.base.notebook import paragraph, shown, table

        found = self.evidence.get("class_probabilities")
        ranked = sorted(found.items(), key=lambda item: -(item[1] or 0.0)) if isinstance(found, Mapping) else []
        rows = [(str(name), "-" if value is None else f"{value:.2f}") for name, value in ranked[:_SHOWN_CLASSES]]
        probabilities = [table(("finding", "probability"), rows)] if rows else []
        return shown(f"Draft: {self.study_id}", paragraph(self.text), *probabilities, warnings=self.warnings)
