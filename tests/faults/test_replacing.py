"""``--overwrite`` never replaces another kind of output, nor files that a user added."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from radweave.core.errors import InputError
from radweave.core.storage import refuse_existing
from radweave.data.dataset import DATASET, Dataset, DatasetCard, DatasetWriter
from radweave.engine.restore import restore
from radweave.engine.run_directory import claimed
from radweave.inference.bulk import DRAFTS, write_drafts
from radweave.inference.export import export
from radweave.metrics.commands import LabelRequest, run_label


def _train(out: Path) -> None:
    with claimed(out, overwrite=True, resume=False) as place:
        place.began = True
        (place.folder / "run.json").write_text("{}")
        place.finish()


def _copied(run: Path, out: Path) -> Path:
    return Path(shutil.copytree(run, out))


def _paths(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.name != ".lock")


@pytest.mark.parametrize(
    "files",
    [
        {"config.yaml": "hydra: {}\n"},
        {"config.yaml": "method: baseline\n", "tokenizer/a": "mine"},
        {"run.json": '{"x": 1}', "config.yaml": "method: baseline\n"},
        {"run.json": "not json"},
    ],
)
def test_training_replaces_no_folder_that_is_a_run_by_name_only(files: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    before = _paths(folder)
    with pytest.raises(InputError, match=r"mine: is not a run; it is not replaced"):
        _train(folder)
    assert _paths(folder) == before


def test_a_lone_configuration_is_not_replaced(toy_run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    shutil.copyfile(toy_run / "config.yaml", tmp_path / "mine" / "config.yaml")
    with pytest.raises(InputError, match="mine: is not a run"):
        _train(tmp_path / "mine")


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("name", ["thesis.docx", "checkpoints.txt", "notes/a.txt", "empty/"])
def test_training_replaces_no_run_with_a_file_of_the_user(
    name: str, finished: bool, toy_run: Path, tmp_path: Path
) -> None:
    run = _copied(toy_run, tmp_path / "run")
    if not finished:
        (run / "run.json").unlink()
    if name.endswith("/"):
        (run / name).mkdir()
    else:
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("mine")
    with pytest.raises(InputError, match=rf"run: holds a file that radweave does not write.*{name.rstrip('/')}"):
        _train(run)
    assert (run / name).exists()
    assert (run / "weights.safetensors").exists()


def test_a_file_added_to_the_old_run_during_training_stays(toy_run: Path, tmp_path: Path) -> None:
    run = _copied(toy_run, tmp_path / "run")
    with claimed(run, overwrite=True, resume=False) as place:
        place.began = True
        (run / "thesis.docx").write_text("mine")
        with pytest.raises(InputError, match=r"holds a file that radweave does not write.*thesis"):
            place.finish()
    assert (run / "thesis.docx").read_text() == "mine"
    assert place.folder.is_dir()  # --resume ends it


@pytest.mark.parametrize("finished", [True, False])
def test_training_replaces_a_run(finished: bool, toy_run: Path, tmp_path: Path) -> None:
    run = _copied(toy_run, tmp_path / "run")
    (run / "checkpoints").mkdir(exist_ok=True)
    if not finished:
        (run / "run.json").unlink()
    _train(run)
    assert _paths(run) == ["run.json"]


def test_training_replaces_no_export_and_an_export_no_run(toy_run: Path, tmp_path: Path) -> None:
    out, other = export(toy_run, tmp_path / "out"), _copied(toy_run, tmp_path / "other")
    with pytest.raises(InputError, match="out: is not a run"):
        _train(out)
    with pytest.raises(InputError, match="other: is not an export"):
        export(toy_run, other, overwrite=True)
    assert restore(out).card.is_trained
    assert restore(other).card.is_trained


@pytest.mark.parametrize("card", ['{"x": 1}', "[]", "no json", '{"format": "radweave-run", "files": []}'])
def test_an_export_replaces_by_card_contents(card: str, toy_run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "run.json").write_text(card)
    with pytest.raises(InputError, match="mine: is not an export"):
        export(toy_run, tmp_path / "mine", overwrite=True)
    assert (tmp_path / "mine" / "run.json").read_text() == card


def test_an_export_with_a_file_of_the_user_stays(toy_run: Path, tmp_path: Path) -> None:
    out = export(toy_run, tmp_path / "out")
    (out / "tokenizer" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"out: holds a file that radweave does not write.*tokenizer/notes\.txt"):
        export(toy_run, out, overwrite=True)
    assert (out / "tokenizer" / "notes.txt").read_text() == "mine"


def _import(out: Path) -> None:
    with DatasetWriter(out, DatasetCard(name="x"), overwrite=True):
        pass


@pytest.mark.parametrize("card", ["{}", '{"format": "hub-dataset"}', "[]"])
def test_a_data_set_replaces_data_sets_only(card: str, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "dataset.json").write_text(card)
    with pytest.raises(InputError, match="mine: is not a data set"):
        _import(tmp_path / "mine")
    assert (tmp_path / "mine" / "dataset.json").read_text() == card


def test_a_data_set_with_a_file_of_the_user_stays(tmp_path: Path) -> None:
    _import(tmp_path / "set")
    (tmp_path / "set" / ".cache" / "images").mkdir(parents=True)
    _import(tmp_path / "set")
    (tmp_path / "set" / "labels.xlsx").write_text("mine")
    with pytest.raises(InputError, match=r"set: holds a file that radweave does not write.*labels\.xlsx"):
        _import(tmp_path / "set")
    assert (tmp_path / "set" / "labels.xlsx").read_text() == "mine"


def _manifest(toy_run: Path, dataset: Dataset, folder: Path) -> Path:
    return dataset.manifest_path


FILES: dict[str, Callable[[Path, Dataset, Path], Path]] = {
    "manifest": lambda run, data, folder: Path(shutil.copyfile(data.manifest_path, folder / "manifest.jsonl")),
    "metrics": lambda run, data, folder: Path(shutil.copyfile(run / "metrics.jsonl", folder / "metrics.jsonl")),
    "card": lambda run, data, folder: Path(shutil.copyfile(run / "run.json", folder / "a.jsonl")),
    "weights": lambda run, data, folder: Path(shutil.copyfile(run / "weights.safetensors", folder / "a.csv")),
    "text": lambda run, data, folder: Path(shutil.copyfile(__file__, folder / "a.txt")),
}


@pytest.mark.parametrize("file", FILES)
def test_drafts_replace_drafts_only(file: str, toy_run: Path, toy_dataset: Dataset, tmp_path: Path) -> None:
    path = FILES[file](toy_run, toy_dataset, tmp_path)
    before = path.read_bytes()
    with pytest.raises(InputError, match="is not a file of drafts; it is not replaced"):
        refuse_existing(path, overwrite=True, kind=DRAFTS)
    assert path.read_bytes() == before


@pytest.mark.parametrize("suffix", [".jsonl", ".txt", ".csv"])
def test_drafts_replace_drafts_but_none_in_a_data_set(suffix: str, tmp_path: Path) -> None:
    row = {"study_id": "a", "report": "No effusion.", "evidence": {}, "warnings": [], "notice": "x"}
    write_drafts(tmp_path / f"a{suffix}", [row, {"study_id": "b", "refused": "why"}])
    refuse_existing(tmp_path / f"a{suffix}", overwrite=True, kind=DRAFTS)
    (tmp_path / "dataset.json").write_text("{}")
    with pytest.raises(InputError, match="lies in a data set; it is not replaced"):
        refuse_existing(tmp_path / f"a{suffix}", overwrite=True, kind=DRAFTS)


def test_labels_replace_labels_only(tmp_path: Path) -> None:
    reports = tmp_path / "reports.jsonl"
    reports.write_text(json.dumps({"study_id": "a", "report": "No effusion."}) + "\n")
    before = reports.read_text()
    with pytest.raises(InputError, match="is not a file of labels"):
        run_label(LabelRequest(reports=reports, ontology="chexpert14", out=reports, overwrite=True))
    assert reports.read_text() == before
    for suffix in (".jsonl", ".csv"):
        for _ in range(2):
            out = tmp_path / f"labels{suffix}"
            assert run_label(LabelRequest(reports=reports, ontology="chexpert14", out=out, overwrite=True)) == 0


def test_a_folder_is_checked_again_before_it_is_replaced(tmp_path: Path) -> None:
    _import(tmp_path / "set")
    with (
        pytest.raises(InputError, match=r"holds a file that radweave does not write.*late\.txt"),
        DatasetWriter(tmp_path / "set", DatasetCard(name="x"), overwrite=True),
    ):
        (tmp_path / "set" / "late.txt").write_text("mine")
    assert (tmp_path / "set" / "late.txt").read_text() == "mine"
    DATASET.refuse_other(tmp_path / "nowhere")
