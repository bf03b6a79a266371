"""A small language for phrases, and a matcher that finds thousands of them per millisecond.

    "pleural effusion*"          two words; ``*`` stands for any ending (or beginning)
    "widen*|enlarg* .. aorta"    ``a|b`` alternatives; ``..`` up to three words in between, no punctuation
    "effusion ... space"         ``...`` up to eight words
    "not very? large"            ``very?`` may be absent; ``a|b?`` is either or neither
    ": no END"                   ``END`` is the end of the sentence

A phrase begins with a word that must be there: the matcher looks a token up once and tries only the phrases that
can begin with it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Generic, TypeVar

from radweave.core.ontology import LABEL_SETS, LabelSet, LabelSetName
from radweave.core.study import LabelState
from radweave.labels.text import Sentence

T = TypeVar("T")

_GAPS = {"..": r"(?:[^ ,:()?/]+ ){0,3}?", "...": r"(?:[^ ,:()?/]+ ){0,8}?"}
# Words seen so far keep their candidate phrases; texts full of made-up words must not fill the memory.
_MAX_KNOWN_WORDS = 50_000


@dataclass(frozen=True, slots=True)
class Match(Generic[T]):
    """Tokens [first, last] match a phrase with this value."""

    first: int
    last: int
    value: T


def _word_pattern(word: str) -> str:
    choices = [re.escape(choice).replace(r"\*", "[^ ]*") for choice in word.split("|")]
    return choices[0] if len(choices) == 1 else f"(?:{'|'.join(choices)})"


def phrase_pattern(phrase: str) -> tuple[str, str]:
    """Regular expressions of a phrase's first word and of the whole phrase, over words joined by blanks."""
    parts = phrase.split()
    if not parts or parts[0] in _GAPS or parts[-1] in _GAPS or (len(parts[0]) > 1 and parts[0].endswith("?")):
        raise ValueError(f"a phrase begins and ends with a word that must be there: {phrase!r}")
    pattern = ""
    for part in parts:
        if part in _GAPS:
            pattern += _GAPS[part]
        elif part == "END":
            pattern += "$"
        elif part.endswith("?") and len(part) > 1:
            pattern += f"(?:{_word_pattern(part[:-1])} )?"
        else:
            pattern += _word_pattern(part) + " "
    return _word_pattern(parts[0]), pattern


class PhraseBook(Generic[T]):
    """Many phrases, each with a value."""

    def __init__(self, entries: Iterable[tuple[str, T]]) -> None:
        self._by_first: dict[str, list[tuple[re.Pattern[str], T]]] = {}
        self._open: list[tuple[re.Pattern[str], re.Pattern[str], T]] = []
        for phrase, value in entries:
            first, whole = phrase_pattern(phrase)
            compiled = re.compile(whole)
            choices = phrase.split()[0].split("|")
            if any("*" in choice for choice in choices):
                self._open.append((re.compile(first), compiled, value))
            else:
                for choice in choices:
                    self._by_first.setdefault(choice, []).append((compiled, value))
        self._known: dict[str, tuple[tuple[re.Pattern[str], T], ...]] = {}

    def _candidates(self, word: str) -> tuple[tuple[re.Pattern[str], T], ...]:
        candidates = self._by_first.get(word, [])
        candidates = candidates + [(whole, value) for first, whole, value in self._open if first.fullmatch(word)]
        if len(self._known) >= _MAX_KNOWN_WORDS:
            self._known.clear()
        self._known[word] = tuple(candidates)
        return self._known[word]

    def matches(self, sentence: Sentence) -> Iterator[Match[T]]:
        """Every phrase at every place, in the order of their first token; matches may overlap."""
        known = self._known
        words, at = sentence.words, sentence.at
        for index, token in enumerate(sentence.tokens):
            candidates = known.get(token)
            if candidates is None:
                candidates = self._candidates(token)
            for pattern, value in candidates:
                match = pattern.match(words, at[index])
                if match is not None:
                    yield Match(index, sentence.token_at(match.end() - 2), value)


def longest(matches: Iterable[Match[T]]) -> list[Match[T]]:
    """From left to right, the longest match at each place, without overlapping ones; of two equal ones the first."""
    ordered = sorted(matches, key=lambda match: (match.first, -match.last))
    chosen: list[Match[T]] = []
    for match in ordered:
        if not chosen or match.first > chosen[-1].last:
            chosen.append(match)
    return chosen


# The words of a label set: findings, structures and their qualities, look-alikes.


@dataclass(frozen=True, slots=True)
class Structure:
    """A part of the body that every report names, and the words that make it a finding of a class.

    "Heart size is normal" denies cardiomegaly, "the heart is large" states it, "the heart is stable" gives
    ``unchanged``, and "the heart" alone says nothing. ``abnormal``, ``doubtful`` and ``normal`` are qualities that make
    the class positive, uncertain and negative. Without ``denied_by_normal`` the common words for normal do not deny it:
    an aorta of normal width may well be calcified. ``bare`` is the state where nothing is said of it: "interstitial
    markings" are named when they are seen too well, "normal interstitial markings" are not a finding.
    """

    nouns: tuple[str, ...]
    abnormal: tuple[str, ...]
    normal: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()
    unchanged: LabelState = LabelState.BLANK
    denied_by_normal: bool = True
    bare: LabelState = LabelState.BLANK


@dataclass(frozen=True, slots=True)
class Terms:
    """Phrases of one class, in the language of ``radweave.labels.phrases``.

    ``findings`` state the class by being mentioned. ``doubtful`` are findings that state it as uncertain; ``hints`` do
    so too, but say nothing where they are denied. ``look_alikes`` cancel every hit they overlap, unless it contains
    them ("pericardial effusion" is no pleural effusion, "pleural or pericardial effusion" is). A sentence that names a
    place ``elsewhere`` and none at ``home`` speaks of something else ("a nodule in the left thyroid lobe").
    """

    findings: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    look_alikes: tuple[str, ...] = ()
    structures: tuple[Structure, ...] = ()
    home: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Lexicon:
    """The words of a label set.

    ``other`` holds findings outside the classes: they count for No Finding where the ontology has it, and as the other
    half of "X or Y". ``not_a_finding`` names classes that leave No Finding alone. ``doubts`` are words that the label
    set's own annotators read as doubt, and others do not. See ``radweave.labels.rules.strongest`` for the last field.
    """

    label_set: LabelSet
    version: str
    terms: Mapping[str, Terms]
    other: tuple[str, ...] = ()
    other_look_alikes: tuple[str, ...] = ()
    not_a_finding: frozenset[str] = frozenset()
    doubts: tuple[str, ...] = ()
    doubt_beats_denial: bool = False

    @property
    def name(self) -> str:
        return self.label_set.name

    @property
    def classes(self) -> tuple[str, ...]:
        return self.label_set.classes


@cache
def load_lexicon(name: LabelSetName) -> Lexicon:
    """The words of a label set, from the lexicon file of its name.

    "@list" in the file stands for the phrases of a list of ``words``, ``same_as`` for the terms of a class of ``base``.
    """
    content = tomllib.loads((files("radweave.labels") / "lexicons" / f"{name}.toml").read_text(encoding="utf-8"))
    words = content.pop("words", {})
    base = load_lexicon(content.pop("base")).terms if "base" in content else {}
    terms = {
        label: base[entry["same_as"]] if "same_as" in entry else _terms(entry, words)
        for label, entry in content.pop("terms").items()
    }
    exempt = frozenset(content.pop("not_a_finding", ()))
    options: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in content.items()
    }
    return Lexicon(LABEL_SETS[name], terms=terms, not_a_finding=exempt, **options)


def _terms(entry: Mapping[str, Any], words: Mapping[str, Sequence[str]]) -> Terms:
    structures = tuple(
        Structure(**{key: _value(value, words) for key, value in structure.items()})
        for structure in entry.get("structures", ())
    )
    phrases = {key: _value(value, words) for key, value in entry.items() if key != "structures"}
    return Terms(structures=structures, **phrases)


def _value(value: Any, words: Mapping[str, Sequence[str]]) -> Any:
    """Phrases with the shared lists in their places; a state by its name."""
    if isinstance(value, list):
        return tuple(phrase for item in value for phrase in (words[item[1:]] if item.startswith("@") else (item,)))
    return LabelState(value) if isinstance(value, str) else value
