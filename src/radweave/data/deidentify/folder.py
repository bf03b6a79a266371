"""De-identify a file, or a folder of files into a new folder that is complete or absent."""

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
class DeidentifiedImage:
    """A de-identified image: its new identifiers, and the file."""

    patient: str
    study: str
    series: str
    instance: str
    data: bytes


@dataclass(slots=True)
class FolderResult:
    """Result for a folder: counts, and each refused file with its SHA-256 and reason."""

    images: int = 0
    duplicates: int = 0
    patients: set[str] = field(default_factory=set)
    studies: set[str] = field(default_factory=set)
    refused: list[tuple[Path, str | None, str]] = field(default_factory=list)


def deidentify_file(path: Path, key: Key, *, burned_in: bool = False) -> DeidentifiedImage:
    """De-identify one image in memory.

    ``burned_in`` accepts images that may contain text.

    Raises:
        InputError: if it is no image, cannot be read, or may contain text in its pixels. No value is quoted.
    """
    request: dict[str, Any] = {"path": str(path.absolute()), "key": key.as_hex(), "burned_in": burned_in}
    header, arrays = _child().call("deidentify", request, timeout_s=TIMEOUT_S)
    names = {name: str(header[name]) for name in ("patient", "study", "series", "instance")}
    return DeidentifiedImage(**names, data=arrays["file"].tobytes())


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
) -> FolderResult:
    """De-identify a file, or all files of a folder, into ``out``/patient/study/series/instance.dcm, by their new names.

    Refused files are left out. ``out`` is complete, or absent if no image is left.

    Raises:
        InputError: if there is no file, ``out`` exists, or no image can be de-identified.
    """
    refuse_existing(out, overwrite=overwrite, kind=OUTPUT)
    files = list(_files(source))
    result = FolderResult()
    with write_folder(out, overwrite=overwrite, kind=OUTPUT) as folder:
        for number, file in enumerate(files, start=1):
            try:
                _take(deidentify_file(file, key, burned_in=burned_in), folder, result)
            except InputError as error:
                reason = error.reason if error.field is None else f"{error.field} {error.reason}"
                result.refused.append((file, _digest(file), reason))
            progress(number, len(files))
        if not result.images:
            reason = result.refused[0][2]
            raise InputError(f"no image can be de-identified; the first of {len(files)} files: {reason}", file=source)
        write_text(folder / RECORD, json_text(_record(result)))
    return result


def _files(source: Path) -> Iterator[Path]:
    """Regular files in the order of their names, without links."""
    if not source.exists():
        raise InputError("no such file or folder", file=source)
    paths = [source] if source.is_file() else sorted(source.rglob("*"))
    files = [path for path in paths if path.is_file() and not path.is_symlink()]
    if not files:
        raise InputError("holds no file", file=source)
    yield from files


def _take(cleaned: DeidentifiedImage, folder: Path, result: FolderResult) -> None:
    target = folder / cleaned.patient / cleaned.study / cleaned.series / f"{cleaned.instance}.dcm"
    if target.exists():
        if target.read_bytes() == cleaned.data:
            result.duplicates += 1
            return
        raise InputError("differs from another file of the same instance", field="SOPInstanceUID")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(cleaned.data)
    result.images += 1
    result.patients.add(cleaned.patient)
    result.studies.add(cleaned.study)


def _record(result: FolderResult) -> dict[str, Any]:
    reasons = Counter(reason for _, _, reason in result.refused)
    return {
        "profile": PROFILE, "images": result.images, "again": result.duplicates, "patients": len(result.patients),
        "studies": len(result.studies), "refused": dict(sorted(reasons.items())),
        "refused_files": [{"sha256": digest, "reason": reason} for _, digest, reason in result.refused],
    }  # fmt: skip


def _digest(path: Path) -> str | None:
    """SHA-256 that identifies a refused file without its name."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
