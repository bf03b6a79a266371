"""The dataset folder: ``dataset.json``, ``manifest.jsonl`` (one study per line) and the image files.

    with DatasetWriter(Path("out"), card) as writer:
        writer.add(study, {"images/a.png": Path("somewhere/a.png")})
    dataset = Dataset.open(Path("out"))
    for study in dataset.studies("train"): ...

A process reads the manifest once and shares it between all open data sets of the folder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from sys import intern
from types import TracebackType
from typing import IO, Any, Final, Literal, Self
from weakref import WeakValueDictionary

from pydantic import Field

from radweave.core.config import checked
from radweave.core.errors import InputError
from radweave.core.json_files import parse_jsonl, read_json, read_json_object, write_json
from radweave.core.replacing import FolderKind
from radweave.core.storage import sha256_file, sha256_json, write_folder
from radweave.core.study import Modality, Record, Split, Study, TargetText
from radweave.data.targets import Aim

# The manifest of a data set, read once and shared by all users in a process until the last of them is gone.
#
# A changed manifest is read again. One that would take more than about a gigabyte in memory is streamed each time.

MAX_CACHED_BYTES: Final = 340 << 20
"""Largest manifest kept in memory. Studies take 2.4 to 2.8 times the bytes of their lines (30,000 measured), at most a
gigabyte."""
SETTLED_NS: Final = 50_000_000
"""Age from which an unchanged time stamp proves an unchanged file: file system clocks are coarse."""

_Identity = tuple[int, ...]


class Manifest:
    """``manifest.jsonl`` of one folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity: _Identity | None = None
        self._fingerprint: str | None = None
        self._studies: tuple[Study, ...] | None = None

    def fingerprint(self) -> str:
        """SHA-256 of the present file."""
        self._forget_changed()
        if self._fingerprint is None:
            identity = self._identity_now()
            digest = sha256_file(self.path)
            if not self._is_settled(identity):
                return digest
            self._fingerprint = digest
        return self._fingerprint

    def studies(self) -> Iterable[Study]:
        """Every study, checked.

        Raises:
            InputError: for a line that is not JSON or does not fit the schema, or a duplicate id.
        """
        self._forget_changed()
        if self._studies is not None:
            return self._studies
        identity = self._identity_now()
        if identity is None or identity[2] > MAX_CACHED_BYTES:
            return self._read(None)
        digest = hashlib.sha256()
        studies = tuple(_deduplicated(self._read(digest)))
        if self._is_settled(identity):
            self._studies, self._fingerprint = studies, digest.hexdigest()
        return studies

    def _read(self, digest: hashlib._Hash | None) -> Iterator[Study]:
        if not self.path.is_file():
            raise InputError("file is missing", file=self.path)
        ids: set[str] = set()
        with self.path.open("rb") as file:
            for number, row in parse_jsonl(_hashed(file, digest), self.path):
                study = checked(Study, row, file=self.path, line=number)
                if study.study_id in ids:
                    raise InputError("study id comes twice", file=self.path, line=number, field="study_id")
                ids.add(study.study_id)
                yield study

    def _forget_changed(self) -> None:
        now = self._identity_now()
        if now != self._identity:
            self._fingerprint = self._studies = None
            self._identity = now

    def _is_settled(self, before: _Identity | None) -> bool:
        """True if the file has not changed since ``before``, and its last change is older than ``SETTLED_NS``."""
        return before is not None and before == self._identity_now() and time.time_ns() - before[4] > SETTLED_NS

    def _identity_now(self) -> _Identity | None:
        """Attributes that change with the content; the time of change cannot be set back."""
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


_open: WeakValueDictionary[Path, Manifest] = WeakValueDictionary()


def manifest_at(path: Path) -> Manifest:
    """The shared manifest of this path, or a new one."""
    absolute = path.absolute()
    manifest = _open.get(absolute)
    if manifest is None:
        manifest = _open[absolute] = Manifest(path)
    return manifest


def _hashed(lines: Iterable[bytes], digest: hashlib._Hash | None) -> Iterator[bytes]:
    for line in lines:
        if digest is not None:
            digest.update(line)
        yield line


def _deduplicated(studies: Iterable[Study]) -> Iterator[Study]:
    """The same studies, in which equal objects are shared. This saves a third of their memory."""
    sets: dict[frozenset[str], set[str]] = {}
    for study in studies:
        for record in (study, *study.images):
            fields = record.model_fields_set
            object.__setattr__(record, "__pydantic_fields_set__", sets.setdefault(frozenset(fields), fields))
        named: dict[str, Any]
        for named in (*study.labels.values(), *study.truth):
            interned = {intern(name): value for name, value in named.items()}
            named.clear()
            named.update(interned)
        yield study


Target = TargetText | Literal["as_imported"]
FORMAT = "radweave-dataset"
FORMAT_VERSION = 1
# A MetaImage header without its voxels is refused: hashes and caches expect one file for each image.
DETACHED_HEADER = ".mhd"


def _files(folder: Path) -> tuple[str, ...] | None:
    """Files of a data set beside its card."""
    card = read_json_object(folder / "dataset.json")
    return (
        ("manifest.jsonl", "left_out.jsonl", "corrections.jsonl", "images/*", "masks/*", ".cache/*")
        if card.get("format") == FORMAT
        else None
    )


DATASET = FolderKind("a data set", "dataset.json", _files)


class SourceFile(Record):
    """A source file of the data set; ``file`` is a name without a path."""

    file: str
    sha256: str


def is_synthetic(name: str) -> bool:
    """True for the name of a data set of phantoms, or of a mixture of phantoms alone."""
    return all(part.startswith("phantom") for part in name.split("+"))


class DatasetCard(Record):
    """``dataset.json``: origin and processing of the data."""

    format: str = FORMAT
    version: int = FORMAT_VERSION
    name: str
    modality: Modality = "xray"
    target: str = "findings"
    cleaning: str = "none"
    split_provenance: str = "none"
    sources: tuple[SourceFile, ...] = ()
    options: dict[str, Any] = Field(default_factory=dict)
    counts: dict[str, int] = Field(default_factory=dict)
    left_out: dict[str, int] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()
    licence: str | None = None
    manifest_sha256: str | None = None


class DatasetWriter:
    """Write a dataset folder under a temporary name and rename it when the block succeeds.

    Args:
        link: make hard links instead of copies of the image files, where the file system can; the data set then
            shares its images with their source.

    Raises:
        InputError: if ``path`` exists (and not ``overwrite``), or a study id comes twice.
    """

    def __init__(self, path: Path, card: DatasetCard, *, overwrite: bool = False, link: bool = False) -> None:
        self._link = link
        self._target = path
        self._card = card
        self._overwrite = overwrite
        self._stack = ExitStack()
        self._seen: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter(card.left_out)
        self._manifest: IO[str]
        self.folder: Path

    def __enter__(self) -> Self:
        self.folder = self._stack.enter_context(write_folder(self._target, overwrite=self._overwrite, kind=DATASET))
        self._manifest = self._stack.enter_context((self.folder / "manifest.jsonl").open("w", encoding="utf-8"))
        return self

    def add(self, study: Study, files: Mapping[str, Path] | None = None) -> None:
        """Append a study; copy ``files`` (path inside the dataset -> source file), unchanged."""
        if study.study_id in self._seen:
            raise InputError("study id comes twice", field="study_id", got=study.study_id)
        self._seen.add(study.study_id)
        for inside, source in (files or {}).items():
            destination = self.folder / inside
            destination.parent.mkdir(parents=True, exist_ok=True)
            if not destination.exists():
                self._place(source, destination)
        self._manifest.write(_line(study))
        self._counts["studies"] += 1
        self._counts["images"] += len(study.images)
        if boxes := sum(len(image.boxes) for image in study.images):
            self._counts["boxes"] += boxes
        if study.split:
            self._counts[f"studies_{study.split}"] += 1

    def _place(self, source: Path, destination: Path) -> None:
        if self._link:
            with suppress(OSError):
                os.link(source.resolve(), destination)
                return
        shutil.copyfile(source, destination)

    def leave_out(self, reason: str, count: int = 1) -> None:
        """Count excluded studies by reason."""
        self._left_out[reason] += count

    def count(self, name: str, number: int) -> None:
        """Add to the counts of the card."""
        self._counts[name] += number

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._manifest.close()
                card = self._card.model_copy(
                    update={
                        "counts": {**self._card.counts, **dict(sorted(self._counts.items()))},
                        "left_out": dict(sorted(self._left_out.items())),
                        "manifest_sha256": sha256_file(self.folder / "manifest.jsonl"),
                    }
                )
                write_json(self.folder / "dataset.json", card.model_dump(mode="json"))
        except BaseException as failure:
            self._stack.__exit__(type(failure), failure, failure.__traceback__)
            raise
        self._stack.__exit__(kind, error, trace)


def _line(study: Study) -> str:
    """The line of a study in a manifest."""
    return study.model_dump_json(exclude_defaults=True) + "\n"


class Dataset:
    """A dataset folder, opened for reading. An ``aim`` replaces the reports of the import."""

    def __init__(self, path: Path, card: DatasetCard, limit: int | None = None, aim: Aim | None = None) -> None:
        self.path = path
        self.card = card
        self.limit = limit
        self._aim = aim
        self._manifest = manifest_at(self.manifest_path)

    @classmethod
    def open(cls, path: Path, *, limit: int | None = None) -> Dataset:
        """Open a folder and check its card. ``limit`` is the largest number of studies of each split, evenly spread.

        Raises:
            InputError: if it is no dataset folder or of another format version.
        """
        if not path.is_dir():
            what = "a file, not a dataset folder; 'radweave data import' makes one of a table" if path.is_file() else ""
            raise InputError(what or "no such dataset folder", file=path)
        card_path = path / "dataset.json"
        if not card_path.is_file():
            raise InputError(
                "not a dataset folder: dataset.json is missing; make one with 'radweave data import'", file=path
            )
        card = checked(DatasetCard, read_json(card_path), file=card_path)
        if card.format != FORMAT or card.version != FORMAT_VERSION:
            raise InputError(
                "unknown dataset format",
                file=card_path,
                got=f"{card.format} {card.version}",
                expected=f"{FORMAT} {FORMAT_VERSION}",
            )
        return cls(path, card, limit)

    def aimed(self, target: Target) -> Dataset:
        """The data set with another target text, made of the studies' sections; the folder stays unchanged.

        Raises:
            InputError: of a mixture whose sets were cleaned in different ways.
        """
        if target == "as_imported" or target == self.card.target:
            return self
        card = self.card.model_copy(update={"target": target})
        return Dataset(self.path, card, self.limit, Aim(target, self.card.cleaning))

    @property
    def manifest_path(self) -> Path:
        return self.path / "manifest.jsonl"

    def fingerprint(self) -> str:
        """SHA-256 of the manifest on disk, and of the limit if there is one."""
        whole = self._manifest.fingerprint()
        return whole if self.limit is None else sha256_json([whole, self.limit])

    def unmarked_fingerprint(self) -> str:
        """The fingerprint that the data set would have without its boxes."""
        digest = hashlib.sha256()
        for study in self._manifest.studies():
            images = tuple(image.model_copy(update={"boxes": ()}) for image in study.images)
            digest.update(_line(study.model_copy(update={"images": images})).encode())
        whole = digest.hexdigest()
        return whole if self.limit is None else sha256_json([whole, self.limit])

    def studies(self, split: Split | None = None) -> Iterator[Study]:
        """The studies, all or of one split.

        Raises:
            InputError: for a line that is not JSON or does not fit the schema, or an id that comes twice.
        """
        positions: Counter[str | None] = Counter()
        for study in self._manifest.studies():
            position = positions[study.split]
            positions[study.split] += 1
            if (split is None or study.split == split) and self._is_within(study.split, position):
                yield study if self._aim is None else self._aim(study)

    def _is_within(self, split: Split | None, position: int) -> bool:
        """True if the limit selects the study at this position of its split."""
        count = self.card.counts.get(f"studies_{split}", 0)
        if self.limit is None or count <= self.limit:
            return True
        return position == 0 or position * self.limit // count != (position - 1) * self.limit // count

    def image_path(self, path: str) -> Path:
        """Absolute path of an image.

        Raises:
            InputError: if the path is invalid or leads out of the folder by a link, or the file is missing, no plain
                file, or a header whose voxels are in another file.
        """
        full = self.path / path
        try:
            exists, inside = full.exists(), full.resolve().is_relative_to(self.path.resolve())
        except (OSError, ValueError, RuntimeError):
            # A name too long, one that no file can have, or a link that leads to itself.
            raise InputError("image path cannot be used", file=self.manifest_path) from None
        if not exists:
            raise InputError("image is missing", file=full)
        if not inside:
            raise InputError("image lies outside the dataset folder", file=full)
        if not full.is_dir() and not full.is_file():
            raise InputError("image is not a file or a folder", file=full)
        if full.suffix.lower() == DETACHED_HEADER:
            raise InputError("image has its voxels in another file; convert it to one .mha file", file=full)
        return full
