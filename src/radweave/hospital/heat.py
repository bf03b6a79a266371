"""The maps of a draft over what they are about: radiographs as pictures, a scan as a grid in the patient's coordinates.

A map says where the model looked. It is no outline of a lesion, and there is one for absent findings too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from radweave.base.map_kinds import kind_of
from radweave.data.reading.volumes import Volume
from radweave.explain.maps import Floats, Panel, between, between_weights, middles, shown
from radweave.hospital.finished import Finding, HeatMap, PlacedMap

if TYPE_CHECKING:
    from radweave.generate.pictures import Picture

FINE: Final = 64
"""Voxels of a scan's map along each axis: viewers show each voxel as a block."""


def stack(evidence: Mapping[str, Any], name: str) -> list[Floats] | None:
    """One map for each of the evidence's ``views``; None if there is none of this name, or it does not fit them."""
    views = evidence.get("views") or []
    try:
        found = np.asarray((evidence.get("attention_maps") or {})[name], dtype=np.float64)
    except (KeyError, TypeError, ValueError):
        return None
    if not views or found.ndim < 1 or len(found) < len(views) or not found.size:
        return None
    fits = all(len(view.get("covers") or ()) == found.ndim - 1 for view in views)
    usable = bool(np.isfinite(found).all()) and bool((found >= 0).all()) and float(found.max()) > 0
    return [*found[: len(views)]] if fits and usable else None


def on_grid(
    weights: Floats, covers: Sequence[Sequence[float]], shape: tuple[int, int, int]
) -> tuple[Floats, NDArray[np.float64]]:
    """A scan's map in ``FINE`` voxels along each axis, and from their places to those of the scan's voxels (x, y, z).

    Between the middles of the map's cells values are linear.

    Args:
        weights: the map (z, y, x).
        covers: what of the scan it lies over, as (start, extent) along each axis in shares of the scan's size.
        shape: the scan's voxels (z, y, x).
    """
    placed, fine = np.eye(4), weights
    for axis, (start, extent) in enumerate(covers):
        fine = np.moveaxis(
            np.tensordot(between_weights(fine.shape[axis], middles(FINE)), fine, axes=(1, axis)), 0, axis
        )
        step = extent * shape[axis] / FINE
        placed[2 - axis, 2 - axis] = step
        # The middle of the first voxel, where a voxel's middle is a whole number.
        placed[2 - axis, 3] = start * shape[axis] + step / 2 - 0.5
    return fine, placed


def heat_maps(
    evidence: Mapping[str, Any], pictures: Sequence[tuple[str, Picture]], findings: Sequence[Finding]
) -> tuple[HeatMap, ...]:
    """The maps that matter, the most probable classes first.

    Args:
        evidence: ``attention_maps`` by name, and ``views`` with what of each picture a map ``covers``.
        pictures: what each view is called, and the picture, in the order of the views.
        findings: what is known of each class.
    """
    from radweave.explain.figures import choose

    known = {finding.name: finding for finding in findings}
    maps = {name: stack(evidence, name) for name in evidence.get("attention_maps") or {} if name in known}
    covers = [view["covers"] for view in evidence.get("views") or ()]
    note = kind_of(evidence).note
    made = []
    for name in choose([name for name, found in maps.items() if found is not None], known):
        found = maps[name]
        assert found is not None
        peak = max(float(weights.max()) for weights in found)
        each = list(zip(found, covers, pictures, strict=False))
        volumes = [(weights, cover, one) for weights, cover, (_, one) in each if isinstance(one, Volume)]
        if volumes:
            made.append(HeatMap(name, peak, placed=_placed(*volumes[0]), note=note))
            continue
        panels = tuple(_panel(title, one, weights, cover) for weights, cover, (title, one) in each
                       if not isinstance(one, Volume))  # fmt: skip
        made.append(HeatMap(name, peak, panels, note=note))
    return tuple(made)


def _panel(title: str, picture: Any, weights: Floats, covers: Sequence[Sequence[float]]) -> Panel:
    grey = shown(picture.pixels)
    rows, columns = ((middles(size) - start) / extent for size, (start, extent) in zip(grey.shape, covers, strict=True))
    return Panel(title, grey, between(weights, rows, columns))


def _placed(weights: Floats, covers: Sequence[Sequence[float]], volume: Volume) -> PlacedMap:
    z, y, x = volume.hu.shape
    fine, placed = on_grid(weights, covers, (z, y, x))
    affine = np.eye(4)
    affine[:3, :3] = volume.geometry.matrix() * np.array(volume.geometry.spacing_xyz_mm)
    affine[:3, 3] = volume.geometry.origin_lps
    return PlacedMap((fine / fine.max()).astype(np.float32), affine @ placed)
