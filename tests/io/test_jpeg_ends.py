"""Whole JPEGs of any kind are never doubted; those that lack or hold something more are."""

from __future__ import annotations

import io
import random
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from image_files import chest
from radweave.io import raster_parse, worker
from radweave.io import raster_parse as jpeg_feed
from radweave.io.raster_parse import LEFT_OVER, layout_of, load_jpeg, stream_doubts


def decode(data: bytes) -> worker.Array:
    with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
        return np.asarray(image)


def encode(pixels: np.ndarray, **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", **options)  # type: ignore[arg-type]
    return buffer.getvalue()


def fed(data: bytes) -> tuple[bool, np.ndarray]:
    with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
        return load_jpeg(image, layout_of(data)), np.asarray(image)


def picture(rows: int, columns: int, ground: int, colour: bool) -> np.ndarray:
    """A chest whose lower third is one flat grey: the decoder's own filling is 128."""
    grey = np.rint(chest(rows, columns, noise=0.03) * 255).astype(np.uint8)
    grey[-max(1, rows // 3) :] = ground
    return np.repeat(grey[..., None], 3, axis=2) if colour else grey


@given(
    rows=st.integers(16, 90),
    columns=st.integers(16, 90),
    ground=st.sampled_from([0, 1, 100, 127, 128, 129, 255]),
    colour=st.booleans(),
    quality=st.sampled_from([1, 10, 30, 50, 75, 90, 95, 100]),
    subsampling=st.integers(0, 2),
    progressive=st.booleans(),
    optimize=st.booleans(),
    restarts=st.sampled_from([0, 0, 1, 3, 7]),
)
@settings(max_examples=50, deadline=None)
def test_a_whole_jpeg_is_never_doubted(
    rows: int, columns: int, ground: int, colour: bool, quality: int, subsampling: int, progressive: bool,
    optimize: bool, restarts: int,
) -> None:  # fmt: skip
    options = {"quality": quality, "progressive": progressive, "optimize": optimize}
    if colour:
        options["subsampling"] = subsampling
    if restarts:
        options["restart_marker_blocks"] = restarts
    data = encode(picture(rows, columns, ground, colour), **options)
    assert stream_doubts(data, decode(data), decode) == []
    with mock.patch.object(jpeg_feed, "LARGE_BYTES", 2000):
        seen, pixels = fed(data)
    assert np.array_equal(pixels, decode(data))
    if progressive or restarts or len(data) < 2000:
        assert not seen
    assert stream_doubts(data + b"notes of a program", decode(data), decode) == []


@pytest.mark.parametrize("progressive", [False, True])
def test_what_is_missing_is_named(progressive: bool) -> None:
    data = encode(picture(80, 64, 0, colour=False), quality=80, progressive=progressive)
    cut = data[: data.rindex(b"\xff\xda") + 30 if progressive else int(0.6 * len(data))] + b"\xff\xd9"
    found = stream_doubts(cut, decode(cut), decode)
    assert any("ends before the image" in text for text in found)


def test_data_left_over_is_named() -> None:
    """The first scan's data with a piece of itself twice: the last blocks are decoded before the data ends."""
    data = encode(picture(80, 64, 90, colour=False)[:48], quality=80)
    start = data.index(b"\xff\xda") + 200
    more = data[:start] + data[start - 190 : start] + data[start:]
    assert stream_doubts(more, decode(more), decode) == ["the JPEG data does not end with the image"]


LARGE = np.random.default_rng(0).integers(0, 256, (512, 512), dtype=np.uint8)


@pytest.mark.parametrize("held", [1, 3, 9, 500])
def test_more_than_a_few_bytes_left_over_of_a_large_file_are_seen_while_it_is_decoded(held: int) -> None:
    data = encode(LARGE, quality=97)
    end = data.rindex(b"\xff\xd9")
    assert fed(data)[0]
    more = data[:end] + random.Random(held).randbytes(held).replace(b"\xff", b"U") + data[end:]
    seen, pixels = fed(more)
    slow = stream_doubts(more, pixels, decode)
    assert stream_doubts(more, pixels, decode, needs_end=seen) == slow == ([LEFT_OVER] if held >= 4 else [])


def test_a_large_picture_is_decoded_once_more_and_no_oftener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.jpg").write_bytes(encode(LARGE, quality=97))
    decoded: list[bytes] = []
    monkeypatch.setattr(raster_parse, "_decode_jpeg", lambda data: decoded.append(data) or decode(data))
    header, _ = raster_parse.parse_raster({"path": tmp_path / "a.jpg", "max_side_px": 600, "max_pixels": 1 << 20})
    assert (header["doubts"], len(decoded)) == ([], 1)


def test_a_missing_scan_of_a_component_is_named() -> None:
    """Each component in a scan of its own, the last one lost."""
    data = encode(picture(40, 48, 60, colour=True), quality=80, progressive=True)
    scans = [place for place in range(len(data)) if data[place : place + 2] == b"\xff\xda"]
    lost = data[: scans[-1]] + b"\xff\xd9"
    assert "the JPEG data lacks a part of its scans" in stream_doubts(lost, decode(lost), decode)
