"""What a cache of prepared images writes down about itself, and what of it still holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from radweave.base.errors import InputError
from radweave.base.hashes import sha256_json
from radweave.base.json_files import read_json
from radweave.base.provenance import code_hash, library_versions
from radweave.base.study import Record
from radweave.data.cache.arrays import stamp
from radweave.data.dataset import Dataset
from radweave.data.preprocessing import PREPROCESSING_VERSION

READING: Final = ("radweave.data.reading", "radweave.data.preprocessing", "radweave.data.ct")
"""The rooms that make pixels of files."""


def made_by() -> dict[str, Any]:
    """What decides pixels beside the image file and the options. Part of the key of everything that is kept of them."""
    return {"version": PREPROCESSING_VERSION, "code": code_hash(*READING), "libraries": library_versions()}


class CacheIndex(Record):
    """``index.json``: ``rows`` path -> row; ``unreadable`` path -> reason; ``stamps`` path -> stamp of the image file.

    ``sums`` are checksums of the rows, or ``files`` names that are hashes of what the rows were made of; ``kept`` are
    the stamps of the files that hold the rows.
    """

    rows: dict[str, int]
    unreadable: dict[str, str]
    stamps: dict[str, str]
    sums: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    kept: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Hash of all pixels, and of which images they are."""
        return sha256_json([self.rows, sorted(self.unreadable), self.sums, self.files])


@dataclass(frozen=True, slots=True)
class Found:
    """What was found of a cache: nothing, or an index, its pixels, and the images that must be read again.

    ``kept`` are the stamps that the cache's own files have now; where they differ from the index, the files were read
    and checked.
    """

    index: CacheIndex | None = None
    pixels: Any = None
    stale: set[str] = field(default_factory=set)
    kept: tuple[str, ...] = ()

    @property
    def is_touched(self) -> bool:
        return self.index is not None and self.kept != self.index.kept

    @property
    def is_whole(self) -> bool:
        return self.index is not None and not self.stale

    def holds(self, path: str) -> bool:
        """Whether what is kept of this image can be used."""
        return self.index is not None and path in self.index.stamps and path not in self.stale

    def get(self, path: str) -> Any:
        """The pixels of an image that it holds, or the reason why it cannot be read."""
        assert self.index is not None
        return self.index.unreadable[path] if path in self.index.unreadable else self.pixels[self.index.rows[path]]


def read_index(folder: Path) -> CacheIndex | None:
    """The index of a cache; None where there is none, or one that contradicts itself."""
    try:
        index = CacheIndex.model_validate(read_json(folder / "index.json"))
    except (InputError, ValidationError, OSError, RecursionError):
        return None
    is_sound = (
        index.rows.keys().isdisjoint(index.unreadable)
        and index.stamps.keys() == index.rows.keys() | index.unreadable.keys()
        and sorted(index.rows.values()) == list(range(len(index.rows)))
    )
    return index if is_sound else None


def changed_sources(dataset: Dataset, index: CacheIndex) -> set[str]:
    """The images whose files are not those that were read, by their stamps alone."""
    return {path for path, told in index.stamps.items() if stamp(dataset.path / path) != told}
