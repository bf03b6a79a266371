"""Finished runs that go on: the bits of a run that was as long from the start, or sentences on what differs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from radweave.core.errors import InputError
from radweave.core.storage import sha256_file
from radweave.data.dataset import Dataset
from radweave.engine.run_directory import aside_of, read_started
from radweave.engine.run_folder import StageFigures, read_card
from radweave.engine.train import train
from radweave.methods.stage import OptimizerConfig, StageConfig
from tests.toys import TOY_OVERRIDES, TOY_SIZES

CONSTANT = "stages.report.optimizer.final_ratio=1"
OPTIONS = (*TOY_OVERRIDES, *TOY_SIZES["baseline"])
MODEL = ("weights.safetensors", "calibration.json", "drafting/bank/rows.jsonl")


def trained(dataset: Dataset, out: Path, *more: str, **options: bool) -> Path:
    return train("baseline", dataset.path, out, overrides=[*OPTIONS, *more], **options)


@pytest.fixture(scope="module")
def short(toy_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two epochs at a constant rate. Do not change it; copy it first."""
    return trained(toy_dataset, tmp_path_factory.mktemp("runs") / "short", CONSTANT, "stages.report.epochs=2")


def copied(run: Path, folder: Path) -> Path:
    shutil.copytree(run, folder / "run")
    return folder / "run"


@pytest.mark.long
def test_a_lengthened_run_has_the_bits_of_one_that_was_as_long_from_the_start(
    short: Path, toy_dataset: Dataset, tmp_path: Path
) -> None:
    run = copied(short, tmp_path)
    trained(toy_dataset, run, CONSTANT, "stages.report.epochs=4", resume=True)
    whole = trained(toy_dataset, tmp_path / "whole", CONSTANT, "stages.report.epochs=4")
    assert [sha256_file(run / name) for name in MODEL] == [sha256_file(whole / name) for name in MODEL]
    assert sha256_file(run / MODEL[0]) != sha256_file(short / MODEL[0])
    card, oracle = read_card(run), read_card(whole)
    assert (card.trained_steps, card.validation) == (oracle.trained_steps, oracle.validation)
    assert card.lengthened == ()
    steps = [line for line in (run / "metrics.jsonl").read_text().splitlines() if '"loss"' in line]
    assert len(steps) >= card.trained_steps["report"] == 12
    assert not aside_of(run).exists()


@pytest.mark.long
def test_a_stage_that_made_no_update_is_added_with_any_options(
    short: Path, toy_dataset: Dataset, tmp_path: Path
) -> None:
    run = copied(short, tmp_path)
    more = (CONSTANT, "stages.report.epochs=2", "stages.reward.epochs=1", "stages.reward.select=last")
    trained(toy_dataset, run, *more, resume=True)
    whole = trained(toy_dataset, tmp_path / "whole", *more)
    assert [sha256_file(run / name) for name in MODEL] == [sha256_file(whole / name) for name in MODEL]
    assert sha256_file(run / MODEL[0]) != sha256_file(short / MODEL[0])
    card = read_card(run)
    assert card.trained_steps == read_card(whole).trained_steps
    assert card.trained_steps["report"] == 6
    assert card.trained_steps["reward"] >= 1
    assert card.lengthened == ()


@pytest.mark.long
def test_a_falling_rate_is_stated_on_the_card_also_after_a_kill(toy_dataset: Dataset, tmp_path: Path) -> None:
    """The process dies once the longer training has begun; the older run stays whole, and --resume RUN goes on."""
    run = trained(toy_dataset, tmp_path / "run", "stages.report.epochs=2")
    before = sha256_file(run / "run.json")
    longer = [*OPTIONS, "stages.report.epochs=2", "stages.report.epochs=3"]

    class DiedError(Exception):
        pass

    from radweave.engine.stages import TrainingWatch

    def die(folder: Path) -> None:
        assert (folder / "checkpoints" / "report" / "step-00000006" / "optimizer.safetensors").is_file()
        raise DiedError

    with pytest.raises(DiedError):
        train("baseline", toy_dataset.path, run, overrides=longer, resume=True, watch=TrainingWatch(began=die))
    assert sha256_file(run / "run.json") == before
    assert read_card(run).trained_steps["report"] == 6
    started = read_started(run)
    assert started.overrides == tuple(longer)
    train(started.method, started.dataset, run, overrides=started.overrides, resume=True)
    card = read_card(run)
    assert card.trained_steps["report"] == 9
    (sentence,) = card.lengthened
    assert "lengthened after update 6: until there the learning rate fell" in sentence


def test_what_no_lengthening_is_stays_refused(short: Path, toy_dataset: Dataset, tmp_path: Path) -> None:
    run = copied(short, tmp_path)
    for more, message in (
        (("stages.report.epochs=1",), "cannot be shortened"),
        (("stages.report.epochs=4", "seed=1"), "other options or data"),
        (("stages.report.epochs=4", "stages.encoder.epochs=1"), "other options or data"),
        (("stages.encoder.epochs=1", "stages.report.epochs=2"), "a later stage was trained on what this one left"),
    ):
        with pytest.raises(InputError, match=message):
            trained(toy_dataset, run, CONSTANT, *more, resume=True)
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(InputError, match=r"no checkpoint of update 6 .*--from RUN"):
        trained(toy_dataset, run, CONSTANT, "stages.report.epochs=4", resume=True)
    with pytest.raises(InputError, match=r"stages\.reward.*no checkpoint of update 6 of stage 'report'.*--from RUN"):
        trained(toy_dataset, run, CONSTANT, "stages.report.epochs=2", "stages.reward.epochs=1", resume=True)
    assert read_card(run) == read_card(short)
    assert not aside_of(run).exists()


def figures(*steps: int) -> StageFigures:
    return StageFigures(best_step=steps[-1], epochs=tuple({"step": step} for step in steps))


@pytest.mark.parametrize(
    ("old", "new", "steps", "differs"),
    [
        ({"epochs": 2}, {"epochs": 4}, (5, 10), ["learning rate"]),
        ({"epochs": 2, "warmup": 10}, {"epochs": 4, "warmup": 10}, (5, 10), []),
        ({"epochs": 2, "ratio": 1}, {"epochs": 4, "ratio": 1}, (5, 10), []),
        ({"epochs": 9, "max_steps": 8, "ratio": 1}, {"epochs": 9, "ratio": 1}, (5, 8), ["within an epoch"]),
        ({"epochs": 9, "max_steps": 10, "ratio": 1}, {"epochs": 9, "ratio": 1}, (5, 10), []),
        ({"epochs": 9, "max_steps": 3, "ratio": 1}, {"epochs": 9, "ratio": 1}, (3,), ["within an epoch"]),
        ({"epochs": 9, "patience": 1}, {"epochs": 9, "patience": 3}, (5, 10), []),
        ({"epochs": 9, "patience": 1}, {"epochs": 20, "patience": 1}, (5, 10), "would end again"),
        ({"epochs": 9, "max_steps": 10}, {"epochs": 20, "max_steps": 10}, (5, 10), "its most updates"),
    ],
)
def test_differences_from_a_run_that_was_as_long_from_the_start(
    old: dict[str, int], new: dict[str, int], steps: Sequence[int], differs: list[str] | str
) -> None:
    from radweave.engine.lengthen import _differences, _refuse_end

    def stage(fields: dict[str, int]) -> StageConfig:
        optimizer = OptimizerConfig(final_ratio=fields.get("ratio", 0.05), warmup_steps=fields.get("warmup", 2))
        lengths = {name: fields[name] for name in ("epochs", "max_steps", "patience") if name in fields}
        return StageConfig(finetune={}, losses={}, optimizer=optimizer, **lengths)

    known = figures(*steps)
    if isinstance(differs, str):
        with pytest.raises(InputError, match=differs):
            _refuse_end(Path("run"), "stages.report", stage(old), stage(new), steps[-1], known)
        return
    _refuse_end(Path("run"), "stages.report", stage(old), stage(new), steps[-1], known)
    sentences = _differences("report", stage(old), stage(new), steps[-1], known)
    assert len(sentences) == len(differs)
    assert all(part in sentence for part, sentence in zip(differs, sentences, strict=True))
