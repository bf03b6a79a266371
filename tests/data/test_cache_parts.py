"""A cache made in parts: the bytes of one made in one go, whatever became of the parts; scans, never all held."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from radweave.cli import app
from radweave.core.devices import usable_cores
from radweave.core.errors import InputError
from radweave.data.cache import ct, squares
from radweave.data.cache import parts as unfinished
from radweave.data.cache.images import build_cache, build_part, cache_key
from radweave.data.cache.parts import Part, parts_folder
from radweave.data.ct import CtPreprocessing
from radweave.data.dataset import Dataset
from radweave.engine import train as training
from radweave.phantom.study import PhantomOptions, write_phantom_dataset
from tests.toys import write_toy_dataset

SIZE = 16
PARTS = [Part(number, 3) for number in (1, 2, 3)]
SCANS = CtPreprocessing(size=(4, 16, 16), fit="resize")


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    made = write_toy_dataset(tmp_path / "data", tmp_path / "sources", counts=(6, 2, 2))
    images = sorted((made.path / "images").iterdir())
    images[2].write_bytes(b"no image")
    return made


def scans_in(folder: Path) -> Dataset:
    small = PhantomOptions(prevalence="balanced", volume_size=16, slices=8)
    return write_phantom_dataset(folder / "data", modality="ct", num_studies=8, seed=0, options=small)


def files_of(dataset: Dataset) -> dict[str, bytes]:
    folder = dataset.path / ".cache"
    names = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in names}


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    read: list[str] = []
    reading: Callable[..., NDArray[np.uint8]] = squares.read_square

    def noted(of: Dataset, ref: object, size: int) -> NDArray[np.uint8]:
        read.append(getattr(ref, "path"))  # noqa: B009
        return reading(of, ref, size)

    monkeypatch.setattr(squares, "read_square", noted)
    return read


def test_parts_together_are_the_bytes_of_one(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = build_cache(dataset, size=SIZE)
    (key,) = (path.name for path in (dataset.path / ".cache").iterdir() if path.is_dir())
    pixels = (dataset.path / ".cache" / key / "pixels.npy").read_bytes()
    for path in (dataset.path / ".cache" / key).iterdir():
        path.unlink()
    read = counted(monkeypatch)
    made = [build_part(dataset, part, size=SIZE) for part in reversed(PARTS)]
    assert sum(part.images for part in made) == len(read) == len(set(read)) == len(whole.rows) + 1
    assert sum(len(part.unreadable) for part in made) == len(whole.unreadable) == 1
    read.clear()
    assert build_part(dataset, PARTS[0], size=SIZE).images == made[2].images
    assert read == [], "a part that is there is not made again"
    rebuilt = build_cache(dataset, size=SIZE)
    assert read == []
    assert (rebuilt.rows, rebuilt.unreadable, rebuilt.sums, rebuilt.digest) == (
        whole.rows, whole.unreadable, whole.sums, whole.digest,
    )  # fmt: skip
    assert (dataset.path / ".cache" / key / "pixels.npy").read_bytes() == pixels
    assert not list((dataset.path / ".cache").glob("*.parts")), "parts go when the whole is there"
    assert not build_part(dataset, PARTS[1], size=SIZE).is_needed


def test_images_missing_from_parts_are_read(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part was not made, one was killed, one has a damaged row, and an image of one changed since."""

    class KilledError(BaseException):
        pass

    def stop(done: int, total: int) -> None:
        if done == total - 1:
            raise KilledError

    monkeypatch.setattr(unfinished, "SHARD", 2)
    whole = build_cache(dataset, size=SIZE)
    folder = dataset.path / ".cache" / cache_key(dataset, SIZE, None)
    for path in folder.iterdir():
        path.unlink()
    build_part(dataset, PARTS[0], size=SIZE)
    with pytest.raises(KilledError):
        build_part(dataset, PARTS[1], size=SIZE, progress=stop)
    pixels = folder.with_name(folder.name + ".parts") / "1-of-3.building" / "pixels.npy"
    data = bytearray(pixels.read_bytes())
    data[-1] ^= 1
    pixels.write_bytes(data)
    first, *_ = list(whole.rows)
    (dataset.path / first).write_bytes((dataset.path / first).read_bytes())
    read = counted(monkeypatch)
    rebuilt = build_cache(dataset, size=SIZE)
    assert np.array_equal(rebuilt.pixels, whole.pixels)
    own = len(PARTS[0].select(range(len(whole.rows) + 1)))
    assert 4 <= len(read) < len(whole.rows) + 1 - own + 3
    assert first in read


def test_scans_in_parts_are_those_of_one_and_never_all_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan is let go when it is written; of a finished cache nothing is read but what is asked for."""
    dataset, options = scans_in(tmp_path), SCANS
    held, most, prepare, store = [0], [0], ct.CtCache.prepare, ct.CtCache.store

    def prepared(cache: ct.CtCache, path: Path) -> NDArray[np.int16] | NDArray[np.uint8]:
        held[0] += 1
        most[0] = max(most[0], held[0])
        return prepare(cache, path)

    def stored(cache: ct.CtCache, place: Path, scan: NDArray[np.int16] | NDArray[np.uint8]) -> None:
        store(cache, place, scan)
        held[0] -= 1

    monkeypatch.setattr(ct.CtCache, "prepare", prepared)
    monkeypatch.setattr(ct.CtCache, "store", stored)
    made = [build_part(dataset, part, size=16, ct=options) for part in PARTS]
    in_parts = {name: data for name, data in files_of(dataset).items() if name.startswith("scans/")}
    assert sum(part.images for part in made) == len(in_parts) > 6
    assert held == [0]
    assert 1 <= most[0] <= usable_cores()
    opened: list[object] = []
    load = np.load

    def loaded(path: Path, **options: object) -> object:
        opened.append(options.get("mmap_mode"))
        return load(path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(np, "load", loaded)
    cache = build_cache(dataset, size=16, ct=options)
    assert {name: data for name, data in files_of(dataset).items() if name.startswith("scans/")} == in_parts
    assert not list((dataset.path / ".cache").glob("*.parts")), "locks go with the parts"
    assert set(opened) == {"r"}
    opened.clear()
    rebuilt = build_cache(dataset, size=16, ct=options)
    assert opened == [], "an untouched cache is opened without a look at its scans"
    assert isinstance(rebuilt.pixels[0], np.memmap)
    assert len(opened) == 1
    assert rebuilt.digest == cache.digest


def test_parts_by_command_line(dataset: Dataset) -> None:
    line = ["data", "cache", "baseline", str(dataset.path), f"data.image_size={SIZE}"]
    for part in ("1/2", "2/2"):
        done = CliRunner().invoke(app, [*line, "--part", part])
        assert done.exit_code == 0, done.output
        assert f"in part {part}" in done.stdout
    done = CliRunner().invoke(app, line)
    assert "cannot be read: 1 x" in done.stdout
    assert "whole already" in CliRunner().invoke(app, [*line, "--part", "1/2"]).stdout


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2", "1/1000000", "1/2/3"])
def test_a_part_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="no such part"):
        Part.of(text)


def test_every_image_is_in_one_part() -> None:
    for count in (1, 2, 3, 7, 20):
        parts = [Part(number, count).select(range(10)) for number in range(1, count + 1)]
        assert [item for part in parts for item in part] == list(range(10))


def test_concurrent_builders_wait_and_map_the_same_file(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks and other programs: each image is decoded once, and the system holds one copy of the pixels."""
    read = counted(monkeypatch)
    with ThreadPoolExecutor(max_workers=3) as pool:
        caches = list(pool.map(lambda _: build_cache(dataset, size=SIZE), range(3)))
    assert len(read) == len(set(read)) == len(caches[0].rows) + 1
    assert all(isinstance(cache.pixels, np.memmap) for cache in caches)
    inodes = {Path(str(cache.pixels.filename)).stat().st_ino for cache in caches if isinstance(cache.pixels, np.memmap)}
    assert len(inodes) == 1


@contextmanager
def under_way(dataset: Dataset, part: Part, ct: CtPreprocessing | None = None) -> Iterator[Callable[[], int]]:
    """A part that stands still after an image, until it is asked for how many images it has."""
    stands, goes = threading.Event(), threading.Event()

    def wait(done: int, total: int) -> None:
        stands.set()
        assert goes.wait(60)

    with ThreadPoolExecutor(max_workers=1) as pool:
        made = pool.submit(build_part, dataset, part, size=SIZE, ct=ct, progress=wait)
        try:
            assert stands.wait(60)
            yield lambda: (goes.set(), made.result().images)[1]  # type: ignore[func-returns-value]
        finally:
            goes.set()


@pytest.mark.parametrize("modality", ["xray", "ct"])
def test_the_whole_cache_leaves_a_locked_part(tmp_path: Path, modality: str, dataset: Dataset) -> None:
    """It removes the finished part; the other one ends as if it were alone, and removes itself."""
    scans = SCANS if modality == "ct" else None
    data = dataset if scans is None else scans_in(tmp_path / "scans")
    parts = parts_folder(data.path / ".cache" / cache_key(data, SIZE, scans))
    with under_way(data, PARTS[1], scans) as end:
        build_part(data, PARTS[0], size=SIZE, ct=scans)
        cache = build_cache(data, size=SIZE, ct=scans)
        assert {path.stem for path in parts.iterdir()} == {"2-of-3"}
        assert end() == len(PARTS[1].select(range(len(cache.rows) + len(cache.unreadable))))
    assert not parts.exists()


def test_parts_of_killed_builders_are_removed_when_the_cache_is_opened(dataset: Dataset) -> None:
    build_cache(dataset, size=SIZE)
    parts = parts_folder(dataset.path / ".cache" / cache_key(dataset, SIZE, None))
    (parts / "2-of-3.building").mkdir(parents=True)
    (parts / "2-of-3.lock").touch()
    build_cache(dataset, size=SIZE)
    assert not parts.exists()


@pytest.mark.parametrize("parts", [[[]], [["--part", "1/2"], ["--part", "2/2"]]], ids=["whole", "parts"])
def test_the_command_makes_the_cache_of_a_limited_training(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: list[list[str]]
) -> None:
    class EnoughError(Exception):
        pass

    def opened(of: Dataset, **options: Any) -> None:
        opens.append(cache_key(of, options["size"], None))
        build_cache(of, **options)
        raise EnoughError

    words, opens = [f"data.image_size={SIZE}", "data.limit=2"], list[str]()
    read = counted(monkeypatch)
    for part in parts:
        done = CliRunner().invoke(app, ["data", "cache", "baseline", str(dataset.path), *words, *part])
        assert done.exit_code == 0, done.output
    wanted = [ref.path for study in Dataset.open(dataset.path, limit=2).studies() for ref in study.images]
    assert sorted(read) == sorted(wanted)
    read.clear()
    monkeypatch.setattr(training, "build_cache", opened)
    with pytest.raises(EnoughError):
        training.train("baseline", dataset.path, tmp_path / "run", overrides=words)
    assert read == []
    assert [path.parent.name for path in (dataset.path / ".cache").glob("*/pixels.npy")] == opens
