"""Findings as structured records, the label sets, and how often each class occurs."""

from __future__ import annotations

from typing import Literal

from radweave.base.study import Record
from radweave.phantom.anatomy import Side

Severity = Literal["mild", "moderate", "severe"]
SEVERITIES: tuple[Severity, ...] = ("mild", "moderate", "severe")
FindingSide = Literal["right", "left", "bilateral", "midline"]
Zone = Literal["upper", "mid", "lower", "perihilar", "diffuse", "none"]
Certainty = Literal["definite", "possible"]
Trend = Literal["first", "new", "increased", "decreased", "unchanged", "resolved"]
Prevalence = Literal["long-tail", "balanced", "normal"]


class Finding(Record):
    """One finding of one study, as it is in the image.

    ``name`` is the class, ``kind`` its variety ("mass", "pacemaker"); ``size_mm`` is the extent that the image is made
    with (diameter, thickness, depth); ``count`` how many there are; ``certainty`` how sure the report is; ``trend``
    compares with the patient's previous study ("resolved" findings are gone from the image). ``seed`` fixes where
    exactly it lies, so that it stays in place from visit to visit.
    """

    name: str
    kind: str
    side: FindingSide = "midline"
    zone: Zone = "none"
    severity: Severity = "mild"
    size_mm: float = 0.0
    count: int = 1
    certainty: Certainty = "definite"
    trend: Trend = "first"
    seed: int = 0

    @property
    def visible(self) -> bool:
        return self.trend != "resolved"

    @property
    def sides(self) -> tuple[Side, ...]:
        if self.side == "bilateral":
            return ("right", "left")
        if self.side == "midline":
            return ()
        return (self.side,)


# Share of studies with the class positive. MIMIC-CXR's CheXpert labels, rounded (Johnson et al., 2019).
XRAY_LONG_TAIL: dict[str, float] = {
    "Support Devices": 0.26,
    "Pleural Effusion": 0.22,
    "Lung Opacity": 0.16,
    "Atelectasis": 0.19,
    "Cardiomegaly": 0.19,
    "Edema": 0.12,
    "Pneumonia": 0.07,
    "Consolidation": 0.05,
    "Pneumothorax": 0.045,
    "Enlarged Cardiomediastinum": 0.03,
    "Lung Lesion": 0.03,
    "Fracture": 0.02,
    "Pleural Other": 0.01,
}
XRAY_BALANCED: dict[str, float] = dict.fromkeys(XRAY_LONG_TAIL, 0.16)

# Share of scans; CT-RATE's training labels, rounded.
CT_LONG_TAIL: dict[str, float] = {
    "Lung nodule": 0.45,
    "Lung opacity": 0.37,
    "Arterial wall calcification": 0.28,
    "Pulmonary fibrotic sequela": 0.26,
    "Atelectasis": 0.26,
    "Lymphadenopathy": 0.26,
    "Coronary artery wall calcification": 0.25,
    "Emphysema": 0.19,
    "Consolidation": 0.18,
    "Hiatal hernia": 0.14,
    "Pleural effusion": 0.12,
    "Cardiomegaly": 0.11,
    "Medical material": 0.12,
    "Peribronchial thickening": 0.10,
    "Bronchiectasis": 0.10,
    "Interlobular septal thickening": 0.08,
    "Mosaic attenuation pattern": 0.075,
    "Pericardial effusion": 0.07,
}
CT_BALANCED: dict[str, float] = dict.fromkeys(CT_LONG_TAIL, 0.2)

# Share of patients who are normal at their first visit.
NORMAL_SHARE: dict[Prevalence, float] = {"long-tail": 0.33, "balanced": 0.2, "normal": 1.0}


def class_rates(modality: Literal["xray", "ct"], prevalence: Prevalence) -> dict[str, float]:
    """Chance of each class in a patient who is not normal."""
    if prevalence == "normal":
        return {}
    table = {
        ("xray", "long-tail"): XRAY_LONG_TAIL,
        ("xray", "balanced"): XRAY_BALANCED,
        ("ct", "long-tail"): CT_LONG_TAIL,
        ("ct", "balanced"): CT_BALANCED,
    }[(modality, prevalence)]
    share = 1 - NORMAL_SHARE[prevalence]
    return {name: min(rate / share, 0.9) for name, rate in table.items()}
