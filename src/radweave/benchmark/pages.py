"""The pages of a benchmark: one to begin with, one per set, samples, pictures, and all figures as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from radweave.base.errors import InputError
from radweave.base.json_files import read_json, write_json
from radweave.base.storage import write_aside, write_text
from radweave.base.study import RESEARCH_ONLY
from radweave.benchmark.cells import duration
from radweave.benchmark.choice import choice_table
from radweave.benchmark.plots import cost_plot, score_plot
from radweave.benchmark.results import SetResults, trained_rows
from radweave.benchmark.samples import sample_page, sample_picture
from radweave.benchmark.tables import (
    budget_tables,
    comparison_tables,
    cost_table,
    evidence_table,
    honesty_table,
    paper_table,
    provenance,
    runs_table,
    score_tables,
    short_table,
    trust_table,
)
from radweave.evaluation.tables.formats import TextTable, latex_tables, markdown_tables

FORMAT = "radweave-bench"
FORMAT_VERSION = 2
STEM = "benchmark"


def write_pages(sets: Mapping[str, SetResults], folder: Path, facts: Mapping[str, Any]) -> Path:
    """Write all pages; return the one to begin with. What a set without a finished run lacks is left out.

    Sets that another call has measured stay on the first page and in the JSON, each with its own machine and time.
    Texts and images of a study go onto a page only where the data are synthetic; for other data the samples are
    written beside the runs.
    """
    shown = {name: results for name, results in sets.items() if results.full}
    made = {name: _set_record(results, facts) for name, results in shown.items()}
    for name, results in shown.items():
        _write_set(name, results, made[name], folder)
    records = _earlier(folder) | made
    lines = [
        "# Benchmark",
        "",
        "Made by `radweave bench`; docs/benchmark.md says how to run it and how to read it. "
        "Every method in its own preset on the same studies, scored by one program beside floors that do not look.",
        "",
        RESEARCH_ONLY,
        "",
    ]
    for name, record in records.items():
        lines += [_summary(record), f"![seeds and floors]({STEM}_{name}_scores.png)\n"]
        lines.append(f"[All tables of this set]({STEM}_{name}.md)" + _samples_link(name, record) + "\n")
    for name, results in sets.items():
        if name not in records:
            missing = TextTable(results.suite.kind.title, notes=("no run is finished", *provenance(results)))
            lines.append(markdown_tables([missing]))
    lines += [record["page"]["choice"] for record in records.values()]
    page = folder / f"{STEM}.md"
    write_text(page, "\n".join(lines).rstrip() + "\n")
    head = {"format": FORMAT, "version": FORMAT_VERSION, "notice": RESEARCH_ONLY}
    write_json(folder / f"{STEM}.json", {**head, "sets": records})
    return page


def _earlier(folder: Path) -> dict[str, Any]:
    """The sets that are on the pages already, by name."""
    path = folder / f"{STEM}.json"
    record = read_json(path) if path.is_file() else {}
    current = record.get("format") == FORMAT and record.get("version") == FORMAT_VERSION
    return dict(record["sets"]) if current else {}


def _summary(record: Mapping[str, Any]) -> str:
    """The short table of a set, and where and how long it was made."""
    made = record["made"]
    return (
        f"{record['page']['short']}\nMachine: {made['machine']}. The command ran {duration(made['wall_s'])} in "
        f"{made['sessions']} session{'s' * (made['sessions'] > 1)}, for all its sets; training and writing "
        f"of this set's runs, one after the other and those taken over too: {duration(made['runs_s'])}.\n"
    )


def _samples_link(name: str, record: Mapping[str, Any]) -> str:
    return f", [sample reports]({STEM}_{name}_samples.md)" if record["page"]["samples"] else ""


def is_synthetic(results: SetResults) -> bool:
    """Whether texts and images of the set may be shown anywhere."""
    return results.dataset.card.name.startswith("phantom")


def set_tables(results: SetResults) -> list[TextTable]:
    """All tables of a set, in the order of its page."""
    paper = paper_table(results)
    return [
        short_table(results),
        *comparison_tables(results),
        *score_tables(results),
        honesty_table(results),
        evidence_table(results),
        trust_table(results),
        cost_table(results),
        *budget_tables(results),
        *([paper] if paper else []),
        runs_table(results),
    ]


def draw_again(folder: Path) -> list[Path]:
    """Draw the pictures of scores and costs of a folder of pages anew, from its ``benchmark.json`` alone.

    Raises:
        InputError: if there is no such record, or one of another version.
    """
    records = _earlier(folder)
    if not records:
        raise InputError(f"holds no {STEM}.json of version {FORMAT_VERSION}", file=folder)
    return [path for name, record in records.items() for path in _draw(name, record, folder)]


def _draw(name: str, record: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the pictures of a set; the second one only where what training cost is known."""
    drawn = [folder / f"{STEM}_{name}_scores.png"]
    _write_bytes(drawn[0], score_plot(record))
    costs = cost_plot(record)
    if costs is not None:
        drawn.append(folder / f"{STEM}_{name}_cost.png")
        _write_bytes(drawn[1], costs)
    return drawn


def _write_set(name: str, results: SetResults, record: Mapping[str, Any], folder: Path) -> None:
    tables = set_tables(results)
    titles = ("seeds and floors", "quality and cost")
    drawn = _draw(name, record, folder)
    pictures = [f"![{title}]({path.name})" for title, path in zip(titles, drawn, strict=False)]
    text = [f"# {results.suite.kind.title}: all tables", "", RESEARCH_ONLY, "", *pictures, ""]
    write_text(folder / f"{STEM}_{name}.md", "\n".join(text) + "\n" + markdown_tables(tables))
    write_text(results.suite.request.out / "bench.tex", latex_tables(tables))
    place = folder if is_synthetic(results) else results.suite.request.out
    picture = sample_picture(results) if is_synthetic(results) else None
    if picture is not None:
        _write_bytes(place / f"{STEM}_{name}_samples.png", picture)
    page = sample_page(results, f"{STEM}_{name}_samples.png" if picture else None)
    write_text(place / f"{STEM}_{name}_samples.md", page)


def _write_bytes(path: Path, content: bytes) -> None:
    with write_aside(path) as partial:
        partial.write_bytes(content)


def _set_record(results: SetResults, facts: Mapping[str, Any]) -> dict[str, Any]:
    systems = {
        protocol: {
            name: {
                metric: {"values": list(values), "mean": system.mean(metric), "std": system.std(metric)}
                | {"interval": system.interval(metric)}
                for metric, values in system.values.items()
            }
            for name, system in found.items()
        }
        for protocol, found in (
            ("full", {**results.full, **results.floors}),
            (results.suite.kind.compatible, {**results.compatible, **results.compatible_floors}),
        )
    }
    return {
        "title": results.suite.kind.title,
        "made": {**facts, "runs_s": sum(cost.seconds for cost in results.costs.values())},
        "page": {
            "short": markdown_tables([short_table(results)]),
            "choice": markdown_tables([choice_table(results)]),
            "samples": is_synthetic(results),
        },
        "dataset": results.record["dataset"],
        "studies": results.record["studies"],
        "reference": results.reference,
        "runs": results.record["runs"],
        "unable": dict(results.suite.unable),
        "scores": systems,
        "to_reference": [
            {"method": method, "metric": metric, **asdict(tested)}
            for (method, metric), tested in results.to_reference.items()
        ],
        "to_joining": [
            {"method": method, "metric": metric, **asdict(tested)}
            for (method, metric), tested in results.to_joining.items()
        ],
        "to_floors": [
            {"floor": floor, "method": method, "metric": metric, **asdict(tested)}
            for floor, contrasts in results.to_floors.items()
            for (method, metric), tested in contrasts.items()
        ],
        "evidence": {
            method: {**found.figures, "recalled_kind": found.recalled_kind, "kinds": list(found.kinds)}
            for method, found in results.evidence.items()
        },
        "trained": trained_rows(results.suite),
        "costs": {method: asdict(cost) for method, cost in results.costs.items()},
        "failures": {
            row["label"]: {"refused": row["refused"], "failed": row["seeds"]["failed"]}
            for row in results.record["rows"]
            if row["refused"] or row["seeds"]["failed"]
        },
    }
