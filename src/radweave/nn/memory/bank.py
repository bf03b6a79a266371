"""A bank: vectors made from the training split, and for each one a row that says where it comes from.

BANK/bank.safetensors  tensors, the first axis runs over the rows
BANK/rows.jsonl        one JSON object per row: study_id, patient (a code), and what the method adds
BANK/owners.json       in an export, whose rows are renamed: salted hashes of the names they had
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from radweave.core.batch import Batch
from radweave.core.config import checked
from radweave.core.errors import InputError
from radweave.core.json_files import read_json_object, read_jsonl, write_json, write_jsonl
from radweave.core.replacing import FolderKind
from radweave.core.storage import write_folder
from radweave.core.study import Record

# A safetensors file that is written piece by piece: a bank may be larger than memory.
#
# The library makes bytes of all tensors before it writes the first; here the same bytes are written by a few rows.
# Reading needs nothing of the kind: the library maps the file.
#
# Format: https://huggingface.co/docs/safetensors, "Format": eight bytes with the length of the header, the header as
# JSON padded with blanks to a multiple of eight, then the tensors.


PIECE_BYTES = 1 << 22
_NAMES = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""In the order in which the library sorts them: widest first."""


def pieces(tensor: Tensor) -> Iterator[tuple[int, Tensor]]:
    """A tensor in runs of rows that fit in little memory, on the CPU, each with the number of its first row."""
    row_bytes = tensor[:1].numel() * tensor.element_size()
    step = max(1, PIECE_BYTES // max(1, row_bytes))
    for start in range(0, len(tensor), step):
        yield start, tensor[start : start + step].detach().cpu().contiguous()


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors of at least one axis; the bytes are those of the library.

    Raises:
        OSError: if it cannot be written.
    """
    order = sorted(tensors, key=lambda name: (list(_NAMES).index(tensors[name].dtype), name))
    header, end = {}, 0
    for name in order:
        tensor = tensors[name]
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            for _, piece in pieces(tensors[name]):
                file.write(piece.view(-1).view(torch.uint8).numpy().data)


def _files(folder: Path) -> tuple[str, ...]:
    """The files beside the tensors, of whatever bank it is."""
    for line, row in islice(read_jsonl(folder / "rows.jsonl"), 1):
        _row(folder / "rows.jsonl", line, row)
    return ("rows.jsonl", "owners.json")


BANK = FolderKind("a bank", "bank.safetensors", _files)


ROWS = "rows"
"""As a size of a ``Column``: as many as the bank has rows."""


@dataclass(frozen=True, slots=True)
class Column:
    """Number type and shape of one row of a tensor; sizes with the same name are equal in all tensors."""

    kind: Literal["float", "whole", "flag"]
    shape: tuple[int | str, ...] = ()

    @property
    def dtypes(self) -> frozenset[torch.dtype]:
        """The types that will do."""
        return _DTYPES[self.kind]


_DTYPES = {
    "float": frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64}),
    "whole": frozenset({torch.uint8, torch.int16, torch.int32, torch.int64}),
    "flag": frozenset({torch.bool, torch.uint8}),
}


@dataclass(frozen=True, slots=True)
class BankLayout:
    """Contents of a method's bank: its tensors, if every row has a ``text``, and if it may have no rows."""

    tensors: Mapping[str, Column]
    texts: bool = False
    may_be_empty: bool = False


def patient_code(patient_id: str) -> str:
    """A code that tells patients apart without naming them; a bank never holds the id itself."""
    return hashlib.sha256(f"radweave patient {patient_id}".encode()).hexdigest()[:16]


def _salted(salt: str, name: str) -> str:
    return hashlib.sha256(f"{salt} {name}".encode(errors="surrogatepass")).hexdigest()[:32]


class HashedNames(Record):
    """``owners.json``: per row, hashes of the study's id and of the patient's code that the row had in the run.

    With them an export still keeps a study from recalling itself, as its own run does. A holder of the export
    who knows an id can test for it; reading an id takes trying ids.
    """

    salt: str
    studies: tuple[str, ...]
    patients: tuple[str, ...]


class Owners:
    """Study and patient of each row of a bank, as numbers; ``patients`` are codes (see ``patient_code``).

    With a ``salt`` the names of rows are hashes, and those of queries are hashed alike.
    """

    def __init__(self, study_ids: Sequence[str], patients: Sequence[str], salt: str | None = None) -> None:
        assert len(study_ids) == len(patients), "one study and one patient per row"
        self._salt = salt
        self._studies = {name: number for number, name in enumerate(dict.fromkeys(study_ids))}
        self._patients = {name: number for number, name in enumerate(dict.fromkeys(patients))}
        self.study_of_row = torch.tensor([self._studies[name] for name in study_ids], dtype=torch.long)
        self.patient_of_row = torch.tensor([self._patients[name] for name in patients], dtype=torch.long)
        self._by_study, self._by_patient = _Groups(self.study_of_row), _Groups(self.patient_of_row)

    def __len__(self) -> int:
        return len(self.study_of_row)

    def studies_of(self, study_ids: Sequence[str]) -> Int[Tensor, " queries"]:
        """Numbers of studies; -1 for one that has no row."""
        return self._numbers(self._studies, study_ids)

    def patients_of(self, patient_ids: Sequence[str]) -> Int[Tensor, " queries"]:
        """Numbers of patients (ids, not codes); -1 for one that has no row."""
        return self._numbers(self._patients, [patient_code(name) for name in patient_ids])

    def of_queries(self, study_ids: Sequence[str], patient_ids: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Numbers of the queries' own studies and patients."""
        return self.studies_of(study_ids), self.patients_of(patient_ids)

    def _numbers(self, known: Mapping[str, int], names: Sequence[str]) -> Int[Tensor, " queries"]:
        salt = self._salt
        hashed = names if salt is None else [_salted(salt, name) for name in names]
        return torch.tensor([known.get(name, -1) for name in hashed], dtype=torch.long)

    def barred(self, own: tuple[Tensor, Tensor], rows: slice | Int[Tensor, "batch rows"]) -> Bool[Tensor, "batch rows"]:
        """Mark the rows of the query's own study or patient; rows of a slice, or other rows for each query."""
        studies, patients = own
        return (self.study_of_row[rows] == studies[:, None]) | (self.patient_of_row[rows] == patients[:, None])

    def barred_rows(self, own: tuple[Tensor, Tensor]) -> tuple[Int[Tensor, " barred"], Int[Tensor, " barred"]]:
        """The barred pairs of all rows, as numbers of queries and of rows; a pair may come twice.

        A query has a handful of rows of its own: looking them up does not grow with the bank.
        """
        studies, patients = own
        pairs = [self._by_study.rows_of(studies), self._by_patient.rows_of(patients)]
        query, row = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        return query, row


class _Groups:
    """Rows by the number (N,) of what they are of."""

    def __init__(self, numbers: Int[Tensor, " rows"]) -> None:
        self._numbers, self._rows = numbers.sort(stable=True)

    def rows_of(self, wanted: Int[Tensor, " queries"]) -> tuple[Int[Tensor, " found"], Int[Tensor, " found"]]:
        """Places among the wanted numbers, and the rows that have those; -1 has none."""
        first = torch.searchsorted(self._numbers, wanted)
        count = torch.searchsorted(self._numbers, wanted, right=True) - first
        query = torch.arange(len(wanted)).repeat_interleave(count)
        within = torch.arange(len(query)) - (count.cumsum(0) - count).repeat_interleave(count)
        return query, self._rows[first.repeat_interleave(count) + within]


@dataclass(frozen=True, slots=True)
class Bank:
    """Named tensors with N rows each, and N JSON rows with at least ``study_id`` and ``patient``.

    ``hashed`` is set in an export, where those two are new names. Who a row is of says ``owners()`` alone.
    """

    tensors: Mapping[str, Tensor]
    rows: tuple[dict[str, Any], ...]
    hashed: HashedNames | None = None

    def __post_init__(self) -> None:
        for name, tensor in self.tensors.items():
            assert len(tensor) == len(self.rows), f"tensor {name} has one row per JSON row"
        assert all("study_id" in row and "patient" in row for row in self.rows), "every row names its origin"

    def owners(self) -> Owners:
        """Owners of the rows, for searches that must not return the query's own study or patient."""
        if self.hashed is None:
            return Owners(self.study_ids, self.patients)
        return Owners(self.hashed.studies, self.hashed.patients, self.hashed.salt)

    def renamed(self, salt: str, cases: dict[str, str], patients: dict[str, str]) -> Bank:
        """The bank with new names for studies and patients, and hashes of the old ones; texts stay.

        ``cases`` and ``patients`` (old name -> new) are added to, so that banks of one run agree.
        """
        rows = tuple(
            {
                **row,
                "study_id": cases.setdefault(row["study_id"], f"case-{len(cases) + 1}"),
                "patient": patients.setdefault(row["patient"], f"patient-{len(patients) + 1}"),
            }
            for row in self.rows
        )
        hashed = self.hashed or HashedNames(
            salt=salt,
            studies=tuple(_salted(salt, name) for name in self.study_ids),
            patients=tuple(_salted(salt, name) for name in self.patients),
        )
        return replace(self, rows=rows, hashed=hashed)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def study_ids(self) -> list[str]:
        return [row["study_id"] for row in self.rows]

    @property
    def patients(self) -> list[str]:
        return [row["patient"] for row in self.rows]

    def refuse_misfit(self, name: str, layout: BankLayout) -> None:
        """Refuse a bank that a method cannot read: without rows, of other tensors, sizes or types, or without texts.

        Raises:
            InputError: naming the bank and the tensor or the field.
        """
        if not len(self):
            if not layout.may_be_empty:
                raise InputError(f"the bank '{name}' has no rows", field="memories", got=0, expected="1 or more")
            return
        sizes: dict[str, int] = {ROWS: len(self)}
        for tensor, column in layout.tensors.items():
            self._refuse_tensor(name, tensor, column, sizes)
        for number, row in enumerate(self.rows, start=1):
            if layout.texts and not isinstance(row.get("text"), str):
                raise InputError(f"row {number} of the bank '{name}' has no text", field="text")

    def _refuse_tensor(self, name: str, tensor: str, column: Column, sizes: dict[str, int]) -> None:
        value = self.tensors.get(tensor)
        if value is None:
            raise InputError(f"the bank '{name}' lacks a tensor", field=tensor)
        if value.dtype not in column.dtypes:
            expected = " or ".join(sorted(str(kind).removeprefix("torch.") for kind in column.dtypes))
            got = str(value.dtype).removeprefix("torch.")
            raise InputError(f"the bank '{name}' does not fit this model", field=tensor, got=got, expected=expected)
        shape = value.shape[1:]
        if len(shape) == len(column.shape):
            known = [
                size if isinstance(size, int) else sizes.setdefault(size, got)
                for size, got in zip(column.shape, shape, strict=True)
            ]
            if tuple(shape) == tuple(known):
                return
        wanted = [sizes.get(size, size) if isinstance(size, str) else size for size in column.shape]
        raise InputError(
            f"the bank '{name}' does not fit this model",
            field=tensor,
            got=f"rows of {list(shape)}",
            expected=f"rows of {wanted}",
        )

    def refuse_non_finite(self, name: str) -> None:
        """Refuse a bank with a value by which nothing could be found. It is read a few rows at a time.

        Raises:
            InputError: naming the bank, the tensor and the study of the first such row.
        """
        for tensor, values in self.tensors.items():
            if not values.is_floating_point():
                continue
            for start, piece in pieces(values):
                finite = piece.isfinite().flatten(1).all(1) if piece.ndim > 1 else piece.isfinite()
                if not finite.all():
                    row = start + int(finite.logical_not().nonzero()[0])
                    raise InputError(
                        f"a value of the bank '{name}' is not finite", field=tensor, got=self.study_ids[row]
                    )

    def refuse_others(self, name: str, allowed: Iterable[str]) -> None:
        """Refuse a bank with a row that is not of the allowed studies.

        Raises:
            InputError: naming the bank and the first such study.
        """
        known = set(allowed)
        unknown = [study_id for study_id in self.study_ids if study_id not in known]
        if unknown:
            raise InputError(
                f"leak: {len(unknown)} rows of the bank '{name}' are not of the training split",
                field="study_id",
                got=unknown[0],
            )


def report_rows(batch: Batch) -> list[dict[str, Any]]:
    """A row for each study of a batch, with its report."""
    assert batch.reports is not None
    known = zip(batch.study_ids, batch.patient_ids, batch.reports, strict=True)
    return [{"study_id": study, "patient": patient_code(patient), "text": text} for study, patient, text in known]


def save_bank(bank: Bank, folder: Path) -> None:
    """Write the two files of a bank, whole or not at all.

    Raises:
        InputError: if a value is not finite; nothing could be found by it.
    """
    bank.refuse_non_finite(folder.name)
    with write_folder(folder, overwrite=True, kind=BANK) as partial:
        write_tensors(partial / "bank.safetensors", bank.tensors)
        write_jsonl(partial / "rows.jsonl", bank.rows)
        if bank.hashed is not None:
            write_json(partial / "owners.json", bank.hashed.model_dump(mode="json"))


def load_bank(folder: Path) -> Bank:
    """Read a bank. Its tensors are mapped: what is never looked at is never in memory.

    Raises:
        InputError: if a file is missing or broken, or the two do not belong together.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = folder / "bank.safetensors"
    try:
        tensors = load_file(str(path))
    except FileNotFoundError:
        raise InputError("file of the bank is missing", file=path) from None
    except SafetensorError as error:
        raise InputError(f"file of the bank is broken: {error}", file=path) from None
    rows = tuple(_row(folder / "rows.jsonl", line, row) for line, row in read_jsonl(folder / "rows.jsonl"))
    hashed = _hashed_names(folder / "owners.json", len(rows))
    for name, tensor in tensors.items():
        if tensor.ndim == 0 or len(tensor) != len(rows):
            raise InputError(
                "the bank's files do not belong together",
                file=folder,
                field=name,
                got=list(tensor.shape),
                expected=len(rows),
            )
    return Bank(tensors, rows, hashed)


def _row(path: Path, line: int, row: dict[str, Any]) -> dict[str, Any]:
    for name in ("study_id", "patient"):
        if not isinstance(row.get(name), str):
            raise InputError("row does not name its origin", file=path, line=line, field=name)
    return row


def _hashed_names(path: Path, count: int) -> HashedNames | None:
    if not path.is_file():
        return None
    hashed = checked(HashedNames, read_json_object(path), file=path)
    for name in ("studies", "patients"):
        if len(getattr(hashed, name)) != count:
            raise InputError("not one hash per row", file=path, field=name, expected=count)
    return hashed
