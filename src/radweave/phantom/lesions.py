"""Radiographic findings as changes of the chest: of its build, its pleural spaces, or as shapes laid on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from radweave.phantom.anatomy import Anatomy, Box, Ellipsoid, Scaling, Side, Tube, Vector, contains, sign
from radweave.phantom.findings import Finding, add_devices
from radweave.phantom.scene import AIR_HU, MARROW_HU, RIB_HU, Filling, Item, Scene, build_scene, rib

Apply = Callable[[Finding, Side, Anatomy, Scene, np.random.Generator], list[Item]]

FLUID_HU = 15.0


def make_scene(anatomy: Anatomy, findings: Sequence[Finding], *, arms_up: bool = False) -> Scene:
    """The chest with its findings; resolved ones are not drawn."""
    return draw_findings(anatomy, findings, _APPLY, _ORDER, arms_up=arms_up)


def draw_findings(
    anatomy: Anatomy,
    findings: Sequence[Finding],
    effects: Mapping[str, Apply],
    order: Mapping[str, int],
    *,
    arms_up: bool,
) -> Scene:
    """The chest with the ``effects`` of its visible findings, those with a greater ``order`` later."""
    shown = [f for f in findings if f.visible]
    for finding in shown:
        anatomy = reshape(anatomy, finding)
    scene = build_scene(anatomy, arms_up=arms_up)
    for finding in sorted(shown, key=lambda f: order.get(f.name, 0)):
        for side in finding.sides or ("right",):
            rng = np.random.default_rng([finding.seed, 0 if side == "right" else 1])
            apply = effects.get(finding.name)
            items = apply(finding, side, anatomy, scene, rng) if apply is not None else []
            if items:
                scene.groups.append(tuple(items))
    return scene


def reshape(anatomy: Anatomy, finding: Finding) -> Anatomy:
    """Findings that change the build: heart, mediastinum, domes, vessels."""
    if finding.name == "Cardiomegaly":
        return replace(anatomy, ratio=max(anatomy.ratio + 0.06, finding.size_mm / (2 * anatomy.half_width_mm)))
    if finding.name == "Enlarged Cardiomediastinum":
        return replace(anatomy, mediastinum=max(anatomy.mediastinum, finding.size_mm / 62.0))
    if finding.name == "Edema":
        return replace(anatomy, vessels=anatomy.vessels * 1.35)
    if finding.name == "Atelectasis":
        lift = 0.9 * finding.size_mm
        return replace(
            anatomy,
            lift_right_mm=anatomy.lift_right_mm + (lift if "right" in finding.sides else 0.0),
            lift_left_mm=anatomy.lift_left_mm + (lift if "left" in finding.sides else 0.0),
        )
    return anatomy


def spot(anatomy: Anatomy, side: Side, zone: str, rng: np.random.Generator, *, reach: float = 0.6) -> Vector:
    """A point in the lung of a side and zone; ``reach`` is how far out towards the chest wall it may lie."""
    floor, top = anatomy.dome_top_mm(side) + 6, 108 * anatomy.height
    part = {"lower": (0.05, 0.28), "mid": (0.38, 0.6), "upper": (0.66, 0.84), "perihilar": (0.42, 0.58)}
    low, high = part.get(zone, (0.15, 0.75))
    z = floor + (top - floor) * rng.uniform(low, high)
    half_x, half_y = anatomy.outer_half_width(z)
    beside_heart = side == "left" and zone in ("mid", "lower")
    near = (34 if zone == "perihilar" else 58 if beside_heart else 44) * anatomy.width
    far = half_x * reach if zone != "perihilar" else 56 * anatomy.width
    x = sign(side) * rng.uniform(min(near + 6, far), max(near + 6, far))
    return float(x), float(rng.uniform(-0.35, 0.55) * half_y), float(z)


def cloud(
    center: Vector, size_mm: float, hu: float, rng: np.random.Generator, *, puffs: int = 9, flat: float = 1.0
) -> list[Item]:
    """A patchy opacity: overlapping ellipsoids around a point, clipped to lung when drawn."""
    items = []
    radius = size_mm / 2
    for _ in range(puffs):
        offset = rng.normal(0, 0.42, 3) * radius * np.array([1, 1, flat])
        semi = radius * rng.uniform(0.35, 0.75, 3) * np.array([1, 1, flat])
        where = (center[0] + offset[0], center[1] + offset[1], center[2] + offset[2])
        shape = Ellipsoid(
            (float(where[0]), float(where[1]), float(where[2])), (float(semi[0]), float(semi[1]), float(semi[2]))
        )
        items.append(Item(shape, hu * float(rng.uniform(0.7, 1.2)), in_lung=True))
    return items


def point_of(values: NDArray[np.float64]) -> Vector:
    return float(values[0]), float(values[1]), float(values[2])


def _opacity(f: Finding, side: Side, a: Anatomy, scene: Scene, rng: np.random.Generator) -> list[Item]:
    """Haze: a broad veil without an edge."""
    strength = {"mild": 130.0, "moderate": 185.0, "severe": 240.0}[f.severity]
    center = spot(a, side, f.zone, rng)
    items = cloud(center, f.size_mm, 0.4 * strength, rng, puffs=10)
    for share in (0.95, 0.75, 0.55):
        r = f.size_mm / 2 * share
        items.append(Item(Ellipsoid(center, (r, 1.1 * r, r)), strength, in_lung=True))
    return items


def _pneumonia(f: Finding, side: Side, a: Anatomy, scene: Scene, rng: np.random.Generator) -> list[Item]:
    """Many small soft spots that run together, over a thin haze."""
    strength = {"mild": 380.0, "moderate": 430.0, "severe": 480.0}[f.severity]
    center = spot(a, side, f.zone, rng)
    items = cloud(center, f.size_mm, 70.0, rng, puffs=8)
    for _ in range({"mild": 26, "moderate": 36, "severe": 48}[f.severity]):
        where = rng.normal(0, 0.22, 3) * f.size_mm + np.asarray(center)
        items.append(Item(Ellipsoid(point_of(where), point_of(rng.uniform(6.0, 14.0, 3))), strength, in_lung=True))
    return items


def add_consolidation(f: Finding, side: Side, a: Anatomy, scene: Scene, rng: np.random.Generator) -> list[Item]:
    """Dense lung up to the chest wall, with air left in its bronchi."""
    strength = {"mild": 640.0, "moderate": 760.0, "severe": 860.0}[f.severity]
    x, y, z = spot(a, side, f.zone, rng, reach=0.55)
    r = f.size_mm / 2
    x += sign(side) * 0.45 * r
    items = []
    for k in range(3):
        core = Ellipsoid((x - 0.2 * r * (k - 1), y, z + 0.18 * r * (k - 1)), (0.92 * r, 1.1 * r, 0.72 * r))
        items.append(Item(core, 0.38 * strength, in_lung=True))
    items += cloud((x, y, z), f.size_mm * 1.15, 0.2 * strength, rng, puffs=12)
    root = np.asarray(a.root(side))
    center = np.array([x, y, z])
    for _ in range(4):
        start = center + 0.5 * (root - center) / max(float(np.linalg.norm(root - center)), 1.0) * r
        end = center + rng.normal(0, 0.45, 3) * r
        items.append(Item(Tube((point_of(start), point_of(end)), 2.4, 1.6), -500.0, in_lung=True))
    return items


def _edema(f: Finding, side: Side, a: Anatomy, scene: Scene, rng: np.random.Generator) -> list[Item]:
    items: list[Item] = []
    strength = {"mild": 55.0, "moderate": 85.0, "severe": 125.0}[f.severity]
    root = a.root(side)
    for k in range(3):
        center = (root[0] + sign(side) * (14 + 6 * k), root[1], root[2] - 18 + 4 * k)
        semi = (42.0 + 7 * k, 58.0, 62.0 + 8 * k)
        items.append(Item(Ellipsoid(center, semi), strength, in_lung=True))
    items += cloud((root[0] + sign(side) * 22, root[1], root[2] - 15), 95, strength * 0.9, rng, puffs=14)
    for _ in range({"mild": 6, "moderate": 9, "severe": 12}[f.severity]):
        z = a.dome_top_mm(side) + float(rng.uniform(4, 45))
        half_x, half_y = a.outer_half_width(z)
        y = float(rng.uniform(-0.2, 0.2)) * half_y
        line = ((sign(side) * (half_x - 17), y, z), (sign(side) * (half_x - 2), y, z - 2))
        items.append(Item(Tube(line, 0.9), 1500.0))
    return items


def add_atelectasis(f: Finding, side: Side, a: Anatomy, scene: Scene, rng: np.random.Generator) -> list[Item]:
    items: list[Item] = []
    top = a.dome_top_mm(side)
    count = 1 + {"mild": 1, "moderate": 1, "severe": 2}[f.severity]
    for k in range(count):
        z = top + 10 + 13 * k + float(rng.uniform(-3, 3))
        x = sign(side) * float(rng.uniform(76, 92)) * a.width
        thick = {"mild": 3.0, "moderate": 4.0, "severe": 5.5}[f.severity]
        plate = Ellipsoid((x, 6.0, z), (30 + 0.5 * f.size_mm, 42, thick), tilt_deg=float(rng.uniform(-14, 14)))
        items.append(Item(plate, 700.0, in_lung=True))
    if f.severity != "mild":
        items += cloud((sign(side) * 70 * a.width, 20.0, top + 5), 44, 240.0, rng, puffs=7, flat=0.45)
    return items


def _lesion(f: Finding, side: Side, a: Anatomy, scene: Scene, rng: np.random.Generator) -> list[Item]:
    items: list[Item] = []
    r = f.size_mm / 2
    for _ in range(f.count):
        center = spot(a, side, f.zone, rng, reach=0.72)
        semi = r * rng.uniform(0.88, 1.12, 3)
        ball = Ellipsoid(center, (float(semi[0]), float(semi[1]), float(semi[2])), turn_deg=float(rng.uniform(0, 90)))
        items.append(Item(ball, 1250.0 if f.kind == "nodule" else 900.0, in_lung=True))  # small ones hold calcium
        if f.kind == "mass":
            for _ in range(5):
                bump = np.asarray(center) + rng.normal(0, 0.6, 3) * r
                items.append(
                    Item(Ellipsoid((bump[0], bump[1], bump[2]), (0.4 * r, 0.4 * r, 0.4 * r)), 300.0, in_lung=True)
                )
    return items


def _pneumothorax(f: Finding, side: Side, a: Anatomy, scene: Scene, rng: np.random.Generator) -> list[Item]:
    items: list[Item] = []
    lower, upper = scene.cavities[side]
    across = 1.0 - f.size_mm / (108.0 * a.width)
    anchor = (sign(side) * 22.0 * a.width, 20.0, a.dome_top_mm(side) - 60)
    shrink = Scaling(anchor, (across, 0.5 + 0.5 * across, 1.0 - f.size_mm / 230.0))
    collapsed = (shrink.ellipsoid(lower), shrink.ellipsoid(upper))
    scene.fillings[side].append(Filling(collapsed, AIR_HU))
    rim = Scaling(anchor, (across - 0.016, 0.99 * (0.5 + 0.5 * across), shrink.factor[2] - 0.008))
    inner = (rim.ellipsoid(lower), rim.ellipsoid(upper))
    scene.fillings[side].append(Filling(inner, -120.0))
    scene.groups = [tuple(_collapse(item, shrink, side) for item in group) for group in scene.groups]
    return items


def _collapse(item: Item, shrink: Scaling, side: Side) -> Item:
    """Move an item with its collapsing lung."""
    if not item.in_lung:
        return item
    x = item.shape.points[0][0] if isinstance(item.shape, Tube) else item.shape.center[0]
    return replace(item, shape=shrink.shape(item.shape)) if x * sign(side) > 0 else item


def _effusion(f: Finding, side: Side, a: Anatomy, scene: Scene, rng: np.random.Generator) -> list[Item]:
    """Free fluid in an upright chest: a level that climbs the chest wall as a meniscus."""
    items: list[Item] = []
    level = a.dome_top_mm(side) - 26 + f.size_mm
    climb = 52.0
    half_x, half_y = a.outer_half_width(level)
    center = (sign(side) * 0.5 * half_x, 8.0, level + climb)
    bowl = Ellipsoid(center, (half_x * 0.56, half_y * 1.05, climb))
    above = Box((center[0], 0.0, level + climb + 200), (200.0, 200.0, 200.0))
    scene.fillings[side].append(Filling((bowl, above), FLUID_HU))
    scene.groups = [tuple(_above_fluid(item, bowl, side) for item in group) for group in scene.groups]
    return items


def _above_fluid(item: Item, bowl: Ellipsoid, side: Side) -> Item:
    """Vessels in lung that fluid has pushed away are not seen: end them where they enter it."""
    tube = item.shape
    if not item.in_lung or not isinstance(tube, Tube) or tube.points[0][0] * sign(side) < 0:
        return item
    points = []
    for point in tube.points:
        if point[2] < bowl.center[2] and not contains(bowl, point):
            break
        points.append(point)
    if len(points) == len(tube.points):
        return item
    points = points if len(points) > 1 else [tube.points[0]] * 2  # a tube of no length casts a dot at its start
    return replace(item, shape=replace(tube, points=tuple(points)))


def _pleural_other(f: Finding, side: Side, a: Anatomy, scene: Scene, rng: np.random.Generator) -> list[Item]:
    items: list[Item] = []
    lower, upper = scene.cavities[side]
    if f.kind == "plaque":
        for k in range(4):
            z = a.dome_top_mm(side) + 18 + 26 * k + float(rng.uniform(-5, 5))
            half_x, half_y = a.outer_half_width(z)
            angle = float(rng.uniform(-0.5, 0.5))
            where = (sign(side) * (half_x - 3) * float(np.cos(angle)), half_y * float(np.sin(angle)), z)
            items.append(Item(Ellipsoid(where, (3.0, 13.0, 9.0)), 1300.0))
        return items
    thick = f.size_mm
    shift = 1.0 - thick / (63.0 * a.width)
    anchor = (sign(side) * 18.0 * a.width, 10.0, -40.0)
    shrink = Scaling(anchor, (shift, 0.97, 1.0 - 1.2 * thick / 150.0))
    scene.fillings[side].append(Filling((shrink.ellipsoid(lower), shrink.ellipsoid(upper)), 30.0))
    return items


def _fracture(f: Finding, side: Side, a: Anatomy, scene: Scene, rng: np.random.Generator) -> list[Item]:
    items: list[Item] = []
    first = int(rng.integers(4, 8 - min(f.count, 3)))
    for number in range(first, first + f.count):
        line = rib(a, number, side)
        at = int(rng.integers(5, 8))
        step = f.size_mm
        outer = [(p[0], p[1], p[2] - step) for p in line[at:]]
        broken = (line[: at - 1], (*outer,))
        scene.groups = [
            tuple(i for i in group if not (isinstance(i.shape, Tube) and i.shape.points == line))
            for group in scene.groups
        ]
        for piece in broken:
            items += [Item(Tube(tuple(piece), 6.0), RIB_HU), Item(Tube(tuple(piece), 4.2), MARROW_HU)]
        if f.kind == "healing":
            items.append(Item(Ellipsoid(line[at - 1], (10.0, 10.0, 9.0)), 1300.0))
        else:
            items.append(Item(Ellipsoid(line[at - 1], (13.0, 15.0, 15.0)), 800.0, in_lung=True))  # blood at the break
    return items


_APPLY: dict[str, Apply] = {
    "Lung Opacity": _opacity,
    "Pneumonia": _pneumonia,
    "Consolidation": add_consolidation,
    "Edema": _edema,
    "Atelectasis": add_atelectasis,
    "Lung Lesion": _lesion,
    "Pneumothorax": _pneumothorax,
    "Pleural Effusion": _effusion,
    "Pleural Other": _pleural_other,
    "Fracture": _fracture,
    "Support Devices": add_devices,
}
# Fluid settles before air rises, and a lung collapses with everything that lies in it.
_ORDER = {"Pleural Effusion": 1, "Pleural Other": 2, "Pneumothorax": 3, "Support Devices": 4}
