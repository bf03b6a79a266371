"""A draft without de-identification marks, whatever wrote it, and what its evidence says of the sentences left out."""

from __future__ import annotations

from typing import Any

from radweave.labels.marks import without_marks
from radweave.runs.comparisons import ABOUT_SENTENCES

EVIDENCE = "marks_removed"
"""The key in a report's evidence: the sentences that were left out."""


def take_out_marks(text: str, evidence: dict[str, Any]) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    """The draft, its evidence with sentences that read as the draft's, and a warning where something was left out."""
    now, removed = without_marks(text)
    if not removed:
        return text, evidence, ()
    about = {name: _rows_of(evidence[name]) for name in ABOUT_SENTENCES if evidence.get(name)}
    sentences = "a sentence" if len(removed) == 1 else f"{len(removed)} sentences"
    warning = (
        f"{sentences} of the draft held marks of de-identification (XXXX, ___) and"
        f" {'was' if len(removed) == 1 else 'were'} left out (see {EVIDENCE} in the evidence)"
    )
    return now, {**evidence, **about, EVIDENCE: removed}, (warning,)


def _rows_of(rows: Any) -> list[dict[str, Any]]:
    changed = [{**row, "text": without_marks(str(row.get("text", "")))[0]} for row in rows]
    return [row for row in changed if row["text"]]
