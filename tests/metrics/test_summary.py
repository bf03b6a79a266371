"""The scores of a suite on one screen: verdicts against floors, abnormal studies alone, few lines."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from radweave.cli import evaluation as verbs
from radweave.core.errors import InputError
from radweave.labels import get_labeler
from radweave.metrics import Evaluation, Options, Pair, evaluate_pairs
from radweave.metrics.abnormal import AbnormalScores
from radweave.metrics.catalogue import METRICS, SUITES, Metric
from radweave.metrics.records import FINDING_F1, FloorScores, Score
from radweave.metrics.result_tables import metric_title, result_tables
from radweave.metrics.statistics import Interval
from radweave.metrics.summary import ABNORMAL, summary_rows

NORMAL = "The heart is normal in size. The lungs are clear. No pleural effusion."
ABNORMAL_REPORTS = (
    "There is a small left pleural effusion. The heart is enlarged.",
    "Right lower lobe opacity may represent pneumonia. No pneumothorax.",
    "Bilateral pleural effusions. There is mild pulmonary edema.",
)
REFERENCES = (NORMAL, *ABNORMAL_REPORTS, NORMAL) * 3
OPTIONS = Options(meteor=False, resamples=30)

app = typer.Typer(pretty_exceptions_enable=False)
app.command("evaluate")(verbs.evaluate)
app.command("compare")(verbs.compare)


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return str(result.stdout)


def shortened(drop: int, references: tuple[str, ...] = REFERENCES) -> list[Pair]:
    """Drafts that miss the first ``drop`` words of their references."""
    return [
        Pair(f"s{number}", " ".join(text.split()[drop:]), (text,), patient_id=f"p{number}")
        for number, text in enumerate(references)
    ]


def evaluated(pairs: list[Pair], ontology: str = "chexpert14") -> Evaluation:
    labeler = None if ontology == "none" else get_labeler(ontology)
    return evaluate_pairs(pairs, labeler=labeler, options=OPTIONS)


def write(path: Path, pairs: list[Pair]) -> Path:
    rows = [{"study_id": pair.study_id, "hyp": pair.hyp, "ref": pair.refs[0]} for pair in pairs]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_names_scores_of_the_catalogue_and_keeps_the_row_of_one_that_is_missing(suite: str) -> None:
    assert set(SUITES[suite]) <= set(METRICS)  # type: ignore[index]
    assert len(set(SUITES[suite])) == len(SUITES[suite])  # type: ignore[index]
    rows = evaluated(shortened(2)).summary(suite)  # type: ignore[arg-type]
    shown = [row.metric for row in rows if row.metric != ABNORMAL]
    if suite == "all":
        assert {"BLEU_1", "CE_F1", "METEOR"} <= set(shown)
        assert "BLEU_1_corpus" not in shown, "the protocol does not have it"
    else:
        assert shown == list(SUITES[suite])  # type: ignore[index]
    assert all(row.score.value is not None or row.score.unavailable for row in rows)


def test_verdict_is_the_interval_against_the_best_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = {
        "up": Score(0.5, Interval(0.4, 0.6)),
        "down": Score(0.5, Interval(0.4, 0.6)),
        "plain": Score(0.5),
        "none": Score(None, None, "unavailable: no weights"),
    }
    monkeypatch.setattr(
        "radweave.metrics.summary.METRICS", {key: Metric(key, higher_is_better=key != "down") for key in corpus}
    )
    monkeypatch.setattr("radweave.metrics.summary.SUITES", {"papers": tuple(corpus)})

    def verdicts(**floors: float) -> list[tuple[str | None, str | None]]:
        table = {name: FloorScores(name, corpus=dict.fromkeys(corpus, value)) for name, value in floors.items()}
        return [(row.verdict, row.floor_name) for row in summary_rows("papers", corpus, {}, table, None)]

    assert verdicts(low=0.1, high=0.39) == [("above", "high"), ("below", "low"), (None, "high"), (None, None)]
    assert verdicts(only=0.4) == [("not above", "only"), ("not above", "only"), (None, "only"), (None, None)]
    assert verdicts(only=0.61)[:2] == [("below", "only"), ("above", "only")]
    assert verdicts() == [(None, None)] * 4


def test_a_reciprocal_of_a_mean_below_zero_is_better_than_one_of_a_mean_above() -> None:
    key = "RadCliQ_v1_inverse"
    corpus = {key: Score(1 / -1.4, Interval(1 / -1.2, 1 / -1.6))}
    floors = {str(mean): FloorScores(str(mean), corpus={key: 1 / mean}) for mean in (1.2, 0.5, 2.0)}
    row = next(row for row in summary_rows("rexrank", corpus, {}, floors, None) if row.metric == key)
    assert (row.verdict, row.floor_name) == ("above", "0.5")


def test_scores_of_abnormal_studies_are_those_of_a_set_without_normal_ones() -> None:
    pairs = shortened(3)
    pairs[0] = replace(pairs[0], hyp="There is a pleural effusion.")
    whole = evaluated(pairs)
    alone = evaluated([pair for pair in pairs if pair.refs[0] != NORMAL])
    abnormal = whole.abnormal
    assert isinstance(abnormal, AbnormalScores)
    assert (abnormal.studies, abnormal.of) == (9, 15)
    for metric in ("BLEU_1", "BLEU_4", "ROUGE_L"):
        assert abnormal.corpus[metric].value == pytest.approx(alone.corpus[metric].value, abs=1e-12)
    (of_findings, of_alone) = (one.clinical_statistics[FINDING_F1].corpus() for one in (whole, alone))
    assert abnormal.corpus["CE_F1"].value == pytest.approx(of_alone)
    assert of_alone != of_findings, "a false alarm on a normal study counts in one of them"
    assert set(abnormal.floors["constant_report"]) >= {"CE_F1", "CIDEr"}
    table = next(one for one in result_tables({"run": whole.to_json()}) if one.title == "On abnormal studies alone")
    (row_of_findings,) = [cells for cells in table.rows if cells[0] == "findings F1"]
    assert [cell.split()[0] for cell in row_of_findings[1:3]] == [f"{of_findings:.4f}", f"{of_alone:.4f}"]
    of_scans = evaluated(pairs, "ct18")  # labels without No Finding
    assert of_scans.abnormal is not None
    assert (of_scans.abnormal.corpus["CE_F1"].value or 0) > 0
    assert of_scans.floors["constant_report"].findings_f1 is not None
    cider = whole.statistics["CIDEr"].per_study
    kept = np.array([pair.refs[0] != NORMAL for pair in pairs])
    assert abnormal.corpus["CIDEr"].value == pytest.approx(cider[kept].mean())
    assert abnormal.corpus["CIDEr"].estimate.bounds is not None
    row = next(row for row in whole.summary() if row.metric == ABNORMAL)
    assert row.floor == max(scores["CIDEr"] or 0 for scores in abnormal.floors.values())
    assert "6 of 15 references are normal" in abnormal.note


def test_the_floor_of_a_clinical_score_is_scored_like_the_run() -> None:
    pairs = shortened(3)
    floor = evaluated(pairs).floors["constant_report"]
    constant = [Pair(pair.study_id, "There is a pleural effusion.", pair.refs) for pair in pairs]
    given = [Pair(p.study_id, p.hyp, p.refs, {"constant": c.hyp}) for p, c in zip(pairs, constant, strict=True)]
    table = evaluated(given).floors["constant_report"]
    own = {row.metric: row.score.value for row in evaluated(constant).summary("all")}
    for metric in ("CE_P", "CE_F1", "CE_F1_macro", "CE_F1_example", "BLEU_4"):
        assert table.score(metric) == pytest.approx(own[metric]), metric
    assert table.findings_f1 == table.score("CE_F1") != floor.findings_f1


SETS = {
    "usual": shortened(2),
    "one study": shortened(2)[1:2],
    "no findings": shortened(1, (NORMAL,) * 4),
    "all abnormal": shortened(1, ABNORMAL_REPORTS),
    "empty drafts": [Pair(pair.study_id, "", pair.refs) for pair in shortened(0)],
}


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("ontology", ["chexpert14", "ct18", "none"])
def test_printed_result_has_at_most_30_lines_of_100_columns(name: str, ontology: str) -> None:
    result = evaluated(SETS[name], ontology)
    lines = repr(result).splitlines()
    assert str(result) == repr(result)
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 100
    assert any(line.startswith("  BLEU-4 ") for line in lines)
    json.dumps(result.to_json(), allow_nan=False)


def test_evaluate_prints_one_screen_and_all_tables_on_request(tmp_path: Path) -> None:
    pairs = write(tmp_path / "a.jsonl", shortened(2))
    plain = ("evaluate", pairs, "--no-meteor", "--resamples", 30)
    short, whole = run(*plain), run(*plain, "--all")
    assert len(short.splitlines()) <= 40
    assert "\x1b" not in short
    assert "CIDEr (abnormal)" in short
    assert "METEOR: not asked for" in short
    assert len(whole.splitlines()) > 100
    assert "Findings by class" in whole
    summary = json.loads(run(*plain, "--json", "--suite", "vlm3d"))["summary"]
    assert summary["suite"] == "vlm3d"
    assert [row["metric"] for row in summary["rows"] if row["metric"] != ABNORMAL] == list(SUITES["vlm3d"])
    with pytest.raises(InputError, match="papers, rexrank, vlm3d, all"):
        run(*plain, "--suite", "mine")
    other = write(tmp_path / "other.jsonl", shortened(4))
    both = run("evaluate", pairs, other, "--no-meteor", "--resamples", 30)
    assert len(both.splitlines()) <= 50
    assert "other: full" in both


def test_weights_that_several_scores_and_runs_lack_are_named_once(tmp_path: Path) -> None:
    first, second = (write(tmp_path / f"{name}.jsonl", shortened(2 + n)) for n, name in enumerate("ab"))
    printed = " ".join(run("evaluate", first, second, "--no-meteor", "--resamples", 0, "--suite", "rexrank").split())
    assert printed.count("--weights chexbert=FOLDER") == 1
    assert printed.count("--weights bertscore=FOLDER") == 1
    assert "RadGraph, 1/RadCliQ-v1: needs RadGraph: --weights radgraph=FOLDER" in printed


def test_compare_tests_the_scores_of_its_suite(tmp_path: Path) -> None:
    first, second = (write(tmp_path / f"{name}.jsonl", shortened(n)) for name, n in (("a", 5), ("b", 1)))
    printed = run("compare", first, second, "--no-meteor", "--resamples", 600, "--suite", "rexrank")
    shown = {
        line.strip().split("  ")[0]: line.split()[-1]
        for line in printed.splitlines()
        if line.startswith("  ") and line.strip()
    }
    assert shown[metric_title("BLEU_2_sentence")] == "better"
    assert metric_title("BLEU_4") not in shown
    vlm3d = json.loads(run("compare", first, second, "--no-meteor", "--resamples", 20, "--suite", "vlm3d", "--json"))
    assert "CRG" in {row["metric"] for row in vlm3d["comparisons"]}


def test_compare_prints_one_screen_with_a_verdict(tmp_path: Path) -> None:
    names = ("a_run_with_a_long_name_of_its_own", "another_run_with_a_long_name")
    first, second = (write(tmp_path / f"{name}.jsonl", shortened(6 - 5 * n)) for n, name in enumerate(names))
    plain = ("compare", first, second, "--no-meteor", "--resamples", 400)
    printed = run(*plain)
    assert len(printed.splitlines()) <= 40
    bleu = next(line for line in printed.splitlines() if line.strip().startswith("BLEU-1"))
    assert bleu.split()[-1] == "better"
    assert metric_title("ROUGE_2") not in printed
    assert metric_title("ROUGE_2") in run(*plain, "--all")
    three = run(*plain, write(tmp_path / "c.jsonl", shortened(6)))
    assert len(three.splitlines()) <= 50
    swapped = run("compare", second, first, "--no-meteor", "--resamples", 400)
    assert next(line for line in swapped.splitlines() if line.strip().startswith("BLEU-1")).split()[-1] == "worse"


def test_compare_names_decoders_that_differ(tmp_path: Path) -> None:
    files = []
    for name, kind in (("a", "own decoder"), ("b", "expected utility")):
        rows = [json.loads(line) for line in write(tmp_path / f"{name}.jsonl", shortened(2)).read_text().splitlines()]
        evidence = {"decoder": {"kind": kind}}
        files.append(tmp_path / f"{name}.jsonl")
        files[-1].write_text("".join(f"{json.dumps({**row, 'evidence': evidence})}\n" for row in rows))
    printed = " ".join(run("compare", *files, "--no-meteor", "--resamples", 20).split())
    assert "mind: a drafts by own decoder; b drafts by expected utility" in printed
    same = tmp_path / "c.jsonl"
    same.write_text(files[0].read_text())
    assert "mind: " not in run("compare", files[0], same, "--no-meteor", "--resamples", 20)


def test_compare_says_where_no_verdict_is_possible(tmp_path: Path) -> None:
    first, second = (write(tmp_path / f"{name}.jsonl", shortened(n)) for name, n in (("a", 5), ("b", 1)))
    few, many = (run("compare", first, second, "--no-meteor", "--resamples", n) for n in (20, 2000))
    assert "too few resamples for a verdict" in few
    assert "too few resamples" not in many
