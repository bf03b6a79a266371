"""Work that was done is not lost: by a stop, by an overwrite, by two writers."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from radweave.core.errors import InputError
from radweave.data.dataset import Dataset
from radweave.engine import run_directory as run_place
from radweave.engine import train as runs
from radweave.engine.loop import StageTrainer, Watch
from radweave.engine.restore import restore
from radweave.engine.run_directory import claimed
from radweave.engine.stages import TrainingWatch
from radweave.engine.train import train
from radweave.inference import features as feature_bank
from radweave.inference.predictor import Predictor
from tests.command_line import Done, file_size_limit, radweave
from tests.toys import TOY_OVERRIDES, TOY_SIZES

OVERRIDES = [*TOY_OVERRIDES, *TOY_SIZES["baseline"], "stages.report.epochs=2", "stages.report.select=last"]
SIGNALS = [(signal.SIGTERM, 143), (signal.SIGINT, 130)]


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
        act_before(patch, StageTrainer, "_end_of_update", send(number), call=2)
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


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def good_run(toy_run: Path, tmp_path: Path) -> Path:
    """A finished run that must not be lost, alone in its folder."""
    return Path(shutil.copytree(toy_run, tmp_path / "runs" / "run"))


WRONG: dict[str, tuple[str, Callable[[Path], Path], list[str]]] = {
    "method": ("bsaeline", lambda data: data, []),
    "data set": ("baseline", lambda data: data / "images", []),
    "option": ("baseline", lambda data: data, ["stages.report.epcohs=1"]),
    "other modality": ("baseline", lambda data: data, ["data.ct.size=[8,16,16]"]),
    "label set": ("baseline", lambda data: data, ["data.label_set=ct18"]),
    "tokenizer": ("baseline", lambda data: data, ["data.tokenizer={kind: pretrained, path: /}"]),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("is_present", [True, False])
def test_a_start_that_fails_leaves_what_was_there(
    toy_dataset: Dataset, good_run: Path, what: str, is_present: bool
) -> None:
    method, data, wrong = WRONG[what]
    if not is_present:
        shutil.rmtree(good_run)
    before = contents(good_run.parent)
    with pytest.raises(InputError):
        train(method, data(toy_dataset.path), good_run, overrides=[*OVERRIDES, *wrong], overwrite=is_present)
    assert contents(good_run.parent) == before
    assert [path.name for path in good_run.parent.iterdir()] == (["run"] if is_present else [])


def test_an_empty_folder_that_was_there_stays_after_a_start_that_failed(toy_dataset: Dataset, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(InputError):
        train("baseline", toy_dataset.path, out, overrides=[*OVERRIDES, "data.label_set=ct18"])
    assert list(out.iterdir()) == []


@pytest.mark.long
def test_an_overwritten_run_is_whole_until_the_new_one_is_finished(
    toy_dataset: Dataset, good_run: Path, tmp_path: Path
) -> None:
    overrides = [*OVERRIDES, "seed=3"]
    before, old = contents(good_run), restore(good_run).card
    checks = []

    def look(number: int, total: int, figures: dict[str, float]) -> None:
        checks.append(contents(good_run) == before)

    watch = TrainingWatch(stage=lambda name: Watch(step=look))
    assert train("baseline", toy_dataset.path, good_run, overrides=overrides, overwrite=True, watch=watch) == good_run
    assert checks == [True] * 6
    assert restore(good_run).card.seed == 3 != old.seed
    fresh = train("baseline", toy_dataset.path, tmp_path / "fresh", overrides=overrides)
    assert (fresh / "weights.safetensors").read_bytes() == (good_run / "weights.safetensors").read_bytes()
    assert contents(fresh).keys() == contents(good_run).keys()
    assert [path.name for path in good_run.parent.iterdir()] == ["run"]


def test_a_stopped_overwrite_leaves_the_old_run_in_use_and_resumes(
    toy_dataset: Dataset, good_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(good_run)
    command = ("train", "baseline", toy_dataset.path, "--out", good_run, *OVERRIDES, "seed=3")
    with monkeypatch.context() as patch:
        act_before(patch, StageTrainer, "_end_of_update", send(signal.SIGTERM), call=4)
        assert radweave(*command, "--overwrite").returncode == 143
    assert contents(good_run) == before
    refused = radweave(*command)
    assert refused.returncode == 2
    assert contents(good_run) == before
    other = radweave(*command, "data.max_tokens=20", "--resume")
    assert other.returncode == 2
    assert "options the run was started with" in other.stderr
    steps: list[int] = []
    watch = TrainingWatch(stage=lambda name: Watch(step=lambda step, total, figures: steps.append(step)))
    train("baseline", toy_dataset.path, good_run, overrides=[*OVERRIDES, "seed=3"], resume=True, watch=watch)
    assert steps == [5, 6]
    assert restore(good_run).card.seed == 3
    assert [path.name for path in good_run.parent.iterdir()] == ["run"]


def test_an_overwrite_that_is_given_again_begins_anew(
    toy_dataset: Dataset, good_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("train", "baseline", toy_dataset.path, "--out", good_run, "--overwrite", *OVERRIDES)
    with monkeypatch.context() as patch:
        act_before(patch, StageTrainer, "_end_of_update", send(signal.SIGTERM), call=4)
        assert radweave(*command, "seed=3").returncode == 143
    assert radweave(*command, "seed=4").returncode == 0
    assert restore(good_run).card.seed == 4
    assert [path.name for path in good_run.parent.iterdir()] == ["run"]


def test_a_stopped_overwrite_is_not_forgotten_when_the_old_run_is_removed(
    toy_dataset: Dataset, good_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("train", "baseline", toy_dataset.path, "--out", good_run, *OVERRIDES)
    with monkeypatch.context() as patch:
        act_before(patch, StageTrainer, "_end_of_update", send(signal.SIGTERM), call=4)
        assert radweave(*command, "--overwrite").returncode == 143
    shutil.rmtree(good_run)
    refused = radweave(*command)
    assert refused.returncode == 2
    assert "--resume" in refused.stderr
    assert radweave(*command, "--resume").returncode == 0
    assert [path.name for path in good_run.parent.iterdir()] == ["run"]


@pytest.mark.long
@pytest.mark.parametrize("times", ["replaced, the older one not yet removed", "not yet replaced"])
def test_a_kill_during_the_replacement_loses_neither_run(
    toy_dataset: Dataset, good_run: Path, monkeypatch: pytest.MonkeyPatch, times: str
) -> None:
    old = restore(good_run).card.seed

    def killed(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run_place, "_exchange" if times == "not yet replaced" else "_finish_exchange", killed)
        with pytest.raises(KeyboardInterrupt):
            train("baseline", toy_dataset.path, good_run, overrides=[*OVERRIDES, "seed=3"], overwrite=True)
    assert restore(good_run).card.seed == (old if times == "not yet replaced" else 3)
    assert len(list(good_run.parent.iterdir())) == 2
    train("baseline", toy_dataset.path, good_run, overrides=[*OVERRIDES, "seed=3"], resume=True)
    assert restore(good_run).card.seed == 3
    assert [path.name for path in good_run.parent.iterdir()] == ["run"]


def test_without_an_exchange_in_one_step_the_older_run_gets_its_name_back(good_run: Path) -> None:
    before = contents(good_run)
    good_run.rename(good_run.with_name(".run.before"))
    with claimed(good_run, overwrite=True, resume=False):
        pass
    assert contents(good_run) == before


@pytest.mark.long
@pytest.mark.parametrize("option", [{"overwrite": True}, {"resume": True}])
def test_a_run_that_is_being_trained_is_refused_at_once_and_not_harmed(
    toy_dataset: Dataset, tmp_path: Path, option: dict[str, bool]
) -> None:
    out = tmp_path / "runs" / "run"
    refused = []

    def second(number: int, total: int, figures: dict[str, float]) -> None:
        if number == 2:
            before = contents(tmp_path / "runs")
            with pytest.raises(InputError, match="another process") as error:
                train("baseline", toy_dataset.path, out, overrides=OVERRIDES, **option)  # type: ignore[arg-type]
            assert contents(tmp_path / "runs") == before
            refused.append(str(error.value))

    train(
        "baseline", toy_dataset.path, out, overrides=OVERRIDES, watch=TrainingWatch(stage=lambda _: Watch(step=second))
    )
    assert len(refused) == 1
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 6 + 2
    refused.clear()
    # Trained aside it is held as well.
    resumed = TrainingWatch(stage=lambda _: Watch(step=second))
    train("baseline", toy_dataset.path, out, overrides=OVERRIDES, overwrite=True, watch=resumed)
    assert len(refused) == 1
    assert [path.name for path in out.parent.iterdir()] == ["run"]


@pytest.mark.parametrize("verb", ["generate", "features"])
def test_the_second_writer_of_an_output_is_refused_at_once(
    toy_run: Path, toy_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    out = tmp_path / "out" / "here"
    command = (verb, toy_run, "--data", toy_dataset.path, "--split", "test", "--out", out, "--overwrite")
    second: list[Done] = []
    owner, name = (Predictor, "reports") if verb == "generate" else (feature_bank, "encode_views")
    act_before(monkeypatch, owner, name, lambda: second.append(radweave(*command)), call=1)
    first = radweave(*command)
    assert (first.returncode, second[0].returncode) == (0, 2)
    assert "another process is writing this" in second[0].stderr
    assert "reading images" not in second[0].stderr
    assert [path.name for path in out.parent.iterdir()] == ["here"]


def test_leftovers_of_killed_writers_are_removed_at_the_next_start(
    toy_run: Path, toy_dataset: Dataset, tmp_path: Path
) -> None:
    shards = tmp_path / "p[1].jsonl.shards"
    shards.mkdir()
    left = [
        tmp_path / ".p[1].jsonl.0123abcd.partial",
        shards / ".00000.0123abcd.partial",
        tmp_path / ".p[1].jsonl.lock",
    ]
    for path in left:
        path.write_text("a text that must not stay for ever")
    done = radweave("generate", toy_run, "--data", toy_dataset.path, "--out", tmp_path / "p[1].jsonl")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p[1].jsonl"]


def test_a_disk_that_is_full_for_the_tokenizer_is_one_line(toy_dataset: Dataset, tmp_path: Path) -> None:
    """The tokenizer's writer raises plain exceptions; a limit on the size of files stands for the full disk."""
    out = tmp_path / "run"
    with file_size_limit(4000):
        done = radweave("train", "baseline", toy_dataset.path, "--out", out, *OVERRIDES)
    assert done.returncode == 2
    assert "cannot write: File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_resume_does_not_accept_a_finished_run_of_other_options(
    toy_dataset: Dataset, good_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("train", "baseline", toy_dataset.path, "--out", good_run, *OVERRIDES, "seed=3")
    before = contents(good_run)
    with monkeypatch.context() as patch:
        # Before the first update: nothing is there to go on from.
        act_before(patch, runs, "build_cache", send(signal.SIGTERM), call=1)
        stopped = radweave(*command, "--overwrite")
    assert stopped.returncode == 143
    assert "--resume" in stopped.stderr
    refused = radweave(*command, "--resume")
    assert refused.returncode == 2
    assert "other options" in refused.stderr
    assert contents(good_run) == before
    assert radweave(*command, "--overwrite", "--resume").returncode == 0
    assert restore(good_run).card.seed == 3
    new = contents(good_run)
    assert radweave(*command, "--overwrite", "--resume").returncode == 0
    assert contents(good_run) == new


@pytest.mark.parametrize("option", ["--overwrite", "--resume", "--parallel=ddp"])
def test_a_run_replaces_no_file_and_no_pipe(toy_dataset: Dataset, tmp_path: Path, option: str) -> None:
    out = tmp_path / "pipe"
    os.mkfifo(out)
    done = radweave("train", "baseline", toy_dataset.path, "--out", out, option, *OVERRIDES)
    assert done.returncode == 2
    assert "no folder" in done.stderr
    assert out.is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
