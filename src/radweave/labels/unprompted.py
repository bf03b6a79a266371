"""Comparisons that nothing was given for are taken out of a draft: without a prior there is nothing to compare with.

    remove_comparisons("Stable cardiomegaly. The effusion has resolved. Lungs are clear.", labeler)
    # "Cardiomegaly. Lungs are clear."   and two edits, the second one without a sentence now

A sentence is looked at by itself. One that compares with nothing is never touched. From one that compares, words of a
few sure forms are deleted; nothing is added or said in other words, but for "a" that becomes "an". The rest stands only
if it no longer compares, lost no other word, is no fragment, and a labeler reads the same state of every class in it.
Else the whole sentence is left out, and the edit holds it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from radweave.base.ontology import NO_FINDING
from radweave.labels.comparisons import EARLIER, EXAMINATION, compares_with_prior, without_other_meanings
from radweave.labels.labeler import Labeler
from radweave.labels.text import fold, sentences


@dataclass(frozen=True, slots=True)
class Edit:
    """A sentence as it was, and as it is now: None where it was left out."""

    was: str
    now: str | None


def remove_comparisons(text: str, labeler: Labeler) -> tuple[str, list[Edit]]:
    """The text without comparisons, and what was changed. A text that compares with nothing comes back as it is."""
    read = [
        Edit(sentence, _without(sentence, labeler) if compares_with_prior(sentence) else sentence)
        for sentence in whole_sentences(text)
    ]
    edits = [edit for edit in read if edit.now != edit.was]
    if not edits:
        return text, []
    kept = list(_kept(read))
    # Sentences that an empty line parted must not run into one another.
    whole = [sentence if sentence[-1] in ".!?;:" else f"{sentence}." for sentence in kept[:-1]]
    return " ".join([*whole, *kept[-1:]]), edits


def _kept(read: list[Edit]) -> Iterator[str]:
    """What is left; where a part before or after a semicolon went, the other one is a sentence of its own."""
    nothing = Edit("", None)
    for before, edit, after in zip([nothing, *read], read, [*read[1:], nothing], strict=False):
        if (now := edit.now) is None:
            continue
        if after.now is None and now[-1] in ";:,":
            now = f"{now.rstrip(' ;:,')}."
        if before.was[-1:] in (";", ":", ",") and before.now is None and before.was[0].isupper():
            now = now[:1].upper() + now[1:]
        yield now


def whole_sentences(text: str) -> Iterator[str]:
    """Sentences with their end marks; together they are the text but for white space."""
    starts = [start for start, _ in sentences(fold(text))]
    edges = sorted({0, *starts, len(text)})
    for start, end in pairwise(edges):
        if sentence := text[start:end].strip():
            yield sentence


def _without(sentence: str, labeler: Labeler) -> str | None:
    """The sentence without its comparing words, or None if that cannot be had for sure."""
    ending = re.search(r"[\s.!;]*$", sentence)
    assert ending is not None
    body = sentence[: ending.start()]
    if _CONDITION.search(body):
        return None
    now = tidy(_deleted(body), body)
    if not now or compares_with_prior(now) or not _lost_only_comparing_words(body, now) or is_broken(now):
        return None
    before, after = labeler.label([body, now])
    same = all(after[name].state is mention.state for name, mention in before.items() if name != NO_FINDING)
    return now + ending.group() if same else None


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower())


# --- what may be deleted ------------------------------------------------------------------------------------------

_EXAMINATION = rf"(?:(?:chest|portable|xxxx)\s+)*{EXAMINATION}(?:\s+{EXAMINATION})?"
_PRIOR = (
    r"(?:(?:the|a|most|recent)\s+)*"
    rf"(?:(?:{EARLIER}|last|most\s+recent)(?:\s+{_EXAMINATION})?|xxxx)(?:\s+(?:dated|from|of|on)\s+xxxx)?"
)
_COMPARED = rf"(?:(?:as|when)\s+)?(?:compared|in\s+comparison)\s+(?:to|with)\s+{_PRIOR}"
_SINCE = rf"(?:since\s+{_PRIOR}|in\s+the\s+interval)"
_SAME = r"(?:(?:grossly|relatively|essentially|overall|generally|also)\s+)*(?:unchanged|stable)(?:[\s-]appearing)?"
_ASPECT = r"(?:size|appearance|position|location|configuration|extent)"
_STAYS = rf"(?:{_SAME}(?:\s+in\s+{_ASPECT}(?:\s+and\s+{_ASPECT})?)?|in\s+(?:unchanged|stable)\s+(?:position|location))"
_SEEN = r"(?:seen|noted|visuali[sz]ed|identified|demonstrated|observed|present|evident)"
_NORMAL = r"(?:within|normal|clear|unremarkable|(?:(?:mildly|moderately|borderline)\s+)?enlarged)\b"
_VERB = r"(?:is|are|was|were|has|have|had|appears?|remains?|shows?|there|seen|noted|may|can|could|projects?|overl\w+)"
_PHRASE_ENDS = re.compile(
    r"[,;:()]|\b(?:and|or|with|without|but|of|in|at|on|to|from|since|for|over|by|as|than|when|compared|allowing|given"
    rf"|during|through\w*|which|that|{_VERB})\b",
    re.IGNORECASE,
)
# In front of an adjective: it is the predicate, or one of two that belong together ("residual or recurrent").
_BOUND = re.compile(
    r"(?:(?<!there )(?<!noted )(?<!seen )\b(?:is|are|was|were|be|appears?|remains?|looks?)|\bor|\bbut|\bversus|\bvs|/"
    r"|\b(?:yet|though|although)"
    r"|\b(?:old|acute|chronic|residual|known|mild|moderate|small|large|few|multiple)(?: and|,)"
    r"|\b(?:left|right|bilateral|upper|lower|middle) and)\s*$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class _Form:
    """Words that may be deleted where they stand, and what the sentence must be for it.

    ``leaves``: "rest", what stands without them; "finding", words right behind them that say something; "subject", a
    sentence that says something and has no other predicate; "one", a rest that speaks of one examination only.
    ``denied``: also behind a denial or a doubt. Without "new", "no new effusion" would deny every effusion.
    """

    pattern: re.Pattern[str]
    leaves: Literal["rest", "finding", "subject", "one"]
    denied: bool = False


def _form(pattern: str, leaves: Literal["rest", "finding", "subject", "one"], *, denied: bool = False) -> _Form:
    return _Form(re.compile(pattern, re.IGNORECASE), leaves, denied)


_FORMS: Final = (
    _form(rf"^{_COMPARED}(?:\s*,\s*|\s+(?=there\s))", "one", denied=True),
    _form(rf"\s*,?\s*\(?{_COMPARED}\)?$", "one", denied=True),
    _form(rf"^{_SINCE}(?:\s*,\s*|\s+(?=there\s))", "one"),
    _form(rf"\s*,?\s*\b{_SINCE}$", "one"),
    _form(r"\s*,?\s+as\s+before(?=\s*,|\s+with\b|$)", "rest"),
    _form(rf"\s*,\s*similar\s+to\s+{_PRIOR}$", "rest"),
    _form(
        r"(?:\s*,\s*(?:and\s+|but\s+)?|\s+but\s+"
        r"|(?:(?<=enlarged)|(?<=normal)|(?<=noted)|(?<=seen))\s+and\s+(?:is\s+|are\s+)?)"
        rf"{_STAYS}(?:\s+(?:from|since|to)\s+{_PRIOR})?$",
        "rest",
        denied=True,
    ),
    _form(r"\s*,\s*new$", "rest"),
    _form(rf"(?<=[a-z])\s+(?:(?:is|are|appears?|remains?)\s+)?{_STAYS}(?:\s+(?:from|since)\s+{_PRIOR})?$", "subject"),
    _form(r"(?<=[a-z])\s+in\s+(?:unchanged|stable)\s+(?:position|location)$", "subject"),
    _form(rf"(?:(?<=\bis )|(?<=\bare ))(?:{_SAME}\s+and\s+)(?={_NORMAL})", "rest"),
    _form(r"^(?:redemonstrated|redemonstration\s+of|(?:interval\s+)?(?:development|placement)\s+of)\s+", "finding"),
    _form(r"(?<=^there is )(?:redemonstration|(?:interval\s+)?(?:development|placement))\s+of\s+(?=an?\s)", "finding"),
    _form(r"(?:(?<=^there is )|(?<=^there are ))(?:now|again|still)\s+", "finding"),
    _form(rf"\b(?:(?:once\s+)?again|still)\s+(?={_SEEN}\b)|(?:(?<=seen)|(?<=noted))\s+(?:once\s+)?again\b", "rest"),
    _form(r"(?:(?<=\bis )|(?<=\bare ))(?:again|still)\s+(?=\w)", "rest"),
    _form(rf"\b{_SAME}\s+(?:appearance|position|size)\s+of\s+", "finding"),
    _form(rf"\b(?:{_SAME}|persistent|continued|new|worsening|increasing|recurrent)\s+(?=\w)", "finding"),
)
# What holds only if something was so means another thing without its comparison.
_CONDITION = re.compile(r"\b(?:if(?! any\b)|unless|whether|provided)\b", re.IGNORECASE)
_DENIAL = re.compile(
    r"\b(?:no|not|without|never|none|nor|neither|cannot|can't|absent|absence|negative|free|rul\w+|exclu\w+|fail\w*|lack"
    r"|unlikely|question\w*|incomplete\w*|partial\w*|near(?:ly)?|almost)\b",
    re.IGNORECASE,
)
# What is said in the words of two examinations means something else when one of them goes.
_OF_TWO = re.compile(
    r"\b(?:more|less|fewer|greater|higher|larger|smaller|bigger|worse|better|denser|clearer|differ\w*|similar|same|than"
    r"|significant\w*|increas\w*|decreas\w*|chang\w*|was|were|has|have|had|been|drained|pulled|taken"
    r"|lower (?!lobe|zone|thora|lung(?! vol)))\b",
    re.IGNORECASE,
)
_MAY_GO: Final = frozenset(
    _words("""
    stable unchanged persistent continued new worsening increasing recurrent similar again once now still before
    redemonstrated redemonstration development appearance appearing placement interval of in and but also
    grossly relatively essentially overall generally is are appear appears remain remains
    size position location configuration extent as when compared comparison to with since from the a
    most recent last prior previous earlier preceding chest portable xxxx x dated on
    """)
)


def _deleted(body: str) -> str:
    """The body without the forms above; those that cannot be had for sure are still there."""
    for form in _FORMS:
        matches = list(form.pattern.finditer(body))
        meant = without_other_meanings(fold(body)) if matches else ""
        for match in reversed(matches):
            if "\N{BULLET}" not in meant[match.start() : match.end()] and _is_sure(form, match, body):
                body = f"{body[: match.start()]} {body[match.end() :]}".strip()
    return body


def _is_sure(form: _Form, match: re.Match[str], body: str) -> bool:
    """Whether a form may be deleted from where it stands."""
    before, after = body[: match.start()], body[match.end() :]
    if not form.denied and _DENIAL.search(before):
        return False
    if form.leaves == "one":
        return not _OF_TWO.search(f"{before} {after}")
    if form.leaves == "subject":
        return not re.search(rf"[,;:]|\b(?:otherwise|also|{_VERB})\b|(?<!mega)(?<!anoma)ly$", before, re.IGNORECASE)
    if form.leaves == "rest":
        return True
    # "Stable contours" says nothing without "stable".
    return not _BOUND.search(before) and not _only_names(_PHRASE_ENDS.split(after, maxsplit=1)[0])


# --- what must be left --------------------------------------------------------------------------------------------

_SIDES: Final = frozenset(_words("right left bilateral bilaterally lower upper middle mid both and or of the a an"))
_NAMES: Final = _SIDES | frozenset(
    _words("""
    in is are was were this these it its that there to with for at on as has have been be now
    heart cardiac cardio cardiomediastinal mediastinum mediastinal hila hilar hilum silhouette silhouettes contour
    contours size sizes shape appearance appearing configuration position location lung lungs pulmonary vascularity
    vasculature vascular venous vessels markings interstitial chest aorta aortic x ray rays xray radiograph radiographs
    examination exam study film cardiopulmonary thoracic thorax bony bones structures structure osseous skeletal spine
    ribs abdomen trachea diaphragm hemidiaphragm hemidiaphragms pleura pleural soft tissue tissues skeleton findings
    finding volumes volume aeration status remainder remaining visualized abnormalities abnormality process processes
    disease change changes significant acute xxxx seen noted base bases lobe lobes zone zones inspiration inspiratory
    effort expansion appear appears overall otherwise also including given patient respectively postoperative
    radiographic view views frontal lateral same
    """)
)
_DANGLING = re.compile(
    r"^(?:if|and|but|or|with|of|which|that|than|is|are|was|were|in|to|from|for|by|has|have|as)\b"
    r"|\b(?:and|but|or|with|of|which|that|than|the|a|an|no|is|are|was|were|in|to|from|for|by|has|have|been|as|be|on|at)"
    r"\s*(?:$|[,;:)])|\balso$|\b(?:the|an?)\s+(?:is|are|and|of|in|the|an?)\b|[,;:(]\s*[,;:)]"
    r"|^(?:apart|aside|other\s+than|except|besides)\b[^,]*$",
    re.IGNORECASE,
)


def _only_names(text: str) -> bool:
    """Whether a text names structures and says nothing of them."""
    return _NAMES.issuperset(_words(text))


def tidy(text: str, body: str) -> str:
    """White space, the article and the capital in order."""
    text = re.sub(r"\s+", " ", text).strip(" ,")
    if not re.search(rf"\b{_VERB}\b", text, re.IGNORECASE) and re.search(rf"\b{_VERB}\b", body, re.IGNORECASE):
        text = re.sub(r"^the\s+", "", text, flags=re.IGNORECASE)
    text = re.sub(r"\b(a|an) (?=(\w+))", _article, text, flags=re.IGNORECASE)
    return text[:1].upper() + text[1:] if body[:1].isupper() else text


def _article(match: re.Match[str]) -> str:
    """The article as it sounds before what follows now; "NG" is read letter by letter."""
    word = match.group(2)
    spelt = word.isupper() or not re.search(r"[aeiouy]", word.lower())
    starts = r"[aefhilmnorsx]" if spelt else r"[aio]|e(?!u)|u(?:n(?!i)|[lp])"
    article = "an" if re.match(starts, word.lower()) else "a"
    return f"{article.capitalize() if match.group(1)[0].isupper() else article} "


def _lost_only_comparing_words(was: str, now: str) -> bool:
    """Whether all words of ``was`` are in ``now``, in their order, but for some of ``_MAY_GO`` and examinations."""
    left = iter(_words(now))
    due = next(left, None)
    for word in _words(was):
        if word == due or (word in ("a", "an") and due in ("a", "an")):
            due = next(left, None)
        elif word not in _MAY_GO and not re.fullmatch(EXAMINATION, word):
            return False
    return due is None


def is_broken(now: str) -> bool:
    """Whether the rest is a fragment, or names a structure without a word on it."""
    if _only_names(now) or _DANGLING.search(now):
        return True
    if any(one == other != "xxxx" for one, other in pairwise(_words(now))):
        return True
    if re.search(rf"\b{_VERB}\b", now, re.IGNORECASE):
        return False
    parts = re.split(r"[,;:]|\b(?:and|or|with|but)\b", _DENIAL.split(now, maxsplit=1)[0])
    return any(_only_names(part) and not _SIDES.issuperset(_words(part)) for part in parts)
