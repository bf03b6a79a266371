"""Findings as structured records, the label sets, and how often each class occurs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import numpy as np

from radweave.core.study import Modality, Record
from radweave.phantom.anatomy import Anatomy, Box, Ellipsoid, Side, Tube, Vector, sign
from radweave.phantom.scene import Item, Scene

Severity = Literal["mild", "moderate", "severe"]
SEVERITIES: tuple[Severity, ...] = ("mild", "moderate", "severe")
FindingSide = Literal["right", "left", "bilateral", "midline"]
Zone = Literal["upper", "mid", "lower", "perihilar", "diffuse", "none"]
Certainty = Literal["definite", "possible"]
Trend = Literal["first", "new", "increased", "decreased", "unchanged", "resolved"]
Prevalence = Literal["long-tail", "balanced", "normal"]
Turnover = Literal["none", "low", "real"]
"""Change from one study of a patient to the next: none, little, or as follow-up studies of patients report it."""


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


# Presentation of each class: place, size, number, certainty of the reader, and whether it resolves.
#
# Sizes in mm are what the image is drawn with: diameter of an opacity, node or nodule, thickness of a pleural or
# pericardial layer, height of a fluid level above the costophrenic angle, rise of the dome in atelectasis, width of the
# mediastinum, displacement of a rib.


_ZONES: dict[Zone, float] = {"upper": 0.35, "mid": 0.3, "lower": 0.35}
_LOW_ZONES: dict[Zone, float] = {"lower": 0.5, "mid": 0.25, "upper": 0.25}


@dataclass(frozen=True, slots=True)
class Habit:
    """Presentation of a class. Shares are chances; ``sizes_mm`` is for mild, moderate and severe ones."""

    sizes_mm: tuple[float, float, float] | None = None
    range_mm: dict[str, tuple[float, float]] = field(default_factory=dict)  # by kind, whatever the severity
    kinds: dict[str, float] = field(default_factory=lambda: {"typical": 1.0})
    zones: dict[Zone, float] = field(default_factory=lambda: {"none": 1.0})
    midline: bool = False
    bilateral: float = 0.0
    counts: tuple[int, int] = (1, 1)
    several: float = 0.0
    doubt: float = 0.0
    lasting: bool = False


_BOTH: dict[Zone, float] = {"diffuse": 1.0}

HABITS: dict[str, Habit] = {
    "Enlarged Cardiomediastinum": Habit(sizes_mm=(80, 93, 108), midline=True, lasting=True),
    "Cardiomegaly": Habit(midline=True, lasting=True),
    "Lung Lesion": Habit(
        range_mm={"mass": (34, 56), "nodule": (16, 30)},
        kinds={"mass": 0.35, "nodule": 0.65},
        zones=_ZONES,
        counts=(2, 4),
        several=0.35,
        doubt=0.1,
    ),
    "Lung Opacity": Habit(sizes_mm=(80, 98, 116), zones=_LOW_ZONES, bilateral=0.3),
    "Edema": Habit(zones={"perihilar": 1.0}, bilateral=1.0),
    "Consolidation": Habit(sizes_mm=(66, 82, 100), zones=_LOW_ZONES, doubt=0.1),
    "Pneumonia": Habit(sizes_mm=(72, 90, 110), zones=_LOW_ZONES, doubt=0.3),
    "Atelectasis": Habit(sizes_mm=(7, 14, 24), zones={"lower": 1.0}, bilateral=0.3, doubt=0.15),
    "Pneumothorax": Habit(sizes_mm=(13, 25, 45), zones={"upper": 1.0}),
    "Pleural Effusion": Habit(sizes_mm=(21, 48, 85), bilateral=0.35),
    "Pleural Other": Habit(sizes_mm=(6, 9, 12), kinds={"plaque": 0.4, "thickening": 0.6}, lasting=True),
    "Fracture": Habit(
        range_mm={"acute": (9, 13), "healing": (9, 13)},
        kinds={"acute": 0.6, "healing": 0.4},
        counts=(2, 3),
        several=0.6,
        lasting=True,
    ),
    "Arterial wall calcification": Habit(midline=True, lasting=True),
    "Pericardial effusion": Habit(sizes_mm=(8, 12, 17), midline=True),
    "Coronary artery wall calcification": Habit(midline=True, lasting=True),
    "Hiatal hernia": Habit(sizes_mm=(44, 56, 70), midline=True, lasting=True),
    "Lymphadenopathy": Habit(sizes_mm=(17, 22, 28), midline=True, counts=(3, 6), several=1.0, doubt=0.1),
    "Emphysema": Habit(zones=_BOTH, bilateral=1.0, lasting=True),
    "Lung nodule": Habit(
        range_mm={"nodule": (9, 28)}, kinds={"nodule": 1.0}, zones=_ZONES, counts=(2, 4), several=0.35, doubt=0.08
    ),
    "Lung opacity": Habit(sizes_mm=(44, 58, 74), zones=_LOW_ZONES, bilateral=0.3, doubt=0.08),
    "Pulmonary fibrotic sequela": Habit(sizes_mm=(18, 24, 30), zones={"upper": 0.5, "lower": 0.5}, lasting=True),
    "Pleural effusion": Habit(sizes_mm=(22, 38, 62), bilateral=0.35),
    "Mosaic attenuation pattern": Habit(zones=_BOTH, bilateral=1.0, lasting=True),
    "Peribronchial thickening": Habit(zones=_BOTH, bilateral=1.0),
    "Bronchiectasis": Habit(zones={"upper": 0.5, "lower": 0.5}, lasting=True),
    "Interlobular septal thickening": Habit(zones=_BOTH, bilateral=1.0),
}


# Tubes, lines and other devices, as thin dense shapes along the paths they take in a patient.


DEVICE_KINDS: tuple[str, ...] = (
    "endotracheal tube",
    "nasogastric tube",
    "central line",
    "pacemaker",
    "chest tube",
    "sternal wires",
)
_LINE_HU = 7000.0


def add_devices(f: Finding, side: Side, a: Anatomy, scene: Scene, rng: np.random.Generator) -> list[Item]:
    """Lay the device named by ``f.kind`` on the scene."""
    items: list[Item] = []
    path: list[Vector]
    ring: list[Vector]
    w, h, d, s = a.width, a.height, a.depth, sign(side)
    if f.kind == "endotracheal tube":
        tip = (32 + f.size_mm) * h
        items.append(_line([(0, 0, 200 * h), (1, 5, 120 * h), (0, 11, tip)], 2.6, 1500.0))
        items.append(_line([(5, 0, 200 * h), (5, 11, tip)], 0.9, _LINE_HU))
    elif f.kind == "nasogastric tube":
        path = [(-3, 10, 200 * h), (-4, 34, 60 * h), (2, 40, -60 * h), (22, 10, -112 * h), (50 * w, -10, -140 * h)]
        items.append(_line(path, 2.1, _LINE_HU))
    elif f.kind == "central line":
        wobble = float(rng.normal(0, 4))
        path = [(s * 48, -10, 175 * h), (s * 36 + wobble, -15, 120 * h), (-14.0 if s < 0 else 12.0, -20, 88 * h)]
        path += [(-24, -18, 50 * h), (-30, -20, (6 - f.size_mm * 0.3) * h)]
        items.append(_line(path, 1.7, _LINE_HU))
    elif f.kind == "pacemaker":
        x = s * 98 * w
        items.append(Item(Box((x, -88 * d, 78 * h), (20, 4, 17)), 5000.0))
        items.append(Item(Ellipsoid((x, -88 * d, 98 * h), (11, 4, 7)), 2500.0))
        path = [(x, -86 * d, 100 * h), (s * 55 * w, -40, 108 * h), (-6, -18, 82 * h), (-26, -18, 40 * h)]
        heart = a.heart()
        atrium = [*path, (-30, -25, -28 * h), (-18, -40, -18 * h)]
        ventricle = [*path, (-28, -22, -50 * h), (heart.center[0] + 24 * w, -50 * d, heart.center[2] - 26)]
        items += [_line(atrium, 1.1, _LINE_HU), _line(ventricle, 1.1, _LINE_HU)]
    elif f.kind == "chest tube":
        z = float(rng.uniform(-55, -20)) * h
        half_x, _ = a.outer_half_width(z)
        apex_x, _ = a.outer_half_width(80 * h)
        path = [(s * (half_x + 32), 0, z - 18), (s * (half_x - 6), 8, z), (s * (apex_x - 10), 24, 55 * h)]
        path += [(s * (apex_x - 30), 24, 92 * h)]
        items.append(_line(path, 3.2, 700.0))
        items.append(_line(path, 0.9, _LINE_HU))
    elif f.kind == "sternal wires":
        for k in range(5):
            z = (62 - 26 * k) * h
            ring = [
                (-9, -97 * d, z - 3),
                (0, -98 * d, z + 2),
                (9, -97 * d, z - 2),
                (2, -97 * d, z - 4),
                (-9, -97 * d, z),
            ]
            items.append(_line(ring, 1.3, 20000.0))
    return items


def _line(path: list[Vector], radius_mm: float, hu: float) -> Item:
    """A smooth tube through the points (Catmull-Rom)."""
    points = np.asarray([path[0], *path, path[-1]], dtype=np.float64)
    smooth: list[Vector] = []
    for i in range(1, len(points) - 2):
        p0, p1, p2, p3 = points[i - 1 : i + 3]
        for t in np.linspace(0, 1, 5, endpoint=False):
            q = 0.5 * (
                2 * p1 + (p2 - p0) * t + (2 * p0 - 5 * p1 + 4 * p2 - p3) * t**2 + (3 * p1 - p0 - 3 * p2 + p3) * t**3
            )
            smooth.append((float(q[0]), float(q[1]), float(q[2])))
    smooth.append((float(path[-1][0]), float(path[-1][1]), float(path[-1][2])))
    return Item(Tube(tuple(smooth), radius_mm), hu)


# Findings of a patient at each visit: drawn at the first, then followed as they grow, shrink and resolve.


K = TypeVar("K", bound=str)
DEVICES = ("Support Devices", "Medical material")
NODULES = ("Lung Lesion", "Lung nodule")


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
    """A new finding as its class presents; devices may come several at once."""
    if name in DEVICES:
        return _draw_devices(rng, name)
    habit = HABITS[name]
    severity: Severity = _pick(rng, {"mild": 0.4, "moderate": 0.38, "severe": 0.22})
    kind = _pick(rng, habit.kinds)
    side: FindingSide = "right" if rng.random() < 0.5 else "left"
    if habit.midline:
        side = "midline"
    elif rng.random() < habit.bilateral:
        side = "bilateral"
    size = 0.0
    if habit.sizes_mm is not None:
        size = habit.sizes_mm[SEVERITIES.index(severity)] * float(rng.uniform(0.9, 1.1))
    elif kind in habit.range_mm:
        size = float(rng.uniform(*habit.range_mm[kind]))
    elif name == "Cardiomegaly":
        ratio = {"mild": 0.54, "moderate": 0.59, "severe": 0.66}[severity] + float(rng.normal(0, 0.01))
        size = 2 * anatomy.half_width_mm * max(ratio, anatomy.ratio + 0.06)
    several = kind != "mass" and rng.random() < habit.several
    finding = Finding(
        name=name,
        kind=kind,
        side=side,
        zone=_pick(rng, habit.zones),
        severity=severity,
        size_mm=round(size, 1),
        count=int(rng.integers(habit.counts[0], habit.counts[1] + 1)) if several else 1,
        certainty="possible" if rng.random() < habit.doubt else "definite",
        seed=int(rng.integers(2**31)),
    )
    return [finding]


def _pick(rng: np.random.Generator, weights: Mapping[K, float]) -> K:
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
    turnover: Turnover = "low",
) -> tuple[Finding, ...]:
    """Findings one visit later: each old one unchanged, larger, smaller or gone, and at times new ones."""
    later = [_moved(finding, _next_trend(rng, finding, turnover)) for finding in before if finding.visible]
    rates, abnormal = class_rates(modality, prevalence), 1 - NORMAL_SHARE[prevalence]
    for name in _appearing(rng, {finding.name for finding in later}, rates, abnormal, turnover):
        later += [finding.model_copy(update={"trend": "new"}) for finding in _draw(rng, name, anatomy)]
    return tuple(later)


def _appearing(
    rng: np.random.Generator, present: set[str], rates: Mapping[str, float], abnormal: float, turnover: Turnover
) -> list[str]:
    """The classes of new findings, of ``rates`` in the ``abnormal`` share of patients.

    By "low" one at the most, in two of five visits. By "real" each class is as frequent later as at first: of the share
    p of all patients that have it, the share r loses it, and so it appears in the share r p / (1 - p) of the others.
    """
    if turnover == "low":
        drawn = [_draw_one(rng, rates)] if rates and rng.random() < 0.4 else []
        return [name for name in drawn if name not in present]
    if turnover == "none":
        return []
    shares = {name: rate * abnormal for name, rate in rates.items()}
    chances = {name: COURSES[name].resolved * share / (1 - share) for name, share in shares.items()}
    return [name for name, chance in chances.items() if rng.random() < chance and name not in present]


def _next_trend(rng: np.random.Generator, finding: Finding, turnover: Turnover) -> Trend:
    """The change of a finding by the next visit, as far as its severity allows it."""
    if turnover == "none" or finding.kind in ("pacemaker", "sternal wires"):
        return "unchanged"
    name = finding.name
    trend: Trend
    if turnover == "real":
        chances = COURSES[name].after(finding)
        trend = ("resolved", "increased", "decreased", "unchanged")[int(rng.choice(4, p=chances))]
    elif name in HABITS and HABITS[name].lasting:
        return "unchanged"
    elif name in DEVICES:
        return "resolved" if rng.random() < 0.35 else "unchanged"
    else:
        trend = ("unchanged", "increased", "decreased", "resolved")[int(rng.choice(4, p=(0.3, 0.25, 0.25, 0.2)))]
        if name in NODULES and trend == "resolved":
            return "unchanged"
    level = SEVERITIES.index(finding.severity)
    is_at_end = (trend == "increased" and level == 2) or (trend == "decreased" and level == 0)
    return "unchanged" if is_at_end and name not in NODULES else trend


def _moved(finding: Finding, trend: Trend) -> Finding:
    """The same finding after a change: severity and size go with it."""
    if finding.name in NODULES:
        factor = {"increased": 1.35, "decreased": 0.75}.get(trend, 1.0)
        size = round(finding.size_mm * factor, 1)
        kind = "mass" if size > 30 and finding.name == "Lung Lesion" else "nodule"
        return finding.model_copy(update={"trend": trend, "size_mm": size, "kind": kind})
    if trend in ("increased", "decreased"):
        level = SEVERITIES.index(finding.severity)
        moved = level + (1 if trend == "increased" else -1)
        sizes = HABITS[finding.name].sizes_mm
        ratio = 1.0 if sizes is None else sizes[moved] / sizes[level]
        update = {"trend": trend, "severity": SEVERITIES[moved], "size_mm": round(finding.size_mm * ratio, 1)}
        return finding.model_copy(update=update)
    return finding.model_copy(update={"trend": trend})


# Courses of findings by the turnover "real".
#
# The next radiograph of a patient is two to four weeks later, the next scan six months to a year. Sources, with the
# figures that were taken from them, are in docs/phantom.md; chances of a class without one are set by those of a like
# one. Classes whose size does not follow severity in the image neither grow nor shrink.


@dataclass(frozen=True, slots=True)
class Course:
    """Chances that a finding is gone, larger or smaller in the patient's next study; else it is unchanged.

    ``resolved_if_new`` is the chance to be gone of a finding that was new in the study before.
    """

    resolved: float
    larger: float = 0.0
    smaller: float = 0.0
    resolved_if_new: float | None = None

    def after(self, finding: Finding) -> tuple[float, float, float, float]:
        """The chances of resolved, increased, decreased and unchanged."""
        gone = self.resolved
        if finding.trend == "new" and self.resolved_if_new is not None:
            gone = self.resolved_if_new
        rest = (1 - gone) / (1 - self.resolved)
        return gone, self.larger * rest, self.smaller * rest, 1 - gone - (self.larger + self.smaller) * rest


COURSES: Mapping[str, Course] = {
    "Enlarged Cardiomediastinum": Course(0.1),
    "Cardiomegaly": Course(0.1),
    "Lung Lesion": Course(0.1, larger=0.12, smaller=0.05, resolved_if_new=0.55),
    "Lung Opacity": Course(0.55, larger=0.12, smaller=0.13),
    "Edema": Course(0.6, larger=0.12, smaller=0.13),
    "Consolidation": Course(0.6, larger=0.1, smaller=0.15),
    "Pneumonia": Course(0.6, larger=0.1, smaller=0.15),
    "Atelectasis": Course(0.5, larger=0.15, smaller=0.15),
    "Pneumothorax": Course(0.7, larger=0.05, smaller=0.2),
    "Pleural Effusion": Course(0.45, larger=0.18, smaller=0.17),
    "Pleural Other": Course(0.05),
    "Fracture": Course(0.1),
    "Support Devices": Course(0.5),
    "Medical material": Course(0.45),
    "Arterial wall calcification": Course(0.0),
    "Pericardial effusion": Course(0.6, larger=0.1, smaller=0.12),
    "Coronary artery wall calcification": Course(0.0),
    "Hiatal hernia": Course(0.02),
    "Lymphadenopathy": Course(0.4, larger=0.15, smaller=0.15),
    "Emphysema": Course(0.0),
    "Lung nodule": Course(0.1, larger=0.12, smaller=0.05, resolved_if_new=0.55),
    "Lung opacity": Course(0.7, larger=0.08, smaller=0.1),
    "Pulmonary fibrotic sequela": Course(0.03),
    "Pleural effusion": Course(0.6, larger=0.12, smaller=0.13),
    "Mosaic attenuation pattern": Course(0.3),
    "Peribronchial thickening": Course(0.5, larger=0.1, smaller=0.12),
    "Bronchiectasis": Course(0.03),
    "Interlobular septal thickening": Course(0.6, larger=0.1, smaller=0.12),
}
"""By class of either modality."""
