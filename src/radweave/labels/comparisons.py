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
# "Increased" and "decreased" may measure against what is usual: they count of a finding, not of markings or volumes.
_MUCH = r"(?:significant|interval|appreciable|acute|definite|gross|substantial|obvious|apparent|further|overall|much)"
_DEGREE = r"(?:(?:\w+ly|a bit|a little|somewhat|much|far|very|quite|even|also|now) ){0,2}"
_IS = (
    r"(?:is|are|was|were|been|being|appears?|appeared|looks?|looked|seems?|seemed|remains?|remained|becom(?:es?|ing)"
    r"|became|gets?|got|gotten|grown)"
)
_FINDING = (
    r"(?:effusions?|pneumothora\w+|infiltrates?|consolidations?|edema|nodules?|mass(?:es)?|atelectasis|lesions?"
    r"|pneumonias?|airspace disease)"
)
_SHOWN = rf"(?:opacit\w+|densit\w+|(?!pneumonia|airspace){_FINDING})"
_OF_IT = (
    r"(?:(?!(?:with|without|of|in|at|and|or|may|likely|is|are|suggest\w*|compatible|consistent|markings|opacit\w+)\b)"
    r"\w+ ){0,3}?"
)
_END = r"(?=\s*(?:$|[.,;]))"
_PLACE = (
    r"(?: (?:on|at|in|within|along|over) (?:the )?(?:\w+ )?(?:right|left|bases?|apex|apices|lung|\w+ lobes?|\w+ view)"
    r"| than)"
)
# "Better seen on the lateral view" compares two views.
_NOT_OF_ONE = rf"(?!{_PLACE}| (?:seen|visuali[sz]ed|appreciated|demonstrated|evaluated|defined|assessed|characterized))"
_ER = (
    r"(?:larger|smaller|bigger|worse|better|clearer|denser|fainter|milder|thicker|thinner|wider|narrower|fuller)"
    rf"{_NOT_OF_ONE}"
)
_HOW = (
    r"(?:apparent|perceptible|evident|marked|severe|obvious|visible|distinct|congested|consolidated|inflated|expanded"
    r"|aerated|opaque|widespread|noticeable|hazy|striking|numerous|confluent|conspicuous|prominent|pronounced|extensive"
    r"|dense)"
)
# The perfect tense of a verb that nothing follows, or a preposition: what has done so did not before.
_HAS_DONE = (
    r"(?:has|have) (?:\w+ly )?(?!been\b|undergone\b)(?:\w{2,}ed|\w+own|become|risen|fallen|sunk|shrunk|spread|built"
    r"|crept|slid|come|gone|left)"
    r"(?=\s*(?:$|[.,;])| (?:up|down|away|out|back|on|off|to|into|from|since|by|in|at|over|\w+ly)\b)"
)
_FAMILIES: Final = {
    "an earlier examination": (
        r"compar(?:ed|ison|able|ing)|interval(?:ly)?|interim|meantime|meanwhile|now|since|previously|formerly"
        r"|earlier(?! (?:surgery|operation|disease|infection))|yesterday|ago|dating back"
        r"|last (?:time|night|week|month|year|\w+day)|since \w+day"
        r"|(?:as|than|from|like) before|than (?:it was|they were|previously)"
        rf"|than (?:on|in|at) (?:the |a |any )?(?:{EARLIER}|last)|as (?:it was|they were)"
        rf"|(?:prior|previous|last|most recent|preceding)\s+(?:\w+\s+){{0,2}}?{EXAMINATION}"
        rf"|(?:prior|previous|former) (?:\w+ ){{0,4}}?{_SHOWN}"
        r"|(?:from|than|to|the|on|in)\s+(?:the\s+)?(?:prior|previous)(?=\s*(?:$|[,.)]|on|of|dated|xxxx))"
        rf"|old (?:chest )?{EXAMINATION}|already (?:seen|noted|present|described|visible|reported)"
        rf"|(?:seen|present|visible|noted|described|evident|apparent|identified|measured(?: \S+){{1,3}}) before{_END}"
        r"|(?:at|near|to|from|with|than|below|above) (?:the |its |her |his )?baseline|(?:on|at) follow-?up"
    ),
    "sameness": (
        r"unchanged|unaltered|stable|stably|stability|status quo|stationary|static(?! images?)|once more|anew"
        r"|again|re-?demonstrat\w*|persist\w*|continued|still|linger\w*"
        rf"|continues to (?!the |into )\w+|continues{_END}|ongoing (?:\w+ ){{0,2}}?{_SHOWN}"
        rf"|{_IS} (?:\w+ ){{0,2}}?(?:back|the same|identical){_END}|{_IS} back (?:in|at|to)"
        rf"|back to (?:normal|baseline)|{_IS} constant"
        r"|(?:constant|identical) (?:in )?(?:appearance|size|position|configuration|findings?)"
        r"|similar[- ]appearing|similar (?:in )?(?:appearance|size|position|configuration)"
        rf"|{_IS} similar(?! to)|similar to (?:the |that |slightly |on )*(?:{EARLIER}|xxxx|last)"
        r"|the same (?:as|appearance|size)|essentially the same"
        r"|(?:there (?:is|are|remains?)|shows?|with) (?:the )?same (?!(?:\w+ )?(?:level|side|lobe|region|area|location"
        r"|place|site|patient|time|day|lung|view|technique)\b)(?=\w)"
        r"|(?:without|no) (?:\w+ )?(?:alteration|differences?(?! (?:between|in technique)))"
        r"|not (?:\w+ ){0,4}?different(?! (?:from|than|to) the (?:left|right|other|opposite))"
    ),
    "change": (
        rf"new|newly|changed|(?:no|without|little|minimal|slight) (?:{_MUCH} ){{0,2}}changes?"
        r"|change in (?:the )?(?:\w+ )?(?:size|appearance|position|extent|degree|number|configuration|aeration)"
        r"|worsen\w*|deteriorat\w*|improv(?:ed?s?|ements?|ing)|progress(?:ed|es|ion|ing)|progressive(?! massive)"
        r"|regress(?:ed|ion|ing)|retrogress\w*|no longer|any longer|any ?more|increasing|decreasing|enlarging"
        r"|diminishing|diminution|waning|re-?aerat\w*|re-?accumulat\w*|re-?expan\w*|re-?absor\w*|re-?appear\w*"
        r"|development of|(?<!well )(?<!well-)developed|for the first time|evolution of"
        rf"|recurr(?:ent|ence)(?! laryngeal)|recurr(?:ed|ing)|returned(?:{_END}| to (?:normal|baseline|its))"
        r"|(?:fail\w*|yet|slow(?:er)?) to (?:clear|resolve|improve)"
        r"|(?:has|have) (?:\w+ ){0,2}(?:increased|decreased|enlarged|grown|changed|evolved|diminished|advanced|migrated"
        rf"|returned|recurred|doubled|tripled|halved|become|appeared|arisen|emerged)|{_HAS_DONE}"
    ),
    "an end": (
        r"resolv(?:ed?|es|ing)|resolution|gone|cleared(?! for)|(?:has|have) (?:\w+ ){0,2}cleared|clearing|clearance"
        r"|disappear\w*|vanish\w*|subsid(?:es?|ed|ing)|abat(?:es?|ed|ing)|reced(?:es?|ed|ing)|lessen(?:s|ed|ing)|dissipat\w*|fad(?:ed|ing)|eas(?:ed|ing)"
        r"|dwindl\w*|shr(?:ank|unk|inks|inking)"
    ),
    "up and down": (
        r"up from|down from|went (?:back )?(?:up|down|away)|came (?:back|down)"
        r"|(?:moved|crept|slid|slipped) (?:up|down|back)\w*|on the (?:decline|rise|wane|mend)"
        rf"|(?:size|volumes?|{_SHOWN}) (?:rose|fell|dropped)|grew|grown|(?:is|are) growing|doubling|halving"
        rf"|(?:size|volumes?|{_SHOWN}) (?:(?:is|are) )?{_DEGREE}(?:up|down){_END}"
        r"|(?:increases?|decreases?|improvements?|reduction) (?:in|of)"
        r"(?! (?:the )?(?:ap|anterior|anteroposterior|retro\w*))"
        r"|(?:further|additional) (?:increase|decrease|clearing|enlargement|decline)"
        r"|(?:increased|decreased|reduced|diminished) in (?:size|extent|number|prominence)"
        r"|(?:increased|decreased) (?:since|from)"
        rf"|(?:increased|decreased|diminished|reduced) (?:size of (?:the |a )?)?{_OF_IT}{_FINDING}"
        rf"|{_SHOWN} {_DEGREE}(?:increased|decreased|diminished|advanced)(?: \w+ly| a bit| a little)?{_END}"
        rf"|{_FINDING}\b[^.;,]{{0,60}}? {_IS} {_DEGREE}(?:increased|decreased|diminished|reduced){_END}"
    ),
    "a comparative": (
        rf"{_IS} {_DEGREE}{_ER}|(?:slightly|mildly|minimally|marginally|somewhat|much|markedly|noticeably|considerably"
        rf"|a (?:bit|little|lot)|overall|\d ?[cm]m) {_ER}"
        rf"|no (?:worse|better|larger|smaller|bigger|clearer|denser)"
        rf"|volumes? {_IS} {_DEGREE}(?:lower|higher|greater){_NOT_OF_ONE}"
        r"|better (?:aerat|inspir|expan)\w*|(?:better|larger|smaller) (?:lung )?volumes"
        rf"|(?:{_IS}|^\W*) ?{_DEGREE}(?:more|less) {_HOW}{_NOT_OF_ONE}"
        rf"|(?:more|less) (?:confluent|conspicuous|prominent|pronounced|extensive|dense)(?!{_PLACE})"
        rf"|(?:more|less|fewer) (?:(?:pleural|pulmonary) )?(?:fluid|effusions?|edema|congestion|opacities|haziness"
        rf"|\w+ation){_NOT_OF_ONE}"
        rf"|not (?:as|so) (?:large|big|small|dense|{_HOW})(?=\s*(?:$|[.,;]|as\b))"
    ),
    "a device": (
        r"(?<!surgically )removed|(?<!surgical )(?<!post )removal of|extubat\w*|recently (?:placed|inserted)"
        r"|(?:has|have) (?:\w+ )?been (?:\w+ )?(?:removed|withdrawn|pulled|repositioned|replaced|retracted|advanced"
        r"|exchanged|extubated|placed|inserted|taken out)"
        r"|(?:was|were) (?:\w+ly )?(?:withdrawn|pulled|repositioned|retracted|advanced|exchanged|taken out)"
        r"|(?:tube|line|catheter|drain)s? (?:is|are|came|has come|have come) out"
    ),
}
"""What a comparison speaks of -> its words and the grammar around them."""
_ALONE = (
    r", (?:\w+ )?(?:increased|decreased|similar|larger|smaller|worse)(?=\s*(?:$|[.,;]))|(?:^|[.;]\s+)similar\b"
    r"|^\W*(?:\w+ly )?(?:worse|better|same|increased|decreased|diminished|reduced)(?=\s*(?:$|[.,;]))"
    r"|^\W*(?:the )?same (?!(?:\w+ )?(?:level|side|lobe|region|area|location|place|site|patient|time|day|lung|view"
    r"|technique)\b|(?:is|was) true|applies|holds|goes)(?=\w)"
)
"""What is the whole of a sentence, or of its last part."""
_COMPARISON = re.compile(rf"\b(?:{'|'.join(_FAMILIES.values())})\b|{_ALONE}")

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


def words_of_change(text: str) -> tuple[str, ...]:
    """The changes that a sentence speaks of, of the keys of ``CHANGES``."""
    plain = without_other_meanings(text.lower())
    return tuple(name for name, pattern in CHANGES.items() if pattern.search(plain))


def compares_with_prior(text: str) -> bool:
    """Whether a text compares with an earlier examination."""
    return _COMPARISON.search(without_other_meanings(text.lower())) is not None


def without_other_meanings(text: str) -> str:
    """The text, as long as it was, with words blanked that compare elsewhere but not here."""
    return _ELSEWHERE.sub(lambda match: "\N{BULLET}" * len(match.group()), text)
