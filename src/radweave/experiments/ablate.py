"""``radweave ablate``: a method's ablation table over seeds, resumable run by run, as one table.

DIR/table.md table.tex table.json      written anew after every run
DIR/runs/<row>/seed-<n>/               a run folder with predictions.jsonl and scores.json
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
import torch
from pydantic import ConfigDict

from radweave.core.config import from_package_toml
from radweave.core.devices import usable_cores
from radweave.core.errors import InputError
from radweave.core.json_files import read_json, write_json
from radweave.core.stopping import StoppedError, asked_to_stop
from radweave.core.storage import exclusive, write_text
from radweave.core.study import RESEARCH_ONLY
from radweave.data.cache.images import build_cache
from radweave.data.dataset import Dataset
from radweave.engine.plan import refuse_missing_sections
from radweave.engine.stages import TrainingWatch
from radweave.experiments.bench_terms import drafted_by
from radweave.experiments.one_run import (
    STOPPED,
    Task,
    config_hash,
    finished_scores,
    known_probe,
    lacks_probe,
    run_task,
    take_over,
)
from radweave.experiments.probe import FLOOR
from radweave.methods import load_method, method_names, usable_methods
from radweave.methods.tables import Row, Table
from radweave.metrics import get_protocol
from radweave.metrics.catalogue import TABLE_METRICS
from radweave.metrics.significance import DDOF, TEST, compare_seeds
from radweave.metrics.tables import DASH, TextTable, latex_tables, markdown_tables, number

# From a table and options to the runs that make it, in the order in which they are trained.


_ADDRESSED = re.compile(r"^([a-z0-9_.-]+):([^=:]+=.*)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class AblationRequest:
    """The options of ``radweave ablate``.

    ``seeds`` runs of every row, ``headline_seeds`` of headline rows if that is more. ``rows`` are labels or folder
    names; none for all. ``runs`` is where run folders lie; tables of one method and data set may share it. With
    ``own_processes`` every run has a process of its own, also in sequence, so that its peak memory is its own. Without
    ``train`` only the table of what is finished is written. Finished runs under the folders ``reuse`` are taken over
    by the rows of their configuration. With ``probe`` the first seed is probed of every row that trains, or
    changes settings at test time.
    """

    method: str
    dataset: Path
    table: str
    out: Path
    preset: str = "tiny"
    seeds: int = 3
    headline_seeds: int | None = None
    rows: tuple[str, ...] = ()
    jobs: int = 1
    overrides: tuple[str, ...] = ()
    protocol: str = "full"
    meteor: bool = False
    runs: Path | None = None
    own_processes: bool = False
    train: bool = True
    reuse: tuple[Path, ...] = ()
    probe: bool = False


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """A row with its runs, or with the reason why it has none. ``own`` are its own overrides.

    ``refused`` is a configuration that cannot be built, which counts as a failure. ``skipped`` is a row that cannot
    run: it needs weights that were not given, or is another system's.
    """

    row: Row
    method: str
    own: tuple[str, ...]
    config: str
    tasks: tuple[Task, ...]
    refused: str | None = None
    skipped: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """A table's rows, and all runs in order."""

    request: AblationRequest
    table: Table
    dataset: Dataset
    rows: tuple[PlannedRow, ...]
    tasks: tuple[Task, ...]


def tables_of(method: str) -> Mapping[str, Table]:
    """The tables of a method by name; empty for one without."""
    tables: Mapping[str, Table] = getattr(load_method(method), "TABLES", {})
    return tables


def find_table(method: str, name: str) -> Table:
    """A method's table by name.

    Raises:
        InputError: with the tables there are.
    """
    tables = tables_of(method)
    if name not in tables:
        names = ", ".join(tables) or "none: the method has no TABLES"
        raise InputError("no such table", field="--table", got=name or "none", expected=f"one of {names}")
    return tables[name]


def make_plan(request: AblationRequest, table: Table | None = None) -> Plan:
    """Resolve every row of ``table``, or of the table that the request names.

    Raises:
        InputError: for an unknown method, table, row, data set, option or folder, or overrides that fit no row.
    """
    table = table or find_table(request.method, request.table)
    for name, value in (("--seeds", request.seeds), ("--jobs", request.jobs)):
        if value < 1:
            raise InputError("must be 1 or more", field=name, got=value)
    get_protocol(request.protocol)
    for folder in request.reuse:
        if not folder.is_dir():
            raise InputError("no such folder", file=folder, field="--reuse")
    dataset = Dataset.open(request.dataset)
    rows = tuple(_planned(row, request, table, dataset) for row in _chosen(table, request.rows))
    if not any(row.tasks for row in rows):
        reasons = [row.refused for row in rows if row.refused] or [row.skipped for row in rows if row.skipped]
        raise InputError(reasons[0])
    return Plan(request, table, dataset, rows, _in_order(rows, table, request))


def _chosen(table: Table, names: Sequence[str]) -> list[Row]:
    known = {name.lower(): row for row in table.rows for name in (row.label, row.slug)}
    unknown = [name for name in names if name.lower() not in known]
    if unknown:
        labels = ", ".join(row.slug for row in table.rows)
        raise InputError("the table has no such row", field="--rows", got=unknown[0], expected=labels)
    wanted = {known[name.lower()].label for name in names} or {row.label for row in table.rows}
    # A row that differs at test time alone needs the row that trains its run.
    wanted |= {table.trained(row).label for row in table.rows if row.label in wanted}
    return [row for row in table.rows if row.label in wanted]


def _planned(row: Row, request: AblationRequest, table: Table, dataset: Dataset) -> PlannedRow:
    trained = table.trained(row)
    method = trained.method or request.method
    slugs = frozenset(other.slug for other in table.rows)
    addressed, settings = overrides_of(trained.slug, request.overrides), overrides_of(row.slug, request.overrides)
    skipped = lacks(row, settings) or lacks(trained, addressed)
    skipped = "printed: another system, not run" if row.printed else skipped
    if skipped:
        return PlannedRow(row, method, (), "", (), skipped=skipped)
    own: tuple[str, ...] = ()
    try:
        own = (*_ablation(trained, method), *trained.overrides, *addressed)
        overrides = (*overrides_for(method, request.overrides, slugs), *own)
        seeds = request.seeds
        if trained.headline and row.headline and request.headline_seeds is not None:
            seeds = max(seeds, request.headline_seeds)
        if row.run_of is None:
            seeds = max(seeds, *(other.average_seeds for other in table.rows if other.run_of == row.label), 1)
        first = Task(
            label=row.label,
            method=method,
            preset=trained.preset or request.preset,
            overrides=tuple(overrides),
            seed=0,
            dataset=str(request.dataset.resolve()),
            folder=str(((request.runs or request.out / "runs") / trained.slug).resolve()),
            protocol=request.protocol,
            meteor=request.meteor,
            probe=request.probe,
        )
        experiment = first.experiment()
        refuse_missing_sections(experiment, dataset.aimed(experiment.data.target))
        tasks = tuple(_of_seed(first, seed) for seed in range(seeds))
        if row.average_seeds:
            folders = [_of_seed(first, seed).folder for seed in range(row.average_seeds)]
            tasks = (replace(tasks[0], averaged=tuple(folders[1:])),)
        if row.average_with:
            tasks = tuple(replace(task, averaged=_beside(task, row, table)) for task in tasks)
        if row.run_of is not None:
            at_test = (*row.at_test, *settings)
            tasks = tuple(_at_test(task, row, at_test) for task in tasks)
            tasks = tuple(replace(task, decoding=row.decoding) for task in tasks)
            own = (*own, *at_test, *(f"decoding.{option}" for option in row.decoding))
            if row.draws:
                tasks = tuple(_drawn(tasks[0], number) for number in range(row.draws))
        return PlannedRow(row, method, own, config_hash(tasks[0].experiment()), tasks)
    except InputError as error:
        return PlannedRow(row, method, own, "", (), refused=str(error))


def _of_seed(task: Task, seed: int) -> Task:
    folder = str(Path(task.folder) / f"seed-{seed}")
    overrides = (*task.overrides, f"seed={seed}")
    return replace(task, seed=seed, overrides=overrides, folder=folder, probe=task.probe and seed == 0)


def _beside(task: Task, row: Row, table: Table) -> tuple[str, ...]:
    """Folders of the runs of other rows, of the same seed."""
    run = Path(task.folder)
    slugs = {other.label: other.slug for other in table.rows}
    return tuple(str(run.parent.parent / slugs[name] / run.name) for name in row.average_with)


def _at_test(task: Task, row: Row, settings: Sequence[str]) -> Task:
    """A task that reports with the run of ``task``; the setting ``dataset`` names another data set to report on."""
    run = Path(task.folder)
    folder = run.parent.parent / row.slug / run.name
    datasets = [setting.partition("=")[2] for setting in settings if setting.startswith("dataset=")]
    other_settings = tuple(setting for setting in settings if not setting.startswith("dataset="))
    test = str(Path(datasets[-1]).resolve()) if datasets else ""
    return replace(
        task, folder=str(folder), run=str(run), at_test=other_settings, test_dataset=test,
        probe=task.probe and bool(settings or row.draws),
    )  # fmt: skip


def _drawn(task: Task, number: int) -> Task:
    folder = Path(task.folder).parent / f"draw-{number}"
    at_test = (*task.at_test, f"pairing_seed={number}")
    return replace(task, seed=number, folder=str(folder), at_test=at_test, probe=task.probe and number == 0)


def lacks(row: Row, addressed: Sequence[str] = ()) -> str | None:
    """Weights that a row still needs, with the override that gives them; None if it needs none."""
    provided = {override.partition("=")[0] for override in addressed if override.partition("=")[2].strip()}
    missing = [f"{what} ({row.slug}:{field}=PATH)" for field, what in row.needs.items() if field not in provided]
    return f"needs {', '.join(missing)}" if missing else None


def overrides_for(method: str, overrides: Sequence[str], rows: frozenset[str] = frozenset()) -> list[str]:
    """The user's overrides for a method: those for all, and those that name it ("baseline:stages.report.epochs=3").

    Those that name one of ``rows`` are left out. A name of both a row and a method means the method.

    Raises:
        InputError: for an override that names no method and no row.
    """
    chosen = []
    for override in overrides:
        match = _ADDRESSED.match(override)
        if match is None:
            chosen.append(override)
        elif match[1] == method:
            chosen.append(match[2])
        elif match[1] not in method_names() and match[1] not in rows:
            known = ", ".join((*method_names(), *sorted(rows)))
            raise InputError("no such method or row", field=override, got=match[1], expected=known)
    return chosen


def overrides_of(row: str, overrides: Sequence[str]) -> list[str]:
    """The user's overrides that name a row by its folder name: "yi-1.5-9b:model.language_model.path=FOLDER"."""
    if row in method_names():
        return []
    return [match[2] for override in overrides if (match := _ADDRESSED.match(override)) and match[1] == row]


def _ablation(row: Row, method: str) -> Sequence[str]:
    if row.ablation is None:
        return ()
    ablations: dict[str, list[str]] = load_method(method).ABLATIONS
    if row.ablation not in ablations:
        names = ", ".join(ablations)
        raise InputError(f"{method} has no such ablation", field=row.label, got=row.ablation, expected=names)
    return ablations[row.ablation]


def _in_order(rows: Sequence[PlannedRow], table: Table, request: AblationRequest) -> tuple[Task, ...]:
    """The reference row, then all others seed by seed, then headline rows' further seeds, then what is not trained.

    Stages that rows share are kept in the data set's cache. With the reference first they are there for the rows that
    follow, and parallel runs seldom wait for one another; seed by seed, a table that is stopped has whole columns.
    """
    trained = [row for row in rows if row.row.run_of is None]
    first = [row for row in trained if row.row.label == table.reference]
    others = [row for row in trained if row.row.label != table.reference]
    ordered = [task for row in first for task in row.tasks[: request.seeds]]
    longest = max((len(row.tasks) for row in trained), default=0)
    for seed in range(longest):
        group = others if seed < request.seeds else trained
        ordered += [row.tasks[seed] for row in group if seed < len(row.tasks)]
    return (*ordered, *(task for row in rows if row.row.run_of is not None for task in row.tasks))


# Runs of an ablation side by side, each in a process of its own.


_POLL_S = 0.1
# A run that was asked to stop finishes its update and writes a checkpoint; validation may come in between.
_PATIENCE_S = 600.0
_MAIN = "radweave.experiments"


@dataclass(slots=True)
class _Child:
    process: subprocess.Popen[bytes]
    task: Task
    slot: int
    log: IO[bytes]


def run_parallel(
    tasks: Sequence[Task],
    jobs: int,
    done: Callable[[Task, dict[str, Any]], None],
    failed: Callable[[Task, str], None],
) -> None:
    """Run tasks in up to ``jobs`` processes; cores are shared out, and GPUs where there are several.

    A row that only reports again waits for the runs that it reads, and for no others.

    Raises:
        StoppedError: after SIGTERM or an interrupt, when all runs have written their checkpoints.
    """
    # The image caches of the data sets, which runs would otherwise fill at the same time.
    wanted = {(task.dataset, data.image_size, data.ct) for task in tasks for data in [task.experiment().data]}
    for path, size, ct in sorted(wanted, key=str):
        build_cache(Dataset.open(Path(path)), size=size, ct=ct)
    waiting, active, free = list(tasks), list[_Child](), list(range(jobs))
    with asked_to_stop() as stop_signal:
        while waiting or active:
            if number := stop_signal():
                _stop(active)
                raise StoppedError(number)
            while free and (task := _next_task(waiting, active)) is not None:
                waiting.remove(task)
                active.append(_start(task, free.pop(0), jobs))
            time.sleep(_POLL_S)
            for child in [child for child in active if child.process.poll() is not None]:
                active.remove(child)
                free.append(child.slot)
                child.log.close()
                _tell(child, done, failed)


def _next_task(waiting: Sequence[Task], active: Sequence[_Child]) -> Task | None:
    """The first task none of whose runs is still to come; None if all wait, or nothing does."""
    to_come = {task.folder for task in (*waiting, *(child.task for child in active))}
    return next((task for task in waiting if not to_come & {task.run, *task.averaged}), None)


def _start(task: Task, slot: int, jobs: int) -> _Child:
    task.path.mkdir(parents=True, exist_ok=True)
    order = task.path / "task.json"
    write_json(order, {"task": asdict(task), "parent": os.getpid()})
    log = (task.path / "log.txt").open("wb")
    # A session of its own: an interrupt on the terminal reaches this process, which then asks the runs to stop.
    process = subprocess.Popen(
        [sys.executable, "-m", _MAIN, str(order)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=_environment(slot, jobs),
        start_new_session=True,
    )
    return _Child(process, task, slot, log)


def _environment(slot: int, jobs: int) -> dict[str, str]:
    threads = max(1, usable_cores() // jobs)
    omp_threads = os.environ.get("OMP_NUM_THREADS", "")
    if omp_threads.isdigit():
        threads = max(1, min(threads, int(omp_threads)))
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    gpus = torch.cuda.device_count()
    if gpus > 1 and "CUDA_VISIBLE_DEVICES" not in os.environ:
        environment["CUDA_VISIBLE_DEVICES"] = str(slot % gpus)
    return environment


def _tell(child: _Child, done: Callable[[Task, dict[str, Any]], None], failed: Callable[[Task, str], None]) -> None:
    code = child.process.returncode
    if code == 0:
        done(child.task, read_json(child.task.path / "scores.json"))
        return
    if code == STOPPED:
        failed(child.task, "was stopped from outside; the same command goes on")
        return
    lines = (child.task.path / "log.txt").read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "no message")
    reason = last.removeprefix("error: ")
    failed(child.task, f"ended by signal {-code}: {reason}" if code < 0 else reason)


def _stop(active: Sequence[_Child]) -> None:
    for child in active:
        child.process.terminate()
    until = time.monotonic() + _PATIENCE_S
    for child in active:
        try:
            child.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()
        child.log.close()


# The table of an ablation: means over seeds, tests against the reference row, and the paper's numbers beside.


FORMAT = "radweave-ablation"
FORMAT_VERSION = 1
PROBE_NOTE = (
    f"exchange cost: nats per token of the reference report that another study's input of the decoder costs, first"
    f" seed; covered: below {FLOOR}, or with a 95 % interval that is not above 0, but not where it is the only input;"
    f" silent: even there"
)
Scores = Mapping[str, Any]


def ablation_record(
    plan: Plan, scores: Mapping[tuple[str, int], Scores], failures: Mapping[tuple[str, int], str]
) -> dict[str, Any]:
    """All of a table as JSON, from the scores and failures by (row label, seed); runs in neither are pending."""
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
    # Several draws of one run vary otherwise than several trainings. Such rows, and other test studies, are not
    # compared.
    base = next(other.row for other in plan.rows if other.row.label == reference_label) if reference else None
    elsewhere = any(task.test_dataset for task in row.tasks)
    comparable = base is not None and bool(base.draws) == bool(row.row.draws) and not elsewhere
    if comparable and row.row.label != reference_label and len(runs) > 1 and len(reference) > 1:
        tested = {item.metric: item for item in compare_seeds(*(_columns(group) for group in (reference, runs)))}
    metrics = {}
    for name in TABLE_METRICS:
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
        "drafts": drafted_by(row.tasks[0].experiment(), row.tasks[0].decoding) if row.tasks else None,
        "refused": row.refused,
        "skipped": row.skipped,
        "metrics": metrics,
        "honesty": _honesty(runs),
        "probe": next((known_probe(task, plan.dataset) for task in row.tasks if task.probe), None),
        "train_s": [run["train_s"] for run in runs],
        "resumed": sum(run["resumed"] for run in runs),
        "generate_s": [run["generate_s"] for run in runs],
        "threads": [run.get("threads") for run in runs],
        "code": [run["code"] for run in runs],
        "commit": [run.get("commit") for run in runs],
        "left_out": [run["left_out"] for run in runs],
        "training_notes": list(dict.fromkeys(note for run in runs for note in run["notes"])),
        "paper": {name: dict(values) for name, values in row.row.paper.items()},
    }


def _place(task: Task, out: Path) -> str:
    """The run folder, relative to the output folder where it lies in it."""
    return task.path.relative_to(out).as_posix() if task.path.is_relative_to(out) else task.folder


def _columns(runs: Sequence[Scores]) -> list[dict[str, float | None]]:
    return [{name: run["metrics"].get(name) for name in TABLE_METRICS} for run in runs]


def _difference(values: Sequence[float], reference: Sequence[Scores], name: str) -> float | None:
    baseline = [value for run in reference if (value := run["metrics"].get(name)) is not None]
    return float(np.mean(values) - np.mean(baseline)) if values and baseline else None


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
    """Scores by row; the exchange cost of a row's inputs stands behind its F1 where runs were probed."""
    rows = []
    probed = any(row["probe"] for row in record["rows"])
    place = shown.index("CE_F1") + 1 if "CE_F1" in shown else len(shown)

    def with_costs(cells: Sequence[str], costs: str = DASH) -> tuple[str, ...]:
        return (*cells[:place], *((costs,) if probed else ()), *cells[place:])

    for row in record["rows"]:
        if row["skipped"]:
            continue
        cells = with_costs([_mean_std(row["metrics"][name]) for name in shown], exchange_costs(row["probe"]))
        distinct = number(row["honesty"].get("distinct_reports_share"), 3)
        number_of_runs = f"{len(row['seeds']['finished'])}{' draws' if row['draws'] else ''}"
        rows.append((row["label"], number_of_runs, *cells, distinct))
    for name, metrics in record["floors"].items():
        rows.append((f"floor: {name}", DASH, *with_costs([number(metrics.get(metric)) for metric in shown]), DASH))
    rows.append(
        (
            "references",
            DASH,
            *with_costs([DASH for _ in shown]),
            number(record["reference_honesty"].get("distinct_reports_share"), 3),
        )
    )
    head = ("row", "seeds", *with_costs(shown, "exchange cost"), "distinct reports")
    return TextTable(record["title"], head, tuple(rows), _score_notes(record, shown))


def exchange_costs(probe: Mapping[str, Any] | None) -> str:
    """Cost of every input and source of a probed run: "image +0.1110, memory +0.0007 (silent)"; a dash for no probe."""
    if probe is None or "refused" in probe:
        return DASH
    return ", ".join(
        f"{name.partition(' ')[2]} {one['costs']['another']['mean']:+.4f}"
        + next((f" ({verdict})" for verdict in ("silent", "covered") if name in probe[verdict]), "")
        for name, one in exchanged_parts(probe)
    )


def exchanged_parts(probe: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Inputs and sources of a probe's record, under the names by which it lists those that are silent."""
    for one in probe["inputs"]:
        yield f"input {one['name']}", one
    for one in probe.get("sources", []):  # a record of an earlier version has none
        yield f"source {one['name']} -> {one['of']}", one


def _score_notes(record: Mapping[str, Any], shown: Sequence[str]) -> tuple[str, ...]:
    dataset = record["dataset"]
    notes = [
        f"{record['method']}, preset {record['preset']}; {dataset['name']}, test split, {record['studies']} studies;"
        f" data {dataset['fingerprint'][:12]}",
        "mean and standard deviation (n - 1) over training seeds; CE: uncertain is negative, No Finding left out",
    ]
    notes += [*_drafts_notes(record), *progress_notes(record)]
    if "CIDEr" in shown:
        notes.append("CIDEr depends on the share of normal studies; 'radweave evaluate' has it on abnormal ones alone")
    if any(row["probe"] for row in record["rows"]):
        notes.append(PROBE_NOTE)
    missing = [name for name in record["metrics"] if name not in shown]
    if missing and record["runs"]["finished"]:
        notes.append(f"not computed: {', '.join(missing)}")
    states = {code for row in record["rows"] for code in row["code"]}
    if len(states) > 1:
        notes.append(f"MIND: the runs were trained by {len(states)} different states of the source code")
    if record["note"]:
        notes.append(record["note"])
    return tuple(notes)


def _drafts_notes(record: Mapping[str, Any]) -> list[str]:
    """Writers of the drafts, with their rows where they differ; nothing for records that name none."""
    labels: dict[str, list[str]] = {}
    for row in record["rows"]:
        if row.get("drafts"):
            labels.setdefault(row["drafts"], []).append(row["label"])
    if len(labels) < 2:
        return [f"drafts: {writer}" for writer in labels]
    return ["drafts: " + "; ".join(f"{writer} ({', '.join(rows)})" for writer, rows in labels.items())]


def progress_notes(record: Mapping[str, Any]) -> list[str]:
    """The scoring protocol, and the runs that are missing."""
    notes, scoring, runs = [], record["scoring"], record["runs"]
    if scoring:
        notes.append(f"protocol {scoring['name']} {scoring['hash'][:8]}; labels: {scoring['labeler']}")
    if runs["finished"] < runs["planned"]:
        to_come = runs["planned"] - runs["finished"] - runs["failed"]
        notes.append(
            f"NOT COMPLETE: {runs['finished']} of {runs['planned']} runs, {runs['failed']} failed, {to_come} to come"
        )
    return notes


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
        for metric in [name for name in TABLE_METRICS if any(name in values for values in row["paper"].values())]:
            measured = row["metrics"][metric]
            cells = [_mean_std(measured), _signed(measured["difference"])]
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


Key = tuple[str, int]
_SHOWN_REFUSALS = 8
_SAME = ("method", "table", "preset", "overrides", "dataset")


@dataclass(frozen=True, slots=True)
class AblationWatch:
    """Progress callbacks: a line per run, and for runs in this process the training's watch."""

    say: Callable[[str], None] = lambda text: None
    training: Callable[[], AbstractContextManager[TrainingWatch]] = lambda: nullcontext(TrainingWatch())


@dataclass(frozen=True, slots=True)
class AblationResult:
    """The record as it stands in ``table.json``, and its tables."""

    record: dict[str, Any]
    tables: list[TextTable]

    @property
    def failed(self) -> int:
        """Runs that failed, and rows that could not be built."""
        return int(self.record["runs"]["failed"]) + sum(row["refused"] is not None for row in self.record["rows"])


def run_ablation(
    request: AblationRequest, watch: AblationWatch | None = None, table: Table | None = None
) -> AblationResult:
    """Train and score every run of a table that is not done yet, and write the table.

    The table is the method's of that name, or the one that is given. A run that fails is reported in it, and the others
    go on.

    Raises:
        InputError: for a request that cannot be planned, or an output folder that holds another table.
        StoppedError: after SIGTERM or an interrupt; the same call goes on from there.
    """
    watch = watch or AblationWatch()
    plan = make_plan(request, table)
    with locked_output(request.out, "ablation"):
        if request.reuse:
            _take_over(plan, watch)
        campaign = _Campaign(plan, watch)
        campaign.collect_finished()
        campaign.write()
        waiting = [task for task in plan.tasks if request.train and campaign.lacks(task)]
        if request.jobs > 1 or request.own_processes:
            run_parallel(waiting, request.jobs, campaign.done, campaign.failed)
        else:
            for task in waiting:
                campaign.run_here(task)
        return campaign.write()


def _key(task: Task) -> Key:
    return task.label, task.seed


def _take_over(plan: Plan, watch: AblationWatch) -> None:
    reused = take_over(plan.tasks, plan.dataset, plan.request.reuse)
    watch.say(f"{reused.taken} of {len(plan.tasks)} runs are taken over")
    for reason in reused.refused[:_SHOWN_REFUSALS]:
        watch.say(f"  not taken over: {reason}")
    if len(reused.refused) > _SHOWN_REFUSALS:
        watch.say(f"  and {len(reused.refused) - _SHOWN_REFUSALS} more")


@contextmanager
def locked_output(out: Path, command: str) -> Iterator[None]:
    """Lock the output folder, so that no second command writes there."""
    try:
        with exclusive(out / ".lock", wait=False):
            yield
    except BlockingIOError:
        raise InputError(f"another {command} is writing here", file=out) from None


class _Campaign:
    """Scores and failures of the runs so far."""

    def __init__(self, plan: Plan, watch: AblationWatch) -> None:
        self.plan = plan
        self.scores: dict[Key, dict[str, Any]] = {}
        self.failures: dict[Key, str] = {}
        self._watch = watch

    def collect_finished(self) -> None:
        self._refuse_other_table()
        for task in self.plan.tasks:
            scores = finished_scores(task, task.experiment(), self.plan.dataset)
            if scores is not None:
                self.scores[_key(task)] = scores
        if self.scores:
            self._watch.say(f"{len(self.scores)} of {len(self.plan.tasks)} runs are done already")
        for row in self.plan.rows:
            if row.refused:
                self._watch.say(f"{row.row.label}: refused: {row.refused}")
            elif row.skipped and not row.row.printed:
                self._watch.say(f"{row.row.label}: skipped: {row.skipped}")

    def lacks(self, task: Task) -> bool:
        """True for a run without scores, or without the probe that it is to have."""
        return _key(task) not in self.scores or lacks_probe(task, self.plan.dataset)

    def _refuse_other_table(self) -> None:
        path = self.plan.request.out / "table.json"
        if not path.is_file():
            return
        old, new = read_json(path), ablation_record(self.plan, {}, {})
        for name in _SAME:
            if old.get(name) != new[name]:
                raise InputError(
                    "holds the table of another ablation; give another --out",
                    file=self.plan.request.out,
                    field=name,
                    got=old.get(name),
                    expected=new[name],
                )

    def run_here(self, task: Task) -> None:
        """Do a run in this process."""
        try:
            with self._watch.training() as training:
                scores = run_task(task, training)
        except InputError as error:
            self.failed(task, str(error))
        except Exception as error:  # a run may fail in any way; the others go on, and this one is in the table
            (task.path / "failure.txt").write_text(traceback.format_exc(), encoding="utf-8")
            self.failed(task, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
        else:
            self.done(task, scores)

    def done(self, task: Task, scores: dict[str, Any]) -> None:
        self.scores[_key(task)] = scores
        metrics = scores["metrics"]
        figures = "  ".join(
            f"{name} {metrics[name]:.4f}" for name in ("BLEU_4", "CE_F1") if metrics.get(name) is not None
        )
        self._say(task, f"{figures}  ({scores['train_s'] or 0:.0f} s)")

    def failed(self, task: Task, reason: str) -> None:
        self.failures[_key(task)] = reason
        self._say(task, f"FAILED: {reason}")

    def _say(self, task: Task, text: str) -> None:
        count = len(self.scores) + len(self.failures)
        self._watch.say(f"[{count}/{len(self.plan.tasks)}] {task.label}, seed {task.seed}: {text}")
        self.write()

    def write(self) -> AblationResult:
        """Write the table as far as it is known."""
        out = self.plan.request.out
        record = ablation_record(self.plan, self.scores, self.failures)
        tables = ablation_tables(record)
        write_json(out / "table.json", record)
        write_text(out / "table.md", markdown_tables(tables))
        write_text(out / "table.tex", latex_tables(tables))
        return AblationResult(record, tables)


# Listing of the methods' tables: rows that are run, that need weights, that are printed only, and that are missing.
# ``published_rows.toml`` is written from the papers, apart from the methods' own tables, so that a row dropped there is
# noticed. A row is listed when the method's table has a row of that name, with numbers for that data set where the
# paper's can be read.

NO_NUMBERS = ""
"""Stands for the data set where the numbers are a picture or cannot be read."""
UNNAMED = "unnamed, "
"""Begins the name of a row whose own is lost in the text that was read."""


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table of a paper.

    Attributes:
        name: as the paper has it.
        keys: keys of the method's ``TABLES`` that may hold its rows.
        rows: data set -> names of rows; "printed = label" where the method's table has another label.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    name: str
    keys: tuple[str, ...]
    rows: Mapping[str, tuple[str, ...]]


@cache
def published_tables() -> Mapping[str, tuple[PublishedTable, ...]]:
    """Method -> tables of its paper."""
    return from_package_toml(dict[str, tuple[PublishedTable, ...]], "radweave.experiments", "published_rows.toml")


@dataclass(frozen=True, slots=True)
class Published:
    """A row of a paper's table; ``is_listed`` if the method's tables have it."""

    table: str
    source: str
    name: str
    is_listed: bool

    @property
    def place(self) -> str:
        return ", ".join(part for part in (self.table, self.source, self.name) if part)


def published_rows(method: str, tables: Mapping[str, Table] | None = None) -> tuple[Published, ...]:
    """Every row of every table of the method's paper; none for methods of our own."""
    if tables is None:
        tables = getattr(load_method(method), "TABLES", {})
    return tuple(row for table in published_tables().get(method, ()) for row in _rows_of(table, tables))


def _rows_of(published: PublishedTable, tables: Mapping[str, Table]) -> Iterator[Published]:
    rows = [row for key in published.keys if key in tables for row in tables[key].rows]
    for source, names in published.rows.items():
        for name in names:
            printed, _, label = (part.strip() for part in name.partition(" = "))
            slug = Row(label or printed).slug
            present = any(row.slug == slug and (source == NO_NUMBERS or source in row.paper) for row in rows)
            yield Published(published.name, source, printed, present)


def list_tables(methods: Sequence[str], table: str = "") -> dict[str, Any]:
    """The tables of methods as JSON: per table the names of its rows by kind, per method what its paper has besides.

    Raises:
        InputError: for an unknown method, or if none has the ``table`` that is to be listed alone.
    """
    listed = [name for name in methods if not table or table in tables_of(name)]
    if not listed:
        find_table(methods[0], table)
    return {
        "format": "radweave-ablation-list",
        "version": 1,
        "methods": {name: _method(name, table) for name in listed},
    }


def _method(method: str, only: str) -> dict[str, Any]:
    tables = tables_of(method)
    published = published_rows(method, tables)
    listed = {key: _table(key, table, method, published) for key, table in tables.items() if only in ("", key)}
    if only:
        published = tuple(row for row in published if row.table in _published_names(method, only))
    return {
        "tables": listed,
        "published": len(published),
        "missing": [row.place for row in published if not row.is_listed],
        "unnamed": [row.place for row in published if row.name.startswith(UNNAMED)],
    }


def _published_names(method: str, key: str) -> set[str]:
    """Names in the paper of the tables that a table of ours covers."""
    return {each.name for each in published_tables().get(method, ()) if key in each.keys}


def _table(key: str, table: Table, method: str, published: Sequence[Published]) -> dict[str, Any]:
    names = _published_names(method, key)
    return {
        "title": table.title,
        "kind": table.kind,
        "published": sum(row.table in names for row in published),
        "run": [row.label for row in table.rows if not row.printed and not row.needs],
        "needs": {row.label: lacks(row) for row in table.rows if row.needs},
        "printed": [row.label for row in table.rows if row.printed],
        "missing": [row.place for row in published if row.table in names and not row.is_listed],
        "names": {row.label: row.slug for row in table.rows},
    }


def listing_tables(record: Mapping[str, Any], *, rows_too: bool = False) -> list[TextTable]:
    """The record as one table per method, with the weights that rows need and the missing rows as notes.

    With ``rows_too`` the rows of each table follow.
    """
    head = ("table", "kind", "rows of the paper", "run here", "need weights", "printed only", "missing", "title")
    shown = []
    for method, entry in record["methods"].items():
        rows, notes = [], []
        for key, table in entry["tables"].items():
            counts = (table["published"], *(len(table[part]) for part in ("run", "needs", "printed", "missing")))
            rows.append((key, table["kind"], *map(str, counts), table["title"]))
            notes += [f"{key}, {label}: {what}" for label, what in table["needs"].items()]
        notes += [f"missing: {place}" for place in _grouped(entry["missing"])]
        notes.append(f"{len(entry['missing'])} of {entry['published']} rows of the paper's tables are missing")
        if entry["unnamed"]:
            notes[-1] += f"; the names of {len(entry['unnamed'])} cannot be read"
        if not rows_too:
            notes.append(f"the rows of a table: radweave ablate {method} --list --table NAME")
        shown.append(TextTable(method, head, tuple(rows), tuple(notes)))
        for table in entry["tables"].values() if rows_too else ():
            kinds = {
                **dict.fromkeys(table["needs"], "needs weights"),
                **dict.fromkeys(table["printed"], "printed only"),
            }
            listed = tuple((slug, label, kinds.get(label, "run")) for label, slug in table["names"].items())
            shown.append(TextTable(f"{table['title']}: rows", ("--rows", "row", "here"), listed))
    return shown


def _grouped(places: Sequence[str]) -> list[str]:
    """Rows of one table and data set as one line."""
    groups: dict[str, list[str]] = {}
    for place in places:
        table, _, name = place.rpartition(", ")
        groups.setdefault(table, []).append(name)
    return [f"{table}: {', '.join(names)}" for table, names in groups.items()]


def all_methods() -> list[str]:
    """The methods that have tables."""
    return [name for name, module in usable_methods().items() if getattr(module, "TABLES", {})]
