"""How many drafts contradict themselves, by a reading of their sentences that shares no word list with the package.

    python bench/draft_contradictions.py DRAFTS.jsonl [...] [--key hyp] [--examples 5] [--json OUT]

A file has one JSON object a line; ``--key`` names the text (``reference`` reads the references beside drafts). Each
sentence is cut into clauses, each clause read into claims: a finding with its polarity, size and side, or an organ that
is called normal. A draft is counted where two claims cannot both be true. Kinds:

* ``lungs``, ``heart``, ``mediastinum``, ``pleura``, ``bones``, ``vessels``: the organ is called normal, and a finding
  of it is stated. Lungs of another volume than normal may be clear; degenerated bones may be intact.
* ``denied``: a finding is stated and denied. Consolidation, pneumonia, infiltrate and airspace disease go for one
  another.
* ``acute``: "no acute disease" beside a consolidation, an edema, an opacity, an effusion or a pneumothorax.
* ``otherwise``: "otherwise clear" with no finding before it.
* ``volumes``: the lungs are small and large, or one of both and of normal volume.

``usage`` counts pairs apart that radiologists write although the words taken strictly exclude one another: clear lungs
beside a granuloma or scar, a normal mediastinum beside a tortuous aorta, "no consolidation" beside an opacity or
atelectasis, "no acute disease" beside atelectasis or a large heart. Denials of another side, of a large finding beside
one that is not called large, of a new, acute or displaced one beside an old one, and of "other" ones rule out nothing.

``places`` and ``devices`` count drafts that state a finding with a side or a lobe, and drafts that state a device.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# A finding: its organ and the words for it.
FINDINGS: dict[str, tuple[str, str]] = {
    "consolidation": ("lungs", r"consolidati\w+|consolidated"),
    "pneumonia": ("lungs", r"pneumonias?|bronchopneumonia|pneumonic|pneumonitis|infectious process"),
    "airspace": (
        "lungs",
        r"air ?-?space (?:disease|process|opacit\w+|infiltrat\w+|densit\w+)|infiltrat\w+|alveolar (?:disease|process)",
    ),
    "opacity": (
        "lungs",
        r"opacit\w+|opacification|hazy|haziness|(?<!soft tissue )(?<!bone )(?<!bony )(?<!mineral )densit(?:y|ies)"
        r"|interstitial (?:markings|disease|changes|thickening|prominence|lung disease)|interstitial pattern",
    ),
    "atelectasis": ("lungs", r"atelecta\w+|lung collapse|collapse of the \w+ (?:lung|lobe)"),
    "edema": ("lungs", r"(?:pulmonary |interstitial |alveolar )?o?edema|pulmonary congestion|heart failure|chf"),
    "congestion": (
        "vessels",
        r"(?:vascular|venous|vasculature|pulmonary) (?:congestion|engorgement|prominence|hypertension)|cephalization"
        r"|engorged|vascular redistribution|prominent (?:pulmonary )?vascul\w+",
    ),
    "nodule": ("lungs", r"nodul\w+|mass(?:es)?|lung lesions?|pulmonary lesions?|cavit(?:y|ies|ary)|neoplasm"),
    "granuloma": ("lungs", r"granuloma\w*|(?<!aortic )(?<!vascular )calcified (?:lymph )?nodes?"),
    "scar": ("lungs", r"scar(?:s|ring)?|fibro(?:sis|tic)|bronchiectasis|reticulation"),
    "emphysema": ("lungs", r"emphysema\w*|copd|chronic obstructive|bulla|bullae|bullous|chronic lung disease"),
    "large lungs": ("volumes", r"hyper-?(?:inflat\w+|expan\w+|aerat\w+|lucen\w+)|overinflat\w+|large lung volumes"),
    "small lungs": (
        "volumes",
        r"hypo-?(?:inflat\w+|expan\w+|aerat\w+|ventilat\w+)|low (?:lung )?volumes?|volumes are (?:\w+ )?low"
        r"|(?:small|diminished|decreased|reduced) lung volumes|shallow inspiration|volume loss|low inspirator\w+",
    ),
    "effusion": (
        "pleura",
        r"(?<!pericardial )effusions?|pleural fluid|hydrothorax|blunting of \w* ?\w* ?(?:costophrenic|sulc)\w*",
    ),
    "pneumothorax": ("pleura", r"pneumothora(?:x|ces|xes)|hydropneumothora\w+"),
    "thickening": ("pleura", r"pleural (?:thickening|plaques?|scarring|calcifications?|capping)|apical cap\w*"),
    "cardiomegaly": (
        "heart",
        r"cardiomegaly|cardiac enlargement|enlarge\w* of the (?:heart|cardiac)(?: silhouette)?"
        r"|enlarged (?:heart|cardiac|cardio-?mediastinal)\w*|large heart|heart is (?:\w+ )?large"
        r"|(?:heart|cardiac|cardio-?mediastinal)[\w ]{0,40}\benlarged|heart enlargement"
        r"|(?:heart|cardiac)[\w ]{0,30}\b(?:is|are|appears) (?:\w+ )?prominent",
    ),
    "wide mediastinum": (
        "mediastinum",
        r"mediastinal (?:widening|mass|enlargement)|wid(?:ening|ened) (?:of the )?mediastinum"
        r"|mediastinum (?:is|appears) (?:\w+ )?(?:widened|enlarged|prominent)",
    ),
    "adenopathy": ("mediastinum", r"(?:lymph)?adenopathy|enlarged (?:lymph )?nodes"),
    "aorta": (
        "aorta",
        r"(?:tortuous|ectatic|uncoiled|atherosclerotic|calcified)[\w /,]{0,30}aort\w+|aort\w+[\w ,]{0,40}"
        r"(?:tortu\w+|ectati\w+|ectasia|atheroscl\w+|calcifi\w+|uncoil\w+)|atherosclero\w+[\w ]{0,30}aort\w+"
        r"|tortuosity of the [\w ]{0,20}aorta",
    ),
    "fracture": ("bones", r"fractures?|fractured|broken"),
    "degeneration": (
        "bones",
        r"degenerat\w+|osteophyt\w+|spondylosis|spondylotic|spurring|arthritic|arthritis|arthrosis|syndesmophyt\w+"
        r"|scolio\w+|kypho\w+|osteopeni\w*|osteoporo\w+|(?:compression|wedge) deformit\w+|hyperostosis"
        r"|vertebral (?:compression|body height loss)|dextroscol\w+|levoscol\w+|demineraliz\w+",
    ),
}
DEVICES = (
    r"pacemakers?|pacer|picc|catheters?|tubes?|icd|defibrillators?|central (?:venous )?line|port-?a-?cath|mediport|"
    r"sternotomy wires|sternal wires|wires|clips|prosthe\w+|valve replacement|stents?|stimulator|hardware|pacing|"
    r"(?:infusion|chest|subclavian|jugular) port|leads"
)
LUNG_DISEASE = ("consolidation", "pneumonia", "airspace", "opacity", "atelectasis", "edema", "nodule")
LUNG_REST = ("granuloma", "scar", "emphysema")
CONSOLIDATIONS = ("consolidation", "pneumonia", "airspace")
ACUTE = ("consolidation", "pneumonia", "airspace", "opacity", "edema", "effusion", "pneumothorax", "congestion")

NO = re.compile(
    r"\b(?:no|not|without|negative for|free (?:of|from)|clear of|absence of|absent|nor|neither|never|denies|"
    r"rather than|"
    r"rules? out|ruled out|lack of|fails? to|resolution of|resolved|cleared|removed|removal of|nothing to)\b"
)
NO_BEHIND = re.compile(
    r"^[\w ,/-]{0,60}?\b(?:(?:is|are|was|were|has|have|had)(?: been)? (?:not|no longer|absent|excluded|"
    r"ruled out|removed|"
    r"resolved|cleared)|(?:has|have) (?:\w+ )?(?:resolved|cleared)|not (?:seen|identified|visualized|present|evident)"
    r"|unlikely)\b"
)
# Behind these a denial says nothing more.
STOP = re.compile(
    r"\b(?:but|however|although|though|except|other than|apart from|aside from|yet|while|which (?:is|are|may)|"
    r"there (?:is|are)|(?:is|are) (?:present|noted)|besides|despite|in addition to)\b|;|:"
)
SENTENCE = re.compile(r"(?<=[.!?])\s+(?!\d)|\n+")
NORMAL = (
    r"(?:within (?:the )?(?:normal|upper) limits?|within limits of normal|normal|unremarkable|clear|intact|"
    r"free of (?:disease|acute disease)|not (?:\w+ )?(?:enlarged|widened)|without (?:acute |focal |significant )*"
    r"(?:abnormalit\w+|disease|findings?)|top[- ]normal|upper limits? of normal|okay|negative)"
)
ADVERB = (
    r"(?:is|are|appears?|appearing|appeared|remains?|demonstrates?|shows?|seems?|grossly|essentially|otherwise|"
    r"both|all|also|again|"
    r"bilaterally|well|overall|stable|and|in|of|expanded|inflated|aerated|size|contour|generally|now|to be|be|at|,|for|"
    r"with|the|are all|still|mildly|borderline|probably|well-expanded|well-aerated|volumes?|symmetric\w*|"
    r"hyper\w+|fully|as|"
    r"upper|lower|an?|appearance|configuration|caliber|shape|but|unchanged|fields?|zones?)"
)
HEART = r"(?:heart|cardiac|cardio-?mediastinal|cardio mediastinal|cardiovascular)"
ORGANS: dict[str, str] = {
    "lungs": r"(?:lungs?|lung fields?|lung parenchyma|lung zones|parenchyma|lungs and pleural spaces)",
    "heart": HEART + r"(?: size| silhouettes?| contours?| shadow| borders?| configuration)*",
    "mediastinum": r"(?:mediastin\w+|cardio-?mediastinal|cardio mediastinal)"
    r"(?: silhouettes?| contours?| structures| size)*",
    "pleura": r"(?:pleura|pleural (?:spaces?|surfaces?|cavit\w+)|costophrenic (?:angles|sulci|recesses))",
    "bones": r"(?:bones?|bony (?:structures|thorax|elements)|osseous (?:structures|elements)|skeletal structures|"
    r"skeleton|ribs|thoracic spine|spine|thoracic cage)",
    "vessels": r"(?:(?:pulmonary |central )?(?:vasculature|vascularity|vascular markings|vessels))",
}
SIDES = {
    "right": r"\bright\b(?! heart)",
    "left": r"\bleft\b(?! heart| ventric)",
    "both": r"\b(?:bilateral\w*|both|bibasilar|biapical|bibasal)\b",
}
PLACE = re.compile(
    r"\b(?:right|left|bilateral\w*|bibasilar|biapical|bibasal|basilar|basal|bases?|apical|apex|apices|retrocardiac|"
    r"(?:upper|middle|lower|mid)[- ]?(?:lobes?|lungs?|zones?)|lobes?|lingula\w*|perihilar|suprahilar|infrahilar)\b"
)
OLD = re.compile(r"\b(?:old|healed|healing|remote|chronic|prior|previous|stable|unchanged)\b")
LARGE = re.compile(r"\b(?:large|gross|sizeable|sizable|massive|significant|big|moderate)\b")
MARKED = re.compile(
    r"\b(?:acute|displaced|new|suspicious|worrisome|aggressive|noncalcified|non-calcified|other|additional|"
    r"further|recurrent|residual|tension|definite|convincing|interval|active|cavitary|compression|confluent)\b"
)


@dataclass(frozen=True)
class Claim:
    """A claim of one clause: ``what`` is a finding, or an organ that is called normal."""

    what: str
    kind: str  # "stated", "denied" or "normal"
    side: str
    words: str
    sentence: int
    text: str


def sentences(text: str) -> list[str]:
    """Split into sentences."""
    return [s.strip() for s in SENTENCE.split(text) if s.strip(" .")]


def _side(words: str) -> str:
    found = [name for name, pattern in SIDES.items() if re.search(pattern, words)]
    return "" if not found else found[0] if len(found) == 1 else "both"


def _denied(clause: str, start: int, end: int) -> bool:
    before = clause[:start]
    cues = list(NO.finditer(before))
    if cues:
        between = before[cues[-1].end() :]
        if not STOP.search(between) and not re.search(r"\bnot (?:significantly )?(?:changed|excluded)", before):
            return True
        # "no X with small Y" states Y.
    return NO_BEHIND.search(clause[end:]) is not None and not STOP.search(clause[end : end + 8])


def _around(clause: str, start: int, end: int) -> str:
    """Return the words of a clause that belong to one finding: up to the next comma or "and" on each side."""
    left = max(
        (clause.rfind(cut, 0, start) + len(cut) for cut in (",", " and ", " or ", " with ") if cut in clause[:start]),
        default=0,
    )
    right = min(
        (p for cut in (",", " and ", " or ", " with ") if (p := clause.find(cut, end)) >= 0), default=len(clause)
    )
    return clause[left:right]


def read(text: str) -> list[Claim]:
    """Read a text into claims."""
    claims: list[Claim] = []
    for number, sentence in enumerate(sentences(text)):
        low = " " + re.sub(r"\s+", " ", sentence.lower()).strip(" .") + " "
        for clause in re.split(r"; | but | however,? | although | though ", low):
            claims += _findings(clause, number, sentence)
            claims += _normal(clause, number, sentence)
    return claims


def _findings(clause: str, number: int, sentence: str) -> Iterator[Claim]:
    taken: list[tuple[int, int]] = []
    for name, (_, pattern) in FINDINGS.items():
        for hit in re.finditer(rf"\b(?:{pattern})\b", clause):
            if any(a < hit.end() and hit.start() < b for a, b in taken):
                continue
            taken.append(hit.span())
            around = _around(clause, *hit.span())
            if name == "opacity" and re.search(r"\bopacit\w+|densit\w+", hit.group()):
                if re.search(r"air ?-?space|alveolar", around):
                    name_ = "airspace"
                elif re.search(r"nodular", around):
                    name_ = "nodule"
                else:
                    name_ = name
            elif name == "airspace" and re.search(r"opacit|densit", hit.group()):
                name_ = "airspace"
            else:
                name_ = name
            inside = name == "cardiomegaly" and re.search(r"\b(?:not|no|nor|without)\b", hit.group())
            denied = bool(inside) or _denied(clause, *hit.span())
            yield Claim(name_, "denied" if denied else "stated", _side(around), around, number, sentence)
    for hit in re.finditer(rf"\b(?:{DEVICES})\b", clause):
        denied = _denied(clause, *hit.span())
        yield Claim("device", "denied" if denied else "stated", "", _around(clause, *hit.span()), number, sentence)


def _normal(clause: str, number: int, sentence: str) -> Iterator[Claim]:
    for organ, noun in ORGANS.items():
        ahead = re.search(rf"\b({noun})\b((?:[ ,]+{ADVERB}\b|[ ,]+)*)[ ,]*\b{NORMAL}\b", clause)
        # Several organs before one verdict: "heart, lungs and mediastinum are normal".
        listed = re.search(
            rf"\b({noun})\b(?:[ ,/]+(?:and|or|the|pulmonary|mediastin\w+|hil\w+|heart|cardiac|lungs?|vascul\w+|"
            rf"xxxx|size|contours?|"
            rf"silhouettes?|structures?|pleural|spaces?|bony|osseous|soft|tissues|upper|abdomen|aort\w+|trachea|"
            rf"central|airways|"
            rf"volumes?|for|patient|age|visualized))*(?:[ ,]+{ADVERB}\b|[ ,]+)*[ ,]*\b{NORMAL}\b",
            clause,
        )
        behind = re.search(
            rf"\b(?:normal|clear|unremarkable|intact)\b(?: (?:appearing|appearance of|size|shape|contours?|and|"
            rf"configuration|of|the|stable|"
            rf"caliber|in|heart|mediastin\w+|cardiac|pulmonary|vascul\w+|both|bilateral))*,? ({noun})\b",
            clause,
        )
        hit = ahead or listed or behind
        if not hit:
            continue
        words = hit.group()
        if re.search(r"\b(?:not|no longer) (?:\w+ )?(?:normal|clear|intact)", clause) or re.search(
            r"\babnormal", words
        ):
            continue
        if organ == "bones" and re.search(r"\bacute\b", words):
            continue
        if re.search(r"\b(?:without|no) (?:\w+ )*$", clause[: hit.start()]):
            continue
        yield Claim(organ, "normal", _side(clause[max(0, hit.start() - 12) : hit.end()]), words, number, sentence)
    if re.search(r"\b(?:lungs?|inflat\w+|aerat\w+|expan\w+|volumes?)\b", clause) and re.search(
        r"\b(?:normally|well)[- ](?:inflated|expanded|aerated)|normal (?:lung )?volumes?|volumes? (?:\w+ )?normal",
        clause,
    ):
        yield Claim("volumes", "normal", "", clause, number, sentence)
    acute = re.search(
        r"\b(?:no|without|negative for)(?: evidence of)?(?: any)? (?:acute|active)[ \w/-]{0,40}?"
        r"(?:disease|abnormalit\w+|process|findings?|pathology|patholog\w+|changes?)\b",
        clause,
    )
    bony = r"\bbon[ey]|osse|skelet|\brib|fract|abdom|mediast|spine"
    if acute and not re.search(bony, acute.group() + clause[: acute.start()]):
        yield Claim("acute", "normal", "", acute.group(), number, sentence)
    if re.search(r"\bnormal (?:chest|examination|exam|study|radiograph\w*)\b", clause):
        yield Claim("lungs", "normal", "", clause, number, sentence)


def _rest(claim: Claim) -> bool:
    return bool(re.search(r"\b(?:otherwise|remain(?:der|ing)|rest of|elsewhere)\b", claim.text.lower()))


def _other_side(a: Claim, b: Claim) -> bool:
    return a.side in ("right", "left") and b.side != a.side


def contradictions(text: str) -> tuple[list[tuple[str, Claim, Claim | None]], list[tuple[str, Claim, Claim | None]]]:
    """Return the pairs of claims that exclude one another, and those that only strict words exclude."""
    claims = read(text)
    stated = [c for c in claims if c.kind == "stated"]
    hard: list[tuple[str, Claim, Claim | None]] = []
    usage: list[tuple[str, Claim, Claim | None]] = []
    for normal in (c for c in claims if c.kind == "normal"):
        for finding in stated:
            if _other_side(normal, finding) or (_rest(normal) and finding.sentence <= normal.sentence):
                continue
            kind = _normal_against(normal, finding)
            if kind:
                (usage if kind.startswith("usage") else hard).append((kind, normal, finding))
    for denied in (c for c in claims if c.kind == "denied"):
        for finding in stated:
            kind = _denied_against(denied, finding)
            if kind:
                (usage if kind.startswith("usage") else hard).append((kind, denied, finding))
    for number, sentence in enumerate(sentences(text)):
        if re.search(r"\botherwise\b", sentence.lower()) and not any(c.sentence <= number for c in stated):
            hard.append(("otherwise", Claim("otherwise", "normal", "", sentence, number, sentence), None))
    for small in (c for c in stated if c.what == "small lungs"):
        hard += [("volumes", small, large) for large in stated if large.what == "large lungs"]
    return hard, usage


def _normal_against(normal: Claim, finding: Claim) -> str:
    organ, what = normal.what, finding.what
    lungs_said = organ == "lungs" and not re.search(r"volume", normal.words)
    if lungs_said and what in LUNG_DISEASE:
        return "lungs"
    if lungs_said and what in LUNG_REST:
        return "usage lungs"
    if organ == "volumes" and what in ("small lungs", "large lungs"):
        return "volumes"
    if organ == "lungs" and what in ("small lungs", "large lungs") and re.search(r"normal|unremarkable", normal.words):
        return "volumes"
    if organ == "heart" and what == "cardiomegaly":
        return "heart"
    if organ == "mediastinum" and what in ("wide mediastinum", "adenopathy"):
        return "mediastinum"
    if organ == "mediastinum" and what == "aorta":
        return "usage mediastinum"
    if organ == "pleura" and what in ("effusion", "pneumothorax", "thickening"):
        return "pleura"
    if organ == "bones" and what == "fracture":
        return "usage bones" if OLD.search(finding.text.lower()) else "bones"
    if organ == "bones" and what == "degeneration" and re.search(r"normal|unremarkable", normal.words):
        return "usage bones" if "spine" in finding.text.lower() and "spine" not in normal.words else "bones"
    if organ == "vessels" and what in ("congestion", "edema"):
        return "vessels"
    if organ == "acute" and what in ACUTE:
        return "usage acute" if OLD.search(finding.text.lower()) else "acute"
    if organ == "acute" and what in ("atelectasis", "cardiomegaly"):
        return "usage acute"
    return ""


def _denied_against(denied: Claim, finding: Claim) -> str:
    alike = denied.what == finding.what or (denied.what in CONSOLIDATIONS and finding.what in CONSOLIDATIONS)
    # Who denies every opacity of the lungs denies what is one.
    wider = denied.what == "opacity" and finding.what in (*CONSOLIDATIONS, "atelectasis")
    strict = denied.what in CONSOLIDATIONS and finding.what in ("opacity", "atelectasis")
    if denied.what == "device" or not (alike or wider or strict) or _other_side(denied, finding):
        return ""
    if finding.sentence <= denied.sentence and (_rest(denied) or re.search(r"\bother\b", denied.words)):
        return ""
    if LARGE.search(denied.words) and not LARGE.search(finding.words):
        return ""
    if denied.what == "nodule" and re.search(r"calcif|granulom", finding.text.lower()):
        return "usage denied"
    if MARKED.search(denied.words) and not MARKED.search(finding.words):
        return "usage denied"
    return "usage denied" if strict or (wider and finding.what == "atelectasis") else "denied"


def placed(text: str) -> bool:
    """Return true if a stated finding has a side or a lobe."""
    organs = {name: organ for name, (organ, _) in FINDINGS.items()}
    return any(
        c.kind == "stated" and organs.get(c.what) in ("lungs", "pleura") and PLACE.search(c.words) for c in read(text)
    )


def with_device(text: str) -> bool:
    return any(c.kind == "stated" and c.what == "device" for c in read(text))


def count(texts: Sequence[str], examples: int = 0) -> dict[str, Any]:
    """Count drafts by kind of contradiction."""
    found: Counter[str] = Counter()
    shown: list[str] = []
    hard_drafts = usage_drafts = abnormal = 0
    for text in texts:
        hard, usage = contradictions(text)
        abnormal += any(c.kind == "stated" and c.what != "device" for c in read(text))
        hard_drafts += bool(hard)
        usage_drafts += bool(usage)
        found.update({kind for kind, _, _ in (*hard, *usage)})
        if hard and len(shown) < examples:
            kind, one, other = hard[0]
            shown.append(f"[{kind}] {one.text!r} / {other.text if other else ''!r}  IN  {text}")
    return {
        "drafts": len(texts),
        "distinct": len(set(texts)),
        "abnormal": abnormal,
        "contradictions": hard_drafts,
        "usage": usage_drafts,
        "kinds": dict(sorted(found.items())),
        "places": sum(placed(t) for t in texts),
        "devices": sum(with_device(t) for t in texts),
        "examples": shown,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("drafts", nargs="+", type=Path)
    parser.add_argument("--key", default="hyp")
    parser.add_argument("--examples", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = {}
    for path in options.drafts:
        lines = path.read_text(encoding="utf-8").splitlines()
        result = count([json.loads(line)[options.key] or "" for line in lines if line.strip()], options.examples)
        results[str(path)] = result
        print(path.name, {k: v for k, v in result.items() if k != "examples"})
        for example in result["examples"]:
            print("   ", example)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
