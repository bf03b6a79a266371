"""From a table and options to the runs that make it, in the order in which they are trained."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from radweave.ablate.one_run import Task, config_hash
from radweave.base.errors import InputError
from radweave.contract.tables import Row, Table
from radweave.data.dataset import Dataset
from radweave.evaluation import get_protocol
from radweave.methods import load_method, method_names

_ADDRESSED = re.compile(r"^([a-z0-9_.-]+):([^=:]+=.*)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class AblationRequest:
    """The options of ``radweave ablate``.

    ``seeds`` runs of every row, ``headline_seeds`` of headline rows if that is more. ``rows`` are labels or folder
    names; none for all. ``runs`` is where run folders lie; tables of one method and data set may share it. With
    ``own_processes`` a run has a process of its own even where one follows the other, so that its memory is its own.
    Without ``train`` only the table of what is finished is written. Finished runs found under the folders ``reuse`` are
    taken over where they are a row's.
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


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """A row with its runs, or with the reason why it has none. ``own`` are its own overrides.

    ``refused`` is a configuration that cannot be built, which counts as a failure. ``skipped`` is a row that is not
    run as things are: it needs weights that were not given, or is another system's.
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


def find_table(method: str, name: str) -> Table:
    """A method's table by name.

    Raises:
        InputError: with the tables there are.
    """
    tables: dict[str, Table] = getattr(load_method(method), "TABLES", {})
    if name not in tables:
        names = ", ".join(tables) or "none: the method has no TABLES"
        raise InputError("no such table", field="--table", got=name or "none", expected=f"one of {names}")
    return tables[name]


def make_plan(request: AblationRequest, table: Table | None = None) -> Plan:
    """Resolve every row of the table that the request names, or of the one that is given.

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
    rows = tuple(_planned(row, request, table) for row in _chosen(table, request.rows))
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
    # A row at test time comes with the one that is trained.
    wanted |= {table.trained(row).label for row in table.rows if row.label in wanted}
    return [row for row in table.rows if row.label in wanted]


def _planned(row: Row, request: AblationRequest, table: Table) -> PlannedRow:
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
        )
        tasks = tuple(_of_seed(first, seed) for seed in range(seeds))
        if row.run_of is not None:
            asked = (*row.at_test, *settings)
            tasks = tuple(_at_test(task, row, asked) for task in tasks)
            tasks = tuple(replace(task, decoding=row.decoding) for task in tasks)
            own = (*own, *asked, *(f"decoding.{option}" for option in row.decoding))
            if row.draws:
                tasks = tuple(_drawn(tasks[0], number) for number in range(row.draws))
        return PlannedRow(row, method, own, config_hash(tasks[0].experiment()), tasks)
    except InputError as error:
        return PlannedRow(row, method, own, "", (), refused=str(error))


def _of_seed(task: Task, seed: int) -> Task:
    folder = str(Path(task.folder) / f"seed-{seed}")
    return replace(task, seed=seed, overrides=(*task.overrides, f"seed={seed}"), folder=folder)


def _at_test(task: Task, row: Row, settings: Sequence[str]) -> Task:
    """The run of this task reports again, elsewhere, with these settings; ``dataset`` is one that is reported on."""
    run = Path(task.folder)
    folder = run.parent.parent / row.slug / run.name
    datasets = [setting.partition("=")[2] for setting in settings if setting.startswith("dataset=")]
    kept = tuple(setting for setting in settings if not setting.startswith("dataset="))
    test = str(Path(datasets[-1]).resolve()) if datasets else ""
    return replace(task, folder=str(folder), run=str(run), at_test=kept, test_dataset=test)


def _drawn(task: Task, number: int) -> Task:
    folder = Path(task.folder).parent / f"draw-{number}"
    return replace(task, seed=number, folder=str(folder), at_test=(*task.at_test, f"pairing_seed={number}"))


def lacks(row: Row, addressed: Sequence[str] = ()) -> str | None:
    """Which weights a row still needs, and the override that gives them; None if it has what it needs."""
    given = {override.partition("=")[0] for override in addressed if override.partition("=")[2].strip()}
    missing = [f"{what} ({row.slug}:{field}=PATH)" for field, what in row.needs.items() if field not in given]
    return f"needs {', '.join(missing)}" if missing else None


def overrides_for(method: str, overrides: Sequence[str], rows: frozenset[str] = frozenset()) -> list[str]:
    """The user's overrides for a method: those for all, and those that name it ("baseline:stages.report.epochs=3").

    Those that name one of ``rows`` are left out; where a row is called like a method, the method is meant.

    Raises:
        InputError: for an override that names no method and no row.
    """
    kept = []
    for override in overrides:
        match = _ADDRESSED.match(override)
        if match is None:
            kept.append(override)
        elif match[1] == method:
            kept.append(match[2])
        elif match[1] not in method_names() and match[1] not in rows:
            known = ", ".join((*method_names(), *sorted(rows)))
            raise InputError("no such method or row", field=override, got=match[1], expected=known)
    return kept


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
