"""CT volumes of a scene: solids painted on a voxel grid in HU, with partial volume, blur and noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from radweave.phantom.anatomy import (
    SIDES,
    Anatomy,
    Ellipsoid,
    Floats,
    Scaling,
    Shape,
    Side,
    Solid,
    Tube,
    Vector,
    corners,
    rotation,
    sign,
    size_of,
)
from radweave.phantom.findings import Finding, add_devices
from radweave.phantom.lesions import Apply, add_atelectasis, add_consolidation, cloud, draw_findings, point_of, spot
from radweave.phantom.scene import AIR_HU, BLOOD_HU, LUNG_HU, SOFT_HU, Filling, Item, Organ, Scene

Region = tuple[slice, slice, slice]


@dataclass(frozen=True, slots=True)
class Scan:
    """Geometry and noise of one volume. Axes are (z, y, x): to the head, to the back, to the patient's left."""

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
        """Affine of the array transposed to (x, y, z), to NIfTI's axes (right to left, back to front, feet to head)."""
        z, y, x = (float(line.reshape(-1)[0]) for line in self.coordinates())
        sz, sy, sx = self.spacing_mm
        return np.array([[-sx, 0, 0, -x], [0, -sy, 0, -y], [0, 0, sz, z], [0, 0, 0, 1]], dtype=np.float64)


@dataclass(slots=True)
class _Chest:
    """The chest of a scene by voxel: HU without lesions, and the share of lung."""

    hu: Floats
    lung: Floats


class Voxels:
    """Volumes on one grid. Parts that scenes share are computed once, with the frozen solids as keys."""

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
                part = None if isinstance(item.shape, Tube) else self._share(item.shape)
                if part is not None:
                    (aerated if item.in_lung else hu)[part[0]] += part[1] * np.float32(item.hu)
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
                lung_space = space * self._union(filling.lung)
                hu += (space - lung_space) * np.float32(filling.hu)
                space = lung_space
            hu += space * np.float32(scene.lung_hu[side])
            lung += space
        return _Chest(hu, np.minimum(lung, 1))

    def _paint(self, hu: Floats, organ: Organ) -> None:
        part = self._share(organ.solid)
        if part is not None:
            region, share = part
            hu[region] += share * (np.float32(organ.hu) - hu[region])

    def _union(self, solids: Sequence[Solid]) -> Floats:
        total: Floats = np.zeros(self.scan.shape, dtype=np.float32)
        for solid in solids:
            part = self._share(solid)
            if part is not None:
                np.maximum(total[part[0]], part[1], out=total[part[0]])
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


# Effect of each of the 18 CT abnormalities on the chest.


def make_ct_scene(anatomy: Anatomy, findings: Sequence[Finding]) -> Scene:
    """The chest of a supine patient with arms up; resolved findings are not drawn."""
    return draw_findings(anatomy, findings, _APPLY, {"Pleural effusion": 1}, arms_up=True)


def _grade(f: Finding, mild: float, moderate: float, severe: float) -> float:
    return {"mild": mild, "moderate": moderate, "severe": severe}[f.severity]


def _arterial(f: Finding, side: Side, a: Anatomy, scene: Scene, rng: np.random.Generator) -> list[Item]:
    """Plaques on the wall of the arch and the descending aorta."""
    arch, descending = a.mediastinum_solids()[3:5]
    items = []
    for k in range(int(_grade(f, 5, 8, 12))):
        solid = arch if k % 2 == 0 else descending
        angle = float(rng.uniform(0, 2 * np.pi))
        up = float(rng.uniform(-0.55, 0.75))
        ring = float(np.sqrt(1 - up * up))
        direction = np.array([ring * np.cos(angle), ring * np.sin(angle), up])
        where = point_of(np.asarray(solid.center) + direction * np.asarray(solid.semi) * 0.95)
        r = float(rng.uniform(2.8, 4.6))
        items.append(Item(Ellipsoid(where, (r, r, 1.5 * r)), float(rng.uniform(650, 1000))))
    return items


def _coronary(f: Finding, side: Side, a: Anatomy, scene: Scene, rng: np.random.Generator) -> list[Item]:
    """Calcium along the left anterior descending and the right coronary artery."""
    heart = a.heart()
    down = np.array([(-0.05, -0.92, 0.5), (0.3, -0.95, 0.05), (0.55, -0.72, -0.35)])
    right = np.array([(-0.45, -0.75, 0.35), (-0.68, -0.55, -0.2)])
    courses = [np.asarray(heart.center) + share * np.asarray(heart.semi) for share in (down, right)]
    items = []
    for k, path in enumerate(courses[: 1 if f.severity == "mild" else 2]):
        for _ in range(int(_grade(f, 2, 3, 5)) - k):
            start = int(rng.integers(len(path) - 1))
            t, width = float(rng.uniform(0.05, 0.6)), float(rng.uniform(0.2, 0.35))
            ends = [path[start] + (path[start + 1] - path[start]) * x for x in (t, t + width)]
            items.append(Item(Tube((point_of(ends[0]), point_of(ends[1])), 2.4), float(rng.uniform(550, 900))))
    return items


def _pericardial(f: Finding, side: Side, a: Anatomy, scene: Scene, rng: np.random.Generator) -> list[Item]:
    """A shell of fluid round the heart, with the heart painted back inside."""
    heart = a.heart()
    semi = (heart.semi[0] + f.size_mm, heart.semi[1] + f.size_mm, heart.semi[2] + f.size_mm)
    sac = replace(heart, semi=semi, center=(heart.center[0], heart.center[1], heart.center[2] - 2))
    scene.solids.append(sac)
    scene.organs += [Organ(sac, 4.0), Organ(heart, BLOOD_HU)]
    return []


def _hernia(f: Finding, side: Side, a: Anatomy, scene: Scene, rng: np.random.Generator) -> list[Item]:
    r = f.size_mm / 2
    low = (a.dome_top_mm("left") + a.dome_top_mm("right")) / 2
    sac = Ellipsoid((4.0, 34 * a.depth, low + 0.45 * r), (1.1 * r, 0.85 * r, 1.15 * r))
    scene.solids.append(sac)
    scene.late_organs.append(Organ(sac, 32.0))
    gas = Ellipsoid((4.0, 34 * a.depth - 0.35 * r, low + 0.6 * r), (0.62 * r, 0.36 * r, 0.6 * r))
    scene.late_organs.append(Organ(gas, -900.0))
    return []


def _nodes(f: Finding, side: Side, a: Anatomy, scene: Scene, rng: np.random.Generator) -> list[Item]:
    """Enlarged nodes at paratracheal, prevascular, subcarinal and hilar stations."""
    h = a.height
    roots = [a.root(s) for s in SIDES]
    stations: list[Vector] = [(-15, 6, 66 * h), (10, -28, 62 * h), (-12, -26, 84 * h), (2, 22, 14 * h), (-4, 24, 0.0)]
    stations += [(r[0] * 1.12, r[1] + 8, r[2] - 8) for r in roots]
    for k in rng.permutation(len(stations))[: max(f.count, 3)]:
        r = f.size_mm / 2 * float(rng.uniform(0.85, 1.1))
        node = Ellipsoid(stations[int(k)], (r, 0.8 * r, 1.15 * r))
        scene.solids.append(node)
        scene.late_organs.append(Organ(node, 48.0))
    return []


def _emphysema(f: Finding, side: Side, a: Anatomy, scene: Scene, rng: np.random.Generator) -> list[Item]:
    """Lucent holes, more of them in the upper zones, in a lung that is less dense as a whole."""
    scene.lung_hu = {**scene.lung_hu, side: scene.lung_hu[side] - _grade(f, 25, 45, 65)}
    items = []
    for _ in range(int(_grade(f, 14, 24, 36))):
        zone = ("upper", "upper", "mid")[int(rng.integers(3))]
        r = float(rng.uniform(5, _grade(f, 9, 12, 16)))
        items.append(Item(Ellipsoid(spot(a, side, zone, rng, reach=0.92), (r, r, r)), -130.0, in_lung=True))
    return items


def _nodule(f: Finding, side: Side, a: Anatomy, scene: Scene, rng: np.random.Generator) -> list[Item]:
    items = []
    for _ in range(f.count):
        r = f.size_mm / 2 * float(rng.uniform(0.85, 1.0))
        items.append(Item(Ellipsoid(spot(a, side, f.zone, rng, reach=0.85), (r, r, r)), 870.0, in_lung=True))
    return items


def _opacity(f: Finding, side: Side, a: Anatomy, scene: Scene, rng: np.random.Generator) -> list[Item]:
    """Ground glass: haze that leaves vessels visible."""
    items = []
    for _ in range(int(_grade(f, 1, 2, 3))):
        items += cloud(spot(a, side, f.zone, rng, reach=0.85), f.size_mm, _grade(f, 170, 210, 250), rng, puffs=12)
    return items


def _fibrosis(f: Finding, side: Side, a: Anatomy, scene: Scene, rng: np.random.Generator) -> list[Item]:
    """Bands and scars that run to the pleura."""
    items = []
    for _ in range(int(_grade(f, 5, 8, 11))):
        center = np.asarray(spot(a, side, f.zone, rng, reach=0.8))
        outward = np.array([sign(side) * rng.uniform(0.5, 1), rng.uniform(-0.6, 0.6), rng.uniform(-0.3, 0.3)])
        for _ in range(2):
            end = center + (outward + rng.normal(0, 0.25, 3)) * f.size_mm
            items.append(Item(Tube((point_of(center), point_of(end)), 2.7, 1.8), 850.0, in_lung=True))
        items.append(Item(Ellipsoid(point_of(center), (6.0, 5.0, 5.0)), 700.0, in_lung=True))
    return items


def _effusion(f: Finding, side: Side, a: Anatomy, scene: Scene, rng: np.random.Generator) -> list[Item]:
    """Free fluid in a supine chest: a crescent along the back."""
    lower, upper = scene.cavities[side]
    depth = f.size_mm / (2 * 88 * a.depth)
    lift = Scaling((sign(side) * 62 * a.width, -86 * a.depth, 70.0), (1 - 0.25 * depth, 1 - depth, 1.0 - 0.12 * depth))
    scene.fillings[side].append(Filling((lift.ellipsoid(lower), lift.ellipsoid(upper)), 12.0))
    return []


def _mosaic(f: Finding, side: Side, a: Anatomy, scene: Scene, rng: np.random.Generator) -> list[Item]:
    """Patches of darker and of denser lung side by side."""
    items = []
    for k in range(12):
        zone = ("upper", "mid", "lower")[k % 3]
        semi = rng.uniform(15, 27, 3)
        hu = (1 if k % 2 else -1) * _grade(f, 65, 85, 105)
        items.append(Item(Ellipsoid(spot(a, side, zone, rng, reach=0.9), point_of(semi)), hu, in_lung=True))
    return items


def _bronchi(
    f: Finding, side: Side, a: Anatomy, rng: np.random.Generator, outer_mm: float, inner_mm: float, zone: str
) -> list[Item]:
    """Airways from the root outwards, with walls thick enough to be seen."""
    root = np.asarray(a.root(side))
    items = []
    for _ in range(int(_grade(f, 4, 6, 8))):
        end = np.asarray(spot(a, side, zone, rng, reach=0.8))
        path = [root + (end - root) * t for t in (0.3, 0.6, 0.95)]
        line = tuple(point_of(p + rng.normal(0, 3, 3)) for p in path)
        items.append(Item(Tube(line, outer_mm, outer_mm * 0.85), 780.0, in_lung=True))
        items.append(Item(Tube(line, inner_mm, inner_mm * 0.85), -930.0, in_lung=True))
    return items


def _septa(f: Finding, side: Side, a: Anatomy, scene: Scene, rng: np.random.Generator) -> list[Item]:
    """A net of lines in the outer lung."""
    items = []
    for _ in range(int(_grade(f, 16, 24, 34))):
        z = a.dome_top_mm(side) + float(rng.uniform(5, 150))
        half_x, half_y = a.outer_half_width(z)
        angle = float(rng.uniform(-1.1, 1.1))
        rim = np.array([sign(side) * half_x * np.cos(angle), half_y * np.sin(angle), z])
        inward = np.array([-sign(side) * rng.uniform(0.6, 1), rng.normal(0, 0.4), rng.normal(0, 0.3)]) * 24
        side_step = np.array([0, rng.uniform(-1, 1), rng.uniform(-1, 1)]) * 16
        for line in ((rim, rim + inward), (rim + inward * 0.5, rim + inward * 0.5 + side_step)):
            items.append(Item(Tube((point_of(line[0]), point_of(line[1])), 1.9), 850.0, in_lung=True))
    return items


_APPLY: dict[str, Apply] = {
    "Medical material": add_devices,
    "Arterial wall calcification": _arterial,
    "Coronary artery wall calcification": _coronary,
    "Pericardial effusion": _pericardial,
    "Hiatal hernia": _hernia,
    "Lymphadenopathy": _nodes,
    "Emphysema": _emphysema,
    "Atelectasis": add_atelectasis,
    "Lung nodule": _nodule,
    "Lung opacity": _opacity,
    "Pulmonary fibrotic sequela": _fibrosis,
    "Pleural effusion": _effusion,
    "Mosaic attenuation pattern": _mosaic,
    "Peribronchial thickening": lambda f, side, a, scene, rng: _bronchi(f, side, a, rng, 6.2, 2.0, "mid"),
    "Consolidation": add_consolidation,
    "Bronchiectasis": lambda f, side, a, scene, rng: _bronchi(
        f, side, a, rng, _grade(f, 7.5, 8.5, 10), _grade(f, 5.6, 6.6, 8), f.zone
    ),
    "Interlobular septal thickening": _septa,
}
