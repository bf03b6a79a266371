"""The thread that feeds the inference process from the work list, and keeps what comes back.

The database is the queue: what waits there is drafted, whichever process or server ends in between. A process that ends
or takes too long is replaced; its studies wait again, each alone, so that the one that ends it is found and refused and
the others are not.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radweave.core.errors import InputError, UnusableModelError
from radweave.core.study import Modality, Report, Study, View
from radweave.workstation import drafts, store
from radweave.workstation.database import Database, now
from radweave.workstation.events import Metrics, say, say_failure
from radweave.workstation.result import Known, result_of
from radweave.workstation.settings import Settings

if TYPE_CHECKING:
    from radweave.data.loader import Example
    from radweave.engine.restore import Run
    from radweave.inference.pictures import Picture
    from radweave.inference.predictor import Predictor

# The inference process: it holds the model, and answers a batch of studies with drafts or reasons.
#
# It speaks JSON over one pipe. It ends when the pipe does, so that none stays behind where the server was killed.


PRIOR = "prior"
"""What the study before is called, whose own name nobody needs."""
NO_MODEL = "model"
"""The kind of refusal where the images are fine and no draft came of them."""
UNSEEN = "a prior was found; this model was trained without any and does not look at it"
UNREPORTED = "the prior has no signed report: the model sees its image alone"


def main(pipe: Connection, run: str, data: str | None, untrained: bool) -> None:
    """Serve until the pipe ends."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # A stop is the server's to handle: it lets a draft be finished, then closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        inference = InferenceModel(Path(run), None if data is None else Path(data), untrained=untrained)
    except InputError as error:
        _send(pipe, {"kind": "broken", "reason": str(error)})
        return
    _send(pipe, {"kind": "ready", "modality": inference.predictor.modality})
    while True:
        try:
            jobs = json.loads(pipe.recv_bytes())
            for answer in inference.answers(jobs):
                _send(pipe, answer)
            _send(pipe, {"kind": "done"})
        except (EOFError, BrokenPipeError):
            return
        except Exception as error:  # the server gives the studies to a new process, each alone
            say_failure("inference-failed", error)
            return


def _send(pipe: Connection, value: dict[str, Any]) -> None:
    pipe.send_bytes(json.dumps(value, ensure_ascii=True, allow_nan=False).encode())


@dataclass(frozen=True, slots=True)
class _Read:
    """A study as the model gets it, the readers' warnings, and its views in the model's order.

    Of a view, ``image`` is its place among the study's files, and ``covers`` what part of it a map lies over: (start,
    extent) along each of its axes, in shares of its size.
    """

    example: Example
    warnings: tuple[str, ...]
    views: list[dict[str, Any]]
    known: Known


class InferenceModel:
    """A restored run that answers jobs."""

    def __init__(self, run: Path, data: Path | None, *, untrained: bool) -> None:
        from radweave.data.dataset import Dataset
        from radweave.engine.restore import restore
        from radweave.inference.predictor import Predictor

        self.run: Run = restore(run)
        self.predictor: Predictor = Predictor.of(self.run, untrained=untrained)
        if self.predictor.refusal is not None:
            raise InputError(self.predictor.refusal)
        target = self.run.experiment.data.target
        self._dataset = None if data is None else Dataset.open(data).aimed(target)

    def answers(self, jobs: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """A draft or a reason for each job: those that can be read are drafted as one batch."""
        from radweave.labels import get_labeler

        read: list[tuple[str, _Read]] = []
        for job in jobs:
            try:
                read.append((job["id"], self._read(job)))
            except InputError as error:
                yield _refused(job["id"], _said(error), getattr(error, "kind", None))
        try:
            reports = self._reports([one.example for _, one in read])
        except UnusableModelError as error:
            yield from (_refused(study, error.reason, NO_MODEL) for study, _ in read)
            return
        for report, (study, one) in zip(reports, read, strict=True):
            if isinstance(report, InputError):
                yield _refused(study, _said(report), NO_MODEL)
                continue
            evidence = {**report.evidence, "views": one.views}
            whole = replace(report, study_id=study, evidence=evidence, warnings=(*report.warnings, *one.warnings))
            labeler = get_labeler(self.run.experiment.data.label_set)
            yield {"kind": "drafted", "id": study, **result_of(whole, self.run.card, labeler, one.known)}

    def _reports(self, examples: list[Example]) -> list[Report | InputError]:
        """A report of each, or why there is none: where one refuses a batch, each is drafted alone.

        Raises:
            UnusableModelError: if none can be drafted.
        """
        try:
            return list(self.predictor.reports(examples, batch_size=max(1, len(examples))))
        except UnusableModelError:
            raise
        except InputError as error:
            if len(examples) == 1:
                return [error]
            return [found for one in examples for found in self._reports([one])]

    def _read(self, job: dict[str, Any]) -> _Read:
        from radweave.inference.pictures import UnlikeError, view_of

        # What was set aside is what was seen: images that merely look unlike are no damaged ones.
        unlike = job.get("anyway") is not None
        rest = unlike and job["anyway"] != UnlikeError.kind
        if job["dataset_study"] is not None:
            return self._of_dataset(job["dataset_study"], unlike=unlike, rest=rest)
        files = [Path(path) for path in job["files"]]
        seen, warnings = self.predictor.read_views(files, force=rest)
        example = self.predictor.example(seen, job["id"], force=unlike)
        views = [self._view(path.name, files.index(path), view_of(picture), picture) for path, picture in seen]
        if job.get("prior") is None:
            return _Read(example, warnings, views, Known())
        return self._with_prior(_Read(example, warnings, views, Known()), job["prior"])

    def _with_prior(self, read: _Read, given: dict[str, Any]) -> _Read:
        """A study with the patient's one before it, as in training; without it, where that one cannot be read.

        A run that was not trained with priors does not get it: what it writes would compare with what it cannot see.
        """
        report = given["report"] or ""
        known = Known(prior=Study(study_id=PRIOR, patient_id=PRIOR, report=report or None))
        if not self.run.experiment.data.priors:
            return replace(read, known=known, warnings=(*read.warnings, UNSEEN))
        try:
            seen, _ = self.predictor.read_views([Path(path) for path in given["files"]])
            before = self._as_trained(self.predictor.example(seen, PRIOR), report)
        except InputError as error:
            return replace(read, warnings=(*read.warnings, f"the prior cannot be read: {error.reason}"))
        said = () if report else (UNREPORTED,)
        # Who laid it here saw to it that it is the same patient's.
        example = replace(read.example, prior=replace(before, patient_id=read.example.patient_id))
        return replace(read, example=example, known=known, warnings=(*read.warnings, *said))

    def _as_trained(self, before: Example, report: str) -> Example:
        """A prior with its report as tokens and as label states, as those of the training split have it."""
        from radweave.core.ontology import LABEL_SETS
        from radweave.data.loader import class_states
        from radweave.data.tokenizer import encode
        from radweave.labels import get_labeler

        tokenizer, data = self.run.tokenizer, self.run.experiment.data
        said = {name: one.state for name, one in get_labeler(data.label_set).label([report])[0].items()}
        return replace(
            before,
            report=report,
            token_ids=(*encode(tokenizer, report)[: data.max_tokens - 1], int(tokenizer.eos_token_id)),
            class_states=class_states(said, LABEL_SETS[data.label_set].classes) if report else None,
        )

    def _view(self, file: str, image: int, view: View, picture: Picture) -> dict[str, Any]:
        from radweave.inference.pictures import covered_by_map

        covers = covered_by_map(picture, image_size=self.predictor.image_size, ct=self.predictor.ct)
        return {"file": file, "image": image, "view": view.value, "covers": covers}

    def _of_dataset(self, name: str, *, unlike: bool, rest: bool) -> _Read:
        """A study under its own name and with its own patient, so that no memory answers with either."""
        from radweave.inference.explain import read_dataset_study
        from radweave.inference.predictor import refuse_outliers

        if self._dataset is None:
            raise InputError("is of a data set, and the server was started without one", field="--data")
        found = read_dataset_study(self.run, self._dataset, name, force=rest)
        files = [Path(ref.path) for ref, _ in found.views]
        if not unlike:
            refuse_outliers(self.predictor.ood, found.example, files)
        places = [ref.path for ref in found.study.images]
        views = [
            self._view(Path(ref.path).name, places.index(ref.path), ref.view, picture) for ref, picture in found.views
        ]
        return _Read(found.example, found.warnings, views, Known(found.study, self._prior(found.study)))

    def _prior(self, study: Study) -> Study | None:
        assert self._dataset is not None
        others = () if study.prior is None else self._dataset.studies(study.split)
        return next((other for other in others if other.study_id == study.prior), None)


def _refused(study: str, reason: str, refusal: str | None) -> dict[str, Any]:
    """``refusal`` is set where the images can be shown all the same."""
    return {"kind": "refused", "id": study, "reason": reason, "refusal": refusal}


def _said(error: InputError) -> str:
    """A reason without the folder in which the server keeps the file, and without an option of the command line."""
    said = str(error).replace("; give --force (force=True) to report on it anyway", "")
    return said if error.file is None else said.replace(error.file, Path(error.file).name)


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
            allowed = drafts.allowed(connection, [job.id for job in jobs])
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
                said = [*drafts.warning(connection, study), *answer["warnings"]]
                kept = store.finish(connection, study, {**answer, "warnings": said})
            else:
                kept = store.refuse(connection, study, answer["reason"])
                shows = kept and drafts.keep(
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
            drafts.forget(connection, study)
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
