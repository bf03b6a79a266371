"""Training and its dry run: options, wrong checkpoints, incomplete downloads, unusable run folders."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from radweave.core.config import parse_yaml
from radweave.core.devices import VARIABLE
from radweave.core.errors import InputError
from radweave.core.json_files import read_json
from radweave.data.dataset import Dataset
from radweave.engine.run_directory import claimed, refuse_place
from radweave.engine.train import train
from tests.checkpoints import write_encoder, write_language_model
from tests.command_line import radweave
from tests.toys import TOY_OVERRIDES, TOY_SIZES

TOY = [*TOY_OVERRIDES, *TOY_SIZES["baseline"]]


def test_a_dry_run_prints_the_plan_and_writes_nothing(toy_dataset: Dataset, tmp_path: Path) -> None:
    before = sorted(toy_dataset.path.rglob("*"))
    done = radweave(
        "train", "baseline", toy_dataset.path, *TOY, "--out", tmp_path / "run", "--dry-run", "--epochs", "3"
    )
    assert done.returncode == 0, done.stderr
    assert "stage vision: passed over" in done.stdout
    train = sum(1 for _ in toy_dataset.studies("train"))
    assert f"stage report: 3 epochs, at most {3 * -(-train // 4)} updates of 4 studies" in done.stdout
    assert re.search(r"frozen .*\bword_head", done.stdout)
    assert "GB" in done.stdout
    assert not any(tmp_path.iterdir())
    assert sorted(toy_dataset.path.rglob("*")) == before
    more = ("stages.report.epochs=2", "data.limit=7", "--dry-run", "--epochs", "3", "--limit", "5")
    done = radweave("train", "baseline", toy_dataset.path, *TOY, *more)
    assert f"stage report: 2 epochs, at most {2 * -(-7 // 4)} updates" in done.stdout, "a field precedes an option"


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("model.vision_encoder.path=nowhere/at/all", "model.vision_encoder.path"),
        ("data.tokenizer={kind: pretrained, path: nowhere/at/all}", "data.tokenizer.path"),
        ("model.language_model={kind: pretrained, path: nowhere/at/all}", "model.language_model.path"),
    ],
)
def test_a_dry_run_refuses_a_missing_path(override: str, field: str, toy_dataset: Dataset) -> None:
    done = radweave("train", "baseline", toy_dataset.path, override, "--dry-run")
    assert done.returncode == 2
    assert field in done.stderr
    assert "no such folder" in done.stderr


@pytest.mark.long
def test_a_limited_run_resumes_from_its_folder(toy_dataset: Dataset, tmp_path: Path) -> None:
    run, file = tmp_path / "run", tmp_path / "changes.yaml"
    file.write_text("stages: {report: {batch_size: 2}}\n")
    options = ["--out", run, "--limit", "5", "--epochs", "1", "--config", file]
    assert radweave("train", "baseline", toy_dataset.path, *TOY, *options).returncode == 0
    card, weights = read_json(run / "run.json"), (run / "weights.safetensors").read_bytes()
    assert card["trained_steps"]["report"] == 2, "four studies by twos: the override of 4 comes after the file's 2"
    (run / "run.json").unlink()
    (run / "weights.safetensors").unlink()
    done = radweave("train", "--resume", run)
    assert done.returncode == 0, done.stderr
    assert (run / "weights.safetensors").read_bytes() == weights


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "--resume", "{}/none"], ["no training was started"]),
        (["train", "--resume", "{}/none", "--epochs", "2"], ["--resume", "give none"]),
        (["train", "baseline"], ["which data set"]),
        (["train", "baseline", "{}"], ["--out"]),
        (["train", "baseline", "{}", "--out", "{}/run", "--device", "cuda:77"], ["--device", "no such device"]),
        (["train", "baseline", "{}", "--out", "{}/run", "--config", "{}/none.yaml"], ["none.yaml", "missing"]),
    ],
)
def test_missing_arguments_are_named(
    arguments: list[str], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "")
    done = radweave(*(argument.format(tmp_path) for argument in arguments))
    assert done.returncode == 2
    assert all(word in done.stderr for word in words), done.stderr


def test_the_configuration_is_printed_with_a_file_and_overrides(tmp_path: Path) -> None:
    file = tmp_path / "changes.yaml"
    file.write_text(json.dumps({"method": "dast", "model": {"retrieval": {"kind": "none"}}, "seed": 3}))
    done = radweave("config", "dast", "--config", file, "seed=4")
    assert done.returncode == 0, done.stderr
    values = parse_yaml(done.stdout)
    assert (values["seed"], values["model"]["retrieval"]) == (4, {"kind": "none"})
    assert "--config" not in radweave("config", "baseline", "--config", file).stdout
    assert radweave("config", "baseline", "--config", file).returncode == 2


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9877989586\n"
OVERRIDES = [option for option in TOY_OVERRIDES if "vocab_size" not in option and "image_size" not in option]


def _pointer(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(POINTER) and None


def _without_words(folder: Path) -> None:
    for file in folder.glob("token*"):
        file.unlink()


def _lost_part(folder: Path) -> None:
    names = list(load_file(folder / "model.safetensors"))
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    index = {
        "weight_map": {name: f"model-0000{1 + number % 2}-of-00002.safetensors" for number, name in enumerate(names)}
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _cut(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("brought")
    write_encoder("vit", folder / "vit")
    write_language_model("llama", folder / "llama")
    bert = folder / "bert"
    shutil.copytree(folder / "llama", bert)
    config = {"model_type": "bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    (bert / "config.json").write_text(json.dumps({**config, "vocab_size": 310, "intermediate_size": 8}))
    few = folder / "few"
    shutil.copytree(folder / "llama", few)
    config = json.loads((few / "config.json").read_text())
    (few / "config.json").write_text(json.dumps({**config, "vocab_size": 40}))
    return folder


DAMAGED: list[tuple[str, Callable[[Path], None], str]] = [
    ("llama", _without_words, "cannot load a tokenizer: none is in this folder"),
    ("llama", _pointer("tokenizer.json"), "the file was not downloaded (got a pointer of Git LFS"),
    ("llama", _pointer("model.safetensors"), "the file was not downloaded (got a pointer of Git LFS"),
    ("llama", _lost_part, "a part of the weights is missing: model-00002-of-00002.safetensors"),
    ("llama", _cut, "not a whole safetensors file"),
    ("vit", _pointer("model.safetensors"), "the file was not downloaded (got a pointer of Git LFS"),
]


@pytest.mark.parametrize(("part", "damage", "words"), DAMAGED, ids=lambda case: getattr(case, "__name__", None))
def test_dry_run_and_training_refuse_a_damaged_folder(
    part: str, damage: Callable[[Path], None], words: str, checkpoints: Path, toy_dataset: Dataset, tmp_path: Path
) -> None:
    for name in ("vit", "llama"):
        shutil.copytree(checkpoints / name, tmp_path / name)
    damage(tmp_path / part)
    assert words in _refused(tmp_path / "vit", tmp_path / "llama", toy_dataset, tmp_path / "run")


def _refused(encoder: Path, words: Path, dataset: Dataset, out: Path) -> str:
    """What a dry run says; the training says the same, and neither leaves anything behind."""
    overrides = [
        "model.vision_encoder=transformers", f"model.vision_encoder.path={encoder}",
        "model.language_model=pretrained", f"model.language_model.path={words}", *OVERRIDES,
    ]  # fmt: skip
    train_arguments = ["train", "baseline", str(dataset.path), *overrides, "--out", str(out)]
    dry, real = radweave(*train_arguments, "--dry-run"), radweave(*train_arguments)
    assert (dry.returncode, real.returncode) == (2, 2)
    output = [done.stderr.strip().splitlines()[-1] for done in (dry, real)]
    assert output[0] == output[1]
    assert not out.exists()
    return output[0]


def test_dry_run_and_training_refuse_another_kind_of_model(
    checkpoints: Path, toy_dataset: Dataset, tmp_path: Path
) -> None:
    vit, llama, out = checkpoints / "vit", checkpoints / "llama", tmp_path / "run"
    assert "not a causal language model (got bert" in _refused(vit, checkpoints / "bert", toy_dataset, out)
    assert "not a vision model (got llama" in _refused(llama, llama, toy_dataset, out)
    few = _refused(vit, checkpoints / "few", toy_dataset, out)
    assert "the tokenizer does not belong to this language model" in few
    assert "expected at most 40" in few


def test_a_web_page_instead_of_weights_is_refused(toy_ct_dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "resnet.pth").write_text("<!DOCTYPE html><title>404</title>")
    options = [f"model.vision_encoder.path={tmp_path / 'resnet.pth'}", "--preset", "tiny-ct", "--dry-run"]
    done = radweave("train", "baseline", toy_ct_dataset.path, *options)
    assert done.returncode == 2
    assert "field 'model.vision_encoder.path'" in done.stderr
    assert "the file was not downloaded (got a web page" in done.stderr


def test_a_dry_run_checks_the_run_folder(toy_dataset: Dataset, toy_run: Path, tmp_path: Path) -> None:
    def output(out: Path, *more: str) -> str:
        options = [
            "train",
            "baseline",
            str(toy_dataset.path),
            "--preset",
            "tiny",
            "--dry-run",
            "--out",
            str(out),
            *more,
        ]
        before = sorted(tmp_path.rglob("*"))
        done = radweave(*options)
        assert sorted(tmp_path.rglob("*")) == before
        assert (done.returncode == 2) == bool(done.stderr), done.stderr
        return done.stderr

    shutil.copytree(toy_run, tmp_path / "run")
    (tmp_path / "file").write_text("mine")
    assert output(tmp_path / "new") == ""
    assert "exists already; give --overwrite" in output(tmp_path / "run")
    assert output(tmp_path / "run", "--overwrite") == ""
    assert "is no folder" in output(tmp_path / "file")
    assert "nothing can be written there" in output(tmp_path / "file" / "run")
    assert "lies in the folder of a data set" in output(toy_dataset.path / "run")
    assert not (toy_dataset.path / "run").exists()


def test_a_run_folder_inside_a_data_set_is_refused(toy_dataset: Dataset) -> None:
    with pytest.raises(Exception, match="lies in the folder of a data set"):
        train("baseline", toy_dataset.path, toy_dataset.path / "runs" / "one")
    assert not (toy_dataset.path / "runs").exists()


def _link_as_lock(out: Path) -> None:
    out.mkdir()
    (out.parent / "other").write_text("")
    (out / ".lock").symlink_to(out.parent / "other")


def _folder_as_lock(out: Path) -> None:
    (out / ".lock").mkdir(parents=True)


def _file_of_the_user(out: Path) -> None:
    out.mkdir()
    (out / "mine.txt").write_text("mine")


def _stopped_aside(out: Path) -> None:
    aside = out.with_name(f".{out.name}.training")
    aside.mkdir()
    (aside / ".aside").touch()


def _killed_between_two_names(out: Path) -> None:
    _file_of_the_user(out)
    out.rename(out.with_name(f".{out.name}.before"))


@pytest.mark.parametrize("option", ["", "overwrite", "resume"])
@pytest.mark.parametrize(
    "made",
    [Path.mkdir, _file_of_the_user, _stopped_aside, _killed_between_two_names, _link_as_lock, _folder_as_lock],
    ids=lambda made: made.__name__,
)
def test_dry_run_and_training_refuse_the_same_folders(
    made: Callable[[Path], None], option: str, tmp_path: Path
) -> None:
    output = []
    for name, asks in (("dry", refuse_place), ("real", _claim)):
        folder = tmp_path / name
        folder.mkdir()
        made(folder / "run")
        try:
            asks(folder / "run", overwrite=option == "overwrite", resume=option == "resume")
        except InputError as error:
            output.append(str(error).replace(str(folder), ""))
        else:
            output.append("")
    assert output[0] == output[1]
    assert bool(output[0]) == ((made.__name__, option) in REFUSED)


REFUSED = {
    *((name, option) for name in ("_link_as_lock", "_folder_as_lock") for option in ("", "overwrite", "resume")),
    *((name, option) for name in ("_file_of_the_user", "_killed_between_two_names") for option in ("", "overwrite")),
    ("_stopped_aside", ""),
}


def _claim(out: Path, *, overwrite: bool, resume: bool) -> None:
    with claimed(out, overwrite=overwrite, resume=resume):
        pass


def test_a_dry_run_detects_a_concurrent_training(tmp_path: Path) -> None:
    with claimed(tmp_path / "run", overwrite=False, resume=False) as place:
        place.began = True
        with pytest.raises(InputError, match="another process is writing this run"):
            refuse_place(tmp_path / "run", overwrite=False, resume=True)
    refuse_place(tmp_path / "run", overwrite=False, resume=True)


@pytest.mark.parametrize("finished", [True, False])
def test_a_dry_run_refuses_to_resume_with_other_options(
    finished: bool, toy_dataset: Dataset, toy_run: Path, tmp_path: Path
) -> None:
    shutil.copytree(toy_run, tmp_path / "run")
    if not finished:
        (tmp_path / "run" / "run.json").unlink()
    options = ["train", "baseline", str(toy_dataset.path), "seed=7", "--out", str(tmp_path / "run"), "--resume"]
    dry, real = radweave(*options, "--dry-run"), radweave(*options)
    assert (dry.returncode, real.returncode) == (2, 2)
    assert dry.stderr.splitlines()[-1] == real.stderr.splitlines()[-1]
    assert ("other options" if finished else "the options the run was started with") in dry.stderr
