"""The inference process: it holds the model, and answers a batch of studies with drafts or reasons.

It speaks JSON over one pipe. It ends when the pipe does, so that none stays behind where the server was killed.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radweave.base.errors import InputError, UnusableModelError
from radweave.base.study import Report, Study, View
from radweave.serve.events import say_failure
from radweave.serve.result import Known, result_of

if TYPE_CHECKING:
    from radweave.data.loader import Example
    from radweave.generate.pictures import Picture
    from radweave.generate.predictor import Predictor
    from radweave.runs.restore import Run

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
        inference = Inference(Path(run), None if data is None else Path(data), untrained=untrained)
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


class Inference:
    """A restored run that answers jobs."""

    def __init__(self, run: Path, data: Path | None, *, untrained: bool) -> None:
        from radweave.data.dataset import Dataset
        from radweave.generate.predictor import Predictor
        from radweave.runs.restore import restore

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
        from radweave.generate.pictures import UnlikeError, view_of

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
        from radweave.base.ontology import LABEL_SETS
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
        from radweave.generate.pictures import covered_by_map

        covers = covered_by_map(picture, image_size=self.predictor.image_size, ct=self.predictor.ct)
        return {"file": file, "image": image, "view": view.value, "covers": covers}

    def _of_dataset(self, name: str, *, unlike: bool, rest: bool) -> _Read:
        """A study under its own name and with its own patient, so that no memory answers with either."""
        from radweave.explain.study import read_dataset_study
        from radweave.generate.familiar import refuse_strangers

        if self._dataset is None:
            raise InputError("is of a data set, and the server was started without one", field="--data")
        found = read_dataset_study(self.run, self._dataset, name, force=rest)
        files = [Path(ref.path) for ref, _ in found.views]
        if not unlike:
            refuse_strangers(self.predictor.familiarity, found.example, files)
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
