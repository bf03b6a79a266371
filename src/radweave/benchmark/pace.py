"""A few updates of every stage, where a method's runs do not tell what training costs.

Runs that were taken over may have their first stages from a cache, or be from a version that did not note its memory.
A short run from nothing, in a process of its own, gives pace and memory; its weights are of no use.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from radweave.ablate.one_run import Task
from radweave.ablate.parallel import run_parallel
from radweave.benchmark.costs import MethodCost
from radweave.benchmark.suite import SuiteSet

UPDATES = 25


def pace_folder(suite: SuiteSet, method: str) -> Path:
    return suite.request.out / "pace" / method


def lacks_pace(cost: MethodCost) -> bool:
    """Whether the runs leave pace or memory open."""
    unknown = any(stage.studies_per_s is None for stage in cost.stages if stage.updates > 0)
    return unknown or (cost.peak_memory is None and cost.peak_device is None)


def measure_pace(
    suite: SuiteSet, tasks: Sequence[Task], costs: Mapping[str, MethodCost], say: Callable[[str], None]
) -> bool:
    """Do the short runs that are missing; return whether there is something new."""
    first = {task.label: task for task in reversed(tasks)}
    waiting = [
        pace_task(first[method], pace_folder(suite, method))
        for method, cost in costs.items()
        if method in first and lacks_pace(cost) and not (pace_folder(suite, method) / "scores.json").is_file()
    ]
    for task in waiting:
        # One left over from before would go on with its first updates done.
        shutil.rmtree(task.path, ignore_errors=True)
        say(f"{suite.name}: {task.label}: pace and memory, {UPDATES} updates a stage")
    run_parallel(
        waiting,
        1,
        lambda task, scores: None,
        lambda task, reason: say(f"{suite.name}: {task.label}: pace not measured: {reason}"),
    )
    return bool(waiting)


def pace_task(task: Task, folder: Path) -> Task:
    """The task, cut short and with nothing taken from caches of stages."""
    stages = [name for name, stage in task.experiment().named_stages().items() if stage.epochs and stage.max_steps != 0]
    short = [text for name in stages for text in (f"stages.{name}.max_steps={UPDATES}", f"stages.{name}.select=last")]
    return replace(task, overrides=(*task.overrides, "data.keep_stages=false", *short), folder=str(folder.resolve()))
