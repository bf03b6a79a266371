"""Reports of phantom CT scans: region by region, our own wording, with the labels they state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from radweave.core.ontology import CT18
from radweave.core.study import LabelState
from radweave.phantom.findings import SEVERITIES, Finding
from radweave.phantom.report import NEG, POS, UNC, Sentence, capital, choose, state_labels, with_trend

_CLASSES: dict[str, tuple[str, ...]] = {
    "trachea and bronchi": ("Peribronchial thickening", "Bronchiectasis"),
    "mediastinum": ("Medical material", "Arterial wall calcification", "Lymphadenopathy"),
    "heart": ("Cardiomegaly", "Pericardial effusion", "Coronary artery wall calcification"),
    "esophagus": ("Hiatal hernia",),
    "lung": (
        "Emphysema", "Atelectasis", "Lung nodule", "Lung opacity", "Pulmonary fibrotic sequela",
        "Mosaic attenuation pattern", "Consolidation", "Interlobular septal thickening",
    ),
    "pleura": ("Pleural effusion",),
    "abdomen": (),
    "bone": (),
}  # fmt: skip
"""Region -> its classes, in the order of a report."""
REGIONS: tuple[str, ...] = tuple(_CLASSES)
_REGION: dict[str, str] = {name: region for region, names in _CLASSES.items() for name in names}


@dataclass(frozen=True, slots=True)
class WrittenScan:
    """Sections of a CT report, its regions in order, the labels it states, and the sentence of each finding."""

    findings: str
    impression: str
    comparison: str
    regions: dict[str, str]
    labels: dict[str, LabelState]
    sentences: tuple[str, ...]


def write_ct_report(findings: Sequence[Finding], rng: np.random.Generator, *, has_prior: bool) -> WrittenScan:
    """Write the report of a CT scan; ``findings`` hold those that have resolved since the prior scan."""
    described = [_describe(f, rng) for f in findings]
    mentioned = {name for s in described for name in s.states}
    terse = rng.random() < 0.3
    body: list[Sentence] = []
    regions: dict[str, str] = {}
    for region in REGIONS:
        own = [s for s in described if s.topic == region]
        own += [s for s in _NORMAL[region](mentioned, rng) if not (terse and s.states == {} and own)]
        body += own
        if own:
            regions[region] = " ".join(s.text for s in own)
    closing = _impression(findings, rng)
    return WrittenScan(
        findings=" ".join(regions.values()),
        impression=" ".join(s.text for s in closing),
        comparison="Previous chest CT." if has_prior else "None.",
        regions=regions,
        labels=state_labels([*body, *closing], CT18),
        sentences=tuple(sentence.text for sentence in described),
    )


def _place(f: Finding) -> str:
    if f.side == "bilateral":
        lobes = {"upper": "both upper lobes", "mid": "both mid zones", "lower": "both lower lobes"}
        return lobes.get(f.zone, "both lungs")
    if f.zone == "mid":
        return "the right middle lobe" if f.side == "right" else "the lingula of the left lung"
    return f"the {f.side} {f.zone} lobe" if f.zone in ("upper", "lower") else f"the {f.side} lung"


def _text(f: Finding, rng: np.random.Generator) -> str:
    """Description of a finding, without full stop."""
    where, size = _place(f), f"{max(round(f.size_mm), 1)} mm"
    word = "marked" if f.severity == "severe" else f.severity
    extent = {"mild": "focal", "moderate": "patchy", "severe": "extensive"}[f.severity]
    nodule = f"a {size} nodule in {where}" if f.count == 1 else f"{f.count} nodules up to {size} in {where}"
    options: dict[str, tuple[str, ...]] = {
        "Arterial wall calcification": (
            f"{word} calcified plaques in the wall of the aortic arch",
            f"{word} atherosclerotic calcification of the thoracic aorta",
        ),
        "Cardiomegaly": (f"the heart size is {_ADVERB[word]} increased", f"{word} cardiomegaly"),
        "Pericardial effusion": (f"pericardial effusion measuring {size}", f"{word} pericardial effusion"),
        "Coronary artery wall calcification": (
            f"{word} calcification of the coronary arteries",
            f"{word} calcified plaques in the coronary arteries",
        ),
        "Hiatal hernia": (f"{_BIG[word]} hiatal hernia", f"there is a {_BIG[word]} hiatal hernia"),
        "Lymphadenopathy": (
            f"enlarged lymph nodes in the mediastinum up to {size}",
            f"mediastinal lymphadenopathy, the largest node measuring {size}",
        ),
        "Emphysema": (f"{word} emphysema in both lungs", f"{word} emphysematous changes in both lungs"),
        "Atelectasis": (f"{word} atelectasis in {where}", f"{word} linear atelectasis in {where}"),
        "Lung nodule": (nodule,),
        "Lung opacity": (f"{extent} ground-glass opacities in {where}", f"{extent} ground-glass opacity in {where}"),
        "Pulmonary fibrotic sequela": (f"{word} fibrotic changes in {where}", f"{word} scarring in {where}"),
        "Pleural effusion": (f"{f.side} pleural effusion measuring {size}", f"{_BIG[word]} {f.side} pleural effusion"),
        "Mosaic attenuation pattern": ("mosaic attenuation pattern in both lungs", "mosaic attenuation in both lungs"),
        "Peribronchial thickening": (
            f"{word} peribronchial thickening in both lungs",
            f"{word} bronchial wall thickening in both lungs",
        ),
        "Consolidation": (
            f"{extent} consolidation in {where}",
            f"{extent} consolidation with air bronchograms in {where}",
        ),
        "Bronchiectasis": (f"{word} bronchiectasis in {where}", f"{word} tubular bronchiectasis in {where}"),
        "Interlobular septal thickening": (
            f"{word} interlobular septal thickening in both lungs",
            f"{word} thickening of the interlobular septa in both lungs",
        ),
    }
    return choose(rng, *options[f.name])


_ADVERB = {"mild": "mildly", "moderate": "moderately", "marked": "markedly"}
_BIG = {"mild": "small", "moderate": "moderate", "marked": "large"}


def _describe(f: Finding, rng: np.random.Generator) -> Sentence:
    region = _REGION[f.name]
    if f.name == "Medical material":
        return _material(f, region, rng)
    if f.trend == "resolved":
        return Sentence(f"The previously seen {f.name.lower()} has resolved.", {f.name: NEG}, region)
    if f.certainty == "possible":
        text = capital(with_trend(f"possible {_text(f, rng).removeprefix('a ')}", f, rng))
        return Sentence(text, {f.name: UNC}, region)
    return Sentence(capital(with_trend(_text(f, rng), f, rng)), {f.name: POS}, region)


def _material(f: Finding, region: str, rng: np.random.Generator) -> Sentence:
    name = {"central line": "central venous catheter", "sternal wires": "sternotomy wires"}.get(f.kind, f.kind)
    side = "" if f.side == "midline" else f"{f.side} "
    if f.trend == "resolved":
        return Sentence(f"The {side}{name} has been removed.", {f.name: NEG}, region)
    verb = "are" if name.endswith("wires") else "is"
    return Sentence(
        choose(rng, f"{capital(side + name)} {verb} seen.", f"{capital(side + name)} {verb} in place."),
        {f.name: POS},
        region,
    )


Normal = Callable[[set[str], np.random.Generator], list[Sentence]]


def _sentence(text: str, *denied: str) -> Sentence:
    return Sentence(text, dict.fromkeys(denied, NEG))


def _normal_airways(mentioned: set[str], rng: np.random.Generator) -> list[Sentence]:
    texts = ("The trachea and both main bronchi are open.", "Trachea and main bronchi are patent.")
    own = [_sentence(choose(rng, *texts))]
    if "Bronchiectasis" not in mentioned and rng.random() < 0.2:
        own.append(_sentence("No bronchiectasis.", "Bronchiectasis"))
    return own


def _normal_mediastinum(mentioned: set[str], rng: np.random.Generator) -> list[Sentence]:
    own = []
    if "Arterial wall calcification" not in mentioned:
        own.append(
            _sentence(choose(rng, "The thoracic aorta is normal in caliber.", "Mediastinal vessels are normal."))
        )
    if "Lymphadenopathy" not in mentioned:
        texts = ("No enlarged lymph nodes in the mediastinum.", "There is no mediastinal lymphadenopathy.")
        own.append(_sentence(choose(rng, *texts), "Lymphadenopathy"))
    return own


def _normal_heart(mentioned: set[str], rng: np.random.Generator) -> list[Sentence]:
    own = []
    if "Cardiomegaly" not in mentioned:
        own.append(_sentence(choose(rng, "Heart size is normal.", "The heart is normal in size."), "Cardiomegaly"))
    if "Pericardial effusion" not in mentioned:
        own.append(
            _sentence(
                choose(rng, "No pericardial effusion.", "There is no pericardial effusion."), "Pericardial effusion"
            )
        )
    if "Coronary artery wall calcification" not in mentioned and rng.random() < 0.25:
        own.append(_sentence("No coronary artery calcification.", "Coronary artery wall calcification"))
    return own


def _normal_esophagus(mentioned: set[str], rng: np.random.Generator) -> list[Sentence]:
    if "Hiatal hernia" in mentioned or rng.random() < 0.4:
        return []
    if rng.random() < 0.3:
        return [_sentence("No hiatal hernia.", "Hiatal hernia")]
    return [_sentence("The esophagus is normal.")]


def _normal_lung(mentioned: set[str], rng: np.random.Generator) -> list[Sentence]:
    own = []
    if not any(_REGION[name] == "lung" for name in mentioned):
        own.append(_sentence(choose(rng, "Aeration of both lungs is normal.", "Both lungs are clear.")))
    absent = [name for name in ("Lung nodule", "Consolidation") if name not in mentioned]
    if len(absent) == 2:
        texts = ("No nodule or consolidation in either lung.", "There is no nodule or consolidation in the lungs.")
        own.append(_sentence(choose(rng, *texts), *absent))
    elif absent == ["Lung nodule"]:
        own.append(_sentence("No nodule in either lung.", "Lung nodule"))
    elif absent:
        own.append(_sentence("No consolidation.", "Consolidation"))
    return own


def _normal_pleura(mentioned: set[str], rng: np.random.Generator) -> list[Sentence]:
    if "Pleural effusion" in mentioned:
        return []
    return [_sentence(choose(rng, "No pleural effusion.", "There is no pleural effusion."), "Pleural effusion")]


_NORMAL: dict[str, Normal] = {
    "trachea and bronchi": _normal_airways,
    "mediastinum": _normal_mediastinum,
    "heart": _normal_heart,
    "esophagus": _normal_esophagus,
    "lung": _normal_lung,
    "pleura": _normal_pleura,
    "abdomen": lambda mentioned, rng: (
        [] if rng.random() < 0.3 else [_sentence("The upper abdominal organs are normal.")]
    ),
    "bone": lambda mentioned, rng: [
        _sentence(choose(rng, "No lytic or destructive bone lesion.", "Bone structures are intact."))
    ],
}


def _impression(findings: Sequence[Finding], rng: np.random.Generator) -> list[Sentence]:
    claims = [f for f in findings if f.visible and f.name != "Medical material"]
    if not claims:
        return [_sentence(choose(rng, "Normal chest CT.", "No acute abnormality in the chest."))]
    worst = sorted(claims, key=lambda f: -SEVERITIES.index(f.severity))[:3]
    return [_describe(f.model_copy(update={"trend": "first"}), rng) for f in worst]
