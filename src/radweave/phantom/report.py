"""Reports of phantom radiographs: findings and impression, in three styles, with the labels they state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from radweave.core.ontology import CHEXPERT14
from radweave.core.study import LabelState
from radweave.phantom.findings import SEVERITIES, Finding

# Sentences in our own wording, each with the states of classes that it asserts. They avoid words that rule-based
# labelers read for another class: a pneumothorax never "collapses" a lung, since the word indicates atelectasis.

POS, NEG, UNC = LabelState.POSITIVE, LabelState.NEGATIVE, LabelState.UNCERTAIN


Statement = tuple[str, dict[str, LabelState]]
"""A text without full stop, and the states of classes that it asserts."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence with the states of classes that it asserts. ``topic`` orders it in the report."""

    text: str
    states: dict[str, LabelState] = field(default_factory=dict)
    topic: str = ""


def choose(rng: np.random.Generator, *options: str) -> str:
    return options[int(rng.integers(len(options)))]


TOPIC: dict[str, str] = {
    "Support Devices": "devices",
    **dict.fromkeys(("Cardiomegaly", "Enlarged Cardiomediastinum"), "heart"),
    **dict.fromkeys(("Lung Lesion", "Lung Opacity", "Edema", "Consolidation", "Pneumonia", "Atelectasis"), "lungs"),
    **dict.fromkeys(("Pneumothorax", "Pleural Effusion", "Pleural Other"), "pleura"),
    "Fracture": "bones",
}

_GRADE: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "Cardiomegaly": (("mild", "slight"), ("moderate",), ("severe", "marked")),
    "Enlarged Cardiomediastinum": (("mild", "slight"), ("moderate",), ("marked",)),
    "Lung Opacity": (("faint", "subtle"), ("patchy", "hazy"), ("extensive", "dense")),
    "Edema": (("mild",), ("moderate",), ("severe",)),
    "Consolidation": (("focal", "small"), ("moderate",), ("dense", "large")),
    "Pneumonia": (("patchy", "small"), ("moderate", "patchy"), ("extensive", "large")),
    "Atelectasis": (("mild", "minimal"), ("moderate",), ("marked", "severe")),
    "Pneumothorax": (("small", "tiny"), ("moderate",), ("large",)),
    "Pleural Effusion": (("small", "trace"), ("moderate",), ("large",)),
    "Pleural Other": (("mild",), ("moderate",), ("marked",)),
}
_ADVERB = {"mild": "mildly", "slight": "slightly", "moderate": "moderately", "severe": "severely", "marked": "markedly"}
_NOUN: dict[str, str] = {
    "Lung Opacity": "opacity",
    "Edema": "pulmonary edema",
    "Consolidation": "consolidation",
    "Pneumonia": "pneumonia",
    "Atelectasis": "atelectasis",
    "Pneumothorax": "pneumothorax",
    "Pleural Effusion": "pleural effusion",
    "Pleural Other": "pleural thickening",
    "Cardiomegaly": "cardiomegaly",
    "Enlarged Cardiomediastinum": "mediastinal widening",
    "Fracture": "rib fracture",
}


def grade(finding: Finding, rng: np.random.Generator) -> str:
    return choose(rng, *_GRADE[finding.name][("mild", "moderate", "severe").index(finding.severity)])


def place(finding: Finding, rng: np.random.Generator) -> str:
    """The position in the lungs, as a phrase that follows "in" or "at"."""
    if finding.side == "bilateral":
        return {"lower": "both lower lungs", "upper": "both upper lungs", "mid": "both mid lungs"}.get(
            finding.zone, "both lungs"
        )
    if finding.zone == "lower":
        return choose(rng, f"the {finding.side} lower lung", f"the {finding.side} lung base")
    return f"the {finding.side} {finding.zone} lung"


def describe(finding: Finding, rng: np.random.Generator) -> Sentence:
    """The sentence of the findings section for one finding."""
    if finding.name == "Support Devices":
        return _device(finding, rng)
    if finding.trend == "resolved":
        return _resolved(finding, rng)
    text, states = _BODY[finding.name](finding, rng)
    return Sentence(capital(with_trend(text, finding, rng)), states, TOPIC[finding.name])


def with_trend(text: str, finding: Finding, rng: np.random.Generator) -> str:
    """Add the comparison with the prior study."""
    if finding.trend == "first":
        return text + "."
    if finding.trend == "new":
        return choose(rng, f"{text}, new since the prior study.", f"{text}, new from prior.")
    if finding.trend == "unchanged":
        return choose(rng, f"{text}, unchanged.", f"{text}, stable from prior.")
    change = {
        "increased": ("increased since the prior study", "larger than before"),
        "decreased": ("decreased since the prior study", "smaller than before"),
    }[finding.trend]
    return f"{text}, {choose(rng, *change)}."


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _resolved(finding: Finding, rng: np.random.Generator) -> Sentence:
    side = "" if finding.side in ("midline", "bilateral") else f"{finding.side} "
    noun = _NOUN.get(finding.name, finding.kind)
    text = choose(rng, f"The {side}{noun} has resolved.", f"Previously seen {side}{noun} has resolved.")
    return Sentence(text, {finding.name: NEG}, TOPIC[finding.name])


def _cardiomegaly(f: Finding, rng: np.random.Generator) -> Statement:
    word = grade(f, rng)
    text = choose(
        rng,
        f"the heart is {_ADVERB[word]} enlarged",
        f"{word} cardiomegaly",
        f"there is {word} enlargement of the cardiac silhouette",
    )
    return text, {"Cardiomegaly": POS}


def _mediastinum(f: Finding, rng: np.random.Generator) -> Statement:
    word = grade(f, rng)
    text = choose(rng, f"the mediastinum is {_ADVERB[word]} widened", f"{word} widening of the mediastinum")
    return text, {"Enlarged Cardiomediastinum": POS}


def _opacity(f: Finding, rng: np.random.Generator) -> Statement:
    word, where = grade(f, rng), place(f, rng)
    noun = "opacities" if f.side == "bilateral" else "opacity"
    article = "" if f.side == "bilateral" else ("an " if word[0] in "aeiou" else "a ")
    be = "are" if f.side == "bilateral" else "is"
    return choose(rng, f"{word} {noun} in {where}", f"there {be} {article}{word} {noun} in {where}"), {
        "Lung Opacity": POS
    }


def _pneumonia(f: Finding, rng: np.random.Generator) -> Statement:
    word, where = grade(f, rng), place(f, rng)
    if f.certainty == "possible":
        text = choose(
            rng,
            f"{word} airspace opacity in {where} may represent pneumonia",
            f"{word} opacity in {where}, possible pneumonia",
        )
        return text, {"Lung Opacity": POS, "Pneumonia": UNC}
    text = choose(
        rng,
        f"{word} airspace opacity in {where} consistent with pneumonia",
        f"{word} airspace opacity in {where} compatible with pneumonia",
    )
    return text, {"Lung Opacity": POS, "Pneumonia": POS}


def _consolidation(f: Finding, rng: np.random.Generator) -> Statement:
    word, where = grade(f, rng), place(f, rng)
    if f.certainty == "possible":
        return f"possible {word} consolidation in {where}", {"Consolidation": UNC}
    return choose(rng, f"{word} consolidation in {where}", f"there is {word} consolidation in {where}"), {
        "Consolidation": POS
    }


def _edema(f: Finding, rng: np.random.Generator) -> Statement:
    word = grade(f, rng)
    if rng.random() < 0.3:
        return f"bilateral perihilar opacities consistent with {word} pulmonary edema", {
            "Edema": POS,
            "Lung Opacity": POS,
        }
    return choose(rng, f"{word} pulmonary edema", f"there is {word} interstitial edema"), {"Edema": POS}


def _atelectasis(f: Finding, rng: np.random.Generator) -> Statement:
    word = grade(f, rng)
    base = "both lung bases" if f.side == "bilateral" else f"the {f.side} lung base"
    side = "bibasilar" if f.side == "bilateral" else f"{f.side} basilar"
    if f.certainty == "possible":
        return f"streaky opacity at {base} may represent atelectasis", {"Lung Opacity": POS, "Atelectasis": UNC}
    return choose(rng, f"{word} {side} atelectasis", f"{word} linear atelectasis at {base}"), {"Atelectasis": POS}


def _lesion(f: Finding, rng: np.random.Generator) -> Statement:
    where = place(f, rng)
    size = f"{f.size_mm / 10:.0f} cm" if f.kind == "mass" else f"{round(f.size_mm)} mm"
    if f.certainty == "possible":
        return f"possible {size} {f.kind} in {where}", {"Lung Lesion": UNC}
    if f.count > 1:
        many = ("", "", "two", "three", "four")[f.count]
        return f"{many} {'masses' if f.kind == 'mass' else 'nodules'} in {where} measuring up to {size}", {
            "Lung Lesion": POS
        }
    return choose(rng, f"{size} {f.kind} in {where}", f"there is a {size} {f.kind} in {where}"), {"Lung Lesion": POS}


def _pneumothorax(f: Finding, rng: np.random.Generator) -> Statement:
    word = grade(f, rng)
    return choose(rng, f"{word} {f.side} pneumothorax", f"there is a {word} {f.side} apical pneumothorax"), {
        "Pneumothorax": POS
    }


def _effusion(f: Finding, rng: np.random.Generator) -> Statement:
    word = grade(f, rng)
    if f.side == "bilateral":
        text = choose(rng, f"{word} bilateral pleural effusions", f"there are {word} bilateral pleural effusions")
    else:
        text = choose(rng, f"{word} {f.side} pleural effusion", f"there is a {word} {f.side} pleural effusion")
    return text, {"Pleural Effusion": POS}


def _pleural_other(f: Finding, rng: np.random.Generator) -> Statement:
    if f.kind == "plaque":
        return f"{f.side} calcified pleural thickening", {"Pleural Other": POS}
    word = grade(f, rng)
    return choose(rng, f"{word} {f.side} pleural thickening", f"{word} pleural thickening on the {f.side}"), {
        "Pleural Other": POS
    }


def _fracture(f: Finding, rng: np.random.Generator) -> Statement:
    word = "acute displaced" if f.kind == "acute" else "healing"
    if f.count == 1:
        return choose(rng, f"{word} {f.side} rib fracture", f"there is a {word} {f.side} rib fracture"), {
            "Fracture": POS
        }
    return choose(
        rng, f"{word} fractures of {_NUMBER[f.count]} {f.side} ribs", f"multiple {word} {f.side} rib fractures"
    ), {"Fracture": POS}


_NUMBER = {2: "two", 3: "three"}

_BODY = {
    "Cardiomegaly": _cardiomegaly,
    "Enlarged Cardiomediastinum": _mediastinum,
    "Lung Opacity": _opacity,
    "Pneumonia": _pneumonia,
    "Consolidation": _consolidation,
    "Edema": _edema,
    "Atelectasis": _atelectasis,
    "Lung Lesion": _lesion,
    "Pneumothorax": _pneumothorax,
    "Pleural Effusion": _effusion,
    "Pleural Other": _pleural_other,
    "Fracture": _fracture,
}


def _device(f: Finding, rng: np.random.Generator) -> Sentence:
    side = "" if f.side == "midline" else f"{f.side} "
    if f.trend == "resolved":
        name = {"central line": "central venous catheter"}.get(f.kind, f.kind)
        return Sentence(f"The {side}{name} has been removed.", {"Support Devices": NEG}, "devices")
    above = f"{max(f.size_mm, 10) / 10:.0f} cm above the carina"
    options = {
        "endotracheal tube": (f"Endotracheal tube tip is {above}.", f"The endotracheal tube terminates {above}."),
        "nasogastric tube": (
            "Nasogastric tube extends into the stomach.",
            "The nasogastric tube tip is in the stomach.",
        ),
        "central line": (
            f"{capital(side)}central venous catheter tip is in the superior vena cava.",
            f"A {side}central line ends in the superior vena cava.",
        ),
        "pacemaker": (f"{capital(side)}chest wall pacemaker with two leads.", f"A {side}sided pacemaker is in place."),
        "chest tube": (f"{capital(side)}chest tube is in place.", f"A {side}chest tube is directed to the apex."),
        "sternal wires": ("Sternotomy hardware is intact.", "Median sternotomy wires and hardware are intact."),
    }[f.kind]
    return Sentence(choose(rng, *options), {"Support Devices": POS}, "devices")


_CHANGE = {"new": "new ", "increased": "increased ", "decreased": "decreased ", "unchanged": "stable "}


def conclude(finding: Finding, rng: np.random.Generator) -> Sentence:
    """One line of the impression. It states no more than the findings section does."""
    change = _CHANGE.get(finding.trend, "")
    doubt = "possible " if finding.certainty == "possible" else ""
    noun, side = _NOUN.get(finding.name, finding.kind), finding.side
    where = "" if side == "midline" else f"{side} "
    if finding.name == "Pleural Effusion" and side == "bilateral":
        noun = "pleural effusions"
    elif finding.name == "Edema":
        where = ""
    elif finding.name == "Atelectasis":
        where = "bibasilar " if side == "bilateral" else f"{side} basilar "
    elif finding.name == "Lung Opacity" and side == "bilateral":
        noun = "opacities"
    elif finding.name in ("Fracture", "Lung Lesion"):
        noun = {"Fracture": "rib fracture", "Lung Lesion": f"lung {finding.kind}"}[finding.name]
        noun += ("es" if noun.endswith("s") else "s") if finding.count > 1 else ""
    elif finding.name in ("Pneumonia", "Consolidation"):
        where = f"{side} {finding.zone} lung "
    graded = finding.name in _GRADE and finding.name not in ("Pneumonia", "Consolidation", "Lung Opacity")
    word = grade(finding, rng) + " " if graded and not doubt else ""
    state = UNC if doubt else POS
    return Sentence(capital(f"{doubt}{change}{word}{where}{noun}."), {finding.name: state}, TOPIC[finding.name])


_STRENGTH = (LabelState.BLANK, NEG, UNC, POS)


def state_labels(sentences: Sequence[Sentence], classes: Sequence[str]) -> dict[str, LabelState]:
    """Labels of a report by the strongest statement on each class.

    "No Finding" is positive if nothing but support devices is claimed, else blank (Irvin et al., 2019, section 3).
    """
    labels = dict.fromkeys(classes, LabelState.BLANK)
    for sentence in sentences:
        for name, state in sentence.states.items():
            if _STRENGTH.index(state) > _STRENGTH.index(labels[name]):
                labels[name] = state
    if "No Finding" in labels:
        others = [state for name, state in labels.items() if name != "Support Devices"]
        if not any(state in (POS, UNC) for state in others):
            labels["No Finding"] = POS
    return labels


_ORDERS: tuple[tuple[str, ...], ...] = (
    ("heart", "lungs", "pleura", "bones", "devices"),
    ("devices", "lungs", "pleura", "heart", "bones"),
    ("devices", "heart", "lungs", "pleura", "bones"),
)


@dataclass(frozen=True, slots=True)
class WrittenReport:
    """Sections of a report, the labels they state, and the sentence of each finding in the findings section."""

    findings: str
    impression: str
    comparison: str
    indication: str
    labels: dict[str, LabelState]
    sentences: tuple[str, ...]


def write_report(findings: Sequence[Finding], rng: np.random.Generator, *, has_prior: bool) -> WrittenReport:
    """Write the report of a radiograph; ``findings`` hold those that have resolved since the prior study."""
    described = [describe(f, rng) for f in findings]
    body = body_sentences(described, rng)
    closing = impression_sentences(findings, rng)
    return WrittenReport(
        findings=" ".join(s.text for s in body),
        impression=" ".join(s.text for s in closing),
        comparison=choose(rng, "Prior chest radiograph.", "Previous examination.") if has_prior else "None.",
        indication=choose(rng, *_INDICATIONS),
        labels=state_labels([*body, *closing], CHEXPERT14),
        sentences=tuple(sentence.text for sentence in described),
    )


_INDICATIONS = (
    "Chest pain.", "Shortness of breath.", "Cough.", "Fever.", "Follow-up.", "Preoperative examination.", "Dyspnea.",
)  # fmt: skip


def body_sentences(described: Sequence[Sentence], rng: np.random.Generator) -> list[Sentence]:
    """The findings section: present findings, as they are described, and absent ones by topic."""
    claimed = {name for s in described for name, state in s.states.items() if state is not NEG}
    mentioned = {name for s in described for name in s.states}
    style = int(rng.integers(len(_ORDERS)))
    sentences: list[Sentence] = []
    for topic in _ORDERS[style]:
        sentences += [s for s in described if s.topic == topic]
        if topic != "devices":
            sentences += _normal(topic, claimed, mentioned, rng)
    return sentences


def _normal(topic: str, claimed: set[str], mentioned: set[str], rng: np.random.Generator) -> list[Sentence]:
    """Sentences of a topic about absent classes."""
    if topic == "heart":
        return _normal_heart(mentioned, rng)
    if topic == "lungs":
        return _normal_lungs(claimed, mentioned, rng)
    if topic == "pleura":
        return _normal_pleura(mentioned, rng)
    if "Fracture" in mentioned or rng.random() < 0.3:
        return []
    if rng.random() < 0.35:
        return [Sentence("No rib fracture is seen.", {"Fracture": NEG})]
    return [Sentence(choose(rng, "The bony structures are intact.", "No acute bony abnormality."))]


def _normal_heart(mentioned: set[str], rng: np.random.Generator) -> list[Sentence]:
    heart, middle = "Cardiomegaly" not in mentioned, "Enlarged Cardiomediastinum" not in mentioned
    if heart and middle:
        text = choose(
            rng,
            "Heart size and mediastinal contours are normal.",
            "The heart size and mediastinal contours are within normal limits.",
            "Heart size is normal. The mediastinal contours are unremarkable.",
        )
        return [Sentence(text, {"Cardiomegaly": NEG, "Enlarged Cardiomediastinum": NEG})]
    if heart:
        return [Sentence(choose(rng, "Heart size is normal.", "The heart is normal in size."), {"Cardiomegaly": NEG})]
    if middle and rng.random() < 0.6:
        return [Sentence("The mediastinal contours are normal.", {"Enlarged Cardiomediastinum": NEG})]
    return []


def _normal_lungs(claimed: set[str], mentioned: set[str], rng: np.random.Generator) -> list[Sentence]:
    diseases = {name for name in claimed if TOPIC[name] == "lungs"}
    sentences: list[Sentence] = []
    if not diseases:
        sentences.append(
            Sentence(choose(rng, "The lungs are clear.", "Both lungs are clear.", "The lungs are well expanded."))
        )
    free = [name for name in ("Consolidation", "Edema") if name not in mentioned]
    if len(free) == 2 and rng.random() < 0.5:
        text = choose(rng, "No focal consolidation or pulmonary edema.", "There is no consolidation or edema.")
        sentences.append(Sentence(text, {"Consolidation": NEG, "Edema": NEG}))
    elif "Consolidation" in free and rng.random() < 0.7:
        text = choose(rng, "No focal consolidation.", "There is no focal consolidation.")
        sentences.append(Sentence(text, {"Consolidation": NEG}))
    if "Lung Lesion" not in mentioned and not diseases and rng.random() < 0.2:
        sentences.append(Sentence("No nodule or mass.", {"Lung Lesion": NEG}))
    return sentences


def _normal_pleura(mentioned: set[str], rng: np.random.Generator) -> list[Sentence]:
    fluid, air = "Pleural Effusion" not in mentioned, "Pneumothorax" not in mentioned
    if fluid and air:
        text = choose(
            rng,
            "No pleural effusion or pneumothorax.",
            "There is no pleural effusion or pneumothorax.",
            "No pneumothorax or pleural effusion is seen.",
        )
        return [Sentence(text, {"Pleural Effusion": NEG, "Pneumothorax": NEG})]
    if fluid:
        return [
            Sentence(choose(rng, "No pleural effusion.", "There is no pleural effusion."), {"Pleural Effusion": NEG})
        ]
    if air:
        return [Sentence(choose(rng, "No pneumothorax.", "There is no pneumothorax."), {"Pneumothorax": NEG})]
    return []


def impression_sentences(findings: Sequence[Finding], rng: np.random.Generator) -> list[Sentence]:
    """The impression: the claims in short, or a normal result."""
    claims = [f for f in findings if f.visible and f.name != "Support Devices"]
    if not claims:
        text = choose(
            rng, "No acute cardiopulmonary abnormality.", "No acute cardiopulmonary disease.", "Normal chest."
        )
        return [Sentence(text)]
    order = sorted(claims, key=lambda f: -SEVERITIES.index(f.severity))
    return [conclude(finding, rng) for finding in order[:3]]
