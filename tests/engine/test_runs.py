"""Runs end to end in the library: training, restoring, predicting, and what a run folder refuses."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import radweave
from radweave.core.errors import InputError
from radweave.core.json_files import read_json
from radweave.core.storage import sha256_file
from radweave.core.study import View
from radweave.data.cache.images import build_cache
from radweave.data.dataset import Dataset
from radweave.engine.prepare import prepare
from radweave.engine.restore import restore
from radweave.engine.train import train
from radweave.inference.bulk import generate_split, group_images
from radweave.inference.predictor import Predictor
from radweave.nn.decoding import OWN_DECODER
from tests.toys import TOY_OVERRIDES, TOY_SIZES, toy_image

OVERRIDES = [*TOY_OVERRIDES, *TOY_SIZES["baseline"]]


def test_three_lines_of_python(toy_run: Path, toy_dataset: Dataset) -> None:
    report = radweave.load(toy_run, own_decoder=True).report([toy_dataset.image_path("images/1_0.png")])
    assert report.text == str(report)
    assert "not a medical device" in report.notice
    assert all(0 <= sentence["confidence"] <= 1 for sentence in report.evidence["sentences"])
    assert " ".join(sentence["text"] for sentence in report.evidence["sentences"]) == report.text


def test_a_report_is_the_same_alone_in_a_batch_of_16_and_from_the_cache(toy_run: Path, toy_dataset: Dataset) -> None:
    run = restore(toy_run)
    predictor = Predictor.of(run)
    cache = build_cache(toy_dataset, size=32)
    examples = prepare(toy_dataset, "train", run.experiment, run.tokenizer, cache, need_text=False).examples
    examples += prepare(toy_dataset, "val", run.experiment, run.tokenizer, cache, need_text=False).examples
    batched = list(predictor.reports(examples, batch_size=16))
    assert len(batched) == 16
    studies = {study.study_id: study for study in toy_dataset.studies()}
    for example, report in zip(examples, batched, strict=True):
        images = [toy_dataset.image_path(ref.path) for ref in studies[example.study_id].images]
        fresh = predictor.example(predictor.read_views(images)[0], example.study_id)
        assert np.array_equal(fresh.pixels, example.pixels)
        # A PNG does not say its view; the manifest does.
        fresh = dataclasses.replace(fresh, view_ids=example.view_ids)
        assert next(iter(predictor.reports([fresh]))) == report


def test_predictions_hold_reference_floors_and_evidence(toy_run: Path, toy_dataset: Dataset, tmp_path: Path) -> None:
    run = restore(toy_run)
    out = tmp_path / "predictions.jsonl"
    result = generate_split(run, Predictor.of(run), toy_dataset.path, "test", out)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert result.written == len(rows) == 6
    references = {study.study_id: study.report for study in toy_dataset.studies("test")}
    training_reports = {study.report for study in toy_dataset.studies("train")}
    for row in rows:
        assert row["ref"] == references[row["study_id"]]
        assert set(row["floors"]) == {"constant", "constant_findings", "constant_wording", "nearest_neighbour"}
        assert set(row["floors"].values()) <= training_reports
        assert row["evidence"]["sentences"]
    with pytest.raises(InputError, match="exists already"):
        generate_split(run, Predictor.of(run), toy_dataset.path, "test", out)


def test_the_run_folder_states_where_it_comes_from(toy_run: Path, toy_dataset: Dataset) -> None:
    card = read_json(toy_run / "run.json")
    assert card["dataset"]["fingerprint"] == toy_dataset.fingerprint()
    assert card["files"]["weights.safetensors"] == sha256_file(toy_run / "weights.safetensors")
    assert card["trained_steps"] == {"encoder": 0, "vision": 0, "language": 0, "report": 18}
    assert card["versions"]["torch"]
    assert not list(toy_run.rglob("*.pt"))
    assert not list(toy_run.rglob("*.pkl"))


def test_the_tokenizer_knows_training_words_only(toy_dataset: Dataset, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(toy_dataset.path, copy)
    lines = (copy / "manifest.jsonl").read_text().splitlines()
    planted = [
        json.dumps(json.loads(line) | {"report": "zzyzx zzyzx zzyzx"}) if '"split":"test"' in line else line
        for line in lines
    ]
    assert planted != lines
    (copy / "manifest.jsonl").write_text("\n".join(planted) + "\n")
    run = train("baseline", copy, tmp_path / "run", overrides=[*OVERRIDES, "stages.report.max_steps=0"])
    vocabulary = restore(run).tokenizer.get_vocab()
    assert not [token for token in vocabulary if "zz" in token]
    assert [token for token in vocabulary if "opacity" in token]


def test_stages_before_the_report_stage(toy_dataset: Dataset, tmp_path: Path) -> None:
    overrides = [
        *OVERRIDES,
        "model.word_head=linear",
        "stages.vision.optimizer.warmup_steps=2",
        "stages.vision.optimizer.learning_rate=1e-3",
        "stages.vision.epochs=2",
        "stages.vision.batch_size=4",
        "stages.language.epochs=3",
        "stages.report.finetune.language_model=frozen",
        "stages.report.epochs=1",
    ]
    run = restore(train("baseline", toy_dataset.path, tmp_path / "run", overrides=overrides))
    for stage, epochs in (("vision", 2), ("language", 3)):
        losses = [epoch["loss"] for epoch in run.card.validation[stage].epochs]
        assert len(losses) == epochs
        assert losses[-1] < losses[0], stage
    assert run.card.trained_steps == {"encoder": 0, "vision": 6, "language": 3, "report": 3}


def test_an_untrained_run_refuses_to_report_without_force(toy_dataset: Dataset, tmp_path: Path) -> None:
    run = train("baseline", toy_dataset.path, tmp_path / "run", overrides=[*OVERRIDES, "stages.report.max_steps=0"])
    image = toy_dataset.image_path("images/1_0.png")
    with pytest.raises(InputError, match="never trained"):
        radweave.load(run).report([image])
    report = radweave.load(run, untrained=True).report([image])
    assert any("UNTRAINED" in warning for warning in report.warnings)


TRAIN = """
import sys
from radweave.cli import main
sys.argv = ["radweave", "train", "baseline", sys.argv[1], "--out", sys.argv[2], *sys.argv[3:]]
main()
"""


@pytest.mark.slow  # tests/faults/test_training_kills.py kills and resumes in the default suite
def test_a_run_killed_by_sigkill_resumes_to_the_same_bytes(toy_dataset: Dataset, tmp_path: Path) -> None:
    overrides = [
        *OVERRIDES,
        "stages.vision.epochs=1",
        "stages.vision.batch_size=4",
        "stages.report.epochs=12",
        "stages.report.checkpoint_every=2",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}

    def command(out: str, *more: str) -> list[str]:
        return [sys.executable, "-c", TRAIN, str(toy_dataset.path), str(tmp_path / out), *overrides, *more]

    subprocess.run(command("whole"), check=True, env=environment, capture_output=True)
    cut = subprocess.Popen(command("cut"), env=environment, stderr=subprocess.DEVNULL)
    metrics = tmp_path / "cut" / "metrics.jsonl"
    # Where it dies is left to chance: after the first checkpoint, and before the end.
    while not (metrics.is_file() and metrics.read_text().count("\n") > 7):
        assert cut.poll() is None, "training ended before it could be killed"
        time.sleep(0.005)
    cut.kill()
    cut.wait()
    assert not (tmp_path / "cut" / "run.json").exists()
    with pytest.raises(InputError, match="--resume"):
        restore(tmp_path / "cut")
    subprocess.run(command("cut", "--resume"), check=True, env=environment, capture_output=True)
    names = ("weights.safetensors", "config.yaml", "tokenizer/tokenizer.json", "run.json")
    for name in names:
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_resume_refuses_other_options_and_leaves_a_finished_run_alone(toy_run: Path, toy_dataset: Dataset) -> None:
    before = sha256_file(toy_run / "run.json")
    train("baseline", toy_dataset.path, toy_run, overrides=[*OVERRIDES, "stages.report.epochs=6"], resume=True)
    assert sha256_file(toy_run / "run.json") == before


def test_a_stopped_run_does_not_go_on_with_other_options(toy_run: Path, toy_dataset: Dataset, tmp_path: Path) -> None:
    stopped = tmp_path / "run"
    shutil.copytree(toy_run, stopped)
    (stopped / "run.json").unlink()
    other = [*OVERRIDES, "stages.report.epochs=6", "seed=5"]
    with pytest.raises(InputError, match="--resume needs the options the run was started with") as refused:
        train("baseline", toy_dataset.path, stopped, overrides=other, resume=True)
    assert (refused.value.field, refused.value.got, refused.value.expected) == ("seed", "5", "seed=0")


def test_a_study_has_as_many_views_as_the_model_reads(toy_run: Path, toy_dataset: Dataset) -> None:
    run, cache = restore(toy_run), build_cache(toy_dataset, size=32)
    for most in (1, 2):
        data = run.experiment.data.model_copy(update={"max_views": most})
        experiment = run.experiment.model_copy(update={"data": data})
        prepared = prepare(toy_dataset, "train", experiment, run.tokenizer, cache, need_text=False)
        assert max(len(example.rows) for example in prepared.examples) == most


def test_frontal_views_come_first_for_any_order_of_files(toy_run: Path, tmp_path: Path) -> None:
    predictor = dataclasses.replace(Predictor.of(restore(toy_run)), max_views=3)
    side, front, other = (toy_image(tmp_path / f"{n}.png", bright_side="left", seed=n) for n in range(3))
    views, _ = predictor.read_views([side, front, other], stated=[View.LATERAL, View.PA, View.AP])
    assert [path for path, _ in views] == [front, other, side]
    views, _ = dataclasses.replace(predictor, max_views=1).read_views([side, front], stated=[View.LATERAL, View.PA])
    assert [path for path, _ in views] == [front]


def test_decoding_options_of_a_call_replace_those_of_the_run(toy_run: Path) -> None:
    run = restore(toy_run)
    predictor = Predictor.of(run, decoding=["max_new_tokens=3", OWN_DECODER])
    assert predictor.decoding == run.experiment.decoding.model_copy(update={"max_new_tokens": 3})
    assert predictor.decoding != run.experiment.decoding


def test_dicom_files_are_grouped_by_study_and_others_stand_alone(tmp_path: Path) -> None:
    first = toy_image(tmp_path / "a.png", bright_side="left", seed=1)
    second = toy_image(tmp_path / "b.png", bright_side="left", seed=2)
    (tmp_path / "c.png").write_text("no image")
    groups = group_images([tmp_path], one_study=False)
    assert [group.images for group in groups[:2]] == [(first,), (second,)]
    assert groups[2].refused is not None
    assert "c.png" in groups[2].refused
    assert group_images([first, second], one_study=True)[0].images == (first, second)
