"""De-identify files: one, or a folder of them into a new folder that is whole or absent."""

from __future__ import annotations

import atexit
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from radweave.core.errors import InputError
from radweave.core.json_files import json_text
from radweave.core.replacing import record_kind
from radweave.core.storage import refuse_existing, write_folder, write_text
from radweave.data.deidentify.key import Key
from radweave.io.sandbox import Sandbox

PARSERS: Final = "radweave.data.deidentify.parse"
TIMEOUT_S: Final = 60.0
RECORD: Final = "deidentified.json"
OUTPUT: Final = record_kind("a folder of de-identified images", RECORD, ("profile", "images"), ("*.dcm",))
PROFILE: Final = "DICOM PS3.15 Basic Application Level Confidentiality Profile, modified dates"


@dataclass(frozen=True, slots=True)
class Cleaned:
    """An image without its patient: its new names, and the file."""

    patient: str
    study: str
    series: str
    instance: str
    data: bytes


@dataclass(slots=True)
class Done:
    """What became of a folder: counts, and each file that was refused with its SHA-256 and its reason."""

    images: int = 0
    again: int = 0
    patients: set[str] = field(default_factory=set)
    studies: set[str] = field(default_factory=set)
    refused: list[tuple[Path, str | None, str]] = field(default_factory=list)


def deidentify_file(path: Path, key: Key, *, burned_in: bool = False) -> Cleaned:
    """One image without its patient. Nothing is written.

    ``burned_in`` lets images pass that may bear text.

    Raises:
        InputError: if it is no image, cannot be read, or may bear text in its pixels. No value of it is quoted.
    """
    request: dict[str, Any] = {"path": str(path.absolute()), "key": key.as_hex(), "burned_in": burned_in}
    found, arrays = _child().call("deidentify", request, timeout_s=TIMEOUT_S)
    names = {name: str(found[name]) for name in ("patient", "study", "series", "instance")}
    return Cleaned(**names, data=arrays["file"].tobytes())


@lru_cache(maxsize=1)
def _child() -> Sandbox:
    child = Sandbox(PARSERS)
    atexit.register(child.close)
    return child


def deidentify_folder(
    source: Path,
    out: Path,
    key: Key,
    *,
    burned_in: bool = False,
    overwrite: bool = False,
    progress: Callable[[int, int | None], None] = lambda count, total: None,
) -> Done:
    """De-identify a file, or all files of a folder, into ``out``/patient/study/series/instance.dcm, by their new names.

    A file that is refused is left out, and the others are written. ``out`` is whole, or absent where no image is left.

    Raises:
        InputError: if there is no file, ``out`` is there already, or no image at all can be taken.
    """
    refuse_existing(out, overwrite=overwrite, kind=OUTPUT)
    files = list(_files(source))
    done = Done()
    with write_folder(out, overwrite=overwrite, kind=OUTPUT) as folder:
        for number, file in enumerate(files, start=1):
            try:
                _take(deidentify_file(file, key, burned_in=burned_in), folder, done)
            except InputError as error:
                reason = error.reason if error.field is None else f"{error.field} {error.reason}"
                done.refused.append((file, _digest(file), reason))
            progress(number, len(files))
        if not done.images:
            reason = done.refused[0][2]
            raise InputError(f"no image can be de-identified; the first of {len(files)} files: {reason}", file=source)
        write_text(folder / RECORD, json_text(_record(done)))
    return done


def _files(source: Path) -> Iterator[Path]:
    """Regular files, in the order of their names; links lead elsewhere and are passed over."""
    if not source.exists():
        raise InputError("no such file or folder", file=source)
    found = [source] if source.is_file() else sorted(source.rglob("*"))
    files = [path for path in found if path.is_file() and not path.is_symlink()]
    if not files:
        raise InputError("holds no file", file=source)
    yield from files


def _take(cleaned: Cleaned, folder: Path, done: Done) -> None:
    place = folder / cleaned.patient / cleaned.study / cleaned.series / f"{cleaned.instance}.dcm"
    if place.exists():
        if place.read_bytes() == cleaned.data:
            done.again += 1
            return
        raise InputError("differs from another file of the same instance", field="SOPInstanceUID")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(cleaned.data)
    done.images += 1
    done.patients.add(cleaned.patient)
    done.studies.add(cleaned.study)


def _record(done: Done) -> dict[str, Any]:
    reasons = Counter(reason for _, _, reason in done.refused)
    return {
        "profile": PROFILE, "images": done.images, "again": done.again, "patients": len(done.patients),
        "studies": len(done.studies), "refused": dict(sorted(reasons.items())),
        "refused_files": [{"sha256": digest, "reason": reason} for _, digest, reason in done.refused],
    }  # fmt: skip


def _digest(path: Path) -> str | None:
    """A file, without its name, for those who have it."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
