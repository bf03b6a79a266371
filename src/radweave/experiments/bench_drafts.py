"""Drafts of other programs as rows of a benchmark: ``radweave bench OUT --drafts [SET:]NAME=FILE``.

A file is a CSV or TSV table, JSON lines, or JSON: a list of objects, or an object by study id, as ReXrank's
``prediction.json`` (https://github.com/rajpurkarlab/ReXrank/blob/main/example_files/prediction.json). Only ids and
drafts are read: references, patients, priors and floors are those of the data set. Several files of one name are runs
of one system, like the seeds of a method.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from radweave.core.errors import InputError, printable
from radweave.core.storage import sha256_file
from radweave.data.dataset import Dataset
from radweave.data.tables import read_rows
from radweave.metrics.pairs import HYP_FIELDS, REF_FIELDS, STUDY_FIELDS, TEXT_FIELDS, Pair, check_text

OPTION = "--drafts"
_REXRANK_IDS = (lambda name: name.replace("/", "_"), lambda name: f"s{name}", lambda name: name.partition("_IM-")[0])
"""Our ids of ReXrank's: CheXpert Plus (``patient1/study1``), MIMIC-CXR (``50051329``), IU X-Ray (``CXR1_IM-0001``)."""
_REFERENCES = (*REF_FIELDS, "section_findings", "section_impression")
_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class ForeignDrafts:
    """The drafts of a file by study id of the data set's test split; ``others`` rows are of other studies."""

    file: Path
    sha256: str
    drafts: Mapping[str, str]
    others: int

    @property
    def empty(self) -> int:
        """Number of empty drafts; they are scored as empty reports."""
        return sum(not text.strip() for text in self.drafts.values())

    def stated(self) -> str:
        """One sentence on the file for the notes of tables; without its path, which may name a user."""
        counts = f"{len(self.drafts)} drafts, {self.empty} of them empty"
        others = f"; {self.others} rows of studies outside of the test split left out" if self.others else ""
        return f"{counts}{others}; SHA-256 {self.sha256[:12]}"


def named_files(
    texts: Sequence[str], sets: Sequence[str], known_sets: Container[str]
) -> dict[str, dict[str, list[Path]]]:
    """The files by set and name, from options ``[SET:]NAME=FILE``; the set may stay away where there is one.

    Raises:
        InputError: for an option of another form, or a set that is not run.
    """
    files: dict[str, dict[str, list[Path]]] = {}
    for text in texts:
        label, equals, path = text.partition("=")
        first, colon, rest = label.partition(":")
        place, name = (first, rest) if colon and first in known_sets else ("", label)
        if not equals or not path or not name.strip() or len(name) > _LONGEST_NAME or printable(name) != name:
            raise InputError("not a name and a file", field=OPTION, got=text, expected="[SET:]NAME=FILE")
        if not place and len(sets) != 1:
            raise InputError(
                "of which set?", field=OPTION, got=text, expected=f"SET:NAME=FILE, SET of {', '.join(sets)}"
            )
        if place and place not in sets:
            raise InputError("this set is not run", field=OPTION, got=place, expected=", ".join(sets))
        files.setdefault(place or sets[0], {}).setdefault(name.strip(), []).append(Path(path))
    return files


def read_foreign(
    files: Mapping[str, Sequence[Path]], dataset: Dataset, rows: Container[str]
) -> dict[str, tuple[ForeignDrafts, ...]]:
    """Read the drafts of each name; ``rows`` are the labels that the table has already.

    Raises:
        InputError: for a name of another row, a file that cannot be read or lacks a test study, and a study that comes
            twice.
    """
    if not files:
        return {}
    references = {study.study_id: study.report for study in dataset.studies("test")}
    for name, paths in files.items():
        if name in rows:
            raise InputError("a row of the table has this name already", field=OPTION, got=name)
        if len(set(paths)) < len(paths):
            raise InputError("the same file is given twice", field=OPTION, got=name)
    return {name: tuple(_read(path, references) for path in paths) for name, paths in files.items()}


def _read(path: Path, references: Mapping[str, str | None]) -> ForeignDrafts:
    drafts: dict[str, str] = {}
    others: set[str] = set()
    for place, row in read_rows(path):
        stated = _id_of(row, place)
        study = next((name for name in _names(stated) if name in references), None)
        if (study or stated) in (others if study is None else drafts):
            raise InputError("study id comes twice", field="study_id", got=stated, **place)
        if study is None:
            others.add(stated)
        else:
            drafts[study] = _draft_of(row, place)
    referenced = {study: text for study, text in references.items() if text}
    missing = [study for study in referenced if study not in drafts]
    if missing:
        unknown = f"; {len(others)} rows are of other studies, first '{next(iter(sorted(others)))}'" if others else ""
        raise InputError(
            "lacks drafts of test studies; an empty draft counts as an empty report",
            file=path,
            field="study_id",
            got=f"none of {len(missing)} of {len(referenced)} studies, first '{missing[0]}'{unknown}",
            expected="one draft of each",
        )
    if referenced and all(drafts[study].split() == text.split() for study, text in referenced.items()):
        raise InputError("every draft is its reference word for word; is this the file of references?", file=path)
    return ForeignDrafts(path, sha256_file(path), drafts, len(others))


def _id_of(row: Mapping[str, Any], place: Mapping[str, Any]) -> str:
    field = _field(row, STUDY_FIELDS, "study", place)
    value = row[field]
    if not isinstance(value, (str, int)) or isinstance(value, bool) or not str(value).strip():
        raise InputError("not a study id", field=field, got=type(value).__name__, **place)
    return str(value).strip()


def _names(stated: str) -> Iterable[str]:
    """The id as it is, then what our importers make of ReXrank's."""
    yield stated
    yield from (rule(stated) for rule in _REXRANK_IDS)


def _draft_of(row: Mapping[str, Any], place: Mapping[str, Any]) -> str:
    """The draft of a row; beside a reference a field such as ``report`` may be either, so that it is not taken."""
    known = HYP_FIELDS if any(name in row for name in _REFERENCES) else (*HYP_FIELDS, *TEXT_FIELDS)
    field = _field(row, known, "draft", place)
    return check_text(row[field], field, **place)


def _field(row: Mapping[str, Any], known: Sequence[str], what: str, place: Mapping[str, Any]) -> str:
    """The first known field that the row has; the message leaves out its own names, which may be a patient's data."""
    name = next((name for name in known if name in row), None)
    if name is None:
        raise InputError(f"no field for the {what}", got=f"{len(row)} other fields", expected=", ".join(known), **place)
    return name


def foreign_pairs(file: ForeignDrafts, pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs of another run with these drafts in place of its own, and nothing of its evidence.

    Raises:
        InputError: if the run reports on a study without a draft.
    """
    for pair in pairs:
        if pair.study_id not in file.drafts:
            raise InputError("lacks the draft of a study", file=file.file, field="study_id", got=pair.study_id)
    return [
        replace(
            pair,
            hyp=file.drafts[pair.study_id],
            as_written=None,
            comparisons_removed=0,
            marks_removed=0,
            probabilities=None,
        )
        for pair in pairs
    ]
