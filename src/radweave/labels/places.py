"""Where in the chest a sentence places its finding, and the same sentence without the place.

    without_place("There is a right lower lobe airspace disease.", labeler)    # "There is an airspace disease."
    without_place("Small left pleural effusion.", labeler)                     # "Small pleural effusion."

Sides, lobes, zones and measured sizes are places here: what one study has, and another one with the same finding has
not. Words are deleted in a few sure forms, and none is added but for "a" that becomes "an". The rest stands only if it
names no place any more, is no fragment, and a labeler reads the same state of every class in it.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

from radweave.labels.labeler import Labeler
from radweave.labels.unprompted import is_broken, tidy

# Names of structures, which have a side without being anywhere else.
_NAMED: Final = r"(?! (?:ventric|atri|heart|main|coronary|aortic|arch|brachiocephalic|pulmonary arter)\w*)"
_SIDE = rf"(?:(?:right|left|bilateral|unilateral|both)(?:[- ]sided?)?{_NAMED}|bibasilar|bibasal|biapical|multifocal)"
_LEVEL = r"(?:upper|middle|mid|lower)(?:[- ]to[- ](?:upper|middle|mid|lower))?"
_REGION = (
    r"(?:lung bases?|lung apex|lung apices|lung zones?|lung fields?|midlungs?|mid lungs?|lobes?|lungs?|zones?|bases?"
    r"|apex|apices|hemithorax|hemithoraces|lingula|segments?|costophrenic (?:angles?|sulcus|sulci|recess)"
    r"|midlung zones?|chest(?! wall)|thorax|perihilar (?:region|area)s?)"
)
_ZONE = (
    r"(?:basilar|basal|apical|perihilar|parahilar|infrahilar|suprahilar|retrocardiac|lingular|lobar|subpleural"
    r"|paramediastinal|costophrenic angle|midlung)"
)
_AREA = rf"(?:{_LEVEL} {_REGION}|{_ZONE})"
_AND = r"(?:,? (?:and|or)(?:/or)? |, |/|-)"
_DETAIL = r"(?:(?:anterior|posterior|lateral|medial|superior|inferior|basal|apical|peripheral|central|mid) )"
_ONE = rf"(?:the )?{_DETAIL}*(?:{_SIDE}(?:{_AND}{_SIDE})? )?{_DETAIL}*(?:{_LEVEL}(?:{_AND}{_LEVEL})? )?{_DETAIL}*"
_LOCATED = (
    rf"(?:{_ONE}{_REGION}|(?:the )?(?:{_SIDE} )?{_ZONE} (?:region|area|zone)s?|the (?:right|left)(?: side)?"
    rf"|the {_SIDE} {_ZONE}|{_ONE}lobes?)"
)
_SIZE = r"(?:(?:approximately|about|up to) )?\d+(?:\.\d+)?(?: ?[x-] ?\d+(?:\.\d+)?)*[- ]?(?:mm|cm)"
_MAINLY = r"(?:(?:predominantly|mainly|mostly|especially|primarily) )?"
_ENDS = (
    r"(?=$|[,.;:()]| (?:and|or|with|without|which|that|but|is|are|was|were|has|may|might|could|consistent|compatible"
    r"|suggest\w*|represent\w*|likely|probably|possibly|measuring|there|as|to|than|again|seen|noted|identified|in|of"
    r"|from|since|unchanged|stable|a|an)\b)"
)
_NO_NOUN = (
    r"(?!(?:with|in|of|and|or|is|are|at|on|to|which|may|could|has|have|from|as|without|was|were|shows?|by|for|than"
    r"|demonstrates?|appears?|seen|noted|there|compatible|consistent|since|that|but|greater|more|along|remains?|probably|given)\b)"
)
_FORMS: Final = tuple(
    re.compile(form, re.IGNORECASE)
    for form in (
        rf"(?:^|,? ){_MAINLY}(?:(?:with)?in|at|on|of|over|overlying|involving|along|throughout|about|near|behind)"
        rf" {_LOCATED}(?:{_AND}(?:(?:with)?in |at )?{_LOCATED})*(?: of {_LOCATED})?{_ENDS}",
        rf",? ?\(?{_SIDE},? (?:slightly )?(?:greater|more|larger|worse) than(?: the| on the)? {_SIDE}\)?",
        r",? bilaterally",
        rf",? (?:the )?{_SIDE} (?:{_LEVEL} )?{_REGION}$",
        rf",? (?:which )?(?:measuring|measures|of) {_SIZE}(?: in (?:size|diameter|thickness))?",
        rf"\b{_SIZE}(?: in (?:size|diameter))? ",
        rf"\b(?:{_SIDE} {_LEVEL} {_REGION}|{_SIDE} {_REGION}|{_SIDE}|{_AREA})(?:(?:{_AND}| )(?:{_SIDE}|{_AREA}))*"
        rf"(?: {_REGION})? {_NO_NOUN}(?=[a-z])",
    )
)
# What is left open, or was said of the place.
_OPEN: Final = re.compile(
    r"\b(?:project\w*|overl\w+|located|involv\w+|probably|most|greatest|measur\w+|predominantly|mainly|extending|greater"
    r"|distributed|through|aspect|more|less|worse|one|both|seen only)(?=\s*(?:$|[,.;]|which\b|and\b|than\b))"
    r"|\band regions?\b|\b(?:a|an|the|in|of|at|with) (?:along|given|is|are|and|which|with|in|of|at)\b"
    r"|^(?:and|with|is|are|of|in|at)\b",
    re.IGNORECASE,
)
_PLACE: Final = re.compile(
    rf"\b(?:(?:right|left){_NAMED}|bilateral\w*|unilateral|bibasilar|bibasal|biapical|multifocal|both (?:lungs?|lobes?"
    rf"|bases|upper|lower|mid)|{_LEVEL} (?:lobe|lung|zone)s?|lobes?|basilar|basal|apical|apex|apices|lingula\w*|bases?"
    rf"|retrocardiac|(?:peri|para|infra|supra)hilar|midlung|middle lobe|\d+(?:\.\d+)?[- ]?(?:mm|cm))\b",
    re.IGNORECASE,
)


def names_place(text: str) -> bool:
    """Whether a sentence names a side, a part of the lungs or a measured size."""
    return _PLACE.search(text) is not None


def without_place(sentence: str, labeler: Labeler) -> str | None:
    """The sentence without places, itself where it names none, and None where that cannot be had for sure."""
    if not names_place(sentence):
        return sentence
    ending = re.search(r"[\s.!;]*$", sentence)
    assert ending is not None
    body = sentence[: ending.start()]
    now = body
    for form in _FORMS:
        now = re.sub(r"\s+", " ", form.sub(lambda match: " " if match.group().endswith(" ") else "", now)).strip(" ,")
    now = tidy(now, body)
    pairs = list(pairwise(now.lower().split()))
    if not now or names_place(now) or is_broken(now) or _OPEN.search(now) or len(pairs) > len({*pairs}):
        return None
    before, after = labeler.label([body, now])
    return now + ending.group() if all(after[name].state is one.state for name, one in before.items()) else None
