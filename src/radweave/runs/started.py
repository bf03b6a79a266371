"""What a training was started with, kept in its folder so that ``--resume RUN`` needs nothing else.

The file goes with a run no further: it names paths of this machine, and an export leaves it out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from radweave.base.config import Config, first_problem
from radweave.base.errors import InputError
from radweave.base.json_files import read_json, write_json
from radweave.runs.place import training_folder

FILE = "started.json"


@dataclass(frozen=True, slots=True)
class Started:
    """A method, a data set, the run's folder, and the options that decide what is trained."""

    method: str
    dataset: Path
    out: Path
    preset: str = "tiny"
    overrides: tuple[str, ...] = ()
    config: Path | None = None


class _Record(Config):
    method: str
    dataset: Path
    preset: str
    overrides: tuple[str, ...]
    config: Path | None = None


def write_started(folder: Path, started: Started) -> None:
    """Keep it in the folder in which the run is trained."""
    record = _Record(
        method=started.method,
        dataset=started.dataset.resolve(),
        preset=started.preset,
        overrides=started.overrides,
        config=None if started.config is None else started.config.resolve(),
    )
    write_json(folder / FILE, record.model_dump(mode="json"))


def read_started(run: Path) -> Started:
    """What the run in this folder was started with.

    Raises:
        InputError: if no training was started there.
    """
    file = training_folder(run) / FILE
    if not file.is_file():
        raise InputError("no training was started in this folder", file=run, field="--resume", expected="a run folder")
    try:
        record = _Record.model_validate(read_json(file))
    except ValidationError as error:
        raise InputError(first_problem(error), file=file) from None
    return Started(record.method, record.dataset, run, record.preset, record.overrides, record.config)
