"""The loop: resume, selection, skipped steps, and what trains."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from radweave.core.batch import Batch
from radweave.core.errors import InputError
from radweave.core.stopping import StoppedError
from radweave.engine.checkpoint import load_checkpoint
from radweave.engine.loop import StageTrainer, Watch
from radweave.methods.model import Term, losses
from radweave.methods.stage import (
    OptimizerConfig,
    StageConfig,
    apply_finetune,
    learning_rate,
    set_train_mode,
    total_loss,
)


class Line(nn.Module):
    """Fits y = w x with dropout, so that a wrong random state shows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(4, 8)
        self.second = nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))

    def loss(self, batch: Batch, terms: Sequence[str] = ("fit",)) -> dict[str, Tensor]:
        assert batch.pixel_values is not None
        out = self.second(self.first(batch.pixel_values))
        return {"fit": (out - batch.pixel_values.sum(1, keepdim=True)).square().mean()}


class Batches:
    """Five batches an epoch, each known by its number; ``poison`` makes some of them NaN."""

    steps_per_epoch = 5

    def __init__(self, poison: tuple[int, ...] = ()) -> None:
        self.poison = poison

    def epoch(self, epoch: int = 0, first_step: int = 0) -> Iterator[Batch]:
        for step in range(first_step, self.steps_per_epoch):
            number = epoch * self.steps_per_epoch + step
            values = torch.randn(6, 4, generator=torch.Generator().manual_seed(number))
            if number in self.poison:
                values[0, 0] = float("nan")
            yield Batch(study_ids=[f"study{number}-{i}" for i in range(6)], patient_ids=["p"] * 6, pixel_values=values)


def stage(**changes: object) -> StageConfig:
    options: dict[str, object] = {
        "finetune": {"first": "full", "second": "full"},
        "losses": {"fit": 1.0},
        "optimizer": OptimizerConfig(learning_rate=0.01, warmup_steps=3),
        "epochs": 4,
        "checkpoint_every": 2,
        "select": "last",
    }
    return StageConfig.model_validate(options | changes)


def trainer(
    folder: Path, config: StageConfig, watch: Watch | None = None, batches: Batches | None = None
) -> StageTrainer:
    model = Line()

    def validate() -> dict[str, float]:
        with torch.no_grad():
            losses = [float(model.loss(batch)["fit"]) for batch in Batches().epoch(99)]
        return {"loss": sum(losses) / len(losses)}

    return StageTrainer(
        model=model, stage=config, batches=batches or Batches(), name="fit", seed=5, folder=folder,
        validate=validate, fingerprint="f", watch=watch or Watch(),
    )  # fmt: skip


class Killed(BaseException):
    """Stands for a SIGKILL between two updates."""


def killed_at(step: int) -> Watch:
    def check(number: int, total: int, figures: dict[str, float]) -> None:
        if number == step:
            raise Killed

    return Watch(step=check)


@pytest.mark.parametrize("select", ["last", "loss"])
def test_an_averaged_run_that_was_killed_leaves_the_same_average(tmp_path: Path, select: str) -> None:
    whole = trainer(tmp_path / "whole", stage(ema=0.8, select=select))
    plain = trainer(tmp_path / "plain", stage(select=select))
    for folder in ("whole", "plain", "cut"):
        (tmp_path / folder).mkdir()
    whole.run()
    plain.run()
    with pytest.raises(Killed):
        trainer(tmp_path / "cut", stage(ema=0.8, select=select), killed_at(13)).run()
    resumed = trainer(tmp_path / "cut", stage(ema=0.8, select=select))
    resumed.run()
    for (name, left), right in zip(whole.model.state_dict().items(), resumed.model.state_dict().values(), strict=True):
        assert torch.equal(left, right), name
    assert resumed.progress.history == whole.progress.history
    assert not torch.equal(whole.model.first.weight, plain.model.first.weight)


@pytest.mark.parametrize("step", range(1, 20))
def test_a_run_killed_at_any_step_resumes_to_the_same_weights(tmp_path: Path, step: int) -> None:
    whole = trainer(tmp_path / "whole", stage(select="loss"))
    # The log of a stage before, with more steps than this one.
    before = json.dumps({"stage": "before", "step": 99, "epoch": 0, "loss": 1.0}) + "\n"
    for folder in ("whole", "cut"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "metrics.jsonl").write_text(before)
    whole.run()
    with pytest.raises(Killed):
        trainer(tmp_path / "cut", stage(select="loss"), killed_at(step)).run()
    resumed = trainer(tmp_path / "cut", stage(select="loss"))
    resumed.run()
    for (name, left), right in zip(whole.model.state_dict().items(), resumed.model.state_dict().values(), strict=True):
        assert torch.equal(left, right), name
    assert resumed.progress.history == whole.progress.history

    def rows(folder: str) -> list[dict[str, object]]:
        parsed = [json.loads(line) for line in (tmp_path / folder / "metrics.jsonl").read_text().splitlines()]
        return [{key: value for key, value in row.items() if key != "studies_per_s"} for row in parsed]

    assert rows("cut") == rows("whole")
    assert rows("cut")[0] == json.loads(before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_writes_a_checkpoint_and_the_run_goes_on_from_it(tmp_path: Path, number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(StoppedError) as stop:
        trainer(tmp_path, stage(checkpoint_every=1000), signalled_at(3, number)).run()
    assert stop.value.signal == number
    assert signal.getsignal(number) is before
    assert [path.name for path in (tmp_path / "checkpoints/fit").iterdir()] == ["step-00000003"]
    history: list[int] = []
    trainer(tmp_path, stage(checkpoint_every=1000), Watch(step=lambda n, t, f: history.append(n))).run()
    assert history == list(range(4, 21))


def signalled_at(step: int, number: signal.Signals) -> Watch:
    return Watch(step=lambda at, total, figures: os.kill(os.getpid(), number) if at == step else None)


def test_a_signal_in_the_last_update_stops_the_run(tmp_path: Path) -> None:
    """The next stage may take hours."""
    with pytest.raises(StoppedError):
        trainer(tmp_path, stage(), signalled_at(20, signal.SIGTERM)).run()
    assert sorted(path.name for path in (tmp_path / "checkpoints/fit").glob("step-*"))[-1] == "step-00000020"
    steps: list[int] = []
    trainer(tmp_path, stage(), Watch(step=lambda step, total, figures: steps.append(step))).run()
    assert steps == []


@pytest.mark.parametrize(
    ("select", "figures", "best"),
    [("loss", [3.0, 1.0, 2.0, 4.0], 1), ("BLEU_4", [0.1, 0.2, 0.4, 0.3], 2), ("last", [0, 0, 0, 0], 3)],
)
def test_the_best_epoch_is_left_in_the_model(tmp_path: Path, select: str, figures: list[float], best: int) -> None:
    run = trainer(tmp_path, stage(select=select))
    history: list[Tensor] = []

    def validate() -> dict[str, float]:
        history.append(run.model.first.weight.detach().clone())  # type: ignore[union-attr,operator]
        return {"loss": 0.0, select: figures[len(history) - 1]}

    run.validate = validate
    run.run()
    assert torch.equal(run.model.first.weight, history[best])  # type: ignore[union-attr,arg-type]
    assert not torch.equal(history[0], history[best])


@pytest.mark.parametrize(
    ("patience", "figures", "epochs", "best"),
    [(1, [3.0, 1.0, 2.0, 0.5], 3, 2), (2, [3.0, 1.0, 2.0, 0.5], 4, 4), (2, [1.0, 2.0, 3.0, 0.5], 3, 1)],
)
def test_a_stage_ends_after_epochs_without_improvement(
    tmp_path: Path, patience: int, figures: list[float], epochs: int, best: int
) -> None:
    run = trainer(tmp_path, stage(select="loss", patience=patience))
    losses = iter(figures)
    run.validate = lambda: {"loss": next(losses)}
    progress = run.run()
    per_epoch = run.batches.steps_per_epoch
    assert (progress.step, progress.best_step) == (epochs * per_epoch, best * per_epoch)


def test_a_changed_checkpoint_is_skipped_for_an_older_one(tmp_path: Path) -> None:
    run = trainer(tmp_path, stage())
    run.run()
    newest = sorted((tmp_path / "checkpoints/fit").glob("step-*"))[-1]
    data = bytearray((newest / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (newest / "model.safetensors").write_bytes(data)
    with pytest.raises(InputError, match="SHA-256"):
        load_checkpoint(newest, Line(), None)
    resumed = trainer(tmp_path, stage())
    resumed.run()
    assert torch.equal(resumed.model.first.weight, run.model.first.weight)  # type: ignore[union-attr,arg-type]


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        trainer(tmp_path, stage(), killed_at(6)).run()
    other = trainer(tmp_path, stage())
    other.fingerprint = "g"
    with pytest.raises(InputError, match="another configuration"):
        other.run()


def test_a_step_that_is_not_finite_is_skipped_and_counted(tmp_path: Path) -> None:
    progress = trainer(tmp_path, stage(), batches=Batches(poison=(2, 7))).run()
    assert progress.skipped == 2
    assert progress.step == 20


def test_a_non_finite_step_leaves_weights_and_running_statistics(tmp_path: Path) -> None:
    history: list[dict[str, Tensor]] = []
    run = trainer(tmp_path, stage(), batches=Batches(poison=(2,)))
    run.watch = Watch(
        step=lambda *figures: history.append({name: value.clone() for name, value in run.model.state_dict().items()})
    )
    run.run()
    before, poisoned, after = history[1:4]
    for name, value in before.items():
        assert torch.equal(value, poisoned[name]), name
        assert torch.isfinite(after[name]).all(), name
    # Not because nothing moves these: the next step does.
    assert not torch.equal(before["second.0.running_mean"], after["second.0.running_mean"])
    assert int(after["second.0.num_batches_tracked"]) == 3


def test_the_seed_of_the_run_decides_random_numbers_inside_the_model(tmp_path: Path) -> None:
    def first_losses(seed: int, name: str = "fit") -> list[float]:
        losses: list[float] = []
        run = trainer(tmp_path / f"{seed}-{name}-{len(list(tmp_path.iterdir()))}", stage(epochs=1))
        run.folder.mkdir()
        run.seed, run.name = seed, name
        run.watch = Watch(step=lambda number, total, figures: losses.append(figures["loss"]))
        run.run()
        return losses

    # The model and the batches are the same: dropout alone differs, from the first step on.
    five = first_losses(5)
    assert first_losses(5) == five
    assert first_losses(6)[0] != five[0]
    assert first_losses(5, "other")[0] != five[0]


class OneBatch(Batches):
    """The same studies in every step."""

    def epoch(self, epoch: int = 0, first_step: int = 0) -> Iterator[Batch]:
        yield from (next(super(OneBatch, self).epoch()) for _ in range(first_step, self.steps_per_epoch))


def test_each_step_has_its_own_random_numbers(tmp_path: Path) -> None:
    """The batch is always the same, and the weights as good as stand still: what differs is dropout."""
    losses: list[float] = []
    watch = Watch(step=lambda number, total, figures: losses.append(figures["loss"]))
    slow = OptimizerConfig(learning_rate=1e-12, warmup_steps=0, weight_decay=0)
    trainer(tmp_path, stage(epochs=1, optimizer=slow), watch, OneBatch()).run()
    assert len({round(loss, 4) for loss in losses}) == 5


def test_too_many_non_finite_steps_stop_with_the_studies_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="study4-0"):
        trainer(tmp_path, stage(max_skipped_steps=1), batches=Batches(poison=(1, 4))).run()


def test_frozen_parts_do_not_move_nor_do_their_batch_statistics(tmp_path: Path) -> None:
    run = trainer(tmp_path, stage(finetune={"first": "full", "second": "frozen"}))
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    run.run()
    moved = {name for name, value in run.model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {"first.weight", "first.bias"}


def test_a_stage_in_which_nothing_trains_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"stages\.fit\.finetune.*nothing trains"):
        trainer(tmp_path, stage(finetune={"first": "frozen"})).run()


def test_a_part_that_is_not_named_is_frozen_and_one_that_does_not_exist_refused() -> None:
    model = Line()
    apply_finetune(model, {"second": "full"})
    assert [name for name, part in model.named_children() if any(p.requires_grad for p in part.parameters())] == [
        "second"
    ]
    set_train_mode(model.train(), {"second": "full"})
    assert (model.first.training, model.second.training) == (False, True)
    with pytest.raises(InputError, match=r"no such part.*got thrid, expected of first, second"):
        apply_finetune(model, {"thrid": "frozen"})
    with pytest.raises(InputError, match=r"no such loss.*got other, expected of fit"):
        losses({"fit": Term((), Tensor.sum)}, torch.ones(2), ("fit", "other"))
    assert float(total_loss({"a": torch.tensor(1.0), "b": torch.tensor(2.0)}, {"a": 1.0, "b": 0.5})) == 2.0


def test_the_learning_rate_warms_up_and_decays_to_its_final_ratio() -> None:
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=10, final_ratio=0.1)
    assert learning_rate(0, 110, config) == pytest.approx(0.1)
    assert learning_rate(9, 110, config) == pytest.approx(1.0)
    assert learning_rate(60, 110, config) == pytest.approx(0.55)
    assert learning_rate(110, 110, config) == pytest.approx(0.1)


def test_every_update_has_the_rate_of_its_step(tmp_path: Path) -> None:
    run = trainer(tmp_path, stage())
    run.run()
    last = learning_rate(run.total_steps - 1, run.total_steps, run.stage.optimizer)
    assert last != run.stage.optimizer.learning_rate
    assert [group["lr"] for group in run.optimizer.param_groups] == [last] * len(run.optimizer.param_groups)
