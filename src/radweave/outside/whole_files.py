"""Downloads that went wrong: a pointer, a page, nothing or half of a file in its place; found by the first bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from radweave.base.errors import InputError

_POINTER: Final = b"version https://git-lfs"
_PAGES: Final = (b"<!doctype", b"<html", b"<?xml")


def refuse_stub(file: Path, *, what: str) -> None:
    """Refuse a file that is not what its name says: whatever its kind, and a safetensors file that was cut off.

    Raises:
        InputError: naming the file and what it holds.
    """
    with file.open("rb") as stream:
        start = stream.read(64).lstrip().lower()
    held = None
    if not start:
        held = "an empty file"
    elif start.startswith(_POINTER):
        held = "a pointer of Git LFS in its place"
    elif start.startswith(_PAGES):
        held = "a web page in its place"
    if held is not None:
        raise InputError(
            f"cannot load {what}: the file was not downloaded",
            file=file,
            got=held,
            expected="'hf download' or 'git lfs pull'",
        )
    if file.suffix == ".safetensors":
        _refuse_cut(file, what=what)


def _refuse_cut(file: Path, *, what: str) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(file), framework="pt"):
            pass
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot load {what}: not a whole safetensors file: {error}"[:300], file=file) from None
