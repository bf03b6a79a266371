"""The solids a phantom is made of: ellipsoids, boxes and tubes, in patient millimetres.

Axes: x to the patient's left, y to the back, z to the head (DICOM's patient coordinates, PS3.3 C.7.6.2.1.1).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

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
    """Whether a point lies in the ellipsoid scaled by ``scale``."""
    local = (np.asarray(point) - np.asarray(shape.center)) @ rotation(shape.tilt_deg, shape.turn_deg)
    return bool(np.sum((local / (np.asarray(shape.semi) * scale)) ** 2) <= 1.0)
