"""Caches after replaced images, damaged files and failing disks."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grimp
import numpy as np
import pytest
import torch
from torch import nn

from radweave.core.errors import InputError
from radweave.data.cache import images as cache
from radweave.data.cache import squares
from radweave.data.cache import squares as cache_index
from radweave.data.cache.images import PixelCache, build_cache
from radweave.data.cache.squares import read_square
from radweave.data.ct import CtPreprocessing
from radweave.data.dataset import Dataset, DatasetWriter
from radweave.data.loader import Example, Features
from radweave.engine.loop import Watch
from radweave.engine.restore import restore
from radweave.engine.stages import TrainingWatch, build_features
from radweave.engine.train import train
from radweave.inference.bulk import generate_split
from radweave.inference.features import build_feature_bank
from radweave.inference.predictor import Predictor
from tests.toys import TOY_OVERRIDES, TOY_SIZES, toy_image

SIZE = 16
SCANS = CtPreprocessing(size=(8, 16, 16), fit="resize")


@pytest.fixture
def scans(toy_ct_dataset: Dataset, tmp_path: Path) -> Dataset:
    shutil.copytree(toy_ct_dataset.path, tmp_path / "scans", ignore=shutil.ignore_patterns(".cache"))
    return Dataset.open(tmp_path / "scans")


class Opened:
    """A cache as it was opened, what was said, and how many images were read."""

    def __init__(self, dataset: Dataset, ct: CtPreprocessing | None = None) -> None:
        self.notes: list[str] = []
        self.read = 0
        self.cache = build_cache(dataset, size=SIZE, ct=ct, progress=self._count, note=self.notes.append)

    def _count(self, done: int, total: int) -> None:
        self.read = total

    def holds_the_pixels_of(self, dataset: Dataset) -> bool:
        refs = {ref.path: ref for study in dataset.studies() for ref in study.images}
        assert set(self.cache.rows) == set(refs)
        return all(
            np.array_equal(self.cache.pixels[row], read_square(dataset, refs[path], SIZE))
            for path, row in self.cache.rows.items()
        )


def pixels_file(dataset: Dataset) -> Path:
    (cached,) = (dataset.path / ".cache").glob("*/pixels.npy")
    return cached


def test_an_image_that_was_replaced_gives_the_new_pixels(dataset: Dataset) -> None:
    Opened(dataset)
    name = "images/1_0.png"
    toy_image(dataset.path / name, bright_side="right", seed=99)
    reopened = Opened(dataset)
    assert reopened.holds_the_pixels_of(dataset)
    assert reopened.read == 1
    assert reopened.notes == ["1 of 30 cached images are read again: their files or the cache changed since"]
    third = Opened(dataset)
    assert (third.read, third.notes) == (0, [])


def test_another_file_of_the_same_size_and_time_is_noticed(dataset: Dataset) -> None:
    image = dataset.path / "images/1_0.png"
    Opened(dataset)
    before = image.stat()
    data = image.read_bytes()
    other = toy_image(dataset.path / "other.png", bright_side="right", seed=98).read_bytes()
    image.write_bytes(other[: len(data)].ljust(len(data), b"\0"))
    os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (image.stat().st_size, image.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert Opened(dataset).read == 1


def test_an_image_that_became_readable_or_broke_is_read_again(dataset: Dataset) -> None:
    image = dataset.path / "images/1_0.png"
    whole = image.read_bytes()
    image.unlink()
    assert list(Opened(dataset).cache.unreadable) == ["images/1_0.png"]
    image.write_bytes(whole)
    reopened = Opened(dataset)
    assert reopened.cache.unreadable == {}
    assert reopened.holds_the_pixels_of(dataset)
    image.write_bytes(b"no image")
    assert list(Opened(dataset).cache.unreadable) == ["images/1_0.png"]


def zeroed(path: Path) -> None:
    header = 128
    path.write_bytes(path.read_bytes()[:header] + bytes(path.stat().st_size - header))


def one_row(path: Path) -> None:
    pixels = np.load(path, mmap_mode="r+")
    pixels[3] ^= 1
    pixels.flush()


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def objects(path: Path) -> None:
    np.save(path, np.array([{"code": "would run"}] * 30, dtype=object), allow_pickle=True)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def no_rows(path: Path) -> None:
    np.save(path, np.zeros((0, SIZE, SIZE), np.uint8))


def other_shape(path: Path) -> None:
    np.save(path, np.zeros((30, SIZE, SIZE + 1), np.uint8))


def other_type(path: Path) -> None:
    np.save(path, np.zeros((30, SIZE, SIZE), np.int8))


def missing(path: Path) -> None:
    path.unlink()


def no_json(path: Path) -> None:
    path.with_name("index.json").write_text("{")


def other_json(path: Path) -> None:
    path.with_name("index.json").write_text('{"rows": {"a": 1}, "unreadable": {}}')


DAMAGES = [zeroed, truncated, objects, empty, no_rows, other_shape, other_type, missing, no_json, other_json, one_row]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_is_rebuilt_with_a_note(dataset: Dataset, damage: Callable[[Path], None]) -> None:
    Opened(dataset)
    damage(pixels_file(dataset))
    reopened = Opened(dataset)
    assert reopened.holds_the_pixels_of(dataset)
    assert len(reopened.notes) == 1
    assert reopened.read == (1 if damage is one_row else 30)
    third = Opened(dataset)
    assert (third.read, third.notes) == (0, [])


def test_a_cache_that_was_only_touched_is_checked_and_kept(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Opened(dataset)
    pixels_file(dataset).touch()
    touched = Opened(dataset)
    assert (touched.read, touched.notes, touched.cache.digest) == (0, [], first.cache.digest)
    monkeypatch.setattr(squares, "checksum", lambda row: pytest.fail("checked twice"))
    Opened(dataset)


def test_options_version_and_code_make_another_cache(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def keys() -> list[str]:
        others = [{"size": (8, 16, 8)}, {"window_hu": (-900, 200)}, {"crop": "body"}, {"spacing_mm": (2.0, 1.0, 1.0)}]
        options = [None, SCANS, *(SCANS.model_copy(update=other) for other in others)]
        return [cache.cache_key(dataset, size, ct) for size in (16, 17) for ct in options]

    first = keys()
    # The side of a square is no matter for scans.
    assert len(set(first)) == 7
    monkeypatch.setattr(cache_index, "PREPROCESSING_VERSION", 99)
    assert not set(keys()) & set(first)
    monkeypatch.undo()
    monkeypatch.setattr(cache_index, "code_hash", lambda *rooms: "edited")
    assert not set(keys()) & set(first)
    monkeypatch.undo()
    monkeypatch.setattr(cache_index, "library_versions", lambda: {"pillow": "another"})
    assert not set(keys()) & set(first)
    monkeypatch.undo()
    assert keys() == first
    manifest = dataset.manifest_path
    manifest.write_text(manifest.read_text().replace('"toy', '"toy2') + "\n")
    assert not set(keys()) & set(first)


def test_the_cache_key_covers_all_modules_that_read_pixels() -> None:
    """Every module of data and io that the caches import, except those that store files."""
    keeping = ("radweave.data.cache", "radweave.data.dataset")
    graph = grimp.build_graph("radweave", cache_dir=None)
    makers = {
        name
        for cached in ("radweave.data.cache.squares", "radweave.data.cache.ct")
        for name in graph.find_modules_directly_imported_by(cached)
        if name.startswith(("radweave.data.", "radweave.io.")) and not name.startswith(keeping)
    }
    assert len(makers) > 3
    assert {name for name in makers if not name.startswith(cache_index.READING)} == set()


def test_a_scan_that_was_replaced_gives_the_new_voxels(scans: Dataset) -> None:
    first = Opened(scans, SCANS)
    paths = list(first.cache.rows)
    shutil.copyfile(scans.path / paths[1], scans.path / paths[0])
    reopened = Opened(scans, SCANS)
    assert reopened.notes == ["1 of 24 cached images are read again: their files or the cache changed since"]
    rows = reopened.cache.rows
    assert np.array_equal(reopened.cache.pixels[rows[paths[0]]], first.cache.pixels[first.cache.rows[paths[1]]])
    assert np.array_equal(reopened.cache.pixels[rows[paths[2]]], first.cache.pixels[first.cache.rows[paths[2]]])


@pytest.mark.parametrize("damage", [zeroed, truncated, objects, empty, missing])
@pytest.mark.parametrize("with_index", [True, False])
def test_a_damaged_scan_is_prepared_again(scans: Dataset, damage: Callable[[Path], None], with_index: bool) -> None:
    first = Opened(scans, SCANS)
    pixels: Any = first.cache.pixels
    expected = np.array(pixels[5])
    damage(pixels.files[5])
    if not with_index:  # as if the job had been stopped before it came to write it
        (scans.path / ".cache" / cache.cache_key(scans, SIZE, SCANS) / "index.json").unlink()
    reopened = Opened(scans, SCANS)
    assert np.array_equal(reopened.cache.pixels[5], expected)
    assert len(reopened.notes) == 1


class Flat(nn.Module):
    """An encoder: means of quarters, times a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.calls = 0

    def forward(self, pixels: torch.Tensor) -> Any:
        self.calls += 1
        means = nn.functional.adaptive_avg_pool2d(pixels, 2).flatten(1)
        return type("Encoded", (), {"grid": (2, 2), "tokens": means[..., None] * self.weight})


def kept_features(encoder: Flat, cached: PixelCache, folder: Path, notes: list[str]) -> Features:
    examples = [Example(f"s{row}", f"p{row}", cached.pixels, (row,), (1,)) for row in cached.rows.values()]
    return build_features(encoder, examples, folder, {"images": cached.digest}, note=notes.append)


@pytest.mark.parametrize("damage", [zeroed, truncated, objects, empty, no_rows, other_type, missing, no_json])
def test_damaged_features_are_computed_again(dataset: Dataset, damage: Callable[[Path], None]) -> None:
    cached, encoder, notes = Opened(dataset).cache, Flat(), list[str]()
    folder = dataset.path / ".cache"
    expected = np.array(kept_features(encoder, cached, folder, notes).tokens)
    kept_features(encoder, cached, folder, notes)
    assert (encoder.calls, notes) == (1, [])
    (store,) = (folder / "features").glob("*/tokens.npy")
    damage(store)
    reopened = kept_features(encoder, cached, folder, notes)
    assert np.array_equal(reopened.tokens, expected)
    assert encoder.calls == 2
    assert len(notes) == 1


def test_features_of_other_images_are_other_features(dataset: Dataset) -> None:
    """As many images of the same data set, under the same encoder: of one split and of another."""
    encoder, folder, cached = Flat(), dataset.path / ".cache", Opened(dataset).cache
    rows = sorted(cached.rows.values())
    examples = [Example(f"s{row}", f"p{row}", cached.pixels, (row,), (1,)) for row in rows]
    whole = build_features(encoder, examples, folder, {"images": cached.digest})
    for part in (rows[:3], rows[3:6]):
        own = [examples[rows.index(row)] for row in part]
        found = build_features(encoder, own, folder, {"images": cached.digest})
        assert sorted(found.positions) == part
        assert np.array_equal(found.tokens, np.asarray(whole.tokens)[[whole.positions[row] for row in part]])
    assert encoder.calls == 3


def test_features_of_a_replaced_image_are_computed_again(dataset: Dataset) -> None:
    encoder, folder = Flat(), dataset.path / ".cache"
    old = kept_features(encoder, Opened(dataset).cache, folder, [])
    toy_image(dataset.path / "images/1_0.png", bright_side="right", seed=99)
    cached = Opened(dataset).cache
    new = kept_features(encoder, cached, folder, [])
    row = cached.rows["images/1_0.png"]
    assert not np.array_equal(new.tokens[row], old.tokens[row])
    assert encoder.calls == 2


def refuse_writes(monkeypatch: pytest.MonkeyPatch, below: Path, number: int) -> None:
    """Let the system refuse to make anything below a folder, whoever asks; also root, who is refused nothing."""
    mkdir, opened = os.mkdir, os.open

    def refused(path: Any) -> None:
        if Path(path).is_relative_to(below):
            raise OSError(number, os.strerror(number), str(path))

    def make(path: Any, *args: Any, **more: Any) -> None:
        refused(path)
        mkdir(path, *args, **more)

    def open_(path: Any, flags: int, *args: Any, **more: Any) -> int:
        if flags & os.O_CREAT:
            refused(path)
        return opened(path, flags, *args, **more)

    monkeypatch.setattr(os, "mkdir", make)
    monkeypatch.setattr(os, "open", open_)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
@pytest.mark.parametrize("kind", ["squares", "scans"])
def test_a_data_set_that_cannot_be_written_is_read_into_a_temporary_folder(
    dataset: Dataset, scans: Dataset, monkeypatch: pytest.MonkeyPatch, number: int, kind: str
) -> None:
    used, ct = (dataset, None) if kind == "squares" else (scans, SCANS)
    expected = Opened(used, ct)
    shutil.rmtree(used.path / ".cache")
    refuse_writes(monkeypatch, used.path, number)
    cached = Opened(used, ct)
    assert cached.cache.digest == expected.cache.digest
    assert len(cached.notes) == 1
    assert os.strerror(number) in cached.notes[0]
    assert not (used.path / ".cache").exists()


def test_a_whole_cache_that_cannot_be_written_is_used(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Opened(dataset)
    pixels_file(dataset).touch()
    refuse_writes(monkeypatch, dataset.path, errno.EROFS)
    reopened = Opened(dataset)
    assert (reopened.read, reopened.notes, reopened.cache.digest) == (0, [], first.cache.digest)


def test_features_that_cannot_be_cached_are_still_used(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    cached, notes = Opened(dataset).cache, list[str]()
    refuse_writes(monkeypatch, dataset.path, errno.EROFS)
    features = kept_features(Flat(), cached, dataset.path / ".cache", notes)
    assert len(features.tokens) == 30
    assert len(notes) == 1


def test_images_that_change_all_the_time_are_an_error_in_one_line(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = squares.read_square

    def changed(*args: Any) -> Any:
        (dataset.path / "images/1_0.png").touch()
        return reading(*args)

    monkeypatch.setattr(squares, "read_square", changed)
    with pytest.raises(InputError, match="change while they are read"):
        Opened(dataset)


def test_a_replaced_image_invalidates_drafts_and_features_of_a_stopped_job(
    dataset: Dataset, toy_run: Path, tmp_path: Path
) -> None:
    run = restore(toy_run)
    (study, *_) = dataset.studies("test")

    class StoppedError(Exception):
        pass

    def stop(done: int, total: int) -> None:
        raise StoppedError

    def plans() -> list[str]:
        """Plans of the shards of both jobs, which are stopped before they end."""
        with pytest.raises(StoppedError):
            generate_split(run, Predictor.of(run), dataset.path, "test", tmp_path / "out", shard_size=1, progress=stop)
        with pytest.raises(StoppedError):
            build_feature_bank(run, dataset.path, "test", tmp_path / "bank", shard_size=1, progress=stop)
        return [(tmp_path / f"{name}.shards" / "plan.json").read_text() for name in ("out", "bank")]

    before = plans()
    assert plans() == before
    toy_image(dataset.path / study.images[0].path, bright_side="right", seed=99)
    assert all(new != old for new, old in zip(plans(), before, strict=True))


def test_a_training_does_not_go_on_with_other_pixels(dataset: Dataset, tmp_path: Path) -> None:
    overrides = [*TOY_OVERRIDES, *TOY_SIZES["baseline"], "stages.report.epochs=2", "stages.report.select=loss"]

    class KilledError(BaseException):
        pass

    def killed(number: int, total: int, figures: dict[str, float]) -> None:
        if number == 4:
            raise KilledError

    watch = TrainingWatch(stage=lambda name: Watch(step=killed))
    with pytest.raises(KilledError):
        train("baseline", dataset.path, tmp_path / "run", overrides=overrides, watch=watch)
    image = dataset.path / next(iter(dataset.studies("train"))).images[0].path
    whole = image.read_bytes()
    toy_image(image, bright_side="right", seed=99)
    with pytest.raises(InputError, match="the checkpoint belongs to another"):
        train("baseline", dataset.path, tmp_path / "run", overrides=overrides, resume=True)
    image.write_bytes(whole)
    train("baseline", dataset.path, tmp_path / "run", overrides=overrides, resume=True)


IMPORT = """
import sys, time
from pathlib import Path
from radweave.data.dataset import DatasetCard, DatasetWriter

with DatasetWriter(Path(sys.argv[1]), DatasetCard(name="set")) as writer:
    (writer.folder / "patient.png").write_text("pixels")
    print("written", flush=True)
    time.sleep(60)
"""


def test_patient_data_of_a_killed_import_are_removed_at_the_next_one(tmp_path: Path, toy_dataset: Dataset) -> None:
    out = tmp_path / "sets"
    killed = subprocess.Popen([sys.executable, "-c", IMPORT, str(out / "one")], stdout=subprocess.PIPE, text=True)
    try:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "written\n"
    finally:
        killed.kill()
        killed.wait()
    assert len(list(out.rglob("patient.png"))) == 1
    # Into the same folder, under whatever name.
    with DatasetWriter(out / "other", toy_dataset.card):
        pass
    assert [path.name for path in out.iterdir()] == ["other"]
