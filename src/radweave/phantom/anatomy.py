"""A chest drawn from a seed: the numbers that make one patient differ from another.

All lengths in mm, in the axes of ``shapes``; z = 0 lies at the level of the lung roots. Proportions are
an adult's: cardiothoracic ratio 0.40 to 0.48 without disease, right dome higher than left, aortic arch to the left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

# The solids a phantom is made of: ellipsoids, boxes and tubes, in patient millimetres.
#
# Axes: x to the patient's left, y to the back, z to the head (DICOM's patient coordinates, PS3.3 C.7.6.2.1.1).


Floats = NDArray[np.float32]
Vector = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Ellipsoid:
    """Points p with |R^T (p - center) / semi| <= 1; R turns by ``tilt_deg`` about y, then ``turn_deg`` about z."""

    center: Vector
    semi: Vector
    tilt_deg: float = 0.0
    turn_deg: float = 0.0


@dataclass(frozen=True, slots=True)
class Box:
    """Points within ``half`` of ``center`` along each of the turned axes."""

    center: Vector
    half: Vector
    tilt_deg: float = 0.0
    turn_deg: float = 0.0


@dataclass(frozen=True, slots=True)
class Tube:
    """Points within a radius of a polyline; ``radius_mm`` runs linearly from the first to the last point."""

    points: tuple[Vector, ...]
    radius_mm: float
    end_radius_mm: float | None = None

    def radii(self) -> NDArray[np.float64]:
        end = self.radius_mm if self.end_radius_mm is None else self.end_radius_mm
        return np.linspace(self.radius_mm, end, len(self.points))


Solid = Ellipsoid | Box
Shape = Ellipsoid | Box | Tube


@dataclass(frozen=True, slots=True)
class Scaling:
    """The map p -> anchor + factor * (p - anchor), per axis: how a lung collapses towards its root."""

    anchor: Vector
    factor: Vector

    def point(self, p: Vector) -> Vector:
        return (
            self.anchor[0] + self.factor[0] * (p[0] - self.anchor[0]),
            self.anchor[1] + self.factor[1] * (p[1] - self.anchor[1]),
            self.anchor[2] + self.factor[2] * (p[2] - self.anchor[2]),
        )

    def shape(self, shape: Shape) -> Shape:
        """Map a shape; turned ellipsoids and boxes keep their turn, which is exact for equal factors only."""
        if isinstance(shape, Tube):
            return replace(shape, points=tuple(self.point(p) for p in shape.points))
        size = shape.semi if isinstance(shape, Ellipsoid) else shape.half
        scaled = (size[0] * self.factor[0], size[1] * self.factor[1], size[2] * self.factor[2])
        if isinstance(shape, Ellipsoid):
            return replace(shape, center=self.point(shape.center), semi=scaled)
        return replace(shape, center=self.point(shape.center), half=scaled)

    def ellipsoid(self, part: Ellipsoid) -> Ellipsoid:
        """``shape`` for the parts of a lung, which are not turned."""
        size = (part.semi[0] * self.factor[0], part.semi[1] * self.factor[1], part.semi[2] * self.factor[2])
        return replace(part, center=self.point(part.center), semi=size)


def rotation(tilt_deg: float, turn_deg: float) -> NDArray[np.float64]:
    """Matrix whose columns are the shape's own axes in patient axes."""
    a, b = np.deg2rad(tilt_deg), np.deg2rad(turn_deg)
    about_y = np.array([[np.cos(a), 0, np.sin(a)], [0, 1, 0], [-np.sin(a), 0, np.cos(a)]])
    about_z = np.array([[np.cos(b), -np.sin(b), 0], [np.sin(b), np.cos(b), 0], [0, 0, 1]])
    return np.asarray(about_z @ about_y, dtype=np.float64)


def size_of(shape: Solid) -> Vector:
    return shape.semi if isinstance(shape, Ellipsoid) else shape.half


def corners(shape: Shape) -> NDArray[np.float64]:
    """Points (N, 3) whose hull holds the shape."""
    if isinstance(shape, Tube):
        points = np.asarray(shape.points, dtype=np.float64)
        r = float(shape.radii().max())
        low, high = points.min(0) - r, points.max(0) + r
        return np.array([[x, y, z] for x in (low[0], high[0]) for y in (low[1], high[1]) for z in (low[2], high[2])])
    signs = np.array([[i, j, k] for i in (-1, 1) for j in (-1, 1) for k in (-1, 1)], dtype=np.float64)
    local = signs * np.asarray(size_of(shape))
    turned: NDArray[np.float64] = np.asarray(shape.center) + local @ rotation(shape.tilt_deg, shape.turn_deg).T
    return turned


def contains(shape: Ellipsoid, point: Vector, scale: float = 1.0) -> bool:
    """True for a point in the ellipsoid scaled by ``scale``."""
    local = (np.asarray(point) - np.asarray(shape.center)) @ rotation(shape.tilt_deg, shape.turn_deg)
    return bool(np.sum((local / (np.asarray(shape.semi) * scale)) ** 2) <= 1.0)


Side = Literal["right", "left"]
SIDES: tuple[Side, ...] = ("right", "left")


def sign(side: Side) -> int:
    """Direction of a side along x: the patient's left is positive."""
    return 1 if side == "left" else -1


@dataclass(frozen=True, slots=True)
class Anatomy:
    """One patient's build. Findings change the last block; a patient without findings has it as it stands here."""

    sex: Literal["F", "M"]
    age: int
    width: float  # of the chest, 1 = average
    depth: float
    height: float
    fat_mm: float
    breast_mm: float
    inspiration_mm: float  # how far both domes stand below (+) or above (-) the average
    scoliosis_mm: float
    aorta_mm: float
    heart_turn_deg: float
    rib_tilt: float
    vessel_seed: int

    ratio: float  # cardiothoracic
    mediastinum: float = 1.0  # width, 1 = average
    lift_right_mm: float = 0.0  # of a dome
    lift_left_mm: float = 0.0
    vessels: float = 1.0  # calibre

    def lift_mm(self, side: Side) -> float:
        return (self.lift_right_mm if side == "right" else self.lift_left_mm) - self.inspiration_mm

    def lung(self, side: Side) -> tuple[Ellipsoid, Ellipsoid]:
        """Lower and upper part of the chest cavity of a side, before heart, mediastinum and dome are taken away."""
        s, w, d, h = sign(side), self.width, self.depth, self.height
        lower = Ellipsoid((s * 80 * w, 4, -100 * h), (63 * w, 88 * d, 155 * h))
        upper = Ellipsoid((s * 60 * w, 14, 22 * h), (55 * w, 68 * d, 106 * h))
        return lower, upper

    @property
    def half_width_mm(self) -> float:
        """Half the inner width of the chest above the domes."""
        return 143 * self.width

    def heart(self) -> Ellipsoid:
        """The heart, turned so that its apex points to the left and down; its shadow has the asked-for ratio."""
        half = self.ratio * self.half_width_mm
        angle = np.deg2rad(self.heart_turn_deg)
        # half^2 = a^2 cos^2 + b^2 sin^2 with b = 0.76 a
        a = half / float(np.sqrt(np.cos(angle) ** 2 + (0.76 * np.sin(angle)) ** 2))
        center = (half * 0.26, -26 * self.depth, -68 * self.height + 0.55 * self.mean_lift_mm)
        return Ellipsoid(center, (a, 0.74 * a, 0.76 * a), tilt_deg=self.heart_turn_deg)

    @property
    def mean_lift_mm(self) -> float:
        return (self.lift_mm("right") + self.lift_mm("left")) / 2

    def dome(self, side: Side) -> Ellipsoid:
        """Liver or spleen and stomach, up to the diaphragm."""
        top = -96 * self.height + self.lift_mm(side) + (8 if side == "right" else -6)
        semi = (90 * self.width, 112 * self.depth, 96.0)
        return Ellipsoid((sign(side) * 78 * self.width, -6, top - semi[2]), semi)

    def dome_top_mm(self, side: Side) -> float:
        dome = self.dome(side)
        return dome.center[2] + dome.semi[2]

    def mediastinum_solids(self) -> list[Ellipsoid]:
        """Soft tissue between the lungs, without the heart."""
        m, h, d = self.mediastinum, self.height, self.depth
        arch = self.aorta_mm / 2
        wide = 1 + 1.35 * (m - 1)
        return [
            Ellipsoid((0, 0, -10 * h), (25 * m, 62 * d, 150 * h)),
            Ellipsoid((0, 2, 92 * h), (31 * wide, 40 * d, 62 * h)),
            Ellipsoid((self.scoliosis_mm * 0.3, 74 * d, -40), (23, 32 * d, 330)),
            Ellipsoid((26 * wide, 12, 50 * h), (arch * 1.05, arch * 1.7, arch)),
            Ellipsoid((20 + 0.5 * arch, 50 * d, -40 * h), (arch * 0.85, arch * 0.85, 105 * h)),
            Ellipsoid((-20 * wide, -8, 36 * h), (15 * wide, 16, 58 * h)),
            Ellipsoid((27, -20, 16 * h), (17, 24, 26 * h)),
        ]

    def root(self, side: Side) -> Vector:
        """The lung root (hilum); the left one stands a little higher."""
        return (sign(side) * 40 * self.width, 6.0, (2 if side == "right" else 10) * self.height)

    def outer_half_width(self, z: float) -> tuple[float, float]:
        """Half width (x, y) of the chest cavity at a level."""
        lower, upper = self.lung("left")
        widths, depths = [18 * self.width], [25 * self.depth]
        for part in (lower, upper):
            rest = 1 - ((z - part.center[2]) / part.semi[2]) ** 2
            if rest > 0:
                widths.append(part.center[0] + part.semi[0] * float(np.sqrt(rest)))
                depths.append(part.semi[1] * float(np.sqrt(rest)))
        return max(widths), max(depths)


def draw_anatomy(rng: np.random.Generator) -> Anatomy:
    """Draw a patient without disease."""
    sex: Literal["F", "M"] = "F" if rng.random() < 0.5 else "M"
    age = int(np.clip(rng.normal(56, 17), 18, 94))
    size = 0.96 if sex == "F" else 1.02
    return Anatomy(
        sex=sex,
        age=age,
        width=float(np.clip(rng.normal(size, 0.035), 0.88, 1.1)),
        depth=float(np.clip(rng.normal(size, 0.06), 0.84, 1.16)),
        height=float(np.clip(rng.normal(size, 0.04), 0.87, 1.1)),
        fat_mm=float(np.clip(rng.gamma(3.0, 5.0), 4, 45)),
        breast_mm=float(np.clip(rng.normal(22, 9), 6, 45)) if sex == "F" else 0.0,
        inspiration_mm=float(np.clip(rng.normal(4, 7), -12, 18)),
        scoliosis_mm=float(rng.normal(0, 3)),
        aorta_mm=float(np.clip(rng.normal(27 + 0.12 * (age - 40), 2.5), 23, 40)),
        heart_turn_deg=float(np.clip(rng.normal(36, 5), 24, 48)),
        rib_tilt=float(np.clip(rng.normal(1.0, 0.12), 0.75, 1.3)),
        vessel_seed=int(rng.integers(2**31)),
        ratio=float(np.clip(rng.normal(0.435, 0.025), 0.37, 0.485)),
    )
