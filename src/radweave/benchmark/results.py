"""Everything that is known of a set once its runs are there: scores, tests, evidence, costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from radweave.ablate.one_run import same_scores
from radweave.base.errors import InputError
from radweave.base.json_files import read_json, read_jsonl
from radweave.benchmark.costs import MethodCost, method_cost
from radweave.benchmark.pace import pace_folder
from radweave.benchmark.scores import (
    Contrast,
    Scoring,
    SystemScores,
    compare,
    floor_systems,
    read_run,
    score_system,
    shuffled_system,
)
from radweave.benchmark.suite import JOINING, SuiteSet
from radweave.data.dataset import Dataset
from radweave.evaluation.constants import FINDINGS, WORDING
from radweave.evaluation.evidence import EvidenceAgreement, evidence_agreement
from radweave.evaluation.pairs import Pair
from radweave.evaluation.seeds import compare_seeds
from radweave.evaluation.systems import FLOOR_NAMES
from radweave.labels import LABELER_OF, get_labeler

TESTED = ("BLEU_4", "ROUGE_L", "CIDEr", "CE_F1", "CE_F1_macro")
"""The metrics that are tested; Holm's correction is over these and all methods."""
NEAREST = FLOOR_NAMES["nearest_neighbour"]
TESTED_FLOORS = (NEAREST, FLOOR_NAMES[FINDINGS], FLOOR_NAMES[WORDING])
"""The floors that methods are tested against, each with a correction of its own."""


@dataclass(frozen=True, slots=True)
class MethodEvidence:
    """Findings in the evidence, mean over seeds; and which kinds of evidence a report carries."""

    figures: Mapping[str, float | None]
    recalled_kind: str | None
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetResults:
    """The results of a set. ``record`` is the ablation's; ``folders`` are a row's finished runs by its label.

    ``costs`` are those of the rows that are trained; a row that reports again has the costs of the row it takes.
    """

    suite: SuiteSet
    dataset: Dataset
    record: Mapping[str, Any]
    folders: Mapping[str, tuple[Path, ...]]
    full: Mapping[str, SystemScores]
    compatible: Mapping[str, SystemScores]
    floors: Mapping[str, SystemScores]
    compatible_floors: Mapping[str, SystemScores]
    to_reference: Mapping[tuple[str, str], Contrast]
    to_joining: Mapping[tuple[str, str], Contrast]
    to_floors: Mapping[str, Mapping[tuple[str, str], Contrast]]
    evidence: Mapping[str, MethodEvidence]
    costs: Mapping[str, MethodCost]

    @property
    def reference(self) -> str:
        return self.suite.table.reference

    def cost_of(self, label: str) -> MethodCost:
        """What training the model behind a row cost."""
        return self.costs[trained_rows(self.suite)[label]]


def trained_rows(suite: SuiteSet) -> dict[str, str]:
    """Label of a row -> label of the row whose runs it reports with, often its own."""
    return {row.label: suite.table.trained(row).label for row in suite.table.rows}


def set_results(suite: SuiteSet, record: Mapping[str, Any]) -> SetResults:
    """Score and compare the finished runs of a set.

    Raises:
        InputError: for predictions that do not give the scores beside them, or runs on other studies.
    """
    dataset = Dataset.open(suite.request.dataset)
    folders = _finished(suite.request.out, record)
    scores = {method: [read_json(folder / "scores.json") for folder in found] for method, found in folders.items()}
    studies = tuple(dataset.studies())
    labeler = get_labeler(LABELER_OF[dataset.card.modality])
    train_texts = tuple(study.report for study in studies if study.split == "train" and study.report)
    patients = {study.study_id: study.patient_id for study in studies}
    scorings = [Scoring(name, labeler, train_texts, patients) for name in ("full", suite.kind.compatible)]
    pairs = {method: [read_run(folder, scorings[0]) for folder in found] for method, found in folders.items()}
    full, compatible = ({method: score_system(runs, scoring) for method, runs in pairs.items()} for scoring in scorings)
    for method, system in full.items():
        for place, folder in enumerate(folders[method]):
            found = {metric: values[place] for metric, values in system.values.items()}
            if not same_scores(found, scores[method][place]["metrics"]):
                raise InputError(
                    "predictions.jsonl does not give the scores in scores.json; remove scores.json and run again",
                    file=folder,
                )
    floors, compatible_floors = (_floors(pairs, full, scoring) for scoring in scorings)
    return SetResults(
        suite=suite,
        dataset=dataset,
        record=record,
        folders=folders,
        full=full,
        compatible=compatible,
        floors=floors,
        compatible_floors=compatible_floors,
        to_reference=_against(full, suite.table.reference),
        to_joining=_against(full, JOINING),
        to_floors={name: compare(full, floors[name], TESTED) for name in TESTED_FLOORS if name in floors},
        evidence={method: _evidence(found, dataset) for method, found in folders.items()},
        costs=read_costs(suite, folders),
    )


def read_costs(suite: SuiteSet, folders: Mapping[str, tuple[Path, ...]]) -> dict[str, MethodCost]:
    """The costs of every row that is trained, from its finished runs."""
    trained = trained_rows(suite)
    return {
        label: method_cost(found, [read_json(folder / "scores.json") for folder in found], pace_folder(suite, label))
        for label, found in folders.items()
        if trained[label] == label
    }


def _finished(out: Path, record: Mapping[str, Any]) -> dict[str, tuple[Path, ...]]:
    found = {}
    for row in record["rows"]:
        places = [out / folder for folder in row["folders"]]
        done = tuple(place for place in places if int(place.name.removeprefix("seed-")) in row["seeds"]["finished"])
        if done:
            found[row["label"]] = done
    return found


def _against(systems: Mapping[str, SystemScores], name: str) -> dict[tuple[str, str], Contrast]:
    """Every other system against this one; nothing where it is not among them."""
    if name not in systems:
        return {}
    others = {other: system for other, system in systems.items() if other != name}
    return compare(others, systems[name], TESTED, _between_trainings(others, systems[name]))


def _between_trainings(systems: Mapping[str, SystemScores], other: SystemScores) -> dict[tuple[str, str], float | None]:
    """(system, metric) -> p of Welch's test between the trainings of both; nothing where one has a single training."""
    several = {name: system for name, system in systems.items() if len(system.evaluations) > 1}
    if len(other.evaluations) < 2:
        return {}
    return {
        (name, tested.metric): tested.p
        for name, system in several.items()
        for tested in compare_seeds(other.by_seed(), system.by_seed())
    }


_FIGURES = ("heads", "heads_ap", "recalled", "draft", "draft_heads", "draft_recalled", "per_reference", "per_draft")


def _floors(
    pairs: Mapping[str, Sequence[Sequence[Pair]]], full: Mapping[str, SystemScores], scoring: Scoring
) -> dict[str, SystemScores]:
    """What came with the predictions, and the reports of the method with the best findings F1 for other studies."""
    if not pairs:
        return {}
    best = max(pairs, key=lambda method: full[method].mean("CE_F1") or 0.0)
    return floor_systems(pairs[best][0], scoring) | shuffled_system(best, pairs[best][0], scoring)


def _evidence(folders: tuple[Path, ...], dataset: Dataset) -> MethodEvidence:
    labeler = get_labeler(LABELER_OF[dataset.card.modality])
    found: list[EvidenceAgreement] = []
    kinds: dict[str, None] = {}
    for folder in folders:
        rows = [
            {"ref": row["ref"], "hyp": row["hyp"], "evidence": _light(row["evidence"], kinds)}
            for _, row in read_jsonl(folder / "predictions.jsonl")
        ]
        found.append(evidence_agreement(rows, labeler))
    values = {name: [getattr(item, name) for item in found] for name in _FIGURES}
    means = {name: None if None in known else fmean(known) for name, known in values.items()}
    return MethodEvidence(means, found[0].recalled_kind, tuple(kinds))


def _light(evidence: Mapping[str, Any], kinds: dict[str, None]) -> dict[str, Any]:
    """What is compared of the evidence, without maps; notes the kinds that there are."""
    kinds.update(dict.fromkeys(name for name, value in evidence.items() if value))
    return {name: evidence[name] for name in ("class_probabilities", "calibration", "recalled") if name in evidence}
