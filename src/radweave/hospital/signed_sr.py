"""The text of a structured report that a person signed, for drafts that compare. Runs in the reading process.

Only what is VERIFIED is a report: a model that reads its own drafts again as reports would confirm itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pydicom.dataset import Dataset

from radweave.data.reading import wire
from radweave.data.reading.dicom_parse import dataset_of
from radweave.data.reading.worker import Task

LONGEST: Final = 20_000
"""Characters of a report."""
_DEEPEST: Final = 12
_SECTIONS: Final[dict[str, str]] = {
    "121070": "findings", "121071": "findings", "59776-5": "findings", "18782-3": "findings",
    "121072": "impression", "121073": "impression", "19005-8": "impression",
    "55107-7": "addendum", "121078": "addendum",
}  # fmt: skip
"""Codes of PS3.16 and LOINC that stand over findings, impressions and addenda, and over single ones of these."""
_COMMENT: Final = "121106"
"""In an addendum: who signed it, which is no part of its text."""


def parse_signed(request: dict[str, Any]) -> wire.Message:
    """Findings, impression and addenda of the report in ``path``: its ``text``, "" where nobody signed, and ``time``.

    Raises:
        InputError: if the file is no DICOM file or damaged.
    """
    dataset = dataset_of(Path(request["path"]))
    said: dict[str, list[str]] = {"findings": [], "impression": [], "addendum": []}
    if str(dataset.get("Modality", "")) == "SR" and str(dataset.get("VerificationFlag", "")) == "VERIFIED":
        for section, text in _texts(dataset, None, 0):
            said[section].append(text)
    whole = " ".join(" ".join(dict.fromkeys(each)) for each in said.values() if each)
    when = f"{dataset.get('ContentDate', '')}{dataset.get('ContentTime', '')}"
    return {"text": " ".join(whole.split())[:LONGEST], "time": when}, {}


def _texts(item: Dataset, section: str | None, depth: int) -> Iterator[tuple[str, str]]:
    """Text items that are, or stand in, findings or impressions."""
    if depth > _DEEPEST:
        return
    for child in item.get("ContentSequence") or ():
        names = child.get("ConceptNameCodeSequence") or ()
        code = str(names[0].get("CodeValue", "")) if names else ""
        here = None if (section, code) == ("addendum", _COMMENT) else _SECTIONS.get(code, section)
        if child.get("ValueType") == "TEXT" and here is not None and child.get("RelationshipType") == "CONTAINS":
            text = str(child.get("TextValue", ""))
            if text.strip() and "\ufffd" not in text:
                yield here, text
        if child.get("ValueType") == "CONTAINER":
            yield from _texts(child, here, depth + 1)


TASKS: Final[dict[str, Task]] = {"signed": parse_signed}
