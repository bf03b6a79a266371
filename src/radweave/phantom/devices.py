"""Tubes, lines and other devices, as thin dense shapes along the paths they take in a patient."""

from __future__ import annotations

import numpy as np

from radweave.phantom.anatomy import Anatomy, Side, sign
from radweave.phantom.findings import Finding
from radweave.phantom.scene import Item, Scene
from radweave.phantom.shapes import Box, Ellipsoid, Tube, Vector

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
