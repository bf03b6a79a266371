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
from radweave.core.errors import InputError
from radweave.data.dataset import Dataset
from radweave.data.loader import Example
from radweave.data.tokenizer import encode
from radweave.engine.restore import restore
from radweave.experiments.ablate import all_methods
from radweave.inference.bulk import generate_split
from radweave.inference.explain.support import find_support
from radweave.inference.predictor import Predictor
from radweave.labels import get_labeler
from radweave.methods import load_method, resolve
from radweave.methods.experiment import as_written
from radweave.metrics import Options, evaluate_pairs, read_pairs
from radweave.metrics.result_tables import language_table
from radweave.nn.decoding import OWN_DECODER

METHODS = sorted(all_methods())
DRAFT = "Stable opacity on the left. No interval change. The heart is enlarged."
WITHOUT = "Opacity on the left. The heart is enlarged."


class Parrot:
    """A model that says the same of every study."""

    def __init__(self, predictor: Predictor, text: str, *, with_scores: bool = True) -> None:
        self.ids = encode(predictor.tokenizer, text)
        self.with_scores = with_scores

    def parameters(self) -> Iterator[torch.Tensor]:
        return iter([torch.zeros(1)])

    def generate(self, batch: Batch, decoding: object) -> Generation:
        notes = {"token_log_probs": [-0.1] * len(self.ids)} if self.with_scores else {}
        return Generation([self.ids] * len(batch), [dict(notes) for _ in range(len(batch))])


@pytest.fixture
def predictor(toy_run: Path) -> Predictor:
    own = Predictor.of(restore(toy_run), decoding=[OWN_DECODER])
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
    assert predictor.drafting is not None
    reading = dataclasses.replace(predictor, drafting=dataclasses.replace(predictor.drafting, reads_priors=True))
    (report,) = reading.reports([example(prior=example())])
    (unread,) = predictor.reports([example(prior=example())])
    assert unread.text == WITHOUT, "a decoder that gets no prior compares with nothing"
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
    evaluation = evaluate_pairs(read_pairs(out).pairs, options=Options(meteor=False, resamples=0))
    assert evaluation.to_json()["drafts"] == {
        "as_written": False,
        "comparisons_removed": 12,
        "marks_removed": 0,
        "edited_reports": 6,
        "decoder": "own decoder",
    }
    notes = language_table({"run": evaluation.to_json()}).notes
    assert any(note.startswith("drafts are scored after removals from 6 of 6: comparisons in 12") for note in notes)
    honesty = evaluation.honesty
    row = honesty.comparison_without_prior_share
    assert row.value == row.compares == 0.0
    assert (row.removed_sentences, row.removed_from_reports) == (12, 6)


def test_kept_drafts_are_scored_as_written(
    predictor: Predictor, toy_run: Path, toy_dataset: Dataset, tmp_path: Path
) -> None:
    kept = dataclasses.replace(predictor, decoding=as_written(predictor.decoding))
    out = tmp_path / "predictions.jsonl"
    assert generate_split(restore(toy_run), kept, toy_dataset.path, "test", out).compared == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert {(row["hyp"], row["as_written"]) for row in rows} == {(DRAFT, True)}
    result = evaluate_pairs(read_pairs(out).pairs, options=Options(meteor=False, resamples=0)).to_json()
    assert result["drafts"]["as_written"] is True
    assert result["honesty"]["comparison_without_prior_share"]["compares"] == 1.0
    assert "drafts are scored as written" in language_table({"run": result}).notes


@pytest.mark.parametrize("method", METHODS)
def test_paper_presets_take_nothing_out_of_drafts_and_others_do(method: str) -> None:
    for preset in load_method(method).PRESETS:
        decoding = resolve(method, preset, ()).decoding
        assert decoding.is_as_written is preset.startswith("paper"), preset
    removing = resolve(method, "paper", ["decoding.unprompted_comparisons=remove"]).decoding
    assert not removing.is_as_written


def test_a_file_that_does_not_say_is_not_said_to_be_as_written(tmp_path: Path) -> None:
    rows = [{"study_id": str(n), "hyp": "Clear lungs.", "ref": "Clear lungs."} for n in range(3)]
    rows[0] |= {"as_written": True}
    path = tmp_path / "pairs.jsonl"

    def drafts() -> dict[str, object]:
        path.write_text("\n".join(map(json.dumps, rows)))
        evaluation = evaluate_pairs(read_pairs(path).pairs, options=Options(meteor=False, resamples=0))
        return evaluation.to_json()["drafts"]

    assert drafts()["as_written"] is None
    rows[1] |= {"as_written": True, "evidence": {"marks_removed": ["An XXXX opacity."]}}
    edits = {"as_written": False, "comparisons_removed": 0, "marks_removed": 1, "edited_reports": 1}
    assert drafts() == {**edits, "decoder": None}
    rows[2] |= {"as_written": "yes"}
    with pytest.raises(InputError) as caught:
        drafts()
    assert (caught.value.field, caught.value.got, caught.value.line) == ("as_written", "str", 3)
