"""Changed copies of an image in different files: saved anew, cut, turned, mirrored, inverted.

The signature of an image is a thumbnail of 64 x 64 grey values and a descriptor: in 8 x 8 cells, the strength of edges
of 8 directions. Edges have no sign, so an inverted image has the same descriptor, and a mirrored image or one turned by
quarters a permutation of it. The nearest descriptors of the other split are candidates; registration decides about
each of them.

Plain borders are cut off first. Since that may fail, an image with borders also has a signature with them.

Source: cells of edge directions follow Dalal and Triggs, "Histograms of Oriented Gradients", CVPR 2005.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import fft, ndimage, sparse

from radweave.core.errors import InputError
from radweave.core.json_files import read_json, write_json
from radweave.core.provenance import code_hash
from radweave.core.storage import sha256_json
from radweave.core.study import ImageRef
from radweave.data.cache.images import PixelCache
from radweave.data.dataset import Dataset
from radweave.data.leaks.identity import content_hash
from radweave.io.dicom import DOUBTFUL

# Registration of two thumbnails, and comparison of their fine structure.
#
# Chests resemble each other so much that outlines and organs say little; films of different patients differ in edges a
# few pixels wide. So a pair is aligned by shift, turn and scale, and then compared in small blocks by the correlation
# of structure finer than a rib. Grey values only count up to a monotone change, or inversion.
#
# Sources: the shift is the peak of a circular cross-correlation; the rest are Gauss-Newton steps on the squared
# difference of two images under an affine map (Lucas and Kanade, IJCAI 1981).

SIDE: Final = 64
"""Height and width of a thumbnail."""

_TURNS_DEGREES = (-2.5, 0.0, 2.5)
_SCALES = (0.93, 1.0, 1.075)
_FARTHEST_SHIFT = 10
_STEPS = 12
_CENTRE = (SIDE - 1) / 2
_BLOCK = 8
_FINE = 1.5
"""Standard deviation in pixels of the blur that separates fine structure from the rest."""

_MOST_BENT, _MOST_MOVED, _LEAST_SHARED = 0.25, 12.0, 0.6
_FEWEST_BLOCKS = 10

Picture = NDArray[np.float32]
_GRID: Final = np.indices((SIDE, SIDE)).reshape(2, -1) - _CENTRE
_WINDOW: Final = np.sqrt(np.outer(np.hanning(SIDE + 2)[1:-1], np.hanning(SIDE + 2)[1:-1])).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Alignment:
    """Affine map from target to query, in pixels (y, x) from the centre: ``bend @ p + move``."""

    bend: NDArray[np.float64]
    move: NDArray[np.float64]
    inverted: bool

    @property
    def is_near(self) -> bool:
        """True for a small change, as between a picture and its copy."""
        bent = float(np.abs(self.bend - np.eye(2)).max())
        return bent <= _MOST_BENT and float(np.abs(self.move).max()) <= _MOST_MOVED

    @property
    def is_still(self) -> bool:
        """True if no point moves by more than half a pixel."""
        corners = np.array([[-_CENTRE, -_CENTRE, _CENTRE, _CENTRE], [-_CENTRE, _CENTRE, -_CENTRE, _CENTRE]])
        return float(np.abs(self.bend @ corners + self.move[:, None] - corners).max()) <= 0.5

    def coordinates(self) -> NDArray[np.float64]:
        """Coordinates (2, SIDE * SIDE) in the query of every pixel of the target, row-major."""
        return np.asarray(self.bend @ _GRID + self.move[:, None] + _CENTRE)


@dataclass(frozen=True, slots=True)
class Similarity:
    """Correlation of the fine structure of two pictures: of the median block and of the weakest fifth.

    Both are 0 for pictures that cannot be aligned.
    """

    typical: float
    weakest: float
    alignment: Alignment


def _evened(picture: Picture, width: float) -> Picture:
    """Structure finer than ``width`` pixels, with even local contrast."""
    fine = picture - ndimage.gaussian_filter(picture, width, mode="nearest")
    contrast = np.sqrt(ndimage.gaussian_filter(fine * fine, 2 * width, mode="nearest"))
    return np.asarray(fine / (contrast + 0.3 * np.median(contrast) + 1e-4))


class Query:
    """A picture (SIDE, SIDE) in [0, 1], prepared for comparison with many targets."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        self._broad = _broad(picture)
        self._stack = np.stack([self._broad, *np.gradient(self._broad)])
        self._starts = [_turned(turn, scale) for turn in _TURNS_DEGREES for scale in _SCALES]
        moved = [self._sampled(self._broad, bend @ _GRID + _CENTRE) for bend in self._starts]
        self._spectra = fft.rfft2(np.stack(moved).reshape(-1, SIDE, SIDE) * _WINDOW)

    def similarity(self, target: Picture) -> Similarity:
        """Similarity of a target (SIDE, SIDE) to this picture."""
        alignment = self._align(_broad(target))
        if not alignment.is_near:
            return Similarity(0.0, 0.0, alignment)
        return self._compare(target, alignment)

    @staticmethod
    def _sampled(picture: Picture, places: NDArray[np.float64], order: int = 1) -> Picture:
        mode = "constant" if order == 1 else "nearest"
        return np.asarray(ndimage.map_coordinates(picture, places, order=order, mode=mode))

    def _align(self, target: Picture) -> Alignment:
        products = fft.irfft2(fft.rfft2(target * _WINDOW) * np.conj(self._spectra), s=(SIDE, SIDE))
        far = slice(_FARTHEST_SHIFT + 1, -_FARTHEST_SHIFT)
        products[:, far, :] = 0
        products[:, :, far] = 0
        start, y, x = np.unravel_index(int(np.argmax(np.abs(products))), products.shape)
        sign = -1.0 if products[start, y, x] < 0 else 1.0
        shift = np.array([y, x], np.float64)
        shift[shift > SIDE / 2] -= SIDE
        bend = self._starts[int(start)]
        return self._refine(target, bend, -(bend @ shift), sign)

    def _refine(self, target: Picture, bend: NDArray[np.float64], move: NDArray[np.float64], sign: float) -> Alignment:
        """The best alignment of a series of Gauss-Newton steps."""
        best, alignment = -1.0, Alignment(bend, move, sign < 0)
        for _ in range(_STEPS):
            places = bend @ _GRID + move[:, None] + _CENTRE
            inside = ((places >= 0) & (places <= SIDE - 1)).all(axis=0)
            if inside.mean() < _LEAST_SHARED:
                break
            grid, wanted = _GRID[:, inside], target.ravel()[inside] * sign
            here, down, right = (self._sampled(part, places[:, inside]) for part in self._stack)
            wanted, here = wanted - wanted.mean(), here - here.mean()
            lengths = float(np.linalg.norm(wanted)), float(np.linalg.norm(here)) + 1e-9
            agreement = float(wanted @ here) / (lengths[0] * lengths[1] + 1e-9)
            if agreement > best:
                best, alignment = agreement, Alignment(bend, move, sign < 0)
            slopes = np.stack([down * grid[0], down * grid[1], down, right * grid[0], right * grid[1], right])
            slopes -= slopes.mean(axis=1, keepdims=True)
            normal = slopes @ slopes.T
            normal[np.diag_indices(6)] *= 1.01
            normal[np.diag_indices(6)] += 1e-6
            step = np.linalg.solve(normal, slopes @ (wanted * (lengths[1] / (lengths[0] + 1e-9)) - here))
            bend = bend + step[[0, 1, 3, 4]].reshape(2, 2)
            move = move + step[[2, 5]]
            if np.abs(step[[2, 5]]).max() < 0.02 and np.abs(step[[0, 1, 3, 4]]).max() < 5e-4:
                break
        return alignment

    def _compare(self, target: Picture, alignment: Alignment) -> Similarity:
        places = alignment.coordinates()
        moved = self._sampled(self._picture, places, order=3).reshape(SIDE, SIDE)
        inside = ((places >= 0.5) & (places <= SIDE - 1.5)).all(axis=0).reshape(SIDE, SIDE)
        inside = ndimage.binary_erosion(inside, iterations=2, border_value=1)
        first, second = (
            _evened(ndimage.gaussian_filter(picture, 0.5, mode="nearest"), _FINE) for picture in (moved, target)
        )
        blocks = _block_means(first), _block_means(second), _block_means(inside.astype(np.float32)) > 0
        values = _correlations(*blocks) * (-1.0 if alignment.inverted else 1.0)
        if len(values) < _FEWEST_BLOCKS:
            return Similarity(0.0, 0.0, alignment)
        return Similarity(float(np.median(values)), float(np.percentile(values, 20)), alignment)


def _turned(degrees: float, scale: float) -> NDArray[np.float64]:
    angle = np.deg2rad(degrees)
    cos, sin = np.cos(angle), np.sin(angle)
    return scale * np.array([[cos, -sin], [sin, cos]])


def _broad(picture: Picture) -> Picture:
    """Structure up to the width of a rib, for the registration."""
    soft = ndimage.gaussian_filter(picture, 0.7, mode="nearest")
    structure = soft - ndimage.gaussian_filter(soft, 4, mode="nearest")
    contrast = np.sqrt(ndimage.gaussian_filter(structure * structure, 4, mode="nearest"))
    return np.asarray(structure / (contrast + 0.01))


def _block_means(picture: Picture) -> NDArray[np.float32]:
    """(SIDE, SIDE) as (blocks, pixels of a block)."""
    count = SIDE // _BLOCK
    return picture.reshape(count, _BLOCK, count, _BLOCK).swapaxes(1, 2).reshape(count * count, -1)


def _correlations(first: Picture, second: Picture, inside: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Correlation of each block that is 70 % inside and structured in both pictures."""
    shares = inside.sum(axis=1)
    count = np.maximum(shares, 1)[:, None]
    parts = []
    for blocks in (first, second):
        centred = np.where(inside, blocks - (blocks * inside).sum(axis=1, keepdims=True) / count, 0)
        parts.append((centred, np.linalg.norm(centred, axis=1)))
    (a, length_a), (b, length_b) = parts
    structured = np.minimum(length_a / np.sqrt(count[:, 0]), length_b / np.sqrt(count[:, 0])) > 0.15
    used = (shares >= 0.7 * _BLOCK * _BLOCK) & structured
    return np.asarray((a * b).sum(axis=1)[used] / (length_a * length_b)[used])


SAME_TYPICAL, SAME_WEAKEST = 0.74, 0.45
"""Least similarity of copies; docs/data.md has the distributions on both sides."""

SIMILAR_PATIENTS = 0.2
"""Similarity of the weakest blocks that marks a set of similar patients, as in a phantom."""

CANDIDATE = 0.45
"""Least similarity of the descriptors of a candidate pair."""

CANDIDATES = 3
_SAMPLE = 60
_FEWEST = 10
"""Pictures with another patient's beside them, from which a set is judged."""
_CELLS = 8
_DIRECTIONS = 8
_LEVELS = 127 / 0.3
_CHUNK = 1024
_PLAIN = 0.03
# Air to bone: values outside describe the scanner more than the patient.
_WINDOW_HU = (-1000, 400)
_SMALLEST_CUT = 0.01
_LINES = 16

Thumbnail = NDArray[np.uint8]
Descriptor = NDArray[np.int8]
Signature = tuple[Thumbnail, Descriptor]


def _cell_weights() -> NDArray[np.float32]:
    """Weight of each pixel line for each cell (cells, SIDE): tents that overlap by half."""
    width = SIDE / _CELLS
    centres = (np.arange(_CELLS) + 0.5) * width - 0.5
    weights = np.maximum(0, 1 - np.abs(np.arange(SIDE)[None] - centres[:, None]) / width)
    return weights.astype(np.float32)


_WEIGHTS: Final = _cell_weights()
# Mirrored, an edge of direction d (of 8 in half a turn) has direction -d.
_MIRRORED: Final = (-np.arange(_DIRECTIONS)) % _DIRECTIONS

Pose = tuple[bool, int]
"""Orientation of a picture: mirrored or not, then turned left by quarters; the eight symmetries of a square."""

UPRIGHT: Final[tuple[Pose, ...]] = ((False, 0), (True, 0))
TURNED: Final[tuple[Pose, ...]] = tuple((mirrored, quarters) for mirrored in (False, True) for quarters in (1, 2, 3))


@dataclass(frozen=True, slots=True)
class Copy:
    """An item and the item of another split with the same picture; ``changes`` describes the modifications."""

    item: int
    other: int
    changes: tuple[str, ...]


def thumbnail(pixels: NDArray[np.float32]) -> Thumbnail:
    """Block means (SIDE, SIDE) of an image (H, W), its darkest pixel 0 and its brightest 255."""
    high, wide = pixels.shape
    small = np.asarray(_band_weights(wide) @ (_band_weights(high) @ pixels.astype(np.float32, copy=False)).T).T.astype(
        np.float64
    )
    low, top = float(small.min()), float(small.max())
    scaled = (small - low) / (top - low) if top - low > 1e-6 else np.zeros_like(small)
    return np.rint(scaled * 255).astype(np.uint8)


@lru_cache(maxsize=64)
def _band_weights(lines: int) -> sparse.csr_array:
    """Weights (SIDE, lines) of pixel lines in the means of ``SIDE`` bands of equal width.

    A line across a border counts partly for both bands.
    """
    borders = np.linspace(0, lines, SIDE + 1)
    first = np.arange(lines)
    overlap = np.minimum(borders[1:, None], first + 1) - np.maximum(borders[:-1, None], first)
    return sparse.csr_array((overlap.clip(min=0) * (SIDE / lines)).astype(np.float32))


def descriptor(small: Thumbnail) -> Descriptor:
    """Strength of edges by direction and cell, flattened (512,); all zeros for a constant picture."""
    picture = ndimage.gaussian_filter(small.astype(np.float32) / 255, 1.0, mode="nearest")
    down, right = np.gradient(picture)
    strength = np.hypot(down, right)
    direction = np.mod(np.arctan2(down, right), np.pi) * (_DIRECTIONS / np.pi)
    apart = np.abs(direction[None] - np.arange(_DIRECTIONS, dtype=np.float32)[:, None, None])
    shares = np.maximum(0, 1 - np.minimum(apart, _DIRECTIONS - apart)) * strength
    cells = _WEIGHTS @ shares @ _WEIGHTS.T
    total = np.sqrt((cells**2).sum(axis=0))
    if float(total.max()) < 1e-6:
        return np.zeros(cells.size, np.int8)
    evened = np.sqrt(cells / (total + 0.02 * total.mean()))
    evened -= evened.mean(axis=(1, 2), keepdims=True)
    unit = evened.ravel() / (np.linalg.norm(evened) + 1e-9)
    return np.asarray(np.rint((unit * _LEVELS).clip(-127, 127)), np.int8)


def _posed(descriptors: NDArray[np.float32], pose: Pose) -> NDArray[np.float32]:
    """Descriptors of the pictures in this pose; a quarter turn shifts by half of the directions."""
    mirrored, quarters = pose
    cells = descriptors.reshape(-1, _DIRECTIONS, _CELLS, _CELLS)
    cells = cells[:, _MIRRORED, :, ::-1] if mirrored else cells
    turned = np.roll(np.rot90(cells, quarters, axes=(2, 3)), quarters * _DIRECTIONS // 2, axis=1)
    return turned.reshape(len(descriptors), -1)


def flat_scan(volume: NDArray[Any]) -> NDArray[np.float32]:
    """A scan (D, H, W) as one picture (H, W), the mean over its slices. Values are HU, or grey values of eight bits."""
    return np.asarray(volume.clip(*_WINDOW_HU).mean(axis=0), np.float32)


def without_borders(pixels: NDArray[np.float32]) -> NDArray[np.float32]:
    """The image (H, W) without the plain lines at its sides; unchanged if less than half would remain."""
    spread = float(pixels.max() - pixels.min())
    cut = pixels
    for axis in (0, 1):
        lines: NDArray[np.float32] = np.moveaxis(cut, axis, 0)
        first = _first_busy(lines, _PLAIN * spread)
        last = len(lines) - 1 - _first_busy(lines[::-1], _PLAIN * spread)
        if last - first < len(lines) // 2:
            return pixels
        cut = np.moveaxis(lines[first : last + 1], 0, axis)
    return cut


def signatures_of(pixels: NDArray[np.float32]) -> tuple[Signature, ...]:
    """Signatures of a picture (H, W) without its plain borders and, if it has borders, with them."""
    cut = without_borders(pixels)
    has_borders = min(small / large for small, large in zip(cut.shape, pixels.shape, strict=True)) < 1 - _SMALLEST_CUT
    thumbnails = [thumbnail(shown) for shown in ((cut, pixels) if has_borders else (cut,))]
    return tuple((small, descriptor(small)) for small in thumbnails)


def _first_busy(lines: NDArray[np.float32], plain: float) -> int:
    """The first line (L, N) whose values differ by more than ``plain``; L without one."""
    for start in range(0, len(lines), _LINES):
        some = lines[start : start + _LINES]
        busy = np.flatnonzero(some.max(axis=1) - some.min(axis=1) > plain)
        if len(busy):
            return start + int(busy[0])
    return len(lines)


@dataclass(slots=True)
class SplitSignatures:
    """Signatures of one split: thumbnails and descriptors, each with its item."""

    items: list[int] = field(default_factory=list)
    thumbnails: list[Thumbnail] = field(default_factory=list)
    descriptors: list[Descriptor] = field(default_factory=list)

    def add(self, item: int, signature: Signature) -> None:
        self.items.append(item)
        self.thumbnails.append(signature[0])
        self.descriptors.append(signature[1])

    def every(self, count: int) -> SplitSignatures:
        """About ``count`` of these, evenly spread."""
        rows = range(0, len(self.items), max(1, len(self.items) // count))
        return SplitSignatures(
            [self.items[row] for row in rows],
            [self.thumbnails[row] for row in rows],
            [self.descriptors[row] for row in rows],
        )

    def picture(self, row: int, pose: Pose = UPRIGHT[0]) -> NDArray[np.float32]:
        small = self.thumbnails[row][:, ::-1] if pose[0] else self.thumbnails[row]
        return (np.rot90(small, pose[1]) / 255).astype(np.float32)


@dataclass(slots=True)
class ImageIndex:
    """Signatures by split, each with its item: some 5 kB a picture, twice that with plain borders."""

    signatures: dict[str, SplitSignatures] = field(default_factory=dict)

    def add(self, item: int, split: str, pixels: NDArray[np.float32]) -> None:
        """Add a picture (H, W), of any scale of grey values."""
        self.add_signatures(item, split, signatures_of(pixels))

    def add_signatures(self, item: int, split: str, signatures: Iterable[Signature]) -> None:
        """Add a picture by its signatures."""
        of_split = self.signatures.setdefault(split, SplitSignatures())
        for signature in signatures:
            of_split.add(item, signature)

    def pairs_across(self, split: str, other: str, *, weakest: float = SAME_WEAKEST) -> Iterator[Copy]:
        """Items of ``split`` that have a copy in ``other``, with that copy.

        ``weakest`` is the least similarity of the weakest blocks, as ``least_similarity`` gives it.
        """
        own, others = self.signatures.get(split, SplitSignatures()), self.signatures.get(other, SplitSignatures())
        matched: set[int] = set()
        for row, candidate, pose, similarity in _compared(own, others, matched):
            if similarity.typical >= SAME_TYPICAL and similarity.weakest >= weakest:
                matched.add(own.items[row])
                changes = _changes(similarity.alignment, pose)
                yield Copy(own.items[row], others.items[candidate], changes)

    def least_similarity(self, patient_of: Callable[[int], object]) -> float:
        """Threshold for the weakest blocks of copies in this set, from the nearest pictures of other patients.

        If half of the pictures of one split have another patient's above ``SIMILAR_PATIENTS`` (which a few copies in
        the sample do not cause), the threshold lies three quarters of the way from the 90 % quantile to 1: only
        re-saved copies reach it.
        """
        largest = max(self.signatures.values(), key=lambda of_split: len(of_split.items), default=SplitSignatures())
        sample = largest.every(_SAMPLE)
        nearest: dict[int, float] = {}
        for row, candidate, _, similarity in _compared(sample, largest, set()):
            if patient_of(sample.items[row]) != patient_of(largest.items[candidate]):
                nearest[row] = max(similarity.weakest, nearest.get(row, -1.0))
        values = list(nearest.values())
        if len(values) < _FEWEST or float(np.median(values)) <= SIMILAR_PATIENTS:
            return SAME_WEAKEST
        return 1 - (1 - float(np.percentile(values, 90))) * 0.25


def _compared(
    own: SplitSignatures, others: SplitSignatures, done: set[int]
) -> Iterator[tuple[int, int, Pose, Similarity]]:
    """Candidate pairs (row, row of ``others``, pose of the first) with their similarity; skips items in ``done``."""
    if not (own.items and others.items):
        return
    for row, nearest in _candidates(own.descriptors, others.descriptors):
        queries: dict[Pose, Query] = {}
        for candidate, pose in nearest:
            if own.items[row] in done:
                break
            if pose not in queries:
                queries[pose] = Query(own.picture(row, pose))
            yield row, candidate, pose, queries[pose].similarity(others.picture(candidate))


def _changes(alignment: Alignment, pose: Pose) -> tuple[str, ...]:
    mirrored, quarters = pose
    names = {
        "mirrored": mirrored,
        "turned by 90 degrees": quarters in (1, 3),
        "turned by 180 degrees": quarters == 2,
        "inverted": alignment.inverted,
        "cut, moved or turned": not alignment.is_still,
    }
    return tuple(name for name, is_so in names.items() if is_so)


def _candidates(own: list[Descriptor], others: list[Descriptor]) -> Iterator[tuple[int, list[tuple[int, Pose]]]]:
    """Per row of ``own`` the nearest rows of ``others``, each with the pose in which it is near, nearest first.

    Turned poses are ranked separately, so that they never crowd out an upright copy.
    """
    for start in range(0, len(own), _CHUNK):
        plain = _unit(own[start : start + _CHUNK])
        groups = [_nearest(plain, others, poses) for poses in (UPRIGHT, TURNED)]
        for row in range(len(plain)):
            yield start + row, [pair for group in groups for pair in group[row]]


def _nearest(
    plain: NDArray[np.float32], others: list[Descriptor], poses: tuple[Pose, ...]
) -> list[list[tuple[int, Pose]]]:
    """Per row of ``plain`` (rows, 512), its ``CANDIDATES`` nearest of ``others`` over these poses."""
    rows = np.concatenate([_posed(plain, pose) for pose in poses])
    best = np.full((len(rows), CANDIDATES), -1.0, np.float32)
    rows_of_best = np.zeros((len(rows), CANDIDATES), np.int64)
    for begin in range(0, len(others), _CHUNK):
        similarity = rows @ _unit(others[begin : begin + _CHUNK]).T
        # Few rows of later chunks have nearer neighbours.
        nearer = np.flatnonzero(similarity.max(axis=1) >= np.maximum(best[:, -1], CANDIDATE))
        similarity = similarity[nearer]
        nearest = np.argpartition(-similarity, min(CANDIDATES, similarity.shape[1]) - 1, axis=1)[:, :CANDIDATES]
        both = np.concatenate([best[nearer], np.take_along_axis(similarity, nearest, 1)], axis=1)
        order = np.argsort(-both, axis=1, kind="stable")[:, :CANDIDATES]
        best[nearer] = np.take_along_axis(both, order, 1)
        places = np.concatenate([rows_of_best[nearer], nearest + begin], axis=1)
        rows_of_best[nearer] = np.take_along_axis(places, order, 1)
    candidates = []
    for row in range(len(plain)):
        pairs = [
            (-float(best[line, n]), int(rows_of_best[line, n]), pose)
            for line, pose in zip(range(row, len(rows), len(plain)), poses, strict=True)
            for n in range(CANDIDATES)
            if best[line, n] >= CANDIDATE
        ]
        candidates.append([(candidate, pose) for _, candidate, pose in sorted(pairs)[:CANDIDATES]])
    return candidates


def _unit(descriptors: list[Descriptor]) -> NDArray[np.float32]:
    rows = np.stack(descriptors).astype(np.float32)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0))


# Warning of changed copies across splits before a training, for a person to judge.
#
# DATASET/.cache/copies.json    the warnings for these pixels and splits

PAIRS: Final = (("val", "train"), ("test", "train"), ("test", "val"))


def near_copies(dataset: Dataset, cache: PixelCache) -> list[str]:
    """A warning for each pair of splits that share images; none for prepared images smaller than ``SIDE``.

    The result is cached, so that only the first training on a data set compares.
    """
    rows = next(iter(cache.rows.values()), None)
    if rows is None or min(cache.pixels[rows].shape[-2:]) < SIDE:
        return []
    key = sha256_json([dataset.fingerprint(), cache.digest, code_hash("radweave.data.leaks.images")])
    cache_file = dataset.path / ".cache" / "copies.json"
    with suppress(InputError, OSError, RecursionError):
        cached = read_json(cache_file)
        if isinstance(cached, dict) and cached.get("key") == key and isinstance(cached.get("found"), list):
            return [str(line) for line in cached["found"]]
    lines = _copies_across_splits(dataset, cache)
    with suppress(InputError, OSError):
        write_json(cache_file, {"key": key, "found": lines})
    return lines


def _copies_across_splits(dataset: Dataset, cache: PixelCache) -> list[str]:
    index, patients = ImageIndex(), list[str]()
    for study in dataset.studies():
        for ref in study.images:
            if study.split is not None and ref.path in cache.rows:
                pixels = np.asarray(cache.pixels[cache.rows[ref.path]])
                flat = pixels.astype(np.float32) if pixels.ndim == 2 else flat_scan(pixels)
                index.add(len(patients), study.split, flat)
                patients.append(study.patient_id)
    weakest = index.least_similarity(lambda item: patients[item])
    lines = []
    for split, other in PAIRS:
        count = sum(1 for _ in index.pairs_across(split, other, weakest=weakest))
        if count:
            lines.append(
                f"{count} images of '{split}' seem to be changed copies of images of '{other}'; scores on them would be"
                " worthless: 'radweave data check' lists them"
            )
    return lines


# Inspection of a single image file, which may run in parallel.


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """An image file: ``digest`` of its bytes, and either ``error``, the reason why it cannot be read, or its content.

    ``content`` is a digest of the pixels or voxels, ``patient`` the header's patient as a digest, ``doubts`` are signs
    of damage without their numbers, and ``signatures`` serve to find copies.
    """

    digest: str | None = None
    error: str | None = None
    content: bytes | None = None
    patient: str | None = None
    doubts: tuple[str, ...] = ()
    signatures: tuple[Signature, ...] = ()


def inspect_image(dataset: Dataset, image: ImageRef, *, reads: bool) -> ImageFacts:
    """Read the file of an image; unless ``reads``, check its existence and hash it only if no hash is recorded.

    A file of another modality than the data set is not opened.
    """
    facts = ImageFacts()
    if image.modality != dataset.card.modality:
        return facts
    try:
        path = dataset.image_path(image.path)
        facts = ImageFacts(content_hash(path) if reads or image.sha256 is None else image.sha256)
        return _decoded(path, image, facts) if reads else facts
    except InputError as error:
        return replace(facts, error=error.reason)
    except OSError as error:
        return replace(facts, error=f"image cannot be read: {error.strerror}")


def _decoded(path: Path, image: ImageRef, facts: ImageFacts) -> ImageFacts:
    values: NDArray[Any]
    doubts: tuple[str, ...] = ()
    if image.modality == "xray":
        from radweave.io.images import read_radiograph

        radiograph = read_radiograph(path)
        flat, patient = np.asarray(radiograph.pixels), radiograph.patient_key
        # Eight bits, the precision of training: pictures that differ by less are equal.
        values = np.empty(flat.shape, np.uint8)
        np.multiply(flat, np.float32(255), out=values, casting="unsafe")
        doubts = tuple(re.sub(r"\d+", "N", text) for text in radiograph.warnings if text.startswith(DOUBTFUL))
    else:
        from radweave.io.volumes import read_volume

        volume = read_volume(path)
        values, flat, patient = volume.hu, flat_scan(volume.hu), volume.patient_key
    content = hashlib.sha256(str(values.shape).encode())
    content.update(np.ascontiguousarray(values).data)
    return replace(facts, content=content.digest()[:16], patient=patient, doubts=doubts, signatures=signatures_of(flat))
