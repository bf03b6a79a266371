"""Radiographs of a scene: exact line integrals, Beer-Lambert, scatter, noise, blur and a display curve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from radweave.phantom.anatomy import SIDES, Side
from radweave.phantom.rays import Intervals, Rays, Window, difference, union_length
from radweave.phantom.scene import AIR_HU, SOFT_HU, Item, Scene
from radweave.phantom.shapes import Floats, Tube

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


def lung_intervals(scene: Scene, rays: Rays, side: Side) -> tuple[Window, Intervals, Floats] | None:
    """Where the rays run through aerated lung, and the soft-tissue-relative HU-mm of cavity that is not lung."""
    lower, upper = scene.cavities[side]
    first, second = rays.window(lower), rays.window(upper)
    if first is None or second is None:
        return None
    window = (
        slice(min(first[0].start, second[0].start), max(first[0].stop, second[0].stop)),
        slice(min(first[1].start, second[1].start), max(first[1].stop, second[1].stop)),
    )
    holes = [rays.interval(solid, window) for solid in scene.solids if rays.window(solid) is not None]
    low = rays.interval(lower, window)
    high = rays.interval(upper, window)
    parts = [difference(*low, holes), difference(*high, [*holes, low])]
    space = Intervals(np.concatenate([p.low for p in parts]), np.concatenate([p.high for p in parts])).pruned()
    filled: Floats = np.zeros(low[0].shape, dtype=np.float32)
    for filling in scene.fillings[side]:
        before = space.length()
        space = space.within_either(*(rays.interval(solid, window) for solid in filling.kept))
        filled += (before - space.length()) * np.float32(filling.hu - SOFT_HU)
    return window, space, filled


def line_integrals(scene: Scene, rays: Rays) -> Floats:
    """Optical depth (rows, columns): the integral of attenuation along each ray."""
    body = [rays.interval(solid) for solid in scene.body]
    hu_t = union_length(body) * np.float32(SOFT_HU - AIR_HU)
    lungs: dict[Side, tuple[Window, Intervals]] = {}
    for side in SIDES:
        found = lung_intervals(scene, rays, side)
        if found is None:
            continue
        window, space, filled = found
        lungs[side] = (window, space)
        hu_t[window] += filled + space.length() * np.float32(scene.lung_hu[side] - SOFT_HU)
    hu_mm = hu_t * rays.length_mm
    for item in scene.items:
        add_item(item, rays, lungs, hu_mm)
    return np.asarray(np.maximum(hu_mm, 0) * np.float32(WATER_PER_MM / 1000.0), dtype=np.float32)


def add_item(item: Item, rays: Rays, lungs: dict[Side, tuple[Window, Intervals]], hu_mm: Floats) -> None:
    """Add one item's HU-mm to an image."""
    if isinstance(item.shape, Tube):
        rays.add_tube(item.shape, hu_mm, item.hu)
        return
    window = rays.window(item.shape)
    if window is None:
        return
    if not item.in_lung:
        low, high = rays.interval(item.shape, window)
        hu_mm[window] += np.maximum(high - low, 0) * rays.length_mm[window] * np.float32(item.hu)
        return
    for lung_window, space in lungs.values():
        rows = slice(max(window[0].start, lung_window[0].start), min(window[0].stop, lung_window[0].stop))
        columns = slice(max(window[1].start, lung_window[1].start), min(window[1].stop, lung_window[1].stop))
        if rows.start >= rows.stop or columns.start >= columns.stop:
            continue
        inner = (
            slice(rows.start - lung_window[0].start, rows.stop - lung_window[0].start),
            slice(columns.start - lung_window[1].start, columns.stop - lung_window[1].start),
        )
        shared = space.window(inner).overlap(*rays.interval(item.shape, (rows, columns)))
        hu_mm[rows, columns] += shared * rays.length_mm[rows, columns] * np.float32(item.hu)


def develop(depth: Floats, exposure: Exposure, reference: Floats | None = None) -> NDArray[np.uint8]:
    """Turn optical depth into the 8-bit image a viewer shows (bright is dense).

    The display range is set on ``reference`` (the chest without findings), so that an image and its finding-free twin
    share one scale and, by the seed, one noise.
    """
    smooth = _blur(depth, exposure.blur_px)
    scatter = np.float32(0.035) * float(np.exp(-smooth).mean())
    expected = exposure.photons * (np.exp(-smooth) + scatter)
    noise = np.random.default_rng(exposure.seed).standard_normal(depth.shape, dtype=np.float32)
    counts = np.maximum(expected + noise * np.sqrt(expected), 1.0)
    value = np.log(exposure.photons) - np.log(counts)
    base = _blur(depth if reference is None else reference, exposure.blur_px)
    size = depth.shape[0]
    middle = base[size // 8 : -size // 6, size // 8 : -size // 8]
    low, high = np.percentile(middle[middle > 0.8], (4, 92))
    span = max(float(high - low), 0.4) / exposure.contrast
    shade = (value - (low + high) / 2) / span + exposure.brightness
    curve = 1.0 / (1.0 + np.exp(-3.4 * shade))
    local = curve - _blur(curve, size / 28)
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
