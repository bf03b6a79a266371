"""Planted errors change what they say and nothing else; scores agree with counts of errors as they should."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from radweave.core.errors import InputError
from radweave.labels import get_labeler
from radweave.labels.comparisons import compares_with_prior
from radweave.metrics import Options, evaluate_pairs
from radweave.metrics.laterality import sided_findings
from tests.toys import bench_program

PROGRAM = bench_program("planted_errors")
PLANTED, HARMLESS, CANDIDATES = PROGRAM.PLANTED, PROGRAM.HARMLESS, PROGRAM.CANDIDATES
planted, agreement, read_rexval = PROGRAM.planted, PROGRAM.agreement, PROGRAM.read_rexval

REPORT = "The heart is mildly enlarged. There is a small left pleural effusion. No pneumothorax."
EXPECTED = {
    "negation": "The heart is mildly enlarged. There is a small left pleural effusion. There is pneumothorax.",
    "side": "The heart is mildly enlarged. There is a small right pleural effusion. No pneumothorax.",
    "severity": "The heart is severely enlarged. There is a small left pleural effusion. No pneumothorax.",
    "omission": "There is a small left pleural effusion. No pneumothorax.",
    "invention": f"{REPORT} There is a moderate right pneumothorax.",
    "hallucinated prior": f"{REPORT} The findings have worsened since the prior study.",
    "order of sentences": "No pneumothorax. There is a small left pleural effusion. The heart is mildly enlarged.",
    "synonyms": "The cardiac silhouette is mildly enlarged. A little left pleural fluid. No pneumothorax.",
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_planted_error_changes_one_statement(name: str) -> None:
    edit = (PLANTED | HARMLESS)[name]
    labeler = get_labeler("chexpert14")
    changed = edit(REPORT, labeler)
    assert changed == EXPECTED[name]
    before, after = labeler.label([REPORT, changed])
    differing = {finding for finding in before if before[finding].state is not after[finding].state}
    of_labels = {"negation": {"Pneumothorax"}, "omission": {"Cardiomegaly"}, "invention": {"Pneumothorax"}}
    assert differing == of_labels.get(name, set())
    sides = (sided_findings(REPORT).get("effusion"), sided_findings(changed).get("effusion"))
    assert (sides[0] != sides[1]) == (name in ("side", "synonyms")), (
        "pleural fluid is another noun to the reader of sides"
    )
    assert compares_with_prior(changed) == (name == "hallucinated prior")


def test_reports_with_nothing_to_get_wrong_are_left_out() -> None:
    reports = {"a": REPORT, "b": "Lungs clear."}
    labeler = get_labeler("chexpert14")
    counts = {name: len(planted(reports, edit, labeler)) for name, edit in (PLANTED | HARMLESS).items()}
    assert counts == {
        "negation": 1, "side": 1, "severity": 1, "omission": 1, "invention": 2, "hallucinated prior": 2,
        "order of sentences": 1, "synonyms": 1,
    }  # fmt: skip
    already = {"a": "Stable small effusion, unchanged from prior."}
    assert planted(already, PLANTED["hallucinated prior"], labeler) == []
    assert (
        planted({"a": "Small effusion is present."}, PLANTED["negation"], labeler)[0].hyp
        == "No small effusion is present."
    )


def test_findings_f1_sees_negation_and_is_blind_to_sides() -> None:
    reports = {f"s{number}": REPORT.replace("small", word) for number, word in enumerate(("small", "large", "trace"))}
    labeler, options = get_labeler("chexpert14"), Options(meteor=False, floors=False, resamples=0)

    def f1(name: str) -> tuple[float | None, float | None]:
        pairs = planted(reports, (PLANTED | HARMLESS)[name], labeler)
        evaluation = evaluate_pairs(pairs, labeler=labeler, options=options)
        row = next(row for row in evaluation.summary() if row.metric == "CE_F1")
        return row.score.value, evaluation.sided.scores.f1.value

    assert f1("order of sentences") == (1.0, 1.0)
    assert f1("side") == (1.0, 0.0)
    assert f1("negation")[0] == pytest.approx(2 * 2 / (3 + 2))


def rexval(folder: Path, *, counts: str = "1") -> Path:
    folder.mkdir()
    reports = [f"gt_{n},r {n},b {n},s {n},u {n}" for n in range(2)]
    (folder / "50_samples_gt_and_candidates.csv").write_text(
        "\r\n".join([f"study_id,gt_report,{','.join(CANDIDATES)}", *(f"{n},{row}" for n, row in enumerate(reports))])
    )
    rows = ["study_number,candidate_type,error_category,rater_index,clinically_significant,num_errors"]
    for (number, candidate), rater in itertools.product(itertools.product(range(2), CANDIDATES), range(2)):
        rows.append(f"{number},{candidate},1,{rater},True,{number}")
        rows.append(f"{number},{candidate},2,{rater},False,{counts if rater == 0 else 3}")
    (folder / "6_valid_raters_per_rater_error_categories.csv").write_text("\r\n".join(rows))
    return folder


def test_rexval_counts_are_means_over_raters(tmp_path: Path) -> None:
    counted = read_rexval(rexval(tmp_path / "rexval"))
    assert len(counted.pairs) == 8
    assert (counted.pairs[5].study_id, counted.pairs[5].hyp, counted.pairs[5].refs) == ("1 bertscore", "b 1", ("gt_1",))
    np.testing.assert_allclose(counted.significant, [0] * 4 + [1] * 4)
    np.testing.assert_allclose(counted.errors, [2] * 4 + [3] * 4)
    with pytest.raises(InputError, match=r"line 3.*num_errors.*many"):
        read_rexval(rexval(tmp_path / "wrong", counts="many"))
    short = rexval(tmp_path / "short")
    table = short / "6_valid_raters_per_rater_error_categories.csv"
    table.write_text("\n".join(line for line in table.read_text().splitlines() if not line.startswith("1,bleu")))
    with pytest.raises(InputError, match="1 of 8 candidates without counts"):
        read_rexval(short)


def test_agreement_is_kendalls_tau_b_with_the_sign_turned() -> None:
    scores, errors = [0.9, 0.8, 0.8, 0.3, math.nan, 0.1], [0.0, 1.0, 0.5, 0.5, 9.0, 3.0]
    result = agreement(scores, errors)
    assert result is not None
    known = [(score, -count) for score, count in zip(scores, errors, strict=True) if not math.isnan(score)]
    concordant = ties_scores = ties_errors = 0
    for (a, x), (b, y) in itertools.combinations(known, 2):
        concordant += int(np.sign(a - b) * np.sign(x - y))
        ties_scores += a == b
        ties_errors += x == y
    pairs = math.comb(len(known), 2)
    assert result.tau == pytest.approx(concordant / math.sqrt((pairs - ties_scores) * (pairs - ties_errors)))
    assert result.studies == 5
    lower = agreement([-score for score in scores], errors, higher_is_better=False)
    assert lower is not None
    assert lower.tau == pytest.approx(result.tau)
    assert agreement([1.0] * 4, [1.0, 2.0, 3.0, 4.0]) is None
