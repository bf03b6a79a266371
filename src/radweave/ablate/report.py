"""The table of an ablation: means over seeds, tests against the reference row, and the paper's numbers beside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from radweave.ablate.one_run import Task
from radweave.ablate.plan import Plan, PlannedRow
from radweave.base.study import RESEARCH_ONLY
from radweave.contract.tables import METRICS
from radweave.evaluation.seeds import DDOF, TEST, compare_seeds
from radweave.evaluation.tables.formats import DASH, TextTable, number

FORMAT = "radweave-ablation"
FORMAT_VERSION = 1
Scores = Mapping[str, Any]


def ablation_record(
    plan: Plan, scores: Mapping[tuple[str, int], Scores], failures: Mapping[tuple[str, int], str]
) -> dict[str, Any]:
    """All of a table as JSON, from the scores and failures by (row label, seed); runs that are neither are to come."""
    runs = {row.row.label: [scores[key] for key in _keys(row) if key in scores] for row in plan.rows}
    reference = runs.get(plan.table.reference, [])
    first = next(iter(reference or [run for group in runs.values() for run in group]), None)
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "notice": RESEARCH_ONLY,
        "method": plan.request.method,
        "table": plan.request.table,
        "title": plan.table.title,
        "note": plan.table.note,
        "reference": plan.table.reference,
        "metrics": list(plan.table.metrics),
        "preset": plan.request.preset,
        "overrides": list(plan.request.overrides),
        "dataset": {
            "name": plan.dataset.card.name,
            "modality": plan.dataset.card.modality,
            "fingerprint": plan.dataset.fingerprint(),
        },
        "scoring": None if first is None else first["scoring"],
        "studies": None if first is None else first["studies"],
        "test": TEST,
        "std_ddof": DDOF,
        "runs": {"planned": len(plan.tasks), "finished": len(scores), "failed": len(failures)},
        "floors": {} if first is None else first["floors"],
        "reference_honesty": {} if first is None else first["reference_honesty"],
        "rows": [_row(row, runs[row.row.label], reference, failures, plan) for row in plan.rows],
        "versions": {} if first is None else first["versions"],
    }


def _keys(row: PlannedRow) -> list[tuple[str, int]]:
    return [(row.row.label, task.seed) for task in row.tasks]


def _row(
    row: PlannedRow,
    runs: Sequence[Scores],
    reference: Sequence[Scores],
    failures: Mapping[tuple[str, int], str],
    plan: Plan,
) -> dict[str, Any]:
    reference_label, out = plan.table.reference, plan.request.out.resolve()
    tested = {}
    # Draws of one run and trainings vary in different ways, and other studies are others: no difference is one of rows.
    base = next(other.row for other in plan.rows if other.row.label == reference_label) if reference else None
    elsewhere = any(task.test_dataset for task in row.tasks)
    alike = base is not None and bool(base.draws) == bool(row.row.draws) and not elsewhere
    if alike and row.row.label != reference_label and len(runs) > 1 and len(reference) > 1:
        tested = {item.metric: item for item in compare_seeds(*(_columns(group) for group in (reference, runs)))}
    metrics = {}
    for name in METRICS:
        values = [run["metrics"].get(name) for run in runs]
        defined = [value for value in values if value is not None]
        item = tested.get(name)
        metrics[name] = {
            "values": values,
            "mean": float(np.mean(defined)) if defined else None,
            "std": float(np.std(defined, ddof=DDOF)) if len(defined) > 1 else None,
            "difference": None
            if elsewhere or row.row.label == reference_label
            else _difference(defined, reference, name),
            "p": item.p if item else None,
            "p_holm": item.p_holm if item else None,
            **({"note": item.note} if item and item.note else {}),
        }
    failed = [
        {"seed": seed, "reason": failures[label, seed]} for label, seed in _keys(row) if (label, seed) in failures
    ]
    return {
        "label": row.row.label,
        "method": row.method,
        "overrides": list(row.own),
        "config": row.config,
        "folders": [_place(task, out) for task in row.tasks],
        "seeds": {"planned": len(row.tasks), "finished": [run["seed"] for run in runs], "failed": failed},
        "run_of": row.row.run_of,
        "at_test": list(row.tasks[0].at_test) if row.tasks else [],
        "draws": row.row.draws,
        "refused": row.refused,
        "skipped": row.skipped,
        "metrics": metrics,
        "honesty": _honesty(runs),
        "train_s": [run["train_s"] for run in runs],
        "resumed": sum(run["resumed"] for run in runs),
        "generate_s": [run["generate_s"] for run in runs],
        "threads": [run.get("threads") for run in runs],
        "code": [run["code"] for run in runs],
        "left_out": [run["left_out"] for run in runs],
        "training_notes": list(dict.fromkeys(note for run in runs for note in run["notes"])),
        "paper": {name: dict(values) for name, values in row.row.paper.items()},
    }


def _place(task: Task, out: Path) -> str:
    """The run folder, relative to the output folder where it lies in it."""
    return task.path.relative_to(out).as_posix() if task.path.is_relative_to(out) else task.folder


def _columns(runs: Sequence[Scores]) -> list[dict[str, float | None]]:
    return [{name: run["metrics"].get(name) for name in METRICS} for run in runs]


def _difference(values: Sequence[float], reference: Sequence[Scores], name: str) -> float | None:
    theirs = [value for run in reference if (value := run["metrics"].get(name)) is not None]
    return float(np.mean(values) - np.mean(theirs)) if values and theirs else None


def _honesty(runs: Sequence[Scores]) -> dict[str, float | None]:
    """Mean over seeds of each honesty row."""
    means: dict[str, float | None] = {}
    for name in dict.fromkeys(name for run in runs for name in run["honesty"]):
        values = [run["honesty"][name] for run in runs if run["honesty"].get(name) is not None]
        means[name] = float(np.mean(values)) if values else None
    return means


def ablation_tables(record: Mapping[str, Any]) -> list[TextTable]:
    """The tables that the record is shown as."""
    shown = [
        name for name in record["metrics"] if any(row["metrics"][name]["mean"] is not None for row in record["rows"])
    ]
    tables = [_scores_table(record, shown)]
    if any(row["metrics"][name]["difference"] is not None for row in record["rows"] for name in shown):
        tables.append(_difference_table(record, shown))
    if any(row["paper"] for row in record["rows"]):
        tables.append(_paper_table(record))
    return [*tables, _runs_table(record)]


def _scores_table(record: Mapping[str, Any], shown: Sequence[str]) -> TextTable:
    rows = []
    for row in record["rows"]:
        if row["skipped"]:
            continue
        cells = (_mean_std(row["metrics"][name]) for name in shown)
        distinct = number(row["honesty"].get("distinct_reports_share"), 3)
        number_of_runs = f"{len(row['seeds']['finished'])}{' draws' if row['draws'] else ''}"
        rows.append((row["label"], number_of_runs, *cells, distinct))
    for name, metrics in record["floors"].items():
        rows.append((f"floor: {name}", DASH, *(number(metrics.get(metric)) for metric in shown), DASH))
    rows.append(
        (
            "references",
            DASH,
            *(DASH for _ in shown),
            number(record["reference_honesty"].get("distinct_reports_share"), 3),
        )
    )
    return TextTable(
        record["title"], ("row", "seeds", *shown, "distinct reports"), tuple(rows), _score_notes(record, shown)
    )


def _score_notes(record: Mapping[str, Any], shown: Sequence[str]) -> tuple[str, ...]:
    dataset, runs = record["dataset"], record["runs"]
    notes = [
        f"{record['method']}, preset {record['preset']}; {dataset['name']}, test split, {record['studies']} studies;"
        f" data {dataset['fingerprint'][:12]}",
        "mean and standard deviation (n - 1) over training seeds; CE: uncertain is negative, No Finding left out",
    ]
    if record["scoring"]:
        scoring = record["scoring"]
        notes.append(f"protocol {scoring['name']} {scoring['hash'][:8]}; labels: {scoring['labeler']}")
    missing = [name for name in record["metrics"] if name not in shown]
    if missing and runs["finished"]:
        notes.append(f"not computed: {', '.join(missing)}")
    if runs["finished"] < runs["planned"]:
        to_come = runs["planned"] - runs["finished"] - runs["failed"]
        notes.append(
            f"NOT COMPLETE: {runs['finished']} of {runs['planned']} runs, {runs['failed']} failed, {to_come} to come"
        )
    states = {code for row in record["rows"] for code in row["code"]}
    if len(states) > 1:
        notes.append(f"MIND: the runs were trained by {len(states)} different states of the source code")
    if record["note"]:
        notes.append(record["note"])
    return tuple(notes)


def _mean_std(metric: Mapping[str, Any]) -> str:
    if metric["mean"] is None:
        return DASH
    return f"{metric['mean']:.4f}" + ("" if metric["std"] is None else f" ± {metric['std']:.4f}")


def _difference_table(record: Mapping[str, Any], shown: Sequence[str]) -> TextTable:
    rows = []
    notes: dict[str, None] = {f"{record['test']} over seeds; it says nothing about other studies": None}
    for row in record["rows"]:
        if row["label"] == record["reference"] or row["skipped"]:
            continue
        cells = []
        for name in shown:
            metric = row["metrics"][name]
            p = "" if metric["p"] is None else f" (p {p_value(metric['p'])})"
            cells.append(DASH if metric["difference"] is None else f"{metric['difference']:+.4f}{p}")
            if metric.get("note"):
                notes[f"{row['label']}, {name}: {metric['note']}"] = None
        rows.append((row["label"], *cells))
    return TextTable(f"Difference to '{record['reference']}'", ("row", *shown), tuple(rows), tuple(notes))


def p_value(value: float) -> str:
    return f"{value:.1e}" if value < 0.001 else f"{value:.3f}"


def _paper_table(record: Mapping[str, Any]) -> TextTable:
    """One line per row and metric that the paper prints, each with its difference to the reference row."""
    sources = list(dict.fromkeys(name for row in record["rows"] for name in row["paper"]))
    papers: dict[str, Any] = {row["label"]: row["paper"] for row in record["rows"]}
    reference = papers.get(record["reference"], {})
    rows = []
    for row in record["rows"]:
        for metric in [name for name in METRICS if any(name in values for values in row["paper"].values())]:
            ours = row["metrics"][metric]
            cells = [_mean_std(ours), _signed(ours["difference"])]
            for source in sources:
                value = row["paper"].get(source, {}).get(metric)
                base = reference.get(source, {}).get(metric)
                other = row["label"] != record["reference"] and value is not None and base is not None
                cells += [number(value), _signed(value - base if other else None)]
            rows.append((f"{row['label']}: {metric}", *cells))
    head = (
        "row: metric",
        "ours",
        "to reference",
        *(text for name in sources for text in (f"paper, {name}", "to reference")),
    )
    note = "the paper's numbers are of other data and other sizes: compare directions, not values"
    return TextTable("The paper's numbers beside", head, tuple(rows), (note,))


def _signed(value: float | None) -> str:
    return DASH if value is None else f"{value:+.4f}"


def _runs_table(record: Mapping[str, Any]) -> TextTable:
    rows, notes = [], []
    for row in record["rows"]:
        if row["skipped"]:
            notes.append(f"{row['label']}: {row['skipped']}")
            continue
        whole = [value for value in row["train_s"] if value is not None]
        train = f"{np.mean(whole):.0f} s" if whole else DASH
        seeds = f"{len(row['seeds']['finished'])}/{row['seeds']['planned']}"
        write = f"{np.mean(row['generate_s']):.0f} s" if row["generate_s"] else DASH
        rows.append((row["label"], row["method"], seeds, row["config"] or DASH, train, write, str(row["resumed"])))
        if row["refused"]:
            notes.append(f"{row['label']}: {row['refused']}")
        notes += [f"{row['label']}, seed {failed['seed']}: {failed['reason']}" for failed in row["seeds"]["failed"]]
        if row["run_of"] is not None:
            settings = "" if row["draws"] else f" with {' '.join(row['at_test'])}"
            drawn = f", {row['draws']} draws of references by the run of seed 0" if row["draws"] else ""
            notes.append(f"{row['label']}: nothing is trained, '{row['run_of']}' reports again{settings}{drawn}")
        elif row["overrides"]:
            notes.append(f"{row['label']}: {' '.join(row['overrides'])}")
    if record["overrides"]:
        notes.append(f"all rows: {' '.join(record['overrides'])}")
    notes.append(
        "wall time of a run's last training: a resumed one counts from where it went on, and stages that rows share are"
        " trained once"
    )
    head = ("row", "method", "seeds", "config", "training", "writing", "resumed")
    return TextTable("Runs", head, tuple(rows), tuple(notes))
