"""Radiographs of a scene: exact line integrals, Beer-Lambert, scatter, noise, blur and a display curve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from radweave.phantom.anatomy import SIDES, Side
from radweave.phantom.rays import Intervals, Rays, Window, difference, union_length
from radweave.phantom.scene import AIR_HU, SOFT_HU, Item, Scene
from radweave.phantom.shapes import Ellipsoid, Floats, Solid, Tube

Projection = Literal["PA", "AP", "LATERAL"]

# Attenuation of water at the mean energy of a 120 kV chest beam (about 65 keV), per mm.
WATER_PER_MM = 0.0195


@dataclass(frozen=True, slots=True)
class Exposure:
    """How one radiograph was taken. ``photons`` per pixel in air; ``shift_mm`` moves the detector (columns, rows)."""

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
    """Line integrals along one set of rays. What scenes share is computed once: keys are the frozen solids."""

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
        """HU-mm of items that nothing clips."""
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
        """Where the rays run through aerated lung; what stands in the cavity is added to ``hu_t``."""
        found = self._space(tuple(scene.solids), scene.cavities[side])
        if found is None:
            return None
        window, space = found
        for filling in scene.fillings[side]:
            before = space.length()
            kept = [self.rays.interval(solid, window) for solid in filling.kept]
            space = space.within_either(kept[0], kept[1])
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
