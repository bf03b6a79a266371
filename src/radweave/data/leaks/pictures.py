"""Which radiographs show the same picture, though their files differ: saved anew, cut, turned, mirrored, inverted.

A picture is kept as a thumbnail of 64 x 64 grey values and a descriptor: in 8 x 8 cells, how strong edges of 8
directions are. Edges have no sign, so an inverted picture has the same descriptor, and one that is mirrored or turned
by quarters a permutation of it. The nearest descriptors of the other split are candidates; ``registration`` then
decides about each of them.

Plain borders are cut off first. As that may fail, a picture with borders is kept with them too.

Source: cells of edge directions follow Dalal and Triggs, "Histograms of Oriented Gradients", CVPR 2005.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage, sparse

from radweave.data.leaks.registration import SIDE, Alignment, Likeness, Query

SAME_TYPICAL, SAME_WEAKEST = 0.74, 0.45
"""Likeness from which two pictures are one. See docs/data.md for what lies on either side of it."""

ALIKE = 0.2
"""Likeness of the weakest blocks that marks a set in which different patients look alike, as in a phantom."""

CANDIDATE = 0.45
"""Likeness of descriptors from which a pair is looked at."""

CANDIDATES = 3
_SAMPLE = 60
_FEWEST_PAIRS = 20
_CELLS = 8
_DIRECTIONS = 8
_LEVELS = 127 / 0.3
_CHUNK = 1024
_PLAIN = 0.03
# Air to bone: what lies outside says more of the scanner than of the patient.
_WINDOW_HU = (-1000, 400)
_SMALLEST_CUT = 0.01
_LINES = 16

Thumbnail = NDArray[np.uint8]
Descriptor = NDArray[np.int8]
Look = tuple[Thumbnail, Descriptor]


def _cell_weights() -> NDArray[np.float32]:
    """How much each pixel line counts for each cell (cells, SIDE): tents that overlap by half."""
    width = SIDE / _CELLS
    centres = (np.arange(_CELLS) + 0.5) * width - 0.5
    weights = np.maximum(0, 1 - np.abs(np.arange(SIDE)[None] - centres[:, None]) / width)
    return weights.astype(np.float32)


_WEIGHTS: Final = _cell_weights()
# Mirrored, an edge of direction d (of 8 in half a turn) has direction -d.
_MIRRORED: Final = (-np.arange(_DIRECTIONS)) % _DIRECTIONS

Pose = tuple[bool, int]
"""How a picture lies: mirrored or not, then turned left by so many quarters. A square has these eight symmetries."""

UPRIGHT: Final[tuple[Pose, ...]] = ((False, 0), (True, 0))
TURNED: Final[tuple[Pose, ...]] = tuple((mirrored, quarters) for mirrored in (False, True) for quarters in (1, 2, 3))


@dataclass(frozen=True, slots=True)
class Copy:
    """An item and the item of another split that holds the same picture; ``changes`` says how it was changed."""

    item: int
    other: int
    changes: tuple[str, ...]


def thumbnail(pixels: NDArray[np.float32]) -> Thumbnail:
    """Block means (SIDE, SIDE) of an image (H, W), its darkest pixel 0 and its brightest 255."""
    high, wide = pixels.shape
    small = np.asarray(_blocks(wide) @ (_blocks(high) @ pixels.astype(np.float32, copy=False)).T).T.astype(np.float64)
    low, top = float(small.min()), float(small.max())
    scaled = (small - low) / (top - low) if top - low > 1e-6 else np.zeros_like(small)
    levels: Thumbnail = np.rint(scaled * 255).astype(np.uint8)
    return levels


@lru_cache(maxsize=64)
def _blocks(lines: int) -> sparse.csr_array:
    """What each of ``lines`` counts for the means of ``SIDE`` bands of equal width, (SIDE, lines).

    A line across a border counts in parts for both.
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
    levels: Descriptor = np.rint((unit * _LEVELS).clip(-127, 127)).astype(np.int8)
    return levels


def _posed(descriptors: NDArray[np.float32], pose: Pose) -> NDArray[np.float32]:
    """Descriptors of the pictures in this pose; a quarter of a turn is half of the directions."""
    mirrored, quarters = pose
    cells = descriptors.reshape(-1, _DIRECTIONS, _CELLS, _CELLS)
    cells = cells[:, _MIRRORED, :, ::-1] if mirrored else cells
    turned = np.roll(np.rot90(cells, quarters, axes=(2, 3)), quarters * _DIRECTIONS // 2, axis=1)
    return turned.reshape(len(descriptors), -1)


def flat_scan(volume: NDArray[Any]) -> NDArray[np.float32]:
    """A scan (D, H, W) as one picture (H, W), the mean over its slices. Values are HU, or grey values of eight bits."""
    clipped = volume.clip(*_WINDOW_HU)
    flat: NDArray[np.float32] = np.asarray(clipped.mean(axis=0), np.float32)
    return flat


def without_borders(pixels: NDArray[np.float32]) -> NDArray[np.float32]:
    """The image (H, W) without the plain lines at its sides; as it is where next to nothing would be left."""
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


def looks_of(pixels: NDArray[np.float32]) -> tuple[Look, ...]:
    """The picture (H, W) without its plain borders; with them too, where it has some."""
    cut = without_borders(pixels)
    has_borders = min(small / large for small, large in zip(cut.shape, pixels.shape, strict=True)) < 1 - _SMALLEST_CUT
    thumbnails = [thumbnail(shown) for shown in ((cut, pixels) if has_borders else (cut,))]
    return tuple((small, descriptor(small)) for small in thumbnails)


def _first_busy(lines: NDArray[np.float32], plain: float) -> int:
    """The first line (L, N) whose values differ by more than ``plain``; L where there is none."""
    for start in range(0, len(lines), _LINES):
        some = lines[start : start + _LINES]
        busy = np.flatnonzero(some.max(axis=1) - some.min(axis=1) > plain)
        if len(busy):
            return start + int(busy[0])
    return len(lines)


@dataclass(slots=True)
class Looks:
    """The pictures of one split: thumbnails and descriptors, each with the item that it belongs to."""

    items: list[int] = field(default_factory=list)
    thumbnails: list[Thumbnail] = field(default_factory=list)
    descriptors: list[Descriptor] = field(default_factory=list)

    def add(self, item: int, look: Look) -> None:
        self.items.append(item)
        self.thumbnails.append(look[0])
        self.descriptors.append(look[1])

    def every(self, count: int) -> Looks:
        """Some ``count`` of these, evenly spread."""
        rows = range(0, len(self.items), max(1, len(self.items) // count))
        return Looks(
            [self.items[row] for row in rows],
            [self.thumbnails[row] for row in rows],
            [self.descriptors[row] for row in rows],
        )

    def picture(self, row: int, pose: Pose = UPRIGHT[0]) -> NDArray[np.float32]:
        small = self.thumbnails[row][:, ::-1] if pose[0] else self.thumbnails[row]
        picture: NDArray[np.float32] = (np.rot90(small, pose[1]) / 255).astype(np.float32)
        return picture


@dataclass(slots=True)
class PictureIndex:
    """Pictures by split, each with the item it belongs to. Some 5 kB a picture, twice that with plain borders."""

    looks: dict[str, Looks] = field(default_factory=dict)

    def add(self, item: int, split: str, pixels: NDArray[np.float32]) -> None:
        """Add a picture (H, W), of any scale of grey values."""
        self.add_looks(item, split, looks_of(pixels))

    def add_looks(self, item: int, split: str, looks: Iterable[Look]) -> None:
        """Add a picture by what ``looks_of`` made of it."""
        kept = self.looks.setdefault(split, Looks())
        for look in looks:
            kept.add(item, look)

    def pairs_across(self, split: str, other: str, *, weakest: float = SAME_WEAKEST) -> Iterator[Copy]:
        """Items of ``split``, each with an item of ``other`` that holds the same picture, if there is one.

        ``weakest`` is the least likeness of the weakest blocks that counts, as ``least_likeness`` gives it.
        """
        mine, theirs = self.looks.get(split, Looks()), self.looks.get(other, Looks())
        found: set[int] = set()
        for row, candidate, pose, likeness in _compared(mine, theirs, found):
            if likeness.typical >= SAME_TYPICAL and likeness.weakest >= weakest:
                found.add(mine.items[row])
                changes = _changes(likeness.alignment, pose)
                yield Copy(mine.items[row], theirs.items[candidate], changes)

    def least_likeness(self, patient_of: Callable[[int], object]) -> float:
        """What the weakest blocks of two pictures must share in this set, seen from pictures of different patients.

        Where half of the nearest pairs of one split is alike by more than ``ALIKE`` (a few copies in the sample do not
        make that), three quarters of what the most similar tenth leaves to 1 are asked for on top, so that only copies
        saved anew are told from other patients.
        """
        looks = max(self.looks.values(), key=lambda looks: len(looks.items), default=Looks())
        sample = looks.every(_SAMPLE)
        pairs = _compared(sample, looks, set())
        values = [
            likeness.weakest
            for row, candidate, _, likeness in pairs
            if patient_of(sample.items[row]) != patient_of(looks.items[candidate])
        ]
        if len(values) < _FEWEST_PAIRS or float(np.median(values)) <= ALIKE:
            return SAME_WEAKEST
        return 1 - (1 - float(np.percentile(values, 90))) * 0.25


def _compared(mine: Looks, theirs: Looks, done: set[int]) -> Iterator[tuple[int, int, Pose, Likeness]]:
    """Candidate pairs (row, row of ``theirs``, pose of the first) with their likeness; items in ``done`` are passed."""
    if not (mine.items and theirs.items):
        return
    for row, nearest in _candidates(mine.descriptors, theirs.descriptors):
        queries: dict[Pose, Query] = {}
        for candidate, pose in nearest:
            if mine.items[row] in done:
                break
            if pose not in queries:
                queries[pose] = Query(mine.picture(row, pose))
            yield row, candidate, pose, queries[pose].likeness(theirs.picture(candidate))


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


def _candidates(mine: list[Descriptor], theirs: list[Descriptor]) -> Iterator[tuple[int, list[tuple[int, Pose]]]]:
    """Per row of ``mine`` the nearest rows of ``theirs``, each with the pose in which it is near, nearest first.

    Turned poses have places of their own behind the others: an upright copy is never crowded out by them.
    """
    for start in range(0, len(mine), _CHUNK):
        plain = _unit(mine[start : start + _CHUNK])
        groups = [_nearest(plain, theirs, poses) for poses in (UPRIGHT, TURNED)]
        for row in range(len(plain)):
            yield start + row, [pair for group in groups for pair in group[row]]


def _nearest(
    plain: NDArray[np.float32], theirs: list[Descriptor], poses: tuple[Pose, ...]
) -> list[list[tuple[int, Pose]]]:
    """Per row of ``plain`` (rows, 512), its ``CANDIDATES`` nearest of ``theirs`` over these poses."""
    rows = np.concatenate([_posed(plain, pose) for pose in poses])
    best = np.full((len(rows), CANDIDATES), -1.0, np.float32)
    place = np.zeros((len(rows), CANDIDATES), np.int64)
    for begin in range(0, len(theirs), _CHUNK):
        likeness = rows @ _unit(theirs[begin : begin + _CHUNK]).T
        # Few rows of later chunks hold anything nearer than what was found before.
        nearer = np.flatnonzero(likeness.max(axis=1) >= np.maximum(best[:, -1], CANDIDATE))
        likeness = likeness[nearer]
        nearest = np.argpartition(-likeness, min(CANDIDATES, likeness.shape[1]) - 1, axis=1)[:, :CANDIDATES]
        both = np.concatenate([best[nearer], np.take_along_axis(likeness, nearest, 1)], axis=1)
        kept = np.argsort(-both, axis=1, kind="stable")[:, :CANDIDATES]
        best[nearer] = np.take_along_axis(both, kept, 1)
        places = np.concatenate([place[nearer], nearest + begin], axis=1)
        place[nearer] = np.take_along_axis(places, kept, 1)
    found = []
    for row in range(len(plain)):
        pairs = [
            (-float(best[line, n]), int(place[line, n]), pose)
            for line, pose in zip(range(row, len(rows), len(plain)), poses, strict=True)
            for n in range(CANDIDATES)
            if best[line, n] >= CANDIDATE
        ]
        found.append([(candidate, pose) for _, candidate, pose in sorted(pairs)[:CANDIDATES]])
    return found


def _unit(descriptors: list[Descriptor]) -> NDArray[np.float32]:
    rows = np.stack(descriptors).astype(np.float32)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: NDArray[np.float32] = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    return unit
