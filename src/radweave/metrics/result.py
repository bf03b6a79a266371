"""The result of an evaluation: records, which become JSON here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from radweave.core.study import TargetText
from radweave.metrics.abnormal import AbnormalScores
from radweave.metrics.catalogue import MAIN_LANGUAGE_METRICS, METRICS, SuiteName
from radweave.metrics.floors import floor_title
from radweave.metrics.heads import HeadTable
from radweave.metrics.honesty import Honesty, InventedRow
from radweave.metrics.language import Opinions
from radweave.metrics.long_tail import LongTailTable
from radweave.metrics.pairs import Pair
from radweave.metrics.prepare import TextEffects
from radweave.metrics.priors import PriorTable
from radweave.metrics.protocols import ProtocolRecord
from radweave.metrics.records import (
    ClinicalKey,
    Estimate,
    FloorScores,
    Json,
    Measure,
    Resampling,
    Score,
    number_or_none,
)
from radweave.metrics.statistics import Statistic
from radweave.metrics.summary import SummaryRow, summary_rows
from radweave.metrics.tables import POLICY_NAMES, ClinicalTable, SidedTable

# Thresholds of the warnings, set so that reports written by people cause none.
_COLLAPSED_SHARE = 0.5
_FEW_DISTINCT = 0.1
_CONTRADICTED_SHARE = 0.25
_LEAST_COMPARABLE = 5
_INVENTED_SHARE = 0.5
_INVENTING_REPORTS_SHARE = 0.5
_NO_PRIOR_SHARE = 0.1
_LENGTH_RATIO = (0.5, 2.0)


def warnings(corpus: Mapping[str, Score], floors: Mapping[str, FloorScores], honesty: Honesty) -> list[str]:
    """Sentences about collapse, scores that a floor reaches, invention, swapped sides, made-up comparisons."""
    return [*_collapse(honesty), *_beaten_by_floors(corpus, floors), *_content(honesty)]


def _collapse(honesty: Honesty) -> list[str]:
    most, distinct = honesty.most_frequent_report_share, honesty.distinct_reports_share
    sentences = []
    if most.value > max(_COLLAPSED_SHARE, 2.0 * most.reference):
        sentences.append(f"collapsed: {most.value:.0%} of the studies got one and the same report")
    elif distinct.value < _FEW_DISTINCT * distinct.reference:
        sentences.append(
            f"nearly collapsed: {distinct.value:.1%} of the reports are distinct, {distinct.reference:.1%} of"
            " the references"
        )
    length = honesty.length_ratio.value
    if length is not None and not _LENGTH_RATIO[0] <= length <= _LENGTH_RATIO[1]:
        sentences.append(f"the reports are {length:.2f} times as long as the references")
    if honesty.empty_reports_share.value > 0:
        sentences.append(f"{honesty.empty_reports_share.value:.1%} of the reports are empty")
    return sentences


def _beaten_by_floors(corpus: Mapping[str, Score], floors: Mapping[str, FloorScores]) -> list[str]:
    sentences = []
    for name, floor in floors.items():
        reached = [METRICS[metric].title for metric in MAIN_LANGUAGE_METRICS if _reaches(floor, corpus, metric)]
        if reached:
            sentences.append(f'no better than the floor "{floor_title(name)}" in {", ".join(reached)}')
    return sentences


def _reaches(floor: FloorScores, corpus: Mapping[str, Score], metric: str) -> bool:
    """True where the baseline's score is as good; False where either has none."""
    score = corpus[metric].value if metric in corpus else None
    baseline = (floor.corpus or {}).get(metric)
    rank = METRICS[metric].rank
    return score is not None and baseline is not None and rank(score) <= rank(baseline)


def _content(honesty: Honesty) -> list[str]:
    sentences = []
    invented = honesty.hallucinated_findings_per_report
    if isinstance(invented, InventedRow):
        share = invented.share_of_stated_findings
        if share is not None and share > _INVENTED_SHARE:
            sentences.append(f"{share:.0%} of the findings stated as present are not in the reference")
        if invented.share_of_reports > _INVENTING_REPORTS_SHARE:
            sentences.append(
                f"{invented.share_of_reports:.0%} of the reports state a finding that the reference does not have"
            )
    sides = honesty.left_right_contradiction_share
    if sides.value is not None and sides.comparable_reports >= _LEAST_COMPARABLE and sides.value > _CONTRADICTED_SHARE:
        sentences.append(
            f"left and right contradict the reference in {sides.value:.0%} of the reports that can be compared"
        )
    comparison = honesty.comparison_without_prior_share
    if comparison.value > _NO_PRIOR_SHARE:
        sentences.append(f"{comparison.value:.0%} of the reports compare with an earlier study where there is none")
    return sentences


@dataclass(frozen=True, slots=True)
class DraftEdits:
    """Removals from the drafts before they were scored.

    Attributes:
        decoder: what drafted, None if the file does not say or drafts differ in it.
        as_written: True if nothing could be removed from any draft, False if it could from one or was, None if the
            file does not say.
        comparisons_removed: sentences that lost a comparison with an earlier study, or were left out for one.
        marks_removed: sentences left out for a mark of de-identification.
        edited_reports: reports with such a sentence.
    """

    as_written: bool | None
    comparisons_removed: int
    marks_removed: int
    edited_reports: int
    decoder: str | None = None

    def to_json(self) -> Json:
        return asdict(self)


def draft_edits(pairs: Sequence[Pair]) -> DraftEdits:
    """The removals from the drafts of these pairs."""
    comparisons, marks = sum(p.comparisons_removed for p in pairs), sum(p.marks_removed for p in pairs)
    stated = {pair.as_written for pair in pairs}
    edited = sum(p.comparisons_removed + p.marks_removed > 0 for p in pairs)
    as_written = False if edited or False in stated else None if None in stated else True
    decoders = {pair.decoder for pair in pairs}
    return DraftEdits(as_written, comparisons, marks, edited, decoders.pop() if len(decoders) == 1 else None)


def stated_target(pairs: Sequence[Pair]) -> TargetText | None:
    """The text that all of these pairs are about; None where one does not say it, or another than the others."""
    targets = {pair.target for pair in pairs}
    return targets.pop() if len(targets) == 1 else None


_SHOWN_LINES = 30
FORMAT = "radweave-evaluation"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The scores of one set of reports under one protocol.

    ``statistics``, ``clinical_statistics``, ``sided_statistics`` and ``prior_statistics`` are what comparisons
    resample. ``clinical`` and ``abnormal`` are None without a labeler, ``long_tail`` without the frequencies of the
    training split, ``heads`` where drafts give no probabilities, ``priors`` where no study has a prior's report;
    ``floors`` and ``second_opinions`` are empty where they were not asked for. ``sections`` has the same of findings
    and impression alone, of reports that have both under headings.
    """

    protocol: ProtocolRecord
    study_ids: tuple[str, ...]
    patients: tuple[str | None, ...]
    statistics: Mapping[str, Statistic]
    clinical_statistics: Mapping[ClinicalKey, Statistic]
    sided_statistics: Mapping[Measure, Statistic]
    prior_statistics: Mapping[str, Statistic]
    corpus: Mapping[str, Score]
    floors: Mapping[str, FloorScores]
    abnormal: AbnormalScores | None
    honesty: Honesty
    clinical: ClinicalTable | None
    sided: SidedTable
    placed: SidedTable | None
    priors: PriorTable | None
    long_tail: LongTailTable | None
    heads: HeadTable | None
    texts: TextEffects
    drafts: DraftEdits
    target: TargetText | None
    resampling: Resampling
    definitions: Mapping[str, str]
    left_out: Mapping[str, int]
    second_opinions: Opinions
    sections: Mapping[str, Evaluation] = field(default_factory=dict)

    def warnings(self) -> list[str]:
        """Sentences that a reader must not overlook."""
        copied = [] if self.priors is None else self.priors.warnings()
        return [*warnings(self.corpus, self.floors, self.honesty), *copied]

    def summary(self, suite: SuiteName = "papers") -> tuple[SummaryRow, ...]:
        """The scores of a suite with their intervals, the best floor of each, and the verdict."""
        clinical: dict[ClinicalKey, Estimate] = {}
        for key in self.clinical_statistics:
            assert self.clinical is not None
            averages = self.clinical.policies[POLICY_NAMES[key.policy]].groups[key.group]
            clinical[key] = getattr(averages[key.average], key.measure)
        return summary_rows(suite, self.corpus, clinical, self.floors, self.abnormal)

    def __repr__(self) -> str:
        """The scores of the five papers, in at most 30 lines."""
        from radweave.metrics.result_tables import summary_tables
        from radweave.metrics.tables import plain_text

        return plain_text(summary_tables({"": self.to_json(per_study=False)})[::-1], most_lines=_SHOWN_LINES)

    def per_study(self) -> dict[str, dict[str, float | None]]:
        """Study id -> metric -> score; None where a study by itself has none."""
        columns = {name: statistic.per_study.tolist() for name, statistic in self.statistics.items()}
        missing = {name: None for name in self.corpus if name not in columns}
        return {
            study: {**{name: number_or_none(values[i]) for name, values in columns.items()}, **missing}
            for i, study in enumerate(self.study_ids)
        }

    def to_json(self, *, per_study: bool = True, suite: SuiteName = "papers") -> Json:
        """The whole result as values of JSON; ``suite`` are the scores of its summary."""
        sections = {name: evaluation.to_json(per_study=False) for name, evaluation in self.sections.items()}
        opinions = {name: opinion.to_json() for name, opinion in self.second_opinions.items()}
        return {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "protocol": self.protocol.to_json(),
            "target": self.target,
            "studies": len(self.study_ids),
            "summary": {"suite": suite, "rows": [row.to_json() for row in self.summary(suite)]},
            "corpus": {name: score.to_json() for name, score in self.corpus.items()},
            "definitions": dict(self.definitions),
            "floors": {name: floor.to_json() for name, floor in self.floors.items()},
            **({"abnormal": self.abnormal.to_json()} if self.abnormal is not None else {}),
            "honesty": self.honesty.to_json(),
            "clinical": self._clinical_json(),
            "texts": self.texts.to_json(),
            "drafts": self.drafts.to_json(),
            "left_out": dict(self.left_out),
            "resampling": self.resampling.to_json(),
            "warnings": self.warnings(),
            **({"priors": self.priors.to_json()} if self.priors is not None else {}),
            **({"heads": self.heads.to_json()} if self.heads is not None else {}),
            **({"long_tail": self.long_tail.to_json()} if self.long_tail is not None else {}),
            **({"second_opinions": opinions} if opinions else {}),
            **({"sections": sections} if sections else {}),
            **({"per_study": self.per_study()} if per_study else {}),
        }

    def _repr_html_(self) -> str:
        """Notebook view: scores with intervals, the floors, and the warnings."""
        from radweave.core.study import html_box, html_paragraph, html_table
        from radweave.metrics.result_tables import floor_table, language_table

        result = self.to_json(per_study=False)
        tables = [language_table({"": result}), *([floor_table(result)] if self.floors else [])]
        parts = [
            part for one in tables for part in (html_table(one.columns, one.rows), *map(html_paragraph, one.notes))
        ]
        return html_box(f"Evaluation by protocol {self.protocol.name}", *parts, warnings=self.warnings())

    def _clinical_json(self) -> Json:
        table = {"unavailable": "no labeler given"} if self.clinical is None else self.clinical.to_json()
        placed = {} if self.placed is None else {"placed_findings": self.placed.to_json()}
        return {**table, "sided_findings": self.sided.to_json(), **placed}
