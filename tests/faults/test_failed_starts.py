"""A training that cannot run is refused before any image is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from radweave.core.errors import InputError
from radweave.data.dataset import Dataset
from radweave.engine import train as train_module
from radweave.engine.train import train
from tests.toys import TOY_OVERRIDES, TOY_SIZES

SIZES = [*TOY_OVERRIDES, *TOY_SIZES["baseline"]]


@pytest.fixture(autouse=True)
def _no_image_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for reading in ("build_cache", "refuse_leaks"):
        monkeypatch.setattr(train_module, reading, lambda *args, **more: pytest.fail("images are read"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("data.tokenizer={kind: pretrained, path: /no/such/folder}", "tokenizer"),
        ("model.language_model={kind: pretrained, path: /no/such/folder}", "no/such/folder"),
        ("stages.report.finetune={other: full}", r"stages\.report\.finetune.*other"),
        ("stages.report.finetune.language_model=lora", r"stages\.report\.finetune\.language_model.*no adapters"),
        ("stages.report.losses={other: 1.0}", r"stages\.report\.losses.*no such loss"),
    ],
)
def test_named_options_are_checked_first(dataset: Dataset, tmp_path: Path, change: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        train("baseline", dataset.path, tmp_path / "run", overrides=[*SIZES, change])
    assert [path.name for path in tmp_path.iterdir()] == ["data"], "a failed start leaves nothing behind"


@pytest.mark.parametrize(("split", "lack"), [("train", {"report": " "}), ("val", {"images": []})])
def test_a_split_without_a_usable_study_is_found_first(
    dataset: Dataset, tmp_path: Path, split: str, lack: dict[str, object]
) -> None:
    rows = [json.loads(line) for line in dataset.manifest_path.read_text().splitlines()]
    changed = [{**row, **lack} if row["split"] == split else row for row in rows]
    dataset.manifest_path.write_text("".join(json.dumps(row) + "\n" for row in changed))
    with pytest.raises(InputError, match=f"no usable study in split '{split}'"):
        train("baseline", dataset.path, tmp_path / "run", overrides=SIZES)


def test_checkpoints_of_another_data_set_are_found_first(dataset: Dataset, tmp_path: Path) -> None:
    place = tmp_path / "run" / "checkpoints" / "report" / "step-00000001"
    place.mkdir(parents=True)
    (place / "state.json").write_text('{"fingerprint": "of others", "files": {}}')
    with pytest.raises(InputError, match="the checkpoint belongs to another"):
        train("baseline", dataset.path, tmp_path / "run", overrides=SIZES, resume=True)
