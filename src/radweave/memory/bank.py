"""A bank: vectors made from the training split, and for each one a row that says where it comes from.

BANK/bank.safetensors  tensors, the first axis runs over the rows
BANK/rows.jsonl        one JSON object per row: study_id, patient (a code), and what the method adds
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from radweave.errors import InputError
from radweave.storage import read_jsonl, write_folder, write_jsonl


def patient_code(patient_id: str) -> str:
    """A code that tells patients apart without naming them; a bank never holds the id itself."""
    return hashlib.sha256(f"radweave patient {patient_id}".encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Bank:
    """Named tensors with N rows each, and N JSON rows with at least ``study_id`` and ``patient``."""

    tensors: Mapping[str, Tensor]
    rows: tuple[dict[str, Any], ...]

    def __post_init__(self) -> None:
        for name, tensor in self.tensors.items():
            assert len(tensor) == len(self.rows), f"tensor {name} has one row per JSON row"
        assert all("study_id" in row and "patient" in row for row in self.rows), "every row names its origin"

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def study_ids(self) -> list[str]:
        return [row["study_id"] for row in self.rows]

    @property
    def patients(self) -> list[str]:
        return [row["patient"] for row in self.rows]

    def refuse_others(self, name: str, allowed: Iterable[str]) -> None:
        """Refuse a bank with a row that is not of the allowed studies.

        Raises:
            InputError: naming the bank and the first such study.
        """
        known = set(allowed)
        strangers = [study_id for study_id in self.study_ids if study_id not in known]
        if strangers:
            raise InputError(
                f"leak: {len(strangers)} rows of the bank '{name}' are not of the training split",
                field="study_id",
                got=strangers[0],
            )


def save_bank(bank: Bank, folder: Path) -> None:
    """Write the two files of a bank, whole or not at all.

    Raises:
        InputError: if a value is not finite; nothing could be found by it.
    """
    from safetensors.torch import save_file

    for name, tensor in bank.tensors.items():
        finite = tensor.isfinite().flatten(1).all(1) if tensor.ndim > 1 else tensor.isfinite()
        if not finite.all():
            row = int(finite.logical_not().nonzero()[0])
            raise InputError("a value of the bank is not finite", field=name, got=bank.study_ids[row])
    with write_folder(folder, overwrite=True) as partial:
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in bank.tensors.items()}
        save_file(tensors, str(partial / "bank.safetensors"))
        write_jsonl(partial / "rows.jsonl", bank.rows)


def load_bank(folder: Path) -> Bank:
    """Read a bank.

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
    rows = tuple(row for _, row in read_jsonl(folder / "rows.jsonl"))
    for name, tensor in tensors.items():
        if len(tensor) != len(rows):
            raise InputError(
                "the bank's files do not belong together", file=folder, field=name, got=len(tensor), expected=len(rows)
            )
    return Bank(tensors, rows)
