"""Options of the command line: values reach the work, numbers have bounds, progress without a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import radweave.inference.explain  # binds names before the tests patch them
from radweave.cli import app, options
from radweave.core.chat import ENDPOINT_KEY, HttpChat
from radweave.core.study import View
from radweave.data.dataset import Dataset
from radweave.data.importers import ImportOptions
from radweave.engine.run_directory import Started
from radweave.experiments.ablate import AblationRequest
from radweave.experiments.bench_suite import BenchRequest
from radweave.metrics.commands import CompareRequest, EvaluateRequest, LabelRequest
from radweave.metrics.pairs import Fields
from radweave.metrics.submissions import SubmissionRequest
from tests.command_line import radweave
from tests.toys import TOY_OVERRIDES, TOY_SIZES

P = Path

REQUESTS: dict[str, tuple[str, str, Any]] = {
    "evaluate": (
        "radweave.metrics.commands.run_evaluate",
        "a b --protocol ws --beside dots --ontology ct18 --weights w --train t --train-labels l --priors q --no-meteor "
        "--weights radgraph=g --score CRG --cache c --judge http://x "
        "--judge-model m --allow-remote --skip-invalid --without-marks --second-opinion --resamples 7 "
        "--seed 3 --json --out o --overwrite --study i --hyp h --ref r --suite vlm3d --all",
        EvaluateRequest(
            pairs=(P("a"), P("b")), protocol="ws", second="dots", ontology="ct18", weights=P("w"), train=P("t"),
            train_labels=P("l"), priors=P("q"), meteor=False, folders={"radgraph": P("g")},
            scores=("CRG",), cache=P("c"), judge="http://x", judge_model="m", allow_remote=True, skip_invalid=True,
            second_opinions=True,
            resamples=7, without_marks=True, fields=Fields("i", "h", "r"), seed=3, as_json=True, out=P("o"),
            overwrite=True, suite="vlm3d", show_all=True,
        ),
    ),
    "compare": (
        "radweave.metrics.commands.run_compare",
        "a b --protocol ws --ontology ct18 --weights w --weights radgraph=g --floors --seeds --no-meteor "
        "--score CRG --cache c --resamples 7 --seed 3 --judge http://x --judge-model m --allow-remote --judge-limit 5 "
        "--both-orders --phrases 3 --images d "
        "--json --out o --overwrite --study i --hyp h --ref r --suite rexrank --all",
        CompareRequest(
            runs=(P("a"), P("b")), protocol="ws", ontology="ct18", weights=P("w"), folders={"radgraph": P("g")},
            fields=Fields("i", "h", "r"), suite="rexrank", show_all=True, floors=True, scores=("CRG",), cache=P("c"),
            seeds=True, meteor=False, resamples=7, seed=3, judge="http://x", judge_model="m", allow_remote=True,
            judge_limit=5, both_orders=True, phrases=3, images=P("d"), as_json=True, out=P("o"), overwrite=True,
        ),
    ),
    "submission": (
        "radweave.metrics.submissions.run_submission",
        "rexrank a.jsonl --out o --studies s --overwrite",
        SubmissionRequest("rexrank", P("a.jsonl"), P("o"), P("s"), overwrite=True),
    ),
    "label": (
        "radweave.metrics.commands.run_label",
        "a.csv --ontology ct18 --weights w --text t --study s --places --out o --overwrite",
        LabelRequest(P("a.csv"), "ct18", P("w"), "t", "s", places=True, out=P("o"), overwrite=True),
    ),
    "ablate": (
        "radweave.experiments.ablate.run_ablation",
        "vdgen d x.y=1 --out o --table main --preset small --seeds 4 --headline-seeds 6 --rows a,b --jobs 2 --protocol "
        "ws --meteor --runs r --reuse u --reuse v --probe --json",
        AblationRequest(
            "vdgen", P("d"), "main", P("o"), "small", 4, 6, ("a", "b"), 2, ("x.y=1",), "ws", meteor=True, runs=P("r"),
            reuse=(P("u"), P("v")), probe=True,
        ),
    ),
    "bench": (
        "radweave.experiments.bench.run_bench",
        "o x.y=1 --xray x --ct c --iu i --sets iu,ct --methods vdgen,dast --preset small --seeds 4 --headline-seeds 6 "
        "--headline-sets ct --headline-methods dast --precision bfloat16 --jobs 2 --phantom-studies 50 --ct-studies 60 "
        "--reuse u --drafts iu:n=f --prior both,report --ensemble 5 --pages p --meteor --no-utility --no-pace "
        "--no-probe --no-train",
        BenchRequest(
            out=P("o"), data={"xray": P("x"), "ct": P("c"), "iu": P("i")}, sets=("iu", "ct"), methods=("vdgen", "dast"),
            preset="small", seeds=4, headline_seeds=6, headline_sets=("ct",), headline_methods=("dast",), jobs=2,
            overrides=("x.y=1",), precision="bfloat16", studies={"xray": 50, "ct": 60}, reuse=(P("u"),), pages=P("p"),
            meteor=True, train=False, utility=False, pace=False, probe=False, drafts=("iu:n=f",),
            prior=("both", "report"), ensemble=5,
        ),
    ),
}  # fmt: skip


PYTHON_ONLY = {"ablate": {"own_processes", "train"}, "compare": {"second_opinions"}, "evaluate": {"floors"}}


class ArrivedError(Exception):
    """Raised where the work would begin: nothing is done."""


def given_to(monkeypatch: pytest.MonkeyPatch, place: str, arguments: str) -> tuple[tuple[Any, ...], Any]:
    """What the command line hands to the function at ``place``."""
    calls_made: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def take(*args: Any, **named: Any) -> None:
        calls_made.append((args, named))
        raise ArrivedError

    monkeypatch.setattr(place, take)
    result = CliRunner().invoke(app, arguments.split())
    assert isinstance(result.exception, ArrivedError), result.output
    return calls_made[0]


@pytest.mark.parametrize("verb", REQUESTS)
def test_every_option_of_a_request(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, arguments, expected = REQUESTS[verb]
    args, _ = given_to(monkeypatch, place, f"{verb} {arguments}")
    assert args[0] == expected
    # None of them has its default, so that one that is lost on the way shows. These are for callers from Python.
    at_default = {field.name for field in fields(expected) if getattr(expected, field.name) == field.default}
    assert at_default <= PYTHON_ONLY.get(verb, set())


def test_every_option_of_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = (
        "data import folder s --out o --target impression --cleaning lower --split 7:1:2 --seed 4 --keep all "
        "--images i --annotation a --views pa,lateral --separator ; --labeler negbio --verify --link "
        "--scrub --scrub-names n --overwrite"
    )
    args, named = given_to(monkeypatch, "radweave.data.importers.import_dataset", arguments)
    assert args == ("folder", P("s"), P("o"))
    assert named["overwrite"] is True
    assert named["options"] == ImportOptions(
        target="impression", cleaning="lower", split="7:1:2", seed=4, keep="all", images=P("i"), annotation=P("a"),
        views=(View.PA, View.LATERAL), separator=";", labeler="negbio", link=True, verify=True, scrub=True,
        scrub_names=P("n"),
    )  # fmt: skip


def test_every_option_of_a_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = "data mix a b c --out o --same-patients --link --overwrite"
    args, named = given_to(monkeypatch, "radweave.data.mixing.mix_datasets", arguments)
    assert args == ([P("a"), P("b"), P("c")], P("o"))
    assert named == {"same_patients": True, "link": True, "overwrite": True}


def test_every_option_of_texts_by_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT_KEY, "k")
    arguments = "data regions d --out o.json --endpoint http://x/v1 --model m --allow-remote --attempts 7 --overwrite"
    args, named = given_to(monkeypatch, "radweave.data.regions.write_regions", arguments)
    assert args == (P("d"), P("o.json"), HttpChat("http://x/v1", "m", "k", allow_remote=True))
    named.pop("progress")
    assert named == {"attempts": 7, "overwrite": True}


def test_every_option_of_train(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = "train vdgen d a.b=1 c=2 --out o --preset small --config f --limit 3 --overwrite --resume "
    arguments += "--parallel fsdp --from r"
    args, named = given_to(monkeypatch, "radweave.engine.train.train", arguments)
    named.pop("watch")
    assert args == ("vdgen", P("d"), P("o"))
    assert named == {
        "preset": "small", "overrides": ("data.limit=3", "a.b=1", "c=2"), "config": P("f"), "overwrite": True,
        "resume": True, "parallel": "fsdp", "start": P("r"),
    }  # fmt: skip


def test_a_finished_run_gets_longer_by_its_folder_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first word behind the run is no data set but an override; both come after those it began with."""
    started = Started("vdgen", P("d"), P("r"), "small", ("a.b=1",), start=P("s"))
    monkeypatch.setattr("radweave.engine.run_directory.read_started", lambda run: started)
    arguments = "train --resume r stages.report.epochs=20 stages.report.patience=null"
    args, named = given_to(monkeypatch, "radweave.engine.train.train", arguments)
    assert args == ("vdgen", P("d"), P("r"))
    assert named["overrides"] == ("a.b=1", "stages.report.epochs=20", "stages.report.patience=null")
    assert (named["resume"], named["preset"], named["start"]) == (True, "small", P("s"))


def test_every_option_of_reports_features_pages_and_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: dict[str, Any] = {}

    def predictor(run: Any, **named: Any) -> Any:
        calls.update(named)
        return SimpleNamespace(modality="xray")

    run = object()
    monkeypatch.setattr("radweave.inference.predictor.Predictor", SimpleNamespace(of=predictor))
    monkeypatch.setattr("radweave.engine.restore.restore", lambda folder: run)
    arguments = "generate r --data d --split val --out o --untrained --batch-size 3 --shard-size 5 --ray 2 --set a=1"
    arguments += " --own-decoder --at-test pairing_seed=3"
    args, named = given_to(monkeypatch, "radweave.inference.bulk.generate_split", arguments)
    assert calls == {"untrained": True, "decoding": ("a=1", "kind=likelihood")}
    assert args[0] is run
    assert args[2:] == (P("d"), "val", P("o"))
    assert (named["batch_size"], named["shard_size"], named["ray_workers"]) == (3, 5, 2)
    assert named["at_test"] == ["pairing_seed=3"]
    arguments = "generate r a.png b.png --one-study --view pa --view lateral"
    args, named = given_to(monkeypatch, "radweave.inference.bulk.group_images", arguments)
    assert args == ([P("a.png"), P("b.png")],)
    assert named == {"one_study": True, "modality": "xray", "views": [View.PA, View.LATERAL]}
    monkeypatch.setattr("radweave.inference.bulk.group_images", lambda *args, **named: ["group"])
    arguments = "generate r a.png --force --indication i --technique t --findings f"
    args, named = given_to(monkeypatch, "radweave.inference.bulk.generate_files", arguments)
    context = {"indication": "i", "technique": "t", "findings": "f"}
    assert (args[1], named) == (["group"], {"force": True, "context": context})
    arguments = "features r --data d --out o --split val --batch-size 3 --shard-size 5 --ray 2 --overwrite"
    args, named = given_to(monkeypatch, "radweave.inference.features.build_feature_bank", arguments)
    assert args == (run, P("d"), "val", P("o"))
    assert {name: named[name] for name in ("batch_size", "shard_size", "ray_workers", "overwrite")} == {
        "batch_size": 3, "shard_size": 5, "ray_workers": 2, "overwrite": True,
    }  # fmt: skip
    calls.clear()
    arguments = "explain r --data d --study s --out o --threshold 0.3 --force --untrained --set a=1 --overwrite"
    args, named = given_to(monkeypatch, "radweave.inference.explain.explain_study", arguments)
    assert calls == {"untrained": True, "decoding": ("a=1",)}
    assert args[2:] == (P("d"), "s", P("o"))
    assert named == {"threshold": 0.3, "force": True, "overwrite": True}
    arguments = "export r o --overwrite --no-bank --scores e --set a=1 --set b=2"
    args, named = given_to(monkeypatch, "radweave.inference.export.export", arguments)
    assert args == (P("r"), P("o"))
    assert named == {"overwrite": True, "bank": False, "scores": P("e"), "decoding": ("a=1", "b=2")}


def test_every_option_of_phantoms(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = (
        "phantom --out o --modality ct --studies 7 --seed 3 --prevalence normal --image-size 64 --volume-size 32 "
        "--slices 16 --masks --boxes --jobs 2 --overwrite"
    )
    args, named = given_to(monkeypatch, "radweave.phantom.study.write_phantom_dataset", arguments)
    options = named.pop("options")
    named.pop("progress")
    assert args == (P("o"),)
    assert named == {"modality": "ct", "num_studies": 7, "seed": 3, "overwrite": True, "jobs": 2}
    assert (options.prevalence, options.image_size, options.volume_size, options.slices) == ("normal", 64, 32, 16)
    assert options.masks
    assert options.boxes


def options_of(command: Any, verb: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, inner in getattr(command, "commands", {}).items():
        yield from options_of(inner, (*verb, name))
    if not hasattr(command, "commands"):
        for option in command.params:
            yield f"{' '.join(verb)} {option.opts[0]}", option


def test_every_numeric_option_has_bounds() -> None:
    numbers = {
        name: option
        for name, option in options_of(typer.main.get_command(app))
        if getattr(getattr(option, "type_descriptor", None), "annotation", None) in (int, float)
    }
    assert {"evaluate --resamples", "generate --batch-size", "phantom --studies", "explain --threshold"} <= set(numbers)
    assert [name for name, option in numbers.items() if None in (option.min, option.max)] == []


@pytest.mark.parametrize(("number", "bound"), [("1000000000", "100000"), ("-1", "equal to 0")])
def test_too_many_resamples_are_refused_before_a_file_is_opened(number: str, bound: str, tmp_path: Path) -> None:
    done = radweave("evaluate", tmp_path / "none.jsonl", "--resamples", number)
    assert done.returncode == 2
    assert "'--resamples'" in done.stderr
    assert bound in done.stderr


def test_a_log_names_stage_epoch_and_total(
    toy_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "LINE_EVERY_S", 0.0)
    overrides = [*TOY_OVERRIDES, *TOY_SIZES["baseline"], "stages.report.epochs=2", "stages.report.select=loss"]
    log = radweave("train", "baseline", toy_dataset.path, "--out", tmp_path / "run", *overrides).stderr
    lines = [line for line in log.splitlines() if line.startswith("stage report")]
    assert re.match(r"stage report: 1 of 6 \(16 %\)  epoch 1 of 2  loss \d\.\d+  \d+ studies/s$", lines[0])
    assert re.match(r"stage report: 3 of 6 \(50 %\)  epoch 1 of 2", lines[2])
    assert lines[3].startswith("stage report, epoch 1 of 2: validation ")
    assert re.match(r"stage report: 6 of 6 \(100 %\)  epoch 2 of 2", lines[-2])
    assert lines[-1].startswith("stage report, epoch 2 of 2: validation ")


def test_progress_lines_are_rare(capsys: pytest.CaptureFixture[str]) -> None:
    with options.bar("reading") as progress:
        for done in range(1, 1001):
            progress(done, 1000)
        progress(1000, 1000)
    assert capsys.readouterr().err.splitlines() == ["reading: 1 of 1000 (0 %)", "reading: 1000 of 1000 (100 %)"]


def test_import_progress_has_a_total(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.toys import toy_image

    monkeypatch.setattr(options, "LINE_EVERY_S", 0.0)
    for number in range(3):
        toy_image(tmp_path / f"{number}.png", bright_side="left", seed=number)
    rows = "".join(f"s{number},p{number},{number}.png,Lungs clear.\n" for number in range(3))
    (tmp_path / "r.csv").write_text("study_id,patient_id,image,findings\n" + rows)
    done = radweave("data", "import", "folder", tmp_path / "r.csv", "--out", tmp_path / "out", "--split", "train")
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("reading studies")] == [
        "reading studies: 1 of 3 (33 %)", "reading studies: 2 of 3 (66 %)", "reading studies: 3 of 3 (100 %)",
    ]  # fmt: skip


def test_check_progress_has_a_total(toy_dataset: Dataset) -> None:
    done = radweave("data", "check", toy_dataset.path)
    total = len(toy_dataset.manifest_path.read_text("utf-8").splitlines())
    assert [line for line in done.stderr.splitlines() if line.startswith("checking studies")] == [
        f"checking studies: 1 of {total} ({100 // total} %)", f"checking studies: {total} of {total} (100 %)",
    ]  # fmt: skip


@pytest.mark.parametrize("verb", ["bench", "ablate"])
def test_help_of_long_verbs_warns_of_hours(verb: str) -> None:
    assert "takes hours" in " ".join(radweave(verb, "--help").stdout.split())


def test_inspect_continues_after_a_missing_file(toy_dataset: Dataset, tmp_path: Path) -> None:
    files = [toy_dataset.image_path(f"images/{number}_0.png") for number in (1, 2)]
    done = radweave("inspect", *files)
    assert done.returncode == 0
    assert "2 entries, 0 refused" in done.stdout
    mixed = radweave("inspect", files[0], tmp_path / "nowhere.png", files[1])
    assert mixed.returncode == 2
    assert "nowhere.png: refused: no such file or folder" in mixed.stdout
    assert "3 entries, 1 refused" in mixed.stdout
