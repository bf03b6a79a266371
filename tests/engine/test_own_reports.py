"""Drafting by utility asks the method itself: its decoder's reports and what it recalled reach the draft."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from radweave.core.batch import Batch
from radweave.core.evidence import OwnReports
from radweave.data.cache.images import build_cache
from radweave.data.dataset import Dataset
from radweave.data.loader import collate
from radweave.drafting.store import load_facts
from radweave.drafting.writer import UtilityWriter
from radweave.engine.prepare import prepare
from radweave.engine.restore import Run, restore
from radweave.engine.save_drafting import SHARES, Validation
from radweave.engine.train import train
from radweave.inference.predictor import Predictor
from radweave.methods.am_mrg.memory import HopfieldMemory
from radweave.methods.am_mrg.model import AmMrgModel
from radweave.methods.model import own_reports
from radweave.metrics.statistics import Floats
from radweave.nn.memory.bank import Bank
from tests.toys import TOY_OVERRIDES, TOY_SIZES

SAMPLES = "expected_utility.samples=2"
OWN_DECODER = ("kind=likelihood",)
BY_UTILITY = ("kind=expected_utility", SAMPLES)
HEAVY = (*BY_UTILITY, "expected_utility.own_wording=0.9")
"""The wording of the method's own reports counts more here than training finds that it should, of toys none at all."""


@pytest.fixture(scope="module")
def folder(toy_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = [*TOY_OVERRIDES, *TOY_SIZES["am_mrg"], f"decoding.{SAMPLES}", "decoding.max_new_tokens=12"]
    return train("am_mrg", toy_dataset.path, tmp_path_factory.mktemp("am_mrg") / "run", overrides=options)


def batch_of(run: Run, dataset: Dataset) -> Batch:
    data = run.experiment.data
    cache = build_cache(dataset, size=data.image_size, ct=data.ct)
    examples = prepare(dataset, "train", run.experiment, run.tokenizer, cache, need_text=False).examples[:4]
    return collate(examples, pad_id=int(run.tokenizer.pad_token_id))


def asked(run: Run, batch: Batch) -> list[OwnReports]:
    assert run.drafting is not None
    with torch.inference_mode():
        return own_reports(run.model, batch, [], run.experiment.decoding, run.drafting.decode)


def texts(run: Run, dataset: Dataset, *options: str) -> list[str]:
    """Drafts of the test split."""
    data = run.experiment.data
    cache = build_cache(dataset, size=data.image_size, ct=data.ct)
    examples = prepare(dataset, "test", run.experiment, run.tokenizer, cache, need_text=False).examples
    predictor = Predictor.of(run, decoding=options)
    return [report.text for report in predictor.reports(examples)]


def test_a_method_says_the_same_of_a_study_alone_and_in_any_batch(folder: Path, toy_dataset: Dataset) -> None:
    run = restore(folder)
    batch = batch_of(run, toy_dataset)
    together = asked(run, batch)
    assert [len(one.written) for one in together] == [3] * len(batch)
    assert [asked(run, batch.only([row]))[0] for row in range(len(batch))] == together


def test_nothing_is_recalled_of_the_study_s_own_patient(folder: Path, toy_dataset: Dataset) -> None:
    run = restore(folder)
    batch = batch_of(run, toy_dataset)
    patient_of = {study.study_id: study.patient_id for study in toy_dataset.studies("train")}
    for patient, own in zip(batch.patient_ids, asked(run, batch), strict=True):
        assert own.recalled
        assert patient not in {patient_of[one.study_id] for one in own.recalled}


def test_a_memory_that_is_switched_off_changes_drafts(folder: Path, toy_dataset: Dataset) -> None:
    run = restore(folder)
    before, batch = texts(run, toy_dataset, *HEAVY), batch_of(run, toy_dataset)
    said = asked(run, batch)
    model = run.model
    assert isinstance(model, AmMrgModel)
    for memory in (model.visual_memory, model.report_memory):
        assert isinstance(memory, HopfieldMemory)
        memory.remember(Bank({"patterns": torch.zeros(0, memory.pattern_dim)}, ()))
    assert not any(one.recalled for one in asked(run, batch))
    assert [one.written for one in asked(run, batch)] != [one.written for one in said]
    assert texts(run, toy_dataset, *HEAVY) != before


@pytest.mark.long
@pytest.mark.parametrize("method", ["dast", "diffrgennet"])
def test_without_its_memory_a_method_drafts_otherwise(
    method: str, toy_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VDGen's bank is evidence alone, and weave's decoder reads no training study."""
    options = [*TOY_OVERRIDES, *TOY_SIZES[method], f"decoding.{SAMPLES}", "decoding.max_new_tokens=12"]
    folder = train(method, toy_dataset.path, tmp_path / "run", overrides=options)
    run, again = restore(folder), restore(folder)
    monkeypatch.setattr("radweave.engine.restore.set_memories", lambda model, folder, named: None)
    emptied = restore(folder)
    for way in (OWN_DECODER, HEAVY):
        before = texts(run, toy_dataset, *way)
        assert texts(again, toy_dataset, *way) == before, "drafts differ without a reason"
        assert texts(emptied, toy_dataset, *way) != before, way


def test_an_older_run_drafts_as_before(folder: Path, toy_dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    run = restore(folder)
    assert load_facts(folder / "drafting").own_wording is not None
    without = texts(run, toy_dataset, *BY_UTILITY, "expected_utility.own=false")
    facts = json.loads((folder / "drafting" / "facts.json").read_text())
    older = load_facts(folder / "drafting").model_copy(update={"own_wording": None})
    assert facts["own_wording"] is not None
    monkeypatch.setattr("radweave.drafting.store.load_facts", lambda folder: older)
    monkeypatch.setattr("radweave.drafting.store.FILE", "absent.json")
    assert texts(restore(folder), toy_dataset, *BY_UTILITY) == without


@pytest.mark.long
@pytest.mark.parametrize(
    ("worths", "best"), [((1.0, 1.2, 1.1), 0.125), ((1.0, 0.9, 1.3), 0.25), ((1.0, 1.0, 0.5), 0.0)]
)
def test_a_run_has_the_share_of_own_wording_that_validation_drafts_are_worth_most_with(
    worths: tuple[float, ...],
    best: float,
    toy_dataset: Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def worth(validation: Validation, writer: UtilityWriter, share: float) -> Floats:
        return np.full(len(validation.reports), worths[SHARES.index(share)])

    monkeypatch.setattr(Validation, "worth", worth)
    sizes = [*TOY_OVERRIDES, *TOY_SIZES["baseline"], f"decoding.{SAMPLES}", "decoding.max_new_tokens=12"]
    folder = train("baseline", toy_dataset.path, tmp_path / "run", overrides=sizes)
    assert load_facts(folder / "drafting").own_wording == best
