"""Decode a grey sequential JPEG (ITU-T T.81, baseline and extended processes 1, 2 and 4), 8 or 12 bits.

T.81 leaves the arithmetic of the inverse cosine transform open, and decoders differ by one grey level. This one rounds
where the standard's reference software (ITU-T T.873, ISO/IEC 10918-7) does: constants with 9 fractional bits, four more
bits kept until the end, rows before columns. It also reads 12 bits, which the common free libraries do not.

Huffman decoding is the part that is slow in Python: what each bit position would mean as the beginning of a code is
looked up for the whole scan at once, and only the walk from code to code is a loop.

Colour, progressive, lossless and arithmetic-coded images are refused. Runs in the reading process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from radweave.base.errors import InputError

BLOCK: Final = 8
_END_OF_BLOCK: Final = 64
_NO_CODE: Final = 255
_LOOKAHEAD: Final = 16
_FIX_BITS: Final = 9
_EXTRA_BITS: Final = 4
_SOF_SEQUENTIAL: Final = (0xC0, 0xC1)
_SOF_OTHERS: Final = frozenset({0xC2, 0xC3, *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0)})
# Row-major place of the k-th coefficient in zig-zag order (T.81 Figure A.6).
ZIGZAG: Final = np.array(
    sorted(range(64), key=lambda i: (i // 8 + i % 8, (i // 8 if (i // 8 + i % 8) % 2 else i % 8))), dtype=np.intp
)

# For the next 16 bits: the length of the code they begin with (0: none) and its symbol.
_Codes = tuple[NDArray[np.uint8], NDArray[np.uint8]]


@dataclass(slots=True)
class _Frame:
    precision: int = 0
    rows: int = 0
    columns: int = 0
    quantisation: int = 0
    restart_interval: int = 0
    tables: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    codes: dict[int, _Codes] = field(default_factory=dict)


def damaged(reason: str) -> InputError:
    return InputError(f"the JPEG data is damaged: {reason}", field="PixelData")


def decode_grey(data: bytes) -> tuple[NDArray[np.uint16], bool]:
    """Pixels (rows, columns) of one JPEG image, and whether the data ended exactly with the last block.

    A changed bit shifts all codes after it, so that the blocks rarely end where the data does.

    Raises:
        InputError: if the stream is damaged, cut, or of a kind that is not decoded here.
    """
    frame = _Frame()
    position = 2
    if data[:2] != b"\xff\xd8":
        raise damaged("no start of image")
    while True:
        marker, start, end = _segment(data, position)
        body = data[start:end]
        if marker in _SOF_SEQUENTIAL:
            _read_frame(frame, body)
        elif marker in _SOF_OTHERS:
            raise InputError("progressive, lossless or arithmetic JPEG is not decoded here", field="PixelData")
        elif marker == 0xDB:
            _read_quantisation(frame, body)
        elif marker == 0xC4:
            _read_codes(frame, body)
        elif marker == 0xDD:
            frame.restart_interval = int.from_bytes(body[:2], "big")
        elif marker == 0xD9:
            raise damaged("no scan before the end of image")
        elif marker == 0xDA:
            coefficients, exact = _scan(frame, body, data[end:])
            return _pixels(frame, coefficients), exact
        position = end


def _segment(data: bytes, position: int) -> tuple[int, int, int]:
    """Marker at ``position``, and where its parameters begin and end (T.81 B.1.1)."""
    if data[position : position + 1] != b"\xff":
        raise damaged("a marker is missing")
    while data[position : position + 1] == b"\xff":  # fill bytes
        position += 1
    if position + 3 > len(data):
        raise damaged("it ends in its header")
    marker = data[position]
    if marker == 0xD9:
        return marker, position + 1, position + 1
    end = position + 1 + int.from_bytes(data[position + 1 : position + 3], "big")
    if end > len(data) or end < position + 3:
        raise damaged("it ends in its header")
    return marker, position + 3, end


def _read_frame(frame: _Frame, body: bytes) -> None:
    if len(body) < 9 or frame.rows:
        raise damaged("the frame header")
    if body[5] != 1:
        raise InputError("colour JPEG is not decoded here", field="PixelData")
    frame.precision = body[0]
    frame.rows, frame.columns = int.from_bytes(body[1:3], "big"), int.from_bytes(body[3:5], "big")
    frame.quantisation = body[8]
    if frame.precision not in (8, 12) or not frame.rows or not frame.columns:
        raise damaged("the frame header")


def _read_quantisation(frame: _Frame, body: bytes) -> None:
    while body:
        width = 2 if body[0] >> 4 else 1
        if len(body) < 1 + 64 * width:
            raise damaged("a quantisation table")
        values = np.frombuffer(body, dtype=">u2" if width == 2 else "u1", count=64, offset=1)
        frame.tables[body[0] & 15] = values.astype(np.int64)
        body = body[1 + 64 * width :]


def _read_codes(frame: _Frame, body: bytes) -> None:
    """Huffman tables (T.81 Annex C) as lookups by the next 16 bits."""
    while body:
        counts = body[1:17]
        total = sum(counts)
        if len(counts) < 16 or len(body) < 17 + total:
            raise damaged("a Huffman table")
        lengths, symbols = np.zeros(1 << 16, np.uint8), np.zeros(1 << 16, np.uint8)
        code, index = 0, 17
        for bits, count in enumerate(counts, start=1):
            for _ in range(count):
                span = 1 << (_LOOKAHEAD - bits)
                if (code + 1) * span > 1 << _LOOKAHEAD:
                    raise damaged("a Huffman table")
                lengths[code * span : (code + 1) * span] = bits
                symbols[code * span : (code + 1) * span] = body[index]
                code, index = code + 1, index + 1
            code <<= 1
        frame.codes[body[0]] = lengths, symbols
        body = body[17 + total :]


def _scan(frame: _Frame, header: bytes, data: bytes) -> tuple[NDArray[np.int64], bool]:
    """Coefficients (blocks, 64) in zig-zag order, DC summed up, still quantised (T.81 F.2); and if the data fits."""
    if not frame.rows or len(header) < 6 or header[0] != 1:
        raise damaged("the scan header")
    if header[3:6] != b"\0\x3f\0":
        raise damaged("its scan claims a part of the coefficients, which only a progressive JPEG has")
    try:
        dc, ac = frame.codes[header[2] >> 4], frame.codes[0x10 | header[2] & 15]
    except KeyError:
        raise damaged("a Huffman table is missing") from None
    blocks = -(-frame.rows // BLOCK) * -(-frame.columns // BLOCK)
    coefficients = np.zeros((blocks, 64), dtype=np.int64)
    done, exact = 0, True
    parts = _restart_parts(data)
    for part in parts:
        count = min(frame.restart_interval or blocks, blocks - done)
        unused = _entropy_decode(part, dc, ac, coefficients[done : done + count])
        exact = exact and unused < 8
        done += count
        if done == blocks:
            break
    if done < blocks:
        raise damaged("it ends before its last block")
    return coefficients, exact


def _restart_parts(data: bytes) -> list[NDArray[np.uint8]]:
    """Entropy-coded bytes up to the next marker that is no restart, split at restarts, stuffed zeros removed."""
    raw = np.frombuffer(data, dtype=np.uint8)
    escapes = np.flatnonzero(raw[:-1] == 0xFF)
    after = raw[escapes + 1]
    markers = escapes[(after != 0) & (after != 0xFF)]
    parts, start = [], 0
    for place in [*markers.tolist(), len(raw)]:
        piece = raw[start:place]
        keep = np.ones(len(piece), dtype=bool)
        keep[1:] = ~((piece[:-1] == 0xFF) & (piece[1:] == 0))
        parts.append(piece[keep])
        start = place + 2
        if place == len(raw) or not 0xD0 <= raw[place + 1] <= 0xD7:
            break
    return parts


def _entropy_decode(part: NDArray[np.uint8], dc: _Codes, ac: _Codes, out: NDArray[np.int64]) -> int:
    """Fill ``out`` (blocks, 64) from one restart interval, DC prediction starting at 0; give the bits left over."""
    windows = _bit_windows(part)
    dc_step, _ = _steps(windows, dc, is_dc=True)
    ac_step, ac_advance = _steps(windows, ac, is_dc=False)
    starts: list[int] = []
    places: list[int] = []
    targets: list[int] = []
    position = 0
    try:
        for base in range(0, 64 * len(out), 64):
            starts.append(position)
            position += dc_step[position]
            k = 0
            while k < 63:
                advance = ac_advance[position]
                k += advance
                if k < 64:
                    places.append(position)
                    targets.append(base + k)
                elif advance != _END_OF_BLOCK:
                    raise damaged("a code that is none, or a run that leaves its block")
                position += ac_step[position]
    except IndexError:
        raise damaged("it ends before its last block") from None
    if position > len(windows):
        raise damaged("it ends before its last block")
    first = np.array(starts, dtype=np.intp)
    if not np.frombuffer(dc_step, np.uint8)[first].all():
        raise damaged("a code that is none")
    out.reshape(-1)[targets] = _values(windows[np.array(places, dtype=np.intp)], ac)
    out[:, 0] = np.cumsum(_values(windows[first], dc))
    return len(windows) - position


def _bit_windows(part: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """For each bit position the 32 bits that begin there; beyond the end come ones (T.81 F.1.2.3)."""
    padded = np.concatenate([part, np.full(4, 0xFF, np.uint8)])
    words = np.zeros(len(part), dtype=np.uint32)
    for byte in range(4):
        words = (words << np.uint32(8)) | padded[byte : byte + len(part)]
    windows = np.empty((len(part), 8), dtype=np.uint32)
    windows[:, 0] = words
    for bit in range(1, 8):
        windows[:, bit] = (words << np.uint32(bit)) | (padded[4:] >> np.uint8(8 - bit))
    return windows.reshape(-1)


def _steps(windows: NDArray[np.uint32], codes: _Codes, *, is_dc: bool) -> tuple[bytes, bytes]:
    """For each bit position, how many bits and how many coefficients the code there moves on.

    A position without a valid code has 0 bits and ``_NO_CODE`` coefficients.
    """
    lengths, symbols = codes
    size = symbols if is_dc else symbols & 15
    bits = np.where((lengths == 0) | (size > 15), 0, lengths + size).astype(np.uint8)
    advance = ((symbols >> 4) + 1).astype(np.uint8)
    advance[(symbols & 15 == 0) & (symbols != 0xF0)] = _END_OF_BLOCK
    advance[lengths == 0] = _NO_CODE
    index = (windows >> np.uint32(16)).astype(np.uint16)
    return bits[index].tobytes(), advance[index].tobytes()


def _values(windows: NDArray[np.uint32], codes: _Codes) -> NDArray[np.int64]:
    """The signed value behind each code (T.81 F.2.2.1, EXTEND)."""
    lengths, symbols = codes
    wide = windows.astype(np.int64)
    index = wide >> 16
    length, size = lengths[index].astype(np.int64), symbols[index].astype(np.int64) & 15
    extra = (wide >> (32 - length - size)) & ((1 << size) - 1)
    negative = extra < (1 << np.maximum(size - 1, 0))
    return np.where(size == 0, 0, np.where(negative, extra - (1 << size) + 1, extra))


def _integer_basis() -> NDArray[np.float64]:
    """Basis [x, u] of the one-dimensional inverse transform, times 2**_FIX_BITS, in whole numbers.

    Built from the rotations of C. Loeffler, A. Ligtenberg, G. Moschytz, "Practical fast 1-D DCT algorithms with 11
    multiplications", ICASSP 1989, each constant rounded on its own.
    """
    c = np.sqrt(2) * np.cos(np.arange(8) * np.pi / 16)

    def fixed(value: float) -> float:
        return float(np.floor(value * (1 << _FIX_BITS) + 0.5))

    one, turn = float(1 << _FIX_BITS), fixed(c[6])
    high, low = turn + fixed(c[2] - c[6]), turn - fixed(c[2] + c[6])
    even = np.zeros((4, 8))
    even[:, 0] = one
    even[:, 4] = one, -one, -one, one
    even[:, 2] = high, turn, -turn, -high
    even[:, 6] = turn, low, -low, -turn
    inner = np.full((4, 4), fixed(c[3]))  # on the coefficients 7, 5, 3, 1; for the samples 3, 2, 1, 0
    for pair, value in (((0, 3), c[3] - c[7]), ((1, 2), c[1] + c[3]), ((0, 2), c[3] + c[5]), ((1, 3), c[3] - c[5])):
        inner[np.ix_(pair, pair)] -= fixed(value)
    signs = np.array([[-1, 1, 1, -1], [1, 1, -1, 1], [1, 1, 1, -1], [1, 1, -1, -1]])
    inner += np.diag([fixed(v) for v in signs @ c[[1, 3, 5, 7]]])
    odd = np.zeros((4, 8))
    odd[:, [7, 5, 3, 1]] = inner[::-1]
    return np.concatenate([even + odd, (even - odd)[::-1]])


def _pixels(frame: _Frame, coefficients: NDArray[np.int64]) -> NDArray[np.uint16]:
    if frame.quantisation not in frame.tables:
        raise damaged("a quantisation table is missing")
    natural = np.zeros(coefficients.shape, dtype=np.float64)
    natural[:, ZIGZAG] = coefficients * frame.tables[frame.quantisation]
    basis = _integer_basis()
    blocks = natural.reshape(-1, BLOCK, BLOCK) * (1 << _EXTRA_BITS)
    across = np.floor(blocks @ basis.T / (1 << _FIX_BITS) + 0.5)
    samples = np.floor(basis @ across / (1 << (_FIX_BITS + 3)) + 0.5)
    levels = np.floor(samples / (1 << _EXTRA_BITS) + 0.5) + (1 << (frame.precision - 1))
    high, wide = -(-frame.rows // BLOCK), -(-frame.columns // BLOCK)
    image = levels.reshape(high, wide, BLOCK, BLOCK).swapaxes(1, 2).reshape(high * BLOCK, wide * BLOCK)
    image = np.clip(image[: frame.rows, : frame.columns], 0, (1 << frame.precision) - 1)
    return np.ascontiguousarray(image, dtype=np.uint16)
