"""One reading of a manifest for a whole command, of the file as it is now."""

from __future__ import annotations

import gc
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from radweave.core.errors import InputError
from radweave.core.storage import sha256_file
from radweave.data import dataset as manifest
from radweave.data.dataset import Dataset
from radweave.engine.train import train
from radweave.experiments.one_run import Task, run_task
from tests.toys import TOY_OVERRIDES, TOY_SIZES

OVERRIDES = (*TOY_OVERRIDES, *TOY_SIZES["baseline"], "stages.report.epochs=1")


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Each time that somebody opens a manifest to read it."""
    opened: list[Path] = []
    real = Path.open

    def counted(self: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
        if self.name == "manifest.jsonl" and "r" in mode:
            opened.append(self)
        return real(self, mode, *args, **options)

    monkeypatch.setattr(Path, "open", counted)
    return opened


@pytest.fixture
def dataset(toy_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the toy data set that counts as settled."""
    monkeypatch.setattr(manifest, "SETTLED_NS", -1)
    return Path(shutil.copytree(toy_dataset.path, tmp_path / "dataset"))


def test_training_reads_the_manifest_once(dataset: Path, tmp_path: Path, passes: list[Path]) -> None:
    train("baseline", dataset, tmp_path / "run", overrides=OVERRIDES)
    assert len(passes) == 1


def test_a_row_of_an_ablation_reads_the_manifest_once(dataset: Path, tmp_path: Path, passes: list[Path]) -> None:
    task = Task("row", "baseline", "tiny", OVERRIDES, 0, str(dataset), str(tmp_path / "run"))
    run_task(task)
    assert len(passes) == 1
    del passes[:]
    assert run_task(task)["label"] == "row"
    assert len(passes) <= 1


def test_a_changed_manifest_is_read_again(dataset: Path) -> None:
    opened = Dataset.open(dataset)
    assert len(list(opened.studies())) == 22
    assert opened.fingerprint() == sha256_file(opened.manifest_path)
    lines = opened.manifest_path.read_text().splitlines(keepends=True)
    state = opened.manifest_path.stat()
    # As long as before and with the old time of change: the system's own note of the change is what counts.
    opened.manifest_path.write_text("".join([*lines[1:], lines[0]]))
    os.utime(opened.manifest_path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert opened.fingerprint() == sha256_file(opened.manifest_path)
    assert [study.study_id for study in Dataset.open(dataset).studies()][-1] == "s000"
    opened.manifest_path.write_text("".join([*lines, lines[0]]))
    with pytest.raises(InputError, match="comes twice"):
        list(opened.studies())
    opened.manifest_path.unlink()
    with pytest.raises(InputError, match="file is missing"):
        list(opened.studies())


def test_a_recently_changed_manifest_is_not_cached(
    dataset: Path, passes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "SETTLED_NS", 3600 * 10**9)
    opened = Dataset.open(dataset)
    assert list(opened.studies()) == list(opened.studies())
    assert opened.fingerprint() == opened.fingerprint()
    assert len(passes) == 4


def test_a_manifest_too_large_to_keep_is_streamed(
    dataset: Path, passes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Dataset.open(dataset)
    whole = list(opened.studies("val"))
    monkeypatch.setattr(manifest, "MAX_CACHED_BYTES", 100)
    other = Dataset.open(Path(shutil.copytree(dataset, dataset.with_name("large"))))
    del passes[:]
    for _ in range(2):
        assert list(other.studies("val")) == whole
        assert other.fingerprint() == opened.fingerprint()
    # Two readings; its hash is kept.
    assert len(passes) == 3


def test_a_shared_manifest_is_released_with_its_last_user(dataset: Path) -> None:
    first, second = Dataset.open(dataset), Dataset.open(dataset)
    assert next(first.studies()) is next(second.studies())
    place = first.manifest_path.absolute()
    assert place in manifest._open
    del first, second
    gc.collect()
    assert place not in manifest._open
