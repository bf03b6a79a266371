"""``radweave label``: findings of report texts from a file, as JSON lines or CSV."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radweave.base.csv_text import csv_line
from radweave.base.errors import InputError
from radweave.base.json_files import read_jsonl
from radweave.base.ontology import CLASSES
from radweave.base.places import refuse_existing
from radweave.base.replacing import FileKind
from radweave.base.storage import write_aside
from radweave.base.study import LabelState
from radweave.evaluation.pairs import check_text
from radweave.labels import Labeler, get_labeler
from radweave.labels.labeler import Mention

TEXT_FIELDS = ("report", "text", "hyp", "findings", "Report Impression", "Reports", "Report", "impression")
ID_FIELDS = ("study_id", "id", "uid", "Study", "VolumeName")
# The coding of the published CheXpert labeler's files.
_CSV_CODES = {LabelState.POSITIVE: "1", LabelState.NEGATIVE: "0", LabelState.UNCERTAIN: "-1", LabelState.BLANK: ""}
_BATCH = 512
_SHOWN_ERRORS = 10
# One cell may hold a long report; the csv module's own limit is 128 KiB.
_MAX_CELL_CHARACTERS = 16 << 20


@dataclass(frozen=True, slots=True)
class LabelRequest:
    """The options of ``radweave label``; empty field names are found by name."""

    reports: Path
    ontology: str = "chexpert14"
    weights: Path | None = None
    text_field: str = ""
    id_field: str = ""
    out: Path | None = None
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class _Row:
    number: int
    values: Mapping[str, Any]


def _is_labels(path: Path) -> bool:
    """Whether a file is one that ``label`` writes."""
    try:
        with path.open(encoding="utf-8") as file:
            first = file.readline()
        if first in {csv_line(["study_id", *classes]) for classes in CLASSES.values()}:
            return True
        return all({"study_id", "labels", "spans"} == set(row) for _, row in read_jsonl(path))
    except (InputError, ValueError):
        return False


_OUTPUT = FileKind("a file of labels", _is_labels)


def run_label(request: LabelRequest) -> int:
    """Label every report; bad rows are named on standard error, counted and left out. Returns their number.

    Raises:
        InputError: for a file that cannot be read at all, or without the field asked for.
    """
    labeler = get_labeler(request.ontology, weights=request.weights)
    if request.out is not None:
        refuse_existing(request.out, overwrite=request.overwrite, ours=_OUTPUT)
        if request.out.suffix not in (".jsonl", ".csv"):
            raise InputError("unknown kind of file", file=request.out, expected=".jsonl or .csv")
    refused: list[InputError] = []
    labelled = _labelled(request, labeler, refused)
    if request.out is None:
        for line in _jsonl_lines(labelled):
            print(line, end="")
    else:
        lines = _csv_lines(labelled, labeler.classes) if request.out.suffix == ".csv" else _jsonl_lines(labelled)
        with write_aside(request.out) as partial, partial.open("w", encoding="utf-8", newline="") as file:
            file.writelines(lines)
    for error in refused[:_SHOWN_ERRORS]:
        print(f"error: {error}", file=sys.stderr)
    if refused:
        print(f"{len(refused)} rows left out", file=sys.stderr)
    return len(refused)


def _rows(path: Path) -> Iterator[_Row]:
    if path.suffix != ".csv":
        for number, row in read_jsonl(path):
            yield _Row(number, row)
        return
    csv.field_size_limit(_MAX_CELL_CHARACTERS)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            for row in reader:
                yield _Row(reader.line_num, row)
    except FileNotFoundError:
        raise InputError("file is missing", file=path) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"not a valid CSV file: {error}", file=path) from None


def _field(row: _Row, given: str, known: Sequence[str], what: str, path: Path) -> str:
    if given:
        if given not in row.values:
            fields = ", ".join(str(name) for name in row.values)
            raise InputError(f"no field '{given}'", file=path, line=row.number, expected=f"one of {fields}")
        return given
    for name in known:
        if name in row.values:
            return name
    raise InputError(f"no field for the {what} found; name it", file=path, line=row.number, expected=", ".join(known))


def _labelled(
    request: LabelRequest, labeler: Labeler, refused: list[InputError]
) -> Iterator[tuple[str, dict[str, Mention]]]:
    """Yield (study id, mentions) in the file's order, labelling in batches."""
    batch: list[tuple[str, str]] = []
    seen: set[str] = set()
    text_field = id_field = ""
    for row in _rows(request.reports):
        if not text_field:
            text_field = _field(row, request.text_field, TEXT_FIELDS, "text", request.reports)
            id_field = request.id_field or next((name for name in ID_FIELDS if name in row.values), "")
        try:
            batch.append(_checked(row, text_field, id_field, seen, request.reports))
        except InputError as error:
            refused.append(error)
            continue
        if len(batch) == _BATCH:
            yield from _label(batch, labeler)
            batch = []
    yield from _label(batch, labeler)


def _checked(row: _Row, text_field: str, id_field: str, seen: set[str], path: Path) -> tuple[str, str]:
    place: dict[str, Any] = {"file": path, "line": row.number}
    text = check_text(row.values.get(text_field), text_field, **place)
    study = row.values.get(id_field) if id_field else str(row.number)
    if not isinstance(study, (str, int)) or isinstance(study, bool) or str(study) == "":
        raise InputError("not a study id", field=id_field, got=type(study).__name__, **place)
    if str(study) in seen:
        raise InputError("study id comes twice", field=id_field, got=study, **place)
    seen.add(str(study))
    return str(study), text


def _label(batch: Sequence[tuple[str, str]], labeler: Labeler) -> Iterator[tuple[str, dict[str, Mention]]]:
    found = labeler.label([text for _, text in batch])
    for (study, _), mentions in zip(batch, found, strict=True):
        yield study, mentions


def _jsonl_lines(labelled: Iterable[tuple[str, dict[str, Mention]]]) -> Iterator[str]:
    for study, mentions in labelled:
        record = {
            "study_id": study,
            "labels": {name: str(mention.state) for name, mention in mentions.items()},
            "spans": {name: list(mention.span) for name, mention in mentions.items() if mention.span is not None},
        }
        yield json.dumps(record, ensure_ascii=False) + "\n"


def _csv_lines(labelled: Iterable[tuple[str, dict[str, Mention]]], classes: Sequence[str]) -> Iterator[str]:
    """Rows in the coding of the CheXpert labeler: 1, 0, -1 for uncertain, empty for not mentioned."""
    yield csv_line(["study_id", *classes])
    for study, mentions in labelled:
        yield csv_line([study, *(_CSV_CODES[mentions[name].state] for name in classes)])
