"""The run folder: everything needed to restore a model, each file with its hash.

run.json             method, data, versions, the SHA-256 of every other file, and a digest of itself
config.yaml          the resolved experiment
weights.safetensors  tokenizer/  parts/  memories/  licences/
familiarity/         out-of-distribution test of images
calibration.json     calibration of class scores to probabilities
drafting/            training reports, to draft by expected utility
place/               the part that says where findings lie, where there is one
metrics.jsonl
reward.html          course of the stage that rewards drafts, where there is one
checkpoints/         for resuming; not part of the restored model

The hashes show damage, and added or exchanged files. They are no signature against deliberate changes, so a card is
checked like any foreign input.
"""

from __future__ import annotations

import json
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from radweave.core.config import checked
from radweave.core.errors import InputError
from radweave.core.json_files import MAX_CARD_BYTES, read_json_object
from radweave.core.storage import exclusive, sha256_file, sha256_json, write_folder, write_text
from radweave.core.study import RESEARCH_ONLY, Notice, Record
from radweave.data.dataset import is_synthetic
from radweave.methods.experiment import Experiment

FORMAT = "radweave-run"
FORMAT_VERSION = 3
PLACES = ("tokenizer", "parts", "memories", "familiarity", "drafting", "place", "licences")
HASHED = ("config.yaml", "weights.safetensors", "calibration.json", *PLACES)
NEEDED = ("config.yaml", "weights.safetensors", "calibration.json", "tokenizer/", "familiarity/")
"""Required files of a run."""


def _file_name(name: str) -> str:
    parts = PurePosixPath(name).parts
    if not parts or "/".join(parts) != name or ".." in parts or not name.isprintable() or "\\" in name:
        raise ValueError("not the name of a file inside the folder")
    if name == "run.json":
        raise ValueError("run.json does not name itself")
    return name


def _sha256(text: str) -> str:
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise ValueError("not a SHA-256")
    return text


Figure = int | Annotated[float, Field(allow_inf_nan=False)] | None
Count = Annotated[int, Field(ge=0, lt=2**63)]
FileName = Annotated[str, AfterValidator(_file_name)]
Sha256 = Annotated[str, AfterValidator(_sha256)]


class DatasetFacts(Record):
    """The data set of the training."""

    name: str
    fingerprint: str
    modality: str
    target: str
    cleaning: str

    @property
    def is_synthetic(self) -> bool:
        """True if the images are phantoms."""
        return is_synthetic(self.name)


class StageFigures(Record):
    """The validation figures of a stage, a row per epoch; ``best_step`` is the update whose weights were kept.

    A stage of rewards has a row of update 0, of the model as it was before.
    """

    best_step: Count
    epochs: tuple[dict[str, Figure], ...]

    def after_updates(self) -> tuple[dict[str, Figure], ...]:
        """The rows of epochs in which something was trained."""
        return tuple(row for row in self.epochs if row.get("step"))

    def at_best(self) -> tuple[dict[str, Figure], ...]:
        """The rows of the update whose weights were kept."""
        return tuple(row for row in self.epochs if row.get("step") == self.best_step)


class WarmStart(Record):
    """The run whose weights a training started from: SHA-256 of its weights, its method and data set.

    ``taken`` names the parts that took their weights from it, ``left`` the others with the reason.
    """

    weights: Sha256
    method: str
    dataset: str
    taken: tuple[Annotated[str, Field(max_length=200)], ...]
    left: dict[str, Annotated[str, Field(max_length=600)]]


class RunCard(Record):
    """``run.json``. ``trained_steps`` has the updates of each stage, in order; ``fitted`` marks a method without
    training. ``starts_from`` names packaged weights of the encoder. ``memories`` has the rows of each bank in
    ``memories/``, and of ``drafting``. ``without`` lists parts that an export left out. ``cautions`` are warnings from
    the end of training, ``sources`` figures of sources of evidence (``ReportModel.figures``). ``lengthened`` says what
    sets the run apart from one that was as long from the start, ``warm_start`` what it started from. Empty ones of
    these are absent, as in older cards.
    """

    format: str = FORMAT
    version: int = FORMAT_VERSION
    notice: Notice = RESEARCH_ONLY
    method: str
    preset: str
    overrides: tuple[str, ...] = ()
    seed: int
    classes: tuple[str, ...] = ()
    preprocessing: int = 1
    trained_steps: dict[str, Count] = Field(min_length=1)
    fitted: bool = False
    starts_from: str | None = None
    warm_start: WarmStart | None = None
    lengthened: tuple[Annotated[str, Field(max_length=400)], ...] = ()
    validation: dict[str, StageFigures] = Field(default_factory=dict)
    left_out: dict[str, Count] = Field(default_factory=dict)
    views: dict[str, Count] = Field(default_factory=dict)
    memories: dict[str, Count] = Field(default_factory=dict)
    without: tuple[Annotated[str, Field(max_length=200)], ...] = ()
    cautions: tuple[Annotated[str, Field(max_length=400)], ...] = ()
    sources: dict[str, dict[str, Figure]] = Field(default_factory=dict)
    dataset: DatasetFacts
    versions: dict[str, str]
    files: dict[FileName, Sha256]

    @model_validator(mode="after")
    def _whole(self) -> RunCard:
        for needed in NEEDED:
            if not any(name == needed or (needed.endswith("/") and name.startswith(needed)) for name in self.files):
                raise ValueError(f"files: {needed} is not among them")
        memories = {name.split("/")[1] for name in self.files if name.startswith("memories/")}
        memories |= {"drafting" for name in self.files if name.startswith("drafting/")}
        for name in sorted(self.memories.keys() ^ memories):
            if name in memories:
                raise ValueError(f"memories: {name} is not among them, and the folder holds it")
            raise ValueError(f"memories: the run names memory {name}, and no file of it is there")
        if "radweave" not in self.versions:
            raise ValueError("versions: radweave is not among them")
        return self

    @property
    def is_trained(self) -> bool:
        """True if the last stage, which writes reports, was trained, or the method needs no training."""
        return self.fitted or list(self.trained_steps.values())[-1] > 0


def hash_files(folder: Path) -> dict[str, str]:
    """SHA-256 of the files that make the model."""
    return {path.relative_to(folder).as_posix(): sha256_file(path) for path in _hashed_files(folder)}


def _hashed_files(folder: Path) -> Iterator[Path]:
    """All entries in the hashed places but folders, with links and devices."""
    for name in HASHED:
        place = folder / name
        if place.is_symlink() or place.is_file():
            yield place
        else:
            yield from (path for path in sorted(place.rglob("*")) if path.is_symlink() or not path.is_dir())


def card_text(card: RunCard) -> str:
    """The text of ``run.json``: the card and, last, the SHA-256 of its canonical JSON."""
    values = card.model_dump(mode="json")
    for name in ("cautions", "sources", "lengthened", "warm_start"):
        if not values[name]:
            del values[name]
    return json.dumps({**values, "digest": sha256_json(values)}, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_card(folder: Path, card: RunCard) -> None:
    """Write ``run.json``; the run counts as finished from then on."""
    write_text(folder / "run.json", card_text(card))


def read_card_alone(folder: Path) -> RunCard:
    """Read ``run.json`` alone; a byte that ``write_card`` would not write is refused.

    Raises:
        InputError: if this is no finished run, or its card is of another version, broken or changed.
    """
    if not folder.is_dir():
        raise InputError("no such run folder", file=folder)
    path = folder / "run.json"
    if not path.is_file() or path.is_symlink():
        hint = "no run folder"
        if (folder / "checkpoints").is_dir() or (folder / "config.yaml").is_file():
            hint = "training has not finished; go on with 'radweave train ... --resume'"
        elif (folder / "run" / "run.json").is_file():
            hint = "the run is the folder 'run' in it"
        raise InputError(f"run.json is missing: {hint}", file=folder)
    values = read_json_object(path, most=MAX_CARD_BYTES)
    if values.get("format") != FORMAT:
        raise InputError("not the card of a run", file=path, field="format", expected=FORMAT)
    if values.get("version") != FORMAT_VERSION:
        raise InputError(
            "the run is of another version of Radweave: train it again with this one, or use that one",
            file=path,
            field="version",
            got=str(values.get("version"))[:20],
            expected=FORMAT_VERSION,
        )
    values.pop("digest", None)
    card = checked(RunCard, values, file=path)
    if path.read_bytes() != card_text(card).encode():
        raise InputError("run.json was changed after training (its digest differs)", file=path)
    return card


def read_card(folder: Path) -> RunCard:
    """Read ``run.json`` and check every file it names.

    Raises:
        InputError: if this is no finished run, or a file is missing, added, changed, or no regular file.
    """
    card = read_card_alone(folder)
    for path in _hashed_files(folder):
        if path.relative_to(folder).as_posix() not in card.files:
            raise InputError("file was added after training (run.json does not name it)", file=path)
    for name, expected in card.files.items():
        file = folder / name
        _refuse_links(folder, file)
        if sha256_file(file) != expected:
            raise InputError("file was changed after training (SHA-256 differs from run.json)", file=file)
    return card


def _refuse_links(folder: Path, file: Path) -> None:
    """Refuse a file of a run that is no regular file, or is reached through a link below the run folder."""
    places = [place for place in (file, *file.parents) if place != folder and place.is_relative_to(folder)]
    if any(place.is_symlink() for place in places):
        raise InputError("file of the run is a symbolic link, or lies behind one", file=file)
    try:
        kind = file.lstat().st_mode
    except (OSError, ValueError):
        raise InputError("file of the run is missing", file=file) from None
    if not stat.S_ISREG(kind):
        raise InputError("file of the run is no regular file", file=file)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the run folder for one writer.

    Raises:
        InputError: if another process writes to it.
    """
    try:
        with exclusive(folder / ".lock", wait=False):
            yield
    except BlockingIOError:
        raise InputError("another process is writing this run", file=folder) from None


# Licences of the pretrained checkpoints (RUN/licences/PART/LICENSE.txt), copied when the run is trained: an export
# reads no folder that a configuration names, since the configuration may be foreign.

FOLDER = "licences"
PATTERNS = ("LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*")
MOST_BYTES = 1 << 20
"""Size limit of a licence file."""


def weight_sources(experiment: Experiment) -> dict[str, str]:
    """Part of the experiment -> folder or name of the checkpoint that its weights or its tokenizer came from."""
    values = leaves(experiment.model_dump(mode="json"), "")
    return {
        path.removesuffix(".path"): value
        for path, value in (("model.path" if path == "path" else path, value) for path, value in values)
        if path.endswith(".path") and isinstance(value, str) and value
    }


def keep_licences(experiment: Experiment, folder: Path) -> None:
    """Copy the licence files of an experiment's local checkpoints, if there are any."""
    files = {part: _files(Path(source)) for part, source in weight_sources(experiment).items()}
    if not any(files.values()):
        return
    with write_folder(folder, overwrite=True) as partial:
        for part, paths in files.items():
            for path in paths:
                target = partial / _plain(part) / _plain(path.name)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)


def licences_of(names: Iterable[str]) -> dict[str, list[str]]:
    """Licence files by part, from the file names of a run."""
    files: dict[str, list[str]] = {}
    for name in names:
        if name.startswith(f"{FOLDER}/") and name.count("/") == 2:
            files.setdefault(name.split("/")[1], []).append(name)
    return files


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every plain value of a record, with its path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}" if path else key)
    else:
        yield path, value


def _files(source: Path) -> list[Path]:
    places = {path for pattern in PATTERNS for path in source.glob(pattern) if _is_of(source, path)}
    return sorted(places)


def _is_of(source: Path, path: Path) -> bool:
    """True for a small file of this checkpoint; the hub's cache links files to its ``blobs``."""
    real, folder = path.resolve(), source.resolve()
    inside = real.is_relative_to(folder)
    if folder.parent.name == "snapshots":
        inside = inside or real.is_relative_to(folder.parent.parent / "blobs")
    return inside and real.is_file() and real.stat().st_size <= MOST_BYTES


def _plain(name: str) -> str:
    return re.sub(r"[^\w.+-]", "_", name, flags=re.ASCII)
