"""Outputs that are no file or folder of ours: nothing is replaced, and nothing written through a link."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from radweave.core.errors import InputError
from radweave.core.json_files import write_jsonl
from radweave.core.storage import exclusive, refuse_existing, write_folder, write_text
from radweave.data.dataset import Dataset, DatasetCard, DatasetWriter
from radweave.engine.restore import restore
from radweave.inference.export import export
from radweave.inference.features import build_feature_bank
from radweave.metrics.commands import EvaluateRequest, run_evaluate
from radweave.nn.memory.bank import Bank, save_bank


def _write_folder(path: Path) -> None:
    with write_folder(path, overwrite=True) as partial:
        (partial / "new").touch()


def _hold(path: Path) -> None:
    with exclusive(path):
        pass


WRITERS: dict[str, Callable[[Path], None]] = {
    "write_text": lambda path: write_text(path, "new"),
    "write_jsonl": lambda path: write_jsonl(path, [{"new": 1}]),
    "write_folder": _write_folder,
    "refuse_existing": lambda path: refuse_existing(path, overwrite=True),
    "exclusive": _hold,
}


@pytest.mark.parametrize("writer", WRITERS)
def test_pipes_devices_and_links_are_never_replaced(writer: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "kept").write_text("old")
    (tmp_path / "link").symlink_to("kept")
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("pipe", "link", "dangling"):
        with pytest.raises(InputError, match=r"is a symbolic link|is no regular file"):
            WRITERS[writer](tmp_path / name)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert (tmp_path / "kept").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "kept", "link", "pipe"]


def test_a_device_is_refused_before_any_work() -> None:
    # Not given to a writer: one that is broken would replace the device, if it may.
    with pytest.raises(InputError, match="/dev/full: is no regular file or folder"):
        refuse_existing(Path("/dev/full"), overwrite=True)


def test_a_file_does_not_replace_a_folder_nor_a_folder_a_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("old")
    with pytest.raises(InputError, match="is a folder"):
        write_text(tmp_path / "folder", "new")
    with pytest.raises(InputError, match="is a file"):
        _write_folder(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "old"


@pytest.mark.parametrize("writer", WRITERS)
def test_nothing_is_written_through_a_link_in_the_cache_of_a_data_set(writer: str, tmp_path: Path) -> None:
    dataset, elsewhere = tmp_path / "dataset", tmp_path / "elsewhere"
    (elsewhere / "stages").mkdir(parents=True)
    dataset.mkdir()
    (dataset / "dataset.json").write_text("{}")
    (dataset / ".cache").symlink_to(elsewhere)
    with pytest.raises(InputError, match=r"\.cache: is a symbolic link"):
        WRITERS[writer](dataset / ".cache" / "stages" / "key")
    (dataset / ".cache").unlink()
    (dataset / ".cache").mkdir()
    (dataset / ".cache" / "stages").symlink_to(elsewhere / "stages")
    with pytest.raises(InputError, match="stages: is a symbolic link"):
        WRITERS[writer](dataset / ".cache" / "stages" / "key")
    assert [path.name for path in elsewhere.rglob("*")] == ["stages"]


def test_a_cache_elsewhere_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / ".cache").symlink_to("disk")
    write_text(tmp_path / ".cache" / "models" / "a.txt", "new")
    assert (tmp_path / "disk" / "models" / "a.txt").read_text() == "new"


def _import(toy_run: Path, data: Dataset, out: Path) -> None:
    with DatasetWriter(out, DatasetCard(name="x"), overwrite=True):
        pass


def _evaluate(toy_run: Path, data: Dataset, out: Path) -> None:
    run_evaluate(EvaluateRequest(pairs=(out / "none.jsonl",), out=out, overwrite=True))


def _features(toy_run: Path, data: Dataset, out: Path) -> None:
    build_feature_bank(restore(toy_run), data.path, "train", out, overwrite=True)


VERBS: dict[str, Callable[[Path, Dataset, Path], None]] = {
    "import": _import,
    "evaluate": _evaluate,
    "features": _features,
    "export": lambda run, data, out: (export(run, out, overwrite=True), None)[1],
    "bank": lambda run, data, out: save_bank(Bank({}, ()), out),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_foreign_folder_is_never_replaced(verb: str, toy_run: Path, toy_dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "letter.txt").write_text("dear all")
    with pytest.raises(InputError, match=r"documents: holds no .*does not replace such a folder"):
        VERBS[verb](toy_run, toy_dataset, tmp_path / "documents")
    assert [path.name for path in tmp_path.rglob("*")] == ["documents", "letter.txt"]


def test_an_own_folder_is_replaced(toy_run: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(export(toy_run, tmp_path / "out"), tmp_path / "again"))
    (out / "README.md").write_text("changed")
    export(toy_run, out, overwrite=True)
    assert (out / "README.md").read_text() != "changed"
