"""Change of every score by one planted error a report: run by hand.

    OMP_NUM_THREADS=1 python bench/planted_errors.py [--studies 300] [--ct] [--weights NAME=FOLDER] [--rexval FOLDER]

The reports are phantoms' (findings section, first visits, seed 0), the drafts copies of them with one error. Where an
error cannot be planted, the report is left out; a cell is the score of the drafts less that of plain copies of the same
reports. Bold: the score falls by more than for the harmless changes. With ReXVal's folder, the agreement of every score
with radiologists' counts of errors follows. Scores of models need their weights.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from radweave.labels import get_labeler
from radweave.labels.labeler import Labeler
from radweave.metrics import Evaluation, Options, Pair, evaluate_pairs
from radweave.metrics.catalogue import FURTHER_METRICS, METRICS
from radweave.metrics.planted_errors import HARMLESS, PLANTED, agreement, planted, read_rexval
from radweave.metrics.weights import read_weights
from radweave.phantom.anatomy import draw_anatomy
from radweave.phantom.ct_report import write_ct_report
from radweave.phantom.findings import draw_findings
from radweave.phantom.report import write_report

OPTIONS = Options(scores=FURTHER_METRICS, floors=False, resamples=0)
SHOWN = ("BLEU_4", "METEOR", "ROUGE_L", "CIDEr", "CE_F1", "CE_F1_macro")
SIDED = "findings with side F1"
HONESTY = {
    "comparison_without_prior_share": "compares without a prior",
    "left_right_contradiction_share": "sides contradict",
    "hallucinated_findings_per_report": "findings invented",
    "missed_findings_per_report": "findings missed",
}
"""Rows of honesty, which count faults: the larger, the worse."""


def phantom_reports(studies: int, *, ct: bool) -> dict[str, str]:
    """Findings sections of phantoms' first visits, without an image."""
    reports = {}
    for number in range(studies):
        rng = np.random.default_rng([0, number])
        findings = draw_findings(rng, draw_anatomy(rng), "long-tail", "ct" if ct else "xray")
        write = write_ct_report if ct else write_report
        reports[f"s{number}"] = write(findings, rng, has_prior=False).findings
    return reports


def scores_of(evaluation: Evaluation) -> dict[str, float]:
    """All scores of the catalogue that have a value, and F1 of findings with their side."""
    scores = {row.metric: row.score.value for row in evaluation.summary("all")}
    scores[SIDED] = evaluation.sided.scores.f1.value
    scores |= {title: evaluation.honesty.rows()[name].value for name, title in HONESTY.items()}
    return {name: value for name, value in scores.items() if value is not None}


def changes(pairs: Sequence[Pair], labeler: Labeler, options: Options) -> dict[str, float]:
    """Score of the drafts less that of plain copies of the references."""
    copies = [Pair(pair.study_id, pair.refs[0], pair.refs) for pair in pairs]
    own, plain = (scores_of(evaluate_pairs(each, labeler=labeler, options=options)) for each in (pairs, copies))
    return {name: own[name] - plain[name] for name in own if name in plain}


def print_table(rows: Mapping[str, tuple[int, Mapping[str, float]]]) -> None:
    shown = [*(name for name in SHOWN if all(name in row for _, row in rows.values())), SIDED]
    shown[-1:-1] = [name for name in METRICS if name not in SHOWN and METRICS[name].title and _is_shown(name, rows)]
    shown += HONESTY.values()
    harmless = {
        name: min(_worth(name, rows[each][1].get(name, 0.0)) for each in HARMLESS if each in rows) for name in shown
    }
    print("| change | reports |", " | ".join(METRICS[name].title if name in METRICS else name for name in shown), "|")
    print("|---|---:|" + "---:|" * len(shown))
    for error, (reports, row) in rows.items():
        cells = []
        for name in shown:
            value = row.get(name, 0.0)
            text = f"{value:+.3f}".replace("+0.000", "0").replace("-0.000", "0")
            seen = error in PLANTED and _worth(name, value) < harmless[name] - 5e-4
            cells.append(f"**{text}**" if seen else text)
        print(f"| {error} | {reports} |", " | ".join(cells), "|")


def _worth(name: str, change: float) -> float:
    """The change, below zero for a worse score."""
    return METRICS[name].rank(change) if name in METRICS else -change if name in HONESTY.values() else change


def _is_shown(name: str, rows: Mapping[str, tuple[int, Mapping[str, float]]]) -> bool:
    further = METRICS[name].clinical is None and not METRICS[name].title.startswith(("BLEU-", "ROUGE-", "RadGraph_"))
    return further and all(name in row for _, row in rows.values())


def print_agreement(folder: Path, labeler: Labeler, options: Options) -> None:
    """Kendall's tau-b and Pearson's r of each score's studies with the counts of errors."""
    counted = read_rexval(folder)
    evaluation = evaluate_pairs(counted.pairs, labeler=labeler, options=options)
    print("\n| score | tau, significant errors | tau, all errors | r, all errors |\n|---|---:|---:|---:|")
    for name, metric in METRICS.items():
        statistic = metric.statistic(evaluation.statistics, evaluation.clinical_statistics)
        # Of the averages of findings only this one has a value of its own for each study.
        if statistic is None or (metric.clinical is not None and metric.clinical[0] != "example"):
            continue
        rank = metric.higher_is_better
        significant = agreement(statistic.per_study.tolist(), counted.significant.tolist(), higher_is_better=rank)
        every = agreement(statistic.per_study.tolist(), counted.errors.tolist(), higher_is_better=rank)
        if significant is not None and every is not None:
            print(f"| {name} | {significant.tau:.3f} | {every.tau:.3f} | {every.pearson:.3f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=300)
    parser.add_argument("--ct", action="store_true")
    parser.add_argument("--weights", action="append", default=[])
    parser.add_argument("--rexval", type=Path)
    arguments = parser.parse_args()
    options = replace(OPTIONS, folders=read_weights(arguments.weights).folders)
    labeler = get_labeler("ct18" if arguments.ct else "chexpert14")
    reports = phantom_reports(arguments.studies, ct=arguments.ct)
    rows = {}
    for name, edit in (PLANTED | HARMLESS).items():
        pairs = planted(reports, edit, labeler)
        if not pairs:
            continue
        rows[name] = len(pairs), changes(pairs, labeler, options)
    print_table(rows)
    if arguments.rexval is not None:
        print_agreement(arguments.rexval, get_labeler("chexpert14"), options)


if __name__ == "__main__":
    main()
