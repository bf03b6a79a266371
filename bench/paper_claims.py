"""A part of a method on against off: the difference of the means over seeds, paired by study, with both kinds of test.

    radweave ablate dast DATA --table table4 --rows 'Baseline,+ DASTs + DVAF + DMSR' --out runs/dast
    python bench/paper_claims.py DATA runs/dast/runs/plus-dasts-plus-dvaf-plus-dmsr:runs/dast/runs/baseline [...]

Each argument names the folders of two rows, on and off, with a run per seed. The interval and the first p are over
patients, with the seeds as they are; the second p is Welch's over seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from radweave.data.dataset import Dataset
from radweave.experiments.bench_results import Scoring, SystemScores, compare, mean_std, p_value, read_run, score_system
from radweave.metrics.significance import compare_seeds

METRICS = ("CE_F1", "CE_F1_macro", "CIDEr")
HEAD = "score | on | off | difference [95 %] | p studies | p seeds |"


def read_row(runs: Sequence[Path], scoring: Scoring) -> SystemScores:
    return score_system([read_run(run, scoring) for run in runs], scoring)


def tested(on: SystemScores, off: SystemScores, metric: str) -> tuple[str, str, str]:
    """The difference with its interval, p over patients and p between trainings, as cells; empty ones if undefined."""
    one = compare({"on": on}, off, [metric]).get(("on", metric))
    if one is None:
        return "", "", ""
    interval = "" if one.low is None else f" [{one.low:+.3f}, {one.high:+.3f}]"
    several = len(on.evaluations) > 1 and len(off.evaluations) > 1
    seeds = compare_seeds(on.by_seed(), off.by_seed()) if several else []
    between = next((each.p for each in seeds if each.metric == metric), None)
    of_studies, of_seeds = ("" if p is None else p_value(p) for p in (one.p_studies, between))
    return f"{one.difference:+.3f}{interval}", of_studies, of_seeds


def contrasts(on: SystemScores, off: SystemScores, metrics: Sequence[str]) -> Iterator[str]:
    """The cells of ``HEAD`` for each metric."""
    for metric in metrics:
        cells = (metric, mean_std(on, metric), mean_std(off, metric), *tested(on, off, metric))
        yield f"{' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("rows", nargs="+", metavar="ON:OFF")
    options = parser.parse_args()
    scoring = Scoring.of(Dataset.open(options.data))
    print(f"| on, off | seeds | {HEAD}")
    print("|---|---:|---|---|---|---|---|---|")
    for row in options.rows:
        folders = on_folder, off_folder = [Path(name) for name in row.split(":")]
        seeds = sorted({run.name for run in on_folder.iterdir()} & {run.name for run in off_folder.iterdir()})
        seeds = [seed for seed in seeds if all((folder / seed / "scores.json").is_file() for folder in folders)]
        on, off = (read_row([folder / seed for seed in seeds], scoring) for folder in folders)
        for cells in contrasts(on, off, METRICS):
            print(f"| {on_folder.name}, {off_folder.name} | {len(seeds)} | {cells}")


if __name__ == "__main__":
    main()
