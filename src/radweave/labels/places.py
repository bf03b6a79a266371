"""Places of findings: side, zone or lobe, and severity, read from report sentences by rules.

    located = get_place_labeler("chexpert14").label(["Small left effusion with right basilar atelectasis."])[0]
    located["Atelectasis"][0].places    # {Place("right", "lower")}

Findings and their states are those of the rule-based labeler of a label set; a denied finding has no place. Zones serve
both modalities: ``upper``, ``mid`` and ``lower`` are thirds of a lung in a radiograph, and in CT the upper lobe, the
middle lobe (right) or lingula (left), and the lower lobe.

A sentence is read in this order:

1. *Phrases of place.* "Right mid and lower lung" is one phrase of two places, "the lower lobe of the left lung" of one.
2. *Owners.* A phrase belongs to the finding that it stands before ("left basilar atelectasis"), else to the one before
   it ("atelectasis at the left base"), else to the first one after it ("at the left base there is atelectasis").
3. *Shared places.* "Effusion and atelectasis at the left base" places both; "a left opacity, likely pneumonia" too.

A finding without a zone of its own gets the part of the body of its class (``HOMES``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import pairwise
from typing import Final, Literal, NamedTuple, cast

from radweave.core.errors import InputError
from radweave.core.ontology import LabelSetName
from radweave.core.study import LabelState, Modality
from radweave.labels.negation import FINITE_VERBS, JOINS, statement_end
from radweave.labels.phrases import load_lexicon
from radweave.labels.registry import label_set_of
from radweave.labels.rules import Reading, RuleLabeler
from radweave.labels.text import Sentence, fold, sentences, tokenize

VERSION: Final = "1"
Side = Literal["left", "right"]
SIDES: Final[tuple[Side, ...]] = ("left", "right")
LungZone = Literal["upper", "mid", "lower"]
LUNG_ZONES: Final[tuple[LungZone, ...]] = ("upper", "mid", "lower")
Zone = Literal[
    "upper", "mid", "lower", "hilum", "costophrenic angle", "pleura", "mediastinum", "heart", "bones", "devices"
]
Severity = Literal["mild", "moderate", "severe"]
_CACHED_SENTENCES = 16_384


class Place(NamedTuple):
    """A side of the chest and a zone; None where it is not stated."""

    side: Side | None
    zone: Zone | None


_LOBES: Final[Mapping[tuple[Side | None, Zone | None], str]] = {
    ("right", "mid"): "right middle lobe",
    ("left", "mid"): "lingula",
    (None, "mid"): "middle lobe or lingula",
}


def place_name(place: Place, modality: Modality) -> str:
    """Name of a place in the words of a modality: "right mid zone", "right middle lobe"; empty for no place."""
    if modality == "ct" and (place.side, place.zone) in _LOBES:
        return _LOBES[place.side, place.zone]
    kind = ("lobe" if modality == "ct" else "zone") if place.zone in LUNG_ZONES else ""
    return " ".join(filter(None, (place.side, place.zone, kind)))


def places_name(sides: Sequence[str], zones: Sequence[str], modality: Modality) -> str:
    """Name of sides and zones that were read together: "left lower zone and right lower zone"; empty for none.

    Of several sides and several zones the pairs are not known: "left and right, upper zone and lower zone".
    """
    if len(sides) > 1 and len(zones) > 1:
        return f"{' and '.join(sides)}, {places_name((), zones, modality)}"
    pairs = [Place(cast(Side, side), cast(Zone, zone)) for side in sides or (None,) for zone in zones or (None,)]
    return " and ".join(place_name(pair, modality) for pair in pairs)


HOMES: Final[Mapping[str, Zone]] = {
    "Cardiomegaly": "heart",
    "Pericardial effusion": "heart",
    "Coronary artery wall calcification": "heart",
    "Enlarged Cardiomediastinum": "mediastinum",
    "Arterial wall calcification": "mediastinum",
    "Lymphadenopathy": "mediastinum",
    "Hiatal hernia": "mediastinum",
    "Hernia": "mediastinum",
    "Pleural Effusion": "pleura",
    "Pleural effusion": "pleura",
    "Effusion": "pleura",
    "Pleural Other": "pleura",
    "Pleural_Thickening": "pleura",
    "Pneumothorax": "pleura",
    "Fracture": "bones",
    "Support Devices": "devices",
    "Medical material": "devices",
}
"""Class -> the part of the body that it is a finding of; classes of the lungs have none."""
_MIDLINE: Final = frozenset({"heart", "mediastinum"})


@dataclass(frozen=True, slots=True)
class Located:
    """A finding that a text states, surely or not.

    ``span`` is the character range [start, end) of its words. ``places`` is empty where the sentence has none. Of a
    range of severities ("mild to moderate") the upper end is given.
    """

    name: str
    state: LabelState
    span: tuple[int, int]
    places: frozenset[Place] = frozenset()
    severity: Severity | None = None

    @property
    def sides(self) -> frozenset[Side]:
        return frozenset(place.side for place in self.places if place.side is not None)

    def to_json(self) -> dict[str, object]:
        places = sorted(self.places, key=lambda place: (place.side or "", place.zone or ""))
        return {
            "state": str(self.state),
            "span": list(self.span),
            "places": [place._asdict() for place in places],
            "severity": self.severity,
        }


class PlaceLabeler:
    """Reads places of the findings of one rule-based labeler.

    The answer for a sentence depends on that sentence alone, and is kept.
    """

    def __init__(self, rules: RuleLabeler, *, cached_sentences: int = _CACHED_SENTENCES) -> None:
        self._rules = rules
        self._read_cached = lru_cache(maxsize=cached_sentences)(self._read)

    @property
    def name(self) -> str:
        return f"{self._rules.name} places"

    @property
    def version(self) -> str:
        return f"{self._rules.version}.{VERSION}"

    @property
    def classes(self) -> tuple[str, ...]:
        return self._rules.classes

    def label(self, texts: Sequence[str]) -> list[dict[str, tuple[Located, ...]]]:
        """One mapping class -> located findings per text, in their order, with every class present.

        A text's places never depend on the other texts of the call.

        Raises:
            InputError: if an entry is not a string.
        """
        if isinstance(texts, str):
            raise InputError("texts must be a list of reports", got="one string", expected="a list of strings")
        return [self._label_one(text, number) for number, text in enumerate(texts)]

    def _label_one(self, text: str, number: int) -> dict[str, tuple[Located, ...]]:
        if not isinstance(text, str):
            raise InputError("a report must be text", field=f"texts[{number}]", got=type(text).__name__, expected="str")
        located: dict[str, list[Located]] = {name: [] for name in self.classes}
        for offset, sentence in sentences(fold(text)):
            for one in self.located(sentence):
                if one.name in located:
                    span = (offset + one.span[0], offset + one.span[1])
                    located[one.name].append(Located(one.name, one.state, span, one.places, one.severity))
        return {name: tuple(own) for name, own in located.items()}

    def located(self, sentence: str) -> tuple[Located, ...]:
        """Located findings of one folded sentence; spans are of the sentence."""
        return self._read_cached(sentence)

    def _read(self, text: str) -> tuple[Located, ...]:
        readings = self._rules.readings(text)
        if all(reading.state is LabelState.NEGATIVE for reading in readings):
            return ()
        sentence = tokenize(text)
        result = []
        for start, end in _statements(sentence.tokens, {sentence.token_of(reading.end - 1) for reading in readings}):
            mentions = _mentions(sentence, readings, start, end)
            _assign(sentence.tokens, mentions, _phrases(sentence.tokens, mentions, start, end), start)
            for number, mention in enumerate(mentions):
                severity = _severity(sentence.tokens, mention, mentions, start, end)
                repeated = _repeated(sentence.tokens, mentions[max(number - 1, 0)], mention)
                stated: dict[str, Reading] = {}
                for reading in mention.readings:
                    if reading.state is not LabelState.NEGATIVE and reading.label not in repeated:
                        stated.setdefault(reading.label, reading)
                for name, reading in stated.items():
                    places, span = _at_home(name, mention.places), (reading.start, reading.end)
                    result.append(Located(name, reading.state, span, places, severity))
        return tuple(result)


def get_place_labeler(name: str) -> PlaceLabeler:
    """Reader of places for the findings of a label set.

    Raises:
        InputError: for a name that no label set has.
    """
    return _place_labeler(label_set_of(name).name)


@cache
def _place_labeler(label_set: LabelSetName) -> PlaceLabeler:
    return PlaceLabeler(RuleLabeler(load_lexicon(label_set)))


# --- words -----------------------------------------------------------------------------------------------------------


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_BOTH: Final = frozenset(SIDES)
_SIDE_WORDS: Final[Mapping[str, frozenset[Side]]] = {
    **dict.fromkeys(("left", "lt", "leftward"), frozenset[Side](("left",))),
    **dict.fromkeys(("right", "rt", "rightward"), frozenset[Side](("right",))),
    **dict.fromkeys(("bilateral", "bilaterally", "bilat", "biapical", "bibasilar", "bibasal", "bihilar"), _BOTH),
}
# Names with a side in them that are no place: "left ventricular enlargement", "a drain was left in place".
_NAMED: Final = re.compile(r"(?:ventric|atri|coronary|main\b|dominant|in\b|anterior descending|aortic|arch\b)")
_BOTH_OF = _set(
    "lungs lung bases lobes apices hila sides side upper mid lower middle hemithoraces pleural costophrenic"
    " hemidiaphragms perihilar hilar apical basilar zones fields of the breasts"
)

_LEVELS: Final[Mapping[str, LungZone]] = {"upper": "upper", "mid": "mid", "middle": "mid", "lower": "lower"}
_LUNG_NOUNS = _set("lobe lobes lung lungs zone zones field fields hemithorax hemithoraces thorax chest midlung")
_ZONE_WORDS: Final[Mapping[str, tuple[Zone, ...]]] = {
    **dict.fromkeys(("apex", "apical", "apices", "biapical", "apically"), ("upper",)),
    **dict.fromkeys(
        ("base", "bases", "basilar", "basal", "bibasilar", "bibasal", "basally", "basis", "retrocardiac"), ("lower",)
    ),
    **dict.fromkeys(("midlung", "midlungs", "lingula", "lingular"), ("mid",)),
    **dict.fromkeys(
        ("hilum", "hila", "hilar", "bihilar", "perihilar", "parahilar", "infrahilar", "suprahilar"), ("hilum",)
    ),
    **dict.fromkeys(("costophrenic", "costodiaphragmatic", "cp"), ("costophrenic angle",)),
    **dict.fromkeys(
        ("mediastinum", "mediastinal", "paratracheal", "subcarinal", "prevascular", "aortopulmonary"), ("mediastinum",)
    ),
    **dict.fromkeys(("rul", "lul"), ("upper",)),
    "rml": ("mid",),
    **dict.fromkeys(("rll", "lll"), ("lower",)),
}
# Zone words that state their side too. A plural without a side is both: "at the lung bases".
_SIDE_OF_ZONE: Final[Mapping[str, frozenset[Side]]] = {
    **dict.fromkeys(("lingula", "lingular", "lul", "lll"), frozenset[Side](("left",))),
    **dict.fromkeys(("rul", "rml", "rll"), frozenset[Side](("right",))),
    **dict.fromkeys(("bases", "apices", "hila", "biapical", "bibasilar", "bibasal", "bihilar", "midlungs"), _BOTH),
}
_NOT_OF_LUNG = _set("heart cardiac ventricular ventricle neck skull")

_DETAILS = _set(
    "anterior posterior lateral medial superior inferior anterolateral posterolateral peripheral central apicoposterior"
    " anteromedial laterobasal mediobasal segment segments subsegment region regions area areas aspect aspects portion"
    " part parts sided side sides zone zones field fields lobe lobes lung lungs hemithorax hemithoraces thorax angle"
    " angles sulcus sulci recess recesses parenchyma space spaces subpleural extreme far"
)
_LINKS = _set(
    "and or , / - to through the of in at on than greater more larger worse less > both within also well as ("
)
_LIST_LINKS = _set("and or , / with")
_PREPOSITIONS = _set(
    "in at on of over overlying within along throughout near about involving to from through behind around into"
    " affecting above below across occupying projecting projected"
)
_NORMAL = _set("clear normal unremarkable clean")
_COPULAS = _set("is are was were remains remain appears appear otherwise grossly well")

# Between two findings: the second explains the first, so that both are in one place.
_EXPLAINS = _set(
    "represent represents representing reflect reflects reflecting consistent compatible suggest suggests suggesting"
    " suggestive likely possibly probably probable versus vs due secondary concerning suspicious worrisome indicating"
    " indicative favored favor considered such may could might"
)
_BREAKS_MODIFIER = (
    FINITE_VERBS | JOINS | _PREPOSITIONS | _EXPLAINS | _set("( ) : with without or there no not otherwise negative")
)

_SEVERITIES: Final[Mapping[str, Severity]] = {
    **dict.fromkeys(
        _set("mild mildly minimal minimally small tiny trace slight slightly subtle faint minor minimum little"), "mild"
    ),
    **dict.fromkeys(_set("moderate moderately"), "moderate"),
    **dict.fromkeys(
        _set("severe severely large marked markedly extensive massive massively huge gross pronounced dense advanced"),
        "severe",
    ),
}
_RANKS: Final[tuple[Severity, ...]] = ("mild", "moderate", "severe")


def sides_named(text: str) -> frozenset[Side]:
    """Sides that a text names, in whatever it says: "lingula" is left, "both bases" are two."""
    tokens = tokenize(fold(text)).tokens
    return frozenset(side for atom in _atoms(tokens, frozenset(), 0, len(tokens)) for side in atom.sides)


# --- phrases of place ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Atom:
    """One word of place: sides, or zones, or both."""

    at: int
    sides: frozenset[Side] = frozenset()
    zones: tuple[Zone, ...] = ()


@dataclass(slots=True)
class _Mention:
    """Readings of the same words, tokens [first, last], and their places."""

    first: int
    last: int
    readings: list[Reading]
    front: list[Place] = field(default_factory=list)
    before: list[Place] = field(default_factory=list)
    after: list[Place] = field(default_factory=list)
    shared: list[Place] = field(default_factory=list)

    @property
    def own(self) -> list[Place]:
        """Places of its own phrases; one further in front counts where these have no side."""
        near = [*self.before, *self.after]
        return near if any(place.side is not None for place in near) else [*self.front, *near]

    @property
    def places(self) -> frozenset[Place]:
        return merge_places(self.own or self.shared)


def merge_places(places: Iterable[Place]) -> frozenset[Place]:
    """Places of one finding, completed by one another: left, and at the base, is at the left base."""
    stated = list(dict.fromkeys(places))
    whole = [place for place in stated if place.side is not None and place.zone is not None]
    sides = list(dict.fromkeys(place.side for place in stated if place.zone is None and place.side is not None))
    zones = list(dict.fromkeys(place.zone for place in stated if place.side is None and place.zone is not None))
    covered = {place.side for place in whole}
    if sides and zones:
        whole += [Place(side, zone) for side in sides for zone in zones]
    elif zones:
        all_sides = list(dict.fromkeys(place.side for place in whole))
        whole += [Place(side, zone) for zone in zones for side in (all_sides or [None])]
    elif sides:
        whole += [Place(side, None) for side in sides if side not in covered]
    return frozenset(whole)


def _at_home(name: str, places: frozenset[Place]) -> frozenset[Place]:
    """The places of a class: with its part of the body where no zone is stated; heart and mediastinum have no side."""
    home = HOMES.get(name)
    if home is None:
        return places
    if home in _MIDLINE and name != "Lymphadenopathy":
        return frozenset({Place(None, home)})
    return frozenset(Place(place.side, place.zone or home) for place in places or {Place(None, None)})


def _statements(tokens: Sequence[str], findings: Set[int]) -> Iterator[tuple[int, int]]:
    """Tokens [start, end) of the statements of a sentence; ", the largest of which is ..." goes on with the one before.

    ``findings`` are the tokens that readings end with.
    """
    parts = frozenset(i for i in range(len(tokens)) if tokens[i] in _PARTS)
    start = end = 0
    while end < len(tokens):
        first = end
        end = max(statement_end(tokens, first, parts - {first}), first + 1)
        ahead = max(statement_end(tokens, end, parts - {end}), end + 1) if end < len(tokens) else end
        if findings.isdisjoint(range(end, ahead)) and not _GOES_ON.isdisjoint(tokens[end : end + 5]):
            end = ahead
        yield start, end
        start = end


_GOES_ON = _set("which that largest biggest some most mostly more predominantly mainly especially")
_PARTS = _set("but while whereas although though however :")


def _mentions(sentence: Sentence, readings: Sequence[Reading], start: int, end: int) -> list[_Mention]:
    """Readings whose words end in a statement, those of overlapping or adjacent words together, in order."""
    mentions: list[_Mention] = []
    placed = []
    for reading in readings:
        first, last = sentence.token_of(reading.start), sentence.token_of(reading.end - 1)
        if start <= last < end:
            placed.append((max(first, start), last, reading))
    for first, last, reading in sorted(placed, key=lambda one: (one[0], one[1])):
        # Adjacent words are one noun phrase: "nodular opacity", "ground-glass opacities".
        if mentions and first <= mentions[-1].last + 1:
            mentions[-1].last = max(last, mentions[-1].last)
            mentions[-1].readings.append(reading)
        else:
            mentions.append(_Mention(first, last, [reading]))
    return mentions


def _atoms(tokens: Sequence[str], finding_starts: frozenset[int], start: int, end: int) -> Iterator[_Atom]:
    """Words of place among tokens [start, end)."""
    for i in range(start, end):
        word, following = tokens[i], " ".join(tokens[i + 1 : i + 3])
        if word == "both":
            if not _BOTH_OF.isdisjoint(tokens[i + 1 : i + 3]):
                yield _Atom(i, _BOTH)
        elif word in _LEVELS:
            if _is_lung_level(tokens, finding_starts, i, start, end):
                yield _level(tokens, i, end)
        elif word in _ZONE_WORDS:
            if not _is_elsewhere(tokens, i, end):
                zones = _ZONE_WORDS[word]
                yield _Atom(i, _side_of(tokens, i, end), zones)
        elif word in _SIDE_WORDS and not _NAMED.match(following):
            yield _Atom(i, _SIDE_WORDS[word])


def _is_elsewhere(tokens: Sequence[str], i: int, end: int) -> bool:
    """True for an apex or a base of something else: "the cardiac apex", "the base of the neck"."""
    if tokens[i] not in ("apex", "base", "apical", "basal", "basilar"):
        return tokens[i] == "cp" and tokens[i + 1 : i + 2] not in (("angle",), ("angles",))
    return not _NOT_OF_LUNG.isdisjoint(tokens[max(0, i - 1) : i]) or (
        tokens[i + 1 : i + 2] == ("of",) and not _NOT_OF_LUNG.isdisjoint(tokens[i + 2 : min(end, i + 4)])
    )


def _side_of(tokens: Sequence[str], i: int, end: int) -> frozenset[Side]:
    """The side that a zone word has in itself."""
    if tokens[i] in ("costophrenic", "costodiaphragmatic", "cp"):
        return _BOTH if tokens[i + 1 : i + 2] and tokens[i + 1] in ("angles", "sulci", "recesses") else frozenset()
    return _SIDE_OF_ZONE.get(tokens[i], frozenset())


def _is_lung_level(tokens: Sequence[str], finding_starts: frozenset[int], i: int, start: int, end: int) -> bool:
    """True for "upper" of a lobe, lung or zone, and in "right upper nodule"; not in "the upper thoracic spine"."""
    for j in range(i + 1, min(i + 7, end)):
        if tokens[j] in _LUNG_NOUNS:
            return not (tokens[j] in ("thorax", "chest") and tokens[j + 1 : j + 2] == ("wall",))
        if j in finding_starts:
            return i > start and tokens[i - 1] in _SIDE_WORDS
        if not (tokens[j] in _LEVELS or tokens[j] in _LINKS or tokens[j] in _DETAILS or tokens[j] in _SIDE_WORDS):
            return False
    return i + 1 >= end and i > start and tokens[i - 1] in _SIDE_WORDS


def _level(tokens: Sequence[str], i: int, end: int) -> _Atom:
    """A level with its side: the middle lobe is the right one, and "lower lobes" are both."""
    zone = _LEVELS[tokens[i]]
    noun = next((tokens[j] for j in range(i + 1, min(i + 7, end)) if tokens[j] in _LUNG_NOUNS), "")
    if tokens[i] == "middle" and noun in ("lobe", "lobes"):
        return _Atom(i, frozenset[Side](("right",)), (zone,))
    return _Atom(i, _BOTH if noun in ("lobes", "lungs", "zones", "fields") else frozenset(), (zone,))


@dataclass(frozen=True, slots=True)
class _Phrase:
    """Atoms that are joined by links alone."""

    atoms: tuple[_Atom, ...]

    @property
    def first(self) -> int:
        return self.atoms[0].at

    @property
    def last(self) -> int:
        return self.atoms[-1].at


def _phrases(tokens: Sequence[str], mentions: Sequence[_Mention], start: int, end: int) -> list[_Phrase]:
    """Phrases of place of a statement, cut at findings; those of what is called normal are left out."""
    starts = frozenset(mention.first for mention in mentions)
    borders = {at for mention in mentions for at in range(mention.first, mention.last + 1)}
    groups: list[list[_Atom]] = []
    for atom in _atoms(tokens, starts, start, end):
        before = groups[-1][-1].at if groups else -1
        between = range(before + 1, atom.at)
        is_linked = groups and all(tokens[j] in _LINKS or tokens[j] in _DETAILS for j in between)
        if is_linked and borders.isdisjoint(range(before, atom.at + 1)):
            groups[-1].append(atom)
        else:
            groups.append([atom])
    phrases = [_Phrase(tuple(group)) for group in groups]
    return [phrase for phrase in phrases if not _is_called_normal(tokens, phrase, start, end)]


def _is_called_normal(tokens: Sequence[str], phrase: _Phrase, start: int, end: int) -> bool:
    """True for the place in "the right lung is clear" and "clear right lung"."""
    if any(tokens[j] in _NORMAL for j in range(max(start, phrase.first - 2), phrase.first)):
        return True
    j = phrase.last + 1
    while j < end and (tokens[j] in _DETAILS or tokens[j] in _COPULAS):
        j += 1
    return j < end and j > phrase.last + 1 and tokens[j] in _NORMAL


def _places(tokens: Sequence[str], atoms: Sequence[_Atom]) -> list[Place]:
    """Places of a phrase: sides are spread over the zones that follow them, or that they follow."""
    clusters: list[tuple[frozenset[Side], list[Zone]]] = []
    ranges: set[int] = set()
    closed = True
    for number, atom in enumerate(atoms):
        between = tokens[atoms[number - 1].at + 1 : atom.at] if number else ()
        sides, zones = clusters[-1] if clusters else (frozenset[Side](), [])
        if zones and not atom.zones and not _RANGE.isdisjoint(between):
            ranges.add(len(clusters))
        if atom.zones:
            if number and not closed and not (atom.sides and sides and atom.sides != sides and zones):
                if zones and not _RANGE.isdisjoint(between):
                    zones += _between(zones[-1], atom.zones[0])
                own = sides or atom.sides
                clusters[-1] = (own, [*zones, *atom.zones])
            else:
                clusters.append((atom.sides, list(atom.zones)))
            closed = False
        elif zones and not closed and not _BINDS.isdisjoint(between) and _JOIN.isdisjoint(between):
            # "The lower lobe of the left lung": the side belongs to the zone before it.
            clusters[-1] = (atom.sides, zones)
            closed = True
        elif clusters and not zones and not closed:
            clusters[-1] = (sides | atom.sides, zones)
        else:
            clusters.append((atom.sides, []))
            closed = False
    for n in ranges & set(range(len(clusters))):
        if clusters[n][1] and clusters[n][0] == clusters[n - 1][0]:
            clusters[n][1][:0] = _between(clusters[n - 1][1][-1], clusters[n][1][0])
    return [place for n in range(len(clusters)) for place in _cluster(clusters, n)]


_RANGE = _set("to through -")
_BINDS = _set("of on in")
_JOIN = _set("and or , /")


def _cluster(clusters: Sequence[tuple[frozenset[Side], list[Zone]]], n: int) -> list[Place]:
    sides, zones = clusters[n]
    if not zones and n:
        zones = clusters[n - 1][1]  # "the bases, right greater than left"
    some: Sequence[Side | None] = sorted(sides) or [None]
    parts: Sequence[Zone | None] = zones or [None]
    return [Place(side, zone) for side in some for zone in parts]


def _between(first: Zone, last: Zone) -> list[Zone]:
    """Zones between the ends of a range: the mid zone in "upper to lower lung"."""
    return ["mid"] if {first, last} == {"upper", "lower"} else []


# --- findings of the phrases -----------------------------------------------------------------------------------------


def _assign(tokens: Sequence[str], mentions: Sequence[_Mention], phrases: Sequence[_Phrase], start: int) -> None:
    """Give every phrase to its finding, and share places among findings that are joined."""
    for phrase in phrases:
        inside = next((m for m in mentions if m.first <= phrase.last and phrase.first <= m.last), None)
        before = next((m for m in reversed(mentions) if m.last < phrase.first), None)
        behind = next((m for m in mentions if m.first > phrase.last), None)
        if inside is not None:
            inside.before += _places(tokens, phrase.atoms)
        elif behind is not None and _modifies(tokens, phrase, behind) and not _is_of(tokens, phrase, before):
            cut = _cut(tokens, phrase, before)
            if before is not None and cut:
                before.after += _places(tokens, phrase.atoms[:cut])
            behind.before += _places(tokens, phrase.atoms[cut:])
        elif before is not None and not _is_of_another(tokens, phrase, before):
            before.after += _places(tokens, phrase.atoms)
        elif behind is not None and _NORMAL.isdisjoint(tokens[phrase.last : behind.first]):
            behind.front += _places(tokens, phrase.atoms)
    _share(tokens, mentions)


def _repeated(tokens: Sequence[str], earlier: _Mention, later: _Mention) -> frozenset[str]:
    """Classes that a finding repeats, without a place of its own, of the one before: "a pacemaker with two leads"."""
    between = tokens[earlier.last + 1 : later.first]
    if earlier is later or later.own or not _JOIN.isdisjoint(between):
        return frozenset()
    return frozenset(reading.label for reading in earlier.readings if reading.state is not LabelState.NEGATIVE)


def _modifies(tokens: Sequence[str], phrase: _Phrase, mention: _Mention) -> bool:
    """True if only adjectives stand between a phrase and the finding behind it."""
    between = tokens[phrase.last + 1 : mention.first]
    return len(between) <= 6 and _BREAKS_MODIFIER.isdisjoint(between)


def _is_of(tokens: Sequence[str], phrase: _Phrase, before: _Mention | None) -> bool:
    """True for a phrase right behind a finding and a preposition, all of it: "atelectasis at the left base"."""
    if before is None or _cut(tokens, phrase, before):
        return False
    between = tokens[before.last + 1 : phrase.first]
    return bool(between) and between[0] in _LOCATES and _LIST_LINKS.isdisjoint(between)


def _is_of_another(tokens: Sequence[str], phrase: _Phrase, before: _Mention) -> bool:
    """True for the zone of something that accompanies a finding: "pneumothorax with mediastinal shift"."""
    between = tokens[before.last + 1 : phrase.first]
    if "with" not in between and "without" not in between:
        return False
    after = between[max(j for j, word in enumerate(between) if word in ("with", "without")) :]
    return _LOCATES.isdisjoint(after) and not any(atom.sides for atom in phrase.atoms)


_LOCATES = _set("in at on over overlying within along throughout involving")


def _cut(tokens: Sequence[str], phrase: _Phrase, before: _Mention | None) -> int:
    """Number of atoms that belong to the finding before: one in "effusion on the left and right atelectasis"."""
    if before is None or _PREPOSITIONS.isdisjoint(tokens[before.last + 1 : phrase.first]):
        return 0
    for number in range(len(phrase.atoms) - 1, 0, -1):
        between = tokens[phrase.atoms[number - 1].at + 1 : phrase.atoms[number].at]
        if not _LIST_LINKS.isdisjoint(between) and phrase.atoms[number].sides:
            return number
    return 0


def _share(tokens: Sequence[str], mentions: Sequence[_Mention]) -> None:
    """Findings without a place take that of a finding they are joined to."""
    for earlier, later in pairwise(mentions):
        between = tokens[earlier.last + 1 : later.first]
        if later.own or not (earlier.own or earlier.shared):
            continue
        if not _EXPLAINS.isdisjoint(between) or not _LIST_LINKS.isdisjoint(between) or len(between) <= 1:
            later.shared = earlier.own or earlier.shared
    for later, earlier in pairwise(reversed(mentions)):
        between = tokens[earlier.last + 1 : later.first]
        is_list = not (_JOIN | {"adjacent"}).isdisjoint(between) and FINITE_VERBS.isdisjoint(between)
        is_list = is_list or (len(between) <= 2 and _BREAKS_MODIFIER.isdisjoint(between))
        places = later.after or (() if later.own else later.shared)
        if is_list and places and not (earlier.own or earlier.shared):
            earlier.shared = [*places]


def _severity(
    tokens: Sequence[str], mention: _Mention, mentions: Sequence[_Mention], start: int, end: int
) -> Severity | None:
    """Severity in the words before a finding, in its own, or said of it behind a verb."""
    first = mention.first
    while first > start and tokens[first - 1] not in _ENDS_NOUN:
        first -= 1
    words = [word for word in tokens[first : mention.last + 1] if word in _SEVERITIES]
    if not words:
        stop = min((other.first for other in mentions if other.first > mention.last), default=end)
        behind = tokens[mention.last + 1 : stop]
        verb = next((j for j, word in enumerate(behind) if word in FINITE_VERBS), None)
        if verb is not None:
            words = [word for word in behind[verb + 1 : verb + 3] if word in _SEVERITIES]
    return max((_SEVERITIES[word] for word in words), key=_RANKS.index, default=None)


_ENDS_NOUN = (FINITE_VERBS | _PREPOSITIONS | _set("and , with without ( ) : or")) - {"to"}
