"""The typed core: what a study is, what a report is, and what vision encoders are.

Shape letters used everywhere: B batch, V views, C channels, S visual tokens, T text tokens, K classes.
This module imports no torch at run time, so that reading a manifest stays light.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

if TYPE_CHECKING:
    from torch import Tensor

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
Modality = Literal["xray", "ct"]
TargetText = Literal["findings", "impression", "findings+impression"]

RESEARCH_ONLY = "Research software, not a medical device. A draft for a radiologist to check, never a diagnosis."


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
    of phantom studies.
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


@dataclass(frozen=True, slots=True)
class Report:
    """A generated report with its evidence, as users get it."""

    text: str
    study_id: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    notice: str = RESEARCH_ONLY

    def __str__(self) -> str:
        return self.text


@dataclass(slots=True)
class Batch:
    """What a report model sees. Tensors have the batch axis first.

    ``pixel_values`` (B, V, C, H, W) holds radiographs or ``volume`` (B, C, D, H, W) a CT scan; padded views are False
    in ``view_mask`` (B, V); ``view_ids`` (B, V) is 0 unknown, 1 frontal, 2 lateral. ``input_ids`` (B, T) and
    ``labels`` (B, T) hold the target report, right-padded, -100 where no loss is taken; both are None at inference.
    ``reports`` are the same reports as text. ``class_labels`` (B, K) holds label states as integers (0 blank,
    1 positive, 2 negative, 3 uncertain, -1 throughout for a study without labels). ``patient_ids`` let a retrieval
    leave out the query's own patient. ``vision_tokens`` (B, V, S, D) over ``vision_grid`` are given instead of pixels
    where a frozen encoder has read the images before. ``priors`` holds the earlier studies of those patients that have
    one, with their reports, and ``prior_of`` the row of this batch that each belongs to.
    """

    study_ids: list[str]
    patient_ids: list[str]
    pixel_values: Tensor | None = None
    view_mask: Tensor | None = None
    view_ids: Tensor | None = None
    volume: Tensor | None = None
    input_ids: Tensor | None = None
    attention_mask: Tensor | None = None
    labels: Tensor | None = None
    class_labels: Tensor | None = None
    reports: list[str] | None = None
    vision_tokens: Tensor | None = None
    vision_grid: tuple[int, ...] | None = None
    priors: Batch | None = None
    prior_of: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.study_ids)

    def to(self, device: Any) -> Batch:
        moved = {
            name: value.to(device) if hasattr(value, "to") else value
            for name, value in ((name, getattr(self, name)) for name in self.__slots__)
        }
        return Batch(**moved)


@dataclass(frozen=True, slots=True)
class Slice:
    """One process's studies of a global batch: ``count`` of ``total``, from number ``first`` on."""

    first: int
    count: int
    total: int

    @classmethod
    def of(cls, total: int, rank: int, size: int) -> Slice:
        """The slice of process ``rank`` of ``size``: contiguous, sizes differ by one at most.

        A batch with fewer studies than processes is not cut: every process has the whole of it.
        """
        if total < size:
            return cls(0, total, total)
        first = rank * total // size
        return cls(first, (rank + 1) * total // size - first, total)

    def weight(self, size: int) -> float:
        """Weight of this slice's loss in the sum over ``size`` processes."""
        return self.count / self.total if self.is_cut else 1 / size

    @property
    def is_cut(self) -> bool:
        return self.count < self.total


@dataclass(slots=True)
class Generation:
    """What ``generate`` returns: token ids per study, and named intermediates per study.

    ``token_ids`` holds no prompt, padding or end token. ``intermediates[i]`` is the evidence for study i: values that
    JSON can hold, or arrays; everything users see as evidence comes through here.
    """

    token_ids: list[list[int]]
    intermediates: list[dict[str, Any]]


@dataclass(slots=True)
class VisionFeatures:
    """Output of a vision encoder: ``tokens`` (N, S, D) in row-major order of ``grid`` (h, w) or (d, h, w)."""

    tokens: Tensor
    grid: tuple[int, ...]


@runtime_checkable
class VisionEncoder(Protocol):
    """Images (N, C, H, W) or volumes (N, C, D, H, W) to patch tokens."""

    dim: int
    channels: int

    def __call__(self, pixel_values: Tensor) -> VisionFeatures: ...


def section_text(study: Study, target: TargetText) -> str | None:
    """Join the sections that make the target; None if one that is asked for has no text."""
    parts: Sequence[str | None]
    if target == "findings+impression":
        parts = (study.findings, study.impression)
    else:
        parts = (getattr(study, target),)
    texts = [part.strip() for part in parts if part and part.strip()]
    return " ".join(texts) if len(texts) == len(parts) else None
