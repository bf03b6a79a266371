"""Hashes of bytes, files, folders and JSON values."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

_CHUNK_BYTES = 1 << 20


def sha256_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def sha256_folder(path: Path) -> str:
    """Hash over names and bytes of all files below a folder; that of nothing where there is none."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else []
    return sha256_json({file.relative_to(path).as_posix(): sha256_file(file) for file in files})


def sha256_json(value: Any) -> str:
    """Hash of a JSON value, independent of key order and spacing."""
    return sha256_bytes(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode())
