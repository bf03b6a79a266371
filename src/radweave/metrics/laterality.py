"""Left and right: on which side a report puts each finding, and where two reports contradict each other.

A label set has no sides, so a report with left and right swapped keeps all its labels. Here a finding is a noun of the
list below, its side the nearest "left" or "right" before it in the same clause (or after it, as in "effusion on the
left"). A clause that denies its finding says nothing about a side.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from radweave.metrics.pairs import Pair
from radweave.metrics.statistics import Floats

# Stems of nouns that name a finding or a device which has a side in the chest.
_FINDING = re.compile(
    r"^(?:abscess|atelecta|bronchiecta|bulla|calcifi|catheter|cavit|collapse|consolidat|cyst|densit|edema|effusion"
    r"|elevat|emphysem|empyema|fibro|fluid|fractur|granulom|haziness|hemothora|hernia|infiltrat|lesion|mass"
    r"|nodul|opacit|pacemaker|picc|plaque|pneumonia|pneumothora|port|scar|sequela|thicken|tube|tumor)"
)
_CLAUSE_END = re.compile(r"[.;:,\n]|\b(?:and|but|with|while)\b")
_WORD = re.compile(r"[a-z]+")
_DENIED = re.compile(r"\b(?:no|not|without|negative|free|clear|absent|neither|nor|unremarkable|normal)\b")
_SIDES = {
    "left": frozenset("L"),
    "leftward": frozenset("L"),
    "right": frozenset("R"),
    "rightward": frozenset("R"),
    "bilateral": frozenset("LR"),
    "bilaterally": frozenset("LR"),
    "both": frozenset("LR"),
}


def sided_findings(text: str) -> dict[str, frozenset[str]]:
    """Finding stem -> sides ("L", "R") the text puts it on; findings without a side are left out."""
    findings: dict[str, set[str]] = defaultdict(set)
    for clause in _CLAUSE_END.split(text.lower()):
        if not clause or _DENIED.search(clause):
            continue
        words = _WORD.findall(clause)
        places = [(i, _SIDES[word]) for i, word in enumerate(words) if word in _SIDES]
        if not places:
            continue
        for i, word in enumerate(words):
            match = _FINDING.match(word)
            if match:
                findings[match.group()] |= _nearest_side(i, places)
    return {finding: frozenset(sides) for finding, sides in findings.items()}


def _nearest_side(position: int, places: list[tuple[int, frozenset[str]]]) -> frozenset[str]:
    """The last side named before ``position``, else the first after it."""
    before = [sides for i, sides in places if i < position]
    return before[-1] if before else places[0][1]


def contradictions(hyp: Mapping[str, frozenset[str]], ref: Mapping[str, frozenset[str]]) -> list[str]:
    """Findings that one report puts on one side only and the other on the other side only."""
    return sorted(finding for finding in hyp.keys() & ref.keys() if not hyp[finding] & ref[finding])


def sided_confusion(hyp: Mapping[str, frozenset[str]], ref: Mapping[str, frozenset[str]]) -> tuple[int, int, int]:
    """True positives, false positives and false negatives over (finding, side)."""
    generated = {(finding, side) for finding, sides in hyp.items() for side in sides}
    written = {(finding, side) for finding, sides in ref.items() for side in sides}
    return len(generated & written), len(generated - written), len(written - generated)


@dataclass(frozen=True, slots=True)
class Sides:
    """On which sides N reports and their references put findings.

    Attributes:
        rows: (N, 3) confusion rows over (finding, side); several references of a study are taken together.
        comparable: reports that side a finding which a reference sides too.
        contradicted: those of them that put one on the other side than each reference that sides it.
        findings: how often each finding is on the other side.
    """

    rows: Floats
    comparable: int
    contradicted: int
    findings: Mapping[str, int]


def read_sides(pairs: Sequence[Pair]) -> Sides:
    """Read every text once."""
    rows = np.zeros((len(pairs), 3))
    comparable = contradicted = 0
    findings: Counter[str] = Counter()
    for row, pair in zip(rows, pairs, strict=True):
        hyp, refs = sided_findings(pair.hyp), [sided_findings(text) for text in pair.refs]
        written: dict[str, frozenset[str]] = {}
        for ref in refs:
            for finding, sides in ref.items():
                written[finding] = written.get(finding, frozenset()) | sides
        row[:] = sided_confusion(hyp, written)
        if hyp.keys() & written.keys():
            wrong = _contradicted(hyp, refs)
            comparable += 1
            contradicted += bool(wrong)
            findings.update(wrong)
    return Sides(rows, comparable, contradicted, dict(sorted(findings.items())))


def _contradicted(hyp: Mapping[str, frozenset[str]], refs: Sequence[Mapping[str, frozenset[str]]]) -> set[str]:
    """Findings on the other side; with several references a contradiction must hold against each that sides it."""
    return {
        finding
        for ref in refs
        for finding in contradictions(hyp, ref)
        if not any(hyp[finding] & other.get(finding, frozenset()) for other in refs)
    }
