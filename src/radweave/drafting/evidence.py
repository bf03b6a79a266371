"""Types of the evidence that drafting writes and explanation reads, as JSON has it. Methods may add further keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

CalibrationEvidence = TypedDict(  # noqa: UP013
    "CalibrationEvidence",
    {
        "split": str,
        "studies": int,
        "thresholds": dict[str, float],
        "alike": dict[str, list[int]],
        "uncalibrated": dict[str, int],
    },
)
"""Calibration of a run: thresholds by class, and counts of studies with a similar probability (with the class, all)."""


@dataclass(frozen=True, slots=True)
class RecalledText:
    """A text of a training study that a method recalled: its report, or one sentence of it."""

    text: str
    study_id: str
    is_sentence: bool


@dataclass(frozen=True, slots=True)
class OwnReports:
    """A method's own texts for a study: reports of its language model, the likeliest first, and texts it recalled."""

    written: tuple[str, ...] = ()
    recalled: tuple[RecalledText, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.written or self.recalled)


class SentenceSource(TypedDict):
    """Origin of a sentence; no study of one that a decoder wrote."""

    kind: str
    study_id: str | None


class SentenceEvidence(TypedDict):
    """A sentence of the draft; ``confidence`` is that of decoders with token probabilities."""

    text: str
    source: NotRequired[SentenceSource]
    section: NotRequired[str]
    confidence: NotRequired[float | None]


RecalledEvidence = TypedDict(
    "RecalledEvidence",
    {
        "kind": str,
        "study_id": str,
        "text": NotRequired[str | None],
        "scores": NotRequired[dict[str, float]],
        "for": NotRequired[str],
    },
)
"""A recalled case, with the class that it was recalled for, if any."""


class UtilityEvidence(TypedDict):
    """Terms of the expected utility, and the classes and changes that the draft states."""

    wording: float
    findings: float
    asserted: list[str]
    changes: NotRequired[float]
    compared: NotRequired[list[list[str]]]


class OwnEvidence(TypedDict):
    """Reports that the method's own decoder wrote for the study, and how many of them state each class."""

    reports: int
    state: dict[str, int]


class DraftEvidence(TypedDict, total=False):
    """Evidence of a draft, by key."""

    class_probabilities: dict[str, float]
    calibration: CalibrationEvidence
    recalled: list[RecalledEvidence]
    sentences: list[SentenceEvidence]
    expected_utility: UtilityEvidence
    sentence_fit: list[dict[str, Any]]
    attention_maps: dict[str, Any]
    sources: dict[str, dict[str, dict[str, float]]]
    changes: dict[str, dict[str, Any]]
    views: list[dict[str, Any]]
    own_reports: OwnEvidence
