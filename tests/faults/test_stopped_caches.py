"""A cache whose building was stopped or killed goes on where it was, and ends as if nothing had happened."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from radweave.core.errors import InputError
from radweave.data.cache import parts, squares
from radweave.data.cache.images import PixelCache, build_cache, cache_key
from radweave.data.dataset import Dataset
from tests.toys import toy_image, write_toy_dataset

SIZE = 16
SHARD = 4
STOP_AT = 11
KEPT_ROWS = 8
"""Of eleven images that were read in shards of four."""


class KilledError(BaseException):
    pass


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    monkeypatch.setattr(parts, "SHARD", SHARD)
    return write_toy_dataset(tmp_path / "data", tmp_path / "sources")


def stop(done: int, total: int) -> None:
    if done == STOP_AT:
        raise KilledError


def building(dataset: Dataset) -> Path:
    return dataset.path / ".cache" / f"{cache_key(dataset, SIZE, None)}.building"


def killed(dataset: Dataset) -> None:
    with pytest.raises(KilledError):
        build_cache(dataset, size=SIZE, progress=stop)
    assert len((building(dataset) / parts.JOURNAL).read_text().splitlines()) == KEPT_ROWS


def rebuilt(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> tuple[PixelCache, int]:
    """The cache, and how many images were read for it."""
    read, reading = [0], squares.read_square

    def counted(*args: object) -> NDArray[np.uint8]:
        read[0] += 1
        return reading(*args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(squares, "read_square", counted)
        cache = build_cache(dataset, size=SIZE)
    assert not building(dataset).exists()
    return cache, read[0]


def in_one_go(dataset: Dataset, tmp_path: Path) -> PixelCache:
    other = write_toy_dataset(tmp_path / "other", tmp_path / "sources")
    for image in sorted((dataset.path / "images").iterdir()):
        (other.path / "images" / image.name).write_bytes(image.read_bytes())
    return build_cache(other, size=SIZE)


def same(one: PixelCache, other: PixelCache) -> bool:
    return (one.rows, one.unreadable, one.digest) == (other.rows, other.unreadable, other.digest) and np.array_equal(
        np.asarray(one.pixels), np.asarray(other.pixels)
    )


def test_a_killed_build_loses_less_than_a_shard(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (dataset.path / "images" / sorted(p.name for p in (dataset.path / "images").iterdir())[2]).write_bytes(b"nothing")
    killed(dataset)
    cache, read = rebuilt(dataset, monkeypatch)
    assert read == len(cache.rows) + len(cache.unreadable) - KEPT_ROWS
    assert len(cache.unreadable) == 1
    assert same(cache, in_one_go(dataset, tmp_path))


def test_an_image_that_changed_meanwhile_is_read_again(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(dataset)
    fifth = json.loads((building(dataset) / parts.JOURNAL).read_text().splitlines()[4])[0]
    toy_image(dataset.path / fifth, bright_side="right", seed=99)
    cache, read = rebuilt(dataset, monkeypatch)
    assert read == len(cache.rows) - 4
    assert same(cache, in_one_go(dataset, tmp_path))


@pytest.mark.parametrize("harm", ["a torn line", "a changed row", "a cut file", "no rows", "another's line"])
def test_rows_damaged_after_opening_are_read_again(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    killed(dataset)
    journal, rows = building(dataset) / parts.JOURNAL, building(dataset) / parts.PIXELS
    lines = journal.read_text().splitlines(keepends=True)
    if harm == "a torn line":
        journal.write_text("".join(lines[:5]) + lines[5][:7])
    elif harm == "another's line":
        other = json.dumps(["images/none.png", *json.loads(lines[5])[1:]])
        journal.write_text("".join([*lines[:5], other + "\n", *lines[6:]]))
    elif harm == "no rows":
        rows.unlink()
    else:
        data = bytearray(rows.read_bytes())
        data[128 + 5 * SIZE * SIZE] ^= 255
        rows.write_bytes(data if harm == "a changed row" else data[: 128 + 5 * SIZE * SIZE + 3])
    cache, read = rebuilt(dataset, monkeypatch)
    assert read == len(cache.rows) - (0 if harm == "no rows" else 5)
    assert same(cache, in_one_go(dataset, tmp_path))


def test_a_row_is_on_disk_before_its_journal_line(tmp_path: Path) -> None:
    row = np.full((SIZE, SIZE), 7, dtype=np.uint8)
    with parts.partial_array(tmp_path / "cache", (2, SIZE, SIZE), ["a", "b"], {"a": "1", "b": "1"}) as rows:
        rows.append("a", "1", row)
        rows.flush()
        folder = tmp_path / "cache.building"
        assert len((folder / parts.JOURNAL).read_text().splitlines()) == 1
        assert (folder / parts.PIXELS).read_bytes().endswith(row.tobytes())


def test_rows_are_not_written_through_a_link(tmp_path: Path) -> None:
    folder = tmp_path / "cache.building"
    folder.mkdir()
    (tmp_path / "mine").write_text("mine")
    (folder / parts.PIXELS).symlink_to(tmp_path / "mine")
    with pytest.raises(InputError, match="symbolic link"):  # noqa: SIM117
        with parts.partial_array(tmp_path / "cache", (1, SIZE, SIZE), ["a"], {"a": "1"}):
            pass
    assert (tmp_path / "mine").read_text() == "mine"
