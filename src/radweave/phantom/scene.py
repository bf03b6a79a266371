"""A chest as solids with a density, from which both the radiograph and the CT are made.

Densities are CT numbers in HU; those of items on top of soft tissue (40 HU) are differences from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from radweave.phantom.anatomy import SIDES, Anatomy, Box, Ellipsoid, Shape, Side, Solid, Tube, Vector, contains, sign

SOFT_HU = 40.0
AIR_HU = -1000.0
LUNG_HU = -835.0
RIB_HU, MARROW_HU = 850.0, -520.0


@dataclass(frozen=True, slots=True)
class Item:
    """A shape laid on the chest: ``hu`` is added inside it, only where there is lung if ``in_lung``."""

    shape: Shape
    hu: float
    in_lung: bool = False


@dataclass(frozen=True, slots=True)
class Filling:
    """Filling of a pleural space: lung inside the union of ``lung``, ``hu`` elsewhere."""

    lung: tuple[Solid, Solid]
    hu: float


@dataclass(frozen=True, slots=True)
class Organ:
    """Tissue that differs from muscle in CT and is painted over it. Radiographs do not show the difference."""

    solid: Solid
    hu: float


@dataclass(slots=True)
class Scene:
    """Everything to draw. ``solids`` are soft tissue that displaces lung; ``groups`` hold items that belong together.

    Groups are tuples of frozen values, so that groups of several scenes (most differ by one finding) are drawn once.
    """

    body: list[Solid]
    cavities: dict[Side, tuple[Ellipsoid, Ellipsoid]]
    solids: list[Solid]
    lung_hu: dict[Side, float]
    fillings: dict[Side, list[Filling]] = field(default_factory=lambda: {"right": [], "left": []})
    groups: list[tuple[Item, ...]] = field(default_factory=list)
    organs: list[Organ] = field(default_factory=list)
    late_organs: list[Organ] = field(default_factory=list)


def build_scene(anatomy: Anatomy, *, arms_up: bool = False) -> Scene:
    """The chest without any lesion. ``arms_up`` for laterals and CT: no shoulders in the way."""
    solids: list[Solid] = [anatomy.heart(), *anatomy.mediastinum_solids(), *(anatomy.dome(s) for s in SIDES)]
    scene = Scene(
        body=_body(anatomy, arms_up),
        cavities={side: anatomy.lung(side) for side in SIDES},
        solids=solids,
        lung_hu=dict.fromkeys(SIDES, LUNG_HU),
    )
    scene.groups.append(tuple(Item(shape, hu) for shape, hu in _bones(anatomy, arms_up)))
    scene.groups.append(tuple(Item(shape, hu) for shape, hu in _airways(anatomy)))
    scene.organs = _organs(anatomy)
    for side in SIDES:
        scene.groups.append(tuple(Item(tube, 800.0, in_lung=True) for tube in vessels(anatomy, side)))
    return scene


FAT_HU = -95.0
BLOOD_HU = 46.0


def _organs(anatomy: Anatomy) -> list[Organ]:
    """From the skin inwards: fat, muscle, mediastinal fat, then vessels, heart, liver, spleen."""
    w, d, h = anatomy.width, anatomy.depth, anatomy.height
    solids = anatomy.mediastinum_solids()
    organs = [Organ(solid, FAT_HU) for solid in _body(anatomy, arms_up=True)]
    organs.append(Organ(Ellipsoid((0, 0, -60), (160 * w, 102 * d, 330 * h)), SOFT_HU))
    organs += [Organ(Ellipsoid((s * 120 * w, 10, 100 * h), (44, 44, 69)), SOFT_HU) for s in (-1, 1)]
    organs += [Organ(solid, FAT_HU) for solid in solids[:2]]
    organs.append(Organ(solids[2], SOFT_HU))
    organs += [Organ(anatomy.dome("left"), FAT_HU), Organ(anatomy.dome("right"), 58.0)]
    top = anatomy.dome_top_mm("left")
    organs.append(Organ(Ellipsoid((95 * w, 35 * d, top - 45), (38, 45, 42)), 50.0))
    organs.append(Organ(Ellipsoid((50 * w, -5, top - 38), (44, 48, 34)), 30.0))
    organs += [Organ(solid, BLOOD_HU) for solid in solids[3:]]
    organs.append(Organ(anatomy.heart(), BLOOD_HU))
    organs.append(Organ(Ellipsoid((0, 30, 20 * h), (7, 6, 150 * h)), 35.0))  # the oesophagus
    return organs


def _body(anatomy: Anatomy, arms_up: bool) -> list[Solid]:
    w, d, h, fat = anatomy.width, anatomy.depth, anatomy.height, anatomy.fat_mm
    body: list[Solid] = [
        Ellipsoid((0, 0, -60), (162 * w + fat, 104 * d + fat, 330 * h)),
        Ellipsoid((0, 15, 190 * h), (58 * w, 58 * d, 120)),
        Ellipsoid((0, -5, -220), (160 * w + fat, 100 * d + 1.5 * fat, 150)),
    ]
    reach = 100 if arms_up else 118
    for s in (-1, 1):
        if arms_up:
            body.append(Ellipsoid((s * 120 * w, 10, reach * h), (45 + fat / 2, 45, 70)))
        else:
            body.append(Ellipsoid((s * 138 * w, 12, reach * h), (62 + fat / 2, 56, 62)))
        if anatomy.breast_mm:
            skin = -0.87 * (104 * d + fat)
            body.append(Ellipsoid((s * 76 * w, skin, -72 * h), (54, anatomy.breast_mm, 47)))
    return body


def rib(anatomy: Anatomy, number: int, side: Side) -> tuple[Vector, ...]:
    """Centre line of a rib (1 to 10) from the spine round to its front end."""
    h, s = anatomy.height, sign(side)
    start = (128 - 25.5 * number) * h + 8
    drop = (26 + 7.0 * min(number, 7)) * h * anatomy.rib_tilt
    points = []
    for angle in np.deg2rad(np.linspace(8, 148 if number < 8 else 120, 15)):
        z = start + 5 * np.sin(2 * angle) - drop * (1 - np.cos(angle)) / 2
        half_x, half_y = anatomy.outer_half_width(max(min(z, start + 2), -118 * h))
        x = s * (half_x + 5) * float(np.sin(angle)) ** 0.8
        y = (half_y + 6) * float(np.cos(angle)) + 6
        points.append((float(x), float(y), float(z)))
    return tuple(points)


def clavicle(anatomy: Anatomy, side: Side) -> tuple[Vector, ...]:
    s, h, w, d = sign(side), anatomy.height, anatomy.width, anatomy.depth
    path = [(14, -62, 96), (45, -66, 104), (80, -52, 112), (115, -30, 117), (148, -14, 122)]
    return tuple((s * x * w, y * d, z * h) for x, y, z in path)


def _bones(anatomy: Anatomy, arms_up: bool) -> list[tuple[Shape, float]]:
    h, d, w = anatomy.height, anatomy.depth, anatomy.width
    bones: list[tuple[Shape, float]] = []
    for side in SIDES:
        for number in range(1, 11):
            line = rib(anatomy, number, side)
            bones += [(Tube(line, 6.0), RIB_HU), (Tube(line, 4.2), MARROW_HU)]
        line = clavicle(anatomy, side)
        bones += [(Tube(line, 6.5), RIB_HU), (Tube(line, 4.5), MARROW_HU)]
        s = sign(side)
        if not arms_up:
            bones.append((Ellipsoid((s * 128 * w, 78 * d, 52 * h), (30, 4, 62), tilt_deg=-12.0 * s), 260.0))
            bones.append((Ellipsoid((s * 172 * w, 12, 112 * h), (23, 23, 24)), 220.0))
            bones.append((Tube(((s * 172 * w, 12, 104 * h), (s * 184 * w, 10, -20 * h)), 12.0), 260.0))
    for level in range(-9, 6):
        z = 22.0 * level * h
        x = anatomy.scoliosis_mm * float(np.sin(level / 4.0))
        bones.append((Box((x, 66 * d, z), (16, 14, 9.0 * h)), 190.0))
        bones.append((Ellipsoid((x, 98 * d, z - 8), (4, 16, 7)), 260.0))
        bones.append((Ellipsoid((x, 84 * d, z), (26, 5, 6)), 160.0))
    bones.append((Box((0, -90 * d, 10 * h), (14, 5, 80 * h)), 170.0))
    return bones


def _airways(anatomy: Anatomy) -> list[tuple[Shape, float]]:
    h = anatomy.height
    air = AIR_HU - SOFT_HU
    carina = (0.0, 14.0, 32 * h)
    airways: list[tuple[Shape, float]] = [(Tube(((0.0, 2.0, 165 * h), (0.0, 8.0, 100 * h), carina), 8.5, 8.0), air)]
    for side in SIDES:
        root = anatomy.root(side)
        airways.append((Tube((carina, (root[0] * 0.95, root[1] + 5, root[2] + 4)), 6.5, 5.0), air))
    bubble = anatomy.dome_top_mm("left") - 20
    airways.append((Ellipsoid((52 * anatomy.width, 6, bubble), (26, 24, 11)), air))
    return airways


def vessels(anatomy: Anatomy, side: Side) -> list[Tube]:
    """The pulmonary vessels of a side: two generations of branches from the root, kept inside the cavity."""
    rng = np.random.default_rng([anatomy.vessel_seed, 0 if side == "right" else 1])
    lower, upper = anatomy.lung(side)
    root = np.asarray(anatomy.root(side))
    floor = anatomy.dome_top_mm(side)
    tubes = [
        Tube(
            (
                (root[0] - 5 * sign(side), root[1], root[2] + 14),
                (root[0] + 4 * sign(side), root[1], root[2] - 4),
                (root[0] + 6 * sign(side), root[1] + 8, root[2] - 38),
            ),
            8.5 * anatomy.vessels,
            5.5,
        )
    ]
    for _ in range(15):
        elevation = rng.uniform(-1.25, 1.3)
        round_angle = rng.uniform(-0.9, 0.9)
        direction = np.array(
            [
                sign(side) * np.cos(elevation) * np.cos(round_angle),
                np.cos(elevation) * np.sin(round_angle),
                np.sin(elevation) - (0.15 if elevation < 0 else 0.0),
            ]
        )
        length = rng.uniform(60, 105)
        bend = rng.normal(0, 6, 3)
        start = root + np.array([0, 0, rng.uniform(-22, 16)])
        trunk = [start + direction * length * t + bend * np.sin(2.5 * t) for t in (0.0, 0.3, 0.6, 1.0)]
        calibre = rng.uniform(2.3, 3.6) * anatomy.vessels
        tubes.append(_inside(trunk, calibre, 0.8, (lower, upper), floor))
        for t in (1, 2):
            turn = direction + rng.normal(0, 0.55, 3)
            branch = [trunk[t] + turn * length * 0.45 * k for k in (0.0, 0.5, 1.0)]
            tubes.append(_inside(branch, calibre * 0.6, 0.6, (lower, upper), floor))
    return [tube for tube in tubes if len(tube.points) > 1]


def _inside(
    path: list[np.ndarray], start_mm: float, end_mm: float, parts: tuple[Ellipsoid, Ellipsoid], floor: float
) -> Tube:
    points: list[Vector] = []
    for p in path:
        point = (float(p[0]), float(p[1]), float(p[2]))
        if point[2] < floor - 25 or not any(contains(part, point, 0.96) for part in parts):
            break
        points.append(point)
    return Tube(tuple(points), start_mm, end_mm)
