"""The result of an evaluation: records, which become JSON here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from radweave.evaluation.honesty import Honesty
from radweave.evaluation.metrics.heads import HeadTable
from radweave.evaluation.metrics.long_tail import LongTailTable
from radweave.evaluation.metrics.second_opinions import Opinions
from radweave.evaluation.prepare import TextEffects
from radweave.evaluation.protocols import ProtocolRecord
from radweave.evaluation.records import (
    ClinicalKey,
    FloorScores,
    Json,
    Measure,
    Resampling,
    Score,
    number_or_none,
)
from radweave.evaluation.statistics import Statistic
from radweave.evaluation.tables.clinical import ClinicalTable, SidedTable
from radweave.evaluation.warnings import warnings

FORMAT = "radweave-evaluation"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The scores of one set of reports under one protocol.

    ``statistics``, ``clinical_statistics`` and ``sided_statistics`` are what comparisons resample. ``clinical`` is None
    without a labeler, ``long_tail`` without the frequencies of the training split, ``heads`` where drafts give no
    probabilities; ``floors`` and ``second_opinions`` are empty where they were not asked for. ``sections`` has the same
    of findings and impression alone, of reports that have both under headings.
    """

    protocol: ProtocolRecord
    study_ids: tuple[str, ...]
    patients: tuple[str | None, ...]
    statistics: Mapping[str, Statistic]
    clinical_statistics: Mapping[ClinicalKey, Statistic]
    sided_statistics: Mapping[Measure, Statistic]
    corpus: Mapping[str, Score]
    floors: Mapping[str, FloorScores]
    honesty: Honesty
    clinical: ClinicalTable | None
    sided: SidedTable
    long_tail: LongTailTable | None
    heads: HeadTable | None
    texts: TextEffects
    resampling: Resampling
    definitions: Mapping[str, str]
    left_out: Mapping[str, int]
    second_opinions: Opinions
    sections: Mapping[str, Evaluation] = field(default_factory=dict)

    def warnings(self) -> list[str]:
        """What a reader must not overlook."""
        return warnings(self.corpus, self.floors, self.honesty)

    def per_study(self) -> dict[str, dict[str, float | None]]:
        """Study id -> metric -> score; None where a study by itself has none."""
        columns = {name: statistic.per_study.tolist() for name, statistic in self.statistics.items()}
        missing = {name: None for name in self.corpus if name not in columns}
        return {
            study: {**{name: number_or_none(values[i]) for name, values in columns.items()}, **missing}
            for i, study in enumerate(self.study_ids)
        }

    def to_json(self, *, per_study: bool = True) -> Json:
        sections = {name: evaluation.to_json(per_study=False) for name, evaluation in self.sections.items()}
        opinions = {name: opinion.to_json() for name, opinion in self.second_opinions.items()}
        return {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "protocol": self.protocol.to_json(),
            "studies": len(self.study_ids),
            "corpus": {name: score.to_json() for name, score in self.corpus.items()},
            "definitions": dict(self.definitions),
            "floors": {name: floor.to_json() for name, floor in self.floors.items()},
            "honesty": self.honesty.to_json(),
            "clinical": self._clinical_json(),
            "texts": self.texts.to_json(),
            "left_out": dict(self.left_out),
            "resampling": self.resampling.to_json(),
            "warnings": self.warnings(),
            **({"heads": self.heads.to_json()} if self.heads is not None else {}),
            **({"long_tail": self.long_tail.to_json()} if self.long_tail is not None else {}),
            **({"second_opinions": opinions} if opinions else {}),
            **({"sections": sections} if sections else {}),
            **({"per_study": self.per_study()} if per_study else {}),
        }

    def _repr_html_(self) -> str:
        """What a notebook shows: scores with intervals, the floors beside them, and the warnings."""
        from radweave.base.notebook import paragraph, shown, table
        from radweave.evaluation.tables.report import floor_table, language_table

        result = self.to_json(per_study=False)
        tables = [language_table({"": result}), *([floor_table(result)] if self.floors else [])]
        parts = [part for one in tables for part in (table(one.columns, one.rows), *map(paragraph, one.notes))]
        return shown(f"Evaluation by protocol {self.protocol.name}", *parts, warnings=self.warnings())

    def _clinical_json(self) -> Json:
        table = {"unavailable": "no labeler given"} if self.clinical is None else self.clinical.to_json()
        return {**table, "sided_findings": self.sided.to_json()}
