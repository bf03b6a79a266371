"""Our JPEG decoder against Pillow, and against images coded here by the equations of the standard."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from image_files import chest
from radweave.base.errors import InputError
from radweave.data.reading.jpeg import ZIGZAG, decode_grey


def pillow_jpeg(image: np.ndarray, **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", **options)
    return buffer.getvalue()


@pytest.mark.parametrize("options", [{"quality": 30}, {"quality": 75}, {"quality": 100}, {"optimize": True},
                                     {"restart_marker_blocks": 7}, {"restart_marker_rows": 1}])  # fmt: skip
@pytest.mark.parametrize("shape", [(64, 64), (61, 83), (8, 8), (1, 17)])
def test_within_one_level_of_another_decoder(options: dict[str, object], shape: tuple[int, int]) -> None:
    image = np.random.default_rng(3).integers(0, 256, shape).astype(np.uint8)
    image = np.asarray(Image.fromarray(image).resize(shape[::-1]), dtype=np.uint8) // 2 + 60
    data = pillow_jpeg(image, **options)
    pixels, exact = decode_grey(data)
    other = np.asarray(Image.open(io.BytesIO(data)))
    assert exact
    # T.81 leaves the rounding of the transform open; one level is what decoders differ by.
    assert int(np.abs(pixels.astype(int) - other).max()) <= 1


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
def test_images_coded_here_come_back(precision: int, restart: int, shape: tuple[int, int]) -> None:
    image = np.rint(chest(*shape, noise=0.02) * ((1 << precision) - 1)).astype(int)
    pixels, exact = decode_grey(encode(image, precision=precision, step=1, restart=restart))
    assert exact
    # Quantising 64 coefficients by 1 leaves an error of standard deviation 0.29 a pixel; 9-bit constants add one
    # part in a thousand of the largest coefficient.
    assert float(np.abs(pixels.astype(int) - image).mean()) < 1
    assert int(np.abs(pixels.astype(int) - image).max()) <= 2 + (1 << precision) // 1000


def test_leftover_data_is_noticed() -> None:
    data = encode(np.full((16, 16), 100), precision=8, step=1)
    assert decode_grey(data)[1]
    assert not decode_grey(data[:-2] + b"\x55\x55\xff\xd9")[1]


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_damage_is_an_input_error_or_an_image(data: st.DataObject) -> None:
    whole = bytearray(pillow_jpeg(np.rint(chest(32, 40) * 255).astype(np.uint8)))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(2, len(whole) - 1))] = data.draw(st.integers(0, 255))
    whole = whole[: data.draw(st.integers(2, len(whole)))]
    try:
        pixels, _ = decode_grey(bytes(whole))
    except InputError:
        return
    assert pixels.ndim == 2


def test_progressive_and_colour_are_refused() -> None:
    grey = np.rint(chest() * 255).astype(np.uint8)
    with pytest.raises(InputError, match="progressive"):
        decode_grey(pillow_jpeg(grey, progressive=True))
    with pytest.raises(InputError, match="colour"):
        decode_grey(pillow_jpeg(np.stack([grey] * 3, axis=2)))
