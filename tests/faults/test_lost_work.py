"""Work that was done is not lost: by a stop, by an overwrite, by two writers."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conftest import TOY_OVERRIDES, TOY_SIZES
from radweave.cli import main
from radweave.data.dataset import Dataset
from radweave.serve.predictor import Predictor
from radweave.train.loop import StageTrainer

OVERRIDES = [*TOY_OVERRIDES, *TOY_SIZES["baseline"], "stages.report.epochs=2", "stages.report.select=last"]
SIGNALS = [(signal.SIGTERM, 143), (signal.SIGINT, 130)]


@dataclass(frozen=True)
class Done:
    """What a command left."""

    returncode: int
    stdout: str
    stderr: str


def radweave(*arguments: str | Path) -> Done:
    """Run the command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    before = sys.argv
    sys.argv = ["radweave", *map(str, arguments)]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        sys.argv = before
    return Done(code, out.getvalue(), err.getvalue())


def act_before(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[[], object], call: int) -> None:
    """Let ``act`` happen before the given call of a function, counted from 1."""
    real = getattr(owner, name)
    calls = 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            act()
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, wrapped)


def send(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_stopped_training_saves_names_resume_and_exits_with_the_code_of_the_signal(
    toy_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        act_before(patch, StageTrainer, "_update", send(number), call=2)
        done = radweave("train", "baseline", toy_dataset.path, "--out", run, *OVERRIDES)
    assert done.returncode == code
    assert "--resume" in done.stderr
    assert [path.name for path in (run / "checkpoints/report").iterdir()] == ["step-00000002"]
    done = radweave("train", "baseline", toy_dataset.path, "--out", run, "--resume", *OVERRIDES)
    assert done.returncode == 0, done.stderr
    assert (run / "run.json").is_file()


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_stopped_reports_are_kept_and_the_same_command_goes_on(
    toy_run: Path, toy_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    out = tmp_path / "out" / "predictions.jsonl"
    command = ("generate", toy_run, "--data", toy_dataset.path, "--out", out, "--shard-size", "2")
    with monkeypatch.context() as patch:
        act_before(patch, Predictor, "reports", send(number), call=2)
        done = radweave(*command)
    assert done.returncode == code
    assert "the same command goes on" in done.stderr
    assert not out.exists()
    assert len(list(out.parent.glob("*.shards/0*"))) == 1
    assert radweave(*command).returncode == 0
    assert [path.name for path in out.parent.iterdir()] == [out.name]
