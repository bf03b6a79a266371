"""Drafts compare only where a prior was given; what was taken out is counted wherever a draft goes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from radweave.core.batch import Batch, Generation
from radweave.data.dataset import Dataset
from radweave.data.loader import Example
from radweave.data.tokenizer import encode
from radweave.engine.restore import restore
from radweave.inference.bulk import generate_split
from radweave.inference.explain.support import find_support
from radweave.inference.predictor import Predictor
from radweave.labels import get_labeler
from radweave.metrics import Options, evaluate_pairs, read_pairs

DRAFT = "Stable opacity on the left. No interval change. The heart is enlarged."
WITHOUT = "Opacity on the left. The heart is enlarged."


class Parrot:
    """A model that says the same of every study."""

    def __init__(self, predictor: Predictor, text: str, *, with_scores: bool = True) -> None:
        self.ids = encode(predictor.tokenizer, text)
        self.with_scores = with_scores

    def asks_priors(self) -> bool:
        return True

    def parameters(self) -> Iterator[torch.Tensor]:
        return iter([torch.zeros(1)])

    def generate(self, batch: Batch, decoding: object) -> Generation:
        notes = {"token_log_probs": [-0.1] * len(self.ids)} if self.with_scores else {}
        return Generation([self.ids] * len(batch), [dict(notes) for _ in range(len(batch))])


@pytest.fixture
def predictor(toy_run: Path) -> Predictor:
    own = Predictor.of(restore(toy_run))
    return dataclasses.replace(own, model=Parrot(own, DRAFT))  # type: ignore[arg-type]


def example(prior: Example | None = None) -> Example:
    return Example("s", "p", np.zeros((1, 32, 32), np.uint8), (0,), (1,), prior=prior, report="Clear lungs.")


def test_without_a_prior_the_comparison_goes_and_is_counted(predictor: Predictor) -> None:
    (report,) = predictor.reports([example()])
    assert report.text == WITHOUT
    assert report.evidence["comparisons_removed"] == [
        {"was": "Stable opacity on the left.", "now": "Opacity on the left."},
        {"was": "No interval change.", "now": None},
    ]
    warned = [warning for warning in report.warnings if "compared with an earlier study" in warning]
    assert warned == [
        "2 sentences of the draft compared with an earlier study, and none was given: 1 left out (see"
        " comparisons_removed in the evidence)"
    ]
    assert " ".join(row["text"] for row in report.evidence["sentences"]) == report.text
    assert all("confidence" in row for row in report.evidence["sentences"])
    support = find_support(report, get_labeler("chexpert14"))
    assert len(support.sentences) == 2


def test_findings_that_are_left_out_stand_in_the_evidence_and_the_warning(predictor: Predictor) -> None:
    lost = "Left effusion has increased."
    parrot = Parrot(predictor, f"{lost} No new nodule. Clear lungs.")
    (report,) = dataclasses.replace(predictor, model=parrot).reports([example()])  # type: ignore[arg-type]
    assert report.text == "Clear lungs."
    assert {"was": lost, "now": None} in report.evidence["comparisons_removed"]
    assert any(": 2 left out, 2 of them with findings" in warning for warning in report.warnings)


def test_without_scores_of_tokens_it_is_the_same_draft(predictor: Predictor) -> None:
    plain = dataclasses.replace(predictor, model=Parrot(predictor, DRAFT, with_scores=False))  # type: ignore[arg-type]
    (report,) = plain.reports([example()])
    assert report.text == WITHOUT
    assert "sentences" not in report.evidence


def test_with_a_prior_or_on_demand_the_draft_stays(predictor: Predictor) -> None:
    (report,) = predictor.reports([example(prior=example())])
    retained = dataclasses.replace(
        predictor, decoding=predictor.decoding.model_copy(update={"unprompted_comparisons": "keep"})
    )
    (forced,) = retained.reports([example()])
    for draft in (report, forced):
        assert draft.text == DRAFT
        assert "comparisons_removed" not in draft.evidence


def test_predictions_and_evaluation_count_what_was_removed(
    predictor: Predictor, toy_run: Path, toy_dataset: Dataset, tmp_path: Path
) -> None:
    out = tmp_path / "predictions.jsonl"
    result = generate_split(restore(toy_run), predictor, toy_dataset.path, "test", out)
    assert result.compared == 12
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert {row["hyp"] for row in rows} == {WITHOUT}
    honesty = evaluate_pairs(read_pairs(out).pairs, options=Options(meteor=False, resamples=0)).honesty
    row = honesty.comparison_without_prior_share
    assert row.value == row.compares == 0.0
    assert (row.removed_sentences, row.removed_from_reports) == (12, 6)
