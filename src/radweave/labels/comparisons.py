"""Words that compare with an earlier examination: one lexicon for counting them and for removing them.

``CHANGES`` are the changes that a report may state; ``compares_with_prior`` tests for any comparison. Words with
another meaning are blanked first where that meaning is plain (``_ELSEWHERE``), and so is advice, which compares with
nothing yet (``_ADVICE``). "Old", "healed", "chronic", "residual" and "remains" describe the current image and do not
count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from radweave.core.ontology import NO_FINDING
from radweave.core.study import LabelState, has_both_sections, join_sections, split_sections
from radweave.labels.labeler import Labeler
from radweave.labels.text import fold, sentences

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
"""Kind of comparison -> its words and the grammar around them."""
_ALONE = (
    r", (?:\w+ )?(?:increased|decreased|similar|larger|smaller|worse)(?=\s*(?:$|[.,;]))|(?:^|[.;]\s+)similar\b"
    r"|^\W*(?:\w+ly )?(?:worse|better|same|increased|decreased|diminished|reduced)(?=\s*(?:$|[.,;]))"
    r"|^\W*(?:the )?same (?!(?:\w+ )?(?:level|side|lobe|region|area|location|place|site|patient|time|day|lung|view"
    r"|technique)\b|(?:is|was) true|applies|holds|goes)(?=\w)"
)
"""Words that are the whole of a sentence, or of its last part."""
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
    """True for a text that compares with an earlier examination."""
    return _COMPARISON.search(without_other_meanings(text.lower())) is not None


def without_other_meanings(text: str) -> str:
    """The text, as long as it was, with words blanked that compare elsewhere but not here."""
    return _ELSEWHERE.sub(lambda match: "\N{BULLET}" * len(match.group()), text)


# Removal of comparisons from drafts of studies without a prior.
#
# remove_comparisons("Stable cardiomegaly. The effusion has resolved. Lungs are clear.", labeler)
# # "Cardiomegaly. Lungs are clear."   and two edits, the second one without a sentence now
#
# Each sentence is edited by itself; one without a comparison is never changed. In one with a comparison, words of a few
# forms are deleted; nothing is added or rephrased, but for "a" that becomes "an". The rest is used only if it no longer
# compares, lost no other word, is no fragment, and a labeler reads the same state of every class in it. Else the whole
# sentence is left out, and the edit holds it.


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
    remaining = list(_remaining(read))
    # Sentences that an empty line parted must not run into one another.
    whole = [sentence if sentence[-1] in ".!?;:" else f"{sentence}." for sentence in remaining[:-1]]
    return " ".join([*whole, *remaining[-1:]]), edits


def _remaining(read: list[Edit]) -> Iterator[str]:
    """Remaining sentences; where a part before or after a semicolon went, the other one becomes a sentence."""
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
_OBSERVED = r"(?:seen|noted|visuali[sz]ed|identified|demonstrated|observed|present|evident)"
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
    _form(rf"\b(?:(?:once\s+)?again|still)\s+(?={_OBSERVED}\b)|(?:(?<=seen)|(?<=noted))\s+(?:once\s+)?again\b", "rest"),
    _form(r"(?:(?<=\bis )|(?<=\bare ))(?:again|still)\s+(?=\w)", "rest"),
    _form(rf"\b{_SAME}\s+(?:appearance|position|size)\s+of\s+", "finding"),
    _form(rf"\b(?:{_SAME}|persistent|continued|new|worsening|increasing|recurrent)\s+(?=\w)", "finding"),
)
# Conditional statements: without the comparison they mean something else.
_CONDITION = re.compile(r"\b(?:if(?! any\b)|unless|whether|provided)\b", re.IGNORECASE)
_DENIAL = re.compile(
    r"\b(?:no|not|without|never|none|nor|neither|cannot|can't|absent|absence|negative|free|rul\w+|exclu\w+|fail\w*|lack"
    r"|unlikely|question\w*|incomplete\w*|partial\w*|near(?:ly)?|almost)\b",
    re.IGNORECASE,
)
# Statements about two examinations: without one of them they mean something else.
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
    """True where a form may be deleted from its place."""
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
    """True for a text that names structures and says nothing of them."""
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
    """True if all words of ``was`` are in ``now``, in their order, but for some of ``_MAY_GO`` and examinations."""
    left = iter(_words(now))
    due = next(left, None)
    for word in _words(was):
        if word == due or (word in ("a", "an") and due in ("a", "an")):
            due = next(left, None)
        elif word not in _MAY_GO and not re.fullmatch(EXAMINATION, word):
            return False
    return due is None


def is_broken(now: str) -> bool:
    """True if the rest is a fragment, or names a structure without a word on it."""
    if _only_names(now) or _DANGLING.search(now):
        return True
    if any(one == other != "xxxx" for one, other in pairwise(_words(now))):
        return True
    if re.search(rf"\b{_VERB}\b", now, re.IGNORECASE):
        return False
    parts = re.split(r"[,;:]|\b(?:and|or|with|but)\b", _DENIAL.split(now, maxsplit=1)[0])
    return any(_only_names(part) and not _SIDES.issuperset(_words(part)) for part in parts)


# Change of each class from the prior study.
#
# ``STATES`` are ``absent`` (then and now), ``new``, ``worse``, ``unchanged``, ``improved`` and ``resolved``. A report
# states one where a sentence affirms a class beside a word of change, or denies it and calls it resolved; "no new
# effusion" states none. Without a statement, the classes that both reports affirm decide what is possible: a class in
# both is worse, unchanged or improved.

State = Literal["absent", "new", "worse", "unchanged", "improved", "resolved"]
STATES: Final[tuple[State, ...]] = ("absent", "new", "worse", "unchanged", "improved", "resolved")
PRESENT: Final[frozenset[State]] = frozenset({"new", "worse", "unchanged", "improved"})
"""States of a class that is present now."""
GOES_ON: Final[frozenset[State]] = PRESENT - {"new"}
_CALLED: Final[Mapping[str, State]] = {
    "new": "new",
    "larger": "worse",
    "smaller": "improved",
    "unchanged": "unchanged",
    "resolved": "resolved",
}
StatedChanges = Mapping[str, frozenset[State]]
"""Class -> the states that a text gives it, without classes to which it gives none."""


def stated_changes(texts: Sequence[str], labeler: Labeler) -> list[StatedChanges]:
    """Changes that each text states, read sentence by sentence."""
    lines = [(row, line) for row, text in enumerate(texts) for line in whole_sentences(text) if words_of_change(line)]
    changes: list[dict[str, frozenset[State]]] = [{} for _ in texts]
    for (row, line), mentions in zip(lines, labeler.label([line for _, line in lines]), strict=True):
        words = frozenset(_CALLED[word] for word in words_of_change(line))
        for name, mention in mentions.items():
            fits = words & PRESENT if mention.state is LabelState.POSITIVE else frozenset[State]()
            if mention.state is LabelState.NEGATIVE:
                fits = words & {"resolved"}
            if fits:
                changes[row][name] = changes[row].get(name, frozenset()) | fits
    return list(changes)


def possible(before: bool | None, now: bool, stated: frozenset[State]) -> frozenset[State]:
    """The possible states of a class.

    Args:
        before: the earlier report affirms it; None if that is not known.
        now: the current report affirms it.
        stated: the states that the current report gives it.
    """
    if now:
        return stated & PRESENT or (PRESENT if before is None else GOES_ON if before else frozenset({"new"}))
    if before is None and "resolved" not in stated:
        return frozenset({"absent", "resolved"})
    return frozenset({"resolved"}) if before or "resolved" in stated else frozenset({"absent"})


# De-identification marks, which replace words in a published report to protect a patient. A draft leaves out every
# sentence that holds one, since the replaced words are not known.

MARK = re.compile(r"x{3,}|_{2,}|\[\*\*.*?\*\*\]", re.IGNORECASE)


def without_marks(text: str) -> tuple[str, list[str]]:
    """The text without its sentences that hold a mark, and those. A text that has none comes back as it is.

    In a report of two parts headings stay, but for that of a part of which nothing is left.
    """
    if not MARK.search(text):
        return text, []
    if has_both_sections(text):
        each = {name: without_marks(part) for name, part in split_sections(text).items()}
        removed = [sentence for _, gone in each.values() for sentence in gone]
        return join_sections({name: now for name, (now, _) in each.items()}), removed
    clean: list[str] = []
    removed = []
    for sentence in whole_sentences(text):
        (removed if MARK.search(sentence) else clean).append(sentence)
    # A mark with a full stop in it may lie across two of them.
    now = " ".join(clean)
    return ("", [text]) if MARK.search(now) else (now, removed)
