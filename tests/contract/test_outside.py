"""Methods and losses of other packages: found by entry points, used like ours, and unable to harm ours."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from radweave.core.errors import InputError
from radweave.core.json_files import read_json
from radweave.data.dataset import Dataset
from radweave.engine.restore import restore
from radweave.engine.rewards import Rewards, TrainingTexts, refuse_unusable_rewards
from radweave.labels import get_labeler
from radweave.methods import load_method, method_names, method_summary, outside, resolve, usable_methods
from radweave.methods.baseline import PRESETS
from tests.command_line import radweave
from tests.toys import ROOT, TOY_OVERRIDES, TOY_SIZES

MODULES = {
    "mine/__init__.py": '''"""The seventh method with a table."""

from radweave.methods.tables import parts_table
from seventh import ABLATIONS, PRESETS

TABLES = {"parts": parts_table("seventh", ABLATIONS)}
''',
    "broken.py": '"""A method that fails."""\n\nraise RuntimeError("no such device")\n',
    "empty.py": '"""No method at all."""\n',
    "small_tokens.py": '''"""Keeps the tokens of the image small."""

from radweave.methods.model import Term

TERM = Term(("vision_encoder",), lambda forward: forward.views.tokens.square().mean())
''',
    "brevity.py": '''"""Rewards short reports."""


def reward(texts, references):
    return [1 / (1 + len(text.split())) for text in texts]
''',
}
ENTRY_POINTS = """[radweave.methods]
seventh = mine
broken = broken
empty = empty
baseline = mine
Bad-Name = mine

[radweave.losses]
baseline.small_tokens = small_tokens:TERM
baseline.report = small_tokens:TERM
dast.broken = broken:TERM
baseline.none = empty:__doc__

[radweave.rewards]
brevity = brevity:reward
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an installed package, ``other 1.2``."""
    folder = tmp_path_factory.mktemp("site")
    for name, text in MODULES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    info = folder / "other-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder


@pytest.fixture
def installed(package: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package on the import path of this process and of those it starts."""
    seventh = str(Path(__file__).parent / "more")
    monkeypatch.syspath_prepend(seventh)
    monkeypatch.syspath_prepend(str(package))
    paths = [str(package), seventh, str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    outside.report_unusable.cache_clear()
    yield package
    for name in ("mine", "seventh", "broken", "empty", "small_tokens", "brevity"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("installed")
def test_a_method_is_listed_without_being_imported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        names = method_names()
    assert {"seventh", "broken", "empty"} <= set(names)
    assert "Bad-Name" not in names
    assert method_summary("seventh") == "The seventh method with a table."
    assert method_summary("broken") == "A method that fails."
    assert not {"mine", "broken"} & set(sys.modules)
    assert len(caplog.messages) == 2
    assert "other 1.2: there is a method 'baseline' already" in caplog.text
    assert load_method("baseline").PRESETS is PRESETS, "no package takes the place of a method of ours"


def test_a_new_process_lists_it(installed: Path) -> None:
    command = [sys.executable, "-c", "from radweave.cli import main; main()", "methods"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ))
    assert "seventh        The seventh method with a table." in done.stdout.splitlines()


@pytest.mark.usefixtures("installed")
def test_a_reward_of_another_package_is_found_and_its_code_is_part_of_the_run() -> None:
    refuse_unusable_rewards(["findings", "brevity"], None)
    rewards = Rewards({"brevity": 1.0}, TrainingTexts((), get_labeler("chexpert14")))
    assert rewards.parts(["a b c", ""], ["", ""])["brevity"].tolist() == [0.25, 1.0]
    changed = ["stages.reward.rewards.brevity=1"]
    assert resolve("baseline", "tiny", changed).outside_code() == {}, "a stage that is off weighs nothing"
    code = resolve("baseline", "tiny", [*changed, "stages.reward.epochs=1"]).outside_code()
    assert list(code) == ["reward brevity"]
    assert code["reward brevity"]["package"] == "other"


@pytest.mark.usefixtures("installed")
def test_a_broken_package_costs_only_itself(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InputError, match=r"other 1\.2 cannot be imported \(RuntimeError: no such device\)"):
        load_method("broken")
    with pytest.raises(InputError, match=r"other 1\.2: the method has no PRESETS"):
        load_method("empty")
    with caplog.at_level(logging.WARNING):
        usable = usable_methods()
    assert "seventh" in usable
    assert not {"broken", "empty"} & set(usable)
    assert sum("no such device" in line for line in caplog.messages) == 1
    done = radweave("train", "broken", "data", "--out", "run")
    assert done.returncode
    assert "no such device" in done.stderr
    assert "Traceback" not in done.stderr


def test_it_trains_and_reports_and_is_refused_without_its_package(
    installed: Path, toy_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, drafts = tmp_path / "run", tmp_path / "drafts.jsonl"
    done = radweave("train", "seventh", toy_dataset.path, "--out", run, *TOY_OVERRIDES)
    assert done.returncode == 0, done.stderr
    assert read_json(run / "run.json")["versions"]["other"] == "1.2"
    done = radweave("generate", run, "--data", toy_dataset.path, "--out", drafts, "--untrained")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in drafts.read_text().splitlines()]
    assert len(rows) == len(list(toy_dataset.studies("test")))
    assert all(isinstance(row["hyp"], str) for row in rows)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(installed)])
    with pytest.raises(InputError, match=r"no such method.*got seventh|seventh"):
        restore(run)


@pytest.mark.long
@pytest.mark.usefixtures("installed")
def test_it_has_ablations_and_is_in_the_benchmark(toy_dataset: Dataset, tmp_path: Path) -> None:
    short = [option for option in TOY_OVERRIDES if not option.startswith("stages")]
    table = ("--table", "parts", "--seeds", "1", "--out", tmp_path / "ablation")
    done = radweave("ablate", "seventh", toy_dataset.path, *short, "stages.report.epochs=1", *table)
    assert done.returncode == 0, done.stdout + done.stderr
    page = "".join(path.read_text() for path in (tmp_path / "ablation").rglob("*.md"))
    assert "MLP connector" in page
    once = ("stages.report.epochs=1", "stages.report.select=loss")
    sized = [f"baseline:{option}" for option in (*TOY_SIZES["baseline"], *once)]
    mine = [f"seventh:{option}" for option in once]
    chosen = ("--xray", toy_dataset.path, "--sets", "xray", "--methods", "seventh", "--seeds", "1", "--jobs", "2")
    done = radweave("bench", tmp_path / "bench", *short, *sized, *mine, *chosen, "--headline-seeds", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    scores = read_json(tmp_path / "bench" / "results" / "benchmark.json")["sets"]["xray"]["scores"]["full"]
    assert {"baseline", "seventh"} <= set(scores)


def test_a_loss_of_another_package_joins_a_method_of_ours(
    installed: Path, toy_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = "stages.report.losses.small_tokens"
    sizes = [*TOY_OVERRIDES, *TOY_SIZES["baseline"], "stages.report.epochs=1", "stages.vision.epochs=0"]
    sizes.append("stages.report.finetune.vision_encoder=full")
    ends = []
    for number, options in enumerate(([], [f"{weight}=0.5"])):
        run = tmp_path / str(number)
        done = radweave("train", "baseline", toy_dataset.path, "--out", run, *sizes, *options)
        assert done.returncode == 0, done.stderr
        ends.append(read_json(run / "run.json"))
    plain, added = (card["validation"]["report"]["epochs"][-1] for card in ends)
    assert "small_tokens" not in plain
    assert added["small_tokens"] > 0
    assert ends[0]["files"]["weights.safetensors"] != ends[1]["files"]["weights.safetensors"]
    assert "other" not in ends[0]["versions"]
    assert ends[1]["versions"]["other"] == "1.2"
    code = resolve("baseline", "tiny", [f"{weight}=0.5"]).outside_code()
    assert code["small_tokens"]["package"] == "other"
    (installed / "small_tokens.py").write_text(MODULES["small_tokens.py"] + "\n")
    assert resolve("baseline", "tiny", [f"{weight}=0.5"]).outside_code() != code, "kept stages are of this code"
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(installed)])
    assert restore(tmp_path / "1").card.is_trained, "a report needs no loss"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("method", "loss", "message"),
    [
        ("baseline", "smal_tokens", "no such loss"),
        ("baseline", "none", "is no Term"),
        ("dast", "broken", "no such device"),
    ],
)
def test_a_loss_that_cannot_be_used_is_refused(
    method: str, loss: str, message: str, toy_dataset: Dataset, tmp_path: Path
) -> None:
    options = [*TOY_OVERRIDES, *TOY_SIZES[method], f"stages.report.losses.{loss}=1"]
    done = radweave("train", method, toy_dataset.path, "--out", tmp_path / "run", *options)
    assert done.returncode
    assert message in done.stderr
