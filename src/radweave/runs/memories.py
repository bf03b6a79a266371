"""The memories of a run: its banks, given to the model that reads them, and held to what card and model say of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from radweave.base.errors import InputError
from radweave.contract.model import ReportModel
from radweave.memory.bank import load_bank


def set_memories(model: ReportModel, folder: Path, *, named: Mapping[str, int] | None = None) -> None:
    """Give a model the banks of its run folder; ``named`` are those that a finished run says it has, with their rows.

    Raises:
        InputError: if a bank is broken, does not fit the model, is not as it was named, or one that the model cannot do
            without is not there.
    """
    places = sorted((folder / "memories").glob("[!.]*")) if (folder / "memories").is_dir() else []
    banks = {place.name: load_bank(place) for place in places}
    for name, bank in banks.items():
        if named is not None and named.get(name) != len(bank):
            raise InputError(
                f"the memory '{name}' has other rows than the run says",
                file=folder / "memories",
                got=len(bank),
                expected=named.get(name),
            )
    layouts = model.memory_layouts()
    for name in () if named is None else layouts:
        if name not in banks:
            raise InputError(
                f"the method reads its memory '{name}', and the folder lacks it", file=folder, field="memories"
            )
    if banks:
        try:
            for name, bank in banks.items():
                if name in layouts:
                    bank.refuse_misfit(name, layouts[name])
                if named is not None:  # one that was just made was looked at when it was saved
                    bank.refuse_non_finite(name)
            model.set_memories(banks)
        except (KeyError, RuntimeError) as error:  # a tensor or a field that the method reads is not there, or other
            raise InputError(f"the memories do not fit this model: {error}", file=folder / "memories") from None
        except InputError as error:
            where = folder / "memories"
            raise InputError(
                error.reason, file=where, field=error.field, got=error.got, expected=error.expected
            ) from None


def rows_of_memories(folder: Path) -> dict[str, int]:
    """The banks of a run folder, with what it drafts from, and how many rows each has."""
    places = {place.name: place for place in sorted((folder / "memories").glob("[!.]*"))}
    if (folder / "drafting" / "bank").is_dir():
        places["drafting"] = folder / "drafting" / "bank"
    return {name: len(load_bank(place)) for name, place in places.items()}
