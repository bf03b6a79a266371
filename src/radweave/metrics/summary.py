"""The scores of a suite on one screen: value, interval, verdict against the best floor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from radweave.core.errors import InputError
from radweave.metrics.abnormal import AbnormalScores
from radweave.metrics.catalogue import FURTHER_METRICS, METRICS, SUITES, Metric, SuiteName
from radweave.metrics.records import ClinicalKey, Estimate, FloorScores, Json, Score

Verdict = Literal["above", "not above", "below"]
MEANING = (
    "floor: the best report made without the model; above: the whole interval is better than it; not above: the"
    " interval reaches it; 'compare --floors' tests pairs"
)
ABNORMAL = "CIDEr_abnormal"
"""Key of the row that follows CIDEr."""


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """A score with the best floor; ``floor`` and ``verdict`` are None where there is no floor, or no interval.

    ``metric`` is its key in the catalogue, or ``ABNORMAL``.
    """

    metric: str
    title: str
    score: Score
    floor: float | None = None
    floor_name: str | None = None
    verdict: Verdict | None = None

    def to_json(self) -> Json:
        floor = {"floor": self.floor, "floor_name": self.floor_name, "verdict": self.verdict}
        return {"metric": self.metric, "title": self.title, **self.score.to_json(), **floor}


def suite_of(name: str) -> SuiteName:
    """The suite of that name.

    Raises:
        InputError: with the names there are.
    """
    for suite in SUITES:
        if name == suite:
            return suite
    raise InputError("no such suite of scores", field="suite", got=name, expected=", ".join(SUITES))


def summary_rows(
    suite: SuiteName,
    corpus: Mapping[str, Score],
    clinical: Mapping[ClinicalKey, Estimate],
    floors: Mapping[str, FloorScores],
    abnormal: AbnormalScores | None,
) -> tuple[SummaryRow, ...]:
    """The rows of a suite, in its order, then of other further scores that the corpus has.

    A score that was not computed keeps its row with the reason; of all scores, those that the protocol has.
    """
    rows = []
    named = [key for key in FURTHER_METRICS if key in corpus and key not in SUITES[suite]]
    for key in (*SUITES[suite], *named):
        metric = METRICS[key]
        if suite == "all" and metric.clinical is None and key not in corpus:
            continue
        of_floors = {name: floor.score(key) for name, floor in floors.items()}
        rows.append(_row(key, metric.name, _score(metric, corpus, clinical), metric, of_floors))
        if key == "CIDEr" and abnormal is not None:
            of_floors = {name: scores.get(key) for name, scores in abnormal.floors.items()}
            rows.append(_row(ABNORMAL, "CIDEr (abnormal)", abnormal.corpus[key], metric, of_floors))
    return tuple(rows)


def _score(metric: Metric, corpus: Mapping[str, Score], clinical: Mapping[ClinicalKey, Estimate]) -> Score:
    if metric.key in corpus:
        return corpus[metric.key]
    if metric.clinical is None:
        return Score(None, None, "not computed by this protocol, or not asked for")
    key = metric.clinical_key(clinical)
    if key is None:
        return Score(None, None, "no class has enough positive references" if clinical else "no labeler given")
    return Score.of_estimate(clinical[key], "undefined: there is none to count (0/0)")


def _row(key: str, title: str, score: Score, metric: Metric, floors: Mapping[str, float | None]) -> SummaryRow:
    scored = {name: value for name, value in floors.items() if value is not None}
    if score.value is None or not scored:
        return SummaryRow(key, title, score)
    best = max(scored, key=lambda name: metric.rank(scored[name]))
    verdict: Verdict | None = None
    if bounds := score.estimate.bounds:
        worst, most = sorted(map(metric.rank, bounds))
        floor = metric.rank(scored[best])
        verdict = "above" if worst > floor else "below" if most < floor else "not above"
    return SummaryRow(key, title, score, scored[best], best, verdict)
