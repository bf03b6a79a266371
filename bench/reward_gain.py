"""Finished runs, trained on by rewards: scores of the test split before and after, paired by study.

    radweave bench runs/bench --sets xray --methods diffvp,diffrgennet --seeds 3
    python bench/reward_gain.py runs/bench/data/xray runs/rewarded runs/bench/xray/runs/{baseline,diffvp}/seed-* \\
        [--set stages.reward.edited=0] [--utility]

Each run is METHOD/seed-N and has its predictions. The rewarded one, OUT/METHOD/seed-N, starts from its weights and
trains the stage ``reward`` alone; what exists is kept. The interval and the first p are over patients, with the seeds
as they are; the second p is Welch's over seeds. With ``--utility`` rewarded runs also draft by expected utility, beside
the drafts of METHOD-by-utility/seed-N.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from radweave.data.dataset import Dataset
from radweave.engine.restore import restore
from radweave.engine.train import train
from radweave.experiments.bench_results import Scoring, compare, mean_std, p_value, read_run, score_system
from radweave.experiments.bench_tables import _honest, _invented_share, _missed_share, mean_of
from radweave.experiments.bench_terms import read_experiment
from radweave.inference.bulk import generate_split
from radweave.inference.predictor import Predictor
from radweave.labels import LABELER_OF, get_labeler
from radweave.metrics.significance import compare_seeds

METRICS = ("CE_F1", "CE_F1_macro", "CIDEr", "BLEU_4")
UTILITY = ("kind=expected_utility",)


def reward(run: Path, data: Path, out: Path, options: list[str]) -> Path:
    """Train the stage of rewards from a run's weights, its other stages at rest, and draft the test split."""
    experiment = read_experiment(run)
    rest = [f"stages.{name}.epochs=0" for name in experiment.named_stages()]
    if not (out / "run.json").is_file():
        overrides = [*rest, "stages.reward.epochs=4", *options]
        train(experiment.method, data, out, config=run / "config.yaml", overrides=overrides, start=run, resume=True)
    draft(out, data, out / "predictions.jsonl")
    return out


def draft(run: Path, data: Path, out: Path, decoding: tuple[str, ...] = ()) -> None:
    if not out.is_file():
        out.parent.mkdir(parents=True, exist_ok=True)
        restored = restore(run)
        generate_split(restored, Predictor.of(restored, decoding=decoding), data, "test", out)


def show(method: str, before: list[Path], after: list[Path], scoring: Scoring) -> None:
    off, on = (score_system([read_run(run, scoring) for run in runs], scoring) for runs in (before, after))
    tested = compare({"after": on}, off, METRICS)
    between = {one.metric: one.p for one in compare_seeds(on.by_seed(), off.by_seed())} if len(before) > 1 else {}
    for metric in METRICS:
        one = tested["after", metric]
        interval = "" if one.low is None else f" [{one.low:+.3f}, {one.high:+.3f}]"
        ps = [p_value(p) if p is not None else "-" for p in (one.p_studies, between.get(metric))]
        figures = f"{mean_std(off, metric)} | {mean_std(on, metric)} | {one.difference:+.3f}{interval}"
        print(f"| {method} | {len(before)} | {metric} | {figures} | {' | '.join(ps)} |")
    for title, read in (
        ("distinct", lambda system: _honest(system, "distinct_reports_share")),
        ("invented", lambda system: mean_of(system, _invented_share)),
        ("missed", lambda system: mean_of(system, _missed_share)),
    ):
        old, new = read(off), read(on)
        print(f"| {method} | {len(before)} | {title} | {percent(old)} | {percent(new)} | | | |", flush=True)


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def scoring_of(data: Path) -> Scoring:
    dataset = Dataset.open(data)
    train_texts = tuple(study.report for study in dataset.studies("train") if study.report)
    patients = {study.study_id: study.patient_id for study in dataset.studies("test")}
    return Scoring("full", get_labeler(LABELER_OF[dataset.card.modality]), train_texts, patients)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", type=Path, nargs="+", metavar="METHOD/seed-N")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--utility", action="store_true")
    options = parser.parse_args()
    pairs: dict[str, list[tuple[Path, Path]]] = {}
    for run in options.runs:
        after = reward(run, options.data, options.out / run.parent.name / run.name, options.set)
        pairs.setdefault(run.parent.name, []).append((run, after))
        if options.utility:
            draft(after, options.data, after / "utility" / "predictions.jsonl", UTILITY)
    scoring = scoring_of(options.data)
    print("| method | seeds | score | before | after | difference [95 %] | p studies | p seeds |")
    print("|---|---:|---|---|---|---|---|---|")
    for method, runs in pairs.items():
        show(method, [before for before, _ in runs], [after for _, after in runs], scoring)
        if options.utility:
            old = [before.parent.parent / f"{method}-by-utility" / before.name for before, _ in runs]
            show(f"{method}, by utility", old, [after / "utility" for _, after in runs], scoring)


if __name__ == "__main__":
    main()
