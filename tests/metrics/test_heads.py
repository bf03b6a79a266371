"""Probabilities of drafts: ranking against scikit-learn, calibration and F1 against counts by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from radweave.core.errors import InputError
from radweave.labels import NO_FINDING, get_labeler
from radweave.metrics.evaluate import Options, evaluate_pairs
from radweave.metrics.heads import HeadTable, ranking
from radweave.metrics.pairs import Pair, Probabilities, read_pairs
from tests.command_line import radweave

LABELER = get_labeler("chexpert14")
EFFUSION, EDEMA, CLEAR = "There is a pleural effusion.", "There is pulmonary edema.", "The lungs are clear."


def test_ranking_is_scikit_learns_with_ties_and_weights() -> None:
    rng = np.random.default_rng(0)
    forecast = rng.integers(0, 6, (40, 3)) / 5
    true = rng.random((40, 3)) < 0.3
    weights = np.concatenate([np.ones((1, 40)), rng.integers(0, 4, (3, 40)).astype(float)])
    auroc, precision = ranking(forecast, true, weights)
    for row, weight in enumerate(weights):
        each = np.repeat(weight, 3)
        assert auroc[row] == pytest.approx(roc_auc_score(true.ravel(), forecast.ravel(), sample_weight=each))
        assert precision[row] == pytest.approx(
            average_precision_score(true.ravel(), forecast.ravel(), sample_weight=each)
        )
    for labels in (np.zeros((40, 3), bool), np.ones((40, 3), bool)):
        assert np.isnan(ranking(forecast, labels, weights)[0]).all()


def drafts(num: int = 60) -> list[Pair]:
    """Every third study has an effusion; the heads say 0.4 or 0.1, and half of the drafts say what they say."""
    pairs = []
    for n in range(num):
        present = n % 3 == 0
        values = {"Pleural Effusion": 0.4 if present else 0.1, "Edema": 0.05, "No Finding": 0.9}
        cuts = dict.fromkeys(values, 0.2)
        probabilities_of_row = Probabilities(values, cuts, frozenset({"Pleural Effusion"}), split="val")
        hyp, ref = EFFUSION if present and n % 2 else CLEAR, EFFUSION if present else CLEAR
        pairs.append(Pair(f"s{n}", hyp, (ref,), probabilities=probabilities_of_row))
    return pairs


def test_against_counts_by_hand() -> None:
    options = Options(meteor=False, floors=False, resamples=20)
    actual = evaluate_pairs(drafts(), labeler=LABELER, options=options).heads
    assert isinstance(actual, HeadTable)
    effusion = actual.classes["Pleural Effusion"]
    assert (effusion.auroc.value, effusion.average_precision.value) == (1.0, 1.0)
    assert effusion.auroc.bounds == (1.0, 1.0)
    assert effusion.calibration_error == pytest.approx(20 / 60 * 0.6 + 40 / 60 * 0.1)
    assert [(round(one.probability, 6), one.frequency, one.count) for one in effusion.bins] == [
        (0.1, 0.0, 40),
        (0.4, 1.0, 20),
    ]
    edema = actual.classes["Edema"]
    assert (edema.positives, edema.auroc.value, edema.calibration_error) == (0, None, None), "nothing can be said"
    assert not edema.calibrated
    # Heads: 20 of 20. Drafts: 10 of 20.
    assert (actual.heads_f1, actual.draft_f1) == (1.0, pytest.approx(2 * 10 / 30))
    assert actual.share == actual.draft_f1 == actual.draft_macro_f1
    assert actual.calibration_error == effusion.calibration_error
    assert actual.calibrated_on == "val"


def test_a_rare_finding_counts_in_the_micro_average_alone() -> None:
    """Heads and drafts are averaged over the same classes, whichever of the two is wrong of the rare one."""
    pairs = []
    for n in range(30):
        present, rare = n < 6, n in (10, 11, 12, 13)
        values = {"Pleural Effusion": 0.9 if present else 0.1, "Edema": 0.1, "No Finding": 0.5}
        probabilities_of_row = Probabilities(values, dict.fromkeys(values, 0.5), frozenset(values), split="val")
        ref = EFFUSION if present else EDEMA if rare else CLEAR
        pairs.append(Pair(f"s{n}", EFFUSION if present else CLEAR, (ref,), probabilities=probabilities_of_row))
    actual = evaluate_pairs(pairs, labeler=LABELER, options=Options(meteor=False, floors=False, resamples=0)).heads
    assert isinstance(actual, HeadTable)
    assert actual.classes["Edema"].positives == 4
    assert (actual.heads_macro_f1, actual.draft_macro_f1) == (1.0, 1.0)
    assert actual.heads_f1 == actual.draft_f1 == pytest.approx(2 * 6 / (6 + 10))
    # With a fifth study it is not rare any more, and both have missed it.
    pairs[14] = replace(pairs[14], refs=(EDEMA,))
    actual = evaluate_pairs(pairs, labeler=LABELER, options=Options(meteor=False, floors=False, resamples=0)).heads
    assert isinstance(actual, HeadTable)
    assert (actual.heads_macro_f1, actual.draft_macro_f1) == (0.5, 0.5)


def test_drafts_without_probabilities_have_no_table() -> None:
    pairs = drafts()
    pairs[3] = Pair("s3", CLEAR, (CLEAR,))
    evaluation = evaluate_pairs(pairs, labeler=LABELER, options=Options(meteor=False, floors=False, resamples=0))
    assert evaluation.heads is None
    assert "heads" not in evaluation.to_json()


def test_macro_f1_counts_classes_with_five_positives_and_says_which() -> None:
    pairs = [Pair(f"e{n}", EFFUSION, (EFFUSION,)) for n in range(5)]
    pairs += [Pair(f"d{n}", EFFUSION, (EDEMA,)) for n in range(4)]
    evaluation = evaluate_pairs(pairs, labeler=LABELER, options=Options(meteor=False, floors=False, resamples=0))
    assert evaluation.clinical is not None
    result = json.loads(json.dumps(evaluation.clinical.to_json()))
    assert result["frequent"] == {"positives": 5, "number": 1, "classes": ["Pleural Effusion"]}
    assert result["asserted"] == {"classes": ["Pleural Effusion"], "number": 1, "of": 13, "share": 1 / 13}
    groups = result["policies"]["uncertain_as_negative"]["groups"]
    assert groups["frequent"]["macro"]["f1"]["value"] == pytest.approx(2 * 5 / (9 + 5))
    assert groups["without_no_finding"]["macro"]["f1"]["value"] == pytest.approx(2 * 5 / 14 / 13)


def test_uncertain_findings_are_not_asserted() -> None:
    pairs = [
        Pair("a", "There is a pleural effusion. Possible pneumonia.", (EFFUSION,)),
        Pair("b", "Possible pulmonary edema. No pneumothorax.", (EDEMA,)),
        Pair("c", "The lungs are clear.", (CLEAR,)),
    ]
    evaluation = evaluate_pairs(pairs, labeler=LABELER, options=Options(meteor=False, floors=False, resamples=0))
    assert evaluation.clinical is not None
    assert evaluation.clinical.states["generated"]["uncertain"] == 2
    assert evaluation.clinical.asserted == ("Pleural Effusion",)
    # The other way of counting sees the two that may be there.
    scores = evaluation.clinical.policies["uncertain_as_positive"].per_class
    assert {name for name, one in scores.items() if one.predicted} - {NO_FINDING} == {
        "Pleural Effusion", "Pneumonia", "Edema",
    }  # fmt: skip


def line_of(pair: Pair) -> str:
    assert pair.probabilities is not None
    cuts = pair.probabilities.thresholds
    calibration = {"split": "val", "thresholds": cuts, "alike": {"Pleural Effusion": [3, 9]}}
    evidence = {"class_probabilities": pair.probabilities.values, "calibration": calibration}
    return json.dumps({"study_id": pair.study_id, "hyp": pair.hyp, "ref": pair.refs[0], "evidence": evidence}) + "\n"


def test_the_command_writes_table_and_picture(tmp_path: Path) -> None:
    path = tmp_path / "drafts.jsonl"
    path.write_text("".join(map(line_of, drafts())))
    for repeated in ([], ["--overwrite"]):
        done = radweave("evaluate", path, "--no-meteor", "--resamples", "0", "--out", tmp_path / "out", *repeated)
        assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out" / "evaluation.json").read_text())["heads"]
    assert result["draft_share_of_heads"] == pytest.approx(2 / 3)
    assert result["calibrated_on"] == "val"
    assert (tmp_path / "out" / "reliability.png").read_bytes().startswith(b"\x89PNG")
    assert "the draft reaches 0.67 of it" in (tmp_path / "out" / "tables.md").read_text()


@pytest.mark.parametrize("value", [1.5, -0.1, "high", True])
def test_invalid_probabilities_are_refused(tmp_path: Path, value: object) -> None:
    path = tmp_path / "drafts.jsonl"
    row = {"study_id": "a", "hyp": "x", "ref": "y", "evidence": {"class_probabilities": {"Edema": value}}}
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(InputError, match="not a probability"):
        read_pairs(path)
