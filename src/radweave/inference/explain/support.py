"""Support of each sentence of a draft by its evidence, for and against.

A rule-based labeler reads which classes a sentence affirms, denies or leaves open; each of these claims is compared
with the class's probability and with the statements of the recalled texts. An attention map supports nothing by
itself: it shows the tokens that the model used, not a finding.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any

from radweave.core.evidence import DraftEvidence, RecalledEvidence, SentenceFit, SentencePlace
from radweave.core.study import LabelState, Report
from radweave.data.boxes import says_no_place
from radweave.drafting.calibration import FEWEST_POSITIVES
from radweave.labels import NO_FINDING, Labeler, Mention
from radweave.labels.comparisons import STATES
from radweave.labels.text import fold, sentences
from radweave.metrics.statistics import wilson_interval

# The calibration of a draft's probabilities, from its evidence.


DEFAULT_THRESHOLD = 0.5
_SPLITS = {"train": "training", "val": "validation"}


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The calibration that came with a draft, or none; ``override`` is a threshold of the reader for all classes."""

    split: str = ""
    studies: int = 0
    thresholds: Mapping[str, float] = field(default_factory=dict)
    similar: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    uncalibrated: Mapping[str, int] = field(default_factory=dict)
    override: float | None = None

    @classmethod
    def of(cls, evidence: DraftEvidence, override: float | None) -> Calibrated:
        """From a draft's evidence."""
        calibration = evidence.get("calibration")
        if not calibration:
            return cls(override=override)
        return cls(
            split=_SPLITS[calibration["split"]],
            studies=int(calibration["studies"]),
            thresholds=dict(calibration["thresholds"]),
            similar={name: (int(had), int(count)) for name, (had, count) in calibration["alike"].items()},
            uncalibrated=dict(calibration["uncalibrated"]),
            override=override,
        )

    def threshold(self, name: str) -> float:
        """Probability from which a class counts as present."""
        return self.override if self.override is not None else self.thresholds.get(name, DEFAULT_THRESHOLD)

    def experience(self, name: str) -> str | None:
        """Share of the studies with a similar probability that had the class, in words."""
        if name in self.similar:
            had, count = self.similar[name]
            low, high = wilson_interval(had, count) or (0.0, 1.0)
            return (
                f"of 100 such {self.split} studies {100 * had / count:.0f} had it"
                f" (95 %: {100 * low:.0f} to {100 * high:.0f}; {had} of {count} studies)"
            )
        if name in self.uncalibrated:
            return (
                f"not calibrated: {self.uncalibrated[name]} of {self.studies} {self.split} studies have it, and"
                f" {FEWEST_POSITIVES} with it and without it are needed"
            )
        return None


STATE_WORDS = {
    LabelState.POSITIVE: "affirmed",
    LabelState.NEGATIVE: "denied",
    LabelState.UNCERTAIN: "left open",
    LabelState.BLANK: "not mentioned",
}


class Verdict(StrEnum):
    """Agreement of the evidence with a claim, the worst first."""

    CONTRADICTED = "contradicts its classifier"
    MISPLACED = "its place is improbable"
    DISPUTED = "evidence disagrees"
    UNSUPPORTED = "nothing agrees with it"
    UNCONFIRMED = "not confirmed"
    PARTLY = "checked in part"
    SUPPORTED = "checked"
    NO_CLAIM = "names no finding"


FLAGGED = (Verdict.CONTRADICTED, Verdict.MISPLACED, Verdict.DISPUTED, Verdict.UNSUPPORTED)
"""Verdicts that a reader must check before signing."""
FINDING = "finding"
CHECKED_FROM = 0.5
"""The calibrated probability of what a sentence says below which it is not checked, whatever the threshold is."""
_FINER = (
    r"segment|segmental|hil[aiu]r?|hilum|bihilar|perihilar|suprahilar|infrahilar|retrocardiac|subpleural|peripheral|"
    r"central|costophrenic|cardiophrenic|fissures?|paratracheal|carina|diffuse|anterior|posterior|medial|lateral|"
    r"tip|terminat\w+"
)
"""Words for a place that no zone of a lung covers."""
_ASPECTS = {
    "side": r"left|right|bilateral|bilaterally|unilateral|both (?:lungs?|sides?|bases|hemithoraces)|bibasilar|bibasal|"
            r"(?:left|right)-?sided|(?:left|right)ward|r[uml]l|l[ul]l|midline",
    "place": r"upper|lower|middle|mid|lobes?|lobar|lingula|lingular|bases?|basilar|basal|bibasilar|bibasal|ape?x|"
             r"apices|apical|biapical|zones?|r[uml]l|l[ul]l|hemithorax|hemithoraces|" + _FINER,
    "size": r"small|large|tiny|big|huge|enlarged|sub-?centimeter|\d+(?:[.,]\d+)? ?(?:mm|cm|centimeters?|millimeters?)",
    "severity": r"mild|mildly|moderate|moderately|severe|severely|subtle|slight|slightly|minimal|minimally|marked|"
                r"markedly|trace|extensive|massive|advanced|borderline|faint|gross|grossly|prominent|dense|tension",
    "change": r"stable|unchanged|new|newly|increas\w+|decreas\w+|worsen\w*|worse|improv\w+|resolv\w+|progress\w+|"
              r"interval|again|persistent|larger|smaller",
}  # fmt: skip
"""Aspects of a finding beside its presence, by the words that state them."""
_STATED = {name: re.compile(rf"\b(?:{words})\b", re.IGNORECASE) for name, words in _ASPECTS.items()}
_FINER_STATED = re.compile(rf"\b(?:{_FINER})\b", re.IGNORECASE)
_IN_THE_NAME = "size"
"""The aspect that a finding's own words may have: "the heart is enlarged" says no more than cardiomegaly."""


def verdict_words(verdict: str, checked: Sequence[str], not_checked: Sequence[str]) -> str:
    """Wording of a verdict on pages and in exports; it claims no more than was checked."""
    parts = [f"checked: {', '.join(checked)}"] if checked else []
    parts += [f"not checked: {', '.join(not_checked)}"] if not_checked else []
    if verdict not in (Verdict.SUPPORTED, Verdict.PARTLY, Verdict.UNCONFIRMED):
        parts = [verdict, *parts]
    return "; ".join(parts) or verdict


def unchecked_note(sentences: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """A note for exports on unchecked statements; ``sentences`` holds those of each sentence."""
    names = dict.fromkeys(name for row in sentences for name in row)
    numbers = [str(number) for number, row in enumerate(sentences, start=1) if row]
    if not names:
        return ()
    return (f"not checked against any evidence: {', '.join(names)} (sentences {', '.join(numbers)})",)


@dataclass(frozen=True, slots=True)
class Recalled:
    """One recalled case: its kind, its text, and the states of the classes in the text.

    ``about`` is the class it was recalled for, None if it was recalled for the whole study; ``notes`` are further
    figures of the method.
    """

    number: int
    kind: str
    study_id: str
    text: str | None
    scores: dict[str, float]
    about: str | None
    states: dict[str, LabelState]
    notes: dict[str, str]

    def says(self, name: str) -> LabelState:
        """Statement of its text on a class; blank if it was recalled for another class."""
        return self.states.get(name, LabelState.BLANK) if self.about in (None, name) else LabelState.BLANK


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence's statement on one class, with the agreement of the evidence.

    ``probable`` states the agreement of the class's probability, if there is one (``is_checked``: a calibrated one of
    at least ``CHECKED_FROM``); ``agree`` and ``differ`` number the recalled texts that say the same of the class, or
    the opposite; ``about`` those recalled for the class.
    """

    name: str
    state: LabelState
    verdict: Verdict
    probable: str | None
    agree: tuple[int, ...]
    differ: tuple[int, ...]
    about: tuple[int, ...]
    is_checked: bool = False


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence in parts, each with True if a claim rests on it. ``confidence`` is None for methods without one.

    ``verbatim`` numbers the recalled texts that contain the sentence word for word. ``fit`` holds the method's scores
    of the sentence against the image; they are shown and decide nothing. ``section`` is set in drafts of two sections.
    ``checked`` and ``not_checked`` name the stated aspects (finding, side, size ...) by whether evidence was checked.
    ``places`` has a row for each finding that it states; None of a run that checks no places.
    """

    number: int
    parts: tuple[tuple[str, bool], ...]
    confidence: float | None
    claims: tuple[Claim, ...]
    verdict: Verdict
    verbatim: tuple[int, ...]
    fit: dict[str, float]
    section: str = ""
    checked: tuple[str, ...] = ()
    not_checked: tuple[str, ...] = ()
    places: tuple[SentencePlace, ...] | None = None

    @property
    def words(self) -> str:
        """Its verdict, with what was checked and what was not."""
        return verdict_words(self.verdict, self.checked, self.not_checked)


@dataclass(frozen=True, slots=True)
class Finding:
    """A class: its probability, its state in the draft, and ``flag``, the disagreement of the two.

    ``sentences`` numbers the sentences that give this state, ``otherwise`` those that give another one. The class
    counts as present from ``threshold`` on. ``experience`` gives the outcome of studies with such a probability.
    """

    name: str
    probability: float | None
    state: LabelState
    flag: str | None
    sentences: tuple[int, ...]
    otherwise: tuple[int, ...]
    threshold: float = 0.5
    experience: str | None = None


@dataclass(frozen=True, slots=True)
class Support:
    """The draft of one study with the agreement of its evidence, and the calibration of its probabilities."""

    sentences: tuple[Sentence, ...]
    findings: tuple[Finding, ...]
    recalled: tuple[Recalled, ...]
    calibration: Calibrated

    @property
    def can_check(self) -> bool:
        """Tell if there is evidence to check a sentence with."""
        stated = any(finding.probability is not None for finding in self.findings)
        return stated or any(case.text for case in self.recalled)

    @property
    def checks_places(self) -> bool:
        """Tell if the run checks places."""
        return any(sentence.places is not None for sentence in self.sentences)

    def count(self, verdict: Verdict) -> int:
        return sum(sentence.verdict is verdict for sentence in self.sentences)


@dataclass(frozen=True, slots=True)
class _Line:
    """A sentence as the report has it."""

    text: str
    confidence: float | None
    section: str = ""
    places: tuple[SentencePlace, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Ground:
    """Evidence that claims are compared with."""

    probabilities: Mapping[str, float]
    recalled: tuple[Recalled, ...]
    fits: Mapping[str, dict[str, float]]
    calibration: Calibrated


def find_support(report: Report, labeler: Labeler, *, threshold: float | None = None) -> Support:
    """Compare every sentence of a report with its evidence.

    A class is present from ``threshold`` on; without it, from the run's threshold, or else from 0.5.
    """
    evidence = report.evidence
    probabilities = evidence.get("class_probabilities") or {}
    ground = _Ground(
        probabilities={name: float(value) for name, value in probabilities.items() if value is not None},
        recalled=_recalled(evidence.get("recalled") or [], labeler),
        fits=_fits(evidence.get("sentence_fit") or []),
        calibration=Calibrated.of(evidence, threshold),
    )
    lines = _lines(report.text, evidence)
    read = labeler.label([line.text for line in lines])
    claimed = tuple(
        _sentence(number, line, mentions, ground)
        for number, (line, mentions) in enumerate(zip(lines, read, strict=True), start=1)
    )
    whole = labeler.label([report.text])[0]
    maps = evidence.get("attention_maps") or {}
    names = dict.fromkeys((*labeler.classes, *ground.probabilities, *maps))
    findings = tuple(_finding(name, whole, claimed, ground) for name in names)
    return Support(claimed, findings, ground.recalled, ground.calibration)


def _lines(draft: str, evidence: DraftEvidence) -> list[_Line]:
    rows = evidence.get("sentences")
    if rows:
        return [
            _Line(
                row["text"],
                row.get("confidence"),
                row.get("section", ""),
                None if (places := row.get("places")) is None else tuple(map(_without_large, places)),
            )
            for row in rows
        ]
    # From each beginning to the next, so that a sentence keeps the mark that ends it.
    edges = [0, *(start for start, _ in sentences(fold(draft)) if start > 0), len(draft)]
    texts = [draft[start:end].strip() for start, end in pairwise(edges)]
    return [_Line(text, None) for text in texts if text]


def _without_large(place: SentencePlace) -> SentencePlace:
    """The place without boxes that cover nearly the whole image, and their number."""
    boxes = [one for one in place["boxes"] if not says_no_place(one["box"])]
    left_out = len(place["boxes"]) - len(boxes)
    return {**place, "boxes": boxes, "too_large": left_out} if left_out else place


def too_large_words(count: int) -> str:
    """Note on boxes that are left out; "" for none."""
    if not count:
        return ""
    what, are = ("a box covers", "is") if count == 1 else (f"{count} boxes cover", "are")
    return f"{what} nearly the whole image, which says no place, and {are} left out"


def _fits(rows: Sequence[SentenceFit]) -> dict[str, dict[str, float]]:
    """A sentence's text -> its scores against the image."""
    return {
        str(row.get("text", "")).strip(): {
            name: float(value) for name, value in row.items() if isinstance(value, (int, float))
        }
        for row in rows
    }


_KNOWN = frozenset({"kind", "study_id", "text", "scores", "for"})


def _recalled(rows: Sequence[RecalledEvidence], labeler: Labeler) -> tuple[Recalled, ...]:
    read = labeler.label([row.get("text") or "" for row in rows])
    return tuple(
        Recalled(
            number=number,
            kind=str(row.get("kind", "case")),
            study_id=str(row.get("study_id", "")),
            text=row.get("text"),
            scores={name: float(score) for name, score in (row.get("scores") or {}).items() if score is not None},
            about=row.get("for"),
            states={name: mention.state for name, mention in mentions.items() if name != NO_FINDING},
            notes={name: _plain(value) for name, value in row.items() if name not in _KNOWN},
        )
        for number, (row, mentions) in enumerate(zip(rows, read, strict=True), start=1)
    )


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _sentence(number: int, line: _Line, mentions: Mapping[str, Mention], ground: _Ground) -> Sentence:
    # "No finding" follows from the whole report, never from a single sentence.
    stated_mentions = {
        name: mention
        for name, mention in mentions.items()
        if mention.state is not LabelState.BLANK and name != NO_FINDING
    }
    claims = tuple(_claim(name, mention.state, ground) for name, mention in stated_mentions.items())
    order = list(Verdict)
    spans = [mention.span for mention in stated_mentions.values() if mention.span is not None]
    verdict = min((claim.verdict for claim in claims), key=order.index, default=Verdict.NO_CLAIM)
    stated = aspects(line.text, spans)
    checked = (FINDING,) if verdict is Verdict.SUPPORTED else ()
    placed = _placed(line, stated) if checked else ()
    checked, stated = (*checked, *placed), tuple(name for name in stated if name not in placed)
    if any(is_improbable(place) for place in line.places or ()):
        verdict = min(verdict, Verdict.MISPLACED, key=order.index)
    return Sentence(
        number=number,
        parts=_parts(line.text, spans),
        confidence=line.confidence,
        claims=claims,
        verdict=Verdict.PARTLY if verdict is Verdict.SUPPORTED and stated else verdict,
        checked=checked,
        not_checked=stated if checked or not claims else (FINDING, *stated),
        verbatim=tuple(case.number for case in ground.recalled if case.text and _words(line.text) in _words(case.text)),
        fit=ground.fits.get(line.text, {}),
        section=line.section,
        places=line.places,
    )


def is_improbable(place: SentencePlace) -> bool:
    """Tell if the images speak against the place of a finding."""
    return place["probability"] is not None and place["probability"] < CHECKED_FROM / 2


def _placed(line: _Line, stated: Sequence[str]) -> tuple[str, ...]:
    """The stated aspects of place that probabilities of at least ``CHECKED_FROM`` confirm, of every finding that is
    placed.
    """
    rows = [place for place in line.places or () if place["sides"] or place["zones"]]
    if not rows or any(place["probability"] is None or place["probability"] < CHECKED_FROM for place in rows):
        return ()
    names = {
        "side": [side for place in rows for side in place["sides"]],
        "place": [] if _FINER_STATED.search(line.text) else [zone for place in rows for zone in place["zones"]],
    }
    known = {name for place in rows for name in place["probabilities"]}
    return tuple(name for name, values in names.items() if name in stated and values and known.issuperset(values))


def aspects(text: str, spans: Sequence[tuple[int, int]] = ()) -> tuple[str, ...]:
    """Aspects of findings that a text states, in a fixed order; ``spans`` are the words of the findings."""
    names = []
    for name, words in _STATED.items():
        starts = [match.start() for match in words.finditer(text)]
        if name == _IN_THE_NAME:
            starts = [place for place in starts if not any(start <= place < end for start, end in spans)]
        if starts:
            names.append(name)
    return tuple(names)


def _words(text: str) -> str:
    """Text in lower case with single blanks, ends marked so that only whole words are found in it."""
    return f" {' '.join(text.lower().replace('.', ' . ').split())} "


def _parts(text: str, spans: Sequence[tuple[int, int]]) -> tuple[tuple[str, bool], ...]:
    """Cut a text where spans begin and end; overlapping spans become one."""
    marked = [any(start <= place < end for start, end in spans) for place in range(len(text))]
    cuts = [place for place in range(1, len(text)) if marked[place] != marked[place - 1]]
    edges = [0, *cuts, len(text)]
    return tuple((text[start:end], marked[start]) for start, end in pairwise(edges) if start < end)


_OPPOSITE = {LabelState.POSITIVE: LabelState.NEGATIVE, LabelState.NEGATIVE: LabelState.POSITIVE}


def _claim(name: str, state: LabelState, ground: _Ground) -> Claim:
    probability = ground.probabilities.get(name)
    agree = tuple(case.number for case in ground.recalled if case.says(name) is state)
    differ = tuple(case.number for case in ground.recalled if case.says(name) is _OPPOSITE.get(state))
    sign = 0 if probability is None else _agreement(state, probability, ground.calibration.threshold(name))
    relation = {1: "agrees", 0: "does not decide", -1: "speaks against it"}[sign]
    verdict = _verdict(sign, bool(agree), bool(differ))
    of_said = None if probability is None else {
        LabelState.POSITIVE: probability, LabelState.NEGATIVE: 1 - probability,
    }.get(state)  # fmt: skip
    # A probability cannot check an uncertain statement.
    is_likely = of_said is not None and of_said >= CHECKED_FROM
    is_checked = verdict is Verdict.SUPPORTED and sign > 0 and is_likely and name in ground.calibration.similar
    if verdict is Verdict.SUPPORTED and not is_checked:
        verdict = Verdict.UNCONFIRMED
        if sign > 0:
            relation += ", but is not calibrated" if name not in ground.calibration.similar else ""
            relation += "" if is_likely else ", but what is said is below 50 %"
    return Claim(
        name=name,
        state=state,
        verdict=verdict,
        probable=None if probability is None else f"probability {probability:.2f} {relation}",
        agree=agree,
        differ=differ,
        about=tuple(case.number for case in ground.recalled if case.about == name),
        is_checked=is_checked,
    )


def _agreement(state: LabelState, probability: float, threshold: float) -> int:
    """1 for the claim, -1 against it, 0 neither. Between half the threshold and the threshold nothing is decided."""
    if state is LabelState.UNCERTAIN:
        return int(probability >= threshold / 2)
    presence = 1 if probability >= threshold else -1 if probability < threshold / 2 else 0
    return presence if state is LabelState.POSITIVE else -presence


def _verdict(sign: int, agree: bool, differ: bool) -> Verdict:
    """Verdict of a claim. Only the probability can contradict it: recalled cases are other patients."""
    if sign < 0:
        return Verdict.DISPUTED if agree else Verdict.CONTRADICTED
    if sign > 0 or agree:
        return Verdict.DISPUTED if differ and sign == 0 else Verdict.SUPPORTED
    return Verdict.UNSUPPORTED


def _finding(name: str, whole: Mapping[str, Mention], lines: Sequence[Sentence], ground: _Ground) -> Finding:
    probability = ground.probabilities.get(name)
    state = whole[name].state if name in whole else LabelState.BLANK
    claims = [(line, claim) for line in lines for claim in line.claims if claim.name == name]
    threshold = ground.calibration.threshold(name)
    return Finding(
        name=name,
        probability=probability,
        state=state,
        flag=None if probability is None or name not in whole else _flag(name, probability, state, threshold),
        sentences=tuple(line.number for line, claim in claims if claim.state is state),
        otherwise=tuple(line.number for line, claim in claims if claim.state is not state),
        threshold=threshold,
        experience=None if probability is None else ground.calibration.experience(name),
    )


def _flag(name: str, probability: float, state: LabelState, threshold: float) -> str | None:
    """Disagreement of the model's own probability and its draft, for the reader."""
    if name == NO_FINDING:
        if probability >= threshold and state is LabelState.BLANK:
            return "probable, but the draft does not read as normal"
        return "improbable, but the draft names no finding" if _no(probability, state, threshold) else None
    if probability >= threshold and state is LabelState.NEGATIVE:
        return "probable, but the draft denies it"
    if probability >= threshold and state is LabelState.BLANK:
        return "probable, but not in the draft"
    return "improbable, but the draft affirms it" if _no(probability, state, threshold) else None


def _no(probability: float, state: LabelState, threshold: float) -> bool:
    return probability < threshold / 2 and state is LabelState.POSITIVE


# Rows of tables: sources of evidence by class, and changes from the prior.


SOURCES = "sources"
"""In the evidence: class -> source -> ``probability`` and ``weight``."""
CHANGES = "changes"
"""In the evidence: class -> ``before``, what the prior's report says of it, and state -> probability."""


def source_rows(evidence: DraftEvidence) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """The sources, and for each class a cell per source: its probability and its weight in the stack.

    Empty if the evidence has no sources, or has them in another form.
    """
    sources = evidence.get(SOURCES)
    if not isinstance(sources, Mapping) or not all(isinstance(one, Mapping) for one in sources.values()):
        return [], []
    names = list(dict.fromkeys(source for one in sources.values() for source in one))
    return names, [(str(name), [_cell(one.get(source)) for source in names]) for name, one in sources.items()]


def added_cells(names: Sequence[str], added: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Gain of each source: out-of-fold average precision with it less that without. Empty without sources."""
    cells = [added_text(added.get(name, {})) for name in names]
    return cells if any(cells) else []


def added_text(figures: Mapping[str, Any]) -> str:
    """Gain of a source, from ``RunCard.sources``: over all findings together, and the mean over classes."""
    parts = []
    for name, title in (("together", "all"), ("by_class", "mean")):
        whole, rest = figures.get(name), figures.get(f"{name}_without")
        if isinstance(whole, (int, float)) and isinstance(rest, (int, float)):
            parts.append(f"{whole - rest:+.3f} {title}")
    return ", ".join(parts)


def change_rows(evidence: DraftEvidence) -> list[tuple[str, list[str]]]:
    """For each class its state in the prior's report, and the probability of each state now; empty without a prior."""
    changes = evidence.get(CHANGES)
    if not isinstance(changes, Mapping) or not all(isinstance(one, Mapping) for one in changes.values()):
        return []
    return [
        (str(name), [str(one.get("before", "")), *(_share(one.get(state)) for state in STATES)])
        for name, one in changes.items()
    ]


def _share(value: Any) -> str:
    return f"{100 * value:.0f} %" if isinstance(value, (int, float)) else ""


def _cell(source: Any) -> str:
    try:
        return f"{100 * float(source['probability']):.0f} % x {float(source['weight']):.2f}"
    except (KeyError, TypeError, ValueError):
        return ""
