"""The thread that feeds the inference process from the work list, and keeps what comes back.

The database is the queue: what waits there is drafted, whichever process or server ends in between. A process that ends
or takes too long is replaced; its studies wait again, each alone, so that the one that ends it is found and refused and
the others are not.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from radweave.base.study import Modality
from radweave.serve import anyway, store
from radweave.serve.database import Database
from radweave.serve.events import say, say_failure
from radweave.serve.metrics import Metrics
from radweave.serve.schema import now
from radweave.serve.settings import Settings
from radweave.serve.worker import main

POLL_S = 0.2
_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_KEPT_REASONS = 50

Target = Callable[[Connection, str, str | None, bool], None]


class WorkerLostError(Exception):
    """The inference process ended, hung or cannot start; the reason is for users."""


@dataclass(frozen=True, slots=True)
class Lost:
    """When and why an inference process was lost or could not start, and how many studies it had."""

    time: datetime
    reason: str
    studies: int


class Worker:
    """One inference process and its pipe."""

    def __init__(self, settings: Settings, target: Target, stopping: threading.Event) -> None:
        context = get_context("spawn")
        self.pipe, child = context.Pipe()
        data = None if settings.data is None else str(settings.data)
        self.process: BaseProcess = context.Process(
            target=target, args=(child, str(settings.run), data, settings.untrained), daemon=True
        )
        self.process.start()
        child.close()  # else the pipe would not end with the process
        self.modality: Modality = "xray"
        try:
            first = self.receive(settings.start_s, stopping)
        except WorkerLostError:
            self.kill()
            raise
        if first["kind"] == "broken":
            self.kill()
            raise WorkerLostError(first["reason"])
        self.modality = first["modality"]

    def send(self, jobs: Sequence[store.Job], allowed: Mapping[str, str]) -> None:
        """Ask for drafts; ``allowed`` has the kind of refusal that somebody set aside, of the studies that have one."""
        rows = [
            {"id": job.id, "anyway": allowed.get(job.id), "files": job.files, "dataset_study": job.dataset_study,
             "prior": None if job.prior is None else job.prior.as_json()}
            for job in jobs
        ]  # fmt: skip
        try:
            self.pipe.send_bytes(json.dumps(rows).encode())
        except OSError:
            raise WorkerLostError("the inference process ended") from None

    def receive(self, seconds: float, stopping: threading.Event | None = None) -> dict[str, Any]:
        """The next answer.

        Raises:
            WorkerLostError: if the process ended, the time is over, or ``stopping`` was set.
        """
        end = time.monotonic() + seconds
        try:
            while not self.pipe.poll(POLL_S):
                if time.monotonic() > end:
                    raise WorkerLostError(f"it took longer than {seconds:g} s")
                if stopping is not None and stopping.is_set():
                    raise WorkerLostError("the server stops")
            answer: dict[str, Any] = json.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            raise WorkerLostError("the inference process ended") from None
        return answer

    def kill(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.join()


class Inference:
    """The feeder: ``start`` it, ``wake`` it where a study came in, ``stop`` it."""

    def __init__(self, settings: Settings, database: Database, metrics: Metrics, *, target: Target = main) -> None:
        self._settings, self._database, self._metrics, self._target = settings, database, metrics, target
        self._wake, self._stopping, self._hurry = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="inference", daemon=True)
        self._worker: Worker | None = None
        self.problem: str | None = None
        self.reasons: deque[Lost] = deque(maxlen=_KEPT_REASONS)

    @property
    def is_ready(self) -> bool:
        """Whether an inference process holds the model and takes studies."""
        worker = self._worker
        return worker is not None and worker.process.is_alive() and not self._stopping.is_set()

    @property
    def pid(self) -> int | None:
        """The inference process that there is."""
        return None if self._worker is None else self._worker.process.pid

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def start(self) -> None:
        with self._database.writing() as connection:
            again = store.recover(connection)
        if again:
            say("recovered", studies=again)
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        """Take no more, let what is being drafted be finished for ``drain_s``, and end the process."""
        self._stopping.set()
        self._wake.set()
        if not self._thread.ident:
            return
        self._thread.join(self._settings.drain_s)
        if self._thread.is_alive():
            self._hurry.set()
            self._thread.join()

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                self._step()
                failures = 0
            except WorkerLostError as error:
                self.problem = str(error)
                self.reasons.append(Lost(now(), str(error), studies=0))
                failures += 1
                say("worker-not-started", count=failures)
                self._stopping.wait(min(_LONGEST_PAUSE_S, _PAUSE_S * 2**failures))
            except Exception as error:  # a database that is away for a moment must not end the feeder
                say_failure("inference-failed", error)
                self._stopping.wait(_PAUSE_S)
        if self._worker is not None:
            self._worker.kill()

    def _step(self) -> None:
        """Draft what waits, or wait for it."""
        if self._worker is None or not self._worker.process.is_alive():
            self._replace()
        assert self._worker is not None
        self._wake.clear()
        if self._stopping.is_set():  # it was woken for that, before it looked
            return
        self._database.hold.keep()
        with self._database.writing() as connection:
            jobs = store.claim(connection, self._settings.batch)
        if not jobs:
            self._wake.wait(_PAUSE_S)
            return
        try:
            self._draft(self._worker, jobs)
        except WorkerLostError as error:
            self._metrics.count("worker_deaths")
            say("worker-lost", studies=len(jobs))
            self.reasons.append(Lost(now(), str(error), studies=len(jobs)))
            self._worker.kill()
            self._worker = None
            self._give_back(jobs, str(error))
        except BaseException:
            self._give_back(jobs, "the draft could not be kept")
            raise

    def _replace(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None
        begun = time.monotonic()
        self._worker = Worker(self._settings, self._target, self._stopping)
        self.problem = None
        self._metrics.count("worker_starts")
        say("worker-ready", seconds=round(time.monotonic() - begun, 3), pid=self.pid)

    def _draft(self, worker: Worker, jobs: Sequence[store.Job]) -> None:
        begun = time.monotonic()
        with self._database.reading() as connection:
            allowed = anyway.allowed(connection, [job.id for job in jobs])
        worker.send(jobs, allowed)
        limit = self._settings.study_s * len(jobs)
        while True:
            left = max(0.0, begun + limit - time.monotonic())
            answer = worker.receive(left, self._hurry)
            if answer["kind"] == "done":
                return
            self._keep(answer, time.monotonic() - begun)

    def _keep(self, answer: dict[str, Any], seconds: float) -> None:
        study, shows = answer["id"], False
        with self._database.writing() as connection:
            if answer["kind"] == "drafted":
                said = [*anyway.warning(connection, study), *answer["warnings"]]
                kept = store.finish(connection, study, {**answer, "warnings": said})
            else:
                kept = store.refuse(connection, study, answer["reason"])
                shows = kept and anyway.keep(
                    connection, study, answer.get("refusal"), store.reason_of(connection, study)
                )
        if not kept:  # cancelled while it was written
            self._metrics.count("dropped_drafts")
            return
        say(answer["kind"], study=study, seconds=round(seconds, 3))
        if answer["kind"] == "drafted":
            self._metrics.drafted(seconds)
        elif not shows:
            self.forget_files(study)

    def _give_back(self, jobs: Sequence[store.Job], reason: str) -> None:
        ids = [job.id for job in jobs]
        with self._database.writing() as connection:
            if self._stopping.is_set():
                store.recover(connection)
                return
            refused = store.give_back(connection, ids, tries=self._settings.tries, reason=reason)
        for study in refused:
            self.forget_files(study)

    def forget_files(self, study: str) -> None:
        """Remove a refused study's uploaded files and what was decoded of them; files of others are never touched."""
        with self._database.writing() as connection:
            anyway.forget(connection, study)
            prior = store.prior_of(connection, study)
            paths = [Path(path) for path in (*store.uploaded(connection, study), *(prior.files if prior else ()))]
        shutil.rmtree(self._settings.pixels / study, ignore_errors=True)
        for path in paths:
            if path.is_relative_to(self._settings.files.absolute()):
                remove(path, self._settings.files.absolute())


def remove(path: Path, top: Path) -> None:
    """Remove a file, or the folder of a series, and what is empty then below ``top``."""
    for file in [path] if path.is_file() else [*path.glob("*")]:
        with contextlib.suppress(OSError):
            file.unlink()
    folder = path if path.is_dir() else path.parent
    while folder != top and folder.is_relative_to(top):
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent
