"""Comparison of a draft with the report of its study: contradicted, missed and invented findings.

Both texts are read by the same labeler, so that a mark says how the two readings differ, not what is in the image. A
finding on the other side keeps its label and is found by the words for sides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from radweave.core.study import LabelState
from radweave.labels import NO_FINDING, Labeler, Mention
from radweave.labels.comparisons import whole_sentences
from radweave.metrics.laterality import contradictions, sided_findings

Span = tuple[int, int]


class Difference(StrEnum):
    """Difference of a draft from a reference in one class, the gravest first."""

    CONTRADICTED = "says the opposite"
    SIDE = "on the other side"
    INVENTED = "invented"
    MISSED = "missed"
    SURER = "surer than the reference"
    LESS_SURE = "less sure than the reference"
    SAME = "the same"


SIGNS = {
    Difference.CONTRADICTED: ("opposite", "≠"),
    Difference.SIDE: ("side", "⇄"),
    Difference.INVENTED: ("invented", "+"),
    Difference.MISSED: ("missed", "−"),
    Difference.SURER: ("certainty", "▲"),
    Difference.LESS_SURE: ("certainty", "▽"),
    Difference.SAME: ("same", "="),
}
"""Difference -> class in the style sheet, and a sign, so that colour is not all that tells."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a text; ``differences`` are the classes whose difference rests on it, and which it is."""

    text: str
    differences: tuple[tuple[str, Difference], ...] = ()


@dataclass(frozen=True, slots=True)
class ClassComparison:
    """States of a class in both texts, and their difference. ``name`` is a class, or a finding on the other side."""

    name: str
    draft: LabelState
    reference: LabelState
    difference: Difference


@dataclass(frozen=True, slots=True)
class TextComparison:
    """Both texts in sentences of parts, and the classes that one of them speaks of."""

    draft: tuple[tuple[Part, ...], ...]
    reference: tuple[tuple[Part, ...], ...]
    rows: tuple[ClassComparison, ...]

    def count(self, difference: Difference) -> int:
        return sum(row.difference is difference for row in self.rows)


def compare_texts(draft: str, reference: str, labeler: Labeler) -> TextComparison:
    """Compare a draft with the report that its study has."""
    draft_mentions, reference_mentions = labeler.label([draft, reference])
    rows = [
        _compared(name, draft_mentions[name].state, reference_mentions[name].state)
        for name in labeler.classes
        if name != NO_FINDING
    ]
    differences = {
        row.name: row.difference for row in rows if row is not None and row.difference is not Difference.SAME
    }
    sides = contradictions(sided_findings(draft), sided_findings(reference))
    swapped = [ClassComparison(stem, LabelState.POSITIVE, LabelState.POSITIVE, Difference.SIDE) for stem in sides]
    order = list(Difference)
    return TextComparison(
        draft=_marked(draft, labeler, differences, sides),
        reference=_marked(reference, labeler, differences, sides),
        rows=tuple(sorted([*(row for row in rows if row), *swapped], key=lambda row: order.index(row.difference))),
    )


def _compared(name: str, draft: LabelState, reference: LabelState) -> ClassComparison | None:
    """None for a class of which neither says anything, or of which one says only that it is not there."""
    difference = _difference(draft, reference)
    return None if difference is None else ClassComparison(name, draft, reference, difference)


def _difference(draft: LabelState, reference: LabelState) -> Difference | None:
    mentioned = (LabelState.POSITIVE, LabelState.UNCERTAIN)
    if draft is reference:
        return None if draft is LabelState.BLANK else Difference.SAME
    if draft in mentioned and reference in mentioned:
        return Difference.SURER if draft is LabelState.POSITIVE else Difference.LESS_SURE
    if draft in mentioned:
        return Difference.CONTRADICTED if reference is LabelState.NEGATIVE else Difference.INVENTED
    if reference in mentioned:
        return Difference.CONTRADICTED if draft is LabelState.NEGATIVE else Difference.MISSED
    # To deny what the other does not speak of is no difference: reports name few of the findings that are not there.
    return None


def _marked(
    text: str, labeler: Labeler, differences: Mapping[str, Difference], sides: Sequence[str]
) -> tuple[tuple[Part, ...], ...]:
    lines = list(whole_sentences(text))
    return tuple(
        _parts(line, [*_spans(mentions, differences), *_sided(line, sides)])
        for line, mentions in zip(lines, labeler.label(lines), strict=True)
    )


def _spans(
    mentions: Mapping[str, Mention], differences: Mapping[str, Difference]
) -> Iterator[tuple[Span, tuple[str, Difference]]]:
    for name, difference in differences.items():
        mention = mentions[name]
        if mention.state is not LabelState.BLANK and mention.span is not None:
            yield mention.span, (name, difference)


def _sided(line: str, sides: Sequence[str]) -> Iterator[tuple[Span, tuple[str, Difference]]]:
    """The words for a finding that stands on the other side, and the words for its side, of a sentence with both."""
    here = sided_findings(line)
    for stem in sides:
        if stem in here:
            for word in re.finditer(rf"\b(?:{stem}\w*|left\w*|right\w*)", line, re.IGNORECASE):
                yield word.span(), (stem, Difference.SIDE)


def _parts(line: str, marks: Sequence[tuple[Span, tuple[str, Difference]]]) -> tuple[Part, ...]:
    edges = sorted({0, len(line), *(edge for span, _ in marks for edge in span)})
    return tuple(
        Part(line[start:end], tuple(dict.fromkeys(what for (low, high), what in marks if low <= start and end <= high)))
        for start, end in pairwise(edges)
    )
