"""A part of a method on against off: the difference of the means over seeds, paired by study, with both kinds of test.

    radweave ablate dast DATA --table table4 --rows 'Baseline,+ DASTs + DVAF + DMSR' --out runs/dast
    python bench/paper_claims.py DATA runs/dast/runs/plus-dasts-plus-dvaf-plus-dmsr:runs/dast/runs/baseline [...]

Each argument names the folders of two rows, on and off, with a run per seed. The interval and the first p are over
patients, with the seeds as they are; the second p is Welch's over seeds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from radweave.data.dataset import Dataset
from radweave.experiments.bench_results import Scoring, SystemScores, compare, mean_std, p_value, read_run, score_system
from radweave.labels import LABELER_OF, get_labeler
from radweave.metrics.significance import compare_seeds

METRICS = ("CE_F1", "CE_F1_macro", "CIDEr")


def read_row(folder: Path, seeds: list[str], scoring: Scoring) -> SystemScores:
    return score_system([read_run(folder / seed, scoring) for seed in seeds], scoring)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("rows", nargs="+", metavar="ON:OFF")
    options = parser.parse_args()
    dataset = Dataset.open(options.data)
    train_texts = tuple(study.report for study in dataset.studies("train") if study.report)
    patients = {study.study_id: study.patient_id for study in dataset.studies("test")}
    scoring = Scoring("full", get_labeler(LABELER_OF[dataset.card.modality]), train_texts, patients)
    print("| on, off | seeds | score | on | off | difference [95 %] | p studies | p seeds |")
    print("|---|---:|---|---|---|---|---|---|")
    for row in options.rows:
        on_folder, off_folder = map(Path, row.split(":"))
        seeds = sorted({run.name for run in on_folder.iterdir()} & {run.name for run in off_folder.iterdir()})
        seeds = [
            seed
            for seed in seeds
            if all((folder / seed / "scores.json").is_file() for folder in (on_folder, off_folder))
        ]
        on, off = (read_row(folder, seeds, scoring) for folder in (on_folder, off_folder))
        between = {one.metric: one.p for one in compare_seeds(on.by_seed(), off.by_seed())} if len(seeds) > 1 else {}
        tested = compare({"on": on}, off, METRICS)
        for metric in METRICS:
            one = tested["on", metric]
            interval = "" if one.low is None else f" [{one.low:+.3f}, {one.high:+.3f}]"
            ps = [p_value(p) if p is not None else "-" for p in (one.p_studies, between.get(metric))]
            name = f"{on_folder.name}, {off_folder.name}"
            figures = f"{mean_std(on, metric)} | {mean_std(off, metric)} | {one.difference:+.3f}{interval}"
            print(f"| {name} | {len(seeds)} | {metric} | {figures} | {' | '.join(ps)} |")


if __name__ == "__main__":
    main()
