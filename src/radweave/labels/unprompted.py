"""Comparisons that nothing was given for are taken out of a draft: without a prior there is nothing to compare with.

    remove_comparisons("Stable cardiomegaly. No new effusion. Heart size is unchanged.", labeler)
    # "Cardiomegaly. No effusion."   and three edits

A sentence is looked at by itself. One that only compares is dropped; from another the comparing words are taken, so that
what was found stays. An edit is kept only if it no longer compares, is no fragment, and says the same of every class
of the labeler, but for a class that the comparison itself left open ("no new effusion" denies an effusion once "new"
is gone). Where no edit does, the findings are said again in the sentence's own words for them.
"""

# ruff: noqa: E501 (one rule is one line, however long)

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from radweave.base.ontology import NO_FINDING
from radweave.base.study import LabelState
from radweave.labels.comparisons import EARLIER, EXAMINATION, compares_with_prior, without_other_meanings
from radweave.labels.labeler import Labeler, Mention
from radweave.labels.text import fold, sentences


@dataclass(frozen=True, slots=True)
class Edit:
    """A sentence as it was, and as it is now: None where it was dropped."""

    was: str
    now: str | None


def remove_comparisons(text: str, labeler: Labeler) -> tuple[str, list[Edit]]:
    """The text without comparisons, and what was changed. A text that compares with nothing comes back as it is."""
    if not compares_with_prior(text):
        return text, []
    kept: list[str] = []
    edits: list[Edit] = []
    for sentence in _sentences(text):
        now = _without(sentence, labeler)
        if now != sentence:
            edits.append(Edit(sentence, now))
        if now is not None:
            kept.append(now)
    # Sentences that an empty line parted must not run into one another.
    whole = [sentence if sentence[-1] in ".!?;:" else f"{sentence}." for sentence in kept[:-1]]
    return " ".join([*whole, *kept[-1:]]), edits


def _sentences(text: str) -> Iterator[str]:
    """Sentences with their end marks; together they are the text but for white space."""
    starts = [start for start, _ in sentences(fold(text))]
    edges = sorted({0, *starts, len(text)})
    for start, end in pairwise(edges):
        if sentence := text[start:end].strip():
            yield sentence


def _without(sentence: str, labeler: Labeler) -> str | None:
    if not compares_with_prior(sentence):
        return sentence
    ending = re.search(r"[\s.!;]*$", sentence)
    assert ending is not None
    body, end = sentence[: ending.start()], ending.group()
    before = labeler.label([body])[0]
    plain, *others = _candidates(body, before)
    fitting = [whole for whole in (_fitting(text, body, before, labeler) for text in others) if whole]
    # None fits where there was nothing but a comparison: what it was about is not said to be normal or not.
    now = _fitting(plain, body, before, labeler) or max(fitting, key=len, default=None)
    return None if now is None else now + end


def _fitting(candidate: str, body: str, before: Mapping[str, Mention], labeler: Labeler) -> str | None:
    """The candidate in order, if it may stand for ``body``."""
    whole = _polished(candidate, body)
    if not whole or compares_with_prior(whole) or _is_fragment(whole):
        return None
    after = labeler.label([whole])[0]
    names_anything = " " in whole or _states(after, *_AGAIN)
    return whole if names_anything and _says_the_same(before, after, body) else None


def _candidates(body: str, before: Mapping[str, Mention]) -> Iterator[str]:
    """The body without comparing words, and where that will not do, what can be saved of it."""
    plain = _removed(body)
    yield plain
    if not _only_names(plain) or _states(before, LabelState.POSITIVE, LabelState.NEGATIVE):
        yield from _cut(body)
        yield _said_again(body, before)


def _cut(body: str) -> Iterator[str]:
    """What stands before the first comparing part, and behind the last one, where the rules do not know its form."""
    parts = re.split(r"(?:\s*,\s*|\s+(?=(?:and|but|which|with|since|from|than|compared|when|as|in)\b))", body)
    compared = [number for number, part in enumerate(parts) if compares_with_prior(part)]
    if compared:
        yield body[: body.find(parts[compared[0]])]
        yield body[body.rfind(parts[compared[-1]]) + len(parts[compared[-1]]) :]


# --- what is taken out --------------------------------------------------------------------------------------------

_DETERMINERS = (
    r"(?:(?:the|a|an|any|his|her|their|patient'?s?|this|that|most|recent|multiple|several|outside|old|xxxx)\s+)*"
)
_WHEN = r"(?:\s+(?:dated|from|of|on|performed|done|in)\s+(?:xxxx|\d[\w/.-]*)(?:\s+(?:xxxx|\d[\w/.-]*))*)?"
_PRIOR = rf"{_DETERMINERS}(?:{EARLIER}|last|most recent)s?(?:\s+(?:\w+[\s-]+){{0,3}}?{EXAMINATION}(?:\s+{EXAMINATION})?)?{_WHEN}"
_ADVERB = (
    r"(?:(?:grossly|essentially|relatively|overall|generally|largely|basically|otherwise|likely|not|now|also|slightly|mildly|"
    r"moderately|minimally|markedly|significantly|substantially|somewhat|much|further|nearly|almost|completely|partially|"
    r"appreciably|clearly|well|again|interval(?:ly)?|previously)\s+)*"
)
_SAME = r"(?:unchanged|stable|unaltered|similar(?! to the)|persistent)"
_ASPECT = r"(?:size|appearance|position|configuration|contours?|extent|location|number|shape|distribution|degree|alignment|opacity|density|prominence)"
_ASPECTS = rf"(?:\s+in\s+(?:the\s+)?{_ASPECT}(?:(?:\s*,\s*|\s+and\s+|\s+or\s+){_ASPECT})*)?"
_BE = r"(?:is|are|was|were|appears?|remains?|seems?|looks?)"
_GREW = r"(?:increased|decreased|improved|worsened|progressed|enlarged|grown|changed|diminished|regressed|developed)"

_RULES: Final[tuple[tuple[re.Pattern[str], str], ...]] = tuple(
    (re.compile(pattern, re.IGNORECASE), by)
    for pattern, by in (
        # how a sentence opens
        (r"^(?:again\s+(?:seen|noted|visualized|visualised|identified|demonstrated|observed|present)|re-?demonstrated)\b\s*(?:is\b|are\b|was\b|were\b)?", " "),
        (rf"\b(there\s+(?:is|are|was|were)\s+)(an?\s+)?{_ADVERB}{_SAME}(?:\s+appearing)?\s+(?=[a-z])(?!(?:and|or|but|in|from|since|compared)\b)", r"\1\2"),
        (rf"(?:^|(?<=,\s)){_ADVERB}resolved\s+(?=[a-z])", "no "),
        (r",?\s*\b(?:and\s+)?(?:no|without)\s+(?:evidence\s+)(?:of|for)\s+(?:interval\s+)?(?:progression|change)(?:\s+of\s+\w+)?", " "),
        # the earlier examination itself
        (rf"\b{_BE}\s+{_ADVERB}(?:noted\s+to\s+be\s+)?(?:{_SAME}|changed|increased|decreased|larger|smaller|improved|worse|different){_ASPECTS}\s+(?:(?:when |as )?compared\s+(?:to|with)|in\s+comparison\s+(?:to|with)|since|from|than|as|to)\s+{_PRIOR}", " *SEEN* "),
        (rf",?\s*\(?\b(?:as |when |if |in )?{_ADVERB}(?:compared|comparison|relative|comparable|similar)\s+(?:to|with|from)\s+(?:that of\s+)?{_PRIOR}\)?\s*,?", " , "),
        (rf",?\s*\b(?:as\s+)?(?:was|were)?\s*(?:also\s+)?(?:seen|noted|present|described|demonstrated)\s+(?:on|in)\s+{_PRIOR}", " "),
        (rf",?\s*\b{_ADVERB}(?:new |changed |increased |decreased |stable |unchanged |larger |smaller |improved |worse |different )?(?:since|from|than|as|on|over)\s+{_PRIOR}", " , "),
        (r",?\s*\b(?:larger|smaller|bigger|worse|better|more \w+|less \w+)\s+than\s+(?:before|previously|earlier)\b", " , "),
        (r",?\s*\b(?:new |increased |decreased |stable |unchanged )?since\s+(?:that time|then|xxxx|\d[\w/.-]*|before)", " , "),
        (r",?\s*\bin the (?:interval|interim)\b\s*,?", " "),
        (r",?\s*\bdating back to\s+\S+", " "),
        (r",?\s*\b(?:as |when |if |in )?(?:compared|comparison)\s+(?:to|with)\s+[^,]*", " "),
        (r"\bcomparison\s*:?\s*(?:none|xxxx|is made|with)?[^,.]*?(?=,|$)", " "),
        # what came, went or changed
        (rf"\b(?:there\s+(?:has|have)\s+been|there\s+(?:is|are|was|were))\s+(?:an?\s+)?{_ADVERB}(?:interval\s+)?(?:development|appearance|placement|redemonstration|insertion|worsening|progression)\s+of\b", "there is"),
        (r"\bre-?demonstration\s+of\b", " "),
        (rf"\b(?:there\s+(?:has|have)\s+been\s+|there\s+(?:is|are|was)\s+)?(?:an?\s+|the\s+)?{_ADVERB}(?:interval\s+)?(?:complete\s+|near complete\s+)?(?:resolution|removal|clearing|disappearance|extubation)\s+of\b", "no"),
        (rf"\b(?:there\s+(?:has|have)\s+been\s+)?(?:an?\s+|the\s+)?{_ADVERB}(?:interval\s+)(?:development|appearance|placement|insertion)\s+of\b", " "),
        (rf"\b(?:there\s+(?:has|have)\s+been|there\s+(?:is|are|was))\s+(?:an?\s+)?(?:no\s+|without\s+)?{_ADVERB}(?:interval\s+)?(?:increase|decrease|improvement|worsening|progression|change|changes)(?:\s*(?:/|and|or)\s*\w+)?(?:\s+in\s+(?:the\s+)?{_ASPECT})?\s+(?:of|in)\b", "there is"),
        (rf"\b(?:no|without)\s+(?:\w+\s+){{0,2}}?(?:change|changes|progression|improvement)(?:\s+(?:of|in|to)(?:\s+(?:the\s+)?{_ASPECT}\s+(?:of|in))?\b|(?=\s+\w))", " "),
        (rf"\b(?:interval|increase|decrease)\s+(?:increase|decrease|improvement|worsening|progression|change|changes)?(?:\s+in\s+(?:the\s+)?{_ASPECT})?(?:\s+and\s+number)?\s+(?:of|in)\b", " "),
        (rf",?\s*\b(?:and|but|with|which)?\s*(?:has|have)\s+{_ADVERB}(?:not\s+)?(?:resolved|cleared|disappeared|been removed)\b(?:\s+in the interval)?", " *GONE* "),
        (rf"\b(?:has|have)\s+{_ADVERB}{_GREW}\b(?:\s+in\s+(?:the\s+)?{_ASPECT}(?:\s+and\s+{_ASPECT})*)?(?:\s+(?:slightly|significantly|since))?", " *SEEN* "),
        (rf",?\s*\b{_ADVERB}(?:increased|decreased)\s+in\s+(?:the\s+)?{_ASPECT}(?:\s+and\s+{_ASPECT})*", " "),
        (rf"\b(?:is|are)\s+no longer\s+{_ADVERB}(?:seen|visualized|visualised|identified|evident|present|demonstrated|noted|visible)\b", " *GONE* "),
        (r"\b(?:is|are)\s+{0}(?:resolved|improved|worse|worsened|increased|decreased|improving|worsening|larger|smaller)\b(?=\s*(?:,|$))".replace("{0}", _ADVERB), " *SEEN* "),
        # what did not change
        (rf"\b{_SAME}\s*(?:,\s*|\s+and\s+|\s+but\s+)(?=\w+)(?!{_ASPECT})", " *KEEP* "),
        (rf"\s+(?:and|but)\s+{_ADVERB}(?:is\s+|are\s+|appears?\s+)?{_SAME}\b{_ASPECTS}", " "),
        (rf",\s*(?:which\s+)?(?:{_BE}\s+)?{_ADVERB}{_SAME}\b{_ASPECTS}(?=\s*(?:,|$))", " "),
        (rf"\b{_BE}\s+{_ADVERB}(?:noted\s+to\s+be\s+)?{_SAME}\b{_ASPECTS}\s+(?:and|but)\b", "is"),
        (rf"\b{_BE}\s+(?:in\s+)?{_ADVERB}{_SAME}\s+(?:in\s+)?(?:position|location|appearance|alignment|configuration)\b|\b{_BE}\s+{_ADVERB}(?:noted\s+to\s+be\s+)?{_SAME}\b{_ASPECTS}", " *SEEN* "),
        (rf"\bin\s+(?:{_SAME})\s+(?:position|location|alignment)\b", "in place"),
        (rf"\b(?:{_SAME})(?:\s+in)?\s+(?:appearance|position|configuration|alignment)\b(?:\s+(?:and\s+\w+\s+)?of\b)?|\b{_SAME}\s+(?:size|contours?)\s+of\b", " "),
        (r"\bagain\s+(?=(?:is|are|was|were)?\s*(?:seen|noted|visualized|visualised|identified|demonstrated|present|evident|appreciated|shown|observed))", ""),
        (r"\bre-?demonstrat(?:ed|es|e|ing)\b", "demonstrated"),
        (r"\b(?:previously|earlier)\s+(?:\w+\s+)?(?:seen|noted|described|identified|demonstrated|visualized|visualised|present|reported|questioned|mentioned)\b", ""),
        (r"\bpersists?\b", " *SEEN* "),
        (rf"\b(?:of\s+)?{_ADVERB}(?:changed|interval(?:ly)?|new|newly|stable|stably|unchanged|persistent(?:ly)?|persisting|persistence of|improved|improving|improvement in|worsened|worsening|worsening of|progressing|progression of|resolving|resolved|regressing|stability of|again|previously|earlier|appearing stable|unaltered)(?:\s+appearing)?\b", ""),
    )
)  # fmt: skip

_WORD_OF_CHANGE = re.compile(r"\*(?:SEEN|GONE)S?\*")
_BARE_VERB = re.compile(rf"\b{_BE}\s*$", re.IGNORECASE)
_OF_SEVERAL = re.compile(r"^\W*(?:are|were|have|appear|remain|seem|look|persist|and have|which have)\b", re.IGNORECASE)


def _plural_too(by: str) -> str | Callable[[re.Match[str]], str]:
    """Where a predicate is replaced, whether it was one of several things."""
    if "SEEN" not in by and "GONE" not in by:
        return by
    return lambda match: by.replace("N*", "NS*").replace("E*", "ES*") if _OF_SEVERAL.match(match.group()) else by


def _removed(body: str) -> str:
    """The body without comparing words; a predicate that only compared becomes "is seen" or "is not seen"."""
    hidden = {}
    masked = without_other_meanings(body.lower())
    for number, match in enumerate(re.finditer("\N{BULLET}+", masked)):
        hidden[f"\N{BULLET}{number}\N{BULLET}"] = body[match.start() : match.end()]
    for mark, words in hidden.items():
        body = body.replace(words, mark, 1)
    for pattern, by in _RULES:
        body = pattern.sub(_plural_too(by), body)
    parts = [part for part in (_predicated(part) for part in re.split(r"\s*,\s*", body)) if part]
    body = ", ".join(part for part in parts if not _only_names(part) or part == parts[0] == body) or ""
    for mark, words in hidden.items():
        body = body.replace(mark, words)
    return body


def _predicated(part: str) -> str:
    """Put words for the marks of ``_RULES``: what was stable is seen, what has gone is not seen."""
    part = _BARE_VERB.sub(_plural_too(" *SEEN* "), part.replace("*KEEP*", " "))
    mark = _WORD_OF_CHANGE.search(part)
    if mark is None:
        return part.strip()
    subject, rest = part[: mark.start()].strip(), _WORD_OF_CHANGE.sub(" ", part[mark.end() :]).strip()
    if _only_names(subject):
        rest = re.sub(r"^(?:with|and|but)\s+", "", rest)
        return "" if _only_names(rest) else rest
    verb = "are" if mark.group().endswith("S*") else "is"
    seen = "not seen" if "GONE" in mark.group() else "seen"
    return f"{subject} {verb} {seen} {rest}".strip()


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# --- what is left -------------------------------------------------------------------------------------------------

_NAMES = _words("""
    the a an and or of in is are was were both this these it its that there to with for at on as has have been be
    heart cardiac cardiomediastinal mediastinum mediastinal hila hilar hilum silhouette silhouettes contour contours
    size sizes shape appearance configuration lung lungs pulmonary vascularity vasculature vascular chest aorta aortic
    x-ray x-rays xray radiograph radiographs examination exam study film cardiopulmonary thoracic bony structures
    structure osseous trachea diaphragm pleura pleural soft tissues skeleton findings finding volumes volume aeration
    abnormalities abnormality process processes disease change changes significant acute interval no not xxxx seen
    base bases lobe lobes lower upper mid middle zone zones inspiration inspiratory effort expansion appear appears
    cardio bilaterally bilateral right left overall otherwise also including given patient respectively
    """)
_DANGLING: Final = re.compile(
    r"^(?:if|and|but|or|with|of|which|that|than|is|are|was|were|in|to|from|for|by|has|have|as)\b"
    r"|\b(?:and|but|or|with|of|which|that|than|the|a|an|no|is|are|was|were|in|to|from|for|by|has|have|been|as|be|on|at)$",
    re.IGNORECASE,
)


def _only_names(text: str) -> bool:
    """Whether a text names structures and says nothing of them."""
    words = re.findall(r"[\w'-]+", text.lower())
    return all(word in _NAMES for word in words)


def _polished(text: str, original: str) -> str:
    """White space, commas and capitals in order; loose words at both ends removed."""
    text = re.sub(r"\s+", " ", text)
    text = re.sub(r"\(\s*\)", " ", text)
    text = re.sub(r"\b(there (?:is|are)) the\b", r"\1", text, flags=re.IGNORECASE)
    text = re.sub(r"\bno (?:the|an?)\b", "no", text, flags=re.IGNORECASE)
    text = re.sub(r"(?:\s*,)+\s*", ", ", text)
    text = re.sub(r"\b(a|an) (?=(?:a|an|the|is|are)\b)", "", text, flags=re.IGNORECASE)
    before = None
    while before != text:
        before = text
        text = text.strip(" ,;:-")
        text = re.sub(r"^(?:and|but|or|with|which|than|of)\b\s*", "", text, flags=re.IGNORECASE)
        text = re.sub(
            r"\s*\b(?:and|but|or|with|of|which|than|in|to|from|as|on|the|a|an)$", "", text, flags=re.IGNORECASE
        )
    text = re.sub(r"\b(a|an) (?=\w)", lambda match: _article(match, text), text, flags=re.IGNORECASE)
    return text[:1].upper() + text[1:] if original[:1].isupper() else text


def _article(match: re.Match[str], text: str) -> str:
    """The article that fits what follows now."""
    follows = text[match.end() : match.end() + 1].lower()
    article = "an" if follows in "aeio" else "a"
    return f"{article.capitalize() if match.group(1)[0].isupper() else article} "


def _is_fragment(text: str) -> bool:
    return not re.search(r"\w", text) or bool(_DANGLING.search(text)) or _only_names(text)


def _states(labels: Mapping[str, Mention], *states: LabelState) -> list[str]:
    return [name for name, mention in labels.items() if name != NO_FINDING and mention.state in states]


def _says_the_same(before: Mapping[str, Mention], after: Mapping[str, Mention], body: str) -> bool:
    """The same states, but for what the comparing words themselves left open."""
    for name, mention in before.items():
        now = after[name].state
        if name == NO_FINDING or now is mention.state:
            continue
        if mention.state is LabelState.UNCERTAIN and now in (LabelState.NEGATIVE, LabelState.BLANK):
            span = mention.span or (0, 0)
            if compares_with_prior(body[: span[1]]) or compares_with_prior(body[span[0] :]):
                continue
        return False
    return True


_NORMAL: Final = re.compile(r"\b(?:normal|clear|unremarkable|within|intact|free)\b")
_AGAIN: Final = {LabelState.POSITIVE: "{}", LabelState.NEGATIVE: "no {}", LabelState.UNCERTAIN: "possible {}"}


def _said_again(body: str, before: Mapping[str, Mention]) -> str:
    """The sentence's own words for its findings, one after the other."""
    said: dict[str, None] = {}
    for name, mention in before.items():
        if name != NO_FINDING and mention.state in _AGAIN and mention.span is not None:
            words = _polished(_removed(body[slice(*mention.span)]), "")
            if words:
                form = "{}" if _NORMAL.search(words) else _AGAIN[mention.state]
                said[form.format(re.sub(r"^(?:no|possible) ", "", words))] = None
    return ", ".join(said)
