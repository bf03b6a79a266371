"""``radweave label`` and ``radweave.label``: findings of report texts, of a file or as they are given."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, overload

from radweave.base.csv_text import csv_line
from radweave.base.errors import InputError
from radweave.base.json_files import read_jsonl
from radweave.base.ontology import CLASSES
from radweave.base.places import refuse_existing
from radweave.base.replacing import FileKind
from radweave.base.storage import write_aside
from radweave.base.study import LabelState
from radweave.data.tables import read_rows
from radweave.evaluation.fields import STUDY_FIELDS, TEXT_FIELDS, field_of
from radweave.evaluation.pairs import check_text
from radweave.labels import Labeler, get_labeler
from radweave.labels.labeler import Mention

# The coding of the published CheXpert labeler's files.
_CSV_CODES = {LabelState.POSITIVE: "1", LabelState.NEGATIVE: "0", LabelState.UNCERTAIN: "-1", LabelState.BLANK: ""}
_BATCH = 512
_SHOWN_ERRORS = 10


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


@overload
def label(  # type: ignore[overload-overlap]  # a mapping iterates over its ids too
    texts: Mapping[str, str] | Path, *, ontology: str = ..., weights: Path | str | None = ...
) -> dict[str, dict[str, LabelState]]: ...
@overload
def label(
    texts: Iterable[str], *, ontology: str = ..., weights: Path | str | None = ...
) -> list[dict[str, LabelState]]: ...
def label(
    texts: Iterable[str] | Mapping[str, str] | Path, *, ontology: str = "chexpert14", weights: Path | str | None = None
) -> list[dict[str, LabelState]] | dict[str, dict[str, LabelState]]:
    """Read the findings of report texts: ``label(["No effusion."])[0]["Pleural Effusion"] == "negative"``.

    Args:
        texts: a list of texts, a mapping of study id to text, or the ``Path`` of a CSV, TSV, JSON or JSONL file.
        ontology: "chexpert14", "ct18", "nih14" by rules, "chexbert" or "radbert18" by a network.
        weights: local folder of the network's weights and tokenizer.

    Returns:
        Class -> state ("positive", "negative", "uncertain", "blank" for not mentioned) of each text: a list in the
        order of a list, else a mapping by study id. ``get_labeler`` gives the words that a state rests on too.

    Raises:
        InputError: for texts that are none, a name that no labeler has, or a file that cannot be read.
    """
    labeler = get_labeler(ontology, weights=None if weights is None else Path(weights))
    if isinstance(texts, (str, bytes)):
        expected = "a list of texts, a mapping of id to text, or a Path"
        raise InputError("one string is no list of texts", field="texts", got=type(texts).__name__, expected=expected)
    if isinstance(texts, (Mapping, Path)):
        named = dict(read_texts(texts)) if isinstance(texts, Path) else texts
        return dict(zip(map(str, named), _states(labeler, list(named.values())), strict=True))
    if not isinstance(texts, Iterable):
        raise InputError("not texts", field="texts", got=type(texts).__name__, expected="a list of texts")
    return _states(labeler, list(texts))


def _states(labeler: Labeler, texts: Sequence[str]) -> list[dict[str, LabelState]]:
    found = labeler.label([check_text(text, f"texts[{number}]") for number, text in enumerate(texts)])
    return [{name: mention.state for name, mention in mentions.items()} for mentions in found]


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


def read_texts(
    path: Path,
    *,
    text_field: str = "",
    id_field: str = "",
    known: Sequence[str] = TEXT_FIELDS,
    refused: list[InputError] | None = None,
) -> Iterator[tuple[str, str]]:
    """Yield ``(study id, text)`` of the rows of a file; a row without an id field has its number.

    Args:
        path: ``.csv``, ``.tsv``, ``.json``, or JSON lines under any other name.
        text_field: the field of the text; found by name if not given.
        id_field: the field of the id; likewise.
        known: the names among which the field of the text is found.
        refused: gets what is wrong with a row, which is then left out.

    Raises:
        InputError: for a file that cannot be read, and for a row where nobody takes what is ``refused``.
    """
    seen: set[str] = set()
    for number, (place, row) in enumerate(read_rows(path), start=1):
        if number == 1:
            text_field = field_of(row, text_field, known, "text", place)
            id_field = id_field or next((name for name in STUDY_FIELDS if name in row), "")
        try:
            study = str(place.get("line", number)) if not id_field else row.get(id_field)
            yield _checked_id(study, id_field, seen, place), check_text(row.get(text_field), text_field, **place)
        except InputError as error:
            if refused is None:
                raise
            refused.append(error)


def _checked_id(study: Any, field: str, seen: set[str], place: dict[str, Any]) -> str:
    if not isinstance(study, (str, int)) or isinstance(study, bool) or str(study) == "":
        raise InputError("not a study id", field=field, got=type(study).__name__, **place)
    if str(study) in seen:
        raise InputError("study id comes twice", field=field, got=study, **place)
    seen.add(str(study))
    return str(study)


def _labelled(
    request: LabelRequest, labeler: Labeler, refused: list[InputError]
) -> Iterator[tuple[str, dict[str, Mention]]]:
    """Yield (study id, mentions) in the file's order, labelling in batches."""
    rows = read_texts(request.reports, text_field=request.text_field, id_field=request.id_field, refused=refused)
    while batch := list(islice(rows, _BATCH)):
        yield from _label(batch, labeler)


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
