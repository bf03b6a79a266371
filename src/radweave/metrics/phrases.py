"""Phrases that drafts of several systems share with one reference, highlighted side by side.

Source: the figures of DAST (Fig. 3) and AM-MRG (Fig. 5 and 6), which colour matched phrases by hand. Here a phrase is
matched if its words, without case and punctuation, stand in the reference in the same order without a gap.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from radweave.core.study import RESEARCH_ONLY
from radweave.metrics.pairs import Pair

SHORTEST = 3
"""Words of the shortest phrase that counts; a shorter one counts if it is a whole sentence of both."""
_WORD = re.compile(r"\w+(?:['-]\w+)*")
_SENTENCE_END = re.compile(r"[.!?]")


@dataclass(frozen=True, slots=True)
class Passage:
    """A stretch of a text; ``phrase`` is the number of the reference's phrase that it matches, 0 for none."""

    text: str
    phrase: int = 0


@dataclass(frozen=True, slots=True)
class Matched:
    """A draft in passages, and the share of its words that stand in matched phrases; None for a draft without words."""

    passages: tuple[Passage, ...]
    share: float | None


def matched_phrases(draft: str, reference: str, shortest: int = SHORTEST) -> Matched:
    """Mark the longest phrases of a draft that stand in the reference.

    Phrases are taken from the left, each as long as possible, and none crosses the end of a sentence. Equal phrases
    have equal numbers, from 1, in the order in which they stand in the reference.
    """
    words, known = _words(draft), _words(reference)
    starts: dict[str, list[int]] = {}
    for place, (word, *_) in enumerate(known):
        starts.setdefault(word, []).append(place)
    spans: list[tuple[int, int, int]] = []
    place = 0
    while place < len(words):
        at = max(
            starts.get(words[place][0], ()), key=lambda one: (_common(words, place, known, one), -one), default=None
        )
        length = 0 if at is None else _common(words, place, known, at)
        if at is not None and (
            length >= shortest or (_is_sentence(words, place, length) and _is_sentence(known, at, length))
        ):
            spans.append((place, place + length, at))
            place += length
        else:
            place += 1
    order = {where: number for number, where in enumerate(sorted({where for _, _, where in spans}), start=1)}
    passages: list[Passage] = []
    end = 0
    for first, after, where in spans:
        begin, stop = words[first][1], words[after - 1][2]
        if begin > end:
            passages.append(Passage(draft[end:begin]))
        passages.append(Passage(draft[begin:stop], order[where]))
        end = stop
    if end < len(draft):
        passages.append(Passage(draft[end:]))
    matched = sum(after - first for first, after, _ in spans)
    return Matched(tuple(passages), matched / len(words) if words else None)


def _words(text: str) -> list[tuple[str, int, int, int]]:
    """Word in lower case, its first and last character, and the number of its sentence."""
    ends = [match.start() for match in _SENTENCE_END.finditer(text)]
    numbered = []
    sentence = 0
    for match in _WORD.finditer(text):
        while sentence < len(ends) and ends[sentence] < match.start():
            sentence += 1
        numbered.append((match[0].lower(), match.start(), match.end(), sentence))
    return numbered


def _common(
    words: Sequence[tuple[str, int, int, int]], place: int, known: Sequence[tuple[str, int, int, int]], at: int
) -> int:
    """Number of words from ``place`` and ``at`` on that are equal, each within its sentence."""
    length = 0
    while (
        place + length < len(words)
        and at + length < len(known)
        and words[place + length][0] == known[at + length][0]
        and words[place + length][3] == words[place][3]
        and known[at + length][3] == known[at][3]
    ):
        length += 1
    return length


def _is_sentence(words: Sequence[tuple[str, int, int, int]], place: int, length: int) -> bool:
    """True if the phrase is a whole sentence of its text."""
    sentence = words[place][3]
    before = place == 0 or words[place - 1][3] != sentence
    after = place + length == len(words) or words[place + length][3] != sentence
    return before and after


def phrases_page(systems: Mapping[str, Sequence[Pair]], studies: int) -> str:
    """An HTML page with at most so many studies, spread evenly: the reference, and each system's draft beneath it.

    Args:
        systems: name -> pairs, with the same references; studies are those of the first system.
        studies: at most so many studies.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    first = next(iter(systems.values()))
    chosen = [first[number * len(first) // min(studies, len(first))] for number in range(min(studies, len(first)))]
    drafts = {name: {pair.study_id: pair.hyp for pair in pairs} for name, pairs in systems.items()}
    shown = [
        {
            "id": pair.study_id,
            "reference": pair.refs[0],
            "drafts": [
                (name, matched_phrases(texts[pair.study_id], pair.refs[0]))
                for name, texts in drafts.items()
                if pair.study_id in texts
            ],
        }
        for pair in chosen
    ]
    environment = Environment(
        loader=PackageLoader("radweave", "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("phrases.html.j2").render(
        studies=shown, number=len(first), shortest=SHORTEST, notice=RESEARCH_ONLY
    )
