"""Sentences of one report that cannot all be true: by organ, finding and polarity, and by how much a denial covers.

A report is read sentence by sentence into claims. A claim names a finding ("effusion"), or an organ that is called
normal ("lungs"), and whether it is there. Table ``COVERS`` says which findings a denial rules out: "the lungs are
clear" rules out every finding of the lungs, "no focal consolidation" an opacity too. It does not where it speaks of

    another side        "the left lung is clear" beside a right opacity
    what is acute       "no acute disease" beside a calcified granuloma
    the rest            "the lungs are otherwise clear" behind a finding of the lungs
    a large one         "no large effusion" beside a small one

"Otherwise" with nothing before it is a contradiction too: it takes back a finding that the report does not state.

What a sentence denies or doubts is read by the rules of ``radweave.labels.rules``, with topics in place of classes; one
vocabulary serves radiographs and CT.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Final

from radweave.core.study import LabelState
from radweave.labels.comparisons import State, is_broken, stated_changes, tidy
from radweave.labels.labeler import Labeler
from radweave.labels.phrases import PhraseBook, Structure, Terms, load_lexicon
from radweave.labels.places import Side, sides_named
from radweave.labels.rules import RuleLabeler
from radweave.labels.text import fold, sentences, sentences_by_part, tokenize

_LEXICON = load_lexicon("chexpert14")
_XRAY, _CT = _LEXICON.terms, load_lexicon("ct18").terms

# --- topics: findings, and organs that are called normal ------------------------------------------------------------

_LUNG = ("lung|lungs", "pulmonary parenchyma", "lung|lungs parenchyma|fields|field|bases|base|apices|zones")
_BONE = (
    "bone|bones|skeleton|ribs|spine|vertebrae|vertebral",
    "bony|osseous|skeletal|bone structures|structure|thorax|skeleton|elements",
    "thoracic cage|spine",
)
_MIDDLE = ("mediastinum|mediastina|mediastinal", "mediastinal contour|contours|structures|silhouette|borders|width")
_BOTH = ("cardiomediastin*|cardio .. silhouette|silhouettes|contour|contours|structures|size", "cardiomediastinum")
_HEART = _XRAY["Cardiomegaly"].structures[0]
_WIDTH = _XRAY["Enlarged Cardiomediastinum"].structures[0]
_IN_ABDOMEN: Final = {
    "liver": ("liver|hepatic",),
    "gallbladder": ("gallbladder|biliary",),
    "spleen": ("spleen|splenic",),
    "pancreas": ("pancreas|pancreatic",),
    "kidneys": ("kidney|kidneys|renal",),
    "adrenals": ("adrenal|adrenals|surrenal",),
}
_CHANGED = (
    "steato*|lesion*|cyst|cysts|cystic|mass|masses|nodul*|thicken*|stone|stones|calcul*|enlarg*|hypodens*|dilat*",
    "decreas*|increas*|atroph*|calcif*|adenoma*|hyperplas*",
)


def _organ(*nouns: str, normal: tuple[str, ...] = (), abnormal: tuple[str, ...] = ()) -> Terms:
    return Terms(structures=(Structure(nouns, abnormal, normal),))


def _both(name: str) -> Terms:
    """A class that both label sets have."""
    other = _CT.get(name) or _CT[name.capitalize()]
    return replace(_XRAY[name], look_alikes=(*_XRAY[name].look_alikes, *other.look_alikes))


TOPICS: Final[Mapping[str, Terms]] = {
    "opacity": Terms(
        findings=(
            "opacit*|opacif*",
            "airspace|alveolar|parenchymal disease|process|pattern|abnormalit*|densit*",
            "air space disease|process|abnormalit*|densit*",
            "ground|frosted glass",
            "groundglass|ggo|ggos",
            "crazy paving",
            "focal|patchy|hazy density|densities|shadow|shadows",
            "lung|retrocardiac|basilar|perihilar|lobe density|densities",
            "density|densities in|at|over|of the? right|left? lung|lungs|base|bases|lobe|apex",
            "aspiration",
        ),
        look_alikes=("interstitial|reticular|nodular opacit*",),
    ),
    "consolidation": Terms(findings=("consolidat*", "infiltrat*"), look_alikes=("fat|fatty .. infiltrat*",)),
    "pneumonia": _XRAY["Pneumonia"],
    "atelectasis": _both("Atelectasis"),
    "edema": Terms(findings=("edema*|oedema*", "heart|cardiac failure", "chf"), look_alikes=_XRAY["Edema"].look_alikes),
    "congestion": Terms(
        findings=("vascular|venous|pulmonary|hilar congestion|engorgement", "cephalization", "vascular redistribution"),
        structures=(
            Structure(
                ("pulmonary vascularity|vasculature|vessels", "vascularity|vasculature"),
                ("congest*|engorg*|prominen*|increas*|indistinct*|cephaliz*|redistribut*",),
            ),
        ),
    ),
    "nodule": Terms(
        findings=(*_XRAY["Lung Lesion"].findings, *_CT["Lung nodule"].findings, "nodular|cavitary opacit*"),
        look_alikes=(*_XRAY["Lung Lesion"].look_alikes, *_CT["Lung nodule"].look_alikes, "lymph node|nodes"),
        home=_CT["Lung nodule"].home,
        # On a radiograph ribs are landmarks: what projects over one is in the lung until shown otherwise.
        elsewhere=tuple(words.replace("|rib|ribs", "") for words in _CT["Lung nodule"].elsewhere),
    ),
    "interstitial": Terms(
        findings=(
            "interstitial .. disease|process|pattern|abnormalit*|prominence|thickening|coarsening|opacit*|changes",
            "reticular|reticulonodular|reticulation*",
            "prominen*|coarse*|increased .. interstitial",
            "honeycomb*",
            *_CT["Interlobular septal thickening"].findings,
        ),
    ),
    "airways": Terms(
        findings=(
            *_CT["Peribronchial thickening"].findings,
            *_CT["Bronchiectasis"].findings,
            "bronchial|bronchovascular .. thicken*|cuff*",
        )
    ),
    "emphysema": Terms(
        findings=("emphysem*", "copd", "bulla|bullae|bullous|bleb|blebs", "mosaic"),
        look_alikes=_CT["Emphysema"].look_alikes,
    ),
    "scar": Terms(
        findings=(
            "scar|scars|scarring|scarred",
            "granulom*",
            "fibro*|sequel*",
            "calcified .. nodul*|densit*",
        ),
        look_alikes=_CT["Pulmonary fibrotic sequela"].look_alikes,
        home=_CT["Pulmonary fibrotic sequela"].home,
        elsewhere=_CT["Pulmonary fibrotic sequela"].elsewhere,
    ),
    "volumes": Terms(
        findings=("hyperinflat*|hyperexpan*|hypoinflat*|hypoventilat*", "low|small|decreased|reduced lung? volumes"),
        structures=(
            Structure((*_LUNG, "lung volume|volumes"), ("low|overexpanded",), ("well .. expanded|inflated|aerated",)),
        ),
    ),
    # Read from "volumes": each rules out the other.
    "small lungs": Terms(),
    "large lungs": Terms(),
    "effusion": Terms(
        findings=(*_XRAY["Pleural Effusion"].findings, "blunt*"),
        look_alikes=(*_XRAY["Pleural Effusion"].look_alikes, *_CT["Pleural effusion"].look_alikes),
        structures=(Structure(("costophrenic|costodiaphragmatic *",), (), ("sharp|sharply",)),),
        home=_CT["Pleural effusion"].home,
        elsewhere=_CT["Pleural effusion"].elsewhere,
    ),
    "pneumothorax": _XRAY["Pneumothorax"],
    "pleural change": Terms(
        findings=("pleural .. thicken*|scar*|plaque*|calcif*|mass*|nodul*", "thicken* of the? .. pleura*|fissure*")
    ),
    "large heart": Terms(
        findings=("cardiomegal*", "cardiac|heart enlargement", "enlarge* of|in the? heart|cardiac"),
        structures=(
            replace(_HEART, nouns=(*_HEART.nouns, *_BOTH), unchanged=LabelState.BLANK),
            *(replace(one, doubtful=()) for one in _CT["Cardiomegaly"].structures),
        ),
    ),
    "wide mediastinum": Terms(
        findings=_XRAY["Enlarged Cardiomediastinum"].findings,
        structures=(replace(_WIDTH, nouns=(*_WIDTH.nouns[:-1], *_BOTH), unchanged=LabelState.BLANK),),
    ),
    "pericardial effusion": _CT["Pericardial effusion"],
    "hernia": Terms(findings=(*_CT["Hiatal hernia"].findings, "hernia*")),
    "nodes": Terms(
        findings=("lymphadenopath*|adenopath*|lymphadenomegal*", "enlarg*|patholog* .. lymph|lymphatic? node|nodes"),
    ),
    "aorta": Terms(
        findings=("tortuo*|ectat*|ectasia|aneurysm*|atheroscl*|atherom*", "aortic|aorta calcif*|unfold*|uncoil*"),
        structures=_CT["Arterial wall calcification"].structures,
    ),
    "coronary": _CT["Coronary artery wall calcification"],
    "fracture": Terms(
        findings=("fracture*", "dislocat*"),
        structures=(Structure(_BONE, (), ("intact",), denied_by_normal=False),),
    ),
    "bone change": Terms(
        findings=(
            "degenerat*|spondyl*|osteophyt*|arthri*|arthro*",
            "scolio*|kypho*|dextroscolio*|levoscolio*",
            "osteopen*|osteoporo*|demineral*",
            "lytic|blastic|sclerotic|destructive .. lesion|lesions",
        ),
    ),
    "deformity": Terms(findings=("compress*|wedg* .. deformit*|vertebra*",)),
    "free air": Terms(findings=("pneumoperiton*", "free .. air")),
    "devices": Terms(
        findings=(
            *_XRAY["Support Devices"].findings,
            *_CT["Medical material"].findings,
            "sternotomy .. wire|wires",
            "cabg",
            "bone|suture anchor|anchors",
            "cervical|thoracic|lumbar|spine|spinal fusion",
        ),
        # Leads on the skin are no support devices, and still devices that a sentence states.
        look_alikes=tuple(
            words
            for words in (*_XRAY["Support Devices"].look_alikes, *_CT["Medical material"].look_alikes)
            if not words.endswith(" .. lead|leads")
        ),
    ),
    "trachea": _organ("trachea|tracheal", abnormal=("deviat*|shift*|narrow*|displac*",)),
    "lungs": _organ(*_LUNG, "airspaces"),
    "pleura": _organ("pleura", "pleural space|spaces|surfaces|surface|cavity|cavities"),
    "mediastinum": _organ(*_MIDDLE),
    "bones": _organ(*_BONE),
    "esophagus": _organ("esophagus|esophageal", abnormal=("dilat*|thicken*",)),
    "abdomen": _organ("abdomen|abdominal", "abdominal organs|structures|viscera", abnormal=_CHANGED),
    **{name: _organ(*nouns, abnormal=_CHANGED) for name, nouns in _IN_ABDOMEN.items()},
}

_OF_LUNGS = frozenset(
    {"opacity", "consolidation", "pneumonia", "atelectasis", "edema", "nodule", "interstitial", "airways"}
    | {"emphysema", "scar", "congestion", "lungs"}
)
_OF_PLEURA = frozenset({"effusion", "pneumothorax", "pleural change", "pleura"})
_OF_MEDIASTINUM = frozenset({"wide mediastinum", "hernia", "nodes", "mediastinum"})
_OF_ABDOMEN = frozenset({"abdomen", *_IN_ABDOMEN})
_VOLUMES: Final = frozenset({"volumes", "small lungs", "large lungs"})
ALL: Final = frozenset(TOPICS) - {"devices"}

COVERS: Final[Mapping[str, frozenset[str]]] = {
    **{topic: frozenset({topic}) for topic in TOPICS},
    "opacity": frozenset({"opacity", "consolidation", "pneumonia", "atelectasis"}),
    "consolidation": frozenset({"consolidation", "opacity", "pneumonia", "atelectasis"}),
    "pneumonia": frozenset({"pneumonia", "consolidation", "opacity"}),
    "congestion": frozenset({"congestion", "edema"}),
    "fracture": frozenset({"fracture", "deformity"}),
    "lungs": _OF_LUNGS,
    "pleura": _OF_PLEURA,
    "mediastinum": _OF_MEDIASTINUM,
    "heart": frozenset({"large heart", "pericardial effusion"}),
    "bones": frozenset({"fracture", "deformity", "bone change", "bones"}),
    "esophagus": frozenset({"esophagus", "hernia"}),
    "abdomen": _OF_ABDOMEN,
    "chest": ALL - _VOLUMES,
}
"""Topic that is denied, or organ called normal -> the findings that this rules out."""

_ORGANS: Final = frozenset({"lungs", "pleura", "mediastinum", "bones"})
LASTING: Final = frozenset(
    {"scar", "emphysema", "bone change", "deformity", "aorta", "coronary", "hernia", "airways", *_VOLUMES}
)
"""Findings that are never acute."""

# "No acute abnormality" speaks of the organs that it names, or of the chest.
_SPOKEN_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "cardiopulmonary|cardiorespiratory": ("heart", "lungs", "pleura", "congestion"),
    "cardiac|heart": ("heart",),
    "cardiomediastinal|silhouette|contour|contours": ("heart", "mediastinum"),
    "pulmonary|lung|lungs|parenchymal": ("lungs", "pleura"),
    "pleura|pleural": ("pleura",),
    "mediastinal|mediastinum": ("mediastinum",),
    "bone|bones|bony|osseous|skeletal|spine|vertebral|rib|ribs": ("bones",),
    "abdomen|abdominal": ("abdomen",),
    "soft tissue|tissues": (),
}
_ANYTHING = (
    "abnormalit*",
    "acute|active .. disease|process|processes|change|changes|finding|findings|pathology|illness|injury",
    "cardiopulmonary|cardiac|pulmonary|thoracic|chest|pleural|bony|osseous disease|process|finding|findings|pathology",
    "significant .. disease|finding|findings|pathology",
)
_PICTURE = "chest|thorax|examination|exam|study|radiograph|radiographs|ct|film|films"
_ALL_WELL = (
    f"normal|unremarkable|negative .. {_PICTURE}",
    f"{_PICTURE} .. is|are|appears|within|shows? .. normal|unremarkable|negative END",
    f"{_PICTURE} normal|unremarkable|negative END",
)
_NOTHING_ELSE = re.compile(r"\W*(?:otherwise,? )?(?:grossly )?(?:normal|unremarkable|negative)\W*")


@dataclass(frozen=True, slots=True)
class Claim:
    """A topic that a sentence affirms or denies; a denial may be of an organ.

    ``sides`` are those that it is limited to, none where it names none or all. ``acute``: a denial of what is acute
    alone; ``lasting``: a finding that is not. ``large`` and ``small``: a denial of large ones alone, a small finding.
    ``rest``: a denial of whatever else there is; ``limited``: one that names its own exceptions; ``contrasted``: one
    beside "but", of which what the sentence states may be an exception or not.
    """

    topic: str
    denied: bool
    sides: frozenset[Side] = frozenset()
    acute: bool = False
    lasting: bool = False
    large: bool = False
    small: bool = False
    rest: bool = False
    limited: bool = False
    contrasted: bool = False


_ACUTE = re.compile(r"\b(?:acute(?:ly)?|active|for (?:\w+ )?age)\b")
_LASTS = re.compile(
    r"\b(?:chronic(?:ally)?|old|healed|remote|prior|previous|calcifi\w+|stable|unchanged|longstanding|post\w*surgical|known"
    r"|resolved|benign)\b"
)
_LARGE = re.compile(r"\b(?:large|larger|sizable|sizeable|massive|tension|significant)\b")
_SMALL = re.compile(r"\b(?:small|tiny|trace|minimal(?:ly)?|slight(?:ly)?|mild(?:ly)?|subtle|minor|blunt\w*)\b")
_REST = re.compile(r"\b(?:otherwise|remain(?:ing|der)|rest of|elsewhere|no other|no additional)\b")
_EXCEPT = re.compile(r"\b(?:except\w*|aside|apart|other than|besides|save for|exception)\b")
_CONTRAST = re.compile(r"\b(?:but|although|though|however)\b")
_PART = re.compile(r",|;|\b(?:with|without|but|while|whereas|although|though|however|except)\b")


class _Reader:
    """Claims of one sentence."""

    def __init__(self) -> None:
        self.rules = RuleLabeler(replace(_LEXICON, terms=TOPICS, other=(), other_look_alikes=()))
        generic = [(phrase, "anything") for phrase in _ANYTHING]
        well = [(phrase, "well") for phrase in _ALL_WELL]
        named = [(words, words) for words in _SPOKEN_OF]
        self.book: PhraseBook[str] = PhraseBook([*generic, *well, *named])

    def __call__(self, text: str) -> Iterator[Claim]:
        """Those of a folded sentence."""
        # To the rules "otherwise" and "but" part two statements; "the lungs are large but otherwise clear" is one.
        connected = _BUT_WELL.sub("and", text.replace("otherwise", " " * len("otherwise")))
        for reading in self.rules.readings(connected):
            topic, denied = reading.label, reading.state is LabelState.NEGATIVE
            if reading.state is LabelState.UNCERTAIN and _ADVICE.search(text):
                continue
            if denied and topic in ("lungs", "volumes"):
                topic = _of_lungs(text, topic, reading.start, reading.end) or ""
            if topic:
                yield _claim(text, topic, reading.start, reading.end, denied=denied)
            if topic == "volumes" and not denied:
                sizes = ("large lungs", "small lungs")
                size, other = sizes if _OVER.search(text[reading.start : reading.end]) else reversed(sizes)
                yield _claim(text, size, reading.start, reading.end, denied=False)
                yield _claim(text, other, reading.start, reading.end, denied=True)
        yield from self._generic(text)

    def _generic(self, text: str) -> Iterator[Claim]:
        """Denials that name no finding."""
        sentence = tokenize(text)
        matches = list(self.book.matches(sentence))
        if _NOTHING_ELSE.fullmatch(text):
            yield _claim(text, "chest", 0, len(text), denied=True)
        organs = dict.fromkeys(organ for one in matches for organ in _SPOKEN_OF.get(one.value, ()))
        spoken = [one for one in matches if one.value in _SPOKEN_OF]
        for one in matches:
            start, end = sentence.starts[one.first], sentence.ends[one.last]
            if one.value == "well" and not (spoken or _NOT.search(text[:start])):
                yield _claim(text, "chest", start, end, denied=True)
            elif one.value == "anything" and self.rules.state_at(text, one.last) is LabelState.NEGATIVE:
                for organ in organs if spoken else ("chest",):
                    yield _claim(text, organ, start, end, denied=True)


_BUT_WELL = re.compile(r"\bbut(?=\s+(?:(?:is|are|grossly)\s+)*(?:clear|normal|unremarkable)\b)")
_ADVICE = re.compile(r"\b(?:no new|if|correlat\w+|consider|recommend\w*|evaluat\w+)\b")
_NOT = re.compile(r"\bnot\b")


_OVER = re.compile(r"hyper|over")
_FILLED = r"(?:volumes?|inflat\w+|expan\w+|aerat\w+|ventilat\w+)"


def _of_lungs(text: str, topic: str, start: int, end: int) -> str | None:
    """The normal topic: the lungs or their volumes; None in "the lungs are clear of consolidation"."""
    after = re.match(r"\W*(\w+)", text[end:])
    behind, span = after.group(1) if after else "", text[start:end]
    if behind in ("of", "from") and span.endswith("clear"):
        return None
    if topic == "volumes":
        return topic if re.search(rf"\b{_FILLED}\b", f"{span} {behind}") else None
    return None if re.fullmatch(_FILLED, behind) or re.search(rf"\blungs? {_FILLED}\b", span) else topic


def _claim(text: str, topic: str, start: int, end: int, *, denied: bool) -> Claim:
    """With what limits it, in its part of the sentence."""
    first = max((cut.end() for cut in _PART.finditer(text, 0, start)), default=0)
    last = next((cut.start() for cut in _PART.finditer(text, end)), len(text))
    part = text[first:last]
    sides = sides_named(part)
    return Claim(
        topic,
        denied,
        sides=frozenset() if denied and len(sides) == 2 else sides,
        acute=denied and _ACUTE.search(text[:last]) is not None,
        lasting=not denied and (topic in LASTING or _LASTS.search(part) is not None),
        large=denied and _LARGE.search(text[:end]) is not None,
        small=not denied and _SMALL.search(part) is not None,
        rest=denied and _REST.search(text) is not None,
        limited=denied and _EXCEPT.search(text) is not None,
        contrasted=denied and _CONTRAST.search(text) is not None,
    )


_reader: Final = lru_cache(maxsize=1)(_Reader)


@lru_cache(maxsize=16384)
def claims_of(text: str) -> tuple[Claim, ...]:
    """Claims that a sentence, or a text, affirms and denies."""
    read = _reader()
    return tuple(dict.fromkeys(claim for _, sentence in sentences(fold(text)) for claim in read(sentence)))


def rules_out(denial: Claim, finding: Claim) -> bool:
    """True if a denial and a finding cannot both hold, "otherwise" left aside."""
    return (
        finding.topic in COVERS[denial.topic]
        and not (denial.acute and finding.lasting)
        and not (denial.large and finding.small)
        and not (denial.sides and not denial.sides & finding.sides)
        and not (finding.sides and denial.sides and finding.sides.isdisjoint(denial.sides))
    )


@lru_cache(maxsize=262144)
def takes_back(text: str, other: str, *, behind: bool = False) -> bool:
    """True if a sentence denies a finding that another one affirms.

    ``behind``: it comes after the other one, so that "otherwise" may mean the rest.
    """
    own = claims_of(text)
    stated = frozenset(claim.topic for claim in own if not claim.denied)
    return any(
        rules_out(denial, finding) and not _excepted(denial, finding, stated)
        for denial in own
        if denial.denied and not (denial.rest and behind)
        for finding in claims_of(other)
        if not finding.denied
    )


def _takes_itself_back(text: str) -> bool:
    """True if a sentence calls an organ normal and states a finding of it, with nothing between that sets it apart.

    "Lungs are clear airspace disease" stands in reports for "clear of airspace disease".
    """
    own = claims_of(text)
    return any(
        rules_out(denial, finding)
        for denial in own
        if denial.denied and denial.topic in _ORGANS and not (denial.rest or denial.limited or denial.contrasted)
        for finding in own
        if not finding.denied
    )


def _excepted(denial: Claim, finding: Claim, stated: frozenset[str]) -> bool:
    """True if a sentence that states these topics excepts a finding from its denial.

    "Clear except for a granuloma" excepts granulomas; where the exception is in words that are not read, anything may
    be it. "The heart is large, but the lungs are clear" excepts nothing of the lungs.
    """
    if not (denial.limited or denial.contrasted):
        return False
    named = stated & COVERS[denial.topic]
    return finding.topic in named if named else denial.limited


def states_something(text: str) -> bool:
    """True for a sentence that affirms a finding."""
    return any(not claim.denied for claim in claims_of(text))


@dataclass(frozen=True, slots=True)
class Contradiction:
    """The numbers of two sentences: ``denies`` takes back what ``states`` has; with None, what no sentence has.

    Both are one where a sentence takes itself back.
    """

    states: int | None
    denies: int


def contradictions(texts: Sequence[str]) -> list[Contradiction]:
    """Those among the sentences of one report, in order."""
    result = []
    for number, text in enumerate(texts):
        if not any(claim.denied for claim in claims_of(text)):
            continue
        if _takes_itself_back(text):
            result.append(Contradiction(number, number))
        for other, stated in enumerate(texts):
            if other != number and takes_back(text, stated, behind=other < number):
                result.append(Contradiction(other, number))
        if not all(_has_others(claim, texts[: number + 1]) for claim in claims_of(text) if claim.rest):
            result.append(Contradiction(None, number))
    return result


def _has_others(rest: Claim, texts: Sequence[str]) -> bool:
    """True if these sentences have a finding that gives "otherwise" a meaning."""
    return any(
        not claim.denied and claim.topic in COVERS[rest.topic] | {"volumes", "devices"}
        for text in texts
        for claim in claims_of(text)
    )


def contradictions_of(report: str) -> list[tuple[str | None, str]]:
    """The same as sentences of a report: what one states, and what takes it back."""
    texts = [text for _, text in sentences_by_part(report)]
    return [(None if one.states is None else texts[one.states], texts[one.denies]) for one in contradictions(texts)]


# Locations of findings in sentences, and the same sentences without them.
#
# without_place("There is a right lower lobe airspace disease.", labeler)    # "There is an airspace disease."
# without_place("Small left pleural effusion.", labeler)                     # "Small pleural effusion."
#
# Sides, lobes, zones and measured sizes count as locations: they differ between studies with the same finding. Words of
# a few forms are deleted, and none is added but for "a" that becomes "an". The rest is used only if it names no
# location any more, is no fragment, and a labeler reads the same state of every class in it.

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
# Words left over when a place is deleted.
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
    """True for a sentence that names a side, a part of the lungs or a measured size."""
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
    now = with_verb_number(now)
    return now + ending.group() if _same_states(body, now, labeler) else None


def _same_states(before: str, after: str, labeler: Labeler) -> bool:
    """True if a labeler reads the same state of every class in both."""
    old, new = labeler.label([before, after])
    return all(new[name].state is mention.state for name, mention in old.items())


# Number of the verb. Nouns of findings, one and several; "changes" and "markings" have no singular here.
_COUNTED = (
    "effusion|nodule|infiltrate|consolidation|granuloma|fracture|lesion|scar|calcification|shadow|cyst|bleb|plaque"
    "|process|pattern|bronchogram"
)
_ONE_FINDING = (
    rf"(?:(?:opaci|densi|abnormali|deformi)ty|{_COUNTED}|mass|bulla|pneumothorax|disease|atelectasis|edema|scarring"
    r"|thickening|opacification|collapse|blunting|emphysema|fibrosis|pneumonia|congestion|fluid)"
)
_FINDINGS = (
    rf"(?:(?:opaci|densi|abnormali|deformi)ties|(?:{_COUNTED})s|processes|masses|bullae|pneumothoraces|granulomata"
    r"|changes|markings)"
)
_ADJECTIVE = r"(?!(?:and|or|of|in|with|without|at|on|that|which|a|an|as)\b)[\w'-]+"
_HEAD_ENDS = (
    r"(?=$|[.;:]| (?:in|of|at|on|with|without|within|over|overlying|along|throughout|from|which|that|consistent"
    r"|compatible|suggesting|suggestive|representing|seen|noted|present|identified|visualized)\b)"
)
_MORE_VERB: Final = {"is": "are", "was": "were", "has": "have", "appears": "appear", "remains": "remain"}
_ONE_VERB: Final = {more: one for one, more in _MORE_VERB.items()}


def _agreement(verbs: Mapping[str, str], article: str, start: str, head: str) -> Iterator[re.Pattern[str]]:
    """Clauses with one of these verbs and a subject of another number, behind "there" and at the start."""
    verb, words = rf"(?P<verb>{'|'.join(verbs)})\b", rf"(?:{_ADJECTIVE} ){{0,6}}?"
    yield re.compile(rf"\bthere {verb}(?= (?:been )?{article}{words}{head}{_HEAD_ENDS})", re.IGNORECASE)
    yield re.compile(rf"^{start}(?!there){words}{head} {verb}", re.IGNORECASE)


_NUMBERS: Final = (
    *((form, _MORE_VERB) for form in _agreement(_MORE_VERB, "(?:a few )?", "(?:the )?", _FINDINGS)),
    *((form, _ONE_VERB) for form in _agreement(_ONE_VERB, "(?:an? )?", "(?:the |an? )?", _ONE_FINDING)),
)


def with_verb_number(sentence: str) -> str:
    """The sentence with the verb in the number of its subject, where that is one finding or several of one kind."""
    for form, verbs in _NUMBERS:
        if match := form.search(sentence):
            start, end = match.span("verb")
            return sentence[:start] + verbs[match["verb"].lower()] + sentence[end:]
    return sentence


# Devices in sentences, and statements of their class.
#
# without_kind("The nasogastric tube tip is in the stomach.", labeler)    # "Support devices are present."
#
# A label set has one class for all devices. No evidence names a kind of them, or the position of a tip.

DEVICES: Final[Mapping[str, str]] = {"Support Devices": "support devices", "Medical material": "medical material"}
"""Class of devices -> its name in a sentence."""
_DEVICES_ARE: Final[Mapping[State | None, str]] = {
    None: "{} are present",
    "new": "new {} are present",
    "unchanged": "{} are unchanged",
    "resolved": "{} have been removed",
}


def without_kind(sentence: str, labeler: Labeler, *, compares: bool = False) -> str | None:
    """A statement of the class for a sentence that states a device, the sentence itself where it states none.

    None where it states a finding too, a device that the class does not have (a clip), or a change that devices do not
    have. With ``compares`` the statement has the change from the prior study; a device that was removed is one, too.
    """
    claims = claims_of(sentence)
    is_stated = any(claim.topic == "devices" and not claim.denied for claim in claims)
    name = next((name for name in labeler.classes if name in DEVICES), "")
    changes = stated_changes([sentence], labeler)[0].get(name, frozenset()) if compares else frozenset[State]()
    if not is_stated and changes != {"resolved"}:
        return sentence
    change = min(changes, default=None)
    if not name or len(changes) > 1 or change not in _DEVICES_ARE or any(claim.topic != "devices" for claim in claims):
        return None
    words = _DEVICES_ARE[change].format(DEVICES[name])
    if not name.endswith("s"):
        words = words.replace(" are ", " is ").replace(" have ", " has ")
    statement = words.capitalize() + "."
    return statement if _same_states(sentence, statement, labeler) else None
