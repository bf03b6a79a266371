"""Compressed voxels are read to their checksums, whatever the size of what comes."""

from __future__ import annotations

import bz2
import gzip
import io
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radweave.core.errors import InputError
from radweave.io.volume_parse import (
    MAX_EMPTY_MEMBERS,
    MAX_PADDING_BYTES,
    GzipStream,
    bunzip_exactly,
    inflate_exactly,
    read_to_end,
)

PACKERS: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes, int], tuple[bytes, int]]]] = {
    "zlib": (zlib.compress, inflate_exactly),
    "gzip": (gzip.compress, inflate_exactly),
    "bzip2": (bz2.compress, bunzip_exactly),
}


@pytest.mark.parametrize("kind", PACKERS)
@given(plain=st.binary(min_size=1, max_size=400))
def test_exactly_what_is_needed_comes_out(kind: str, plain: bytes) -> None:
    pack, unpack = PACKERS[kind]
    assert unpack(pack(plain), len(plain)) == (plain, 0)
    assert unpack(pack(plain) + bytes(9), len(plain)) == (plain, 0), "padding"
    assert unpack(pack(plain) + b"rest", len(plain)) == (plain, 4)
    for need, message in ((len(plain) + 1, "fewer"), (len(plain) - 1, "more")):
        with pytest.raises(InputError, match=message):
            unpack(pack(plain), need)


@pytest.mark.parametrize("kind", PACKERS)
def test_each_missing_byte_is_noticed(kind: str) -> None:
    pack, unpack = PACKERS[kind]
    plain = bytes(range(256)) * 8
    packed = pack(plain)
    for length in range(len(packed)):
        with pytest.raises(InputError):
            unpack(packed[:length], len(plain))


def test_a_gzip_of_several_members_is_one() -> None:
    packed = gzip.compress(b"abc") + gzip.compress(b"defg")
    assert inflate_exactly(packed, 7) == (b"abcdefg", 0)
    with pytest.raises(InputError, match="more"):
        inflate_exactly(packed, 5)
    with pytest.raises(InputError):
        inflate_exactly(packed[:-2], 7)


def test_a_bomb_is_not_unpacked() -> None:
    assert len(zlib.compress(bytes(1 << 22))) < 1 << 15
    with pytest.raises(InputError, match="more"):
        inflate_exactly(zlib.compress(bytes(1 << 22)), 1000)


def test_padding_is_read_up_to_a_cap() -> None:
    assert read_to_end(io.BytesIO(bytes(MAX_PADDING_BYTES))) == MAX_PADDING_BYTES
    with pytest.raises(InputError, match="more"):
        read_to_end(io.BytesIO(bytes(MAX_PADDING_BYTES + 1)))
    stream = io.BufferedReader(GzipStream(io.BytesIO(gzip.compress(bytes(500))[:-4])))
    assert stream.read(500) == bytes(500)
    with pytest.raises(InputError, match="truncated"):
        read_to_end(stream)


def test_empty_members_are_counted_and_come_to_an_end() -> None:
    """Each is 20 bytes of nothing: a file of 100 MB has five million of them."""
    empty, packed = gzip.compress(b""), gzip.compress(b"abcdefg")
    assert inflate_exactly(empty * MAX_EMPTY_MEMBERS + packed, 7) == (b"abcdefg", 0)
    for data in (empty * 200_000 + packed, packed + empty * 200_000):
        with pytest.raises(InputError, match="empty parts"):
            inflate_exactly(data, 7)


@given(st.binary(max_size=3000), st.integers(1, 900), st.data())
def test_a_stream_reads_as_the_library_s_does(plain: bytes, part: int, draw: st.DataObject) -> None:
    packed = b"".join(gzip.compress(plain[at : at + part]) for at in range(0, len(plain), part)) or gzip.compress(b"")
    packed += bytes(draw.draw(st.sampled_from([0, 1, 12])))
    ours, theirs = io.BufferedReader(GzipStream(io.BytesIO(packed))), gzip.GzipFile(fileobj=io.BytesIO(packed))
    for _ in range(6):
        if draw.draw(st.booleans()):
            place = draw.draw(st.integers(0, len(plain)))
            ours.seek(place)
            theirs.seek(place)
        count = draw.draw(st.integers(0, 1200))
        assert ours.read(count) == theirs.read(count)
    assert ours.read() == theirs.read()
