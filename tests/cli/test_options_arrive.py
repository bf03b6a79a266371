"""What is given on the command line arrives where the work is done, each option under its own name."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import radweave.inference.explain  # noqa: F401  # binds what is patched below: it must have done so before
from radweave.cli import app
from radweave.core.study import View
from radweave.data.importers import ImportOptions
from radweave.experiments.ablate import AblationRequest
from radweave.experiments.bench_suite import BenchRequest
from radweave.metrics.commands import CompareRequest, EvaluateRequest, LabelRequest
from radweave.metrics.pairs import Fields

P = Path

REQUESTS: dict[str, tuple[str, str, Any]] = {
    "evaluate": (
        "radweave.metrics.commands.run_evaluate",
        "a b --protocol ws --beside dots --ontology ct18 --weights w --train t --train-labels l --no-meteor --radgraph "
        "g --skip-invalid --without-marks --second-opinion --resamples 7 --seed 3 --json --out o --overwrite "
        "--study i --hyp h --ref r",
        EvaluateRequest(
            pairs=(P("a"), P("b")), protocol="ws", second="dots", ontology="ct18", weights=P("w"), train=P("t"),
            train_labels=P("l"), meteor=False, radgraph=P("g"), skip_invalid=True, second_opinions=True, resamples=7,
            without_marks=True, fields=Fields("i", "h", "r"), seed=3, as_json=True, out=P("o"), overwrite=True,
        ),
    ),
    "compare": (
        "radweave.metrics.commands.run_compare",
        "a b --protocol ws --ontology ct18 --weights w --floors --seeds --no-meteor --resamples 7 --seed 3 "
        "--judge http://x --judge-model m --judge-limit 5 --both-orders --json --out o --overwrite "
        "--study i --hyp h --ref r",
        CompareRequest(
            (P("a"), P("b")), "ws", "ct18", P("w"), Fields("i", "h", "r"), floors=True, seeds=True, meteor=False,
            resamples=7, seed=3, judge="http://x", judge_model="m", judge_limit=5, both_orders=True, as_json=True,
            out=P("o"), overwrite=True,
        ),
    ),
    "label": (
        "radweave.metrics.commands.run_label",
        "a.csv --ontology ct18 --weights w --text t --study s --out o --overwrite",
        LabelRequest(P("a.csv"), "ct18", P("w"), "t", "s", P("o"), overwrite=True),
    ),
    "ablate": (
        "radweave.experiments.ablate.run_ablation",
        "vdgen d x.y=1 --out o --table main --preset small --seeds 4 --headline-seeds 6 --rows a,b --jobs 2 --protocol "
        "ws --meteor --runs r --reuse u --reuse v --json",
        AblationRequest(
            "vdgen", P("d"), "main", P("o"), "small", 4, 6, ("a", "b"), 2, ("x.y=1",), "ws", meteor=True, runs=P("r"),
            reuse=(P("u"), P("v")),
        ),
    ),
    "bench": (
        "radweave.experiments.bench.run_bench",
        "o x.y=1 --xray x --ct c --iu i --sets iu,ct --methods vdgen,dast --preset small --seeds 4 --headline-seeds 6 "
        "--headline-sets ct --headline-methods dast --precision bfloat16 --jobs 2 --phantom-studies 50 --ct-studies 60 "
        "--reuse u --pages p --meteor --no-utility --no-pace --no-train",
        BenchRequest(
            out=P("o"), data={"xray": P("x"), "ct": P("c"), "iu": P("i")}, sets=("iu", "ct"), methods=("vdgen", "dast"),
            preset="small", seeds=4, headline_seeds=6, headline_sets=("ct",), headline_methods=("dast",), jobs=2,
            overrides=("x.y=1",), precision="bfloat16", studies={"xray": 50, "ct": 60}, reuse=(P("u"),), pages=P("p"),
            meteor=True, train=False, utility=False, pace=False,
        ),
    ),
}  # fmt: skip


PYTHON_ONLY = {"ablate": {"own_processes", "train"}, "evaluate": {"floors"}}


class ArrivedError(Exception):
    """Raised where the work would begin: nothing is done."""


def given_to(monkeypatch: pytest.MonkeyPatch, place: str, arguments: str) -> tuple[tuple[Any, ...], Any]:
    """What the command line hands to the function at ``place``."""
    found: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def take(*args: Any, **named: Any) -> None:
        found.append((args, named))
        raise ArrivedError

    monkeypatch.setattr(place, take)
    result = CliRunner().invoke(app, arguments.split())
    assert isinstance(result.exception, ArrivedError), result.output
    return found[0]


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


def test_every_option_of_train(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = "train vdgen d a.b=1 c=2 --out o --preset small --config f --limit 3 --overwrite --resume "
    arguments += "--parallel fsdp"
    args, named = given_to(monkeypatch, "radweave.engine.train.train", arguments)
    named.pop("watch")
    assert args == ("vdgen", P("d"), P("o"))
    assert named == {
        "preset": "small", "overrides": ("data.limit=3", "a.b=1", "c=2"), "config": P("f"), "overwrite": True,
        "resume": True, "parallel": "fsdp",
    }  # fmt: skip


def test_every_option_of_reports_features_pages_and_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def predictor(run: Any, **named: Any) -> Any:
        asked.update(named)
        return SimpleNamespace(modality="xray")

    run = object()
    monkeypatch.setattr("radweave.inference.predictor.Predictor", SimpleNamespace(of=predictor))
    monkeypatch.setattr("radweave.engine.restore.restore", lambda folder: run)
    arguments = "generate r --data d --split val --out o --untrained --batch-size 3 --shard-size 5 --ray 2 --set a=1"
    arguments += " --at-test pairing_seed=3"
    args, named = given_to(monkeypatch, "radweave.inference.bulk.generate_split", arguments)
    assert asked == {"untrained": True, "decoding": ["a=1"]}
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
    asked.clear()
    arguments = "explain r --data d --study s --out o --threshold 0.3 --force --untrained --set a=1 --overwrite"
    args, named = given_to(monkeypatch, "radweave.inference.explain.explain_study", arguments)
    assert asked == {"untrained": True, "decoding": ["a=1"]}
    assert args[2:] == (P("d"), "s", P("o"))
    assert named == {"threshold": 0.3, "force": True, "overwrite": True}
    args, named = given_to(
        monkeypatch, "radweave.inference.export.export", "export r o --overwrite --no-bank --scores e"
    )
    assert (args, named) == ((P("r"), P("o")), {"overwrite": True, "bank": False, "scores": P("e")})


def test_every_option_of_phantoms(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = (
        "phantom --out o --modality ct --studies 7 --seed 3 --prevalence normal --image-size 64 --volume-size 32 "
        "--slices 16 --masks --jobs 2 --overwrite"
    )
    args, named = given_to(monkeypatch, "radweave.phantom.study.write_phantom_dataset", arguments)
    options = named.pop("options")
    named.pop("progress")
    assert args == (P("o"),)
    assert named == {"modality": "ct", "num_studies": 7, "seed": 3, "overwrite": True, "jobs": 2}
    assert (options.prevalence, options.image_size, options.volume_size, options.slices, options.masks) == (
        "normal", 64, 32, 16, True,
    )  # fmt: skip
