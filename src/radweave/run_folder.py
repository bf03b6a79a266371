"""The run folder: everything needed to restore a model, each file with its hash.

run.json             what made it, with what, and the SHA-256 of every other file
config.yaml          the resolved experiment
weights.safetensors  tokenizer/  metrics.jsonl
familiarity/         tells images like the training images from others
checkpoints/         while it trains, and to go on from; not part of the restored model
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from radweave.config import first_problem
from radweave.errors import InputError
from radweave.storage import exclusive, read_json, sha256_file, write_json
from radweave.types import RESEARCH_ONLY, Record

FORMAT = "radweave-run"
FORMAT_VERSION = 1
HASHED = ("config.yaml", "weights.safetensors", "tokenizer", "parts", "memories", "familiarity")


class DatasetFacts(Record):
    """What the run was trained on."""

    name: str
    fingerprint: str
    modality: str
    target: str
    cleaning: str


class RunCard(Record):
    """``run.json``."""

    format: str = FORMAT
    version: int = FORMAT_VERSION
    notice: str = RESEARCH_ONLY
    method: str
    preset: str
    overrides: tuple[str, ...] = ()
    seed: int
    classes: tuple[str, ...] = ()
    preprocessing: int = 1
    trained_steps: dict[str, int]
    validation: dict[str, Any] = Field(default_factory=dict)
    left_out: dict[str, int] = Field(default_factory=dict)
    views: dict[str, int] = Field(default_factory=dict)
    dataset: DatasetFacts
    versions: dict[str, str]
    files: dict[str, str]

    @property
    def is_trained(self) -> bool:
        """Whether the last stage, the one that writes reports, was trained."""
        return list(self.trained_steps.values())[-1] > 0


def hash_files(folder: Path) -> dict[str, str]:
    """SHA-256 of the files that make the model."""
    files = [folder / name for name in HASHED if (folder / name).is_file()]
    files += [path for name in HASHED for path in sorted((folder / name).rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): sha256_file(path) for path in files}


def write_card(folder: Path, card: RunCard) -> None:
    """Write ``run.json``; the run counts as finished from then on."""
    write_json(folder / "run.json", card.model_dump(mode="json"))


def read_card(folder: Path) -> RunCard:
    """Read ``run.json`` and check every file it names.

    Raises:
        InputError: if this is no finished run, or a file is missing, added or changed.
    """
    if not folder.is_dir():
        raise InputError("no such run folder", file=folder)
    path = folder / "run.json"
    if not path.is_file():
        unfinished = (folder / "checkpoints").is_dir() or (folder / "config.yaml").is_file()
        hint = "training has not finished; go on with 'radweave train ... --resume'" if unfinished else "no run folder"
        raise InputError(f"run.json is missing: {hint}", file=folder)
    try:
        card = RunCard.model_validate(read_json(path))
    except ValidationError as error:
        raise InputError(first_problem(error), file=path) from None
    if card.format != FORMAT or card.version != FORMAT_VERSION:
        raise InputError("unknown run format", file=path, got=card.version, expected=FORMAT_VERSION)
    for name, expected in card.files.items():
        file = folder / name
        if not file.is_file():
            raise InputError("file of the run is missing", file=file)
        if sha256_file(file) != expected:
            raise InputError("file was changed after training (SHA-256 differs from run.json)", file=file)
    return card


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the run folder for one writer.

    Raises:
        InputError: if another process writes to it.
    """
    try:
        with exclusive(folder / ".lock", wait=False):
            yield
    except BlockingIOError:
        raise InputError("another process is writing this run", file=folder) from None
