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

from radweave.base.errors import InputError
from radweave.data.reading.inflate import MAX_PADDING_BYTES, bunzip_exactly, inflate_exactly, read_to_end

PACKERS: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes, int], bytes]]] = {
    "zlib": (zlib.compress, inflate_exactly),
    "gzip": (gzip.compress, inflate_exactly),
    "bzip2": (bz2.compress, bunzip_exactly),
}


@pytest.mark.parametrize("kind", PACKERS)
@given(plain=st.binary(min_size=1, max_size=400))
def test_exactly_what_is_needed_comes_out(kind: str, plain: bytes) -> None:
    pack, unpack = PACKERS[kind]
    assert unpack(pack(plain), len(plain)) == plain
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
    assert inflate_exactly(packed, 7) == b"abcdefg"
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
    stream = gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(bytes(500))[:-4]))
    assert stream.read(500) == bytes(500)
    with pytest.raises(EOFError):
        read_to_end(stream)
