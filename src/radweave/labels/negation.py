"""Negated and doubtful words of a sentence.

A cue governs the words behind it up to the end of its clause, or the words before it back to the last verb. Lists
joined by commas, "and", "or" are governed as a whole; a comma or "and" that opens a new statement ends the reach:

    "No effusion, pneumothorax or consolidation"     one list
    "No effusion, small pneumothorax on the left"    the second half stands alone
    "No effusion and the heart is enlarged"          so it does here
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import TypeVar

from radweave.core.study import LabelState
from radweave.labels.phrases import Match, PhraseBook, longest
from radweave.labels.text import Sentence

# A trigger word and the stretch of the sentence that it governs are ideas of NegEx (Chapman et al., J Biomed Inform
# 2001) and ConText (Harkema et al., 2009); the lists and the reach rules are our own.


class Cue(Enum):
    """Effect of a phrase on the findings around it."""

    NEGATES = "no X"
    NEGATES_NEXT = "resolved X"
    NEGATES_LAST = "X removal"
    NEGATED = "X is not seen"
    DOUBTS = "may represent X"
    DOUBTS_NEXT = "possible X"
    DOUBTED = "X is not excluded"
    EITHER = "X versus Y"
    PARTS = "X, but Y"
    NOTHING = "no change in X"
    NO_MORE = "no increase in X"


@cache
def _cues() -> tuple[tuple[str, Cue], ...]:
    """Phrases with their cues, from ``labels/lexicons/cues.toml``."""
    content = tomllib.loads((files("radweave.labels") / "lexicons" / "cues.toml").read_text(encoding="utf-8"))
    return tuple(
        (phrase.format(**content["words"]), Cue[name.upper()])
        for name, phrases in content["cues"].items()
        for phrase in phrases
    )


def cue_book(doubts: tuple[str, ...] = ()) -> PhraseBook[Cue]:
    """All cues, and further phrases that doubt what follows them."""
    return PhraseBook([*_cues(), *((phrase, Cue.DOUBTS) for phrase in doubts)])


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FINITE_VERBS = _words("""
    is are was were has have had remains remain appears appear demonstrates demonstrate shows show reveals reveal
    seems seem measures measure contains extends continues persists projects overlies overlie lies does do did
    became become becomes includes contain
    can could may might will would
""")

# Behind these a quality is said of what stands before: "the heart is normal".
COPULAS = _words("is are was were remains remain appears appear seems seem")

# Behind "is" or "are" these say that something is there, and tell no quality.
OBSERVED = _words("""
    seen identified noted observed detected visualized visualised demonstrated appreciated found evident present shown
    suspected been
""")

# A clause that begins so says something of its own: "no effusion, there is atelectasis".
CLAUSE_OPENERS = _words("there the this these those it its they a an")

# A finding described so is there: "no pneumothorax, small effusion". Not "large": "no consolidation, large effusion".
PRESENT_QUALITIES = _words("""
    mild mildly minimal minimally small tiny trace moderate moderately severe marked markedly slight slightly stable
    unchanged persistent persisting residual worsening worsened increased increasing improving improved improvement
    multiple several few scattered chronic old healed healing bibasilar left right stably again status
    redemonstrated known prominent interval postoperative postsurgical low hyperexpanded tortuous degenerative
    borderline
""")

# Structures that are always present and can grow: "no increase in heart size" denies a finding, "no increase in the
# effusion" does not.
MEASURES = _words("""
    size sizes density densities thickness diameter caliber calibre width ratio index marking markings heart cardiac
    attenuation opacity interstitium vascularity volume
""")

# Words for a normal structure, and words for one that only did not change.
NORMAL = (
    "normal",
    "normally",
    "unremarkable",
    "natural",
    "within normal|the? limits|limit|range|units|bounds",
    "within limits",
    "within the normal limits|range",
    "within limits of normal",
    "normal limits|range",
    "wnl",
    "clear",
    "preserved|maintained",
    "midline",
    "nondilated|nonenlarged",
    "without abnormality|enlargement|widening",
)
UNCHANGED = (
    "stable",
    "unchanged",
    "similar to|in",
    "unaltered",
    "no .. change|changes",
    "not .. changed",
)


T = TypeVar("T")

_NEGATED, _DOUBTED = 1, 2
JOINS = frozenset({",", "and"})
_STARTS_PHRASE = frozenset(
    {",", ":", "(", "may", "might", "could", "represent", "represents", "representing", "reflect", "reflects"}
    | {"after", "following", "post", "since", "before", "until", "despite"}
    | {"reflecting", "with", "for", "of", "to", "be", "suggesting", "suggests", "suggest", "indicating"}
)
_STOPS_LIST = frozenset({"with", ":", "(", "no", "without", "suggesting", "suggestive", "consistent", "compatible"})
# Words after a removal: "removal of the tube and placement of a drain".
_EVENTS = PRESENT_QUALITIES | {
    *("placement", "insertion", "development", "appearance", "replacement", "introduction"),
    *("new", "newly", "bilateral", "there"),
}
_STOPS_DOUBT = frozenset({"with", ",", "and", ":", "in", "at", "suggestive", "suggesting", "consistent", "compatible"})


@dataclass(slots=True)
class Scope:
    """Per token: is it negated, is it doubted; and where clauses part."""

    flags: bytearray
    parts: frozenset[int]

    def state(self, index: int) -> LabelState:
        """State of a statement whose head word is token ``index``. What is denied is not in doubt."""
        flags = self.flags[index]
        if flags & _NEGATED:
            return LabelState.NEGATIVE
        return LabelState.UNCERTAIN if flags & _DOUBTED else LabelState.POSITIVE

    def clause(self, index: int) -> tuple[int, int]:
        """Tokens [first, last) of the clause that token ``index`` is in."""
        first = max((part + 1 for part in self.parts if part < index), default=0)
        last = min((part for part in self.parts if part > index), default=len(self.flags))
        return first, last


def read_scope(sentence: Sentence, book: PhraseBook[Cue], findings: Sequence[Match[T]]) -> Scope:
    """Find the cues of a sentence and mark what they govern. ``findings`` are joined by "or" into doubt."""
    tokens = sentence.tokens
    cues = longest(book.matches(sentence))
    parts = frozenset(index for cue in cues if cue.value is Cue.PARTS for index in range(cue.first, cue.last + 1))
    scope = Scope(bytearray(len(tokens)), parts)
    for cue in cues:
        if cue.value is Cue.NEGATES:
            _mark(scope, cue.last + 1, _forward_end(tokens, cue.last + 1, parts), _NEGATED)
        elif cue.value is Cue.NEGATES_NEXT:
            _mark(scope, cue.last + 1, _list_end(tokens, cue.last + 1, parts), _NEGATED)
        elif cue.value is Cue.NO_MORE:
            end = _phrase_end(tokens, cue.last + 1, parts, stops=JOINS)
            if not MEASURES.isdisjoint(tokens[cue.last + 1 : end]):
                _mark(scope, cue.first + 1, end, _NEGATED)
        elif cue.value is Cue.NEGATES_LAST:
            _mark(scope, _phrase_start(tokens, cue.first, parts), cue.first, _NEGATED)
        elif cue.value is Cue.NEGATED:
            _mark(scope, _backward_start(tokens, cue.first, parts), cue.first, _NEGATED)
        elif cue.value is Cue.DOUBTS:
            _mark(scope, cue.last + 1, _forward_end(tokens, cue.last + 1, parts), _DOUBTED)
        elif cue.value is Cue.DOUBTS_NEXT:
            _mark(scope, cue.last + 1, _phrase_end(tokens, cue.last + 1, parts), _DOUBTED)
        elif cue.value is Cue.DOUBTED:
            _mark(scope, _backward_start(tokens, cue.first, parts), cue.first, _DOUBTED)
        elif cue.value is Cue.EITHER:
            _mark(scope, _phrase_start(tokens, cue.first, parts), cue.first, _DOUBTED)
            _mark(scope, cue.last + 1, _phrase_end(tokens, cue.last + 1, parts), _DOUBTED)
    _mark_alternatives(scope, tokens, findings)
    return scope


def _mark(scope: Scope, first: int, last: int, flag: int) -> None:
    for index in range(first, last):
        scope.flags[index] |= flag


def _forward_end(tokens: Sequence[str], start: int, parts: frozenset[int]) -> int:
    """End of the reach of a cue that governs what follows it."""
    verb = False
    for index in range(start, len(tokens)):
        if index in parts or tokens[index] == ":":
            return index
        if tokens[index] in JOINS and index > start and _opens_statement(tokens, index + 1, parts, verb=verb):
            return index
        if tokens[index] == "with" and index > start and _accompanies(tokens, index + 1):
            return index
        verb = verb or tokens[index] in FINITE_VERBS
    return len(tokens)


def _accompanies(tokens: Sequence[str], start: int) -> bool:
    """True if "with" introduces something present: "no pneumothorax with a small effusion"."""
    first = start + (tokens[start : start + 1] in (("a",), ("an",)))
    rest = tokens[first:]
    return bool(rest) and rest[0] in _EVENTS and "or" not in rest and "nor" not in rest


def statement_end(tokens: Sequence[str], start: int, parts: frozenset[int]) -> int:
    """End of the statement about a subject: a join that opens a new one, after its own verb."""
    verb = False
    for index in range(start, len(tokens)):
        if index in parts:
            return index
        if verb and tokens[index] in JOINS and _opens_statement(tokens, index + 1, parts, verb=True):
            return index
        verb = verb or tokens[index] in FINITE_VERBS
    return len(tokens)


def _opens_statement(tokens: Sequence[str], start: int, parts: frozenset[int], *, verb: bool) -> bool:
    """True if the words after a comma or "and" are a statement of their own, rather than part of a list.

    ``verb``: the words before have their verb already, so that a second one makes a second statement.
    """
    if start >= len(tokens):
        return False
    if tokens[start] in CLAUSE_OPENERS:
        return True
    end = start
    while end < len(tokens) and end not in parts and tokens[end] not in JOINS:
        if tokens[end] in FINITE_VERBS:
            # "no mass, and pneumothorax is seen" closes a list; "no mass, heart is enlarged" is a statement.
            return verb or not (end + 1 < len(tokens) and tokens[end + 1] in OBSERVED)
        if tokens[end] in ("or", "nor"):
            return False
        end += 1
    if tokens[start] in PRESENT_QUALITIES:
        rest = tokens[end:]
        return "or" not in rest and "nor" not in rest
    return False


def _list_end(tokens: Sequence[str], start: int, parts: frozenset[int]) -> int:
    """End of the list of what is gone: "removal of [the tube, the drain and both lines], with a new catheter"."""
    for index in range(start, len(tokens)):
        if index in parts or tokens[index] in FINITE_VERBS or tokens[index] in _STOPS_LIST:
            return index
        if index > start and tokens[index] in JOINS:
            after = _until_join(tokens, index + 1)
            if (after and after[0] in _EVENTS) or not FINITE_VERBS.isdisjoint(after):
                return index
    return len(tokens)


def _until_join(tokens: Sequence[str], start: int) -> Sequence[str]:
    """The words of a list's next entry."""
    if tokens[start : start + 1] == ("and",):
        start += 1
    end = next((index for index in range(start, len(tokens)) if tokens[index] in JOINS), len(tokens))
    return tokens[start:end]


def _phrase_end(
    tokens: Sequence[str], start: int, parts: frozenset[int], *, stops: frozenset[str] = _STOPS_DOUBT
) -> int:
    """End of the noun phrase that an adjective such as "possible" stands before; "or" keeps it open."""
    for index in range(start, len(tokens)):
        if index in parts or tokens[index] in FINITE_VERBS:
            return index
        if tokens[index] in stops and index > start and "or" not in tokens[index : index + 4]:
            return index
    return len(tokens)


def _phrase_start(tokens: Sequence[str], end: int, parts: frozenset[int]) -> int:
    """Start of the noun phrase before token ``end``: "opacities may represent [atelectasis] versus scarring"."""
    for index in range(end - 1, -1, -1):
        if index in parts or tokens[index] in FINITE_VERBS or tokens[index] in _STARTS_PHRASE:
            return index + 1
    return 0


def _backward_start(tokens: Sequence[str], end: int, parts: frozenset[int]) -> int:
    """Start of the subject of a verb phrase that begins at token ``end``.

    A relative clause between subject and verb is stepped over: "the effusion, which was seen before, is not seen". A
    question inside brackets stays inside.
    """
    relative = _relative_clause(tokens, end)
    for index in range(end - 1, -1, -1):
        if relative and relative[0] <= index < relative[1]:
            continue
        if tokens[index] == "(":
            return index + 1
        if index in parts or tokens[index] in FINITE_VERBS or tokens[index] == ":":
            return index + 1
        if tokens[index] == "," and _opens_subject(tokens, index, end):
            return index + 1
    return 0


def _relative_clause(tokens: Sequence[str], end: int) -> tuple[int, int] | None:
    """Tokens [first, last) of a ", which ... ," right before the verb at ``end``."""
    if end < 2 or tokens[end - 1] != ",":
        return None
    for index in range(end - 2, 0, -1):
        if tokens[index] in ("which", "that") and tokens[index - 1] == ",":
            return index - 1, end
    return None


def _opens_subject(tokens: Sequence[str], comma: int, end: int) -> bool:
    """True if a comma separates two statements, the second of which has its verb at ``end``."""
    is_list = any(token in ("or", "and", "nor", ",") for token in tokens[comma + 1 : end])
    return not is_list and tokens[0] in PRESENT_QUALITIES | CLAUSE_OPENERS


def _mark_alternatives(scope: Scope, tokens: Sequence[str], findings: Sequence[Match[T]]) -> None:
    """Of two findings joined by "or" it is open which one is there: "scarring or atelectasis"."""
    ordered = sorted(findings, key=lambda match: match.first)
    for left, right in pairwise(ordered):
        between = tokens[left.last + 1 : right.first]
        if between and len(between) <= 4 and ("or" in between or "/" in between) and "," not in between[1:]:
            scope.flags[left.last] |= _DOUBTED
            scope.flags[right.last] |= _DOUBTED
