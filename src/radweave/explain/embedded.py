"""What a page holds for its viewer: all grey levels of its images, or HU of its scan, and the maps over them.

The values lie in the page deflated, so that a page with scripts has a window over what the file holds, not over the
eight bits of a picture. A large image is halved until it has at most ``MOST_PIXELS``, a scan to ``MOST_VOXELS``; the
image is then called "at 1/2 of its size".
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from radweave.base.map_kinds import MapKind
from radweave.data.reading.volumes import AIR_HU
from radweave.explain.maps import Floats, RadiographSubject, ScanSubject, Subject
from radweave.viewer.pixels import LINEAR_EXACT, SCAN_PRESETS, WHOLE_RANGE, Read, Words

MOST_PIXELS: Final = 1 << 21
MOST_VOXELS: Final = 1 << 22
_LEVELS: Final = 65_535


@dataclass(frozen=True, slots=True)
class Embedded:
    """``about`` is what the viewer reads, as JSON for a page; ``blocks`` are values by the id of their place."""

    about: str
    blocks: dict[str, str] = field(default_factory=dict)


def embed(
    subjects: Sequence[Subject], files: Sequence[str], maps: Mapping[str, Sequence[Floats]], kind: MapKind, method: str
) -> Embedded | None:
    """The images of a study, each called as its file, with maps that fit them; None where there is no image."""
    scan = next((subject for subject in subjects if isinstance(subject, ScanSubject)), None)
    blocks: dict[str, str] = {}
    facts = {name: {"name": name, "method": method, "note": kind.note} for name in maps}
    if scan is not None:
        known = scan.hu is not None
        given = scan.hu if scan.hu is not None else np.rint(scan.voxels * np.float32(255)).astype(np.int16)
        values, spacing = _fewer_voxels(given, scan.spacing_mm)
        blocks["words-scan"] = _packed(values.astype(np.int32) - AIR_HU)
        about = {**_NOTHING_STATED, "file": scan.title, "shape": list(values.shape), "spacing_mm": list(spacing),
                 "first": AIR_HU, "presets": _scan_presets(values, SCAN_PRESETS if known else ())}  # fmt: skip
        laid = {name: {**facts[name], **_steps(one[0], float(one[0].max()))} for name, one in maps.items()}
        return Embedded(_json({"scan": about, "maps": laid}), blocks)
    radiographs = [subject for subject in subjects if isinstance(subject, RadiographSubject)]
    if not radiographs:
        return None
    images = []
    for number, subject in enumerate(radiographs):
        read, halved = _fewer_pixels(subject.stored or stored_of(subject.pixels))
        blocks[f"words-{number}"] = _packed(read.words)
        if read.table is not None:
            blocks[f"table-{number}"] = _packed(read.table)
        file = files[number] if number < len(files) else subject.title
        called = f"{file}, at 1/{2**halved} of its size" if halved else file
        images.append({**read.about, "name": str(number), "file": called, "view": subject.view, "problem": None})
    grids = {name: {**facts[name], "grids": _grids(radiographs, values)} for name, values in maps.items()}
    return Embedded(_json({"images": images, "maps": grids}), blocks)


_NOTHING_STATED: Final[Mapping[str, Any]] = {
    "slope": 1.0,
    "intercept": 0.0,
    "padding": None,
    "inverted": False,
    "laterality": None,
    "orientation": [],
    "problem": None,
}


def stored_of(pixels: NDArray[np.float32]) -> Read:
    """The words of an image that came without a file: its grey values, 0 to 1, in as many levels as words have."""
    words = np.rint(pixels.clip(0.0, 1.0) * _LEVELS).astype(np.uint16)
    rows, columns = words.shape
    preset = {"name": WHOLE_RANGE, "function": LINEAR_EXACT, "center": 0.5, "width": 1.0}
    about = {**_NOTHING_STATED, "rows": rows, "columns": columns, "first": 0, "slope": 1 / _LEVELS, "pixel_ratio": 1.0,
             "presets": [preset]}  # fmt: skip
    return Read(words, about)


def _scan_presets(values: NDArray[np.int16], presets: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    low, high = float(values.min()), float(values.max())
    width = max(high - low, 1.0)
    named = [{**preset, "function": LINEAR_EXACT} for preset in presets]
    whole = {"name": WHOLE_RANGE, "function": LINEAR_EXACT, "center": low + width / 2, "width": width}
    # A scan that the model saw through a narrow window has nothing to show beyond it.
    return [*(one for one in named if one["center"] - one["width"] / 2 < high and low < one["center"]), whole]


def _fewer_pixels(read: Read) -> tuple[Read, int]:
    """An image with at most ``MOST_PIXELS``, and how often it was halved."""
    words, padding, halved = read.words, read.about["padding"], 0
    while words.size > MOST_PIXELS:
        words, halved = _half(words, padding), halved + 1
    rows, columns = words.shape
    return replace(read, words=words, about={**read.about, "rows": rows, "columns": columns}), halved


def _half(words: Words, padding: int | None) -> Words:
    """Means of two by two words; where one is padding, all are. The viewer's ``levels.js`` halves the same way."""
    rows, columns = words.shape
    even = np.pad(words, ((0, rows % 2), (0, columns % 2)), mode="edge").astype(np.uint32)
    four = even.reshape(even.shape[0] // 2, 2, even.shape[1] // 2, 2)
    means = (four.sum(axis=(1, 3)) + 2) >> 2
    if padding is not None:
        means[(four == padding).any(axis=(1, 3))] = padding
    halved: Words = means.astype(np.uint16)
    return halved


def _fewer_voxels(
    hu: NDArray[np.int16], spacing_mm: tuple[float, float, float]
) -> tuple[NDArray[np.int16], tuple[float, ...]]:
    """A scan with at most ``MOST_VOXELS``: halved along whichever axis has the most."""
    spacing = list(spacing_mm)
    while hu.size > MOST_VOXELS:
        axis = int(np.argmax(hu.shape))
        pairs = np.moveaxis(hu, axis, 0)[: hu.shape[axis] // 2 * 2]
        mean = (pairs[::2].astype(np.int32) + pairs[1::2]) // 2
        hu, spacing[axis] = np.moveaxis(mean, 0, axis).astype(np.int16), 2 * spacing[axis]
    return hu, tuple(spacing)


def _grids(subjects: Sequence[RadiographSubject], maps: Sequence[Floats]) -> list[dict[str, Any]]:
    """A map's values, 0 to 255 of its peak over all images, and what of each image they lie over."""
    peak = max(float(values.max()) for values in maps)
    pairs = enumerate(zip(subjects, maps, strict=True))
    return [
        {"image": str(number), "covers": [list(axis) for axis in subject.covers()], **_steps(values, peak)}
        for number, (subject, values) in pairs
    ]


def _steps(values: Floats, peak: float) -> dict[str, Any]:
    steps = np.rint(values * (255 / peak)) if peak > 0 else np.zeros_like(values)
    return {"shape": list(values.shape), "values": steps.astype(int).ravel().tolist()}


def _packed(words: NDArray[Any]) -> str:
    """Words, little-endian, row by row from the top: deflated, in base64."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(words, dtype="<u2").tobytes(), 6)).decode()


def _json(value: Any) -> str:
    """JSON that ends no element of the page, whatever is in it."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")
