"""What became of each class since the study before: what a report says of it, and what two reports leave open.

``STATES`` are ``absent`` (then and now), ``new``, ``worse``, ``unchanged``, ``improved`` and ``resolved``. A report
says one where a sentence affirms a class beside a word of change, or denies it and calls it resolved; "no new effusion"
says nothing. Where it says none, what both reports affirm decides what is possible: a class in both is worse, unchanged
or improved, and nobody knows which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from radweave.base.study import LabelState
from radweave.labels.comparisons import words_of_change
from radweave.labels.labeler import Labeler
from radweave.labels.unprompted import whole_sentences

State = Literal["absent", "new", "worse", "unchanged", "improved", "resolved"]
STATES: Final[tuple[State, ...]] = ("absent", "new", "worse", "unchanged", "improved", "resolved")
THERE: Final[frozenset[State]] = frozenset({"new", "worse", "unchanged", "improved"})
"""States of a class that is there now."""
GOES_ON: Final[frozenset[State]] = THERE - {"new"}
_CALLED: Final[Mapping[str, State]] = {
    "new": "new",
    "larger": "worse",
    "smaller": "improved",
    "unchanged": "unchanged",
    "resolved": "resolved",
}
Said = Mapping[str, frozenset[State]]
"""Class -> the states that a text gives it; a class of which it says none is not there."""


def said_changes(texts: Sequence[str], labeler: Labeler) -> list[Said]:
    """What each text says of change, read sentence by sentence."""
    lines = [(row, line) for row, text in enumerate(texts) for line in whole_sentences(text) if words_of_change(line)]
    found: list[dict[str, frozenset[State]]] = [{} for _ in texts]
    for (row, line), mentions in zip(lines, labeler.label([line for _, line in lines]), strict=True):
        words = frozenset(_CALLED[word] for word in words_of_change(line))
        for name, mention in mentions.items():
            fits = words & THERE if mention.state is LabelState.POSITIVE else frozenset[State]()
            if mention.state is LabelState.NEGATIVE:
                fits = words & {"resolved"}
            if fits:
                found[row][name] = found[row].get(name, frozenset()) | fits
    return list(found)


def possible(before: bool | None, now: bool, said: frozenset[State]) -> frozenset[State]:
    """The states of a class that the report before affirms (None: it is not known), the one now affirms, and says."""
    if now:
        return said & THERE or (THERE if before is None else GOES_ON if before else frozenset({"new"}))
    if before is None and "resolved" not in said:
        return frozenset({"absent", "resolved"})
    return frozenset({"resolved"}) if before or "resolved" in said else frozenset({"absent"})
