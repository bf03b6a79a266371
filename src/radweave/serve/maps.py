"""The maps that a method gave with its draft, small, in 256 steps, with where they lie on the images.

A map says where the model looked. It is no outline of a lesion, and there is one for absent findings too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from radweave.base.map_kinds import kind_of
from radweave.hospital.heat import on_grid, stack

Grid = NDArray[np.uint8]


def names(evidence: Mapping[str, Any]) -> list[str]:
    """The findings that have a map which fits the study's images."""
    return [name for name in evidence.get("attention_maps") or {} if stack(evidence, name) is not None]


def read(evidence: Mapping[str, Any], name: str, method: str) -> dict[str, Any] | None:
    """A map as JSON values: for each image its values, 0 to 255 of ``peak``, and what of the image they lie over.

    ``covers`` is (start, extent) along each axis, in shares of the image's size.
    """
    found = stack(evidence, name)
    if found is None:
        return None
    grids = [
        {"image": view["image"], "shape": list(grid.shape), "covers": view["covers"], "values": grid.ravel().tolist()}
        for view, grid in zip(evidence["views"], _steps(found), strict=False)
    ]
    peak = max(float(values.max()) for values in found)
    return {"name": name, "method": method, "note": kind_of(evidence).note, "peak": peak, "grids": grids}


def on_scan(
    evidence: Mapping[str, Any], name: str, affine: NDArray[np.float64], shape: tuple[int, int, int]
) -> tuple[Grid, NDArray[np.float64]] | None:
    """A map (z, y, x) of a scan, and its affine (voxel x, y, z to mm) where that of the scan is ``affine``.

    It has ``FINE`` voxels along each axis, linear between the middles of the map's cells, for viewers show each voxel
    as a block.

    Args:
        affine: of the scan. ``shape``: its voxels (z, y, x).
    """
    found = stack(evidence, name)
    if found is None or found[0].ndim != 3:
        return None
    fine, placed = on_grid(found[0], evidence["views"][0]["covers"], shape)
    return np.rint(fine * (255 / float(found[0].max()))).astype(np.uint8), affine @ placed


def _steps(maps: list[NDArray[np.float64]]) -> list[Grid]:
    peak = max(float(values.max()) for values in maps) or 1.0
    return [np.rint(values * (255 / peak)).astype(np.uint8) for values in maps]
