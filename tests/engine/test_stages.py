"""Around a stage: features of a frozen encoder, cached stages, memories from training data."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from radweave.core.errors import InputError
from radweave.data.dataset import Dataset
from radweave.data.loader import Example
from radweave.engine.restore import restore
from radweave.engine.stages import TrainingWatch
from radweave.engine.train import train
from radweave.methods.baseline.model import BaselineModel
from radweave.methods.model import TrainingView
from radweave.nn.memory.bank import Bank, patient_code
from tests.toys import TOY_OVERRIDES, TOY_SIZES, toy_image

SIZES = [*TOY_OVERRIDES, *TOY_SIZES["baseline"]]
FROZEN = [*SIZES, "stages.report.finetune.vision_encoder=frozen", "stages.report.epochs=2"]
TWO_STAGES = [*SIZES, "stages.vision.epochs=1", "stages.report.epochs=1"]


@pytest.fixture
def dataset(toy_dataset: Dataset, tmp_path: Path) -> Dataset:
    """The toy data set with an empty cache."""
    shutil.copytree(toy_dataset.path, tmp_path / "data", ignore=shutil.ignore_patterns(".cache"))
    return Dataset.open(tmp_path / "data")


def losses(run: Path) -> list[float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] if "loss" in row else row["validation"]["loss"] for row in rows]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return dict(restore(run).model.state_dict())


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    reads: list[str] = []
    pixels = Example.pixels.fget  # type: ignore[attr-defined]

    def counted(example: Example) -> Any:
        reads.append(example.study_id)
        return pixels(example)

    monkeypatch.setattr(Example, "pixels", property(counted))
    return reads


def test_frozen_features_give_the_same_run_without_touching_pixels(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = [*FROZEN, "stages.report.augment=false", "stages.report.select=loss"]
    slow = train("baseline", dataset.path, tmp_path / "slow", overrides=[*plain, "data.keep_features=false"])
    reads = count_reads(monkeypatch)
    fast = train("baseline", dataset.path, tmp_path / "fast", overrides=plain)
    # The last look at the images is for what the run drafts with and its own reports, once each; no step reads pixels.
    read = [study.study_id for split in ("train", "val") for study in dataset.studies(split)]  # type: ignore[arg-type]
    assert sorted(reads) == sorted(read)
    # Features are computed in other batches than those of training; convolutions round differently there.
    assert losses(fast) == pytest.approx(losses(slow), abs=1e-6)
    for (name, left), right in zip(weights(fast).items(), weights(slow).values(), strict=True):
        assert torch.allclose(left, right, atol=1e-5), name


def test_under_augmentation_or_with_a_training_encoder_there_are_no_features(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = count_reads(monkeypatch)
    train("baseline", dataset.path, tmp_path / "augmented", overrides=[*FROZEN, "stages.report.augment=true"])
    assert reads
    reads.clear()
    full = [*SIZES, "stages.report.finetune.vision_encoder=full", "stages.report.epochs=1"]
    train("baseline", dataset.path, tmp_path / "full", overrides=full)
    assert reads
    assert not (dataset.path / ".cache" / "features").exists()


def test_features_of_other_weights_are_not_used(dataset: Dataset, tmp_path: Path) -> None:
    for seed in (0, 1):
        overrides = [*FROZEN, "stages.report.augment=false", f"seed={seed}"]
        train("baseline", dataset.path, tmp_path / f"{seed}", overrides=overrides)
    stores = [path for path in (dataset.path / ".cache" / "features").iterdir() if path.is_dir()]
    assert len(stores) == 2


def notes_of(dataset: Dataset, out: Path, overrides: list[str]) -> list[str]:
    notes: list[str] = []
    train("baseline", dataset.path, out, overrides=overrides, watch=TrainingWatch(note=notes.append))
    return [note for note in notes if "cache" in note]


@pytest.mark.long
def test_runs_that_share_a_stage_train_it_once_and_end_in_the_same_weights(dataset: Dataset, tmp_path: Path) -> None:
    assert notes_of(dataset, tmp_path / "first", TWO_STAGES) == []
    other = [*TWO_STAGES, "model.connector={kind: mlp, input_norm: batch}"]
    assert notes_of(dataset, tmp_path / "shared", other) == ["stage 'vision' is taken from the data set's cache"]
    assert notes_of(dataset, tmp_path / "alone", [*other, "data.keep_stages=false"]) == []
    for (name, left), right in zip(
        weights(tmp_path / "shared").items(), weights(tmp_path / "alone").values(), strict=True
    ):
        assert torch.equal(left, right), name
    cards = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("shared", "alone")]
    assert cards[0]["trained_steps"] == cards[1]["trained_steps"]
    assert cards[0]["validation"] == cards[1]["validation"]


@pytest.mark.long
@pytest.mark.parametrize(
    "change", ["seed=1", "stages.vision.optimizer.learning_rate=2e-3", "model.vision_encoder.embedding_size=4"]
)
def test_a_stage_is_trained_again_when_its_inputs_change(dataset: Dataset, tmp_path: Path, change: str) -> None:
    notes_of(dataset, tmp_path / "first", TWO_STAGES)
    assert notes_of(dataset, tmp_path / "second", [*TWO_STAGES, change]) == []


@pytest.mark.long
def test_a_stage_is_trained_again_when_an_image_was_replaced_and_not_when_it_was_touched(
    dataset: Dataset, tmp_path: Path
) -> None:
    taken = ["stage 'vision' is taken from the data set's cache"]
    read_again = ["1 of 30 cached images are read again: their files or the cache changed since"]
    image = dataset.path / next(iter(dataset.studies("train"))).images[0].path
    notes_of(dataset, tmp_path / "first", TWO_STAGES)
    image.touch()
    assert notes_of(dataset, tmp_path / "touched", TWO_STAGES) == read_again + taken
    toy_image(image, bright_side="right", seed=99)
    assert notes_of(dataset, tmp_path / "replaced", TWO_STAGES) == read_again


def test_a_damaged_artefact_is_trained_again(dataset: Dataset, tmp_path: Path) -> None:
    notes_of(dataset, tmp_path / "first", TWO_STAGES)
    (artefact,) = (dataset.path / ".cache" / "stages").glob("*/model.safetensors")
    data = bytearray(artefact.read_bytes())
    data[-1] ^= 1
    artefact.write_bytes(bytes(data))
    assert notes_of(dataset, tmp_path / "second", TWO_STAGES) == []


class Remembering:
    """Hooks to put on the baseline: one bank with the study ids it was shown, or with one more."""

    foreign_row: str | None = None
    banks: Mapping[str, Bank] | None = None

    @classmethod
    def build(cls, model: nn.Module, stage: str, training: TrainingView) -> dict[str, Bank]:
        assert not model.training
        names = [study.study_id for study in training.studies] + ([cls.foreign_row] if cls.foreign_row else [])
        pooled = torch.cat([batch.class_labels.float() for batch in training.batches(5)])  # type: ignore[union-attr]
        assert len(pooled) == len(training) == len(training.reports)
        vectors = torch.cat([pooled, pooled[:1]])[: len(names)]
        rows = tuple({"study_id": name, "patient": patient_code(name)} for name in names)
        return {"seen": Bank({"vectors": vectors}, rows)}

    @classmethod
    def take(cls, model: nn.Module, banks: Mapping[str, Bank]) -> None:
        cls.banks = banks


@pytest.fixture
def remembering(monkeypatch: pytest.MonkeyPatch) -> type[Remembering]:
    monkeypatch.setattr(
        BaselineModel, "build_memories", lambda *arguments: Remembering.build(*arguments), raising=False
    )
    monkeypatch.setattr(BaselineModel, "set_memories", lambda *arguments: Remembering.take(*arguments), raising=False)
    monkeypatch.setattr(Remembering, "foreign_row", None)
    monkeypatch.setattr(Remembering, "banks", None)
    return Remembering


def test_a_memory_sees_the_training_split_only_and_is_part_of_the_run(
    dataset: Dataset, tmp_path: Path, remembering: type[Remembering]
) -> None:
    run = train("baseline", dataset.path, tmp_path / "run", overrides=[*SIZES, "stages.report.epochs=1"])
    built = remembering.banks
    assert built is not None
    assert set(built["seen"].study_ids) == {study.study_id for study in dataset.studies("train")}
    assert "memories/seen/rows.jsonl" in json.loads((run / "run.json").read_text())["files"]
    remembering.banks = None
    restore(run)
    assert remembering.banks is not None
    assert remembering.banks["seen"].rows == built["seen"].rows
    rows = run / "memories" / "seen" / "rows.jsonl"
    rows.write_text(rows.read_text().replace("s000", "s999"))
    with pytest.raises(InputError, match="changed after training"):
        restore(run)


@pytest.mark.parametrize("split", ["val", "test"])
def test_a_bank_with_a_study_of_another_split_is_refused(
    dataset: Dataset, tmp_path: Path, remembering: type[Remembering], split: str
) -> None:
    remembering.foreign_row = next(study.study_id for study in dataset.studies() if study.split == split)
    with pytest.raises(InputError, match=f"leak: 1 rows of the bank 'seen'.*{remembering.foreign_row}"):
        train("baseline", dataset.path, tmp_path / "run", overrides=[*SIZES, "stages.report.epochs=1"])
    assert not (tmp_path / "run" / "run.json").exists()


def test_studies_without_labels_are_labeled_from_their_report(dataset: Dataset, tmp_path: Path) -> None:
    manifest = dataset.path / "manifest.jsonl"
    rows = [json.loads(line) for line in manifest.read_text().splitlines()]
    manifest.write_text("".join(json.dumps({**row, "labels": {}}) + "\n" for row in rows))
    from radweave.data.cache.images import build_cache
    from radweave.engine.prepare import prepare
    from radweave.methods import resolve

    for wanted in (True, False):
        experiment = resolve("baseline", "tiny", [*SIZES, f"data.label_unlabeled={str(wanted).lower()}"])
        tokenizer = experiment.data.tokenizer.build(["There is an opacity."])
        opened = Dataset.open(dataset.path)
        prepared = prepare(opened, "train", experiment, tokenizer, build_cache(opened, size=32), need_text=True)
        states = [example.class_states for example in prepared.examples]
        assert all((state is not None) == wanted for state in states)
        if wanted:
            assert any(1 in state for state in states if state is not None)
