"""Inference: the process that holds the model, and the thread that feeds it from the work list and stores its drafts.

The database is the queue, so that no study is lost with a process or server. A process that ends or takes too long is
replaced; its studies are retried one by one, so that only the one that ends it is refused.
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
from radweave.core.evidence import DraftEvidence, ViewEvidence
from radweave.core.study import Modality, Report, Study, View
from radweave.workstation import drafts, reader_study, store
from radweave.workstation.database import Database, now
from radweave.workstation.events import Metrics, log_event, log_failure
from radweave.workstation.result import StudyContext, result_of
from radweave.workstation.settings import Settings

if TYPE_CHECKING:
    from radweave.data.loader import Example
    from radweave.engine.restore import Run
    from radweave.inference.pictures import Picture
    from radweave.inference.predictor import Predictor

# The inference process answers batches of studies as JSON over one pipe, and ends with the pipe.

PRIOR = "prior"
"""Study id of the prior, whose own id is not needed."""
NO_MODEL = "model"
"""Kind of a refusal of valid images of which the model makes no draft."""
FOR_READERS = ("unprompted_comparisons=remove", "deidentification_marks=remove")
"""Decoding of drafts that a radiologist signs, whatever the run is scored by: no comparison without a prior."""
PRIOR_NOT_USED = "a prior was found; this model was trained without any and does not look at it"
PRIOR_UNREPORTED = "the prior has no signed report: the model sees its image alone"


def refuse_unusable_options(run: Path, options: Sequence[str]) -> None:
    """Refuse decoding options that the run does not have, and those that drafts for readers are never made with.

    Raises:
        InputError: naming the option.
    """
    from radweave.core.config import override
    from radweave.engine.restore import read_experiment
    from radweave.engine.run_folder import read_card_alone

    fixed = {option.partition("=")[0]: option for option in FOR_READERS}
    for option in options:
        if (needed := fixed.get(option.partition("=")[0], option)) != option:
            raise InputError("drafts for readers have another", field="--set", got=option, expected=needed)
    override(read_experiment(run, read_card_alone(run)).decoding, options)


def main(pipe: Connection, run: str, data: str | None, untrained: bool, decoding: Sequence[str] = ()) -> None:
    """Serve until the pipe ends."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # The server handles signals: it lets a draft be finished, then closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        inference = InferenceModel(
            Path(run), None if data is None else Path(data), untrained=untrained, decoding=decoding
        )
    except InputError as error:
        _send(pipe, {"kind": "broken", "reason": str(error)})
        return
    made = {"modality": inference.predictor.modality, "drafts": inference.predictor.drafts}
    _send(pipe, {"kind": "ready", **made})
    while True:
        try:
            jobs = json.loads(pipe.recv_bytes())
            for answer in inference.answers(jobs):
                _send(pipe, answer)
            _send(pipe, {"kind": "done"})
        except (EOFError, BrokenPipeError):
            return
        except Exception as error:  # the server gives the studies to a new process, each alone
            log_failure("inference-failed", error)
            return


def _send(pipe: Connection, value: dict[str, Any]) -> None:
    pipe.send_bytes(json.dumps(value, ensure_ascii=True, allow_nan=False).encode())


@dataclass(frozen=True, slots=True)
class _LoadedStudy:
    """A study as input of the model, with warnings, and its views in the order of the model.

    Of a view, ``image`` is its index among the files of the study, and ``covers`` the part of it covered by a map:
    (start, extent) along each axis, as fractions of its size.
    """

    example: Example
    warnings: tuple[str, ...]
    views: list[ViewEvidence]
    known: StudyContext


class InferenceModel:
    """A restored run that answers jobs."""

    def __init__(self, run: Path, data: Path | None, *, untrained: bool, decoding: Sequence[str] = ()) -> None:
        from radweave.data.dataset import Dataset
        from radweave.engine.restore import restore
        from radweave.inference.predictor import Predictor

        self.run: Run = restore(run)
        made = Predictor.of(self.run, untrained=untrained, decoding=(*decoding, *FOR_READERS))
        self.predictor: Predictor = replace(made, options=tuple(decoding))
        if self.predictor.refusal is not None:
            raise InputError(self.predictor.refusal)
        target = self.run.experiment.data.target
        self._dataset = None if data is None else Dataset.open(data).aimed(target)

    def answers(self, jobs: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """A draft or a refusal for each job; readable studies are drafted as one batch."""
        from radweave.labels import get_labeler

        read: list[tuple[str, _LoadedStudy]] = []
        for job in jobs:
            try:
                read.append((job["id"], self._read(job)))
            except InputError as error:
                yield _refused(job["id"], _reason_of(error), getattr(error, "kind", None))
        try:
            reports = self._reports([one.example for _, one in read])
        except UnusableModelError as error:
            yield from (_refused(study, error.reason, NO_MODEL) for study, _ in read)
            return
        for report, (study, one) in zip(reports, read, strict=True):
            if isinstance(report, InputError):
                yield _refused(study, _reason_of(report), NO_MODEL)
                continue
            evidence: DraftEvidence = {**report.evidence, "views": one.views}
            whole = replace(report, study_id=study, evidence=evidence, warnings=(*report.warnings, *one.warnings))
            labeler = get_labeler(self.run.experiment.data.label_set)
            yield {"kind": "drafted", "id": study, **result_of(whole, self.run.card, labeler, one.known)}

    def _reports(self, examples: list[Example]) -> list[Report | InputError]:
        """A report or an error of each example. If a batch is refused, each example is drafted alone.

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
            return [report for one in examples for report in self._reports([one])]

    def _read(self, job: dict[str, Any]) -> _LoadedStudy:
        from radweave.inference.pictures import UnlikeError, view_of, without_advice

        # An override of the out-of-distribution check does not override checks of integrity.
        unlike = job.get("anyway") is not None
        rest = unlike and job["anyway"] != UnlikeError.kind
        if job["dataset_study"] is not None:
            return self._of_dataset(job["dataset_study"], unlike=unlike, rest=rest)
        files = [Path(path) for path in job["files"]]
        images, read = self.predictor.read_views(files, force=rest)
        warnings = without_advice(read)
        example = self.predictor.example(images, job["id"], force=unlike)
        views = [self._view(path.name, files.index(path), view_of(picture), picture) for path, picture in images]
        if job.get("prior") is None:
            return _LoadedStudy(example, warnings, views, StudyContext())
        return self._with_prior(_LoadedStudy(example, warnings, views, StudyContext()), job["prior"])

    def _with_prior(self, read: _LoadedStudy, prior: dict[str, Any]) -> _LoadedStudy:
        """Add the prior to a study as in training, if it can be read and a draft of the run reads priors.

        Another run does not get it: its comparisons would refer to images that it does not read.
        """
        report = prior["report"] or ""
        known = StudyContext(prior=Study(study_id=PRIOR, patient_id=PRIOR, report=report or None))
        if not self.run.experiment.reads_priors(self.predictor.decoding):
            return replace(read, known=known, warnings=(*read.warnings, PRIOR_NOT_USED))
        try:
            images, _ = self.predictor.read_views([Path(path) for path in prior["files"]])
            as_trained = self._as_trained(self.predictor.example(images, PRIOR), report)
        except InputError as error:
            return replace(read, warnings=(*read.warnings, f"the prior cannot be read: {error.reason}"))
        missing = () if report else (PRIOR_UNREPORTED,)
        # The search for priors has checked that it is the same patient.
        example = replace(read.example, prior=replace(as_trained, patient_id=read.example.patient_id))
        return replace(read, example=example, known=known, warnings=(*read.warnings, *missing))

    def _as_trained(self, example: Example, report: str) -> Example:
        """A prior with its report as tokens and label states, as in training."""
        from radweave.core.ontology import LABEL_SETS
        from radweave.data.loader import class_states
        from radweave.data.tokenizer import encode
        from radweave.labels import get_labeler

        tokenizer, data = self.run.tokenizer, self.run.experiment.data
        states = {name: one.state for name, one in get_labeler(data.label_set).label([report])[0].items()}
        return replace(
            example,
            report=report,
            token_ids=(*encode(tokenizer, report)[: data.max_tokens - 1], int(tokenizer.eos_token_id)),
            class_states=class_states(states, LABEL_SETS[data.label_set].classes) if report else None,
        )

    def _view(self, file: str, image: int, view: View, picture: Picture) -> ViewEvidence:
        from radweave.inference.pictures import covered_by_map

        covers = covered_by_map(picture, image_size=self.predictor.image_size, ct=self.predictor.ct)
        return {"file": file, "image": image, "view": view.value, "covers": covers}

    def _of_dataset(self, name: str, *, unlike: bool, rest: bool) -> _LoadedStudy:
        """A study with its own id and patient id, so that retrieval excludes both."""
        from radweave.inference.explain import read_dataset_study

        if self._dataset is None:
            raise InputError("is of a data set, and the server was started without one", field="--data")
        loaded = read_dataset_study(self.run, self._dataset, name, self.predictor.decoding, force=rest)
        files = [Path(ref.path) for ref, _ in loaded.views]
        if not unlike:
            self.predictor.refuse_outliers(loaded.example, files)
        places = [ref.path for ref in loaded.study.images]
        views = [
            self._view(Path(ref.path).name, places.index(ref.path), ref.view, picture) for ref, picture in loaded.views
        ]
        return _LoadedStudy(
            loaded.example, loaded.warnings, views, StudyContext(loaded.study, self._prior(loaded.study))
        )

    def _prior(self, study: Study) -> Study | None:
        assert self._dataset is not None
        others = () if study.prior is None else self._dataset.studies(study.split)
        return next((other for other in others if other.study_id == study.prior), None)


def _refused(study: str, reason: str, refusal: str | None) -> dict[str, Any]:
    """Answer of a refusal; ``refusal`` is its kind if the images can be shown."""
    return {"kind": "refused", "id": study, "reason": reason, "refusal": refusal}


def _reason_of(error: InputError) -> str:
    """Text of an error without the folder of the server and without options of the command line."""
    text = str(error).replace("; give --force (force=True) to report on it anyway", "")
    return text if error.file is None else text.replace(error.file, Path(error.file).name)


POLL_S = 0.2
_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_KEPT_REASONS = 50

Target = Callable[[Connection, str, str | None, bool], None]


class ProcessLostError(Exception):
    """The inference process ended, hung or cannot start; the message is shown to users."""


@dataclass(frozen=True, slots=True)
class ProcessLoss:
    """Loss or failed start of an inference process: time, reason and number of its studies."""

    time: datetime
    reason: str
    studies: int


class InferenceProcess:
    """An inference process and its pipe."""

    def __init__(self, settings: Settings, target: Target, stopping: threading.Event) -> None:
        context = get_context("spawn")
        self.pipe, child = context.Pipe()
        data = None if settings.data is None else str(settings.data)
        options = {"decoding": settings.decoding} if settings.decoding else {}
        self.process: BaseProcess = context.Process(
            target=target, args=(child, str(settings.run), data, settings.untrained), kwargs=options, daemon=True
        )
        self.process.start()
        child.close()  # otherwise the pipe would outlive the process
        self.modality: Modality = "xray"
        try:
            first = self.receive(settings.start_s, stopping)
        except ProcessLostError:
            self.kill()
            raise
        if first["kind"] == "broken":
            self.kill()
            raise ProcessLostError(first["reason"])
        self.modality = first["modality"]
        self.drafts: str = first.get("drafts", "")

    def send(self, jobs: Sequence[store.Job], allowed: Mapping[str, str]) -> None:
        """Request drafts; ``allowed`` maps studies to the kind of their overridden refusal."""
        rows = [
            {"id": job.id, "anyway": allowed.get(job.id), "files": job.files, "dataset_study": job.dataset_study,
             "prior": None if job.prior is None else job.prior.as_json()}
            for job in jobs
        ]  # fmt: skip
        try:
            self.pipe.send_bytes(json.dumps(rows).encode())
        except OSError:
            raise ProcessLostError("the inference process ended") from None

    def receive(self, seconds: float, stopping: threading.Event | None = None) -> dict[str, Any]:
        """The next answer.

        Raises:
            ProcessLostError: if the process ended, the time is over, or ``stopping`` was set.
        """
        end = time.monotonic() + seconds
        try:
            while not self.pipe.poll(POLL_S):
                if time.monotonic() > end:
                    raise ProcessLostError(f"it took longer than {seconds:g} s")
                if stopping is not None and stopping.is_set():
                    raise ProcessLostError("the server stops")
            answer: dict[str, Any] = json.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            raise ProcessLostError("the inference process ended") from None
        return answer

    def kill(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.join()


class InferenceQueue:
    """Thread that feeds the inference process; ``wake`` tells it of a new study.

    With ``arms_secret`` each draft comes into an arm of a reader study.
    """

    def __init__(
        self, settings: Settings, database: Database, metrics: Metrics, *, target: Target = main,
        arms_secret: bytes | None = None,
    ) -> None:  # fmt: skip
        self._arms_secret = arms_secret
        self._settings, self._database, self._metrics, self._target = settings, database, metrics, target
        self._wake, self._stopping, self._hurry = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="inference", daemon=True)
        self._worker: InferenceProcess | None = None
        self.problem: str | None = None
        self.reasons: deque[ProcessLoss] = deque(maxlen=_KEPT_REASONS)

    @property
    def is_ready(self) -> bool:
        """True while an inference process is loaded and takes studies."""
        worker = self._worker
        return worker is not None and worker.process.is_alive() and not self._stopping.is_set()

    @property
    def drafts(self) -> str:
        """A line on what drafts; empty before an inference process is loaded."""
        worker = self._worker
        return "" if worker is None else worker.drafts

    @property
    def pid(self) -> int | None:
        """Process id of the inference process."""
        return None if self._worker is None else self._worker.process.pid

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def start(self) -> None:
        with self._database.writing() as connection:
            recovered = store.recover(connection)
        if recovered:
            log_event("recovered", studies=recovered)
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        """Finish drafts in progress within ``drain_s``, and end the process."""
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
            except ProcessLostError as error:
                self.problem = str(error)
                self.reasons.append(ProcessLoss(now(), str(error), studies=0))
                failures += 1
                log_event("worker-not-started", count=failures)
                self._stopping.wait(min(_LONGEST_PAUSE_S, _PAUSE_S * 2**failures))
            except Exception as error:  # an unreachable database must not end the thread
                log_failure("inference-failed", error)
                self._stopping.wait(_PAUSE_S)
        if self._worker is not None:
            self._worker.kill()

    def _step(self) -> None:
        """Draft waiting studies, or wait for some."""
        if self._worker is None or not self._worker.process.is_alive():
            self._replace()
        assert self._worker is not None
        self._wake.clear()
        if self._stopping.is_set():  # woken by ``stop``
            return
        self._database.server_lock.acquire()
        with self._database.writing() as connection:
            jobs = store.claim(connection, self._settings.batch)
        if not jobs:
            self._wake.wait(_PAUSE_S)
            return
        try:
            self._draft(self._worker, jobs)
        except ProcessLostError as error:
            self._metrics.count("worker_deaths")
            log_event("worker-lost", studies=len(jobs))
            self.reasons.append(ProcessLoss(now(), str(error), studies=len(jobs)))
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
        self._worker = InferenceProcess(self._settings, self._target, self._stopping)
        self.problem = None
        self._metrics.count("worker_starts")
        log_event("worker-ready", seconds=round(time.monotonic() - begun, 3), pid=self.pid)

    def _draft(self, worker: InferenceProcess, jobs: Sequence[store.Job]) -> None:
        begun = time.monotonic()
        with self._database.reading() as connection:
            allowed = drafts.overridden_refusals(connection, [job.id for job in jobs])
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
                warnings = [*drafts.override_warning(connection, study), *answer["warnings"]]
                is_changed = store.finish(connection, study, {**answer, "warnings": warnings})
                if is_changed and self._arms_secret is not None:
                    reader_study.assign(connection, study, self._arms_secret)
            else:
                is_changed = store.refuse(connection, study, answer["reason"])
                shows = is_changed and drafts.keep_refusal(
                    connection, study, answer.get("refusal"), store.reason_of(connection, study)
                )
        if not is_changed:  # cancelled while it was written
            self._metrics.count("dropped_drafts")
            return
        log_event(answer["kind"], study=study, seconds=round(seconds, 3))
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
        """Remove the uploaded and decoded files of a refused study, and no files outside the state folder."""
        with self._database.writing() as connection:
            drafts.forget_refusal(connection, study)
            prior = store.prior_of(connection, study)
            paths = [Path(path) for path in (*store.uploaded(connection, study), *(prior.files if prior else ()))]
        shutil.rmtree(self._settings.pixels / study, ignore_errors=True)
        for path in paths:
            if path.is_relative_to(self._settings.files.absolute()):
                remove(path, self._settings.files.absolute())


def remove(path: Path, top: Path) -> None:
    """Remove a file or the folder of a series, and empty folders above it up to ``top``."""
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
