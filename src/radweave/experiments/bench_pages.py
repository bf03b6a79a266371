"""The pages of a benchmark: a summary, a page per set, samples, pictures, and all figures as JSON."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from radweave.core.errors import InputError
from radweave.core.escaping import escaped
from radweave.core.figures import BLUE, GREY, MARKERS, OTHERS, new_figure, png
from radweave.core.json_files import read_json, read_jsonl, write_json
from radweave.core.storage import write_aside, write_text
from radweave.core.study import RESEARCH_ONLY, Study
from radweave.data.dataset import Dataset, is_synthetic
from radweave.experiments.bench_results import SetResults, SystemScores, choice_table, duration, runs_behind
from radweave.experiments.bench_tables import (
    budget_tables,
    comparison_tables,
    cost_table,
    evidence_table,
    honesty_table,
    paper_table,
    prior_tables,
    probe_table,
    provenance,
    runs_table,
    score_tables,
    short_comparison,
    short_table,
    trust_table,
)
from radweave.experiments.bench_terms import UNEQUAL
from radweave.experiments.one_run import PROBE
from radweave.labels import LABELER_OF, get_labeler
from radweave.metrics.catalogue import METRICS
from radweave.metrics.evidence import stated
from radweave.metrics.tables import TextTable, latex_tables, markdown_tables

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Sample studies with the draft and the evidence of every method.


WITH_FINDINGS, WITHOUT = 3, 1
TOP_CLASSES = 3
MOST_RECALLED = 2
_TEXT, _RECALLED_TEXT = 900, 240
_SIDE_PX = 160


def sample_page(results: SetResults, picture: str | None) -> str:
    """Markdown: the studies with reference, nearest report, and per method draft, top classes and recalled texts.

    Drafts of other programs follow. The studies are chosen by the references alone: with findings, spread evenly over
    the test split, and one without.
    """
    drafts = {method: _predictions(folders[0]) for method, folders in results.folders.items()}
    chosen = chosen_studies(results)
    seeds = ", ".join(f"{method} {folders[0].name}" for method, folders in results.folders.items())
    lines = [
        f"# Sample reports: {results.suite.kind.title}",
        "",
        "Research software, not a medical device. Chosen by the references alone, before any draft was looked at:"
        f" {WITH_FINDINGS} test studies with findings, spread evenly, and {WITHOUT} without. First seed of each:"
        f" {seeds}; data {results.record['dataset']['fingerprint'][:12]}.",
        "",
        *([f"![the studies' first images]({picture})", ""] if picture else []),
    ]
    for number, study_id in enumerate(chosen, start=1):
        rows = {method: predictions[study_id] for method, predictions in drafts.items() if study_id in predictions}
        lines += _study(number, study_id, rows)
        for name, files in results.suite.drafts.items():
            text = _plain(files[0].drafts[study_id]) or "(empty)"
            lines += [f"**{escaped(name)}.** {text}", "", "- drafted by another program", ""]
    return "\n".join(lines)


def chosen_studies(results: SetResults) -> list[str]:
    """Ids of the sample studies."""
    folders = next(iter(results.folders.values()))
    rows = [row for row in _predictions(folders[0]).values() if row["ref"]]
    findings = stated([row["ref"] for row in rows], get_labeler(LABELER_OF[results.dataset.card.modality]))
    ids = [row["study_id"] for row in rows]
    some = [study_id for study_id, names in zip(ids, findings, strict=True) if names]
    none = [study_id for study_id, names in zip(ids, findings, strict=True) if not names]
    return _spread(some, WITH_FINDINGS) + _spread(none, WITHOUT)


def _spread(ids: Sequence[str], number: int) -> list[str]:
    return (
        [ids[(2 * place + 1) * len(ids) // (2 * number)] for place in range(number)]
        if len(ids) >= number
        else list(ids)
    )


def _predictions(folder: Path) -> dict[str, dict[str, Any]]:
    return {row["study_id"]: row for _, row in read_jsonl(folder / "predictions.jsonl")}


def _study(number: int, study_id: str, rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    some = next(iter(rows.values()))
    lines = [f"## {number}. Study {study_id}", "", f"**Reference.** {_plain(some['ref'])}", ""]
    nearest = some["floors"].get("nearest_neighbour")
    if nearest:
        lines += [f"**Report of the nearest training image.** {_plain(nearest)}", ""]
    for method, row in rows.items():
        lines += [f"**{method}.** {_plain(row['hyp']) or '(empty)'}", ""]
        lines += [f"- {text}" for text in _evidence(row["evidence"])] or ["- no evidence beyond word confidence"]
        lines.append("")
    return lines


def _evidence(evidence: Mapping[str, Any]) -> list[str]:
    lines = []
    values = evidence.get("class_probabilities") or {}
    if values:
        top = sorted(values.items(), key=lambda item: -item[1])[:TOP_CLASSES]
        lines.append("heads: " + ", ".join(f"{name} {value:.2f}" for name, value in top))
    recalled = list(evidence.get("recalled") or ())
    regions = [case for case in recalled if case["kind"] == "region"]
    for case in [case for case in recalled if case["kind"] != "region"][:MOST_RECALLED]:
        target = f" for {case['for']}" if case.get("for") else ""
        text = f": {_plain(case['text'], _RECALLED_TEXT)}" if case.get("text") else ""
        facts = ", ".join([*map(_score, case.get("scores", {}).items()), f"study {case['study_id']}"])
        lines.append(f"recalled {case['kind']}{target} ({facts}){text}")
    if regions:
        lines.append(f"recalled regions: {len(regions)}")
    maps = evidence.get("attention_maps") or {}
    if maps:
        lines.append(f"attention maps: {len(maps)} classes")
    return lines


def _score(item: tuple[str, Any]) -> str:
    name, value = item
    return f"{name} {value:.2f}" if isinstance(value, float) else f"{name} {value}"


def _plain(text: str, most: int = _TEXT) -> str:
    """One line that Markdown shows as it is."""
    line = " ".join(text.split())
    line = line if len(line) <= most else line[:most].rsplit(" ", 1)[0] + " ..."
    return line.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def sample_picture(results: SetResults) -> bytes | None:
    """The first radiograph of each sample study side by side, as a PNG; None for scans."""
    if results.dataset.card.modality != "xray":
        return None
    studies = {study.study_id: study for study in results.dataset.studies("test")}
    tiles = [_tile(results.dataset, studies[study_id]) for study_id in chosen_studies(results)]
    buffer = io.BytesIO()
    Image.fromarray(np.concatenate(tiles, axis=1)).save(buffer, format="PNG")
    return buffer.getvalue()


def _tile(dataset: Dataset, study: Study) -> np.ndarray[Any, Any]:
    tile = Image.new("L", (_SIDE_PX, _SIDE_PX))
    with Image.open(dataset.image_path(study.images[0].path)) as image:
        grey = image.convert("L")
        grey.thumbnail((_SIDE_PX, _SIDE_PX))
        tile.paste(grey, ((_SIDE_PX - grey.width) // 2, (_SIDE_PX - grey.height) // 2))
    return np.asarray(tile)


# Plots from the record of a set (``benchmark.json``): seeds and floors, and quality against cost. The record holds all
# that is drawn, so that plots need no runs. Floors are rows like the methods. Needs the extra ``plots``.


PANELS = ("CE_F1", "CE_F1_macro", "CIDEr", "BLEU_4")
_NOTICE = "Research software, not a medical device."
_LABEL_CHARS = 40
Scores = Mapping[str, Mapping[str, Any]]
"""By metric: ``values`` of the seeds, their ``mean``, and the ``interval`` of that over studies."""


def score_plot(record: Mapping[str, Any]) -> bytes:
    """Four panels: a row per method and per floor, a dot per seed, a bar for the interval over studies (PNG)."""
    methods, floors = _systems(record)
    rows = [*methods, *floors]
    figure = new_figure(10, 1.8 + 0.56 * len(rows))
    panels = figure.subplots(2, 2, sharey=True)
    for panel, metric in zip(panels.flat, PANELS, strict=True):
        _score_panel(panel, methods, floors, metric)
        panel.set_xlabel(METRICS[metric].axis)
    labels = [*methods, *(f"floor: {name}" for name in floors)]
    panels.flat[0].set_yticks(range(len(rows)), [fill(label, _LABEL_CHARS) for label in labels])
    for panel in panels[:, 0]:
        panel.tick_params(axis="y", labelsize=7.5)
    panels.flat[0].invert_yaxis()
    figure.supxlabel(
        f"{_source(record)}. Blue dots: training seeds; black ticks: their means; other marks: floors; bars: 95 % over"
        f" test studies.\nDashed line: the best floor of a panel. {_NOTICE}",
        size=7,
    )
    return png(figure)


def _score_panel(panel: Axes, methods: Mapping[str, Scores], floors: Mapping[str, Scores], metric: str) -> None:
    best = _best(floors, metric)
    if best is not None:
        panel.axvline(best[1], color="black", linestyle="--", linewidth=0.8, zorder=0)
    if floors:
        panel.axhspan(len(methods) - 0.5, len(methods) + len(floors) - 0.5, color=GREY, alpha=0.1, linewidth=0)
    for row, scores in enumerate([*methods.values(), *floors.values()]):
        score = scores.get(metric)
        if score is None or score["mean"] is None:
            continue
        colour, marker = (BLUE, "o") if row < len(methods) else _look(row - len(methods))
        if score["interval"] is not None:
            panel.hlines(row, *score["interval"], color=GREY if row < len(methods) else colour, linewidth=3)
        values = [value for value in score["values"] if value is not None]
        panel.plot(
            values,
            [row] * len(values),
            marker,
            color=colour,
            markeredgecolor="white",
            markersize=7,
            clip_on=False,
            zorder=3,
        )
        if row < len(methods):
            panel.vlines(score["mean"], row - 0.3, row + 0.3, color="black")
    panel.grid(axis="x", alpha=0.3)


def cost_plot(record: Mapping[str, Any]) -> bytes | None:
    """Findings F1 against the cost of training (PNG); None where the methods have no measure of it in common."""
    methods, floors = _systems(record)
    trained = {name: scores["CE_F1"] for name, scores in methods.items() if name in record["evidence"]}
    known = {name: score for name, score in trained.items() if score["mean"] is not None}
    cost = _common_cost(record, list(known))
    if cost is None:
        return None
    title, minutes = cost
    figure = new_figure(8, 4.5)
    panel = figure.subplots()
    best = _best(floors, "CE_F1")
    if best is not None:
        name, value, interval = best
        panel.axhline(value, color=OTHERS[0], linestyle="--")
        if interval is not None:
            panel.axhspan(*interval, color=OTHERS[0], alpha=0.12, linewidth=0)
        panel.annotate(f"best floor: {name}", (0.01, value), xycoords=("axes fraction", "data"), xytext=(0, 3),
                       textcoords="offset points", size=8)  # fmt: skip
    for name, score in known.items():
        if score["interval"] is not None:
            panel.vlines(minutes[name], *score["interval"], color=GREY, linewidth=2)
        panel.plot(minutes[name], score["mean"], "o", color=BLUE)
        panel.annotate(name, (minutes[name], score["mean"]), xytext=(7, 4), textcoords="offset points", size=9)
    panel.set_xlabel(f"{title}, one seed (minutes)")
    panel.set_ylabel(METRICS["CE_F1"].axis)
    panel.margins(x=0.25)
    panel.grid(alpha=0.3)
    figure.supxlabel(f"{_source(record)}: means over seeds; bars and band: 95 % over test studies. {_NOTICE}", size=7)
    return png(figure)


def _systems(record: Mapping[str, Any]) -> tuple[dict[str, Scores], dict[str, Scores]]:
    """The methods and the floors under the full protocol: only a method's drafts have evidence, or come as a file."""
    scored: Mapping[str, Scores] = record["scores"]["full"]
    rows = {*record["evidence"], *record.get("drafts", {})}
    methods = {name: scores for name, scores in scored.items() if name in rows}
    return methods, {name: scores for name, scores in scored.items() if name not in methods}


def _best(floors: Mapping[str, Scores], metric: str) -> tuple[str, float, Sequence[float] | None] | None:
    """Name, mean and interval of the floor that scores highest."""
    known = {name: scores[metric] for name, scores in floors.items() if scores.get(metric, {}).get("mean") is not None}
    if not known:
        return None
    name = max(known, key=lambda floor: METRICS[metric].rank(float(known[floor]["mean"])))
    return name, float(known[name]["mean"]), known[name]["interval"]


def _common_cost(record: Mapping[str, Any], methods: Sequence[str]) -> tuple[str, dict[str, float]] | None:
    """The first measure of training time that all methods have, in minutes."""
    behind = record.get("runs_behind", {})
    costs = {method: [record["costs"].get(name, {}) for name in behind.get(method, ())] for method in methods}
    measures = {"CPU time of training": "cpu_s", "time of training": "train_s", "time of the updates": "updates_s"}
    for title, key in measures.items():
        known = {
            method: sum(cost[key] for cost in each) / 60
            for method, each in costs.items()
            if each and all(cost.get(key) is not None for cost in each)
        }
        if len(known) == len(methods) and len(known) > 1:
            return title, known
    return None


def _source(record: Mapping[str, Any]) -> str:
    return f"{record['title']}, data {record['dataset']['fingerprint'][:12]}"


def _look(place: int) -> tuple[str, str]:
    """Colour and mark of a floor: no two of the first twenty are alike."""
    return OTHERS[place % len(OTHERS)], MARKERS[1:][place % (len(MARKERS) - 1)]


FORMAT = "radweave-bench"
FORMAT_VERSION = 3
STEM = "benchmark"


def write_pages(sets: Mapping[str, SetResults], folder: Path, facts: Mapping[str, Any]) -> Path:
    """Write all pages and the JSON; return the summary page. A set without a finished run gets no page of its own.

    Sets of an earlier call stay on the summary and in the JSON, each with its own machine and time. Texts and images of
    a study go onto a page here only where the data are synthetic; for other data the samples are written beside the
    runs.
    """
    shown = {name: results for name, results in sets.items() if results.full}
    made = {name: _set_record(results, facts) for name, results in shown.items()}
    for name, results in shown.items():
        _write_set(name, results, made[name], folder)
    records = _earlier(folder) | made
    missing = [
        markdown_tables([TextTable(results.suite.kind.title, notes=("no run is finished", *provenance(results)))])
        for name, results in sets.items()
        if name not in records
    ]
    page = _write_summary(records, folder, missing, _links)
    head = {"format": FORMAT, "version": FORMAT_VERSION, "notice": RESEARCH_ONLY}
    write_json(folder / f"{STEM}.json", {**head, "sets": records})
    return page


def publish(results: Path, pages: Path) -> Path:
    """Write the summary page and its pictures to another folder, without the pages per set, samples and JSON.

    Raises:
        InputError: if ``results`` has no record, or one of another version.
    """
    records = _records(results)
    for name, record in records.items():
        _draw(name, record, pages)
    return _write_summary(records, pages)


def _write_summary(
    records: Mapping[str, Any],
    folder: Path,
    missing: Sequence[str] = (),
    links: Callable[[str, Mapping[str, Any]], str] | None = None,
) -> Path:
    """The short table of each set, its picture, priors and differences, and the best method for each need."""
    lines = [
        "# Benchmark",
        "",
        "Made by `radweave bench`: every method on the same studies, scored by one program.",
        "",
    ]
    lines += [RESEARCH_ONLY, ""]
    for name, record in records.items():
        lines += [_summary(record), f"![scores by method, with training seeds and floors]({STEM}_{name}_scores.png)\n"]
        lines += [links(name, record)] if links else []
        lines += [record["page"].get("compared", "")]  # a record of an earlier version has none
    lines += [*missing, *(record["page"]["choice"] for record in records.values())]
    page = folder / f"{STEM}.md"
    write_text(page, "\n".join(lines).rstrip() + "\n")
    return page


def _links(name: str, record: Mapping[str, Any]) -> str:
    samples = f", [sample reports]({STEM}_{name}_samples.md)" if record["page"]["samples"] else ""
    return f"[All tables of this set]({STEM}_{name}.md){samples}\n"


def _earlier(folder: Path) -> dict[str, Any]:
    """The sets that are on the pages already, by name."""
    path = folder / f"{STEM}.json"
    record = read_json(path) if path.is_file() else {}
    current = record.get("format") == FORMAT and record.get("version") == FORMAT_VERSION
    return dict(record["sets"]) if current else {}


def _summary(record: Mapping[str, Any]) -> str:
    """The short table of a set, its machine and its time."""
    made = record["made"]
    return (
        f"{record['page']['short']}\nMachine: {made['machine']}. Training and drafting of this set's runs took"
        f" {duration(made['runs_s'])}, one after the other.\n"
    )


def set_tables(results: SetResults) -> list[TextTable]:
    """All tables of a set, in the order of its page."""
    paper, probes = paper_table(results), probe_table(results.record)
    return [
        short_table(results),
        *comparison_tables(results),
        *score_tables(results),
        *prior_tables(results),
        honesty_table(results),
        evidence_table(results),
        trust_table(results),
        *([probes] if probes else []),
        cost_table(results),
        *budget_tables(results),
        *([paper] if paper else []),
        runs_table(results),
    ]


def draw_again(folder: Path) -> list[Path]:
    """Draw the pictures of scores and costs of a folder of pages again, from its ``benchmark.json`` alone.

    Raises:
        InputError: if there is no such record, or one of another version.
    """
    return [path for name, record in _records(folder).items() for path in _draw(name, record, folder)]


def _records(folder: Path) -> dict[str, Any]:
    records = _earlier(folder)
    if not records:
        raise InputError(f"holds no {STEM}.json of version {FORMAT_VERSION}", file=folder)
    return records


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
    probes = _write_probes(name, results, folder)
    text += [f"Exchange probes: {', '.join(probes)}", ""] if probes else []
    write_text(folder / f"{STEM}_{name}.md", "\n".join(text) + "\n" + markdown_tables(tables))
    write_text(results.suite.request.out / "bench.tex", latex_tables(tables))
    place = folder if is_synthetic(results.dataset.card.name) else results.suite.request.out
    picture = sample_picture(results) if is_synthetic(results.dataset.card.name) else None
    if picture is not None:
        _write_bytes(place / f"{STEM}_{name}_samples.png", picture)
    page = sample_page(results, f"{STEM}_{name}_samples.png" if picture else None)
    write_text(place / f"{STEM}_{name}_samples.md", page)


def _write_probes(name: str, results: SetResults, folder: Path) -> list[str]:
    """Copy the page of every probed method, which holds figures alone; return the links to them."""
    links = []
    for row in results.record["rows"]:
        if row["probe"] and "refused" not in row["probe"]:
            source = results.suite.request.out / row["folders"][0] / PROBE / "index.html"
            page = folder / f"{STEM}_{name}_probe_{row['method']}.html"
            write_text(page, source.read_text(encoding="utf-8"))
            links.append(f"[{row['method']}]({page.name})")
    return links


def _write_bytes(path: Path, content: bytes) -> None:
    with write_aside(path) as partial:
        partial.write_bytes(content)


def _scores(systems: Mapping[str, SystemScores]) -> dict[str, Scores]:
    return {
        name: {
            metric: {"values": list(values), "mean": system.mean(metric), "std": system.std(metric)}
            | {"interval": system.interval(metric)}
            for metric, values in system.values.items()
        }
        for name, system in systems.items()
    }


def _compared(results: SetResults) -> list[TextTable]:
    """The tables of priors and of differences."""
    differences = short_comparison(results)
    return [
        _without_terms(replace(table, title=f"{table.title}: {results.suite.kind.title}"))
        for table in (*prior_tables(results), *([differences] if differences else []))
    ]


def _without_terms(table: TextTable) -> TextTable:
    """A table of the page on which the terms stand below the short table of the set."""
    return replace(table, notes=tuple(note for note in table.notes if not note.startswith(UNEQUAL)))


def _seconds(record: Mapping[str, Any]) -> float:
    """Time of training and drafting of all rows, of those that only report again too."""
    return sum(seconds or 0.0 for row in record["rows"] for part in ("train_s", "generate_s") for seconds in row[part])


def _set_record(results: SetResults, facts: Mapping[str, Any]) -> dict[str, Any]:
    systems = {
        protocol: _scores(scored)
        for protocol, scored in (
            ("full", {**results.full, **results.floors}),
            (results.suite.kind.compatible, {**results.compatible, **results.compatible_floors}),
        )
    }
    return {
        "title": results.suite.kind.title,
        "made": {**facts, "runs_s": _seconds(results.record)},
        "page": {
            "short": markdown_tables([short_table(results)]),
            "compared": markdown_tables(_compared(results)),
            "choice": markdown_tables([_without_terms(choice_table(results))]),
            "samples": is_synthetic(results.dataset.card.name),
        },
        "dataset": results.record["dataset"],
        "studies": results.record["studies"],
        "reference": results.reference,
        "runs": results.record["runs"],
        "unable": dict(results.suite.unable),
        "scores": systems,
        "else_prior": _scores(results.else_prior),
        "best_else_prior": results.best_else_prior,
        "to_reference": [
            {"method": method, "metric": metric, **asdict(tested)}
            for (method, metric), tested in results.to_reference.items()
        ],
        "to_joining": [
            {"method": method, "metric": metric, **asdict(tested)}
            for (method, metric), tested in results.to_joining.items()
        ],
        "to_same_decoding": [
            {"method": method, "metric": metric, **asdict(tested)}
            for (method, metric), tested in results.to_same_decoding.items()
        ],
        "to_floors": [
            {"floor": floor, "method": method, "metric": metric, **asdict(tested)}
            for floor, contrasts in results.to_floors.items()
            for (method, metric), tested in contrasts.items()
        ],
        "evidence": {
            method: {**evidence.figures, "recalled_kind": evidence.recalled_kind, "kinds": list(evidence.kinds)}
            for method, evidence in results.evidence.items()
        },
        "drafts": {
            name: [
                {"sha256": file.sha256, "drafts": len(file.drafts), "empty": file.empty, "other_studies": file.others}
                for file in files
            ]
            for name, files in results.suite.drafts.items()
            if name in results.full
        },
        "probes": {row["label"]: row["probe"] for row in results.record["rows"] if row["probe"]},
        "identical": [{"rows": list(two), "share": share} for two, share in results.identical.items()],
        "terms": {label: dict(terms) for label, terms in results.terms.items()},
        "runs_behind": {label: list(names) for label, names in runs_behind(results.suite).items()},
        "costs": {method: cost.to_json() for method, cost in results.costs.items()},
        "failures": {
            row["label"]: {"refused": row["refused"], "failed": row["seeds"]["failed"]}
            for row in results.record["rows"]
            if row["refused"] or row["seeds"]["failed"]
        },
    }
