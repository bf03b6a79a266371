"""Which field of a row has what: other programs call the same things by other names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radweave.base.errors import InputError
from radweave.data.tables import ID

STUDY_FIELDS = (ID, "id", "uid", "image_id", "Study", "VolumeName")
HYP_FIELDS = ("hyp", "hypothesis", "prediction", "generated", "generated_report", "draft", "candidate")
REF_FIELDS = ("ref", "refs", "reference", "references", "reference_report", "ground_truth", "gt")
TEXT_FIELDS = ("report", "text", "hyp", "findings", "Report Impression", "Reports", "Report", "impression")
# What a cell of a CSV file cannot hold.
_OBJECTS = ("floors", "labels", "evidence")
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True, slots=True)
class Fields:
    """The names of the fields with the id, the generated and the reference report; empty ones are found by name."""

    study: str = ""
    hyp: str = ""
    ref: str = ""


BY_NAME = Fields()


def field_of(row: Mapping[str, Any], given: str, known: Sequence[str], what: str, place: Mapping[str, Any]) -> str:
    """The field of a row that was named, or the first known one that it has.

    Raises:
        InputError: if there is none. The row's own names are not told: a table without a header has a patient's there.
    """
    if given:
        if given not in row:
            raise InputError(f"no field '{given}'", got=f"{len(row)} other fields", **place)
        return given
    for name in known:
        if name in row:
            return name
    raise InputError(f"no field for the {what} found; name it by --{what}", expected=", ".join(known), **place)


def pair_row(row: Mapping[str, Any], fields: Fields, path: Path, place: Mapping[str, Any]) -> dict[str, Any]:
    """The row with ``study_id``, ``hyp`` and ``ref`` or ``refs`` under these names; those that it lacks stay away.

    Raises:
        InputError: if a field that was named is not there.
    """
    found = _from_cells(row) if path.suffix.lower() in (".csv", ".tsv") else dict(row)
    named = dict(found)
    for ours, given, known in (
        (ID, fields.study, STUDY_FIELDS),
        ("hyp", fields.hyp, HYP_FIELDS),
        ("ref", fields.ref, REF_FIELDS),
    ):
        is_named = ours in found or (ours == "ref" and "refs" in found)
        if not given and (is_named or not any(name in found for name in known)):
            continue
        value = found[field_of(found, given, known, ours, place)]
        if ours == "ref":
            named.pop("ref", None)
            named.pop("refs", None)
        named["refs" if ours == "ref" and isinstance(value, list) else ours] = value
    return named


def _from_cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a CSV file: cells are texts, and an empty one of what is optional is not there."""
    kept = {name: value for name, value in row.items() if name not in _OBJECTS}
    if "refs" in kept:
        kept.setdefault("ref", kept.pop("refs"))
    for name in ("patient_id", "modality", "has_prior"):
        if not str(kept.get(name, "")).strip():
            kept.pop(name, None)
    if "has_prior" in kept:
        kept["has_prior"] = _TRUTH.get(str(kept["has_prior"]).strip().lower(), kept["has_prior"])
    return kept
