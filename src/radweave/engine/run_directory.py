"""Folders of trainings: a run trains in its own folder, or aside while it replaces an older run.

RUN/             the run; with --overwrite the older one stays whole and usable until the new one is finished
.RUN.training/   the new one while it trains; --resume finds it, and it replaces the older one in one step

Each is locked while it trains. A failed start leaves the folders as they were.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from radweave.core.config import first_problem, from_yaml, read_yaml
from radweave.core.errors import InputError
from radweave.core.json_files import MAX_CARD_BYTES, read_json_object, write_json
from radweave.core.replacing import FolderKind
from radweave.core.storage import refuse_existing, remove_leftovers
from radweave.data.dataset import Dataset
from radweave.engine.lengthen import Lengthening, lengthening
from radweave.engine.place import FOLDER as PLACE
from radweave.engine.place import dataset_of_place
from radweave.engine.run_folder import FORMAT, RunCard, leaves, locked, read_card
from radweave.methods.experiment import Experiment

_MARK = ".aside"
"""An empty file of runs trained aside: it marks the newer one after the exchange of names."""
_LOCK = ".lock"
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@dataclass(slots=True)
class RunPlace:
    """The run's folder ``out`` and its training ``folder``; ``began`` once the start has succeeded."""

    out: Path
    folder: Path
    began: bool = False

    def finish(self) -> None:
        """Move a finished run to ``out`` and remove an older one.

        Raises:
            InputError: if the older one holds a foreign file by now; ``--resume`` finishes later.
        """
        if self.folder != self.out:
            if not _is_empty(self.out):
                _kind(self.out).refuse_other(self.out)
            _exchange(self.folder, self.out)
            _finish_exchange(self.out)


def aside_of(out: Path) -> Path:
    """The training folder of a run that replaces the one in ``out``."""
    return out.with_name(f".{out.name}.training")


def training_folder(out: Path) -> Path:
    """The current training folder of ``out``."""
    out = out.resolve()
    return aside_of(out) if (aside_of(out) / _MARK).is_file() else out


def is_finished(out: Path) -> bool:
    """True for a whole run that no other is to replace; an interrupted exchange is finished first."""
    out = out.resolve()
    if aside_of(out).is_dir() and training_folder(out) == out:
        with contextlib.suppress(InputError), locked(out):  # the holder of the lock does the same
            _settle(out)
    return training_folder(out) == out and (out / "run.json").is_file()


@contextlib.contextmanager
def claimed(out: Path, *, overwrite: bool, resume: bool) -> Iterator[RunPlace]:
    """Lock the run folder for training; it is unchanged before.

    Raises:
        InputError: if another process trains this run, or ``out`` may not be replaced.
    """
    out = out.resolve()
    _recover(out)
    _refuse(out, overwrite=overwrite, resume=resume)
    existed = out.is_dir()
    with contextlib.ExitStack() as held:
        held.enter_context(locked(out))
        _refuse(out, overwrite=overwrite, resume=resume)
        _settle(out)
        aside = aside_of(out)
        pending = aside.is_dir()
        replaces = pending if resume else overwrite and not _is_empty(out)
        place = RunPlace(out, aside if replaces else out)
        fresh = not (resume and pending) and (replaces or _is_empty(out))
        try:
            if replaces or pending:
                held.enter_context(locked(aside))
            if pending and not resume:
                _empty(aside)
            if replaces:
                (aside / _MARK).touch()
            elif pending:
                _take_back(aside, keep=False)
            yield place
        finally:
            if fresh and not place.began:
                _take_back(place.folder, keep=existed and not replaces)


# Files of trainings and of ablations.
_MADE = (
    *("config.yaml", "started.json", "weights.safetensors", "metrics.jsonl", "reward.html"),
    *("checkpoints/*", "tensorboard/*", "wandb/*", _MARK),
    "parts/",  # without shapes to keep
)
_MODEL = (
    "calibration.json",
    "tokenizer/*",
    "parts/*",
    "memories/*",
    "familiarity/*",
    "drafting/*",
    "place/*",
    "licences/*",
)
_ABLATION = ("predictions.jsonl", "scores.json", "training.json", "task.json", "reused.json", "failure.txt", "log.txt")
_BEGUN = ("tokenizer", "checkpoints", _LOCK)
"""Signs of a started training: a configuration alone is a user's own file."""


def named_files(folder: Path) -> list[str]:
    """Patterns of the files of a card, of any version of Radweave.

    Raises:
        InputError: if ``run.json`` is not the card of a run.
    """
    path = folder / "run.json"
    card = read_json_object(path, most=MAX_CARD_BYTES)
    files = card.get("files")
    if card.get("format") != FORMAT or not isinstance(files, dict):
        raise InputError("not the card of a run", file=path)
    return [escape(name) for name in files]


def _files_of_finished(folder: Path) -> list[str] | None:
    files = named_files(folder)
    return None if "preprocessing.json" in files else [*files, *_MADE, *_ABLATION]


def _files_of_unfinished(folder: Path) -> tuple[str, ...] | None:
    values = read_yaml(folder / "config.yaml")
    is_run = isinstance(values, dict) and {"method", "seed", "data", "model", "stages"} <= set(values)
    begun = any((folder / name).exists() for name in _BEGUN)
    return (*_MADE, *_MODEL, *_ABLATION) if is_run and begun else None


_FINISHED = FolderKind("a run", "run.json", _files_of_finished)
_UNFINISHED = FolderKind("a run", "config.yaml", _files_of_unfinished)


def _kind(folder: Path) -> FolderKind:
    return _FINISHED if (folder / "run.json").is_file() else _UNFINISHED


def refuse_place(out: Path, *, overwrite: bool, resume: bool) -> None:
    """Refuse as ``claimed``, without a lock.

    Raises:
        InputError: as ``claimed``.
    """
    out = out.resolve()
    _recover(out)
    _refuse(out, overwrite=overwrite, resume=resume)
    for folder in (out, aside_of(out)):
        if os.path.lexists(folder / _LOCK):
            with locked(folder):
                pass


def _refuse(out: Path, *, overwrite: bool, resume: bool) -> None:
    if out.exists() and not out.is_dir():
        raise InputError("is no folder; a run does not replace it", file=out)
    for place in (out, *out.parents):
        if (place / "dataset.json").is_file():
            raise InputError("lies in the folder of a data set; give a place outside of it", file=out, field="--out")
    existing = next(place for place in (out, *out.parents) if place.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        raise InputError("nothing can be written there", file=existing, field="--out")
    if (aside_of(out) / _MARK).is_file() and not (resume or overwrite):
        raise InputError(
            "holds a training that was stopped; go on with --resume, or give --overwrite", file=aside_of(out)
        )
    if resume or _is_empty(out):
        return
    refuse_existing(out, overwrite=overwrite, kind=_kind(out))
    if out.is_mount() or not os.access(out.parent, os.W_OK):
        raise InputError("cannot be replaced; give a new folder inside of it", file=out)


def _is_empty(folder: Path) -> bool:
    return not folder.exists() or (folder.is_dir() and all(path.name == _LOCK for path in folder.iterdir()))


def _recover(out: Path) -> None:
    """Restore the name of an older run after an interrupted ``_exchange``."""
    before = _before(out)
    if before.is_dir() and not out.exists():
        with locked(before):
            before.rename(out)


def _settle(out: Path) -> None:
    """Remove leftovers of killed processes and finish an exchange; ``out`` must be locked."""
    aside = aside_of(out)
    if (out / _MARK).is_file():
        _finish_exchange(out)
    elif aside.is_dir() and not (aside / _MARK).is_file():
        shutil.rmtree(aside, ignore_errors=True)
    for folder in (out, aside):
        for inner in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
            remove_leftovers(inner)


def _finish_exchange(out: Path) -> None:
    """Remove the older run after the exchange."""
    for older in (aside_of(out), _before(out)):
        shutil.rmtree(older, ignore_errors=True)
    (out / _MARK).unlink()


def _empty(folder: Path) -> None:
    """Remove everything but the held lock."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != _LOCK:
            path.unlink()


def _take_back(folder: Path, *, keep: bool) -> None:
    with contextlib.suppress(OSError):
        _empty(folder)
        (folder / _LOCK).unlink(missing_ok=True)
        if not keep:
            folder.rmdir()


def _before(out: Path) -> Path:
    return out.with_name(f".{out.name}.before")


def _exchange(folder: Path, other: Path) -> None:
    """Exchange the names of two folders in one step (Linux, renameat2(2)), else by three renames.

    A process killed between the three leaves ``folder`` unchanged and ``other`` with the suffix ``.before``.
    """
    library = ctypes.CDLL(None, use_errno=True)
    with contextlib.suppress(AttributeError):
        names = os.fsencode(folder), os.fsencode(other)
        if library.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
            return
    before = _before(other)
    other.rename(before)
    folder.rename(other)
    before.rename(folder)


# The options of a training, stored for ``--resume RUN``. An export leaves the file out, since it names local paths.

FILE = "started.json"


@dataclass(frozen=True, slots=True)
class Started:
    """Method, data set, run folder and options of a training.

    ``start`` is the run whose weights it starts from, ``lengthened`` what sets a lengthened run apart from one that was
    as long from the start.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    method: str
    dataset: Path
    out: Path
    preset: str = "tiny"
    overrides: tuple[str, ...] = ()
    config: Path | None = None
    start: Path | None = None
    lengthened: tuple[str, ...] = ()


_STARTED = TypeAdapter(Started)


def write_started(folder: Path, started: Started) -> None:
    """Write the options to the training folder."""
    paths = {name: getattr(started, name) for name in ("dataset", "config", "start")}
    resolved: dict[str, Any] = {name: None if path is None else path.resolve() for name, path in paths.items()}
    write_json(folder / FILE, _STARTED.dump_python(replace(started, **resolved), mode="json", exclude={"out"}))


def read_started(run: Path) -> Started:
    """The options of the run in this folder.

    Raises:
        InputError: if no training was started in it.
    """
    file = training_folder(run) / FILE
    if not file.is_file():  # a training that replaces this run was killed before it wrote its own
        file = run / FILE
    if not file.is_file():
        raise InputError("no training was started in this folder", file=run, field="--resume", expected="a run folder")
    try:
        return _STARTED.validate_python({**read_json_object(file), "out": run})
    except ValidationError as error:
        raise InputError(first_problem(error), file=file) from None


Resumed = Literal["finished", "other", "unfinished", "placed"]
"""The requested run, finished; a finished one of other options, to be replaced; an unfinished one, or none; a finished
one that is given the part ``place``, or another one."""


@dataclass(frozen=True, slots=True)
class ResumedRun:
    """The state of a run that is resumed; ``longer`` is set where a finished one goes on (state "other")."""

    state: Resumed
    longer: Lengthening | None = None
    before: Experiment | None = None


def state_to_resume(out: Path, experiment: Experiment, dataset: Dataset, *, overwrite: bool) -> ResumedRun:
    """The state of ``out`` for a training that resumes.

    Raises:
        InputError: for a run of other options or data without ``overwrite``, unless its last stage gets longer or its
            part ``place`` alone is trained.
    """
    started = training_folder(out) / "config.yaml"
    if not is_finished(out) and (started.is_file() or not (out / "run.json").is_file()):
        if started.is_file():
            refuse_other_options(experiment, started)
        return ResumedRun("unfinished")
    card = read_card(out)
    same_data = card.method == experiment.method and card.dataset.fingerprint == dataset.fingerprint()
    before = from_yaml(type(experiment), out / "config.yaml") if same_data else None
    if before == experiment or (not same_data and _has_place(out, card, experiment, dataset)):
        return ResumedRun("finished")
    if overwrite:
        return ResumedRun("other")
    if _adds_place(out, card, experiment, dataset):
        return ResumedRun("placed")
    longer = None if before is None else lengthening(out, card, before, experiment)
    if longer is None:
        raise InputError(
            "--resume: holds a finished run of other options or data; give --overwrite to replace it", file=out
        )
    return ResumedRun("other", longer, before)


def _has_place(out: Path, card: RunCard, experiment: Experiment, dataset: Dataset) -> bool:
    """True for the requested run whose part ``place`` was trained on this data set, the rest before it got boxes."""
    if card.method != experiment.method or not experiment.stages.place.is_on:
        return False
    if dataset_of_place(out / PLACE) != dataset.fingerprint():
        return False
    return from_yaml(type(experiment), out / "config.yaml") == experiment


def _adds_place(out: Path, card: RunCard, experiment: Experiment, dataset: Dataset) -> bool:
    """True for a finished run that only differs in the stage ``place``, on data that may have got boxes since."""
    if card.method != experiment.method or not experiment.stages.place.is_on:
        return False
    if card.dataset.fingerprint not in (dataset.fingerprint(), dataset.unmarked_fingerprint()):
        return False
    before = from_yaml(type(experiment), out / "config.yaml")
    stages = experiment.stages.model_copy(update={"place": before.stages.place})
    return before == experiment.model_copy(update={"stages": stages})


def refuse_other_options(experiment: Experiment, started: Path) -> None:
    """Refuse to resume a training with another ``config.yaml`` (``started``), naming the fields that differ."""
    before = from_yaml(type(experiment), started)
    if experiment == before:
        return
    own, wanted = (dict(leaves(one.model_dump(mode="json"), "")) for one in (before, experiment))
    differing = [name for name in {**own, **wanted} if own.get(name) != wanted.get(name)]
    raise InputError(
        "--resume needs the options the run was started with (a default may have changed since)", file=started,
        field=", ".join(differing[:5]), got=", ".join(str(wanted.get(name)) for name in differing[:5]),
        expected=", ".join(f"{name}={own.get(name)}" for name in differing[:5]),
    )  # fmt: skip
