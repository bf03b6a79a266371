"""Rows on faults that n-gram scores do not show: collapse, invention, made-up comparisons, swapped sides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from radweave.labels import NO_FINDING
from radweave.labels.comparisons import compares_with_prior
from radweave.labels.contradictions import contradictions_of
from radweave.metrics.clinical import LabelledPairs, is_positive
from radweave.metrics.laterality import Sides
from radweave.metrics.pairs import Pair
from radweave.metrics.prepare import PreparedTexts
from radweave.metrics.records import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class HonestyRow:
    """One row: its value, None where there is nothing to count, and what it means."""

    value: float | None
    meaning: str

    @property
    def of_references(self) -> float | None:
        """The references' own value, where there is one."""
        return None

    def to_json(self) -> Json:
        more = {name: getattr(self, name) for field in fields(self) if (name := field.name) not in ("value", "meaning")}
        return {"value": self.value, **more, "meaning": self.meaning}


@dataclass(frozen=True, slots=True, kw_only=True)
class VarietyRow(HonestyRow):
    """A share among the generated reports, and the same share among the references."""

    value: float
    reference: float

    @property
    def of_references(self) -> float:
        return self.reference


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthRow(HonestyRow):
    """Length of the reports relative to the references."""

    mean_tokens_generated: float
    mean_tokens_reference: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyRow(HonestyRow):
    """The share of empty reports."""

    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlabelledRow(HonestyRow):
    """A row that needs a labeler, in an evaluation without one."""

    unavailable: str = "no labeler"


@dataclass(frozen=True, slots=True, kw_only=True)
class InventedRow(HonestyRow):
    """Findings of the reports that the references do not have; ``share_of_stated_findings`` is None for 0/0."""

    reports: int
    share_of_reports: float
    share_of_stated_findings: float | None
    by_class: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MissedRow(HonestyRow):
    """Findings of the references that the reports do not have; ``share_of_written_findings`` is None for 0/0."""

    reports: int
    share_of_written_findings: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow(HonestyRow):
    """Shares with a comparison to an earlier study: ``compares`` of the reports, ``reference`` of the references."""

    value: float
    reports: int
    compares: float
    reference: float
    removed_sentences: int
    removed_from_reports: int
    rule: str

    @property
    def of_references(self) -> float:
        return self.reference


@dataclass(frozen=True, slots=True, kw_only=True)
class SideRow(HonestyRow):
    """Findings on the wrong side, among the reports where both texts give a finding a side.

    ``per_100_sentences`` counts sentences with one on the wrong side, of 100 ``comparable_sentences``.
    """

    reports: int
    comparable_reports: int
    comparable_sentences: int
    per_100_sentences: float | None
    by_finding: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Honesty:
    """The rows in the order in which they are shown."""

    distinct_reports_share: VarietyRow
    most_frequent_report_share: VarietyRow
    length_ratio: LengthRow
    empty_reports_share: EmptyRow
    hallucinated_findings_per_report: InventedRow | UnlabelledRow
    missed_findings_per_report: MissedRow | UnlabelledRow
    comparison_without_prior_share: ComparisonRow
    left_right_contradiction_share: SideRow
    self_contradiction_share: VarietyRow

    def rows(self) -> dict[str, HonestyRow]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def to_json(self) -> Json:
        return {name: row.to_json() for name, row in self.rows().items()}


def honesty_rows(
    pairs: Sequence[Pair], prepared: PreparedTexts, labelled: LabelledPairs | None, sides: Sides
) -> Honesty:
    """All rows of one set of reports."""
    distinct, most = _variety_rows(prepared)
    invented, missed = _finding_rows(labelled)
    return Honesty(
        distinct_reports_share=distinct,
        most_frequent_report_share=most,
        length_ratio=_length_row(prepared),
        empty_reports_share=EmptyRow(
            value=prepared.effects.empty_hypotheses / prepared.effects.hypotheses,
            meaning="empty generated reports / studies",
        ),
        hallucinated_findings_per_report=invented,
        missed_findings_per_report=missed,
        comparison_without_prior_share=_comparison_row(pairs),
        left_right_contradiction_share=_side_row(sides),
        self_contradiction_share=VarietyRow(
            value=sum(bool(contradictions_of(pair.hyp)) for pair in pairs) / len(pairs),
            reference=sum(bool(contradictions_of(pair.refs[0])) for pair in pairs) / len(pairs),
            meaning="reports in which one sentence denies what another one states, by rules / studies",
        ),
    )


def _shares(texts: Sequence[str]) -> tuple[float, float]:
    """Share of distinct texts, and the share the most frequent one has."""
    counts = Counter(" ".join(text.split()) for text in texts)
    return len(counts) / len(texts), max(counts.values()) / len(texts)


def _variety_rows(prepared: PreparedTexts) -> tuple[VarietyRow, VarietyRow]:
    distinct, most = _shares(prepared.hyps)
    ref_distinct, ref_most = _shares([group[0] for group in prepared.refs])
    return (
        VarietyRow(
            value=distinct,
            reference=ref_distinct,
            meaning="distinct generated reports / studies; near 0: the model has collapsed",
        ),
        VarietyRow(
            value=most,
            reference=ref_most,
            meaning="studies that got the most frequent generated report / studies",
        ),
    )


def _length_row(prepared: PreparedTexts) -> LengthRow:
    generated, written = prepared.effects.mean_hypothesis_tokens, prepared.effects.mean_reference_tokens
    return LengthRow(
        value=generated / written if written else None,
        mean_tokens_generated=generated,
        mean_tokens_reference=written,
        meaning="mean tokens generated / mean tokens of the references",
    )


def _finding_rows(labelled: LabelledPairs | None) -> tuple[InventedRow | UnlabelledRow, MissedRow | UnlabelledRow]:
    invented = "findings stated as present that the reference does not state as present or uncertain"
    missed = "findings the reference states as present that the report does not state as present or uncertain"
    if labelled is None:
        return UnlabelledRow(value=None, meaning=invented), UnlabelledRow(value=None, meaning=missed)
    columns = [i for i, name in enumerate(labelled.classes) if name != NO_FINDING]
    hyp, ref = labelled.hyp[:, columns], labelled.ref[:, columns]
    stated, written = is_positive(hyp, "negative"), is_positive(ref, "negative")
    hallucinated = stated & ~is_positive(ref, "positive")
    omitted = written & ~is_positive(hyp, "positive")
    by_class = {labelled.classes[columns[i]]: int(count) for i, count in enumerate(hallucinated.sum(axis=0)) if count}
    stated_count, written_count = int(stated.sum()), int(written.sum())
    return (
        InventedRow(
            value=float(hallucinated.sum() / len(hyp)),
            reports=int(hallucinated.any(axis=1).sum()),
            share_of_reports=float(hallucinated.any(axis=1).mean()),
            share_of_stated_findings=float(hallucinated.sum() / stated_count) if stated_count else None,
            by_class=by_class,
            meaning=invented,
        ),
        MissedRow(
            value=float(omitted.sum() / len(hyp)),
            reports=int(omitted.any(axis=1).sum()),
            share_of_written_findings=float(omitted.sum() / written_count) if written_count else None,
            meaning=missed,
        ),
    )


def _comparison_row(pairs: Sequence[Pair]) -> ComparisonRow:
    hyp = np.array([compares_with_prior(pair.hyp) for pair in pairs])
    ref = np.array([any(compares_with_prior(text) for text in pair.refs) for pair in pairs])
    is_known = np.array([pair.has_prior is not None or pair.prior_report is not None for pair in pairs])
    no_prior = np.array([pair.has_prior is False for pair in pairs]) | (~is_known & ~ref)
    unsupported = hyp & no_prior
    return ComparisonRow(
        value=float(unsupported.sum() / len(pairs)),
        reports=int(unsupported.sum()),
        compares=float(hyp.mean()),
        reference=float(ref.mean()),
        removed_sentences=sum(pair.comparisons_removed for pair in pairs),
        removed_from_reports=sum(pair.comparisons_removed > 0 for pair in pairs),
        rule=f"has_prior known for {int(is_known.sum())} of {len(pairs)} studies;"
        " elsewhere a reference that compares with nothing counts as no prior",
        meaning="reports that compare with an earlier study where there is none / studies",
    )


def _side_row(sides: Sides) -> SideRow:
    return SideRow(
        value=sides.contradicted / sides.comparable if sides.comparable else None,
        reports=sides.contradicted,
        comparable_reports=sides.comparable,
        comparable_sentences=sides.comparable_sentences,
        per_100_sentences=100 * sides.contradicted_sentences / sides.comparable_sentences
        if sides.comparable_sentences
        else None,
        by_finding=sides.findings,
        meaning="reports that put a finding on the other side than the reference / reports where both give it a side",
    )
