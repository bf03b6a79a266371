"""Files of every kind that is read, damaged at random, and what became of each: for a quick test and for ``make fuzz``.

for damaged in damaged_copies(whole_file, random.Random(1), 1000): ...
formats(folder)["nifti gzip"].look(path)     # a digest of what is read, and whether the reader doubts it
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import nibabel as nib
import nrrd
import numpy as np
from PIL import Image
from pydicom.uid import DeflatedExplicitVRLittleEndian, JPEG2000Lossless, JPEGLSLossless, RLELossless

from radweave.io.dicom import DOUBTFUL
from radweave.io.images import read_radiograph
from radweave.io.volumes import read_stored
from tests.image_files import (
    chest,
    compressed,
    dataset,
    save,
    thorax_hu,
    write_baseline_jpeg,
    write_dicom,
    write_metaimage,
)

Look = Callable[[Path], tuple[str, bool]]

# Values that parsers of text stumble over.
ODD_WORDS: Final = tuple(
    text.encode("utf-8", "surrogatepass")
    for text in (
        "NaN", "-Infinity", "1e999", "-1", "0", "18446744073709551616", "9" * 5000, "null", "true", "\ud800",
        "[" * 3000 + "]" * 3000, '{"a":' * 3000, "{}", "[]", '""', "x" * 100_000, '"../../etc/passwd"', "2001-99-99",
        '"\\ud800"', "!!int xyz", "!!python/object:os.system", "*a", "&a", "\x00", "\x1b[2J", '"[/b]"', "1_0", "0x10",
    )
)  # fmt: skip
_WORD = re.compile(rb"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?|\"[^\"\n]{0,200}\"|[A-Za-z_]+")


@dataclass(frozen=True, slots=True)
class Format:
    """``whole`` is an undamaged file; ``redundancy`` says what its format has to find damage with.

    ``in_place``: the damaged copy must stand where the whole one does, since files beside it are read too.
    """

    whole: Path
    look: Look
    redundancy: str
    is_text: bool = False
    in_place: bool = False


def damaged_copies(whole: bytes, source: random.Random, count: int, *, is_text: bool = False) -> Iterator[bytes]:
    """``count`` damaged copies: flipped bits, changed, lost, doubled and moved bytes, cuts; odd words in text."""
    for _ in range(count):
        kinds = (*_KINDS, _odd_word, _odd_word, _odd_word) if is_text else _KINDS
        yield bytes(source.choice(kinds)(bytearray(whole), source))


def _flip(data: bytearray, source: random.Random) -> bytearray:
    data[source.randrange(len(data))] ^= 1 << source.randrange(8)
    return data


def _flip_some(data: bytearray, source: random.Random) -> bytearray:
    for _ in range(source.randrange(2, 20)):
        _flip(data, source)
    return data


def _flip_early(data: bytearray, source: random.Random) -> bytearray:
    """In the header, where most formats keep what matters."""
    data[source.randrange(min(len(data), 600))] ^= 1 << source.randrange(8)
    return data


def _set(data: bytearray, source: random.Random) -> bytearray:
    place = source.randrange(len(data))
    data[place : place + source.choice((1, 2, 4, 8))] = source.choice(
        (b"\0", b"\xff", b"\x7f\xff", b"\x80\0\0\0", b"9")
    )
    return data


def _cut(data: bytearray, source: random.Random) -> bytearray:
    return data[: source.randrange(len(data))]


def _cut_end(data: bytearray, source: random.Random) -> bytearray:
    return data[: -source.randrange(1, 9)]


def _lose(data: bytearray, source: random.Random) -> bytearray:
    place = source.randrange(len(data))
    del data[place : place + source.randrange(1, 64)]
    return data


def _insert(data: bytearray, source: random.Random) -> bytearray:
    place = source.randrange(len(data))
    data[place:place] = source.randbytes(source.randrange(1, 64))
    return data


def _double(data: bytearray, source: random.Random) -> bytearray:
    start = source.randrange(len(data))
    part = data[start : start + source.randrange(1, 256)]
    data[start:start] = part
    return data


def _move(data: bytearray, source: random.Random) -> bytearray:
    start, to, size = source.randrange(len(data)), source.randrange(len(data)), source.randrange(1, 128)
    data[to : to + size] = data[start : start + size]
    return data


def _blank(data: bytearray, source: random.Random) -> bytearray:
    start, size = source.randrange(len(data)), source.randrange(1, 512)
    data[start : start + size] = bytes(len(data[start : start + size]))
    return data


def _odd_word(data: bytearray, source: random.Random) -> bytearray:
    words = list(_WORD.finditer(data))
    if words:
        word = source.choice(words)
        data[word.start() : word.end()] = source.choice(ODD_WORDS)
    return data


_KINDS: Final = (_flip, _flip, _flip_some, _flip_early, _set, _cut, _cut_end, _lose, _insert, _double, _move, _blank)


def digest(*parts: Any) -> str:
    """Hash of arrays and of what JSON can write."""
    result = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            result.update(f"{part.dtype}{part.shape}".encode() + np.ascontiguousarray(part).tobytes())
        else:
            result.update(json.dumps(part, default=str, sort_keys=True).encode())
    return result.hexdigest()


def look_at_radiograph(path: Path) -> tuple[str, bool]:
    """What a model and a page see of a radiograph: warnings of other kinds do not count as doubt."""
    result = read_radiograph(path)
    observed = digest(result.pixels, str(result.view), result.spacing_mm, result.patient_key, result.study_key)
    return observed, any(text.startswith(DOUBTFUL) for text in result.warnings)


def look_at_volume(path: Path) -> tuple[str, bool]:
    result = read_stored(path)
    where = result.geometry
    observed = digest(result.values, where.spacing_xyz_mm, where.origin_lps, where.direction)
    return observed, any(text.startswith(DOUBTFUL) for text in result.warnings)


def _raster(path: Path, **options: Any) -> Path:
    Image.fromarray(np.rint(chest(64, 56, noise=0.02) * 255).astype(np.uint8)).save(path, **options)
    return path


def _nrrd(path: Path, encoding: str) -> Path:
    nrrd.write(str(path), np.ascontiguousarray(_HU.T), {"spacings": [2.0, 2.0, 5.0], "encoding": encoding})
    return path


def _nifti(path: Path) -> Path:
    buffer = io.BytesIO(nib.Nifti1Image(np.ascontiguousarray(_HU.T), np.diag([-2.0, -2.0, 5.0, 1.0])).to_bytes())
    path.write_bytes(gzip.compress(buffer.getvalue(), mtime=0) if path.suffix == ".gz" else buffer.getvalue())
    return path


def _deflated(path: Path) -> Path:
    ds = dataset(np.rint(chest(64, 56) * 4095), bits=12)
    ds.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    return save(ds, path)


_HU: Final = thorax_hu(6, 14, 16)
_IMAGE = chest(64, 56)
_NONE = "none in pixels and header values"
_MAKERS: Final[dict[str, tuple[str, Callable[[Path], Path], Look, str]]] = {
    "DICOM uncompressed": ("a.dcm", partial(write_dicom, image=_IMAGE), look_at_radiograph, _NONE),
    "DICOM deflated": ("b.dcm", _deflated, look_at_radiograph, "no checksum"),
    "DICOM RLE": ("c.dcm", partial(compressed, syntax=RLELossless, image=_IMAGE), look_at_radiograph, "row ends"),
    "DICOM JPEG": ("d.dcm", partial(write_baseline_jpeg, image=_IMAGE), look_at_radiograph, "end of data"),
    "DICOM JPEG-LS": ("e.dcm", partial(compressed, syntax=JPEGLSLossless, image=_IMAGE), look_at_radiograph, "little"),
    "DICOM JPEG 2000": (
        "f.dcm",
        partial(compressed, syntax=JPEG2000Lossless, image=_IMAGE),
        look_at_radiograph,
        "end mark",
    ),
    "PNG": ("a.png", _raster, look_at_radiograph, "checksums"),
    "JPEG": ("a.jpg", partial(_raster, quality=90), look_at_radiograph, "end of data"),
    "JPEG progressive": ("b.jpg", partial(_raster, quality=90, progressive=True), look_at_radiograph, "ends of scans"),
    "JPEG restarts": (
        "c.jpg",
        partial(_raster, quality=90, restart_marker_rows=1),
        look_at_radiograph,
        "ends of parts",
    ),
    "NIfTI .nii": ("a.nii", _nifti, look_at_volume, "length of the file"),
    "NIfTI .nii.gz": ("b.nii.gz", _nifti, look_at_volume, "checksum"),
    "NRRD raw": ("a.nrrd", partial(_nrrd, encoding="raw"), look_at_volume, "length of the file"),
    "NRRD gzip": ("b.nrrd", partial(_nrrd, encoding="gzip"), look_at_volume, "checksum of the voxels"),
    "MetaImage raw": ("a.mha", partial(write_metaimage, values=_HU), look_at_volume, "length of the file"),
    "MetaImage zlib": (
        "b.mha",
        partial(write_metaimage, values=_HU, compressed=True),
        look_at_volume,
        "checksum of the voxels",
    ),
}


def image_formats(folder: Path) -> dict[str, Format]:
    """One small file of each kind of image, written into ``folder``."""
    made = {}
    for name, (file, make, look, redundancy) in _MAKERS.items():
        made[name] = Format(make(folder / file), look, redundancy, is_text=False)
    return made
