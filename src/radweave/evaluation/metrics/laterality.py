"""Left and right: on which side a report puts each finding, and where two reports contradict each other.

A label set has no sides, so a report with left and right swapped keeps all its labels. Here a finding is a noun of the
list below, its side the nearest "left" or "right" before it in the same clause (or after it, as in "effusion on the
left"). A clause that denies its finding says nothing about a side.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from radweave.evaluation.pairs import Pair
from radweave.evaluation.statistics import Floats

# Stems of nouns that name a finding or a device which has a side in the chest.
_FINDING_STEMS = (
    "abscess",
    "atelecta",
    "bronchiecta",
    "bulla",
    "calcifi",
    "catheter",
    "cavit",
    "collapse",
    "consolidat",
    "cyst",
    "densit",
    "edema",
    "effusion",
    "elevat",
    "emphysem",
    "empyema",
    "fibro",
    "fluid",
    "fractur",
    "granulom",
    "haziness",
    "hemothora",
    "hernia",
    "infiltrat",
    "lesion",
    "mass",
    "nodul",
    "opacit",
    "pacemaker",
    "picc",
    "plaque",
    "pneumonia",
    "pneumothora",
    "port",
    "scar",
    "sequela",
    "thicken",
    "tube",
    "tumor",
)
_FINDING = re.compile(rf"^(?:{'|'.join(_FINDING_STEMS)})")
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
    found: dict[str, set[str]] = defaultdict(set)
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
                found[match.group()] |= _nearest_side(i, places)
    return {finding: frozenset(sides) for finding, sides in found.items()}


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


def sided_rows(pairs: Sequence[Pair]) -> Floats:
    """Confusion rows (N, 3) over (finding, side); several references of a study are taken together."""
    rows = []
    for pair in pairs:
        written: dict[str, frozenset[str]] = {}
        for text in pair.refs:
            for finding, sides in sided_findings(text).items():
                written[finding] = written.get(finding, frozenset()) | sides
        rows.append(sided_confusion(sided_findings(pair.hyp), written))
    return np.array(rows, dtype=np.float64)
