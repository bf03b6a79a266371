"""``radweave ablate``: a method's ablation table over seeds, resumable run by run, as one table.

DIR/table.md table.tex table.json      written anew after every run
DIR/runs/<row>/seed-<n>/               a run folder with predictions.jsonl and scores.json
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from radweave.ablate.one_run import Task, finished_scores, run_task
from radweave.ablate.parallel import run_parallel
from radweave.ablate.plan import AblationRequest, Plan, make_plan
from radweave.ablate.report import ablation_record, ablation_tables
from radweave.ablate.reuse import take_over
from radweave.base.errors import InputError
from radweave.base.json_files import read_json, write_json
from radweave.base.locks import exclusive
from radweave.base.storage import write_text
from radweave.contract.tables import Table
from radweave.evaluation.tables.formats import TextTable, latex_tables, markdown_tables
from radweave.runs.stages import TrainingWatch

__all__ = ["AblationRequest", "AblationResult", "AblationWatch", "Plan", "make_plan", "run_ablation"]

Key = tuple[str, int]
_SHOWN_REFUSALS = 8
_SAME = ("method", "table", "preset", "overrides", "dataset")


@dataclass(frozen=True, slots=True)
class AblationWatch:
    """Who is told: a line per run, and for runs in this process the training's watch."""

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
    with _held(request):
        if request.reuse:
            _take_over(plan, watch)
        campaign = _Campaign(plan, watch)
        campaign.collect_finished()
        campaign.write()
        waiting = [task for task in plan.tasks if request.train and _key(task) not in campaign.scores]
        if request.jobs > 1 or request.own_processes:
            # What reports again needs the runs of the others.
            for group in ([task for task in waiting if not task.run], [task for task in waiting if task.run]):
                run_parallel(group, request.jobs, campaign.done, campaign.failed)
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
def _held(request: AblationRequest) -> Iterator[None]:
    """Hold the output folder, so that no second ablation writes there."""
    try:
        with exclusive(request.out / ".lock", wait=False):
            yield
    except BlockingIOError:
        raise InputError("another ablation is writing here", file=request.out) from None


class _Campaign:
    """What is known of the runs so far."""

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
