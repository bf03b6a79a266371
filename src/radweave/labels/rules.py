"""The rule-based labeler: mentions, their state in the sentence, and one state per class for the whole report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import chain

from radweave.core.errors import InputError
from radweave.core.ontology import NO_FINDING
from radweave.core.study import LabelState
from radweave.labels.labeler import BLANK, Mention
from radweave.labels.negation import (
    COPULAS,
    FINITE_VERBS,
    JOINS,
    NORMAL,
    OBSERVED,
    UNCHANGED,
    Scope,
    cue_book,
    read_scope,
    statement_end,
)
from radweave.labels.phrases import Lexicon, Match, PhraseBook, Structure, longest
from radweave.labels.text import Sentence, fold, sentences, tokenize

_OTHER = "other findings"
_CACHED_SENTENCES = 32_768
_LONGEST_CACHED = 400
_REACH = 12  # tokens between a quality and the structure behind it


class _Role(Enum):
    FINDING = "finding"
    DOUBTFUL = "doubtful finding"
    HINT = "hint"
    LOOK_ALIKE = "look-alike"
    NOUN = "structure"
    ABNORMAL = "abnormal"
    UNSURE = "borderline"
    NORMAL = "normal"
    UNCHANGED = "unchanged"
    HOME = "place of the class"
    ELSEWHERE = "another place"


@dataclass(frozen=True, slots=True)
class _Entry:
    role: _Role
    label: str
    structure: Structure | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """One mention in one sentence: characters [start, end) of the sentence."""

    label: str
    state: LabelState
    start: int
    end: int


class RuleLabeler:
    """Labels reports by the rules of this package and the words of one lexicon.

    The answer for a sentence depends on that sentence alone, and is kept: reports repeat themselves.
    """

    def __init__(self, lexicon: Lexicon, *, cached_sentences: int = _CACHED_SENTENCES) -> None:
        self._lexicon = lexicon
        self._book = PhraseBook(chain(_entries(lexicon), _predicates()))
        self._cues = cue_book(lexicon.doubts)
        self._read_cached = lru_cache(maxsize=cached_sentences)(self._read)

    @property
    def name(self) -> str:
        return f"rule-based {self._lexicon.name}"

    @property
    def version(self) -> str:
        return self._lexicon.version

    @property
    def classes(self) -> tuple[str, ...]:
        return self._lexicon.classes

    def label(self, texts: Sequence[str]) -> list[dict[str, Mention]]:
        """Read every text; see ``radweave.labels.Labeler``."""
        if isinstance(texts, str):
            raise InputError("texts must be a list of reports", got="one string", expected="a list of strings")
        return [self._label_one(text, number) for number, text in enumerate(texts)]

    def readings(self, sentence: str) -> tuple[Reading, ...]:
        """All mentions of one folded sentence, several of a class too."""
        return self._read_cached(sentence)

    def state_at(self, sentence: str, token: int) -> LabelState:
        """The state that the cues of a folded sentence give a word."""
        return read_scope(tokenize(sentence), self._cues, ()).state(token)

    def _label_one(self, text: str, number: int) -> dict[str, Mention]:
        if not isinstance(text, str):
            raise InputError("a report must be text", field=f"texts[{number}]", got=type(text).__name__, expected="str")
        mentions: dict[str, list[Mention]] = {}
        for offset, sentence in sentences(fold(text)):
            read = self._read_cached if len(sentence) <= _LONGEST_CACHED else self._read
            for reading in read(sentence):
                mention = Mention(reading.state, (offset + reading.start, offset + reading.end))
                mentions.setdefault(reading.label, []).append(mention)
        labels = {
            name: strongest(mentions.get(name, ()), doubt_beats_denial=self._lexicon.doubt_beats_denial)
            for name in self._lexicon.classes
        }
        if NO_FINDING in labels:
            labels[NO_FINDING] = no_finding(labels, mentions.get(_OTHER, ()), self._lexicon.not_a_finding)
        return labels

    def _read(self, text: str) -> tuple[Reading, ...]:
        """All mentions of one folded sentence."""
        sentence = tokenize(text)
        matches = list(self._book.matches(sentence))
        findings = _claims(matches)
        nouns = [match for match in matches if match.value.role is _Role.NOUN]
        if not findings and not nouns:
            return ()
        scope = read_scope(sentence, self._cues, findings)
        readings = []
        for match in findings:
            state = scope.state(match.last)
            if match.value.role is _Role.HINT and state is LabelState.NEGATIVE:
                continue
            if match.value.role is not _Role.FINDING and state is LabelState.POSITIVE:
                state = LabelState.UNCERTAIN
            readings.append(_reading(sentence, match.value.label, state, match.first, match.last))
        readings.extend(_structures(sentence, scope, matches, nouns))
        return tuple(readings)


def strongest(mentions: Sequence[Mention], *, doubt_beats_denial: bool) -> Mention:
    """One state for all mentions of a class; the span is that of the first mention with it.

    A positive mention wins over a negative one and over doubt. With ``doubt_beats_denial`` a class that is denied in
    one place and doubted in another is uncertain, whatever else is said: the published rule of the CheXpert labeler.
    """
    states = {mention.state for mention in mentions}
    order: tuple[LabelState, ...] = (LabelState.UNCERTAIN,)
    if not (doubt_beats_denial and LabelState.UNCERTAIN in states and LabelState.NEGATIVE in states):
        order = (LabelState.POSITIVE, LabelState.UNCERTAIN, LabelState.NEGATIVE)
    for state in order:
        for mention in mentions:
            if mention.state is state:
                return mention
    return BLANK


def no_finding(labels: dict[str, Mention], others: Sequence[Mention], exempt: frozenset[str]) -> Mention:
    """Positive if nothing is positive or uncertain, outside ``exempt``; blank otherwise."""
    asserted = (LabelState.POSITIVE, LabelState.UNCERTAIN)
    named = any(mention.state in asserted for label, mention in labels.items() if label not in exempt)
    if named or any(mention.state in asserted for mention in others):
        return BLANK
    return Mention(LabelState.POSITIVE)


def _entries(lexicon: Lexicon) -> Iterator[tuple[str, _Entry]]:
    for label, terms in lexicon.terms.items():
        for role, phrases in (
            (_Role.FINDING, terms.findings),
            (_Role.DOUBTFUL, terms.doubtful),
            (_Role.HINT, terms.hints),
            (_Role.LOOK_ALIKE, terms.look_alikes),
            (_Role.HOME, terms.home),
            (_Role.ELSEWHERE, terms.elsewhere),
        ):
            for phrase in phrases:
                yield phrase, _Entry(role, label)
        for structure in terms.structures:
            for role, phrases in (
                (_Role.NOUN, structure.nouns),
                (_Role.ABNORMAL, structure.abnormal),
                (_Role.UNSURE, structure.doubtful),
                (_Role.NORMAL, structure.normal),
            ):
                for phrase in phrases:
                    yield phrase, _Entry(role, label, structure)
    for phrase in lexicon.other:
        yield phrase, _Entry(_Role.FINDING, _OTHER)
    for phrase in lexicon.other_look_alikes:
        yield phrase, _Entry(_Role.LOOK_ALIKE, _OTHER)


def _predicates() -> Iterator[tuple[str, _Entry]]:
    for phrase in NORMAL:
        yield phrase, _Entry(_Role.NORMAL, "")
    for phrase in UNCHANGED:
        yield phrase, _Entry(_Role.UNCHANGED, "")


_CLAIMS = frozenset({_Role.FINDING, _Role.DOUBTFUL, _Role.HINT, _Role.LOOK_ALIKE})


def _claims(matches: Sequence[Match[_Entry]]) -> list[Match[_Entry]]:
    """Finding mentions, the longest of each class at each place, without look-alikes and findings elsewhere."""
    by_label: dict[str, list[Match[_Entry]]] = {}
    at_home = {match.value.label for match in matches if match.value.role is _Role.HOME}
    away = {match.value.label for match in matches if match.value.role is _Role.ELSEWHERE} - at_home
    for match in matches:
        if match.value.role in _CLAIMS and match.value.label not in away:
            by_label.setdefault(match.value.label, []).append(match)
    claims = []
    for group in by_label.values():
        fakes = [match for match in group if match.value.role is _Role.LOOK_ALIKE]
        real = [match for match in group if match.value.role is not _Role.LOOK_ALIKE]
        claims += [match for match in longest(real) if not any(_cancels(fake, match) for fake in fakes)]
    return claims


def _cancels(fake: Match[_Entry], match: Match[_Entry]) -> bool:
    overlap = fake.first <= match.last and match.first <= fake.last
    contained = match.first <= fake.first and fake.last <= match.last
    return overlap and not (contained and (match.first, match.last) != (fake.first, fake.last))


def _reading(sentence: Sentence, label: str, state: LabelState, first: int, last: int) -> Reading:
    return Reading(label, state, sentence.starts[first], sentence.ends[last])


def _structures(
    sentence: Sentence, scope: Scope, matches: Sequence[Match[_Entry]], nouns: Sequence[Match[_Entry]]
) -> Iterator[Reading]:
    """Statements about the structures that a sentence names."""
    by_structure: dict[int, list[Match[_Entry]]] = {}
    for noun in nouns:
        by_structure.setdefault(id(noun.value.structure), []).append(noun)
    for group in by_structure.values():
        structure = group[0].value.structure
        assert structure is not None
        shared = None if structure.denied_by_normal else structure
        predicates = longest(
            match
            for match in matches
            if match.value.role in _PREDICATES and match.value.structure in (shared, structure)
        )
        for noun in longest(group):
            chosen = _predicate_of(sentence, scope, noun, predicates)
            if chosen is None:
                if structure.bare is not LabelState.BLANK:
                    state = scope.state(noun.last)
                    yield _reading(sentence, noun.value.label, state, noun.first, noun.last)
                continue
            state = _predicate_state(sentence, scope, chosen, structure)
            if state is not LabelState.BLANK:
                first, last = min(noun.first, chosen.first), max(noun.last, chosen.last)
                yield _reading(sentence, noun.value.label, state, first, last)


_PREDICATES = frozenset({_Role.ABNORMAL, _Role.UNSURE, _Role.NORMAL, _Role.UNCHANGED})


def _predicate_of(
    sentence: Sentence, scope: Scope, noun: Match[_Entry], predicates: Sequence[Match[_Entry]]
) -> Match[_Entry] | None:
    """The words that say how a structure is: right before it, else behind it, else further before it."""
    first, last = scope.clause(noun.last)
    last = min(last, statement_end(sentence.tokens, noun.last + 1, scope.parts))
    inside = [match for match in predicates if first <= match.first and match.last < last]
    overlapping = [match for match in inside if match.first <= noun.last and match.last >= noun.first]
    before = [match for match in inside if match.last < noun.first]
    behind = [match for match in inside if match.first > noun.last and _applies_to(sentence.tokens, noun, match)]
    close = [match for match in before if _attached(sentence.tokens[match.last + 1 : noun.first])]
    near = [match for match in before if _reaches(sentence.tokens, match, noun)]
    for group in (overlapping, close[::-1], behind, near[::-1]):
        telling = [match for match in group if match.value.role is not _Role.UNCHANGED]
        if telling or group:
            return (telling or group)[0]
    return None


def _attached(between: Sequence[str]) -> bool:
    if between[:1] == ("and",) and len(between) == 2:
        return between[1] in {"stable", "unchanged"}  # "normal and stable contours"
    return len(between) <= 3 and not any(token in FINITE_VERBS or token in {",", "and", "with"} for token in between)


def _applies_to(tokens: Sequence[str], noun: Match[_Entry], quality: Match[_Entry]) -> bool:
    """True if an abnormal quality behind a noun is its own: not "heart and large vessels are normal"."""
    between = tokens[noun.last + 1 : quality.first]
    has_join = any(token in JOINS for token in between)
    return quality.value.role is not _Role.ABNORMAL or not has_join or any(token in FINITE_VERBS for token in between)


def _reaches(tokens: Sequence[str], quality: Match[_Entry], noun: Match[_Entry]) -> bool:
    """True if a quality further before a noun applies to it: not "the heart is normal, interstitial markings"."""
    between = tokens[quality.last + 1 : noun.first]
    of_another = quality.value.role is _Role.NORMAL and any(
        token in COPULAS for token in tokens[max(0, quality.first - 3) : quality.first]
    )
    return _same_phrase(between) and not (of_another and any(token in JOINS for token in between))


def _same_phrase(between: Sequence[str]) -> bool:
    """True if a quality may reach a noun across these words.

    "Normal heart size and mediastinal contours", "plaques are seen in the aorta"; not "plaques are large, the aorta".
    """
    for index, token in enumerate(between):
        if token in FINITE_VERBS and not any(word in OBSERVED for word in between[index + 1 : index + 3]):
            return False
    return len(between) <= _REACH


def _predicate_state(sentence: Sentence, scope: Scope, predicate: Match[_Entry], structure: Structure) -> LabelState:
    state = scope.state(predicate.last)
    role = predicate.value.role
    if role is _Role.UNCHANGED:
        return structure.unchanged
    if role is _Role.NORMAL:
        if "not" in sentence.tokens[max(0, predicate.first - 2) : predicate.first]:
            return LabelState.POSITIVE
        return LabelState.UNCERTAIN if state is LabelState.UNCERTAIN else LabelState.NEGATIVE
    if role is _Role.UNSURE and state is LabelState.POSITIVE:
        return LabelState.UNCERTAIN
    return state
