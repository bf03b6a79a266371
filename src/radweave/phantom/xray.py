"""Radiographs of a scene: exact line integrals, Beer-Lambert, scatter, noise, blur and a display curve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from radweave.phantom.anatomy import SIDES, Box, Ellipsoid, Floats, Shape, Side, Solid, Tube, corners, rotation
from radweave.phantom.scene import AIR_HU, SOFT_HU, Item, Scene

# Rays of a radiograph and the closed-form lengths they run inside solids.
#
# A ray is p(t) = source + t * (pixel - source), so t = 1 at the detector. Every convex solid cuts it in one interval
# of t; unions and differences of solids are unions and differences of intervals, so that the line integrals are exact.


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
        """Entry and exit of each ray of the window through the solid, as t; (far, -far) without an intersection."""
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

    def add_tubes(self, tubes: Sequence[Tube], scales: Sequence[float], into: Floats) -> None:
        """Add the chord lengths in mm through tubes, each times its scale, to an image (rows, columns).

        A tube's segments join smoothly, so a ray counts once per tube: the longest chord over its segments, each that
        of a cylinder met at its angle (cut at four diameters where the ray runs along it).
        """
        if not tubes:
            return
        points = np.concatenate([np.asarray(t.points, dtype=np.float64) for t in tubes])
        radii = np.concatenate([t.radii() for t in tubes])
        spots = self.project(points)
        far = np.linalg.norm(points - self.source, axis=1)
        shadow = radii * (np.linalg.norm(self.origin - self.source) / far) / self.pixel_mm
        along = np.diff(points, axis=0)
        ray = (points[:-1] + points[1:]) / 2 - self.source
        cosine = (along * ray).sum(1) / np.maximum(np.linalg.norm(along, axis=1) * np.linalg.norm(ray, axis=1), 1e-9)
        thick = (radii[:-1] + radii[1:]) * np.minimum(1.0 / np.sqrt(np.maximum(1.0 - cosine**2, 1e-6)), 4.0)
        start = 0
        for tube, scale in zip(tubes, scales, strict=True):
            end = start + len(tube.points)
            own, wide = spots[start:end], shadow[start:end]
            low = np.floor((own - np.maximum(wide, 1)[:, None]).min(0)).astype(int)
            high = np.ceil((own + np.maximum(wide, 1)[:, None]).max(0)).astype(int) + 1
            r0, r1 = max(int(low[0]), 0), min(int(high[0]), self.rows)
            c0, c1 = max(int(low[1]), 0), min(int(high[1]), self.columns)
            if r0 < r1 and c0 < c1:
                chord: Floats = np.zeros((r1 - r0, c1 - c0), np.float32)
                for i in range(len(own) - 1):
                    ends = own[i : i + 2] - (r0, c0)
                    _draw_segment(chord, ends, (float(wide[i]), float(wide[i + 1])), float(thick[start + i]))
                into[r0:r1, c0:c1] += np.float32(scale) * chord
            start = end


def _draw_segment(chord: Floats, ends: NDArray[np.float64], radii_px: tuple[float, float], thickness_mm: float) -> None:
    """Raise ``chord`` to the profile of one cylinder; shadows under a pixel wide keep their area."""
    (y0, x0), (y1, x1) = ends.tolist()
    wide = max(*radii_px, 0.75)
    r0, r1 = max(math.floor(min(y0, y1) - wide), 0), min(math.ceil(max(y0, y1) + wide) + 1, chord.shape[0])
    c0, c1 = max(math.floor(min(x0, x1) - wide), 0), min(math.ceil(max(x0, x1) + wide) + 1, chord.shape[1])
    if r0 >= r1 or c0 >= c1:
        return
    y = np.arange(r0 - y0, r1 - y0 - 0.5, dtype=np.float32)[:, None]
    x = np.arange(c0 - x0, c1 - x0 - 0.5, dtype=np.float32)[None, :]
    dy, dx = y1 - y0, x1 - x0
    scale = 1.0 / max(dy * dy + dx * dx, 1e-6)
    along = np.minimum(np.maximum(y * np.float32(dy * scale) + x * np.float32(dx * scale), 0), 1)
    squared = (y - along * np.float32(dy)) ** 2 + (x - along * np.float32(dx)) ** 2
    radius = np.float32(radii_px[0]) + along * np.float32(radii_px[1] - radii_px[0])
    drawn = np.maximum(radius, np.float32(0.75))
    profile = np.sqrt(np.maximum(drawn * drawn - squared, 0)) * (radius / (drawn * drawn)) * np.float32(thickness_mm)
    patch = chord[r0:r1, c0:c1]
    np.maximum(patch, profile, out=patch)


def difference(low: Floats, high: Floats, holes: Sequence[tuple[Floats, Floats]]) -> Intervals:
    """One interval per ray minus the union of ``holes``.

    After k holes have begun and k have ended there is a gap, from the k-th end to the next start, if it is not empty:
    starts and ends can be sorted on their own. A hole that a ray misses begins and ends beyond everything.
    """
    if not holes:
        return Intervals(low[None], high[None])
    starts = _sorted_layers([h[0] for h in holes])
    ends = _sorted_layers([np.where(h[0] >= _FAR, _FAR, h[1]) for h in holes])
    lows = [low, *(np.maximum(low, e) for e in ends)]
    highs = [*(np.minimum(high, s) for s in starts), high]
    return Intervals(np.stack(lows), np.stack(highs)).pruned()


def union_length(parts: Sequence[tuple[Floats, Floats]]) -> Floats:
    """Length covered by the union of one interval per ray and solid: all lengths less what neighbours share."""
    starts = _sorted_layers([p[0] for p in parts])
    ends = _sorted_layers([np.where(p[0] >= _FAR, _FAR, p[1]) for p in parts])
    total = sum((end - start for end, start in zip(ends, starts, strict=True)), np.zeros_like(starts[0]))
    for end, start in zip(ends[:-1], starts[1:], strict=True):
        total = total - np.maximum(end - start, 0)
    return np.asarray(total, dtype=np.float32)


def _sorted_layers(layers: list[Floats]) -> list[Floats]:
    """Sort along the list, pixel by pixel: a network of whole-image minima and maxima (odd-even transposition)."""
    layers = list(layers)
    for turn in range(len(layers)):
        for i in range(turn % 2, len(layers) - 1, 2):
            a, b = layers[i], layers[i + 1]
            layers[i], layers[i + 1] = np.minimum(a, b), np.maximum(a, b)
    return layers


Projection = Literal["PA", "AP", "LATERAL"]

# Attenuation of water at the mean energy of a 120 kV chest beam (about 65 keV), per mm.
WATER_PER_MM = 0.0195


@dataclass(frozen=True, slots=True)
class Exposure:
    """Exposure of one radiograph. ``photons`` per pixel in air; ``shift_mm`` moves the detector (columns, rows)."""

    projection: Projection
    size: int = 256
    field_mm: float = 400.0
    turn_deg: float = 0.0
    shift_mm: tuple[float, float] = (0.0, 0.0)
    photons: float = 30_000.0
    blur_px: float = 0.55
    contrast: float = 1.0
    brightness: float = 0.0
    seed: int = 0


def make_rays(exposure: Exposure) -> Rays:
    """PA: source 1.8 m behind; AP: 1.05 m in front (the heart is magnified); lateral: 1.8 m from the right."""
    distance = 1050.0 if exposure.projection == "AP" else 1800.0
    forward = {"PA": (0.0, -1.0), "AP": (0.0, 1.0), "LATERAL": (1.0, 0.0)}[exposure.projection]
    across = {"PA": (1.0, 0.0), "AP": (1.0, 0.0), "LATERAL": (0.0, 1.0)}[exposure.projection]
    a = np.deg2rad(exposure.turn_deg)
    turn = np.array([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]])
    f, c = turn @ np.asarray(forward), turn @ np.asarray(across)
    ahead, sideways = np.array([f[0], f[1], 0.0]), np.array([c[0], c[1], 0.0])
    gap = 190.0 if exposure.projection == "LATERAL" else 140.0
    middle = np.array([0.0, 0.0, -12.0 + exposure.shift_mm[1]]) + sideways * exposure.shift_mm[0]
    return Rays(
        source=middle - ahead * (distance - gap),
        origin=middle + ahead * gap,
        across=sideways,
        rows=exposure.size,
        columns=exposure.size,
        pixel_mm=exposure.field_mm / exposure.size,
    )


class Projector:
    """Line integrals along one set of rays. Parts that scenes share are computed once, by frozen solids."""

    def __init__(self, exposure: Exposure) -> None:
        self.rays = make_rays(exposure)
        self._bodies: dict[tuple[Solid, ...], Floats] = {}
        self._spaces: dict[tuple[object, ...], tuple[Window, Intervals]] = {}
        self._groups: dict[tuple[Item, ...], Floats] = {}

    def depth(self, scene: Scene) -> Floats:
        """Optical depth (rows, columns): the integral of attenuation along each ray."""
        hu_t = self._body(tuple(scene.body)) * np.float32(SOFT_HU - AIR_HU)
        lungs = {side: self._lung(scene, side, hu_t) for side in SIDES}
        hu_mm = hu_t * self.rays.length_mm
        for group in scene.groups:
            loose = tuple(i for i in group if isinstance(i.shape, Tube) or not i.in_lung)
            if loose:
                hu_mm += self._group(loose)
            for item in group:
                if item.in_lung and not isinstance(item.shape, Tube):
                    self._add_clipped(item.shape, item.hu, lungs, hu_mm)
        return np.asarray(np.maximum(hu_mm, 0) * np.float32(WATER_PER_MM / 1000.0), dtype=np.float32)

    def _body(self, body: tuple[Solid, ...]) -> Floats:
        if body not in self._bodies:
            self._bodies[body] = union_length([self.rays.interval(solid) for solid in body])
        return self._bodies[body]

    def _group(self, items: tuple[Item, ...]) -> Floats:
        """HU-mm of items without clipping."""
        if items not in self._groups:
            image: Floats = np.zeros((self.rays.rows, self.rays.columns), dtype=np.float32)
            tubes = [(i.shape, i.hu) for i in items if isinstance(i.shape, Tube)]
            self.rays.add_tubes([tube for tube, _ in tubes], [hu for _, hu in tubes], image)
            for item in items:
                if isinstance(item.shape, Tube):
                    continue
                window = self.rays.window(item.shape)
                if window is not None:
                    low, high = self.rays.interval(item.shape, window)
                    image[window] += np.maximum(high - low, 0) * self.rays.length_mm[window] * np.float32(item.hu)
            self._groups[items] = image
        return self._groups[items]

    def _lung(self, scene: Scene, side: Side, hu_t: Floats) -> tuple[Window, Intervals] | None:
        """Intervals of the rays in aerated lung; fillings of the cavity are added to ``hu_t``."""
        interval = self._space(tuple(scene.solids), scene.cavities[side])
        if interval is None:
            return None
        window, space = interval
        for filling in scene.fillings[side]:
            before = space.length()
            lungs = [self.rays.interval(solid, window) for solid in filling.lung]
            space = space.within_either(*lungs)
            hu_t[window] += (before - space.length()) * np.float32(filling.hu - SOFT_HU)
        hu_t[window] += space.length() * np.float32(scene.lung_hu[side] - SOFT_HU)
        return window, space

    def _space(self, solids: tuple[Solid, ...], cavity: tuple[Ellipsoid, Ellipsoid]) -> tuple[Window, Intervals] | None:
        """A chest cavity without the solids that reach into it."""
        key = (solids, cavity)
        if key not in self._spaces:
            rays = self.rays
            windows = [w for w in (rays.window(part) for part in cavity) if w is not None]
            if len(windows) < len(cavity):
                return None
            window = (
                slice(min(w[0].start for w in windows), max(w[0].stop for w in windows)),
                slice(min(w[1].start for w in windows), max(w[1].stop for w in windows)),
            )
            holes = [rays.interval(s, window) for s in solids if _meet(rays.window(s), window)]
            lower, upper = (rays.interval(part, window) for part in cavity)
            parts = [difference(*lower, holes), difference(*upper, [*holes, lower])]
            low, high = (np.concatenate([getattr(p, end) for p in parts]) for end in ("low", "high"))
            self._spaces[key] = (window, Intervals(low, high).pruned())
        return self._spaces[key]

    def _add_clipped(
        self, solid: Solid, hu: float, lungs: dict[Side, tuple[Window, Intervals] | None], hu_mm: Floats
    ) -> None:
        """Add the HU-mm of a solid where it lies in aerated lung."""
        own = self.rays.window(solid)
        for lung in lungs.values():
            if lung is None or own is None or (shared := _meet(own, lung[0])) is None:
                continue
            inner = (
                slice(shared[0].start - lung[0][0].start, shared[0].stop - lung[0][0].start),
                slice(shared[1].start - lung[0][1].start, shared[1].stop - lung[0][1].start),
            )
            length = lung[1].window(inner).overlap(*self.rays.interval(solid, shared))
            hu_mm[shared] += length * self.rays.length_mm[shared] * np.float32(hu)


def _meet(first: Window | None, second: Window) -> Window | None:
    """The rows and columns two windows share."""
    if first is None:
        return None
    rows, columns = (slice(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(first, second, strict=True))
    return (rows, columns) if rows.start < rows.stop and columns.start < columns.stop else None


def develop(depth: Floats, exposure: Exposure, reference: Floats | None = None) -> NDArray[np.uint8]:
    """Turn optical depth into the 8-bit image a viewer shows (bright is dense).

    The display range is set on ``reference`` (the chest without findings), so that an image and its finding-free twin
    share one scale and, by the seed, one noise.
    """
    base = _blur(depth if reference is None else reference, exposure.blur_px)
    passed = np.exp(-base)
    tissue = base > 0.8
    scatter = np.float32(0.25 * passed[tissue].mean()) if tissue.any() else np.float32(0)
    expected = exposure.photons * (np.exp(-_blur(depth, exposure.blur_px)) + scatter)
    noise = np.random.default_rng(exposure.seed).standard_normal(depth.shape, dtype=np.float32)
    value = -np.log(np.maximum(expected + noise * np.sqrt(expected), 1.0) / exposure.photons)
    edge = depth.shape[1] // (3 if exposure.projection == "LATERAL" else 8)
    middle = (slice(depth.shape[0] // 6, -depth.shape[0] // 5), slice(edge, -edge))
    low, high = np.percentile(-np.log(passed[middle][tissue[middle]] + scatter), (3, 99.5))
    span = max(float(high - low), 0.4) / exposure.contrast
    # Pivot below the middle of the range: lungs get the steep part of the curve.
    shade = (value - (0.58 * low + 0.42 * high)) / span + exposure.brightness
    curve = 1.0 / (1.0 + np.exp(-3.7 * shade))
    local = curve - _blur(curve, depth.shape[0] / 28)
    return np.asarray(np.clip(255 * (curve + 0.35 * local), 0, 255), dtype=np.uint8)


def _blur(image: Floats, sigma: float) -> Floats:
    """Gaussian blur, separable, edges repeated."""
    if sigma <= 0:
        return image
    reach = max(int(np.ceil(3 * sigma)), 1)
    taps = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    taps = (taps / taps.sum()).astype(np.float32)
    for axis in (0, 1):
        padded = np.pad(image, [(reach, reach) if a == axis else (0, 0) for a in (0, 1)], mode="edge")
        windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1, axis=axis)
        image = np.asarray(windows @ taps, dtype=np.float32)
    return image
