"""The command line as a user types it: light start, one-line errors, exit codes, JSON."""

from __future__ import annotations

import gc
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from radweave.cli.options import next_step, without_next_steps
from radweave.core.errors import InputError
from radweave.data.dataset import Dataset
from tests.command_line import radweave
from tests.docs.test_commands import parsed
from tests.toys import ROOT, TOY_OVERRIDES, TOY_SIZES, toy_image, write_toy_dataset

HEAVY = ("torch", "transformers", "scipy", "sklearn", "pydicom", "nibabel", "pandas", "PIL")


def test_the_installed_command_exits_with_2_and_one_line() -> None:
    command = [str(Path(sys.executable).with_name("radweave")), "generate", "nowhere", "x.png"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "error: nowhere: no such run folder\n"


@pytest.mark.parametrize("arguments", [["--help"], ["methods"], ["--version"], ["train", "--help"], ["data", "--help"]])
def test_fast_verbs_import_nothing_heavy(arguments: list[str]) -> None:
    script = (
        "import sys; from radweave.cli import main\n"
        f"sys.argv = ['radweave', *{arguments!r}]\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print('LOADED', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith("LOADED []")


def test_a_command_ends_without_a_search_for_garbage() -> None:
    script = (
        "import gc, sys; from radweave.cli import main\n"
        "gc.freeze = lambda: print('FROZEN')\n"
        "sys.argv = ['radweave', '--version']\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1:] == ["FROZEN"]


@pytest.mark.parametrize(("verb", "out"), [("generate", "drafts.txt"), ("explain", "page")])
def test_a_run_is_restored_without_garbage_collection(
    verb: str, out: str, toy_run: Path, toy_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collects = []

    def refused(folder: Path) -> NoReturn:
        collects.append(gc.isenabled())
        raise InputError("seen", file=folder)

    monkeypatch.setattr("radweave.engine.restore.restore", refused)
    done = radweave(verb, toy_run, toy_dataset.image_path("images/1_0.png"), "--out", tmp_path / out)
    assert "seen" in done.stderr
    assert collects == [False]
    assert gc.isenabled()


def test_help_names_every_verb_and_the_notice() -> None:
    text = radweave("--help").stdout
    verbs = "demo phantom data inspect methods train generate features explain export estimate"
    for verb in (*verbs.split(), "evaluate", "compare", "label", "ablate"):
        assert verb in text
    assert "not a medical device" in text.replace("\n", " ")


def test_the_package_is_a_program() -> None:
    done = subprocess.run([sys.executable, "-m", "radweave", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("radweave ")


def test_a_folder_around_a_run_names_the_run(toy_run: Path, tmp_path: Path) -> None:
    shutil.copytree(toy_run, tmp_path / "run")
    done = radweave("generate", tmp_path, "x.png")
    assert (done.returncode, "the run is the folder 'run' in it" in done.stderr) == (2, True)


def test_a_command_names_the_next_one_unless_another_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    next_step("serve", "a run")
    with without_next_steps():
        next_step("serve", "another")
    assert capsys.readouterr().err == "next: radweave serve 'a run'\n"


def test_an_import_warns_of_another_language_and_names_what_comes_next(tmp_path: Path) -> None:
    rows = []
    for number in range(9):
        toy_image(tmp_path / f"{number}.png", bright_side="left", seed=number)
        rows.append(f"{number}.png,Silueta cardiaca normal. No se observan infiltrados ni derrame pleural izquierdo.")
    (tmp_path / "reports.csv").write_text("\n".join(("image,report", *rows)))
    done = radweave("data", "import", "folder", tmp_path / "reports.csv", "--split", "1:1:1", "--out", tmp_path / "a")
    assert "warning: 9 x report without a common English word" in done.stderr
    following = [line.removeprefix("next: ") for line in done.stderr.splitlines() if line.startswith("next: ")]
    assert [line.split()[1] for line in following] == ["data", "fit"]
    for line in following:
        parsed(tuple(line.split()[1:]))
    whole = radweave("data", "import", "folder", tmp_path / "reports.csv", "--split", "test", "--out", tmp_path / "b")
    assert "next: radweave fit" not in whole.stderr


def test_config_takes_the_method_of_a_file(toy_run: Path) -> None:
    done = radweave("config", "--config", toy_run / "config.yaml")
    assert done.returncode == 0
    assert done.stdout.startswith("method: ")


@pytest.mark.parametrize("where", [("{tmp}/out",), ("--out", "{tmp}/out")])
def test_export_takes_its_folder_in_both_ways(where: tuple[str, ...], toy_run: Path, tmp_path: Path) -> None:
    assert radweave("export", toy_run, *[part.format(tmp=tmp_path) for part in where]).returncode == 0
    assert (tmp_path / "out" / "run.json").is_file()


def test_explain_prints_warnings_and_refuses_a_folder_of_many_studies(toy_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    toy_image(folder / "0.png", bright_side="left", seed=0)
    done = radweave("explain", toy_run, folder, "--out", tmp_path / "page")
    assert done.returncode == 0
    assert "warning: " in done.stderr
    assert "--view" not in done.stderr
    for number in range(1, 33):
        shutil.copy(folder / "0.png", folder / f"{number}.png")
    done = radweave("explain", toy_run, folder, "--out", tmp_path / "other")
    assert (done.returncode, "more images than a study has" in done.stderr) == (2, True)


def test_methods_lists_each_with_its_summary() -> None:
    lines = radweave("methods").stdout.splitlines()
    names = sorted(path.parent.name for path in (ROOT / "src/radweave/methods").glob("*/__init__.py"))
    assert [line.split()[0] for line in lines] == names
    assert all(len(line.split()) > 3 for line in lines)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "baseline", "nowhere", "--out", "{tmp}/run"], "no such dataset folder"),
        (["train", "kernels", __file__, "--out", "{tmp}/run"], "'radweave data import' makes one of a table"),
        (["train", "kernels", "{data}", "--out", "{tmp}/run", "stages.report.epochs=3"], "nothing would train"),
        (["train", "kernels", "{data}", "--out", "{tmp}/run", "--epochs", "3"], "no stage of this method trains"),
        (["train", "basline", "{data}", "--out", "{tmp}/run"], "expected one of am_mrg, baseline"),
        (["train", "baseline", "{data}", "--out", "{tmp}/run", "--preset", "huge"], "tiny, tiny-ct, small, paper"),
        (["train", "baseline", "{data}", "--out", "{tmp}/run", "stages.report.epoch=3"], "did you mean 'epochs'"),
        (["train", "baseline", "{data}", "--out", "{run}"], "--overwrite"),
        (["generate", "nowhere", "x.png"], "no such run folder"),
        (["generate", "{data}", "x.png"], "run.json is missing"),
        (["generate", "{run}", "nowhere.png"], "nowhere.png"),
        (["generate", "{run}"], "give image files, or --data"),
        (["generate", "{run}", "--data", "{data}"], "--out"),
        (["generate", "{run}", "--data", "{data}", "--split", "tset", "--out", "{tmp}/p"], "train, val, test"),
        (["generate", "{run}", "--data", "{data}", "--out", "{tmp}/p", "--set", "decoding.beams=3"], "num_beams"),
        (["evaluate", "nowhere.jsonl"], "nowhere.jsonl"),
        (["evaluate", "{run}"], "is a run folder, not a file of drafts"),
        (["compare", "{data}"], "two files of drafts, or one with --floors"),
        (["data", "import", "folder", "nowhere.csv", "--out", "{tmp}/d"], "no such file"),
        (["data", "import", "floder", "x.csv", "--out", "{tmp}/d"], "folder"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    toy_run: Path, toy_dataset: Dataset, tmp_path: Path, arguments: list[str], words: str
) -> None:
    places = {"data": toy_dataset.path, "run": toy_run, "tmp": tmp_path}
    done = radweave(*[argument.format(**places) for argument in arguments])
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.split("error: ")) == 2
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == [], "nothing half-written stays behind"


def test_generate_prints_json_despite_a_bad_image(toy_run: Path, toy_dataset: Dataset, tmp_path: Path) -> None:
    good = toy_dataset.image_path("images/1_0.png")
    bad = tmp_path / "bad.png"
    bad.write_text("no image")
    done = radweave("generate", toy_run, good, bad, "--json")
    rows = json.loads(done.stdout)
    assert done.returncode == 2
    assert rows[0]["report"]
    assert rows[0]["evidence"]["sentences"]
    assert "not a medical device" in rows[0]["notice"]
    assert "bad.png" in rows[1]["refused"]
    assert "1 of 2 studies were refused" in done.stderr


def test_a_study_with_a_missing_image_is_reported_and_the_rest_written(toy_run: Path, tmp_path: Path) -> None:
    dataset = write_toy_dataset(tmp_path / "dataset", tmp_path / "sources")
    (dataset.path / "images/17_0.png").unlink()
    out = tmp_path / "predictions.jsonl"
    done = radweave("generate", toy_run, "--data", dataset.path, "--out", out)
    assert done.returncode == 0
    assert len(out.read_text().splitlines()) == 5
    assert "left out s017" in done.stderr
    assert "1 studies left out" in done.stderr


def test_train_generate_evaluate_by_hand(toy_dataset: Dataset, tmp_path: Path) -> None:
    overrides = [*TOY_OVERRIDES, *TOY_SIZES["baseline"], "stages.report.epochs=2"]
    trained = radweave("train", "baseline", toy_dataset.path, "--out", tmp_path / "run", *overrides)
    assert trained.returncode == 0, trained.stderr
    assert "stage report, epoch 2 of 2: validation report" in trained.stderr
    out = tmp_path / "predictions.jsonl"
    assert radweave("generate", tmp_path / "run", "--data", toy_dataset.path, "--out", out).returncode == 0
    scored = radweave("evaluate", out, "--json", "--no-meteor")
    assert scored.returncode == 0, scored.stderr
    result = json.loads(scored.stdout)
    assert 0 <= result["corpus"]["BLEU_4"]["value"] <= 1
    assert result["floors"]["constant_report"]["corpus"]["BLEU_4"] is not None
    assert result["floors"]["nearest_neighbour"]["corpus"]["BLEU_4"] is not None


def test_an_untrained_run_needs_the_flag(toy_dataset: Dataset, tmp_path: Path) -> None:
    overrides = [*TOY_OVERRIDES, *TOY_SIZES["baseline"], "stages.report.max_steps=0"]
    radweave("train", "baseline", toy_dataset.path, "--out", tmp_path / "run", *overrides)
    image = toy_dataset.image_path("images/1_0.png")
    refused = radweave("generate", tmp_path / "run", image)
    assert refused.returncode == 2
    assert "--untrained" in refused.stderr
    untrained = radweave("generate", tmp_path / "run", image, "--untrained")
    assert untrained.returncode == 0
    assert "UNTRAINED WEIGHTS" in untrained.stderr


def test_a_planted_leak_stops_training(toy_dataset: Dataset, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(toy_dataset.path, copy)
    with (copy / "manifest.jsonl").open("a") as file:
        file.write(json.dumps({"study_id": "leak", "patient_id": "p000", "split": "test", "report": "x"}) + "\n")
    done = radweave("train", "baseline", copy, "--out", tmp_path / "run", *TOY_OVERRIDES, *TOY_SIZES["baseline"])
    assert done.returncode == 2
    assert "leak" in done.stderr
    assert not (tmp_path / "run").exists()
