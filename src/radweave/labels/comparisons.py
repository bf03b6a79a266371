"""Words that compare with an earlier examination: one lexicon for those who count them and for those who remove them.

``CHANGES`` are the changes that a report may speak of. ``compares_with_prior`` asks whether a text compares at all.
Words that have another meaning beside one of comparison are blanked first where that meaning is plain (``_ELSEWHERE``).
"""

from __future__ import annotations

import re
from typing import Final

EXAMINATION: Final = (
    r"(?:exam\w*|stud(?:y|ies)|films?|radiographs?|x-?rays?|x-xxxx|cts?|imaging|scans?|images?|cxr|reports?)"
)
EARLIER: Final = r"(?:prior|previous|earlier|preceding|comparison)"

CHANGES: Final[dict[str, re.Pattern[str]]] = {
    name: re.compile(rf"\b(?:{words})\b")
    for name, words in {
        "new": r"new|newly|interval (?:development|appearance)",
        "larger": r"larger|bigger|increased (?:since|from|in size|compared)|(?:has|have) increased|interval increase"
        r"|worsen(?:ed|ing)|worse|grown|progress(?:ed|ion|ing)",
        "smaller": r"smaller|decreas(?:ed?|ing)|improv(?:ed|ement|ing)|regress(?:ed|ion)|reduced",
        "resolved": r"resolved|resolution|cleared|disappeared|no longer|(?:has|have) been removed",
        "unchanged": r"unchanged|stable|no (?:\w+ ){0,2}change|similar to (?:the )?(?:prior|previous)"
        r"|persist(?:s|ent|ing)?",
    }.items()
}

# Words that only make sense beside an earlier examination. "Prior" and "previous" alone may speak of a disease or an
# operation; they count beside a word for an examination, or after one that compares.
_MUCH = r"(?:significant|interval|appreciable|acute|definite|gross|substantial|obvious|apparent|further)"
_COMPARISON = re.compile(
    r"\b(?:compar(?:ed|ison|able|ing)|unchanged|interval(?:ly)?|again|re-?demonstrat\w*|stable|stability|worsen\w*"
    r"|improv(?:ed|ement|ing)|progress(?:ed|ion|ing)|regress(?:ed|ion)|persist\w*|new|newly|since|previously"
    r"|resolv(?:ed|ing)|resolution|earlier|no longer|than before"
    rf"|(?:no|without) (?:{_MUCH} ){{0,2}}changes?"
    r"|(?:has|have) (?:\w+ )?(?:increased|decreased|developed|enlarged|grown)"
    r"|(?:appears?|now|slightly|mildly|become) (?:larger|smaller|bigger|worse)(?! than)"
    r"|, (?:\w+ )?(?:increased|decreased)(?=\s*(?:$|[,.;]))|(?:increased|decreased) in (?:size|extent|number)"
    rf"|(?:prior|previous)\s+(?:\w+\s+){{0,2}}?{EXAMINATION}"
    r"|(?:from|than|to|the)\s+(?:the\s+)?(?:prior|previous)(?=\s*(?:$|[,.)]|on|of|dated)))\b"
)

# The patient's state, the sharpness of a picture, an anatomic variant, a follow-up that is yet to come.
_ELSEWHERE = re.compile(
    r"\b(?:(?:h(?:a)?emodynamically|clinically|neurologically) stable|stable (?:angina|condition)|new york"
    r"|(?:high|low|limited|spatial|contrast)[- ]resolution|persistent left (?:superior|svc)"
    r"|(?:time|follow-?up|screening|\d+[- ](?:year|month|week|day)) intervals?|interval follow-?up"
    r"|(?:to|for) (?:document|confirm|ensure|assess|evaluate|exclude|demonstrate|verify|monitor)(?: for)?"
    r" (?:\w+ ){0,2}?(?:resolution|stability|clearing|improvement|progression|change|persistence)"
    r"|(?:until|following|after) (?:complete )?(?:resolution|clearing)"
    r"|follow(?:ed)?[- ]?up (?:\w+ ){0,4}(?:to|for) (?:\w+ ){0,2}?(?:resolution|stability|clearing|change)"
    r"|recommend\w* (?:\w+ ){0,3}(?:comparison|correlation)[^.;,]*"
    rf"|(?:comparison|correlation) (?:to|with) [^.;,]*(?:would|could|may|might|recommended|suggested|if available)"
    rf"|(?:prior|previous|comparison) [^.;,]*(?:would|could|may|might) be (?:helpful|useful|of help)"
    r"|(?:no|if|if no|without|lack of|absence of) (?:(?:available|recent|relevant|other) )?"
    rf"(?:prior|previous|comparison) (?:\w+ ){{0,2}}?{EXAMINATION}[^.;,]*"
    r"|comparison\s*:?\s*none"
    # one side beside the other
    r"|(?:in )?compar(?:ed|ison|able) (?:to|with) (?:that (?:of|on) )?(?:the )?"
    r"(?:left|right|other|opposite|contralateral))\b"
)


def compares_with_prior(text: str) -> bool:
    """Whether a text compares with an earlier examination."""
    return _COMPARISON.search(without_other_meanings(text.lower())) is not None


def without_other_meanings(text: str) -> str:
    """The text, as long as it was, with words blanked that compare elsewhere but not here."""
    return _ELSEWHERE.sub(lambda match: "\N{BULLET}" * len(match.group()), text)
