"""Types of the evidence that drafting writes and explanation reads, as JSON has it. Methods may add further keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NotRequired, TypedDict

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


class SentenceSource(TypedDict):
    """Origin of a sentence; no study of one that a decoder wrote."""

    kind: str
    study_id: str | None


class PlaceBox(TypedDict):
    """A box of a finding on one image: ``view`` is the index of the image in the order in which the model reads them,
    that of ``DraftEvidence.views``. ``box`` is in shares of that image, as ``core.study.FindingBox`` has it.
    """

    view: int
    box: list[float]


@dataclass(frozen=True, slots=True)
class FindingPlace:
    """Place of one finding of a study by its images, if the finding is there.

    ``sides`` and ``zones`` map those that are known to calibrated probabilities. Several may be likely together: an
    effusion of both sides has two likely sides. ``boxes`` mark the finding, the likeliest first.
    """

    sides: Mapping[str, float] = field(default_factory=dict)
    zones: Mapping[str, float] = field(default_factory=dict)
    boxes: tuple[PlaceBox, ...] = ()


class SentencePlace(TypedDict):
    """Place of one finding that a sentence states, as far as the sentence says it, checked against the images.

    ``sides`` ("left", "right") and ``zones`` are those of the sentence (``radweave.labels.places``), empty where it
    names none. ``probability`` is the calibrated probability that the finding, if it is there, lies where the sentence
    says; None where the sentence names no place or the images were not asked: its place is not checked.
    ``probabilities`` maps sides and zones to what the images say. ``boxes`` mark the finding on the images; there are
    none of a finding that the images do not locate. ``too_large`` counts the boxes that pages and exports leave out,
    as each covers so much of its image that it says no place; evidence as a run writes it has them all.
    """

    finding: str
    sides: list[str]
    zones: list[str]
    probability: float | None
    probabilities: dict[str, float]
    boxes: list[PlaceBox]
    too_large: NotRequired[int]


class SentenceEvidence(TypedDict):
    """A sentence of the draft; ``confidence`` is that of decoders with token probabilities. ``places`` has a row for
    each finding that the sentence states; without the key the run checks no places.
    """

    text: str
    source: NotRequired[SentenceSource]
    section: NotRequired[str]
    confidence: NotRequired[float | None]
    places: NotRequired[list[SentencePlace]]


class SentenceFit(TypedDict):
    """A sentence of the draft, and its cosine with the image."""

    text: str
    image_similarity: float
    section: NotRequired[str]


RecalledEvidence = TypedDict(
    "RecalledEvidence",
    {
        "kind": str,
        "study_id": str,
        "text": NotRequired[str | None],
        "scores": NotRequired[dict[str, float]],
        "for": NotRequired[str],
        "is_prior": NotRequired[bool],
        "disease": NotRequired[str],
        "diseases": NotRequired[list[str]],
        "view": NotRequired[int],
        "cell": NotRequired[list[int]],
    },
)
"""A recalled case, with the class that it was recalled for, if any. A region of an image has its view and cell."""


class UtilityEvidence(TypedDict):
    """Terms of the expected utility, and the classes and changes that the draft states."""

    wording: float
    findings: float
    asserted: list[str]
    changes: NotRequired[float]
    places: NotRequired[float]
    compared: NotRequired[list[list[str]]]


class OwnEvidence(TypedDict):
    """Reports that the method's own decoder wrote for the study, and how many of them state each class."""

    reports: int
    state: dict[str, int]


class FusionEvidence(TypedDict):
    """Shares of the disease tokens in what the language model reads: of all, and of each class."""

    disease_share: float
    class_shares: dict[str, float]


class ViewEvidence(TypedDict, total=False):
    """A view by the name of its ``file``, or by its ``image`` in the workstation.

    ``covers`` is the part of the image that maps cover: (start, extent) along each axis in shares of the image's size.
    """

    file: str
    image: int | str
    view: str
    covers: Sequence[Sequence[float]]


class EditedSentence(TypedDict):
    """A sentence before and after an edit; None where it was left out."""

    was: str
    now: str | None


class Contradiction(TypedDict):
    """A sentence that denies what another one states; None where nothing else is stated."""

    states: str | None
    denies: str


OodEvidence = TypedDict(
    "OodEvidence",
    {
        "not judged": str,
        "scores": list[float],
        "verdicts": list[str],
        "typical": float,
        "doubted below": float,
        "refused below": float,
        "refused wrongly": str,
    },
    total=False,
)
"""Likeness of each view to the training images with the thresholds, or the reason for none."""

Maps = dict[str, Any]
"""Name -> a study's maps (V, h, w) or (d, h, w): an array, or nested lists where it was read from JSON."""
ClassChange = dict[str, str | float]
"""``before``, the state of the class in the report of the prior, and the probability of each change."""


_Judged = TypedDict("_Judged", {"familiarity": OodEvidence}, total=False)  # noqa: UP013


class ServedEvidence(TypedDict, total=False):
    """The ``model`` at an endpoint that wrote a draft, requests and tokens that it took, the reason why it ended, and
    for a study without a draft the reason of that.
    """

    model: str
    requests: int
    tokens: int
    finish: str
    failed: str


BY_UTILITY: Final = "expected utility"
BY_OWN_DECODER: Final = "own decoder"


class DecoderEvidence(TypedDict, total=False):
    """The decoder of a draft: ``kind`` is ``BY_UTILITY`` or ``BY_OWN_DECODER``.

    ``reason`` says why the default of calibrated runs was not taken, ``set`` has the options that were set.
    """

    kind: str
    reason: str
    set: list[str]


class DraftEvidence(_Judged, total=False):
    """Evidence of a draft, by key."""

    class_probabilities: dict[str, float]
    auxiliary_probabilities: dict[str, float]
    disease_states: dict[str, str]
    calibration: CalibrationEvidence
    recalled: list[RecalledEvidence]
    sentences: list[SentenceEvidence]
    token_log_probs: list[float]
    expected_utility: UtilityEvidence
    sentence_fit: list[SentenceFit]
    attention_maps: Maps
    map_kind: str
    routing: dict[str, list[list[float]]]
    fusion: FusionEvidence
    token_importance: list[float]
    top_8_share: float
    sources: dict[str, dict[str, dict[str, float]]]
    changes: dict[str, ClassChange]
    views: list[ViewEvidence]
    comparisons_removed: list[EditedSentence]
    marks_removed: list[str]
    contradictions: list[Contradiction]
    own_reports: OwnEvidence
    served: ServedEvidence
    decoder: DecoderEvidence


@dataclass(frozen=True, slots=True)
class RecalledText:
    """A text of a training study that a method recalled: its report, or one sentence of it."""

    text: str
    study_id: str
    is_sentence: bool


@dataclass(frozen=True, slots=True)
class OwnReports:
    """A method's own texts for a study: reports of its language model, the likeliest first, and texts it recalled.

    ``maps`` is what its evidence has of maps.
    """

    written: tuple[str, ...] = ()
    recalled: tuple[RecalledText, ...] = ()
    maps: DraftEvidence = field(default_factory=lambda: DraftEvidence(), compare=False)

    def __bool__(self) -> bool:
        return bool(self.written or self.recalled)
