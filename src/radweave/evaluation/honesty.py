"""Rows that a good n-gram score cannot hide: collapse, invention, made-up comparisons, swapped sides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from radweave.evaluation.metrics.clinical import LabelledPairs, is_positive
from radweave.evaluation.metrics.laterality import contradictions, sided_findings
from radweave.evaluation.pairs import Pair
from radweave.evaluation.prepare import PreparedTexts
from radweave.labels import NO_FINDING
from radweave.labels.comparisons import compares_with_prior


def honesty_rows(
    pairs: Sequence[Pair], prepared: PreparedTexts, labelled: LabelledPairs | None
) -> dict[str, dict[str, Any]]:
    """All rows: name -> value, the references' own value where there is one, and what the row means."""
    return {
        **_variety_rows(prepared),
        **_length_rows(prepared),
        **_finding_rows(labelled),
        **_comparison_rows(pairs),
        **_side_rows(pairs),
    }


def _row(value: float | None, meaning: str, **more: Any) -> dict[str, Any]:
    return {"value": None if value is None else float(value), **more, "meaning": meaning}


def _shares(texts: Sequence[str]) -> tuple[float, float]:
    """Share of distinct texts, and the share the most frequent one has."""
    counts = Counter(" ".join(text.split()) for text in texts)
    return len(counts) / len(texts), max(counts.values()) / len(texts)


def _variety_rows(prepared: PreparedTexts) -> dict[str, dict[str, Any]]:
    distinct, most = _shares(prepared.hyps)
    ref_distinct, ref_most = _shares([group[0] for group in prepared.refs])
    return {
        "distinct_reports_share": _row(
            distinct, "distinct generated reports / studies; near 0: the model has collapsed", reference=ref_distinct
        ),
        "most_frequent_report_share": _row(
            most, "studies that got the most frequent generated report / studies", reference=ref_most
        ),
    }


def _length_rows(prepared: PreparedTexts) -> dict[str, dict[str, Any]]:
    effects = prepared.effects
    ratio = effects.mean_hypothesis_tokens / effects.mean_reference_tokens if effects.mean_reference_tokens else None
    return {
        "length_ratio": _row(
            ratio,
            "mean tokens generated / mean tokens of the references",
            mean_tokens_generated=effects.mean_hypothesis_tokens,
            mean_tokens_reference=effects.mean_reference_tokens,
        ),
        "empty_reports_share": _row(effects.empty_hypotheses / effects.hypotheses, "empty generated reports / studies"),
    }


def _finding_rows(labelled: LabelledPairs | None) -> dict[str, dict[str, Any]]:
    invented = "findings stated as present that the reference does not state as present or uncertain"
    missed = "findings the reference states as present that the report does not state as present or uncertain"
    if labelled is None:
        return {
            "hallucinated_findings_per_report": _row(None, invented, unavailable="no labeler"),
            "missed_findings_per_report": _row(None, missed, unavailable="no labeler"),
        }
    columns = [i for i, name in enumerate(labelled.classes) if name != NO_FINDING]
    hyp, ref = labelled.hyp[:, columns], labelled.ref[:, columns]
    stated, written = is_positive(hyp, "negative"), is_positive(ref, "negative")
    hallucinated = stated & ~is_positive(ref, "positive")
    omitted = written & ~is_positive(hyp, "positive")
    by_class = {labelled.classes[columns[i]]: int(count) for i, count in enumerate(hallucinated.sum(axis=0)) if count}
    stated_count = int(stated.sum())
    return {
        "hallucinated_findings_per_report": _row(
            hallucinated.sum() / len(hyp),
            invented,
            reports=int(hallucinated.any(axis=1).sum()),
            share_of_reports=float(hallucinated.any(axis=1).mean()),
            share_of_stated_findings=float(hallucinated.sum() / stated_count) if stated_count else None,
            by_class=by_class,
        ),
        "missed_findings_per_report": _row(omitted.sum() / len(hyp), missed, reports=int(omitted.any(axis=1).sum())),
    }


def _comparison_rows(pairs: Sequence[Pair]) -> dict[str, dict[str, Any]]:
    hyp = np.array([compares_with_prior(pair.hyp) for pair in pairs])
    ref = np.array([any(compares_with_prior(text) for text in pair.refs) for pair in pairs])
    told = np.array([pair.has_prior is not None for pair in pairs])
    none_there = np.array([pair.has_prior is False for pair in pairs]) | (~told & ~ref)
    unsupported = hyp & none_there
    return {
        "comparison_without_prior_share": _row(
            unsupported.sum() / len(pairs),
            "reports that compare with an earlier study where there is none / studies",
            reports=int(unsupported.sum()),
            compares=float(hyp.mean()),
            reference=float(ref.mean()),
            removed_sentences=sum(pair.comparisons_removed for pair in pairs),
            removed_from_reports=sum(pair.comparisons_removed > 0 for pair in pairs),
            rule=f"has_prior told for {int(told.sum())} of {len(pairs)} studies;"
            " elsewhere a reference that compares with nothing counts as no prior",
        )
    }


def _side_rows(pairs: Sequence[Pair]) -> dict[str, dict[str, Any]]:
    comparable = contradicted = 0
    findings: Counter[str] = Counter()
    for pair in pairs:
        hyp = sided_findings(pair.hyp)
        refs = [sided_findings(text) for text in pair.refs]
        if not any(hyp.keys() & ref.keys() for ref in refs):
            continue
        comparable += 1
        # With several references a contradiction must hold against each that sides the finding.
        wrong = {
            finding
            for ref in refs
            for finding in contradictions(hyp, ref)
            if not any(hyp[finding] & other.get(finding, frozenset()) for other in refs)
        }
        contradicted += bool(wrong)
        findings.update(wrong)
    return {
        "left_right_contradiction_share": _row(
            contradicted / comparable if comparable else None,
            "reports that put a finding on the other side than the reference / reports where both give it a side",
            reports=contradicted,
            comparable_reports=comparable,
            by_finding=dict(sorted(findings.items())),
        )
    }
