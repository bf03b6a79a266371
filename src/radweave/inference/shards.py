"""Bulk work over many studies: in shards, each computed once, written whole, and kept when the job is stopped.

FOLDER/plan.json   what is computed, from what, and which studies each shard holds
FOLDER/00000  ...  finished shards, written aside and renamed into place

A job that is started again with the same plan computes only what is missing. Shards are computed in this process,
shared out among the ranks of a torchrun job, or by a Ray cluster; since a shard is one file (or folder) that appears
whole, a worker that dies costs its shard's time and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from radweave.core.errors import InputError
from radweave.core.extras import refuse_without
from radweave.core.json_files import read_json, write_json
from radweave.core.storage import Kind, exclusive, refuse_existing, remove_leftovers, sha256_json, write_folder
from radweave.engine.distributed import Ranks

Compute = Callable[[Sequence[str], Path], None]
"""Compute the studies of one shard and write the result to the path, whole or not at all."""


class Recipe(Protocol):
    """Start values for a worker on another machine: small and plain."""

    def open(self) -> Compute: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """The shards of a job: study ids, in order."""

    folder: Path
    shards: tuple[tuple[str, ...], ...]

    def path(self, number: int) -> Path:
        """Path of a finished shard."""
        return self.folder / f"{number:05d}"

    def missing(self) -> list[int]:
        """The shards that are not finished."""
        return [number for number in range(len(self.shards)) if not self.path(number).exists()]


@contextmanager
def locked_output(out: Path, ranks: Ranks, *, overwrite: bool, kind: Kind | None = None) -> Iterator[None]:
    """Lock an output for this job, from before the work to its end; leftovers of a killed writer are removed.

    Raises:
        InputError: on every rank, if another job writes it, or it is there (see ``refuse_existing``).
    """
    with ExitStack() as stack:
        with ranks.first_goes_first():
            if ranks.is_first:
                stack.enter_context(_locked(out, overwrite, kind))
        yield


@contextmanager
def _locked(out: Path, overwrite: bool, kind: Kind | None) -> Iterator[None]:
    refuse_existing(out, overwrite=overwrite, kind=kind)
    lock = out.with_name(f".{out.name}.lock")
    try:
        with exclusive(lock, wait=False):
            try:
                # Whoever held it a moment ago may have finished.
                refuse_existing(out, overwrite=overwrite, kind=kind)
                remove_leftovers(out.parent)
                remove_leftovers(shards_of(out))
                yield
            finally:
                lock.unlink(missing_ok=True)
    except BlockingIOError:
        raise InputError("another process is writing this", file=out) from None


def shards_of(out: Path) -> Path:
    """Folder of the shards of an output until all are finished."""
    return out.with_name(f"{out.name}.shards")


def open_plan(folder: Path, study_ids: Sequence[str], *, shard_size: int, identity: dict[str, Any]) -> Plan:
    """Make the plan, or go on with the one that is there; shards of another plan are removed.

    Args:
        folder: the shards' folder.
        study_ids: what is to be computed; each id once.
        shard_size: studies per shard.
        identity: everything that decides the result, as JSON values.
    """
    assert len(set(study_ids)) == len(study_ids), "a study stands in one shard only"
    shards = [list(study_ids[start : start + shard_size]) for start in range(0, len(study_ids), shard_size)]
    key = sha256_json({"identity": identity, "shards": shards})
    try:
        same = read_json(folder / "plan.json")["key"] == key
    except (InputError, KeyError, TypeError):
        same = False
    if not same:
        with write_folder(folder, overwrite=True) as partial:
            write_json(partial / "plan.json", {"key": key, "identity": identity, "shards": shards})
    return Plan(folder, tuple(map(tuple, shards)))


def shards_to_compute(plan: Plan, ranks: Ranks) -> Iterator[int]:
    """The missing shards, or this rank's share of them, for the caller to compute; ends when all ranks are done.

    Raises:
        InputError: at the end, if a shard is not there.
    """
    missing: list[int] = ranks.from_first(plan.missing())
    yield from missing[ranks.rank :: ranks.size]
    ranks.wait()
    _refuse_missing(plan)
    ranks.wait()  # the first may remove the shards now: all have looked


def compute_on_ray(
    plan: Plan, recipe: Recipe, *, workers: int, finished: Callable[[int], None] | None = None, on_gpus: bool = True
) -> None:
    """Compute the missing shards with Ray Data: ``workers`` processes that each open the recipe once.

    It joins the cluster that RAY_ADDRESS names, or starts one on this machine. All machines see the same disk.
    ``finished`` is called with the number of each finished shard. Each worker has a GPU of a cluster that has any,
    unless it computes nothing itself (``on_gpus``).

    Raises:
        InputError: if the extra is not installed.
    """
    refuse_without("ray", "a cluster", field="--ray")
    missing = plan.missing()
    if not missing:
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    import ray
    import ray.data

    started = not ray.is_initialized()
    if started:
        here = not os.environ.get("RAY_ADDRESS")
        ray.init(log_to_driver=False, num_cpus=workers if here else None, include_dashboard=False if here else None)
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False
        rows = [{"number": number, "path": str(plan.path(number))} for number in missing]
        shards = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            _RayWorker,
            fn_constructor_args=(recipe, plan.shards),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=min(workers, len(missing))),
            num_gpus=1 if on_gpus and ray.cluster_resources().get("GPU") else 0,
        )
        for row in shards.iter_rows():
            if finished is not None:
                finished(int(row["number"]))
    finally:
        if started:
            ray.shutdown()
    _refuse_missing(plan)


class _RayWorker:
    """One process of the pool. Ray may run a shard twice when a worker is lost; it is then found finished."""

    def __init__(self, recipe: Recipe, shards: tuple[tuple[str, ...], ...]) -> None:
        self.compute = recipe.open()
        self.shards = shards

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        for number, path in zip(batch["number"], batch["path"], strict=True):
            if not Path(str(path)).exists():
                self.compute(self.shards[int(number)], Path(str(path)))
        return {"number": batch["number"]}


def _refuse_missing(plan: Plan) -> None:
    missing = plan.missing()
    if missing:
        raise InputError(f"{len(missing)} of {len(plan.shards)} shards were not written", file=plan.folder)
