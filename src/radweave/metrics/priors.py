"""Change from the prior study, and the floors that copy the prior's report.

A reader has the patient's earlier report, so that copying it is a floor: it names every finding that stays, and no
change at all. A cell is a study that has a prior, and a finding. Three reports affirm it or not: that of the prior
(b), the reference (r) and the draft (h); uncertain counts as not affirmed, as in the findings' F1.

    new        cells with not b:    the reference says r,           the draft says h
    resolved   cells with b:        the reference says not r,       the draft says not h
    changed    all cells:           the reference says r != b,      the draft says h != b
    worse, better                   the sentences of either report say so (``radweave.labels.comparisons``)

Each is scored by precision, recall and F1 over its cells. Where the reference leaves open whether a finding is worse or
better, the cell does not count for that. The prior's report is of an earlier study of the same patient; nothing of the
study itself is read but its reference, to score.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from radweave.core.study import Study
from radweave.labels import NO_FINDING, Labeler
from radweave.labels.comparisons import State, StatedChanges, possible, stated_changes
from radweave.metrics.clinical import LabelledPairs, States, confusion_rows, is_positive, pooled_statistics, states_of
from radweave.metrics.pairs import Pair
from radweave.metrics.records import MEASURES, Estimate, Json, PrecisionRecall
from radweave.metrics.statistics import Interval, Statistic

Mask = NDArray[np.bool_]
Change = Literal["new", "resolved", "changed", "worse", "better"]
CHANGES: tuple[Change, ...] = get_args(Change)
Part = Literal["with_prior", "without_prior"]
PARTS: tuple[Part, ...] = get_args(Part)
_STATED: Mapping[Change, State] = {"worse": "worse", "better": "improved"}
_LETTERS = {"precision": "P", "recall": "R", "f1": "F1"}

THIS_RUN, COPY, ELSE_COPY = "this run", "the prior's report", "prior's report, else own"
"""The systems of the table: the drafts, and the two floors."""
ELSE_FLOOR = "prior_report_else_draft"
"""Name of the second floor among those that have a report for every study."""


def prior_reports(studies: Iterable[Study]) -> dict[str, str]:
    """Study id -> the report of the patient's prior study, for those of ``studies`` whose prior is among them."""
    known = {study.study_id: study for study in studies}
    prior_of = {name: known[study.prior] for name, study in known.items() if study.prior in known}
    return {
        name: prior.report
        for name, prior in prior_of.items()
        if prior.report and prior.patient_id == known[name].patient_id
    }


def with_priors(pairs: Iterable[Pair], studies: Iterable[Study]) -> tuple[Pair, ...]:
    """The pairs with what a data set says of their studies: patient, and the prior's report, where a pair lacks it."""
    known = list(studies)
    reports, patients = prior_reports(known), {study.study_id: study.patient_id for study in known}
    return tuple(
        replace(
            pair,
            patient_id=pair.patient_id or patients.get(pair.study_id),
            prior_report=pair.prior_report or reports.get(pair.study_id),
        )
        for pair in pairs
    )


def else_prior(pairs: Sequence[Pair]) -> list[str]:
    """The prior's report where there is one, else the draft."""
    return [pair.hyp if pair.prior_report is None else pair.prior_report for pair in pairs]


@dataclass(frozen=True, slots=True)
class PriorFindings:
    """N studies beside their priors, over the C findings in ``columns`` of the label set.

    ``has`` (N,) says which have one; ``prior`` and ``reference`` (N, C) what the reports of the prior and of the study
    affirm; ``left_open`` the states that the reference leaves open, by study and finding.
    """

    columns: list[int]
    findings: tuple[str, ...]
    has: Mask
    prior: Mask
    reference: Mask
    left_open: Sequence[Mapping[str, frozenset[State]]]
    labeler: Labeler


def read_priors(pairs: Sequence[Pair], labelled: LabelledPairs, labeler: Labeler) -> PriorFindings | None:
    """The findings of the prior's reports beside those of the references; None where no study has a prior."""
    has = np.array([pair.prior_report is not None for pair in pairs])
    if not has.any():
        return None
    columns = [place for place, name in enumerate(labelled.classes) if name != NO_FINDING]
    findings = tuple(labelled.classes[place] for place in columns)
    prior = is_positive(states_of([pair.prior_report or "" for pair in pairs], labeler)[:, columns], "negative")
    prior &= has[:, None]
    reference = is_positive(labelled.ref[:, columns], "negative")
    left_open: list[Mapping[str, frozenset[State]]] = [{} for _ in pairs]
    rows = np.flatnonzero(has).tolist()
    for row, stated in zip(rows, _changes([pairs[row].refs for row in rows], labeler), strict=True):
        left_open[row] = {
            name: possible(bool(prior[row, place]), bool(reference[row, place]), stated.get(name, frozenset()))
            for place, name in enumerate(findings)
        }
    return PriorFindings(columns, findings, has, prior, reference, left_open, labeler)


def _changes(groups: Sequence[Sequence[str]], labeler: Labeler) -> list[StatedChanges]:
    """The changes that the texts of each group state."""
    numbers = [number for number, group in enumerate(groups) for _ in group]
    together: list[dict[str, frozenset[State]]] = [{} for _ in groups]
    for number, stated in zip(
        numbers, stated_changes([text for group in groups for text in group], labeler), strict=True
    ):
        for name, states in stated.items():
            together[number][name] = together[number].get(name, frozenset()) | states
    return list(together)


def prior_statistics(texts: Sequence[str], states: States, priors: PriorFindings) -> dict[str, Statistic]:
    """The scores of drafts by name: of findings with and without a prior, and of each change.

    Args:
        texts: the N drafts.
        states: their label states (N, K).
        priors: the findings of the same studies and of their priors.
    """
    draft = is_positive(states[:, priors.columns], "negative")
    counted: dict[str, NDArray[np.int8]] = {
        "CE_with_prior": _rows(draft, priors.reference, priors.has[:, None]),
        "CE_without_prior": _rows(draft, priors.reference, ~priors.has[:, None]),
        **change_rows(texts, states, priors),
    }
    return {
        f"{name}_{_LETTERS[measure]}": statistic
        for name, own in counted.items()
        for measure, statistic in pooled_statistics(own).items()
    }


def change_rows(texts: Sequence[str], states: States, priors: PriorFindings) -> dict[str, NDArray[np.int8]]:
    """True positives, false positives and false negatives of each study (N, 3), by change; 0 without a prior.

    Args:
        texts: the N drafts.
        states: their label states (N, K).
        priors: the findings of the same studies and of their priors.
    """
    draft = is_positive(states[:, priors.columns], "negative")
    counted: dict[str, NDArray[np.int8]] = {
        "new": _rows(draft, priors.reference, priors.has[:, None] & ~priors.prior),
        "resolved": _rows(~draft, ~priors.reference, priors.has[:, None] & priors.prior),
        "changed": _rows(draft != priors.prior, priors.reference != priors.prior, priors.has[:, None]),
    }
    rows = np.flatnonzero(priors.has).tolist()
    claims = dict(zip(rows, _changes([[texts[row]] for row in rows], priors.labeler), strict=True))
    for change, state in _STATED.items():
        claimed, true, closed = (np.zeros_like(draft) for _ in range(3))
        for row in rows:
            for place, name in enumerate(priors.findings):
                left = priors.left_open[row][name]
                claimed[row, place] = state in claims[row].get(name, ())
                true[row, place] = left == {state}
                closed[row, place] = state not in left or len(left) == 1
        counted[change] = _rows(claimed, true, closed)
    return counted


def _rows(draft: Mask, true: Mask, counted: Mask) -> NDArray[np.int8]:
    """True positives, false positives and false negatives of each study (N, 3) over the cells that count."""
    cells = confusion_rows(draft & counted, true & counted)
    return np.stack([part.sum(axis=1, dtype=np.int8) for part in np.split(cells, 3, axis=1)], axis=1)


@dataclass(frozen=True, slots=True)
class PriorScores:
    """The scores of one system: F1 of findings by part, and of each change; None for a part without its reports."""

    findings: Mapping[Part, PrecisionRecall | None]
    changes: Mapping[Change, PrecisionRecall]

    def to_json(self) -> Json:
        return {
            "findings": {part: None if one is None else one.to_json() for part, one in self.findings.items()},
            "changes": {change: one.to_json() for change, one in self.changes.items()},
        }


@dataclass(frozen=True, slots=True)
class PriorTable:
    """Scores beside the floors that copy the prior's report.

    ``studies`` counts those with and without a prior, ``cells`` the cells of each change in the references.
    ``findings`` are those that each study's prior affirms; None for a study without one.
    """

    studies: Mapping[Part, int]
    cells: Mapping[Change, int]
    systems: Mapping[str, PriorScores]
    findings: Sequence[frozenset[str] | None]

    def to_json(self) -> Json:
        return {
            "studies": dict(self.studies),
            "cells": dict(self.cells),
            "systems": {name: scores.to_json() for name, scores in self.systems.items()},
        }

    def warnings(self) -> list[str]:
        """A sentence where the drafts name the findings no better than the prior's report does."""
        own, copied = (
            self.systems[name].findings["with_prior"] if name in self.systems else None for name in (THIS_RUN, COPY)
        )
        if own is None or copied is None or own.f1.value is None or copied.f1.value is None:
            return []
        if own.f1.value > copied.f1.value:
            return []
        return [
            f"where there is a prior, no better in findings F1 ({own.f1.value:.3f}) than a copy of its report"
            f" ({copied.f1.value:.3f})"
        ]


def prior_interval_name(system: str, key: str) -> str:
    """The name under which an interval is drawn beside those of the other metrics."""
    return f"prior/{system}/{key}"


def prior_table(
    priors: PriorFindings, systems: Mapping[str, Mapping[str, Statistic]], intervals: Mapping[str, Interval]
) -> PriorTable:
    """The table from the statistics of the drafts, and of the drafts with the prior's report where there is one.

    What copies the prior's report has no report elsewhere, and where there is one the second floor is that copy.
    """

    def scores(system: str, name: str) -> PrecisionRecall:
        statistics = systems[system]
        keys = {measure: f"{name}_{_LETTERS[measure]}" for measure in MEASURES}
        return PrecisionRecall.of(
            lambda measure: Estimate.of(
                statistics[keys[measure]], intervals.get(prior_interval_name(system, keys[measure]))
            )
        )

    made = {
        system: PriorScores(
            {part: scores(system, f"CE_{part}") for part in PARTS},
            {change: scores(system, change) for change in CHANGES},
        )
        for system in systems
    }
    if ELSE_COPY in made:
        both = made.pop(ELSE_COPY)
        copied: dict[Part, PrecisionRecall | None] = {**both.findings, "without_prior": None}
        made |= {COPY: PriorScores(copied, both.changes), ELSE_COPY: both}
    own = systems[THIS_RUN]
    cells = {change: int(own[f"{change}_R"].sums()[[0, 2]].sum()) for change in CHANGES}
    number = int(priors.has.sum())
    affirmed = [
        frozenset(name for name, is_there in zip(priors.findings, row, strict=True) if is_there) if has else None
        for has, row in zip(priors.has.tolist(), priors.prior.tolist(), strict=True)
    ]
    return PriorTable({"with_prior": number, "without_prior": len(priors.has) - number}, cells, made, affirmed)
