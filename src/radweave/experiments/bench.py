"""``radweave bench``: all methods on the same data by the same protocol, with floors, costs, evidence and pages.

OUT/data/<set>/            phantoms that were drawn here
OUT/<set>/                 an ablation folder: a row per method, and one with its drafts by expected utility
OUT/<set>/pace/<method>/   a short run that measures pace and memory, if no other run of the method did
OUT/results/               the pages, their pictures, and all figures in benchmark.json; --pages gets the summary alone
OUT/sessions.jsonl         when the command ran, and for how long
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from radweave.core.errors import InputError
from radweave.core.figures import refuse_without_plots
from radweave.core.json_files import read_jsonl, write_jsonl
from radweave.data.dataset import Dataset
from radweave.experiments.ablate import AblationWatch, locked_output, make_plan, run_ablation
from radweave.experiments.bench_pages import publish, write_pages
from radweave.experiments.bench_results import SetResults, read_costs, set_results
from radweave.experiments.bench_suite import SETS, BenchRequest, SuiteSet, check_sets, measure_pace, plan_set
from radweave.phantom.study import write_phantom_dataset

__all__ = ["BenchRequest", "BenchResult", "run_bench"]

DRAWN_SEED = 0


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Results by set, the path of the page, and the number of failed runs and methods."""

    sets: dict[str, SetResults]
    page: Path
    failed: int


def run_bench(request: BenchRequest, say: Callable[[str], None] = lambda text: None) -> BenchResult:
    """Draw missing phantoms, reuse finished runs, train and score the rest, and write the pages.

    A failed run is counted and named on the pages, and the others continue. The same call resumes a stopped benchmark.

    Raises:
        InputError: for a request that cannot be planned, before anything is trained.
        StoppedError: after SIGTERM or an interrupt, when the runs have written their checkpoints.
    """
    check_sets(request)
    refuse_without_plots()
    with locked_output(request.out, "benchmark"), _session(request.out) as started:
        suites = [plan_set(request, name, _data(request, name, say)) for name in request.sets]
        plans = {suite.name: make_plan(suite.request, suite.table) for suite in suites}
        for suite in suites:
            for method, reason in suite.unable.items():
                say(f"{suite.name}: without {method}: {reason}")
        failed = 0
        records: dict[str, dict[str, Any]] = {}
        for suite in suites:
            records[suite.name], failures = _run(suite, request, say)
            failed += failures
        say("scoring and writing pages")
        sets = {suite.name: set_results(suite, records[suite.name]) for suite in suites}
        for name in (name for name, results in sets.items() if not results.full):
            say(f"{name}: no finished run of this configuration and code; its pages stay as they are")
        if request.train and request.pace:
            for suite in suites:
                known = sets[suite.name]
                if measure_pace(suite, plans[suite.name].tasks, known.costs, say):
                    sets[suite.name] = replace(known, costs=read_costs(suite, known.folders))
        results_dir = request.out / "results"
        page = write_pages(sets, results_dir, facts(request.out, started))
        if request.pages is not None and any(results.full for results in sets.values()):
            page = publish(results_dir, request.pages)
        return BenchResult(sets, page, failed)


@contextmanager
def _session(out: Path) -> Iterator[float]:
    """Record the duration of the command, also after an error; yield the time at which it began."""
    started = time.time()
    try:
        yield started
    finally:
        path = out / "sessions.jsonl"
        rows = [row for _, row in read_jsonl(path)] if path.is_file() else []
        write_jsonl(path, [*rows, {"started": round(started), "seconds": round(time.time() - started, 1)}])


def _data(request: BenchRequest, name: str, say: Callable[[str], None]) -> Path:
    """The dataset folder of a set; a phantom is drawn if none is given, once."""
    if name in request.data:
        Dataset.open(request.data[name])
        return request.data[name]
    kind = SETS[name]
    assert kind.phantom is not None, "check_sets requires a folder for the other sets"
    folder = request.out / "data" / name
    count = request.studies.get(name, kind.studies)
    if folder.is_dir():
        drawn = Dataset.open(folder).card
        if drawn.counts.get("studies") != count:
            raise InputError(
                "holds a phantom of another size; give another output folder",
                file=folder,
                got=drawn.counts.get("studies"),
                expected=count,
            )
        turnover = drawn.options.get("turnover", "low")
        if turnover != kind.phantom.turnover:
            raise InputError(
                "holds a phantom of another turnover; give another output folder, or the phantom as a data set",
                file=folder,
                got=turnover,
                expected=kind.phantom.turnover,
            )
        return folder
    say(f"{name}: drawing {count} studies")
    write_phantom_dataset(
        folder, modality=kind.modality, num_studies=count, seed=DRAWN_SEED, options=kind.phantom, jobs=request.jobs
    )
    return folder


def _run(suite: SuiteSet, request: BenchRequest, say: Callable[[str], None]) -> tuple[dict[str, Any], int]:
    """The ablation of a set and the number of failed runs; without training, only finished runs are in the record."""
    watch = AblationWatch(say=lambda text: say(f"{suite.name}: {text}"))
    result = run_ablation(replace(suite.request, train=request.train), watch, suite.table)
    return result.record, result.failed


def facts(out: Path, started: float) -> dict[str, Any]:
    """The machine, and how long the command ran in all its sessions."""
    path = out / "sessions.jsonl"
    earlier = [row["seconds"] for _, row in read_jsonl(path)] if path.is_file() else []
    return {
        "machine": f"{_processor()}, {os.cpu_count()} logical cores",
        "sessions": len(earlier) + 1,
        "wall_s": round(sum(earlier) + time.time() - started, 1),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    model = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.is_file() else None
    return model[1] if model else platform.processor() or platform.machine()
