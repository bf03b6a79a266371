"""Drafts of image files as one file: JSON lines with the evidence, text to read, or CSV, by the file's suffix."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from radweave.base.csv_text import csv_line
from radweave.base.errors import InputError
from radweave.base.json_files import read_jsonl
from radweave.base.replacing import FileKind
from radweave.base.storage import write_text
from radweave.base.study import RESEARCH_ONLY, Report
from radweave.generate.files import FileGroup

SUFFIXES = (".jsonl", ".txt", ".csv")
_ROWS = ({"study_id", "report", "warnings", "notice"}, {"study_id", "refused"}, {"study_id", "hyp"})
_ROWS_LOOKED_AT = 100
_COLUMNS = ("study_id", "report", "warnings", "refused", "notice")


def refuse_other_kind(path: Path) -> None:
    """Refuse a suffix that says no kind of file.

    Raises:
        InputError: naming those that do.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(
            "unknown kind of file", file=path, field="--out", got=path.suffix or "no suffix",
            expected=f"a name that ends in {', '.join(SUFFIXES)}, or of one study in .dcm, .pdf, .json, .hl7",
        )  # fmt: skip


def _is_drafts(path: Path) -> bool:
    """Whether a file is one that ``generate`` writes, by what it holds; the rows of a split are drafts too."""
    try:
        with path.open(encoding="utf-8") as file:
            first = file.readline()
        if first == csv_line(_COLUMNS):
            return True
        rows = [set(row) for _, row in islice(read_jsonl(path), _ROWS_LOOKED_AT)]
        return bool(rows) and all(any(kind <= row for kind in _ROWS) for row in rows)
    except InputError:
        return path.read_text(encoding="utf-8").endswith(f"\n\n{RESEARCH_ONLY}\n")
    except ValueError:  # no text
        return False


DRAFTS = FileKind("a file of drafts", _is_drafts)


def draft_row(result: Report | FileGroup) -> dict[str, Any]:
    """A draft, or a study that was refused with the reason, as JSON values."""
    if isinstance(result, FileGroup):
        return {"study_id": result.name, "refused": result.refused}
    return {
        "study_id": result.study_id,
        "report": result.text,
        "evidence": dict(result.evidence),
        "warnings": list(result.warnings),
        "notice": result.notice,
    }


def write_drafts(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write what ``draft_row`` gave, whole or not at all; an old file of that name is replaced.

    Raises:
        InputError: if the file cannot be written.
    """
    refuse_other_kind(path)
    lines = {".jsonl": _jsonl, ".txt": _text, ".csv": _csv}[path.suffix.lower()](rows)
    write_text(path, "".join(lines))


def _jsonl(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for row in rows:
        yield json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"


def _text(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for row in rows:
        said = f"refused: {row['refused']}" if "refused" in row else row["report"]
        warnings = [f"warning: {warning}" for warning in row.get("warnings", ())]
        yield "\n".join([row["study_id"], said, *warnings]) + "\n\n"
    yield f"{RESEARCH_ONLY}\n"


def _csv(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield csv_line(_COLUMNS)
    for row in rows:
        whole = {**row, "warnings": "; ".join(row.get("warnings", ()))}
        yield csv_line([str(whole.get(name, "")) for name in _COLUMNS])
