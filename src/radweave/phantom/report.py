"""Reports of phantom radiographs: findings and impression, in three styles, with the labels they state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from radweave.base.ontology import CHEXPERT14
from radweave.base.study import LabelState
from radweave.phantom.findings import SEVERITIES, Finding
from radweave.phantom.phrases import NEG, TOPIC, Sentence, choose, conclude, describe, state_labels

_ORDERS: tuple[tuple[str, ...], ...] = (
    ("heart", "lungs", "pleura", "bones", "devices"),
    ("devices", "lungs", "pleura", "heart", "bones"),
    ("devices", "heart", "lungs", "pleura", "bones"),
)


@dataclass(frozen=True, slots=True)
class WrittenReport:
    """Sections of a report and the labels they state."""

    findings: str
    impression: str
    comparison: str
    indication: str
    labels: dict[str, LabelState]


def write_report(findings: Sequence[Finding], rng: np.random.Generator, *, has_prior: bool) -> WrittenReport:
    """Write the report of a radiograph; ``findings`` hold those that have resolved since the prior study."""
    body = body_sentences(findings, rng)
    closing = impression_sentences(findings, rng)
    return WrittenReport(
        findings=" ".join(s.text for s in body),
        impression=" ".join(s.text for s in closing),
        comparison=choose(rng, ("Prior chest radiograph.", "Previous examination.")) if has_prior else "None.",
        indication=choose(rng, _INDICATIONS),
        labels=state_labels([*body, *closing], CHEXPERT14),
    )


_INDICATIONS = (
    "Chest pain.",
    "Shortness of breath.",
    "Cough.",
    "Fever.",
    "Follow-up.",
    "Preoperative examination.",
    "Dyspnea.",
)


def body_sentences(findings: Sequence[Finding], rng: np.random.Generator) -> list[Sentence]:
    """The findings section: what is there, and what is not, topic by topic."""
    said = [describe(f, rng) for f in findings]
    claimed = {name for s in said for name, state in s.states.items() if state is not NEG}
    mentioned = {name for s in said for name in s.states}
    style = int(rng.integers(len(_ORDERS)))
    sentences: list[Sentence] = []
    for topic in _ORDERS[style]:
        sentences += [s for s in said if s.topic == topic]
        if topic != "devices":
            sentences += _normal(topic, claimed, mentioned, rng)
    return sentences


def _normal(topic: str, claimed: set[str], mentioned: set[str], rng: np.random.Generator) -> list[Sentence]:
    """What a topic's sentences say of classes that are absent."""
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
    return [Sentence(choose(rng, ("The bony structures are intact.", "No acute bony abnormality.")))]


def _normal_heart(mentioned: set[str], rng: np.random.Generator) -> list[Sentence]:
    heart, middle = "Cardiomegaly" not in mentioned, "Enlarged Cardiomediastinum" not in mentioned
    if heart and middle:
        text = choose(
            rng,
            (
                "Heart size and mediastinal contours are normal.",
                "The heart size and mediastinal contours are within normal limits.",
                "Heart size is normal. The mediastinal contours are unremarkable.",
            ),
        )
        return [Sentence(text, {"Cardiomegaly": NEG, "Enlarged Cardiomediastinum": NEG})]
    if heart:
        return [Sentence(choose(rng, ("Heart size is normal.", "The heart is normal in size.")), {"Cardiomegaly": NEG})]
    if middle and rng.random() < 0.6:
        return [Sentence("The mediastinal contours are normal.", {"Enlarged Cardiomediastinum": NEG})]
    return []


def _normal_lungs(claimed: set[str], mentioned: set[str], rng: np.random.Generator) -> list[Sentence]:
    diseases = {name for name in claimed if TOPIC[name] == "lungs"}
    said: list[Sentence] = []
    if not diseases:
        said.append(
            Sentence(choose(rng, ("The lungs are clear.", "Both lungs are clear.", "The lungs are well expanded.")))
        )
    free = [name for name in ("Consolidation", "Edema") if name not in mentioned]
    if len(free) == 2 and rng.random() < 0.5:
        text = choose(rng, ("No focal consolidation or pulmonary edema.", "There is no consolidation or edema."))
        said.append(Sentence(text, {"Consolidation": NEG, "Edema": NEG}))
    elif "Consolidation" in free and rng.random() < 0.7:
        text = choose(rng, ("No focal consolidation.", "There is no focal consolidation."))
        said.append(Sentence(text, {"Consolidation": NEG}))
    if "Lung Lesion" not in mentioned and not diseases and rng.random() < 0.2:
        said.append(Sentence("No nodule or mass.", {"Lung Lesion": NEG}))
    return said


def _normal_pleura(mentioned: set[str], rng: np.random.Generator) -> list[Sentence]:
    fluid, air = "Pleural Effusion" not in mentioned, "Pneumothorax" not in mentioned
    if fluid and air:
        text = choose(
            rng,
            (
                "No pleural effusion or pneumothorax.",
                "There is no pleural effusion or pneumothorax.",
                "No pneumothorax or pleural effusion is seen.",
            ),
        )
        return [Sentence(text, {"Pleural Effusion": NEG, "Pneumothorax": NEG})]
    if fluid:
        return [
            Sentence(choose(rng, ("No pleural effusion.", "There is no pleural effusion.")), {"Pleural Effusion": NEG})
        ]
    if air:
        return [Sentence(choose(rng, ("No pneumothorax.", "There is no pneumothorax.")), {"Pneumothorax": NEG})]
    return []


def impression_sentences(findings: Sequence[Finding], rng: np.random.Generator) -> list[Sentence]:
    """The impression: the claims in short, or that there is nothing acute."""
    claims = [f for f in findings if f.visible and f.name != "Support Devices"]
    if not claims:
        text = choose(
            rng, ("No acute cardiopulmonary abnormality.", "No acute cardiopulmonary disease.", "Normal chest.")
        )
        return [Sentence(text)]
    order = sorted(claims, key=lambda f: -SEVERITIES.index(f.severity))
    return [conclude(finding, rng) for finding in order[:3]]
