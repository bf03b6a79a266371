"""Bulk work: each study once, finished shards kept, the same result on a Ray cluster."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from radweave.core.errors import InputError
from radweave.core.json_files import read_jsonl
from radweave.data.dataset import Dataset
from radweave.engine.distributed import Ranks
from radweave.engine.restore import restore
from radweave.inference.bulk import generate_split
from radweave.inference.features import FeatureRecipe, build_feature_bank
from radweave.inference.predictor import Predictor
from radweave.inference.shards import compute_on_ray, open_plan, shards_to_compute
from radweave.nn.memory.bank import load_bank, patient_code

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="the extra 'ray' is not installed")


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[None]:
    """A local cluster of two workers."""
    # Read when ray is imported: its workers would have the lowest priority, and starve beside other tests.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


class StoppedError(Exception):
    """Stands for a job that is killed."""


def test_a_stopped_job_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    ids = [f"s{number}" for number in range(11)]
    plan = open_plan(tmp_path / "shards", ids, shard_size=3, identity={"a": 1})
    observed: list[str] = []

    def compute() -> None:
        for number in shards_to_compute(plan, Ranks()):
            if len(observed) == 6:
                raise StoppedError
            observed.extend(plan.shards[number])
            plan.path(number).write_text(" ".join(plan.shards[number]))

    with pytest.raises(StoppedError):
        compute()
    plan = open_plan(tmp_path / "shards", ids, shard_size=3, identity={"a": 1})
    assert plan.missing() == [2, 3]
    observed.append("gone on")
    compute()
    assert [study_id for study_id in observed if study_id != "gone on"] == ids
    assert plan.missing() == []
    for changed in ({"identity": {"a": 2}, "shard_size": 3}, {"identity": {"a": 1}, "shard_size": 4}):
        assert open_plan(tmp_path / "shards", ids, **changed).missing() != []  # type: ignore[arg-type]


@pytest.mark.long
def test_reports_of_a_stopped_job_are_kept(
    toy_run: Path, toy_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = restore(toy_run), tmp_path / "predictions.jsonl"
    whole = tmp_path / "whole.jsonl"
    generate_split(run, Predictor.of(run), toy_dataset.path, "test", whole)

    def stop(done: int, total: int) -> None:
        if done == 4:
            raise StoppedError

    with pytest.raises(StoppedError):
        generate_split(run, Predictor.of(run), toy_dataset.path, "test", out, shard_size=2, progress=stop)
    assert not out.exists()
    counts: list[tuple[int, int]] = []
    generate_split(
        run,
        Predictor.of(run),
        toy_dataset.path,
        "test",
        out,
        shard_size=2,
        progress=lambda *count: counts.append(count),
    )
    assert counts == [(3, 6), (4, 6), (5, 6), (6, 6)]
    assert out.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["predictions.jsonl", "whole.jsonl"]


def test_reports_of_a_job_that_decoded_otherwise_are_not_kept(
    toy_run: Path, toy_dataset: Dataset, tmp_path: Path
) -> None:
    run, out, whole = restore(toy_run), tmp_path / "predictions.jsonl", tmp_path / "whole.jsonl"
    short = Predictor.of(run, decoding=["max_new_tokens=1"])
    generate_split(run, short, toy_dataset.path, "test", whole)

    def stop(done: int, total: int) -> None:
        if done == 4:
            raise StoppedError

    with pytest.raises(StoppedError):
        generate_split(run, Predictor.of(run), toy_dataset.path, "test", out, shard_size=2, progress=stop)
    generate_split(run, short, toy_dataset.path, "test", out, shard_size=2)
    assert out.read_bytes() == whole.read_bytes()


def test_reports_of_a_job_with_other_warnings_are_not_kept(toy_run: Path, toy_dataset: Dataset, tmp_path: Path) -> None:
    """A warning stands in every row: one that a run has got since then is in all of them, or in none."""
    run, out = restore(toy_run), tmp_path / "predictions.jsonl"
    predictor = Predictor.of(run)
    warned = replace(predictor, warnings=(*predictor.warnings, "found out since"))

    def stop(done: int, total: int) -> None:
        if done == 4:
            raise StoppedError

    with pytest.raises(StoppedError):
        generate_split(run, predictor, toy_dataset.path, "test", out, shard_size=2, progress=stop)
    generate_split(run, warned, toy_dataset.path, "test", out, shard_size=2)
    assert all("found out since" in row["warnings"] for _, row in read_jsonl(out))


@needs_ray
@pytest.mark.slow  # two workers that each import and restore: half a minute on two free cores
def test_ray_writes_what_one_process_writes_and_only_what_is_missing(
    toy_run: Path, toy_dataset: Dataset, tmp_path: Path, ray_cluster: None
) -> None:
    run = restore(toy_run)
    one, many = tmp_path / "one", tmp_path / "many"
    generate_split(run, Predictor.of(run), toy_dataset.path, "test", one)
    counts: list[tuple[int, int]] = []
    generate_split(
        run, Predictor.of(run), toy_dataset.path, "test", many,
        shard_size=1, ray_workers=2, progress=lambda *count: counts.append(count),
    )  # fmt: skip
    assert many.read_bytes() == one.read_bytes()
    assert sorted(counts) == [(done, 6) for done in range(1, 7)]
    # A feature bank of which the second shard is there already: it is kept as it is.
    bank = build_feature_bank(run, toy_dataset.path, "train", tmp_path / "bank", shard_size=5)
    studies = [study.study_id for study in toy_dataset.studies("train")]
    identity = {"run": run.card.files, "dataset": toy_dataset.fingerprint(), "split": "train"}
    plan = open_plan(tmp_path / "again.shards", studies, shard_size=5, identity=identity)
    FeatureRecipe(toy_run, toy_dataset.path, "train", 32).open()(plan.shards[1], plan.path(1))
    retained = plan.path(1).stat().st_ino
    finished: list[int] = []
    recipe = FeatureRecipe(toy_run, toy_dataset.path, "train", 32)
    compute_on_ray(plan, recipe, workers=2, finished=finished.append)
    assert sorted(finished) == [0, 2]
    assert plan.path(1).stat().st_ino == retained
    repeated = build_feature_bank(run, toy_dataset.path, "train", tmp_path / "again", shard_size=5)
    assert repeated.rows == bank.rows
    assert torch.equal(repeated.tensors["features"], bank.tensors["features"])


def test_a_feature_bank_has_each_study_once_and_no_patient_s_name(
    toy_run: Path, toy_dataset: Dataset, tmp_path: Path
) -> None:
    run = restore(toy_run)
    build_feature_bank(run, toy_dataset.path, "train", tmp_path / "bank", shard_size=5, batch_size=2)
    bank = load_bank(tmp_path / "bank")
    studies = list(toy_dataset.studies("train"))
    assert bank.study_ids == [study.study_id for study in studies]
    assert bank.patients == [patient_code(study.patient_id) for study in studies]
    assert len(bank.tensors["features"].unique(dim=0)) == 12
    assert not (tmp_path / "bank.shards").exists()
    # Neither batches nor shards show in the vectors; 1e-6 is float32 in another order of addition.
    alone = build_feature_bank(run, toy_dataset.path, "train", tmp_path / "alone", shard_size=1)
    assert torch.allclose(alone.tensors["features"], bank.tensors["features"], atol=1e-6)
    with pytest.raises(InputError, match="exists"):
        build_feature_bank(run, toy_dataset.path, "train", tmp_path / "bank")


def test_a_shard_with_other_studies_is_refused(toy_run: Path, toy_dataset: Dataset, tmp_path: Path) -> None:
    run, out = restore(toy_run), tmp_path / "predictions.jsonl"

    def tamper(done: int, total: int) -> None:
        shard = out.with_name("predictions.jsonl.shards") / "00000"
        if done == 6:
            first, *others = shard.read_text().splitlines()
            shard.write_text("\n".join([json.dumps({**json.loads(first), "study_id": "other"}), *others]) + "\n")

    with pytest.raises(InputError, match="does not hold the studies"):
        generate_split(run, Predictor.of(run), toy_dataset.path, "test", out, shard_size=3, progress=tamper)
    assert not out.exists()


def test_without_ray_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radweave.core.extras.find_spec", lambda name: None)
    plan = open_plan(tmp_path / "shards", ["s0"], shard_size=1, identity={})
    recipe: Any = None
    with pytest.raises(InputError, match=r"radweave\[ray\]"):
        compute_on_ray(plan, recipe, workers=2)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_share_the_shards_that_are_missing(size: int, tmp_path: Path, unchecked_shapes: None) -> None:
    plan = open_plan(tmp_path / "shards", [f"s{number}" for number in range(7)], shard_size=1, identity={})
    shares: list[list[int]] = []
    for rank in range(size):
        fake: Any = SimpleNamespace(rank=rank, size=size, from_first=lambda inputs: inputs, wait=lambda: None)
        shares.append([])
        with pytest.raises(InputError):  # nobody computes them
            shares[-1].extend(shards_to_compute(plan, fake))
    assert sorted(number for share in shares for number in share) == list(range(7))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
