"""Rays of a radiograph and the closed-form lengths they run inside solids.

A ray is p(t) = source + t * (pixel - source), so t = 1 at the detector. Every convex solid cuts it in one interval
of t; unions and differences of solids are unions and differences of intervals, so that the line integrals are exact.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from radweave.phantom.shapes import Box, Ellipsoid, Floats, Shape, Solid, Tube, corners, rotation

_FAR = np.float32(1e6)
Window = tuple[slice, slice]


@dataclass(frozen=True, slots=True)
class Intervals:
    """Disjoint intervals of t per ray; ``low`` and ``high`` are (M, rows, columns), empty where high <= low."""

    low: Floats
    high: Floats

    def length(self) -> Floats:
        return np.asarray(np.maximum(self.high - self.low, 0).sum(0), dtype=np.float32)

    def overlap(self, low: Floats, high: Floats) -> Floats:
        """Length shared with one interval per ray."""
        shared = np.minimum(self.high, high) - np.maximum(self.low, low)
        return np.asarray(np.maximum(shared, 0).sum(0), dtype=np.float32)

    def within(self, low: Floats, high: Floats) -> Intervals:
        """The parts inside one interval per ray."""
        return Intervals(np.maximum(self.low, low), np.minimum(self.high, high)).pruned()

    def within_either(self, first: tuple[Floats, Floats], second: tuple[Floats, Floats]) -> Intervals:
        """The parts inside the union of two intervals per ray."""
        a, b = first
        c, d = second
        empty = b <= a
        before = (c, np.where(empty, d, np.minimum(d, a)))
        after = (np.where(empty, d, np.maximum(c, b)), d)
        parts = [self.within(a, b), self.within(*before), self.within(*after)]
        return Intervals(np.concatenate([p.low for p in parts]), np.concatenate([p.high for p in parts])).pruned()

    def window(self, window: Window) -> Intervals:
        return Intervals(self.low[:, window[0], window[1]], self.high[:, window[0], window[1]])

    def pruned(self) -> Intervals:
        """Drop layers that are empty on every ray."""
        keep = (self.high > self.low).any(axis=(1, 2))
        return Intervals(self.low[keep], self.high[keep])


@dataclass(slots=True)
class Rays:
    """The rays of one detector: ``rows`` x ``columns`` pixels, row axis to the feet, column axis ``across``.

    ``source`` and ``origin`` (middle of the detector) in mm, ``pixel_mm`` on the detector.
    """

    source: NDArray[np.float64]
    origin: NDArray[np.float64]
    across: NDArray[np.float64]
    rows: int
    columns: int
    pixel_mm: float
    u: Floats = field(init=False)
    v: Floats = field(init=False)
    length_mm: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.u = ((np.arange(self.columns) - (self.columns - 1) / 2) * self.pixel_mm).astype(np.float32)[None, :]
        self.v = (((self.rows - 1) / 2 - np.arange(self.rows)) * self.pixel_mm).astype(np.float32)[:, None]
        middle = self.origin - self.source
        squared = (
            float(middle @ middle)
            + (2 * float(middle @ self.across) * self.u + self.u**2)
            + (2 * float(middle[2]) * self.v + self.v**2)
        )
        self.length_mm = np.sqrt(squared).astype(np.float32)

    def project(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Detector position (N, 2) as (row, column), in fractional pixels, of points (N, 3)."""
        normal = np.cross(self.across, [0.0, 0.0, 1.0])
        t = ((self.origin - self.source) @ normal) / ((points - self.source) @ normal)
        hit = self.source + t[:, None] * (points - self.source) - self.origin
        column = hit @ self.across / self.pixel_mm + (self.columns - 1) / 2
        row = (self.rows - 1) / 2 - hit[:, 2] / self.pixel_mm
        return np.stack([row, column], axis=1)

    def window(self, shape: Shape, margin: int = 2) -> Window | None:
        """Rows and columns that the shape's shadow may touch; None if it falls beside the detector."""
        spots = self.project(corners(shape))
        low = np.floor(spots.min(0)).astype(int) - margin
        high = np.ceil(spots.max(0)).astype(int) + margin + 1
        r0, r1 = max(low[0], 0), min(high[0], self.rows)
        c0, c1 = max(low[1], 0), min(high[1], self.columns)
        return (slice(int(r0), int(r1)), slice(int(c0), int(c1))) if r0 < r1 and c0 < c1 else None

    def interval(self, solid: Solid, window: Window | None = None) -> tuple[Floats, Floats]:
        """Where each ray of the window enters and leaves the solid, as t; (far, -far) where it misses."""
        rows, columns = window or (slice(None), slice(None))
        u, v = self.u[:, columns], self.v[rows]
        if isinstance(solid, Ellipsoid):
            return self._ellipsoid(solid, u, v)
        return self._box(solid, u, v)

    def _local(self, solid: Solid) -> tuple[NDArray[np.float64], ...]:
        """Start, middle direction and the two steps, in the solid's own axes."""
        turn = rotation(solid.tilt_deg, solid.turn_deg)
        start = (self.source - np.asarray(solid.center)) @ turn
        return start, (self.origin - self.source) @ turn, self.across @ turn, np.array([0.0, 0.0, 1.0]) @ turn

    def _ellipsoid(self, solid: Ellipsoid, u: Floats, v: Floats) -> tuple[Floats, Floats]:
        start, middle, du, dv = (part / np.asarray(solid.semi) for part in self._local(solid))
        # |s + t d|^2 = 1 is a quadratic in t; s and d are linear in u and v, so its coefficients are polynomials. t is
        # counted from the depth of the middle: from the source, b^2 - a c would cancel in single precision.
        t0 = -float(start @ middle) / float(middle @ middle)
        near = start + t0 * middle
        q = np.float32(du @ du) * u**2 + np.float32(dv @ dv) * v**2 + np.float32(2 * (du @ dv)) * (u * v)
        a = (np.float32(middle @ middle) + np.float32(2 * (middle @ du)) * u) + np.float32(2 * (middle @ dv)) * v + q
        b = (np.float32(near @ middle) + np.float32(near @ du + t0 * (middle @ du)) * u) + (
            np.float32(near @ dv + t0 * (middle @ dv)) * v + np.float32(t0) * q
        )
        c = (np.float32(near @ near - 1.0) + np.float32(2 * t0 * (near @ du)) * u) + (
            np.float32(2 * t0 * (near @ dv)) * v + np.float32(t0 * t0) * q
        )
        root = b * b - a * c
        hit = root > 0
        half = np.sqrt(np.where(hit, root, 0))
        center = np.float32(t0) - b / a
        half /= a
        return np.where(hit, center - half, _FAR), np.where(hit, center + half, -_FAR)

    def _box(self, solid: Box, u: Floats, v: Floats) -> tuple[Floats, Floats]:
        start, middle, du, dv = self._local(solid)
        low: Floats = np.full((v.shape[0], u.shape[1]), -_FAR, dtype=np.float32)
        high: Floats = np.full_like(low, _FAR)
        for axis in range(3):
            slope = (middle[axis] + du[axis] * u + dv[axis] * v).astype(np.float32)
            slope = np.where(np.abs(slope) < 1e-6, np.float32(1e-6), slope)
            near = (-solid.half[axis] - start[axis]) / slope
            far = (solid.half[axis] - start[axis]) / slope
            low = np.maximum(low, np.minimum(near, far)).astype(np.float32)
            high = np.minimum(high, np.maximum(near, far)).astype(np.float32)
        hit = high > low
        return np.where(hit, low, _FAR), np.where(hit, high, -_FAR)

    def add_tube(self, tube: Tube, into: Floats, scale: float = 1.0) -> None:
        """Add the chord lengths in mm through a tube, times ``scale``, to an image (rows, columns).

        A tube's segments join smoothly, so a ray counts once: the longest chord over the segments, each that of a
        cylinder met at its angle (cut at four diameters where the ray runs along it).
        """
        window = self.window(tube)
        if window is None:
            return
        chord: Floats = np.zeros((window[0].stop - window[0].start, window[1].stop - window[1].start), np.float32)
        points = np.asarray(tube.points, dtype=np.float64)
        spots = self.project(points)
        zoom = np.linalg.norm(self.origin - self.source) / np.linalg.norm(points - self.source, axis=1)
        radii = tube.radii()
        for i in range(len(points) - 1):
            along = points[i + 1] - points[i]
            ray = (points[i] + points[i + 1]) / 2 - self.source
            cosine = float(along @ ray / max(np.linalg.norm(along) * np.linalg.norm(ray), 1e-9))
            stretch = min(1.0 / np.sqrt(max(1.0 - cosine * cosine, 1e-6)), 4.0)
            ends = (spots[i], spots[i + 1])
            shadow = (radii[i] * zoom[i] / self.pixel_mm, radii[i + 1] * zoom[i + 1] / self.pixel_mm)
            _draw_segment(chord, window, ends, shadow, 2 * stretch * float(radii[i] + radii[i + 1]) / 2)
        into[window] += np.float32(scale) * chord


def _draw_segment(
    chord: Floats,
    window: Window,
    ends: tuple[NDArray[np.float64], NDArray[np.float64]],
    radii_px: tuple[float, float],
    thickness_mm: float,
) -> None:
    """Raise ``chord`` to the profile of one cylinder; shadows under a pixel wide keep their area."""
    wide = max(*radii_px, 0.75)
    low = np.floor(np.minimum(*ends) - wide).astype(int) - (window[0].start, window[1].start)
    high = np.ceil(np.maximum(*ends) + wide).astype(int) + 1 - (window[0].start, window[1].start)
    r0, c0 = max(int(low[0]), 0), max(int(low[1]), 0)
    r1, c1 = min(int(high[0]), chord.shape[0]), min(int(high[1]), chord.shape[1])
    if r0 >= r1 or c0 >= c1:
        return
    y = np.arange(r0, r1, dtype=np.float32)[:, None] + np.float32(window[0].start - ends[0][0])
    x = np.arange(c0, c1, dtype=np.float32)[None, :] + np.float32(window[1].start - ends[0][1])
    step = ends[1] - ends[0]
    along = np.clip((y * step[0] + x * step[1]) / max(float(step @ step), 1e-6), 0, 1)
    squared = (y - along * step[0]) ** 2 + (x - along * step[1]) ** 2
    radius = radii_px[0] + along * (radii_px[1] - radii_px[0])
    drawn = np.maximum(radius, 0.75)
    profile = np.sqrt(np.maximum(1 - squared / drawn**2, 0)) * (radius / drawn) * thickness_mm
    patch = chord[r0:r1, c0:c1]
    np.maximum(patch, profile, out=patch, casting="same_kind")


def difference(low: Floats, high: Floats, holes: list[tuple[Floats, Floats]]) -> Intervals:
    """One interval per ray minus the union of ``holes``."""
    if not holes:
        return Intervals(low[None], high[None])
    starts = np.stack([h[0] for h in holes])
    # A hole that a ray misses goes last and ends nowhere, or the gap before it would count twice.
    ends = np.where(starts >= _FAR, _FAR, np.stack([h[1] for h in holes]))
    order = np.argsort(starts, axis=0)
    starts = np.take_along_axis(starts, order, 0)
    ends = np.maximum.accumulate(np.take_along_axis(ends, order, 0), axis=0)
    lows = np.concatenate([low[None], np.maximum(low[None], ends)])
    highs = np.concatenate([np.minimum(high[None], starts), high[None]])
    return Intervals(lows, highs).pruned()


def union_length(parts: list[tuple[Floats, Floats]]) -> Floats:
    """Length covered by the union of one interval per ray and solid."""
    starts = np.stack([p[0] for p in parts])
    ends = np.stack([p[1] for p in parts])
    order = np.argsort(starts, axis=0)
    starts = np.take_along_axis(starts, order, 0)
    ends = np.take_along_axis(ends, order, 0)
    reached = np.maximum.accumulate(ends, axis=0)
    before = np.concatenate([np.full_like(starts[:1], -_FAR), reached[:-1]])
    return np.asarray(np.maximum(ends - np.maximum(starts, before), 0).sum(0), dtype=np.float32)
