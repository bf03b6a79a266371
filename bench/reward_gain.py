"""Finished runs, trained on by rewards: scores of the test split before and after, paired by study.

    radweave bench runs/bench --sets xray --methods diffvp,diffrgennet --seeds 3
    python bench/reward_gain.py runs/bench/data/xray runs/rewarded runs/bench/xray/runs/{baseline,diffvp}/seed-* \\
        [--set stages.reward.edited=0] [--utility]

Each run is METHOD/seed-N and has its predictions. The rewarded one, OUT/METHOD/seed-N, starts from its weights and
trains the stage ``reward`` alone; what exists is kept. It is on, and the run as it was is off. The interval and the
first p are over patients, with the seeds as they are; the second p is Welch's over seeds. With ``--utility`` rewarded
runs also draft by expected utility, beside the drafts of METHOD-by-utility/seed-N.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from paper_claims import HEAD, contrasts, read_row

from radweave.data.dataset import Dataset
from radweave.engine.restore import restore
from radweave.engine.train import train
from radweave.experiments.bench_results import Scoring, percent
from radweave.experiments.bench_tables import invented_share, mean_honesty, mean_of, missed_share
from radweave.experiments.bench_terms import read_experiment
from radweave.inference.bulk import generate_split
from radweave.inference.predictor import Predictor
from radweave.nn.decoding import OWN_DECODER

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


def draft(run: Path, data: Path, out: Path, decoding: tuple[str, ...] = (OWN_DECODER,)) -> None:
    if not out.is_file():
        out.parent.mkdir(parents=True, exist_ok=True)
        restored = restore(run)
        generate_split(restored, Predictor.of(restored, decoding=decoding), data, "test", out)


def show(method: str, before: list[Path], after: list[Path], scoring: Scoring) -> None:
    off, on = read_row(before, scoring), read_row(after, scoring)
    for cells in contrasts(on, off, METRICS):
        print(f"| {method} | {len(before)} | {cells}")
    for title, shares in (
        ("distinct", [mean_honesty(system, "distinct_reports_share") for system in (on, off)]),
        ("invented", [mean_of(system, invented_share) for system in (on, off)]),
        ("missed", [mean_of(system, missed_share) for system in (on, off)]),
    ):
        print(f"| {method} | {len(before)} | {title} | {' | '.join(map(percent, shares))} | | | |", flush=True)


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
    scoring = Scoring.of(Dataset.open(options.data))
    print(f"| method | seeds | {HEAD}")
    print("|---|---:|---|---|---|---|---|---|")
    for method, runs in pairs.items():
        show(method, [before for before, _ in runs], [after for _, after in runs], scoring)
        if options.utility:
            old = [before.parent.parent / f"{method}-by-utility" / before.name for before, _ in runs]
            show(f"{method}, by utility", old, [after / "utility" for _, after in runs], scoring)


if __name__ == "__main__":
    main()
