"""Places of findings in drafts: what sentences say of them, checked against what the images say.

A place that a candidate states for class c counts, as its finding does, by its probability above a threshold:

    beta * place * p_c * ((q_side - t) + q_side * (q_zone - t))

p_c is the probability of the class and q that of the stated sides, or zones, if the class is there. A zone counts as
far as the side is right. Without a side there is no first term, and q_side is 1; without a zone there is no second. A
candidate that states no place gets 0: a place is stated from two thirds on, and a wrong one costs.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from radweave.core.evidence import FindingPlace, SentencePlace
from radweave.drafting.candidates import Candidate, Sentence, SentenceLabels
from radweave.labels import Labeler
from radweave.labels.comparisons import MARK, remove_comparisons
from radweave.labels.contradictions import DEVICES, without_kind
from radweave.labels.places import HOMES, LUNG_ZONES, Located, Place, PlaceLabeler, merge_places
from radweave.labels.text import sentences_by_part

THRESHOLD: Final = 2 / 3
"""Probability from which stating a side or a zone pays off: a wrong one costs twice what a right one gains."""
_MOST_WORDS, _FEWEST_WORDS = 16, 3
_KEPT_OF_PLACE = 2
"""Sentences that are kept for one place of the same findings, the most frequent first."""
_TRIED = 12
"""Sentences that are tried in the place of one."""
_SHARED = 0.5
"""Share of a sentence's words that one in its place has at least."""
_FUNCTION_WORDS = frozenset(
    {"a", "an", "the", "there", "is", "are", "was", "were", "in", "of", "at", "on", "with", "and", "or", "to"}
)


def place_probability(images: FindingPlace, places: Collection[Place]) -> float | None:
    """Probability that a finding lies in all of the stated sides and zones; None where none of them is known.

    Of several sides, and of several zones, the least probable counts; side and zone are taken as independent.
    """
    stated = (
        [images.sides[side] for side in _sides(places) if side in images.sides],
        [images.zones[zone] for zone in _zones(places) if zone in images.zones],
    )
    return prod(min(known) for known in stated if known) if any(stated) else None


def _sides(places: Collection[Place]) -> list[str]:
    return sorted({place.side for place in places if place.side is not None})


def _zones(places: Collection[Place]) -> list[str]:
    return sorted({place.zone for place in places if place.zone is not None})


def sentence_places(text: str, reader: PlaceLabeler, by_class: Mapping[str, FindingPlace]) -> list[SentencePlace]:
    """A row for each finding that a sentence states, in the order of the classes; ``by_class`` may lack any."""
    rows: list[SentencePlace] = []
    for name, located in reader.label([text])[0].items():
        if not located:
            continue
        places = merge_places(place for one in located for place in one.places)
        own = by_class.get(name, FindingPlace())
        rows.append(
            {
                "finding": name,
                "sides": _sides(places),
                "zones": _zones(places),
                "probability": place_probability(own, places),
                "probabilities": {**own.sides, **own.zones},
                "boxes": list(own.boxes),
            }
        )
    return rows


@dataclass(frozen=True, slots=True)
class PlaceUtility:
    """Utility of the places that texts state of one study.

    ``places`` and ``probabilities`` are those of its classes, ``weight`` multiplies the sum.
    """

    places: Mapping[str, FindingPlace]
    probabilities: Mapping[str, float]
    reader: PlaceLabeler
    weight: float

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """The utility (N,) of the places that texts state."""
        return np.array([self._of(read) for read in self.reader.label(texts)])

    def _of(self, read: Mapping[str, Sequence[Located]]) -> float:
        total = 0.0
        for name, located in read.items():
            places = merge_places(place for one in located for place in one.places)
            own = self.places.get(name, FindingPlace())
            zones = [zone for zone in _zones(places) if zone != HOMES.get(name)]
            gain, likely = 0.0, 1.0
            if sides := _sides(places):
                likely = min(own.sides.get(side, 0.0) for side in sides)
                gain += likely - THRESHOLD
            if zones:
                gain += likely * (min(own.zones.get(zone, 0.0) for zone in zones) - THRESHOLD)
            total += self.probabilities.get(name, 0.0) * gain
        return self.weight * total


class PlacedSentences:
    """Sentences of training reports that state findings with their place, by the findings that they state.

    None of them names a device, a measured size, or a place that is neither a side nor a zone of the lungs: no evidence
    speaks for these. Comparisons and de-identification marks are left out unless ``marks``.
    """

    def __init__(self, reports: Sequence[str], labeler: Labeler, reader: PlaceLabeler, *, marks: bool) -> None:
        self.labels, self.reader = SentenceLabels(labeler), reader
        self.sentences: dict[frozenset[str], list[Sentence]] = defaultdict(list)
        first: dict[str, Sentence] = {}
        counts: Counter[str] = Counter()
        for row, report in enumerate(reports):
            for part, text in sentences_by_part(report):
                now = self._usable(text, labeler, marks=marks)
                if now:
                    counts[now] += 1
                    first.setdefault(now, Sentence(now, "finding", row, part))
        self.labels.read(first)
        number: Counter[object] = Counter()
        for text, _ in counts.most_common():
            names = self.labels.affirmed(text)
            if not names or "uncertain" in names or self.labels.denied(text):
                continue
            key = names, tuple(sorted(self._stated(text).items()))
            number[key] += 1
            if number[key] <= _KEPT_OF_PLACE:
                self.sentences[names].append(first[text])

    def _usable(self, text: str, labeler: Labeler, *, marks: bool) -> str:
        if any(character.isdigit() for character in text) or (MARK.search(text) and not marks):
            return ""
        now = without_kind(remove_comparisons(text, labeler)[0], labeler) or ""
        if not _FEWEST_WORDS <= len(now.split()) <= _MOST_WORDS:
            return ""
        located = [one for own in self.reader.label([now])[0].values() for one in own]
        named = any(one.sides or _lung_zones(one) for one in located)
        return now if named and all(_is_checkable(one) for one in located) else ""

    def _stated(self, text: str) -> dict[str, tuple[str, ...]]:
        """Class -> its sides, zones and severities in a sentence."""
        read = self.reader.label([text])[0]
        return {
            name: (
                *sorted({side for one in located for side in one.sides}),
                *sorted({zone for one in located for zone in _lung_zones(one)}),
                *sorted({one.severity for one in located if one.severity}),
            )
            for name, located in read.items()
            if located
        }

    def _severities(self, text: str) -> set[str]:
        return {one.severity for own in self.reader.label([text])[0].values() for one in own if one.severity}

    def variants(self, draft: Candidate, utility: PlaceUtility, barred: NDArray[np.bool_]) -> Iterator[Candidate]:
        """The draft with one sentence replaced by one like it that states the same findings with likelier places.

        A severity that the draft does not state is not brought in, and a sentence that denies a class is not replaced:
        no other one denies it too. ``barred`` (J,) are reports of the study's own patient, which lend no sentence.
        """
        self.labels.read(sentence.text for sentence in draft.sentences)
        for number, old in enumerate(draft.sentences):
            if self.labels.denied(old.text):
                continue
            others = [
                new
                for new in self.sentences.get(self.labels.affirmed(old.text), ())
                if new.text != old.text
                and not barred[new.row]
                and self._severities(new.text) <= self._severities(old.text)
                and shared_words(old.text, new.text) >= _SHARED
            ]
            if not others:
                continue
            worth = utility([old.text, *(new.text for new in others)])
            better = np.flatnonzero(worth[1:] > worth[0])
            for index in better[np.argsort(-worth[1:][better], kind="stable")][:_TRIED].tolist():
                new = replace(others[index], part=old.part)
                yield Candidate((*draft.sentences[:number], new, *draft.sentences[number + 1 :]))


def shared_words(text: str, other: str) -> float:
    """Share of the words of a text, but for function words, that another one has."""
    words, others = ({*re.findall(r"\w+", each.lower())} - _FUNCTION_WORDS for each in (text, other))
    return len(words & others) / max(len(words), 1)


def _lung_zones(located: Located) -> set[str]:
    return {place.zone for place in located.places if place.zone is not None and place.zone != HOMES.get(located.name)}


def _is_checkable(located: Located) -> bool:
    """True where the place of a finding is a side and a zone of the lungs, or its part of the body."""
    return located.name not in DEVICES and _lung_zones(located) <= {*LUNG_ZONES}
