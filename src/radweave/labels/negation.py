"""Negated and doubtful words of a sentence.

A cue governs the words behind it up to the end of its clause, or the words before it back to the last verb. Lists
joined by commas, "and", "or" are governed as a whole; a comma or "and" that opens a new statement ends the reach:

    "No effusion, pneumothorax or consolidation"     one list
    "No effusion, small pneumothorax on the left"    the second half stands alone
    "No effusion and the heart is enlarged"          so it does here
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain, pairwise
from typing import TypeVar

from radweave.core.study import LabelState
from radweave.labels.phrases import Match, PhraseBook, longest
from radweave.labels.text import Sentence

# Words that negate or doubt a finding, and words that end their reach. General medical English, no class names.
#
# The two halves of the idea - a trigger word and the stretch of the sentence it governs - go back to NegEx (Chapman et
# al., J Biomed Inform 2001) and ConText (Harkema et al., 2009); the lists and the reach rules are our own.


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


_OBSERVED = (
    "seen|identified|noted|observed|detected|visualized|visualised|visible|demonstrated|appreciated|found|evident|"
    "present|shown|suspected|recognized|recognised|apparent|distinguished|encountered|followed|selected|determined|"
    "discerned|monitored|included|remarkable|watched|viewed|revealed|suggested|displayed|reported"
)
_BE = "is|are|was|were|be|been|being"
_SINCE = "now|since|subsequently|recently|also|both|all|interval"
_NEARLY = "now|since|completely|entirely|nearly|essentially|almost|interval"
_TAKEN = "removed|pulled|discontinued|explanted|withdrawn"
_IN_PART = "pulled|withdrawn|retracted back|by|slightly|approximately|about|a|to|into"
_DEGREE = "clearly|definitely|definitively|convincingly|currently|readily|well|really|clear|distinctly|now"

CUES: dict[Cue, tuple[str, ...]] = {
    Cue.NEGATES: (
        "no",
        "not",
        "nor",
        "neither",
        "without",
        "w/o",
        "w / o",
        "denies|denied",
        "cannot|can't|isn't|aren't|wasn't|weren't|don't|doesn't|didn't",
        "negative for|of",
        "free of|from",
        "clear of",
        "devoid of",
        "exclude|excludes|excluding|excluded",
        "ruled out",
        "unremarkable for",
        "never",
        "no longer any|evidence of?",
    ),
    # Before the next entry: of two cues of one length the first given holds.
    Cue.NEGATES_LAST: (
        "removal|explantation END",
        "removal|explantation ,|(|and|with|without|since|in|is|was|has|there",
    ),
    Cue.NEGATES_NEXT: (
        "absence|lack of",
        "absent",
        "rather than",
        "instead of",
        "resolved",
        "removal|resolution|disappearance|clearing|explantation|extraction of",
        "clearing|removal|resolution|explantation",
        "recently|previously|since|newly|now removed",
    ),
    Cue.NEGATED: (
        f"{_BE} not|n't {_DEGREE}? {_OBSERVED}",
        f"{_BE} neither {_OBSERVED}",
        f"not {_DEGREE}? {_OBSERVED}",
        f"cannot|couldn't be {_OBSERVED}",
        f"could|can not be {_OBSERVED}",
        f"no longer {_DEGREE}? {_OBSERVED}",
        f"{_BE} no longer {_DEGREE}? {_OBSERVED}",
        f"has|have not been {_DEGREE}? {_OBSERVED}",
        "did|do|does not exist|occur|develop",
        "is|are|was|were absent",
        "is|are|was|were|has|have been? ruled|excluded out?",
        f"has|have been? {_NEARLY}? {_NEARLY}? resolved|cleared|disappeared",
        "has|have resolved|cleared|disappeared",
        "is|are|was|were|has|have been? completely|totally|entirely regressed",
        "is|are|was|were now? completely? resolved",
        "has|have been excluded",
        f"has|have {_SINCE}? been {_SINCE}? {_TAKEN}",
        f"is|are|was|were|been {_SINCE}? {_TAKEN}",
        "has|have|is|are|was|were|been taken|pulled out",
        "removed END",
        "removed since|in|from|,|after|between|at|now|and|without|with",
        "is|are now? out|gone END",
        "is|are none|nil|absent|negative",
        ": none|absent|negative|nil",
        ": no END",
        "( - )",
    ),
    Cue.DOUBTS: (
        "may|might|could",
        "may|might|could also|still|possibly|potentially? be|represent|reflect|indicate|suggest|correspond",
        "may|might|could also|still|possibly|potentially? be .. related|due|secondary|attributed|attributable to",
        "possibly|probably|perhaps|potentially|presumably .. related|due|secondary|attributed|attributable to",
        "no new",
        "cannot|can't exclude|rule|excluded|confidently out?",
        "can|could|does|do|to not exclude|rule out?",
        "not exclude|excluded",
        "difficult|hard to exclude",
        "rule out",
        "to exclude",
        "r / o",
        "suspicious|suspicion|suspicions|worrisome for|of",
        "concern|concerns|concerning|worry for|of|about|regarding",
        "question of|whether",
        "questions|questioning|query",
        "differential|ddx includes|include|including|considerations|diagnosis|diagnoses|of|is",
        "evaluate|evaluation|assess|assessment|evaluated for",
        "in terms of",
        "whether",
        "to be considered",
        "correlate|correlation .. for",
        "in the? appropriate|proper|right|correct clinical? setting|context ,|this|these|the|it",
        "if",
    ),
    Cue.DOUBTS_NEXT: (
        "possible|possibly|probable|probably|potential|potentially|perhaps|maybe|presumed|presumably|conceivable",
        "questionable|questionably|equivocal|indeterminate|suspected|suspect|suspicious|doubtful",
        "suggestion of",
        "question|query",
        "hint of",
        "can|could be",
        "either",
    ),
    Cue.DOUBTED: (
        "cannot|can't be? entirely|completely|definitively|totally|reliably|fully|definitely? excluded|ruled out?",
        "can|could not be? entirely|completely|definitively|totally|reliably|fully|definitely? excluded|ruled out?",
        "is|are|was|were not entirely|completely|definitively|totally|fully? excluded",
        "not entirely|completely|definitively|totally|fully? excluded",
        "is|are|was|were also|still|certainly?"
        " possible|probable|suspected|questionable|questioned|considered|equivocal|likely|conceivable",
        "suspected END",
        "in the? appropriate|proper|right|correct clinical? setting|context END",
        "is|are not well|adequately|fully|optimally evaluated|assessed",
        "to be? excluded",
        "is|are|was|were difficult|hard to exclude|assess|evaluate",
        "is|are|was|were felt? unlikely|doubtful",
        "is|are|was|were felt? less likely",
        "( ? )",
        "?",
        "should|must|may|might|could be? considered|excluded|suspected|questioned",
        "is|are|remains|remain a? consideration|possibility",
        "would|could|may|might be a? consideration|possibility",
    ),
    Cue.EITHER: ("versus|vs",),
    Cue.PARTS: (
        "but",
        "however",
        "although",
        "though",
        "albeit",
        "while",
        "whereas",
        "except",
        "excepting",
        "besides",
        "yet",
        "which",
        "aside|apart from",
        "other than",
        "with the? exception of",
        "otherwise",
        "because",
        "secondary|due|owing|attributed|attributable to",
        "related|relating to",
        "despite",
        "status post",
        "s / p",
        "given the",
        "in the setting of",
        "there is|are|was|were|has|have",
        "on a? background|floor of",
    ),
    Cue.NOTHING: (
        "no|without further|evidence? of? significant|definite|appreciable|substantial|obvious|gross|major? interval?"
        " change|changes|difference",
        "no|without significant|interval|definite|appreciable|substantial|apparent? decrease|progression",
        f"has|have been {_SINCE}? {_IN_PART}",
        f"has|have|is|are|was|were|been {_SINCE}? {_IN_PART}",
        "not significantly|appreciably|substantially|much? changed|different",
        "not only|just|merely",
        "partial|partially|incomplete|incompletely clearing|resolution|resolved|cleared of?",
        "has|have been? partially|incompletely|partly resolved|cleared|removed",
        "no longer",
        "not previously|formerly .. seen|identified|noted|present|observed|demonstrated|visualized",
        "not seen|identified|noted|present|observed|demonstrated|visualized|detected|evident|followed|available"
        " .. on|in|at the|a|any? prior|previous|earlier|old|preceding|comparison|last|former",
        "not include|included|imaged|fully|optimally|entirely",
        "not evaluated|assessed|characterized",
        "could|can|cannot not? be? evaluated|assessed optimally?",
        "if any|present|clinically|indicated|there|needed|necessary|desired",
        "no prior|previous|comparison studies|study|exam|exams|examination|examinations|available|films?",
        "may be? better|due|helpful|useful|beneficial",
        "as could be? seen",
        "could be? seen|observed|evaluated",
        "can|may be seen|observed|evaluated",
        "in contact without",
        "not calcified",
        "most|strongly|highly|very suggestive of",
        "age indeterminate",
        "indeterminate age|in",
    ),
    Cue.NO_MORE: ("no|without significant|interval|definite|appreciable|substantial|apparent|pathological? increase",),
}


def cue_book(doubts: tuple[str, ...] = ()) -> PhraseBook[Cue]:
    """All cues, and further phrases that doubt what follows them."""
    phrases = ((phrase, cue) for cue, phrases in CUES.items() for phrase in phrases)
    return PhraseBook(chain(phrases, ((phrase, Cue.DOUBTS) for phrase in doubts)))


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

# What is always there and can grow: "no increase in heart size" denies a finding, "no increase in the effusion" not.
MEASURES = _words("""
    size sizes density densities thickness diameter caliber calibre width ratio index marking markings heart cardiac
    attenuation opacity interstitium vascularity volume
""")

# What makes a structure normal, and what says only that it did not change.
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
# What comes after something went: "removal of the tube and placement of a drain".
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
    parts = frozenset(index for cue in cues if cue.what is Cue.PARTS for index in range(cue.first, cue.last + 1))
    scope = Scope(bytearray(len(tokens)), parts)
    for cue in cues:
        if cue.what is Cue.NEGATES:
            _mark(scope, cue.last + 1, _forward_end(tokens, cue.last + 1, parts), _NEGATED)
        elif cue.what is Cue.NEGATES_NEXT:
            _mark(scope, cue.last + 1, _list_end(tokens, cue.last + 1, parts), _NEGATED)
        elif cue.what is Cue.NO_MORE:
            end = _phrase_end(tokens, cue.last + 1, parts, stops=JOINS)
            if not MEASURES.isdisjoint(tokens[cue.last + 1 : end]):
                _mark(scope, cue.first + 1, end, _NEGATED)
        elif cue.what is Cue.NEGATES_LAST:
            _mark(scope, _phrase_start(tokens, cue.first, parts), cue.first, _NEGATED)
        elif cue.what is Cue.NEGATED:
            _mark(scope, _backward_start(tokens, cue.first, parts), cue.first, _NEGATED)
        elif cue.what is Cue.DOUBTS:
            _mark(scope, cue.last + 1, _forward_end(tokens, cue.last + 1, parts), _DOUBTED)
        elif cue.what is Cue.DOUBTS_NEXT:
            _mark(scope, cue.last + 1, _phrase_end(tokens, cue.last + 1, parts), _DOUBTED)
        elif cue.what is Cue.DOUBTED:
            _mark(scope, _backward_start(tokens, cue.first, parts), cue.first, _DOUBTED)
        elif cue.what is Cue.EITHER:
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
