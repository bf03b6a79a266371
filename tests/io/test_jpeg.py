"""Grey JPEG frames of DICOM, and the ends of JPEG data."""

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
from pydicom.encaps import encapsulate
from pydicom.uid import JPEGExtended12Bit

from radweave.core.errors import InputError
from radweave.io import raster_parse, worker
from radweave.io import raster_parse as jpeg_feed
from radweave.io.codestreams import decode_grey
from radweave.io.dicom import display, read_dicom
from radweave.io.raster_parse import LEFT_OVER, layout_of, load_jpeg, stream_doubts
from tests.image_files import chest, dataset, save

# Row-major place of the k-th coefficient in zig-zag order (T.81 Figure A.6).
ZIGZAG = sorted(range(64), key=lambda i: (i // 8 + i % 8, i // 8 if (i // 8 + i % 8) % 2 else i % 8))


def pillow_jpeg(image: np.ndarray, **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", **options)  # type: ignore[arg-type]
    return buffer.getvalue()


def encode(image: np.ndarray, *, precision: int, step: int, restart: int = 0) -> bytes:
    """A sequential JPEG with one quantiser step for all and Huffman codes of one length; after T.81 A.3.3, F.1.2."""
    rows, columns = image.shape
    x, u = np.arange(8)[:, None], np.arange(8)[None, :]
    basis = np.where(u == 0, np.sqrt(0.5), 1.0) / 2 * np.cos((2 * x + 1) * u * np.pi / 16)
    high, wide = -(-rows // 8), -(-columns // 8)
    padded = np.pad(image.astype(float), ((0, high * 8 - rows), (0, wide * 8 - columns)), mode="edge")
    blocks = padded.reshape(high, 8, wide, 8).swapaxes(1, 2).reshape(-1, 8, 8) - (1 << (precision - 1))
    values = np.rint((basis.T @ blocks @ basis).reshape(-1, 64)[:, ZIGZAG] / step).astype(int)

    symbols = [run << 4 | size for run in range(16) for size in range(1, 15)] + [0x00, 0xF0]
    ac = {symbol: (code, 8) for code, symbol in enumerate(symbols)}
    dc = {size: (size, 5) for size in range(16)}
    parts, bits, last = [], "", 0

    def put(code: int, length: int) -> str:
        return format(code, f"0{length}b") if length else ""

    def extra(value: int) -> tuple[int, str]:
        size = int(abs(value)).bit_length()
        return size, put(value if value > 0 else value + (1 << size) - 1, size)

    for index, block in enumerate(values):
        if restart and index and index % restart == 0:
            parts.append(bits)
            bits, last = "", 0
        size, tail = extra(int(block[0]) - last)
        last = int(block[0])
        bits += put(*dc[size]) + tail
        run = 0
        for value in block[1 : 1 + int(np.flatnonzero(block[1:]).max(initial=-1)) + 1]:
            if value == 0:
                run += 1
                continue
            while run > 15:
                bits += put(*ac[0xF0])
                run -= 16
            size, tail = extra(int(value))
            bits += put(*ac[run << 4 | size]) + tail
            run = 0
        if block[63] == 0:
            bits += put(*ac[0x00])
    parts.append(bits)

    def segment(marker: int, body: bytes) -> bytes:
        return bytes([0xFF, marker]) + (len(body) + 2).to_bytes(2, "big") + body

    def packed(text: str) -> bytes:
        text += "1" * (-len(text) % 8)
        return int("1" + text, 2).to_bytes(len(text) // 8 + 1, "big")[1:].replace(b"\xff", b"\xff\0")

    def table(kind: int, length: int, codes: list[int]) -> bytes:
        counts = [0] * 16
        counts[length - 1] = len(codes)
        return bytes([kind, *counts, *codes])

    frame = bytes([precision]) + rows.to_bytes(2, "big") + columns.to_bytes(2, "big") + bytes([1, 1, 0x11, 0])
    quantiser = b"\x10" + step.to_bytes(2, "big") * 64
    scan = b"".join(
        (b"" if i == 0 else bytes([0xFF, 0xD0 + (i - 1) % 8])) + packed(part) for i, part in enumerate(parts)
    )
    return b"".join(
        [b"\xff\xd8", segment(0xDB, quantiser), segment(0xC1, frame), segment(0xC4, table(0x00, 5, list(range(16)))),
         segment(0xC4, table(0x10, 8, symbols)), segment(0xDD, restart.to_bytes(2, "big")),
         segment(0xDA, b"\x01\x01\x00\x00\x3f\x00"), scan, b"\xff\xd9"]
    )  # fmt: skip


@pytest.mark.parametrize("precision", [8, 12])
@pytest.mark.parametrize("restart", [0, 3])
@pytest.mark.parametrize("shape", [(40, 56), (37, 21)])
def test_encoded_frames_decode(precision: int, restart: int, shape: tuple[int, int]) -> None:
    image = np.rint(chest(*shape, noise=0.02) * ((1 << precision) - 1)).astype(int)
    pixels, doubts = decode_grey(encode(image, precision=precision, step=1, restart=restart), shape)
    assert doubts == []
    # Rounding 64 coefficients to whole numbers leaves an error of standard deviation 0.29 a pixel: 2 is beyond 6 of it.
    assert int(np.abs(pixels.astype(int) - image).max()) <= 2


@pytest.mark.parametrize("precision", [8, 12])
@pytest.mark.parametrize("restart", [0, 5])
def test_leftover_data_is_detected(precision: int, restart: int) -> None:
    image = np.rint(chest(32, 32, noise=0.05) * ((1 << precision) - 1)).astype(int)
    data = encode(image, precision=precision, step=1, restart=restart)
    assert decode_grey(data, (32, 32))[1] == []
    assert decode_grey(data[:-2] + b"\x55" * 12 + b"\xff\xd9", (32, 32))[1] == [LEFT_OVER]


@pytest.mark.parametrize("precision", [8, 12])
@pytest.mark.parametrize("restart", [0, 3])
@pytest.mark.parametrize("share", [0.4, 0.8, 0.97])
def test_a_cut_frame_is_refused(precision: int, restart: int, share: float) -> None:
    data = encode(np.rint(chest(48, 40, noise=0.05) * ((1 << precision) - 1)).astype(int), precision=precision,
                  step=1, restart=restart)  # fmt: skip
    for end in (b"", b"\xff\xd9"):
        with pytest.raises(InputError, match="the JPEG data is damaged"):
            decode_grey(data[: int(share * len(data))] + end, (48, 40))


@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_damage_gives_an_input_error_or_an_image(data: st.DataObject) -> None:
    whole = bytearray(pillow_jpeg(np.rint(chest(32, 40) * 255).astype(np.uint8)))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(2, len(whole) - 1))] = data.draw(st.integers(0, 255))
    whole = whole[: data.draw(st.integers(0, len(whole)))]
    try:
        pixels, _ = decode_grey(bytes(whole), (32, 40))
    except InputError:
        return
    assert pixels.shape == (32, 40)


def test_frames_of_other_syntaxes_or_sizes_are_refused() -> None:
    grey = np.rint(chest() * 255).astype(np.uint8)
    with pytest.raises(InputError, match="progressive"):
        decode_grey(pillow_jpeg(grey, progressive=True), grey.shape)
    with pytest.raises(InputError, match="colour"):
        decode_grey(pillow_jpeg(np.stack([grey] * 3, axis=2)), grey.shape)
    with pytest.raises(InputError, match="another size"):
        decode_grey(pillow_jpeg(grey), (grey.shape[0] + 1, grey.shape[1]))


def test_overshoot_of_ten_bits_in_twelve_stays_white(tmp_path: Path) -> None:
    image = np.full((32, 32), 100)
    image[4:28, 4:28] = 1023
    frame = encode(image, precision=12, step=200)
    assert int(decode_grey(frame, (32, 32))[0].max()) > 1023
    ds = dataset(image, bits=10)
    ds.file_meta.TransferSyntaxUID = JPEGExtended12Bit
    ds.PixelData = encapsulate([frame])
    ds["PixelData"].is_undefined_length = True
    shown, _ = display(read_dicom(save(ds, tmp_path / "a.dcm")))
    assert float(shown[6:26, 6:26].min()) > 0.5


def test_a_file_that_crashes_the_reader_is_refused(tmp_path: Path) -> None:
    image = np.rint(chest(40, 56) * 4095).astype(int)
    frame = encode(image, precision=12, step=1)
    ds = dataset(image, bits=12)
    ds.file_meta.TransferSyntaxUID = JPEGExtended12Bit
    ds["PixelData"].is_undefined_length = True
    for changed in (frame[: frame.index(b"\xff\xda") + 9], frame.replace(b"\xff\xc4", b"\xff\xfe", 1), frame):
        ds.PixelData = encapsulate([changed])
        path = save(ds, tmp_path / "a.dcm")
        try:
            pixels = read_dicom(path).stored_pixels()
        except InputError:
            assert changed is not frame
    assert int(np.abs(pixels.astype(int) - image).max()) <= 2


def decode(data: bytes) -> worker.Array:
    with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
        return np.asarray(image)


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
def test_intact_jpegs_have_no_doubts(
    rows: int, columns: int, ground: int, colour: bool, quality: int, subsampling: int, progressive: bool,
    optimize: bool, restarts: int,
) -> None:  # fmt: skip
    options = {"quality": quality, "progressive": progressive, "optimize": optimize}
    if colour:
        options["subsampling"] = subsampling
    if restarts:
        options["restart_marker_blocks"] = restarts
    data = pillow_jpeg(picture(rows, columns, ground, colour), **options)
    assert stream_doubts(data, decode(data), decode) == []
    with mock.patch.object(jpeg_feed, "LARGE_BYTES", 2000):
        scans_read, pixels = fed(data)
    assert np.array_equal(pixels, decode(data))
    if progressive or restarts or len(data) < 2000:
        assert not scans_read
    assert stream_doubts(data + b"notes of a program", decode(data), decode) == []


@pytest.mark.parametrize("progressive", [False, True])
def test_missing_data_is_detected(progressive: bool) -> None:
    data = pillow_jpeg(picture(80, 64, 0, colour=False), quality=80, progressive=progressive)
    cut = data[: data.rindex(b"\xff\xda") + 30 if progressive else int(0.6 * len(data))] + b"\xff\xd9"
    result = stream_doubts(cut, decode(cut), decode)
    assert any("ends before the image" in text for text in result)


def test_left_over_data_is_detected() -> None:
    """The first scan's data with a piece of itself twice: the last blocks are decoded before the data ends."""
    data = pillow_jpeg(picture(80, 64, 90, colour=False)[:48], quality=80)
    start = data.index(b"\xff\xda") + 200
    more = data[:start] + data[start - 190 : start] + data[start:]
    assert stream_doubts(more, decode(more), decode) == ["the JPEG data does not end with the image"]


LARGE = np.random.default_rng(0).integers(0, 256, (512, 512), dtype=np.uint8)


@pytest.mark.parametrize("held", [1, 3, 9, 500])
def test_left_over_bytes_of_a_large_file_are_detected_while_decoding(held: int) -> None:
    data = pillow_jpeg(LARGE, quality=97)
    end = data.rindex(b"\xff\xd9")
    assert fed(data)[0]
    more = data[:end] + random.Random(held).randbytes(held).replace(b"\xff", b"U") + data[end:]
    scans_read, pixels = fed(more)
    slow = stream_doubts(more, pixels, decode)
    assert stream_doubts(more, pixels, decode, needs_end=scans_read) == slow == ([LEFT_OVER] if held >= 4 else [])


def test_a_large_image_is_decoded_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.jpg").write_bytes(pillow_jpeg(LARGE, quality=97))
    decoded: list[bytes] = []
    monkeypatch.setattr(raster_parse, "_decode_jpeg", lambda data: decoded.append(data) or decode(data))
    header, _ = raster_parse.parse_raster({"path": tmp_path / "a.jpg", "max_side_px": 600, "max_pixels": 1 << 20})
    assert (header["doubts"], len(decoded)) == ([], 1)


def test_a_missing_scan_is_detected() -> None:
    """Each component in a scan of its own, the last one lost."""
    data = pillow_jpeg(picture(40, 48, 60, colour=True), quality=80, progressive=True)
    scans = [place for place in range(len(data)) if data[place : place + 2] == b"\xff\xda"]
    lost = data[: scans[-1]] + b"\xff\xd9"
    assert "the JPEG data lacks a part of its scans" in stream_doubts(lost, decode(lost), decode)
