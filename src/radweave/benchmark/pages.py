"""The pages of a benchmark: one to begin with, one per set, samples, pictures, and all figures as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from radweave.benchmark.cells import duration
from radweave.benchmark.choice import choice_table
from radweave.benchmark.plots import cost_plot, score_plot
from radweave.benchmark.results import SetResults
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
)
from radweave.evaluation.tables import TextTable, latex_tables, markdown_tables
from radweave.storage import write_aside, write_json, write_text
from radweave.types import RESEARCH_ONLY

FORMAT = "radweave-bench"
FORMAT_VERSION = 1
STEM = "benchmark"


def write_pages(sets: Mapping[str, SetResults], folder: Path, facts: Mapping[str, Any]) -> Path:
    """Write all pages; return the one to begin with. What a set without a finished run lacks is left out.

    Texts and images of a study go onto a page only where the data are synthetic; for other data the samples are
    written beside the runs.
    """
    shown = {name: results for name, results in sets.items() if results.full}
    for name, results in shown.items():
        _write_set(name, results, folder)
    wall = sum(cost.seconds for results in shown.values() for cost in results.costs.values())
    lines = [
        "# Benchmark",
        "",
        "Made by `radweave bench`; docs/benchmark.md says how to run it and how to read it. "
        "Every method in its own preset on the same studies, scored by one program beside floors that do not look.",
        "",
        RESEARCH_ONLY,
        "",
        f"Machine: {facts['machine']}. The command ran {duration(facts['wall_s'])} in {facts['sessions']} "
        f"session{'s' * (facts['sessions'] > 1)}; training and writing of all runs, one after the other and those "
        f"taken over too: {duration(wall)}.",
        "",
    ]
    for name, results in sets.items():
        if name not in shown:
            missing = TextTable(results.suite.kind.title, notes=("no run is finished", *provenance(results)))
            lines.append(markdown_tables([missing]))
            continue
        lines.append(markdown_tables([short_table(results)]))
        lines.append(f"![seeds and floors]({STEM}_{name}_scores.png)\n")
        lines.append(f"[All tables of this set]({STEM}_{name}.md)" + _samples_link(name, results) + "\n")
    lines += [markdown_tables([choice_table(results)]) for results in shown.values()]
    page = folder / f"{STEM}.md"
    write_text(page, "\n".join(lines).rstrip() + "\n")
    write_json(folder / f"{STEM}.json", _record(shown, facts))
    return page


def _samples_link(name: str, results: SetResults) -> str:
    return f", [sample reports]({STEM}_{name}_samples.md)" if is_synthetic(results) else ""


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
        cost_table(results),
        *budget_tables(results),
        *([paper] if paper else []),
        runs_table(results),
    ]


def _write_set(name: str, results: SetResults, folder: Path) -> None:
    tables = set_tables(results)
    scores = f"{STEM}_{name}_scores.png"
    _write_bytes(folder / scores, score_plot(results))
    costs = cost_plot(results)
    pictures = [f"![seeds and floors]({scores})"]
    if costs is not None:
        _write_bytes(folder / f"{STEM}_{name}_cost.png", costs)
        pictures.append(f"![quality and cost]({STEM}_{name}_cost.png)")
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


def _record(sets: Mapping[str, SetResults], facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "notice": RESEARCH_ONLY,
        **facts,
        "sets": {name: _set_record(results) for name, results in sets.items()},
    }


def _set_record(results: SetResults) -> dict[str, Any]:
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
        "to_nearest": [
            {"method": method, "metric": metric, **asdict(tested)}
            for (method, metric), tested in results.to_nearest.items()
        ],
        "evidence": {
            method: {**found.figures, "recalled_kind": found.recalled_kind, "kinds": list(found.kinds)}
            for method, found in results.evidence.items()
        },
        "costs": {method: asdict(cost) for method, cost in results.costs.items()},
        "failures": {
            row["label"]: {"refused": row["refused"], "failed": row["seeds"]["failed"]}
            for row in results.record["rows"]
            if row["refused"] or row["seeds"]["failed"]
        },
    }
