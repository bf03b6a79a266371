"""Reports of two parts under headings (``target`` both), scored as a whole without headings, and by section."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from radweave.base.parts import PARTS, parts_of, without_headings
from radweave.evaluation.pairs import Pair

BOTH = "both"


def are_parted(pairs: Sequence[Pair]) -> bool:
    """Whether every pair says that its reports have two parts."""
    return all(pair.target == BOTH for pair in pairs)


def wholes(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """The pairs as one text each: two heading words that are always right would be worth something."""
    return tuple(
        replace(
            pair,
            hyp=without_headings(pair.hyp),
            refs=tuple(map(without_headings, pair.refs)),
            floors={name: without_headings(text) for name, text in pair.floors.items()},
        )
        for pair in pairs
    )


def section_of(text: str, name: str) -> str:
    """What a text says in a section; one without headings says all of it in its findings."""
    return (parts_of(text) or {PARTS[0]: text}).get(name, "")


def of_section(pairs: Sequence[Pair], name: str) -> tuple[Pair, ...]:
    """The pairs in a section: a draft without it says nothing there; a study whose references lack it has no pair.

    What is known of the study as a whole (hand-set labels, probabilities) is not said of a section.
    """
    found = (
        replace(
            pair,
            hyp=section_of(pair.hyp, name),
            refs=tuple(ref for ref in (section_of(text, name) for text in pair.refs) if ref.strip()),
            floors={floor: section_of(text, name) for floor, text in pair.floors.items()},
            labels=None,
            probabilities=None,
            comparisons_removed=0,
            target=None,
        )
        for pair in pairs
    )
    return tuple(pair for pair in found if pair.refs)
