"""Which findings a patient has at each visit: drawn at the first, then followed as they grow, shrink and resolve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np

from radweave.base.study import Modality
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
    class_rates,
)
from radweave.phantom.habits import HABITS

K = TypeVar("K", bound=str)
DEVICES = ("Support Devices", "Medical material")


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


def _follow(rng: np.random.Generator, finding: Finding) -> Finding:
    """The same finding one visit later."""
    name = finding.name
    if finding.kind in ("pacemaker", "sternal wires") or (name in HABITS and HABITS[name].lasting):
        return finding.model_copy(update={"trend": "unchanged"})
    if name in DEVICES:
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
        sizes = HABITS[name].sizes_mm
        ratio = 1.0 if sizes is None else sizes[moved] / sizes[level]
        update = {"trend": trend, "severity": SEVERITIES[moved], "size_mm": round(finding.size_mm * ratio, 1)}
        return finding.model_copy(update=update)
    return finding.model_copy(update={"trend": trend})
