"""A draft without the comparisons that nothing was given for, and what its evidence says of them."""

from __future__ import annotations

from typing import Any

from radweave.base.study import Modality
from radweave.labels import LABELER_OF, get_labeler
from radweave.labels.unprompted import Edit, remove_comparisons

EVIDENCE = "comparisons_removed"
"""The key in a report's evidence: a list of {``was``, ``now``}, ``now`` null for a sentence that was dropped."""
_SENTENCES = ("sentences", "sentence_fit")
"""Evidence whose rows are about a sentence, by its ``text``."""


def take_out_comparisons(
    text: str, evidence: dict[str, Any], modality: Modality
) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    """The draft, its evidence with sentences that read as the draft's, and a warning where something was taken out."""
    labeler = get_labeler(LABELER_OF[modality])
    edits: list[Edit] = []

    def without(sentence: str) -> str:
        now, made = remove_comparisons(sentence, labeler)
        edits.extend(made)
        return now

    rows = evidence.get("sentences") or [{"text": text}]
    now = " ".join(filter(None, (without(str(row["text"])) for row in rows)))
    if not edits:
        return text, evidence, ()
    taken = [{"was": edit.was, "now": edit.now} for edit in edits]
    about = {name: _rows_of(evidence[name], without) for name in _SENTENCES if evidence.get(name)}
    sentences = "a sentence" if len(taken) == 1 else f"{len(taken)} sentences"
    warning = (
        f"{sentences} of the draft compared with an earlier study, and none was given: the comparison was taken out"
    )
    return now, {**evidence, **about, EVIDENCE: taken}, (warning,)


def _rows_of(rows: Any, without: Any) -> list[dict[str, Any]]:
    changed = [{**row, "text": without(str(row.get("text", "")))} for row in rows]
    return [row for row in changed if row["text"]]
