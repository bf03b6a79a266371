"""A draft without the comparisons that nothing was given for, and what its evidence says of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from radweave.base.ontology import NO_FINDING
from radweave.base.parts import NO_PART, joined
from radweave.base.study import LabelState, Modality
from radweave.labels import LABELER_OF, get_labeler
from radweave.labels.labeler import Labeler, Mention
from radweave.labels.unprompted import Edit, remove_comparisons

EVIDENCE = "comparisons_removed"
"""The key in a report's evidence: a list of {``was``, ``now``}, ``now`` null for a sentence that was left out."""
ABOUT_SENTENCES = ("sentences", "sentence_fit")
"""Evidence whose rows are about a sentence, by its ``text``; in a draft of two parts each has its ``section``."""


def take_out_comparisons(
    text: str, evidence: dict[str, Any], modality: Modality
) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    """The draft, its evidence with sentences that read as the draft's, and a warning where something was taken out."""
    labeler = get_labeler(LABELER_OF[modality])
    rows = evidence.get("sentences") or [{"text": text}]
    parts = [remove_comparisons(str(row["text"]), labeler) for row in rows]
    edits = [edit for _, made in parts for edit in made]
    if not edits:
        return text, evidence, ()
    now = joined((str(row.get("section", NO_PART)), part) for row, (part, _) in zip(rows, parts, strict=True) if part)
    about = {name: _rows_of(evidence[name], labeler) for name in ABOUT_SENTENCES if evidence.get(name)}
    taken = [{"was": edit.was, "now": edit.now} for edit in edits]
    return now, {**evidence, **about, EVIDENCE: taken}, (_warning(edits, labeler),)


def _warning(edits: list[Edit], labeler: Labeler) -> str:
    """How many sentences compared, and how many of them are not in the draft, findings first of all."""
    left_out = [edit.was for edit in edits if edit.now is None]
    telling = sum(_names_a_finding(mentions) for mentions in labeler.label(left_out))
    sentences = "a sentence" if len(edits) == 1 else f"{len(edits)} sentences"
    warning = f"{sentences} of the draft compared with an earlier study, and none was given: "
    if not left_out:
        return warning + "the comparison was taken out"
    named = f", {telling} of them with findings" if telling else ""
    return f"{warning}{len(left_out)} left out{named} (see {EVIDENCE} in the evidence)"


def _names_a_finding(mentions: Mapping[str, Mention]) -> bool:
    stated = (LabelState.POSITIVE, LabelState.UNCERTAIN)
    return any(name != NO_FINDING and mention.state in stated for name, mention in mentions.items())


def _rows_of(rows: Any, labeler: Labeler) -> list[dict[str, Any]]:
    changed = [{**row, "text": remove_comparisons(str(row.get("text", "")), labeler)[0]} for row in rows]
    return [row for row in changed if row["text"]]
