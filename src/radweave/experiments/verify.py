"""One run of a finished benchmark, trained again, and its scores beside those of the table.

A cell is a run that a benchmark trained: SET/ROW/seed-N. The same code, data, libraries, threads and seed give the same
weights, and so the same scores.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from radweave.core.errors import InputError
from radweave.core.json_files import read_json
from radweave.core.provenance import code_hash
from radweave.data.dataset import Dataset
from radweave.engine.run_directory import read_started
from radweave.experiments.ablate import run_parallel
from radweave.experiments.bench_suite import SETS
from radweave.experiments.one_run import Task, link

TOLERANCE = 1e-6
"""Largest difference of a score that counts as equal."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A trained run of a benchmark: its folder, data and scores in the table (metric -> value), and the code."""

    name: str
    folder: Path
    data: str
    scores: Mapping[str, float | None]
    code: str | None


@dataclass(frozen=True, slots=True)
class Verified:
    """The scores of a cell in the table and of the run that was trained again, by metric, and both codes."""

    cell: Cell
    repeated: Mapping[str, float | None]
    code: str

    def differences(self) -> dict[str, tuple[float | None, float | None]]:
        """Metrics whose values differ by more than ``TOLERANCE``."""
        pairs = {name: (value, self.repeated.get(name)) for name, value in self.cell.scores.items()}
        return {name: pair for name, pair in pairs.items() if not _equal(*pair)}


def _equal(old: float | None, new: float | None) -> bool:
    if old is None or new is None:
        return old is new
    return abs(old - new) <= TOLERANCE


def find_cells(out: Path) -> dict[str, Cell]:
    """The trained runs of a benchmark's tables, by name.

    Raises:
        InputError: if there is none.
    """
    cells = {}
    for name in SETS:
        table = out / name / "table.json"
        record: Mapping[str, Any] = read_json(table) if table.is_file() else {"rows": []}
        for row in record["rows"]:
            if row["run_of"] is not None:
                continue
            for number, seed in enumerate(row["seeds"]["finished"]):
                folder = _folder(out / name, row["folders"], seed)
                if folder is None:
                    continue
                scores = {metric: one["values"][number] for metric, one in row["metrics"].items()}
                cell = Cell(
                    f"{name}/{folder.parent.name}/{folder.name}", folder, record["dataset"]["fingerprint"], scores,
                    row["code"][number],
                )  # fmt: skip
                cells[cell.name] = cell
    if not cells:
        raise InputError("holds no finished run of a benchmark", file=out)
    return cells


def _folder(out: Path, folders: list[str], seed: int) -> Path | None:
    """The folder of a seed's run; None if it is gone."""
    named = (out / folder for folder in folders if Path(folder).name == f"seed-{seed}")
    return next((folder for folder in named if (folder / "run.json").is_file()), None)


def verify(out: Path, name: str | None, say: Callable[[str], None] = lambda text: None) -> Verified:
    """Train a cell again, the one of this name or one at random, and score its reports as the benchmark did.

    The run trains in a process of its own, on links to the data without what other runs left there. Nothing of it
    stays.

    Raises:
        InputError: for a name that is no cell, data that changed, or a run that fails.
        StoppedError: after SIGTERM or an interrupt.
    """
    cells = find_cells(out)
    if name is not None and name not in cells:
        raise InputError("no such finished run", field="--cell", got=name, expected=", ".join(cells))
    cell = cells[name or random.choice(sorted(cells))]
    say(f"{cell.name}: trained again (--cell {cell.name})")
    scores = read_json(cell.folder / "scores.json")
    started = read_started(cell.folder)
    if Dataset.open(started.dataset).fingerprint() != cell.data:
        raise InputError("is not the data set of the table any more", file=started.dataset)
    failures: list[str] = []
    made: list[dict[str, Any]] = []
    with TemporaryDirectory(prefix=".verify-", dir=out) as work:
        data = Path(work) / "data"
        ignored = shutil.ignore_patterns(".cache")
        shutil.copytree(started.dataset, data, copy_function=link, ignore=ignored)
        task = Task(
            label=scores["label"],
            method=scores["method"],
            preset=scores["preset"],
            overrides=tuple(scores["overrides"]),
            seed=scores["seed"],
            dataset=str(data),
            folder=str(Path(work) / "run"),
            protocol=scores["identity"]["protocol"],
            meteor=scores["identity"]["meteor"],
        )
        with _threads(scores.get("threads")):
            run_parallel([task], 1, lambda task, result: made.append(result), lambda task, why: failures.append(why))
    if failures:
        raise InputError(f"the run failed: {failures[0]}", file=cell.folder)
    return Verified(cell, made[0]["metrics"], code_hash()[:12])


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """So many threads for processes that are started: sums depend on their number."""
    before = os.environ.get("OMP_NUM_THREADS")
    if number is not None:
        os.environ["OMP_NUM_THREADS"] = str(number)
    try:
        yield
    finally:
        if number is not None:
            os.environ.pop("OMP_NUM_THREADS")
            if before is not None:
                os.environ["OMP_NUM_THREADS"] = before
