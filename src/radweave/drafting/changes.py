"""Change from the prior study in drafts, stated by comparing sentences of training reports.

A sentence states a change if it affirms one class, or denies one and calls it resolved, and speaks of one change alone.
Stating the change s of class c is worth q_cs - t, its probability less the threshold, beside what a draft is worth
without: a change is stated where the evidence supports it, and never without a prior.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from radweave.drafting.candidates import Candidate, Sentence, SentenceLabels, clean_sentence, section_start
from radweave.drafting.smoothers import Changes, Floats
from radweave.labels import NO_FINDING, Labeler
from radweave.labels.comparisons import MARK, PRESENT, STATES, State, stated_changes, words_of_change
from radweave.labels.contradictions import states_something, takes_back
from radweave.labels.text import sentences_by_part

MOST_WORDS, FEWEST_WORDS = 18, 3
MOST = 12
"""Sentences for each change of a class: the first ones, which differ in side, grade and wording."""
Change = tuple[str, State]
"""A class and its state relative to the prior study."""


class ComparisonPool:
    """The sentences of training reports that state one change of one class, and drafts that they are put into."""

    def __init__(
        self, reports: Sequence[str], labeler: Labeler, *, marks: bool, consistent: bool, places: bool = True
    ) -> None:
        self.labels, self.consistent = SentenceLabels(labeler), consistent
        first: dict[str, tuple[int, str]] = {}
        for row, report in enumerate(reports):
            for part, written in sentences_by_part(report):
                text = clean_sentence(written, labeler, compares=True, places=places)
                fits = FEWEST_WORDS <= len(text.split()) <= MOST_WORDS and (marks or not MARK.search(text))
                if fits and words_of_change(text):
                    first.setdefault(text, (row, part))
        self.labels.read(first)
        self.sentences: Mapping[Change, list[Sentence]] = defaultdict(list)
        for (text, source), changes in zip(first.items(), stated_changes(list(first), labeler), strict=True):
            one = self._states_one(text, changes)
            if one is not None and len(self.sentences[one]) < MOST:
                self.sentences[one].append(Sentence(text, "comparison", *source))

    def _states_one(self, text: str, changes: Mapping[str, frozenset[State]]) -> Change | None:
        """The change that a sentence states, if it is one alone and nothing else is affirmed or left open."""
        stated = [(name, state) for name, states in changes.items() for state in states if name != NO_FINDING]
        if len(stated) != 1:
            return None
        name, state = stated[0]
        alone = self.labels.affirmed(text) == ({name} if state in PRESENT else frozenset())
        return stated[0] if alone else None

    def variants(
        self, draft: Candidate, changes: Changes, classes: Sequence[str], barred: NDArray[np.bool_]
    ) -> Iterator[Candidate]:
        """The draft with one sentence more, for each change whose probability pays off, of a class that it does not yet
        compare. What the draft says of the class alone gives way; none is made where it cannot.
        """
        self.labels.read(sentence.text for sentence in draft.sentences)
        compared = {name for sentence in draft.sentences for name in self._compared(sentence)}
        for name, row in zip(classes, changes.probabilities, strict=True):
            if name in compared or name == NO_FINDING:
                continue
            for state, probability in zip(STATES[1:], row[1:], strict=True):
                if probability > changes.threshold:
                    allowed = (one for one in self.sentences.get((name, state), ()) if not barred[one.row])
                    for sentence in allowed:
                        if (made := self._with(draft, sentence, name)) is not None:
                            yield made

    def _compared(self, sentence: Sentence) -> frozenset[str]:
        """The classes of a sentence that speaks of change."""
        if not words_of_change(sentence.text):
            return frozenset()
        return self.labels.affirmed(sentence.text) | self.labels.denied(sentence.text)

    def _with(self, draft: Candidate, new: Sentence, name: str) -> Candidate | None:
        """None too where another part than that of the new sentence would be empty."""
        removed = []
        for number, old in enumerate(draft.sentences):
            affirmed = self.labels.affirmed(old.text)
            if name in affirmed and affirmed != {name}:
                return None  # Another finding would go with it.
            gone = name in affirmed or name in self.labels.denied(old.text)
            if gone or (self.consistent and not states_something(old.text) and takes_back(old.text, new.text)):
                removed.append(number)
        remaining = [old for number, old in enumerate(draft.sentences) if number not in removed]
        own = [place for place in removed if draft.sentences[place].part == new.part]
        before = sum(place < own[0] for place in removed) if own else 0
        remaining.insert(own[0] - before if own else section_start(new.part, remaining), new)
        same = {sentence.part for sentence in remaining} == {sentence.part for sentence in draft.sentences}
        return Candidate(tuple(remaining)) if same else None


@dataclass(frozen=True, slots=True)
class ChangeUtility:
    """Utility of the changes that texts state, under the evidence of one study."""

    changes: Changes
    classes: Sequence[str]
    labeler: Labeler

    def stated(self, texts: Sequence[str]) -> list[tuple[Change, ...]]:
        """The changes of findings that each text states."""
        return [
            tuple(
                (name, state) for name in self.classes if name != NO_FINDING for state in sorted(stated.get(name, ()))
            )
            for stated in stated_changes(texts, self.labeler)
        ]

    def __call__(self, stated: Sequence[tuple[Change, ...]]) -> Floats:
        """Sum of q - t over the changes that each of N texts states (N,)."""
        column = {name: number for number, name in enumerate(self.classes)}
        q, t = self.changes.probabilities, self.changes.threshold
        return np.array([sum(q[column[name], STATES.index(state)] - t for name, state in each) for each in stated])
