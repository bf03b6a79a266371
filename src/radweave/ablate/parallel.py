"""Runs of an ablation side by side, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import torch

from radweave.ablate.one_run import STOPPED, Task
from radweave.base.cores import usable_cores
from radweave.base.json_files import read_json, write_json
from radweave.base.stopping import StoppedError, asked_to_stop
from radweave.data.cache.images import build_cache
from radweave.data.dataset import Dataset

_POLL_S = 0.1
# A run that was asked to stop finishes its update and writes a checkpoint; validation may come in between.
_PATIENCE_S = 600.0
_MAIN = "radweave.ablate"


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

    Raises:
        StoppedError: after SIGTERM or an interrupt, when all runs have written their checkpoints.
    """
    _decode_images(tasks)
    waiting, active, free = deque(tasks), list[_Child](), list(range(jobs))
    with asked_to_stop() as asked:
        while waiting or active:
            if number := asked():
                _stop(active)
                raise StoppedError(number)
            while waiting and free:
                active.append(_start(waiting.popleft(), free.pop(0), jobs))
            time.sleep(_POLL_S)
            for child in [child for child in active if child.process.poll() is not None]:
                active.remove(child)
                free.append(child.slot)
                child.log.close()
                _tell(child, done, failed)


def _decode_images(tasks: Sequence[Task]) -> None:
    """Fill the data set's image cache before runs that would fill it at the same time."""
    wanted = {(task.dataset, data.image_size, data.ct) for task in tasks for data in [task.experiment().data]}
    for path, size, ct in sorted(wanted, key=str):
        build_cache(Dataset.open(Path(path)), size=size, ct=ct)


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
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdigit():
        threads = max(1, min(threads, int(given)))
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
