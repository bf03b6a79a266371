"""Words that compare with an earlier examination: one lexicon for those who count them and for those who remove them.

``CHANGES`` are the changes that a report may speak of. ``compares_with_prior`` asks whether a text compares at all.
Words that have another meaning beside one of comparison are blanked first where that meaning is plain (``_ELSEWHERE``),
and so is advice: what is to be done, or would be done if, compares with nothing yet (``_ADVICE``). "Old", "healed",
"chronic", "residual" and "remains" tell what is seen and do not count.
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
        r"|increasing|worsen(?:ed|ing)|worse|grown|progress(?:ed|ion|ing)",
        "smaller": r"smaller|decreas(?:ed?|ing)|improv(?:ed|ement|ing)|regress(?:ed|ion)|reduced",
        "resolved": r"resolved|resolution|cleared|disappeared|gone|no longer|(?:has|have) been removed",
        "unchanged": r"unchanged|stable|no (?:\w+ ){0,2}change|similar to (?:the )?(?:prior|previous)"
        r"|persist(?:s|ent|ing)?",
    }.items()
}

# Words that only make sense beside an earlier examination. "Prior" and "previous" alone may speak of a disease or an
# operation; they count beside a word for an examination or for what a picture shows, or after one that compares.
_MUCH = r"(?:significant|interval|appreciable|acute|definite|gross|substantial|obvious|apparent|further|overall|much)"
_SHOWN = (
    r"(?:opacit\w+|effusions?|pneumothora\w+|infiltrates?|consolidations?|edema|nodules?|mass(?:es)?|densit\w+"
    r"|atelectasis|lesions?)"
)
_PLACE = (
    r"(?: (?:on|at|in|within|along|over) (?:the )?(?:\w+ )?(?:right|left|bases?|apex|apices|lung|\w+ lobes?|\w+ view)"
    r"| than)"
)
_COMPARISON = re.compile(
    r"\b(?:compar(?:ed|ison|able|ing)|unchanged|unaltered|interval(?:ly)?|interim|meantime|again|re-?demonstrat\w*"
    r"|stable|stably|stability|worsen\w*|improv(?:ed?s?|ements?|ing)|progress(?:ed|es|ion|ing)|regress(?:ed|ion|ing)"
    r"|progressive(?! massive)|persist\w*|new|newly|since|previously|resolv(?:ed?|es|ing)|resolution|earlier|no longer"
    r"|yesterday|ago|now|gone|cleared(?! for)|clearing|clearance|disappear\w*|increasing|decreasing|enlarging"
    r"|continued|diminishing|diminution|waning|re-?aerat\w*|(?<!surgically )removed"
    r"|continues to (?:be|have|show|demonstrate)|dating back|development of|re-?accumulat\w*|re-?expan\w*"
    r"|recurren(?:t|ce)(?! laryngeal)|(?<!well )(?<!well-)developed"
    r"|(?:as|than|from|like) before|than (?:it was|they were|previously)"
    rf"|than (?:on|in|at) (?:the |a |any )?(?:{EARLIER}|last)"
    rf"|(?:no|without|little|minimal|slight) (?:{_MUCH} ){{0,2}}changes?|(?:not|little|much) (?:\w+ ){{0,2}}changed"
    r"|(?:has|have) (?:\w+ ){0,2}(?:increased|decreased|enlarged|grown|changed|evolved|diminished|advanced|migrated)"
    r"|(?:has|have) (?:\w+ )?been (?:\w+ )?(?:removed|withdrawn|pulled|repositioned|replaced|retracted|advanced"
    r"|exchanged|extubated)|(?<!surgical )(?<!post )removal of"
    r"|(?:increases?|decreases?|improvements?|reduction) (?:in|of)"
    r"(?! (?:the )?(?:ap|anterior|anteroposterior|retro\w*))"
    r"|(?:appears?|become|is|are|slightly|mildly|somewhat|much) (?:larger|smaller|bigger|worse|better|clearer|denser)"
    rf"(?!{_PLACE}| (?:seen|visuali[sz]ed|appreciated|demonstrated|evaluated|defined))"
    rf"|(?:more|less) (?:confluent|conspicuous|prominent|pronounced|extensive|dense)(?!{_PLACE})"
    r"|better (?:aerat|inspir|expan)\w*|up from|down from|still|any ?more|status quo"
    r"|(?:fail\w*|yet|slow(?:er)?) to (?:clear|resolve|improve)|without (?:\w+ )?alteration"
    r"|grew|shrank|(?:is|are) growing"
    r"|(?:has|have) (?:\w+ )?(?:returned|recurred|come back|doubled|tripled|halved|shrunk)"
    r"|no (?:worse|better|larger|smaller|bigger|clearer|denser)"
    r"|(?:got|gotten|grown) (?:larger|smaller|bigger|worse|better)"
    r"|(?:is|are|appears?|remains?|looks?) (?:back|the same)(?=\s*(?:$|[.,;]))"
    r"|similar[- ]appearing|similar (?:in )?(?:appearance|size|position|configuration)"
    rf"|(?:is|are|appears?|looks?) similar(?! to)|similar to (?:the |that |slightly |on )*(?:{EARLIER}|xxxx|last)"
    r"|the same (?:as|appearance|size)|essentially the same"
    r"|(?:increased|decreased) (?:in (?:size|extent|number|prominence)|since|from)"
    rf"|(?:prior|previous|last|most recent|preceding)\s+(?:\w+\s+){{0,2}}?{EXAMINATION}"
    rf"|(?:prior|previous) (?:\w+ ){{0,4}}?{_SHOWN}"
    r"|(?:from|than|to|the|on|in)\s+(?:the\s+)?(?:prior|previous)(?=\s*(?:$|[,.)]|on|of|dated)))\b"
    r"|, (?:\w+ )?(?:increased|decreased|similar|larger|smaller|worse)(?=\s*(?:$|[,.;]))|(?:^|[.;]\s+)similar\b"
    r"|^\W*(?:worse|better|same)(?=\s*(?:$|[.,;]))"
)

# Advice runs to the end of its sentence or to what it rests on.
_ON = r"(?:(?!\b(?:as|because|given|although|though|but|which)\b)[^.;])*"
_CHANGE = r"(?:resolution|resolving|stability|clearing|improvement|progression|changes?|persistence|resolve|clear)"
_ADVICE = (
    rf"(?:recommend\w*|consider|consideration|correlate|if(?! any\b)|advise|(?:would|we|^\W*)\s?suggest)\b{_ON}"
    r"|(?:interval|continued|short[- ]term|serial|further)?\s?(?:follow[- ]?ups?|attention|surveillance|monitoring"
    r"|correlation|comparison|repeat|interval (?:film|exam\w*|study|imaging))\b[^.;,]{0,120}?"
    rf"\b(?:recommended|suggested|advised|helpful|useful|needed|required|warranted|reasonable|of help|indicated)\b{_ON}"
    r"|(?:to|for) (?:document|confirm|ensure|assess|evaluate|exclude|demonstrate|verify|monitor|establish|allow|assure"
    rf"|determine|check)(?: for)? (?:\w+ ){{0,4}}?{_CHANGE}(?: (?:and|or) {_CHANGE})*"
    rf"|(?:until|following|after) (?:complete )?{_CHANGE}"
    rf"|follow(?:ing|ed)?(?:[- ]?up)? (?:\w+ ){{0,5}}?(?:to|for|until) (?:\w+ ){{0,2}}?{_CHANGE}"
)
# The patient's state, the sharpness of a picture, an anatomic variant, a prior that is not there.
_ELSEWHERE = re.compile(
    rf"\b(?:{_ADVICE}"
    r"|(?:h(?:a)?emodynamically|clinically|neurologically) stable|stable (?:angina|condition)|new york"
    r"|(?:high|low|limited|spatial|contrast)[- ]resolution|persistent left (?:superior|svc)"
    r"|(?:time|follow-?up|screening|\d+[- ](?:year|month|week|day)) intervals?|interval follow-?up"
    rf"|(?:{EARLIER}) [^.;,]{{0,120}}(?:would|could|may|might) (?:be (?:helpful|useful|of)|confirm|establish|help)"
    r"|(?:no|if|if no|without|lack of|absence of) (?:(?:available|recent|relevant|other) )?"
    rf"(?:prior|previous|comparison) (?:\w+ ){{0,2}}?{EXAMINATION}[^.;,]*"
    r"|no (?:prior|priors|previous)\b[^.;,]{0,120}comparison|comparison\s*:?\s*none"
    r"|comparison\s*:\s*(?=(?:there|the|no|heart|lungs?)\b)"
    r"|since (?:the |her |his )?(?:surgery|operation|birth|childhood)"
    r"|(?:tumou?r|disease|cancer|evidence (?:of|for)(?: \w+)?) recurrence"
    # one side beside the other
    r"|(?:in )?compar(?:ed|ison|able) (?:to|with) (?:that (?:of|on) )?(?:the )?"
    r"(?:left|right|other|opposite|contralateral)\b[^.;]*)"
)


def compares_with_prior(text: str) -> bool:
    """Whether a text compares with an earlier examination."""
    return _COMPARISON.search(without_other_meanings(text.lower())) is not None


def without_other_meanings(text: str) -> str:
    """The text, as long as it was, with words blanked that compare elsewhere but not here."""
    return _ELSEWHERE.sub(lambda match: "\N{BULLET}" * len(match.group()), text)
