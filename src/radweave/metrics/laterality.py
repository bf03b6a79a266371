"""Left and right: on which side a report puts each finding, and where two reports contradict each other.

A label set has no sides, so a report with left and right swapped keeps all its labels. Here a finding is a noun of the
list below, and its sides are read by ``radweave.labels.places``. A denied finding has no side.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from radweave.labels.phrases import Terms, load_lexicon
from radweave.labels.places import PlaceLabeler
from radweave.labels.rules import RuleLabeler
from radweave.labels.text import fold, sentences
from radweave.metrics.pairs import Pair
from radweave.metrics.statistics import Floats

# Stems of nouns that name a finding or a device which has a side in the chest.
_STEMS = (
    "abscess|atelecta|bronchiecta|bulla|calcifi|catheter|cavit|collapse|consolidat|cyst|densit|edema|effusion|elevat"
    "|emphysem|empyema|fibro|fluid|fractur|granulom|haziness|hemothora|hernia|infiltrat|lesion|mass|nodul|opacit"
    "|pacemaker|picc|plaque|pneumonia|pneumothora|port|scar|sequela|thicken|tube|tumor"
)


@cache
def _labeler() -> PlaceLabeler:
    terms = {stem: Terms(findings=(f"{stem}*",)) for stem in _STEMS.split("|")}
    lexicon = replace(load_lexicon("chexpert14"), terms=terms, other=(), other_look_alikes=())
    return PlaceLabeler(RuleLabeler(lexicon))


def sided_sentences(text: str) -> list[dict[str, frozenset[str]]]:
    """Finding stem -> sides ("L", "R") of each sentence that puts a finding on a side."""
    read = []
    for _, sentence in sentences(fold(text)):
        findings: dict[str, set[str]] = defaultdict(set)
        for located in _labeler().located(sentence):
            findings[located.name] |= {side[0].upper() for side in located.sides}
        read.append({finding: frozenset(sides) for finding, sides in findings.items() if sides})
    return [findings for findings in read if findings]


def sided_findings(text: str) -> dict[str, frozenset[str]]:
    """Finding stem -> sides ("L", "R") the text puts it on; findings without a side are left out."""
    return _together(sided_sentences(text))


def _together(texts: Iterable[Mapping[str, frozenset[str]]]) -> dict[str, frozenset[str]]:
    """The sides of each finding in several texts."""
    written: dict[str, frozenset[str]] = {}
    for sided in texts:
        for finding, sides in sided.items():
            written[finding] = written.get(finding, frozenset()) | sides
    return written


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
        comparable_sentences: sentences of the reports that side a finding which a reference sides too.
        contradicted_sentences: those of them that put one on the other side.
        findings: how often each finding is on the other side.
    """

    rows: Floats
    comparable: int
    contradicted: int
    comparable_sentences: int
    contradicted_sentences: int
    findings: Mapping[str, int]


def read_sides(pairs: Sequence[Pair]) -> Sides:
    """Read every text once."""
    rows = np.zeros((len(pairs), 3))
    comparable = contradicted = comparable_sentences = contradicted_sentences = 0
    findings: Counter[str] = Counter()
    for row, pair in zip(rows, pairs, strict=True):
        stated, refs = sided_sentences(pair.hyp), [sided_findings(text) for text in pair.refs]
        hyp, written = _together(stated), _together(refs)
        for sentence in stated:
            if sentence.keys() & written.keys():
                comparable_sentences += 1
                contradicted_sentences += bool(_contradicted(sentence, refs))
        row[:] = sided_confusion(hyp, written)
        if hyp.keys() & written.keys():
            wrong = _contradicted(hyp, refs)
            comparable += 1
            contradicted += bool(wrong)
            findings.update(wrong)
    of_sentences = (comparable_sentences, contradicted_sentences)
    return Sides(rows, comparable, contradicted, *of_sentences, dict(sorted(findings.items())))


def _contradicted(hyp: Mapping[str, frozenset[str]], refs: Sequence[Mapping[str, frozenset[str]]]) -> set[str]:
    """Findings on the other side; with several references a contradiction must hold against each that sides it."""
    return {
        finding
        for ref in refs
        for finding in contradictions(hyp, ref)
        if not any(hyp[finding] & other.get(finding, frozenset()) for other in refs)
    }
