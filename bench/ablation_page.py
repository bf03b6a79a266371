"""Tables of ablations for a results page: scores of each row, and its difference to the reference row by study.

    radweave ablate am_mrg DATA --table table4 --probe --out runs/am_mrg_table4
    python bench/ablation_page.py DATA runs/am_mrg_table4 [...] > tables.md

Without its reference row a table is compared with its first. Intervals and the first p are over patients, with the
seeds as they are; the second p is Welch's over seeds. Exchange is what another study's input costs the first seed, in
nats per token, beside the other inputs and alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paper_claims import read_row, tested

from radweave.core.json_files import read_json
from radweave.data.dataset import Dataset
from radweave.experiments.bench_results import Scoring, mean_std, percent

COLUMNS = {"findings F1": "CE_F1", "macro F1": "CE_F1_macro", "CIDEr": "CIDEr", "BLEU-4": "BLEU_4"}
TESTED = ("difference [95 %]", "p studies", "p seeds")
HEAD = ("row", "seeds", "findings F1", *TESTED, *list(COLUMNS)[1:], "distinct", "exchange: beside, alone")


def exchange(probe: Mapping[str, Any] | None) -> str:
    """Each input's costs; inputs that the row does not have cost exactly nothing and are left out."""
    inputs = [] if probe is None else probe.get("inputs", [])
    costs = [(one["name"], one["costs"]["another"]["mean"], one["alone"]["mean"]) for one in inputs]
    return "; ".join(f"{name} {beside:.3f}, {alone:.3f}" for name, beside, alone in costs if beside or alone)


def table_lines(out: Path, scoring: Scoring) -> Iterator[str]:
    """One ablation as markdown."""
    record = read_json(out / "table.json")
    yield f"**{record['method']}, {record['title']}**"
    yield ""
    yield f"| {' | '.join(HEAD)} |"
    yield f"|{'---|' * len(HEAD)}"
    scores = {}
    for row in record["rows"]:
        runs = [out / folder for folder in row["folders"] if (out / folder / "scores.json").is_file()]
        if runs:
            scores[row["label"]] = read_row(runs, scoring)
    reference = record["reference"] if record["reference"] in scores else next(iter(scores), None)
    for row in record["rows"]:
        label = row["label"]
        if label not in scores:
            continue
        cells = ("", "", "") if reference in (None, label) else tested(scores[label], scores[reference], "CE_F1")
        first, *others = [mean_std(scores[label], metric) for metric in COLUMNS.values()]
        distinct = percent(row["honesty"].get("distinct_reports_share"))
        number = f"{len(scores[label].evaluations)}{' draws' if row['draws'] else ''}"
        yield f"| {' | '.join((label, number, first, *cells, *others, distinct, exchange(row['probe'])))} |"
    for name, metrics in record["floors"].items():
        floors = [f"{metrics[metric]:.3f}" if metrics.get(metric) is not None else "" for metric in COLUMNS.values()]
        yield f"| {' | '.join((f'*{name}*', '', floors[0], '', '', '', *floors[1:], '', ''))} |"
    commits = sorted({commit for row in record["rows"] for commit in row.get("commit", []) if commit})
    made = f", commit {', '.join(commits)}" if commits else ""
    yield ""
    yield f"{record['studies']} test studies{made}; {record['runs']['finished']} of {record['runs']['planned']} runs"
    yield ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("outs", type=Path, nargs="+", metavar="OUT")
    options = parser.parse_args()
    scoring = Scoring.of(Dataset.open(options.data))
    for out in options.outs:
        print("\n".join(table_lines(out, scoring)), flush=True)


if __name__ == "__main__":
    main()
