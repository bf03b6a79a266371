"""F1 of the findings in the evidence (heads, recalled text) and in the draft, to see where findings get lost.

Findings are those that a rule-based labeler reads as positive, No Finding left out; a head counts if its probability
reaches the threshold stored with the draft, or 0.5 without one. Heads, recalled text and draft are compared with the
reference, and the draft with the heads and with the recalled text, for methods whose evidence has these.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from radweave.core.evidence import DraftEvidence
from radweave.core.study import LabelState
from radweave.labels import NO_FINDING, Labeler
from radweave.metrics.heads import ranking
from radweave.metrics.records import number_or_none

PROBABLE = 0.5
Findings = Sequence[frozenset[str]]


@dataclass(frozen=True, slots=True)
class EvidenceAgreement:
    """Micro F1 of findings; None where the evidence lacks that part.

    ``heads``, ``recalled`` and ``draft`` are against the reference, ``heads_ap`` is the micro average precision of the
    heads, ``draft_heads`` and ``draft_recalled`` are the draft's agreement with its evidence. ``recalled_kind`` is
    "report" (the first that was recalled) or "sentence" (all of them together). ``per_reference`` and ``per_draft`` are
    findings per report.
    """

    draft: float
    heads: float | None
    heads_ap: float | None
    recalled: float | None
    draft_heads: float | None
    draft_recalled: float | None
    recalled_kind: str | None
    per_reference: float
    per_draft: float


def evidence_agreement(rows: Iterable[Mapping[str, Any]], labeler: Labeler) -> EvidenceAgreement:
    """Compare evidence, draft and reference of predictions (rows with ``ref``, ``hyp`` and ``evidence``)."""
    referenced = [row for row in rows if row["ref"]]
    true, draft = (stated([row[side] for row in referenced], labeler) for side in ("ref", "hyp"))
    evidence: list[DraftEvidence] = [row.get("evidence") or DraftEvidence() for row in referenced]
    heads = (
        [probable(record, labeler) for record in evidence]
        if any("class_probabilities" in e for e in evidence)
        else None
    )
    texts = [recalled_text(record) for record in evidence]
    kinds = {kind for kind, _ in texts if kind is not None}
    recalled = stated([text for _, text in texts], labeler) if kinds else None
    return EvidenceAgreement(
        draft=micro_f1(draft, true),
        heads=None if heads is None else micro_f1(heads, true),
        heads_ap=average_precision(evidence, true, labeler),
        recalled=None if recalled is None else micro_f1(recalled, true),
        draft_heads=None if heads is None else micro_f1(draft, heads),
        draft_recalled=None if recalled is None else micro_f1(draft, recalled),
        recalled_kind=" or ".join(sorted(kinds)) or None,
        per_reference=sum(map(len, true)) / max(1, len(referenced)),
        per_draft=sum(map(len, draft)) / max(1, len(referenced)),
    )


def stated(texts: Sequence[str], labeler: Labeler) -> list[frozenset[str]]:
    """The findings that each text affirms."""
    return [
        frozenset(name for name, mention in label.items() if mention.state is LabelState.POSITIVE) - {NO_FINDING}
        for label in labeler.label(list(texts))
    ]


def probable(evidence: DraftEvidence, labeler: Labeler) -> frozenset[str]:
    """The findings that the heads hold probable."""
    known = frozenset(labeler.classes) - {NO_FINDING}
    # Evidence is read from files, where null stands for an absent value.
    calibration = evidence.get("calibration")
    cuts = (calibration.get("thresholds") if calibration else None) or {}
    # In a calibrated run, a class without a threshold is never present.
    other = math.inf if cuts else PROBABLE
    probabilities = (evidence.get("class_probabilities") or {}).items()
    return known & {name for name, value in probabilities if value is not None and value >= cuts.get(name, other)}


def recalled_text(evidence: DraftEvidence) -> tuple[str | None, str]:
    """Kind and text of what was recalled: the first report, else all sentences."""
    recalled = [case for case in evidence.get("recalled") or () if case.get("text")]
    for case in recalled:
        if case["kind"] in ("report", "volume"):
            return "report", str(case["text"])
    sentences = [str(case["text"]) for case in recalled if case["kind"] == "sentence"]
    return ("sentence", " ".join(sentences)) if sentences else (None, "")


def micro_f1(predicted: Findings, true: Findings) -> float:
    """Over all studies and findings; 0 where neither side has any."""
    both = sum(len(a & b) for a, b in zip(predicted, true, strict=True))
    return 2 * both / max(1, sum(map(len, predicted)) + sum(map(len, true)))


def average_precision(evidence: Sequence[DraftEvidence], true: Findings, labeler: Labeler) -> float | None:
    """Micro average precision of the heads over all findings; None unless every draft gives all probabilities."""
    names = [name for name in labeler.classes if name != NO_FINDING]
    rows = [record.get("class_probabilities") or {} for record in evidence]
    if not rows or any(row.get(name) is None for row in rows for name in names):
        return None
    probabilities = np.array([[float(row[name]) for name in names] for row in rows])
    truth = np.array([[name in stated for name in names] for stated in true])
    return number_or_none(float(ranking(probabilities, truth, np.ones((1, len(rows))))[1][0]))
