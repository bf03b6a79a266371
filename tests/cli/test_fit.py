"""``radweave fit``: from images and a table to an evaluated model, resumed, and refused without a trace."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import typer

from radweave.cli import fit as fit_module
from radweave.cli.options import shell_line
from radweave.core.json_files import read_json, read_jsonl
from radweave.data.dataset import Dataset
from tests.command_line import Done, radweave
from tests.docs.test_commands import parsed
from tests.toys import TOY_REPORTS, toy_image

STUDIES = 14
OPTIONS = ("data.image_size=32",)


def write_raw(folder: Path, *, header: str = "image,study_id,patient_id,view,report", more: str = "") -> Path:
    """A folder with an image and a line of ``reports.csv`` for each study; ``more`` ends each line."""
    lines = [header]
    for number in range(STUDIES):
        side = "left" if number % 2 else "right"
        toy_image(folder / f"{number}.png", bright_side=side, seed=number)
        lines.append(f'{number}.png,s{number},p{number},PA,"{TOY_REPORTS[side]}"{more}')
    (folder / "reports.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_raw(tmp_path_factory.mktemp("raw"))


def lines_of(done: Done) -> list[str]:
    """The commands that were printed, those of finished steps with "done: "."""
    return [line for line in done.stderr.splitlines() if line.removeprefix("done: ").startswith("radweave ")]


def test_a_folder_becomes_an_evaluated_model_and_the_same_command_goes_on(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "fitted"
    done = radweave("fit", raw, "--out", out, *OPTIONS)
    assert done.returncode == 0, done.stderr
    assert [line.split()[2] for line in done.stderr.splitlines() if line.startswith("next: ")] == ["generate", "serve"]
    commands = lines_of(done)
    steps = [command.split()[1] for command in commands]
    assert steps == ["data", "data", "train", "generate", "generate", "evaluate", "explain"]
    for command in commands:
        parsed(tuple(command.split()[1:]))
    assert [Dataset.open(out / "data").card.counts[f"studies_{name}"] for name in ("train", "val", "test")] == [
        10,
        1,
        3,
    ]
    for name, kind in (("drafts", "expected utility"), ("own", "own decoder")):
        assert {row["evidence"]["decoder"]["kind"] for _, row in read_jsonl(out / f"{name}.jsonl")} == {kind}
    assert set(read_json(out / "evaluation" / "evaluation.json")["runs"]) == {"drafts", "own"}
    assert (out / "page" / "index.html").is_file()
    assert sorted(path.name for path in out.iterdir()) == [
        "data", "drafts.jsonl", "evaluation", "fit.json", "own.jsonl", "page", "run"
    ]  # fmt: skip

    trained = (out / "run" / "run.json").stat().st_mtime_ns
    (out / "own.jsonl").unlink()
    shutil.rmtree(out / "evaluation")
    done = radweave("fit", raw, "--out", out, *OPTIONS)
    assert done.returncode == 0, done.stderr
    begun = [line.split()[1] for line in lines_of(done) if not line.startswith("done: ")]
    assert begun == ["generate", "evaluate"]
    assert (out / "run" / "run.json").stat().st_mtime_ns == trained
    refused = radweave("fit", raw, "--out", out, "--seed", "1", *OPTIONS)
    assert refused.returncode == 2
    assert "'seed': holds what was made with other options" in refused.stderr
    assert "got 1, expected 0" in refused.stderr


def test_a_training_that_was_stopped_is_resumed(toy_dataset: Dataset, tmp_path: Path) -> None:
    steps: list[Any] = []
    for method in (None, "baseline"):
        fit_module._train(steps.append, toy_dataset, tmp_path / "run", method, "tiny", 3, ["seed=0"])
    (tmp_path / "run").mkdir()
    fit_module._train(steps.append, toy_dataset, tmp_path / "run", None, "tiny", 3, ["seed=0"])
    untrained, new, resumed = (shell_line(step.command) for step in steps)
    run = tmp_path / "run"
    assert untrained == f"radweave train kernels {toy_dataset.path} --out {run} --preset tiny seed=0", (
        "it has no epochs"
    )
    assert new == f"radweave train baseline {toy_dataset.path} --out {run} --preset tiny --epochs 3 seed=0"
    assert resumed == f"radweave train --resume {tmp_path / 'run'}"


@pytest.mark.long
def test_scans_get_a_method_that_reads_them(toy_ct_dataset: Dataset, tmp_path: Path) -> None:
    steps: list[Any] = []
    fit_module._train(steps.append, toy_ct_dataset, tmp_path / "run", None, "tiny", None, [])
    assert steps[0].command[1] == "baseline"
    assert "tiny-ct" in steps[0].command


def _nothing(folder: Path) -> None:
    shutil.rmtree(folder)


def _no_table(folder: Path) -> None:
    (folder / "reports.csv").unlink()


def _no_reports(folder: Path) -> None:
    (folder / "reports.csv").write_text("image,study_id\n0.png,s0\n")


def _no_images(folder: Path) -> None:
    for path in folder.glob("*.png"):
        path.write_bytes(b"no image")


def _split_without_test(folder: Path) -> None:
    write_raw(folder, header="image,study_id,patient_id,view,report,split", more=",train")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_nothing, "no such file or folder"),
        (_no_table, "cannot tell which table holds the reports"),
        (_no_reports, "report"),
        (_no_images, "no study could be taken over"),
        (_split_without_test, "no usable study in split 'val'"),
    ],
)
def test_a_bad_folder_is_named_and_leaves_nothing(raw: Path, tmp_path: Path, spoil: Any, says: str) -> None:
    bad, out = tmp_path / "bad", tmp_path / "fitted"
    shutil.copytree(raw, bad)
    spoil(bad)
    done = radweave("fit", bad, "--out", out)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not out.exists()


def test_what_is_there_is_not_touched(raw: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    for options in (("--kind", "sideways"), ()):
        refused = radweave("fit", raw, "--out", tmp_path, *options)
        assert refused.returncode == 2
        assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert "--overwrite" not in refused.stderr
    assert "no fit began there; give another --out" in refused.stderr
    refused = radweave("fit", raw, "--out", tmp_path / "new", "--kind", "sideways")
    assert "'--kind': no such kind of data set" in refused.stderr
    assert not (tmp_path / "new").exists()


def test_a_table_of_impressions_and_images_elsewhere_are_taken(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "texts" / "reports.csv"
    table.parent.mkdir()
    table.write_text((raw / "reports.csv").read_text().replace("report", "impression", 1))
    refused = radweave("fit", table, "--out", tmp_path / "fitted", "--images", raw)
    assert refused.returncode == 2
    assert "or --target impression, which the table has" in refused.stderr
    steps: list[Any] = []
    run = fit_module._run

    def record(command: Any, step: Any) -> None:
        steps.append(step.command)
        if step.command[0] == "train":
            raise typer.Exit(3)
        run(command, step)

    monkeypatch.setattr(fit_module, "_run", record)
    done = radweave("fit", table, "--out", tmp_path / "fitted", "--images", raw, "--target", "impression")
    assert done.returncode == 3, done.stderr
    assert [step[:2] for step in steps] == [("data", "import"), ("data", "check"), ("train", "kernels")]
    dataset = Dataset.open(tmp_path / "fitted" / "data")
    assert sum(dataset.card.counts[f"studies_{name}"] for name in ("train", "val", "test")) == STUDIES
    assert {study.report for study in dataset.studies("train")} <= set(TOY_REPORTS.values())


def test_leaks_end_it_before_training(raw: Path, tmp_path: Path) -> None:
    """One image under two patients, of whom the table puts one into training and one into the test split."""
    leaky, out = tmp_path / "leaky", tmp_path / "fitted"
    shutil.copytree(raw, leaky)
    lines = ["image,study_id,patient_id,report,split"]
    for number, split in enumerate(("train", "train", "train", "val", "test")):
        lines.append(
            f'{number},s{number},p{number},"{TOY_REPORTS["left"]}",{split}'.replace(f"{number},", f"{number}.png,", 1)
        )
    shutil.copyfile(leaky / "0.png", leaky / "4.png")
    (leaky / "reports.csv").write_text("\n".join(lines) + "\n")
    done = radweave("fit", leaky, "--out", out, *OPTIONS)
    assert done.returncode == 1, done.stderr
    assert "leak" in done.stdout
    assert not (out / "run").exists()


def test_a_dataset_folder_is_used_where_it_lies(
    toy_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[Any] = []

    def record(_: Any, step: Any) -> None:
        steps.append(step.command[:3])
        if step.command[0] == "train":
            raise typer.Exit(3)

    monkeypatch.setattr(fit_module, "_run", record)
    assert radweave("fit", toy_dataset.path, "--out", tmp_path / "fitted").returncode == 3
    assert steps == [("data", "check", str(toy_dataset.path)), ("train", "kernels", str(toy_dataset.path))]
    refused = radweave("fit", toy_dataset.path, "--out", tmp_path / "other", "--split", "7:1:2")
    assert "'--split': a dataset folder has its own split" in refused.stderr
    assert not (tmp_path / "other").exists()
