"""CT volumes of a scene: solids painted on a voxel grid in HU, with partial volume, blur and noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from radweave.phantom.anatomy import SIDES
from radweave.phantom.scene import AIR_HU, BLOOD_HU, LUNG_HU, SOFT_HU, Item, Organ, Scene
from radweave.phantom.shapes import Ellipsoid, Floats, Shape, Solid, Tube, corners, rotation, size_of

Region = tuple[slice, slice, slice]


@dataclass(frozen=True, slots=True)
class Scan:
    """How one volume was taken. Axes are (z, y, x): to the head, to the back, to the patient's left."""

    shape: tuple[int, int, int] = (48, 96, 96)
    spacing_mm: tuple[float, float, float] = (6.0, 3.75, 3.75)
    center_mm: tuple[float, float, float] = (-14.0, 4.0, 0.0)
    noise_hu: float = 14.0
    seed: int = 0

    def coordinates(self) -> tuple[Floats, Floats, Floats]:
        """Positions in mm along z, y and x, shaped to broadcast."""
        lines = []
        for axis in range(3):
            steps = np.arange(self.shape[axis]) - (self.shape[axis] - 1) / 2
            line = (steps * self.spacing_mm[axis] + self.center_mm[axis]).astype(np.float32)
            lines.append(line.reshape([-1 if a == axis else 1 for a in range(3)]))
        return lines[0], lines[1], lines[2]

    def affine(self) -> NDArray[np.float64]:
        """Of the array transposed to (x, y, z), to NIfTI's axes (right to left, back to front, feet to head)."""
        z, y, x = (float(line.reshape(-1)[0]) for line in self.coordinates())
        sz, sy, sx = self.spacing_mm
        return np.array([[-sx, 0, 0, -x], [0, -sy, 0, -y], [0, 0, sz, z], [0, 0, 0, 1]], dtype=np.float64)


@dataclass(slots=True)
class _Chest:
    """What the lungs of a scene are made of, voxel by voxel: HU without lesions, and the share that is lung."""

    hu: Floats
    lung: Floats


class Voxels:
    """Volumes on one grid. What scenes share is computed once: keys are the frozen solids."""

    def __init__(self, scan: Scan) -> None:
        self.scan = scan
        self._z, self._y, self._x = scan.coordinates()
        self._edge = np.float32(np.mean(scan.spacing_mm))
        self._shares: dict[Solid, tuple[Region, Floats] | None] = {}
        self._tubes: dict[tuple[Item, ...], Floats] = {}
        self._bases: dict[tuple[object, ...], _Chest] = {}

    def volume(self, scene: Scene) -> Floats:
        """HU (z, y, x) without blur and noise."""
        chest = self._chest(scene)
        hu = chest.hu.copy()
        aerated: Floats = np.zeros_like(hu)
        for group in scene.groups:
            for item in group:
                found = None if isinstance(item.shape, Tube) else self._share(item.shape)
                if found is not None:
                    (aerated if item.in_lung else hu)[found[0]] += found[1] * np.float32(item.hu)
            for in_lung in (False, True):
                tubes = tuple(i for i in group if isinstance(i.shape, Tube) and i.in_lung == in_lung)
                if tubes:
                    target = aerated if in_lung else hu
                    target += self._tube_hu(tubes)
        # Lesions that overlap make lung no denser than tissue and no lighter than air.
        hu += np.clip(aerated, AIR_HU - LUNG_HU, BLOOD_HU - LUNG_HU) * chest.lung
        for organ in scene.late_organs:
            self._paint(hu, organ)
        return np.asarray(np.clip(hu, -1024, 3071), dtype=np.float32)

    def _chest(self, scene: Scene) -> _Chest:
        key = (
            tuple(scene.body),
            tuple(scene.solids),
            tuple(scene.organs),
            tuple((side, tuple(scene.fillings[side]), scene.lung_hu[side]) for side in SIDES),
        )
        if key not in self._bases:
            self._bases[key] = self._make_chest(scene)
        return self._bases[key]

    def _make_chest(self, scene: Scene) -> _Chest:
        body = self._union(scene.body)
        hu = np.float32(AIR_HU) + body * np.float32(SOFT_HU - AIR_HU)
        for organ in scene.organs:
            self._paint(hu, organ)
        free = 1 - self._union(scene.solids)
        lung: Floats = np.zeros(self.scan.shape, dtype=np.float32)
        for side in SIDES:
            space = self._union(scene.cavities[side]) * free
            hu *= 1 - space
            for filling in scene.fillings[side]:
                kept = space * self._union(filling.kept)
                hu += (space - kept) * np.float32(filling.hu)
                space = kept
            hu += space * np.float32(scene.lung_hu[side])
            lung += space
        return _Chest(hu, np.minimum(lung, 1))

    def _paint(self, hu: Floats, organ: Organ) -> None:
        found = self._share(organ.solid)
        if found is not None:
            region, share = found
            hu[region] += share * (np.float32(organ.hu) - hu[region])

    def _union(self, solids: Sequence[Solid]) -> Floats:
        total: Floats = np.zeros(self.scan.shape, dtype=np.float32)
        for solid in solids:
            found = self._share(solid)
            if found is not None:
                np.maximum(total[found[0]], found[1], out=total[found[0]])
        return total

    def _region(self, shape: Shape) -> Region | None:
        """Voxels a shape may touch."""
        hull = corners(shape)[:, ::-1]
        low, high = hull.min(0) - self._edge, hull.max(0) + self._edge
        slices = []
        for axis, line in enumerate((self._z, self._y, self._x)):
            first, last = np.searchsorted(line.reshape(-1), (low[axis], high[axis]))
            if first >= last:
                return None
            slices.append(slice(int(first), int(last)))
        return slices[0], slices[1], slices[2]

    def _share(self, solid: Solid) -> tuple[Region, Floats] | None:
        """The share of each voxel that a solid fills, 0 to 1, from the distance to its surface."""
        if solid not in self._shares:
            region = self._region(solid)
            self._shares[solid] = None if region is None else (region, self._fill(solid, region))
        return self._shares[solid]

    def _fill(self, solid: Solid, region: Region) -> Floats:
        x = self._x[:, :, region[2]] - np.float32(solid.center[0])
        y = self._y[:, region[1]] - np.float32(solid.center[1])
        z = self._z[region[0]] - np.float32(solid.center[2])
        own = rotation(solid.tilt_deg, solid.turn_deg).astype(np.float32)
        size = size_of(solid)
        if solid.tilt_deg == 0 and solid.turn_deg == 0:
            local = [x, y, z]
        else:
            local = [x * own[0, k] + y * own[1, k] + z * own[2, k] for k in range(3)]
        if isinstance(solid, Ellipsoid):
            squared = sum(((part / np.float32(s)) ** 2 for part, s in zip(local, size, strict=True)), np.float32(0))
            depth = (1 - np.sqrt(squared)) * np.float32(min(size))
        else:
            gaps = [np.float32(s) - np.abs(part) for part, s in zip(local, size, strict=True)]
            depth = np.minimum(np.minimum(gaps[0], gaps[1]), gaps[2])
        share = np.clip(0.5 + depth / self._edge, 0, 1)
        # A solid thinner than a voxel fills no more of it than its thickness.
        return np.asarray(share * min(1.0, 2 * min(size) / float(self._edge)), dtype=np.float32)

    def _tube_hu(self, items: tuple[Item, ...]) -> Floats:
        if items not in self._tubes:
            total: Floats = np.zeros(self.scan.shape, dtype=np.float32)
            for item in items:
                if isinstance(item.shape, Tube):
                    self._add_tube(item.shape, np.float32(item.hu), total)
            self._tubes[items] = total
        return self._tubes[items]

    def _add_tube(self, tube: Tube, hu: np.float32, into: Floats) -> None:
        whole = self._region(tube)
        if whole is None:
            return
        share: Floats = np.zeros([s.stop - s.start for s in whole], dtype=np.float32)
        radii = tube.radii()
        for i in range(len(tube.points) - 1):
            piece = Tube(tube.points[i : i + 2], float(radii[i]), float(radii[i + 1]))
            region = self._region(piece)
            if region is None:
                continue
            inner = tuple(slice(r.start - w.start, r.stop - w.start) for r, w in zip(region, whole, strict=True))
            np.maximum(share[inner], self._segment(piece, region), out=share[inner])
        into[whole] += hu * share

    def _segment(self, piece: Tube, region: Region) -> Floats:
        p, q = (np.asarray(point, dtype=np.float32) for point in piece.points)
        step = q - p
        x, y, z = self._x[:, :, region[2]] - p[0], self._y[:, region[1]] - p[1], self._z[region[0]] - p[2]
        along = np.clip((x * step[0] + y * step[1] + z * step[2]) / max(float(step @ step), 1e-6), 0, 1)
        away = (x - along * step[0]) ** 2 + (y - along * step[1]) ** 2 + (z - along * step[2]) ** 2
        first, last = piece.radii()
        radius = np.float32(first) + along * np.float32(last - first)
        share = np.clip(0.5 + (radius - np.sqrt(away)) / self._edge, 0, 1)
        return np.asarray(share * np.minimum(1, 2 * radius / self._edge), dtype=np.float32)


def scan_noise(volume: Floats, scan: Scan) -> NDArray[np.int16]:
    """Add noise that is smooth in the slice, as reconstruction leaves it, and round to whole HU."""
    rng = np.random.default_rng(scan.seed)
    noise = rng.standard_normal(volume.shape, dtype=np.float32)
    for axis in (1, 2):
        noise = 0.5 * noise + 0.25 * (np.roll(noise, 1, axis) + np.roll(noise, -1, axis))
    noise *= np.float32(scan.noise_hu / 0.375)  # the smoothing left 0.375 of the deviation
    return np.asarray(np.clip(np.rint(volume + noise), -1024, 3071), dtype=np.int16)
