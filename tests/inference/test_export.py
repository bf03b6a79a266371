"""Export: one folder that opens without data and run, whole or not at all."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import radweave
from radweave.core.errors import InputError
from radweave.data.dataset import Dataset
from radweave.engine.run_folder import hash_files, read_card, write_card
from radweave.engine.train import train
from radweave.inference.export import _is_local, export, licence_notes
from radweave.methods.baseline.model import BaselineModel
from radweave.nn.memory.bank import Bank, load_bank, patient_code, save_bank
from radweave.nn.vision.pretrained import STATED
from tests.command_line import file_size_limit
from tests.command_line import radweave as run_command
from tests.toys import TOY_OVERRIDES, TOY_SIZES, rewrite_card


@pytest.fixture(scope="module")
def exported(toy_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of the toy run. Do not change it; copy it first."""
    return export(toy_run, tmp_path_factory.mktemp("exports") / "model")


@pytest.mark.long
def test_it_reports_as_the_run_does_where_run_and_data_are_gone(
    toy_run: Path, exported: Path, toy_dataset: Dataset, tmp_path: Path
) -> None:
    image = tmp_path / "image.png"
    image.write_bytes(toy_dataset.image_path("images/1_0.png").read_bytes())
    expected = radweave.load(toy_run).report([image])
    moved = shutil.copytree(exported, tmp_path / "elsewhere")
    script = f"import radweave; print(radweave.load({str(moved)!r}).report([{str(image)!r}]).text)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == expected.text, done.stderr


def test_an_export_holds_no_training_data_beyond_its_banks(toy_run: Path, exported: Path, toy_dataset: Dataset) -> None:
    files = {path.relative_to(exported).as_posix() for path in exported.rglob("*") if path.is_file()}
    assert {"README.md", "LICENSES.md", "preprocessing.json", "config.yaml", "weights.safetensors"} <= files
    assert {Path(name).suffix for name in files} <= {
        ".md",
        ".json",
        ".jsonl",
        ".yaml",
        ".safetensors",
        ".jinja",
        ".txt",
    }
    assert not any(part in name for name in files for part in ("checkpoints", "metrics", ".lock"))
    card = json.loads((exported / "run.json").read_text())
    assert set(card["files"]) == files - {"run.json"}
    texts = "".join((exported / name).read_text() for name in files if not name.endswith(".safetensors"))
    assert str(toy_run) not in texts
    assert str(toy_dataset.path) not in texts
    assert not any(f'"{study.patient_id}"' in texts for study in toy_dataset.studies())


def test_an_export_of_an_export_states_all_losses(exported: Path, tmp_path: Path) -> None:
    lost = ("no report of a similar study is retrieved",)
    first = Path(shutil.copytree(exported, tmp_path / "first"))
    write_card(first, read_card(first).model_copy(update={"without": lost}))
    repeated = export(first, tmp_path / "again")
    assert read_card(repeated).without == lost
    assert lost[0] in (repeated / "README.md").read_text(encoding="utf-8")
    assert read_card(export(exported, tmp_path / "whole")).without == ()


def test_the_pages_of_an_export_describe_it(exported: Path) -> None:
    page = (exported / "README.md").read_text()
    assert "not a medical device" in page
    assert "stage `report` | 18 updates" in page
    assert "32 x 32 grey pixels" in page
    assert "weights.safetensors" in page
    assert "trained from nothing" in (exported / "LICENSES.md").read_text()
    numbers = json.loads((exported / "preprocessing.json").read_text())
    assert (numbers["image_size"], numbers["levels"], numbers["label_set"]) == (32, 256, "chexpert14")
    assert len(numbers["classes"]) == 14


def test_the_licence_page_names_start_weights_that_the_package_brings(exported: Path) -> None:
    page = licence_notes(read_card(exported).model_copy(update={"starts_from": STATED}), {}, {}, {})
    assert "trained on synthetic phantoms" in page
    assert "trained from nothing" not in page


@pytest.mark.parametrize("name", ["weights.safetensors", "config.yaml", "tokenizer/tokenizer.json", "README.md"])
def test_a_flipped_bit_or_a_missing_file_is_named(exported: Path, tmp_path: Path, name: str) -> None:
    broken = shutil.copytree(exported, tmp_path / "broken")
    data = bytearray((broken / name).read_bytes())
    data[len(data) // 2] ^= 1
    (broken / name).write_bytes(data)
    with pytest.raises(InputError, match=f"{Path(name).name}.*SHA-256"):
        radweave.load(broken)
    (broken / name).unlink()
    with pytest.raises(InputError, match=f"{Path(name).name}: file of the run is missing"):
        radweave.load(broken)


def test_another_preparation_of_images_is_refused(exported: Path, tmp_path: Path) -> None:
    other = shutil.copytree(exported, tmp_path / "other")
    rewrite_card(other, preprocessing=99)
    with pytest.raises(InputError, match=r"preprocessing.*99"):
        radweave.load(other)


def test_a_damaged_unfinished_or_untrained_run_is_not_exported(
    toy_run: Path, toy_dataset: Dataset, tmp_path: Path
) -> None:
    damaged = shutil.copytree(toy_run, tmp_path / "damaged")
    with (damaged / "weights.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x55")
    with pytest.raises(InputError, match="SHA-256"):
        export(damaged, tmp_path / "out")
    (damaged / "run.json").unlink()
    with pytest.raises(InputError, match="has not finished"):
        export(damaged, tmp_path / "out")
    overrides = [*TOY_OVERRIDES, *TOY_SIZES["baseline"], "stages.report.epochs=0"]
    untrained = train("baseline", toy_dataset.path, tmp_path / "untrained", overrides=overrides)
    with pytest.raises(InputError, match="never trained"):
        export(untrained, tmp_path / "out")
    assert not list(tmp_path.glob("*out*"))


def test_an_export_that_exists_is_kept_unless_asked(toy_run: Path, exported: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(exported, tmp_path / "out"))
    (out / "README.md").write_text("mine")
    with pytest.raises(InputError, match="--overwrite"):
        export(toy_run, out)
    export(toy_run, out, overwrite=True)
    assert (out / "README.md").read_text() == (exported / "README.md").read_text()


def test_a_full_disk_leaves_nothing(toy_run: Path, tmp_path: Path) -> None:
    with file_size_limit(50_000):
        failed = run_command("export", toy_run, tmp_path / "out")
    assert failed.returncode == 2, failed.stderr
    assert "cannot write" in failed.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_rows_of_a_memory_lose_their_names_and_keep_their_texts(
    toy_run: Path, toy_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    observed: list[dict[str, Bank]] = []
    monkeypatch.setattr(BaselineModel, "set_memories", lambda self, banks: observed.append(banks), raising=False)
    run = Path(shutil.copytree(toy_run, tmp_path / "run"))
    studies = list(toy_dataset.studies("train"))[:3]
    rows = tuple(
        {"study_id": study.study_id, "patient": patient_code(study.patient_id), "text": study.report}
        for study in [*studies, studies[0]]
    )
    for name in ("reports", "regions"):
        save_bank(Bank({"vectors": torch.eye(4)}, rows), run / "memories" / name)
    rewrite_card(run, files=hash_files(run))
    out = export(run, tmp_path / "out")
    bank = load_bank(out / "memories" / "regions")
    assert bank.study_ids == ["case-1", "case-2", "case-3", "case-1"]
    assert bank.patients == ["patient-1", "patient-2", "patient-3", "patient-1"]
    assert [row["text"] for row in bank.rows] == [row["text"] for row in rows]
    owners = bank.owners()
    assert owners.studies_of([studies[2].study_id, "case-3", "other"]).tolist() == [2, -1, -1]
    assert owners.patients_of([studies[1].patient_id, "patient-2", "other"]).tolist() == [1, -1, -1]
    retained = "".join(path.read_text() for path in (out / "memories").rglob("*.json*"))
    assert not any(name in retained for row in rows for name in (f'"{row["study_id"]}"', str(row["patient"])))
    repeated = export(out, tmp_path / "again")
    assert load_bank(repeated / "memories" / "regions").rows == bank.rows
    assert load_bank(repeated / "memories" / "regions").hashed == bank.hashed
    assert torch.equal(bank.tensors["vectors"], torch.eye(4))
    assert "`reports` holds 4 rows" in (out / "README.md").read_text()
    assert set(observed[-1]) == {"reports", "regions"}, "the export was opened before it got its name"


KILL_LOOP = """
import os, random, shutil, signal, sys, time
from pathlib import Path
import torch
from radweave.inference.export import _is_local, export, licence_notes
from radweave.engine.restore import restore

torch.set_num_threads(1)  # no thread pool that a fork would lose
run, out, rounds = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
export(run, out)  # once without the clock: it imports much
started = time.perf_counter()
export(run, out, overwrite=True)
lasts = time.perf_counter() - started
random.seed(0)
killed = whole = number = 0
while killed < rounds and number < 10 * rounds:
    overwrite = bool(number % 2)
    if not overwrite and out.exists():
        shutil.rmtree(out)
    child = os.fork()
    if child == 0:
        export(run, out, overwrite=overwrite)
        os._exit(0)
    time.sleep(lasts * random.random())
    os.kill(child, signal.SIGKILL)
    hit = os.WIFSIGNALED(os.waitpid(child, 0)[1])
    lasts *= 1.0 if hit else 0.8  # the machine was busier while it was measured
    killed, number = killed + hit, number + 1
    if out.exists():
        restore(out)
        whole += 1
export(run, out, overwrite=True)
restore(out)
assert [path.name for path in out.parent.iterdir()] == [out.name], list(out.parent.iterdir())
assert killed == rounds, "the kills came too late"
print("rounds", rounds, "killed", killed, "whole", whole)
"""


@pytest.mark.long
@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_sigkill_at_random_moments_leaves_a_whole_export_or_none(toy_run: Path, tmp_path: Path, rounds: int) -> None:
    (tmp_path / "exports").mkdir()
    command = [sys.executable, "-c", KILL_LOOP, str(toy_run), str(tmp_path / "exports" / "model"), str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"rounds {rounds} ")
    print(done.stdout)


def test_an_export_put_aside_by_a_killed_overwrite_comes_back(toy_run: Path, exported: Path, tmp_path: Path) -> None:
    shutil.copytree(exported, tmp_path / ".model.0123abcd.old")
    half_removed = shutil.copytree(exported, tmp_path / ".model.00000000.partial")
    (Path(half_removed) / "weights.safetensors").unlink()
    (tmp_path / ".model.4567cdef.partial").mkdir()
    with pytest.raises(InputError, match="--overwrite"):
        export(toy_run, tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert radweave.load(tmp_path / "model")


def test_overrides_curves_and_paths_stay_behind(toy_run: Path, exported: Path, tmp_path: Path) -> None:
    """An override may hold a path of somebody's machine; a curve says how often the validation split was asked."""
    card, whole = (json.loads((folder / "run.json").read_text()) for folder in (exported, toy_run))
    assert whole["overrides"]
    assert card["overrides"] == []
    curves = [[len(figures["epochs"]) for figures in each["validation"].values()] for each in (whole, card)]
    assert max(curves[0]) > 1
    assert max(curves[1]) == 1


def test_a_path_is_local_by_its_form_or_existence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "owner" / "here").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    places = ("owner/here", "/no/such/place", "~/llama", "./llama", "../llama", "owner/elsewhere", "llama")
    assert [_is_local(path) for path in places] == [True] * 5 + [False] * 2


def test_scores_with_floors_stand_in_the_card(toy_run: Path, toy_dataset: Dataset, tmp_path: Path) -> None:
    drafts = tmp_path / "p.jsonl"
    assert run_command("generate", toy_run, "--data", toy_dataset.path, "--out", drafts).returncode == 0
    done = run_command("evaluate", drafts, "--no-meteor", "--resamples", "20", "--out", tmp_path / "scores")
    assert done.returncode == 0, done.stderr
    made = run_command("export", toy_run, tmp_path / "a", "--scores", tmp_path / "scores/evaluation.json")
    assert made.returncode == 0, made.stderr
    page = (tmp_path / "a/README.md").read_text()
    assert "| BLEU_4 |" in page
    assert "| one constant report |" in page
    assert "6 studies, " in page
    assert "; 95 % intervals" in page
    assert "None were given" not in page
    assert "None were given" in (export(toy_run, tmp_path / "b") / "README.md").read_text()


def test_a_file_of_anything_else_is_refused_and_nothing_is_written(toy_run: Path, tmp_path: Path) -> None:
    for text in ("{}", '{"format": "radweave-evaluation"}', "[]", "no json"):
        (tmp_path / "e.json").write_text(text)
        with pytest.raises(InputError, match=r"e\.json"):
            export(toy_run, tmp_path / "out", scores=tmp_path / "e.json")
        assert not (tmp_path / "out").exists()
