"""Which findings a patient has at each visit: drawn at the first, then followed as they grow, shrink and resolve."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from radweave.phantom.anatomy import Anatomy
from radweave.phantom.devices import DEVICE_KINDS
from radweave.phantom.findings import (
    NORMAL_SHARE,
    SEVERITIES,
    Finding,
    FindingSide,
    Prevalence,
    Severity,
    Trend,
    Zone,
    class_rates,
)
from radweave.types import Modality

# Per class: sizes in mm for mild, moderate, severe; what a size means stands at the lesion that is drawn with it.
_SIZES: dict[str, tuple[float, float, float]] = {
    "Lung Opacity": (80, 98, 116),
    "Pneumonia": (72, 90, 110),
    "Consolidation": (66, 82, 100),
    "Atelectasis": (7, 14, 24),
    "Pneumothorax": (13, 25, 45),
    "Pleural Effusion": (21, 48, 85),
    "Pleural Other": (6, 9, 12),
    "Lung opacity": (34, 46, 60),
    "Pleural effusion": (22, 38, 62),
    "Pericardial effusion": (8, 12, 17),
    "Hiatal hernia": (44, 56, 70),
    "Lymphadenopathy": (17, 22, 28),
    "Pulmonary fibrotic sequela": (18, 24, 30),
}
# Chance that a finding is only suspected in the report.
_DOUBT: dict[str, float] = {
    "Pneumonia": 0.3,
    "Atelectasis": 0.15,
    "Consolidation": 0.1,
    "Lung Lesion": 0.1,
    "Lung opacity": 0.08,
    "Lung nodule": 0.08,
    "Lymphadenopathy": 0.1,
}


def draw_findings(
    rng: np.random.Generator, anatomy: Anatomy, prevalence: Prevalence, modality: Modality
) -> tuple[Finding, ...]:
    """Findings of a first visit; none for a normal patient."""
    if rng.random() < NORMAL_SHARE[prevalence]:
        return ()
    rates = class_rates(modality, prevalence)
    chosen = [name for name, rate in rates.items() if rng.random() < rate]
    if not chosen:
        chosen = [_draw_one(rng, rates)]
    return tuple(finding for name in chosen for finding in _draw(rng, name, anatomy))


def _draw_one(rng: np.random.Generator, rates: Mapping[str, float]) -> str:
    weights = np.asarray(list(rates.values()))
    return list(rates)[int(rng.choice(len(weights), p=weights / weights.sum()))]


def _draw(rng: np.random.Generator, name: str, anatomy: Anatomy) -> list[Finding]:
    severity: Severity = SEVERITIES[int(rng.choice(3, p=(0.4, 0.38, 0.22)))]
    side: FindingSide = "right" if rng.random() < 0.5 else "left"
    zone: Zone = "none"
    size, kind, count = 0.0, "typical", 1
    if name in _SIZES:
        size = _SIZES[name][SEVERITIES.index(severity)] * float(rng.uniform(0.9, 1.1))
    if name in ("Lung Opacity", "Lung opacity", "Pneumonia", "Consolidation"):
        zone = _pick(rng, {"lower": 0.5, "mid": 0.25, "upper": 0.25})
        if name.lower() == "lung opacity" and rng.random() < 0.3:
            side = "bilateral"
    elif name == "Lung Lesion":
        kind = "mass" if rng.random() < 0.35 else "nodule"
        zone = _pick(rng, {"upper": 0.4, "mid": 0.3, "lower": 0.3})
        size = float(rng.uniform(34, 56) if kind == "mass" else rng.uniform(14, 29))
        count = 1 if kind == "mass" or rng.random() < 0.75 else int(rng.integers(2, 5))
    elif name == "Cardiomegaly":
        side = "midline"
        ratio = {"mild": 0.54, "moderate": 0.59, "severe": 0.66}[severity] + float(rng.normal(0, 0.01))
        size = 2 * anatomy.half_width_mm * max(ratio, anatomy.ratio + 0.06)
    elif name == "Enlarged Cardiomediastinum":
        side = "midline"
        size = 62.0 * {"mild": 1.3, "moderate": 1.5, "severe": 1.75}[severity]
    elif name == "Edema":
        side, zone = "bilateral", "perihilar"
    elif name == "Atelectasis":
        zone = "lower"
        side = "bilateral" if rng.random() < 0.3 else side
    elif name in ("Pleural Effusion", "Pleural effusion"):
        side = "bilateral" if rng.random() < 0.35 else side
    elif name == "Pneumothorax":
        zone = "upper"
    elif name == "Pleural Other":
        kind = "plaque" if rng.random() < 0.4 else "thickening"
    elif name == "Fracture":
        kind = "acute" if rng.random() < 0.6 else "healing"
        count, size = int(rng.integers(1, 4)), float(rng.uniform(9, 13))
    elif name in ("Support Devices", "Medical material"):
        return _draw_devices(rng, name)
    elif name == "Lung nodule":
        zone, kind = _pick(rng, {"upper": 0.4, "mid": 0.3, "lower": 0.3}), "nodule"
        size, count = float(rng.uniform(9, 28)), 1 if rng.random() < 0.65 else int(rng.integers(2, 5))
    elif name in ("Pulmonary fibrotic sequela", "Bronchiectasis"):
        zone = _pick(rng, {"upper": 0.5, "lower": 0.5})
    elif name in (
        "Emphysema",
        "Mosaic attenuation pattern",
        "Peribronchial thickening",
        "Interlobular septal thickening",
    ):
        side, zone = "bilateral", "diffuse"
    elif name == "Lymphadenopathy":
        side, count = "midline", int(rng.integers(3, 7))
    elif name in _MIDLINE:
        side = "midline"
    doubt = "possible" if rng.random() < _DOUBT.get(name, 0.0) else "definite"
    return [
        Finding(
            name=name,
            kind=kind,
            side=side,
            zone=zone,
            severity=severity,
            size_mm=round(size, 1),
            count=count,
            certainty="possible" if doubt == "possible" else "definite",
            seed=int(rng.integers(2**31)),
        )
    ]


_MIDLINE = (
    "Arterial wall calcification",
    "Coronary artery wall calcification",
    "Pericardial effusion",
    "Hiatal hernia",
)


def _pick(rng: np.random.Generator, weights: dict[Zone, float]) -> Zone:
    return list(weights)[int(rng.choice(len(weights), p=list(weights.values())))]


def _draw_devices(rng: np.random.Generator, name: str) -> list[Finding]:
    number = 1 + int(rng.random() < 0.35) + int(rng.random() < 0.15)
    kinds = rng.choice(len(DEVICE_KINDS), size=number, replace=False, p=(0.2, 0.18, 0.27, 0.15, 0.1, 0.1))
    devices = []
    for number in sorted(int(k) for k in kinds):
        kind = DEVICE_KINDS[number]
        side: FindingSide = "midline"
        if kind in ("central line", "chest tube"):
            side = "right" if rng.random() < 0.7 else "left"
        elif kind == "pacemaker":
            side = "left" if rng.random() < 0.85 else "right"
        size = float(rng.uniform(25, 55)) if kind == "endotracheal tube" else 0.0
        seed = int(rng.integers(2**31))
        devices.append(Finding(name=name, kind=kind, side=side, size_mm=round(size, 0), seed=seed))
    return devices


def next_visit(
    rng: np.random.Generator,
    before: tuple[Finding, ...],
    anatomy: Anatomy,
    prevalence: Prevalence,
    modality: Modality,
) -> tuple[Finding, ...]:
    """Findings one visit later: each old one unchanged, larger, smaller or gone, and at times a new one."""
    later = []
    for finding in before:
        if finding.visible:
            later.append(_follow(rng, finding))
    rates = class_rates(modality, prevalence)
    present = {f.name for f in later}
    if rates and rng.random() < 0.4:
        name = _draw_one(rng, rates)
        if name not in present:
            later += [f.model_copy(update={"trend": "new"}) for f in _draw(rng, name, anatomy)]
    return tuple(later)


_LASTING = {
    "Cardiomegaly",
    "Enlarged Cardiomediastinum",
    "Pleural Other",
    "Fracture",
    "Arterial wall calcification",
    "Coronary artery wall calcification",
    "Hiatal hernia",
    "Emphysema",
    "Pulmonary fibrotic sequela",
    "Bronchiectasis",
    "Mosaic attenuation pattern",
}


def _follow(rng: np.random.Generator, finding: Finding) -> Finding:
    name = finding.name
    if name in _LASTING or finding.kind in ("pacemaker", "sternal wires"):
        return finding.model_copy(update={"trend": "unchanged"})
    if name in ("Support Devices", "Medical material"):
        trend: Trend = "resolved" if rng.random() < 0.35 else "unchanged"
        return finding.model_copy(update={"trend": trend})
    trend = ("unchanged", "increased", "decreased", "resolved")[int(rng.choice(4, p=(0.3, 0.25, 0.25, 0.2)))]
    level = SEVERITIES.index(finding.severity)
    if name in ("Lung Lesion", "Lung nodule"):
        trend = "unchanged" if trend == "resolved" else trend
        factor = {"increased": 1.35, "decreased": 0.75}.get(trend, 1.0)
        size = round(finding.size_mm * factor, 1)
        kind = "mass" if size > 30 and name == "Lung Lesion" else "nodule"
        return finding.model_copy(update={"trend": trend, "size_mm": size, "kind": kind})
    if (trend == "increased" and level == 2) or (trend == "decreased" and level == 0):
        trend = "unchanged"
    if trend in ("increased", "decreased"):
        moved = level + (1 if trend == "increased" else -1)
        ratio = _SIZES[name][moved] / _SIZES[name][level] if name in _SIZES else 1.0
        update = {"trend": trend, "severity": SEVERITIES[moved], "size_mm": round(finding.size_mm * ratio, 1)}
        return finding.model_copy(update=update)
    return finding.model_copy(update={"trend": trend})
