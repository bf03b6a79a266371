"""Results of a set from its finished runs: scores, tests, evidence, costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from radweave.core.errors import InputError
from radweave.core.json_files import read_json, read_jsonl
from radweave.data.dataset import Dataset
from radweave.drafting.calibration import FILE
from radweave.drafting.writer import PRIOR_UNUSED
from radweave.engine.expected_utility import FOLDER
from radweave.experiments.bench_drafts import foreign_pairs
from radweave.experiments.bench_suite import JOINING, MethodCost, SuiteSet, method_cost, pace_folder
from radweave.experiments.bench_terms import (
    BY_UTILITY,
    FOREIGN,
    UNLEARNED,
    Terms,
    read_experiment,
    terms_of,
    unequal_terms,
)
from radweave.experiments.one_run import named_statistics, same_scores, summary
from radweave.labels import LABELER_OF, Labeler, get_labeler
from radweave.metrics import Evaluation, Options, evaluate_pairs, read_pairs
from radweave.metrics.catalogue import MAIN_METRICS, METRICS, TABLE_METRICS
from radweave.metrics.evaluate import ELSE_ITS_OWN, FLOOR_NAMES, floor_texts
from radweave.metrics.evidence import EvidenceAgreement, evidence_agreement
from radweave.metrics.floors import FINDINGS, WORDING, shuffled_pairing
from radweave.metrics.pairs import Pair
from radweave.metrics.priors import else_prior, prior_reports
from radweave.metrics.significance import compare_seeds, holm, resampled_p_value
from radweave.metrics.statistics import Floats, Statistic, cluster_index, percentiles, resampled_weights
from radweave.metrics.tables import DASH, TextTable, number

# Scores of a method over its seeds, resampled over studies, and tested against others.
#
# Two tests. Over seeds (Welch, from the ablation's record): would another training give the same? Over studies: would
# other studies? Studies are drawn with replacement, a patient's together, 10,000 times, the same draw for every method
# and seed; each draw gives every seed's corpus score, and their mean is the method's. A difference must hold in both.


ALPHA = 0.05
DRAWS = 10_000
"""Resamples: the least p-value is 1 in 10,001, so that after Holm over a hundred cells one of .01 can be reached."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """Scoring of predictions: protocol, labeler, training reports (for a protocol's vocabulary), patients of the
    studies, and the reports of their prior studies.
    """

    protocol: str
    labeler: Labeler
    train_texts: tuple[str, ...]
    patients: Mapping[str, str]
    priors: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, dataset: Dataset, protocol: str = "full") -> Scoring:
        """The scoring of drafts of a data set's test split."""
        studies = tuple(dataset.studies())
        return cls(
            protocol,
            get_labeler(LABELER_OF[dataset.card.modality]),
            tuple(study.report for study in studies if study.split == "train" and study.report),
            {study.study_id: study.patient_id for study in studies},
            prior_reports(study for study in studies if study.split == "test"),
        )


@dataclass(frozen=True, slots=True)
class Contrast:
    """One metric of a method against another system: means' difference, interval over studies and p-values.

    ``p_studies`` is two-sided from the resamples, ``p_holm`` after Holm over all methods and metrics of the table;
    ``p_seeds`` Welch's over seeds. None where a test is undefined.
    """

    difference: float
    low: float | None
    high: float | None
    p_studies: float | None
    p_seeds: float | None = None
    p_holm: float | None = None

    @property
    def holds(self) -> bool:
        """True if it is significant over studies, corrected, and over seeds where the other system has any."""
        over_seeds = self.p_seeds is None or self.p_seeds < ALPHA
        return self.p_holm is not None and self.p_holm < ALPHA and over_seeds


@dataclass(frozen=True, slots=True)
class SystemScores:
    """A system's evaluations, one per seed (a floor has one), and the draws (R,) of each metric."""

    evaluations: tuple[Evaluation, ...]
    values: Mapping[str, tuple[float | None, ...]]
    draws: Mapping[str, Floats]

    @property
    def study_ids(self) -> tuple[str, ...]:
        return self.evaluations[0].study_ids

    def by_seed(self) -> list[dict[str, float | None]]:
        """The corpus scores of each seed."""
        return [{name: values[place] for name, values in self.values.items()} for place in range(len(self.evaluations))]

    def mean(self, metric: str) -> float | None:
        values = [value for value in self.values.get(metric, ()) if value is not None]
        return float(np.mean(values)) if values and len(values) == len(self.values[metric]) else None

    def std(self, metric: str) -> float | None:
        values = [value for value in self.values.get(metric, ()) if value is not None]
        return float(np.std(values, ddof=1)) if len(values) > 1 else None

    def interval(self, metric: str) -> tuple[float, float] | None:
        """95 % over studies, of the mean over seeds."""
        return percentiles(self.draws[metric]) if metric in self.draws else None


def read_run(folder: Path, scoring: Scoring) -> list[Pair]:
    """The predictions of a run with the patients of its studies, and the prior's reports where it was made without."""
    return [
        dataclasses.replace(
            pair,
            patient_id=scoring.patients.get(pair.study_id),
            prior_report=pair.prior_report or scoring.priors.get(pair.study_id),
        )
        for pair in read_pairs(folder / "predictions.jsonl", skip_invalid=True).pairs
    ]


def score_system(runs: Sequence[Sequence[Pair]], scoring: Scoring, *, resamples: int = DRAWS) -> SystemScores:
    """Evaluate a system's predictions of all seeds.

    Raises:
        InputError: if the seeds are not about the same studies.
    """
    options = Options(meteor=False, floors=False, resamples=0)
    evaluations = tuple(
        evaluate_pairs(
            pairs, scoring.protocol, labeler=scoring.labeler, train_texts=scoring.train_texts, options=options
        )
        for pairs in runs
    )
    for evaluation in evaluations:
        if evaluation.study_ids != evaluations[0].study_ids:
            raise InputError("runs of one data set are not about the same studies", field="study_id")
    summaries = [summary(evaluation) for evaluation in evaluations]
    names = dict.fromkeys((*TABLE_METRICS, *evaluations[0].prior_statistics))
    values = {name: tuple(scores.get(name) for scores in summaries) for name in names}
    return SystemScores(evaluations, values, _draws(evaluations, resamples) if resamples else {})


def _draws(evaluations: Sequence[Evaluation], resamples: int) -> dict[str, Floats]:
    """Metric -> mean over seeds in each resample (R,)."""
    clusters: NDArray[np.int64] = cluster_index(evaluations[0].patients)
    if int(clusters.max()) < 1:
        return {}
    seeds: list[dict[str, Statistic]] = [named_statistics(evaluation) for evaluation in evaluations]
    drawn: dict[str, list[Floats]] = {name: [] for name in seeds[0]}
    for weights in resampled_weights(clusters, resamples, seed=0):
        for name, chunks in drawn.items():
            chunks.append(np.mean([seed[name].value(weights @ seed[name].rows) for seed in seeds], axis=0))
    return {name: np.concatenate(chunks) for name, chunks in drawn.items()}


def floor_systems(pairs: Sequence[Pair], scoring: Scoring) -> dict[str, SystemScores]:
    """The floors that came with the predictions, scored like a method."""
    return {
        name: score_system([_with_texts(pairs, texts)], scoring)
        for name, texts in floor_texts(pairs).items()
        if name != ELSE_ITS_OWN
    }


def else_prior_runs(runs: Sequence[Sequence[Pair]]) -> list[list[Pair]]:
    """A system's reports with the prior's report wherever there is one."""
    return [_with_texts(pairs, else_prior(pairs)) for pairs in runs]


def _with_texts(pairs: Sequence[Pair], texts: Sequence[str]) -> list[Pair]:
    return [dataclasses.replace(pair, hyp=text) for pair, text in zip(pairs, texts, strict=True)]


def shuffled_system(name: str, pairs: Sequence[Pair], scoring: Scoring) -> dict[str, SystemScores]:
    """A system's reports given to other studies, scored like a method: the score of its wording alone."""
    texts = shuffled_pairing(pairs, seed=0).texts
    if texts is None:
        return {}
    return {f"{name}'s reports, given to other studies": score_system([_with_texts(pairs, texts)], scoring)}


def compare(
    systems: Mapping[str, SystemScores],
    against: SystemScores | Mapping[str, SystemScores],
    metrics: Sequence[str],
    p_seeds: Mapping[tuple[str, str], float | None] | None = None,
) -> dict[tuple[str, str], Contrast]:
    """(system, metric) -> its difference to one other, or each to its own; Holm over all of them.

    Systems on other studies are left out.
    """
    contrasts: dict[tuple[str, str], Contrast] = {}
    for name, system in systems.items():
        other = against[name] if isinstance(against, Mapping) else against
        if system.study_ids != other.study_ids:
            continue
        for metric in metrics:
            own, baseline = system.mean(metric), other.mean(metric)
            if own is None or baseline is None:
                continue
            tested = Contrast(own - baseline, None, None, None, (p_seeds or {}).get((name, metric)))
            if metric in system.draws and metric in other.draws:
                draws = system.draws[metric] - other.draws[metric]
                low, high = percentiles(draws) or (None, None)
                p = resampled_p_value(draws - tested.difference, tested.difference)
                tested = dataclasses.replace(tested, low=low, high=high, p_studies=p)
            contrasts[name, metric] = tested
    corrected = holm([tested.p_studies for tested in contrasts.values()])
    return {
        key: dataclasses.replace(tested, p_holm=p)
        for (key, tested), p in zip(contrasts.items(), corrected, strict=True)
    }


BEST_ELSE_PRIOR = "best method told no prior, else the prior's report"
"""Of the methods that look at no prior, the one with the best findings F1 once copies take the place of its drafts."""
BEST_OTHER_ELSE_PRIOR = f"best method without {JOINING}, told no prior, else the prior's report"
"""The same without the method that joins the others, where that one is the best."""
OWN_ELSE_PRIOR = "same row, else the prior's report"
"""A floor for each row: its own drafts, but copies wherever there is a prior."""
TESTED_FLOORS = (FLOOR_NAMES["nearest_neighbour"], FLOOR_NAMES[FINDINGS], FLOOR_NAMES[WORDING])
"""Floors that methods are tested against, beside the best copies; each with Holm's correction over all its tests."""
TESTED_CHANGES = ("new_R", "resolved_R", "changed_F1")


def metrics_to_test(systems: Mapping[str, SystemScores]) -> tuple[str, ...]:
    """The main metrics, and where studies have priors recall of new and resolved findings and F1 of changed cells."""
    known = {metric for system in systems.values() for metric in system.values}
    return (*MAIN_METRICS, *(metric for metric in TESTED_CHANGES if metric in known))


@dataclass(frozen=True, slots=True)
class MethodEvidence:
    """Findings in the evidence, mean over seeds; and which kinds of evidence a report carries."""

    figures: Mapping[str, float | None]
    recalled_kind: str | None
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetResults:
    """The results of a set. ``record`` is the ablation's; ``folders`` are a row's finished runs by its label.

    ``costs`` are those of the rows that are trained; a row that reports again has the costs of the row it takes, and
    drafts of another program (``suite.drafts``) have none, no ``folders`` and no ``evidence``.
    ``to_same_decoding`` tests each row against the reference's row of the same decoding and prior.
    ``terms`` are those on which each row drafted. ``identical`` is for two methods' rows that draft by utility and are
    told no prior the share of studies on which their first runs have the same draft word for word. ``else_prior`` are
    the rows with the prior's report in place of their draft wherever there is one, none of data without priors;
    ``best_else_prior`` are the rows that became floors of this kind. ``printed`` names the rows of tables, and
    ``printed_copies`` those of ``else_prior``: rows with the same drafts are one.
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
    to_same_decoding: Mapping[tuple[str, str], Contrast]
    to_floors: Mapping[str, Mapping[tuple[str, str], Contrast]]
    evidence: Mapping[str, MethodEvidence]
    costs: Mapping[str, MethodCost]
    printed: Mapping[str, str]
    terms: Mapping[str, Terms]
    identical: Mapping[tuple[str, str], float] = field(default_factory=dict)
    else_prior: Mapping[str, SystemScores] = field(default_factory=dict)
    best_else_prior: Mapping[str, str] = field(default_factory=dict)
    printed_copies: Mapping[str, str] = field(default_factory=dict)

    def rows(self, systems: Mapping[str, SystemScores]) -> dict[str, SystemScores]:
        """Systems by printed name."""
        return {name: systems[label] for label, name in self.printed.items() if label in systems}

    @property
    def copies(self) -> dict[str, SystemScores]:
        """``else_prior`` by printed name. A row that is told the prior drafts like its untold one where there is none:
        the two copies are one row.
        """
        return {name: self.else_prior[label] for label, name in self.printed_copies.items()}

    @property
    def reference(self) -> str:
        return self.suite.table.reference

    def costs_of(self, label: str) -> tuple[MethodCost, ...]:
        """Costs of training each of the runs behind a draft of a row: of several where it averages them.

        None for drafts of another program, and where a run has no scores of its own.
        """
        behind = runs_behind(self.suite).get(label, ())
        return tuple(self.costs[name] for name in behind) if all(name in self.costs for name in behind) else ()


def runs_behind(suite: SuiteSet) -> dict[str, tuple[str, ...]]:
    """Label of a row -> labels of the trained rows whose runs write a draft of it, each as often as it has runs there.

    The first is the row whose runs it reports with, often its own.
    """
    table = suite.table
    return {
        row.label: (*[table.trained(row).label] * max(1, row.average_seeds), *row.average_with) for row in table.rows
    }


def set_results(suite: SuiteSet, record: Mapping[str, Any]) -> SetResults:
    """Score and compare the finished runs of a set.

    Raises:
        InputError: for predictions that do not give the scores beside them, or runs on other studies.
    """
    dataset = Dataset.open(suite.request.dataset)
    folders = _finished(suite.request.out, record)
    noted = {
        method: [read_json(folder / "scores.json")["metrics"] for folder in runs] for method, runs in folders.items()
    }
    full_scoring = Scoring.of(dataset)
    scorings = [full_scoring, dataclasses.replace(full_scoring, protocol=suite.kind.compatible)]
    pairs = {method: [read_run(folder, scorings[0]) for folder in runs] for method, runs in folders.items()}
    if pairs:
        studies_of = pairs.get(suite.table.reference, next(iter(pairs.values())))[0]
        for name, files in suite.drafts.items():
            pairs[name] = [foreign_pairs(file, studies_of) for file in files]
    full, compatible = ({method: score_system(runs, scoring) for method, runs in pairs.items()} for scoring in scorings)
    for method, runs in folders.items():
        for folder, computed, known in zip(runs, full[method].by_seed(), noted[method], strict=True):
            if not same_scores(computed, known):
                raise InputError(
                    "predictions.jsonl does not give the scores in scores.json; remove scores.json and run again",
                    file=folder,
                )
    floors, compatible_floors = (_floors(pairs, full, scoring) for scoring in scorings)
    costs = read_costs(suite, folders)
    terms = read_terms(suite, record, folders) | dict.fromkeys(suite.drafts, FOREIGN)
    copied = {
        method: else_prior_runs(runs)
        for method, runs in pairs.items()
        if any(pair.prior_report is not None for pair in runs[0])
    }
    else_prior_systems = {method: score_system(runs, scorings[0]) for method, runs in copied.items()}
    best = best_untold(else_prior_systems, terms)
    floors |= {floor: else_prior_systems[row] for floor, row in best.items()}
    to_floors = {
        name: compare(full, floors[name], metrics_to_test(full), _between_trainings(full, floors[name]))
        for name in (*TESTED_FLOORS, *best)
        if name in floors
    }
    if else_prior_systems:
        to_floors[OWN_ELSE_PRIOR] = _against_each(full, else_prior_systems)
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
        to_same_decoding=_against_each(
            full,
            {
                label: full[other]
                for label, other in rows_of_same_decoding(suite, terms, with_priors=bool(else_prior_systems)).items()
            },
        ),
        to_floors=to_floors,
        evidence={method: _evidence(runs, dataset) for method, runs in folders.items()},
        costs=costs,
        printed=joined_rows(pairs),
        terms=terms,
        identical=identical_drafts(pairs, _methods_untold(suite, terms, with_priors=bool(else_prior_systems))),
        else_prior=else_prior_systems,
        best_else_prior=best,
        printed_copies=joined_rows(copied),
    )


def best_untold(systems: Mapping[str, SystemScores], terms: Mapping[str, Terms]) -> dict[str, str]:
    """Floor -> its row: of the rows that look at no prior, of all and without `JOINING`, that of best findings F1."""
    untold = [label for label in systems if terms[label]["earlier study"] == "no"]
    others = [label for label in untold if label.split(",")[0] != JOINING]
    best = {
        floor: max(rows, key=lambda label: systems[label].mean("CE_F1") or 0.0)
        for floor, rows in ((BEST_ELSE_PRIOR, untold), (BEST_OTHER_ELSE_PRIOR, others))
        if rows
    }
    return best if len(set(best.values())) > 1 else {floor: best[floor] for floor in best if floor == BEST_ELSE_PRIOR}


def _methods_untold(suite: SuiteSet, terms: Mapping[str, Terms], *, with_priors: bool) -> list[str]:
    """The rows of one method each that draft by utility and are told no prior."""
    single = [row.label for row in suite.table.rows if not (row.average_seeds or row.average_with)]
    return [
        label
        for label in single
        if label in terms
        and terms[label]["drafts"] == BY_UTILITY
        and (terms[label]["earlier study"] == "no" or not with_priors)
    ]


def identical_drafts(
    pairs: Mapping[str, Sequence[Sequence[Pair]]], labels: Sequence[str]
) -> dict[tuple[str, str], float]:
    """Share of studies on which the first runs of two of these rows have the same draft, word for word."""
    drafts = {label: {pair.study_id: pair.hyp.split() for pair in pairs[label][0]} for label in labels}
    shares = {}
    for first, second in combinations(labels, 2):
        studies = drafts[first].keys() & drafts[second].keys()
        if studies:
            shares[first, second] = fmean(drafts[first][study] == drafts[second][study] for study in studies)
    return shares


def joined_rows(pairs: Mapping[str, Sequence[Sequence[Pair]]]) -> dict[str, str]:
    """Label of the first of all rows with the same drafts in every seed -> their labels, joined."""
    labels_of: dict[tuple[tuple[tuple[str, str], ...], ...], list[str]] = {}
    for label, runs in pairs.items():
        drafts = tuple(tuple(sorted((pair.study_id, pair.hyp) for pair in run)) for run in runs)
        labels_of.setdefault(drafts, []).append(label)
    return {labels[0]: " = ".join(labels) for labels in labels_of.values()}


def read_terms(suite: SuiteSet, record: Mapping[str, Any], folders: Mapping[str, tuple[Path, ...]]) -> dict[str, Terms]:
    """The terms of every row: by the configuration of its runs, what the row changes for its drafts, and a draft."""
    rows, behind = {row.label: row for row in suite.table.rows}, runs_behind(suite)
    out = suite.request.out
    # A run may be finished whose own drafts failed.
    runs = {row["label"]: [out / run for run in row["folders"] if (out / run / "run.json").is_file()]
            for row in record["rows"]}  # fmt: skip
    terms = {}
    for label, drafts in folders.items():
        own, *others = (read_experiment(runs[name][0]) for name in behind[label])
        written = [row for _, row in read_jsonl(drafts[0] / "predictions.jsonl")]
        terms[label] = terms_of(
            own,
            rows[label].decoding,
            others,
            written[0]["evidence"],
            weighed=(runs[behind[label][0]][0] / FOLDER / FILE).is_file(),
            unused=any(PRIOR_UNUSED in row["warnings"] for row in written),
        )
    return terms


def read_costs(suite: SuiteSet, folders: Mapping[str, tuple[Path, ...]]) -> dict[str, MethodCost]:
    """The costs of every row that is trained, from its finished runs."""
    trained = {row.label for row in suite.table.rows if row.run_of is None}
    return {
        label: method_cost(runs, [read_json(folder / "scores.json") for folder in runs], pace_folder(suite, label))
        for label, runs in folders.items()
        if label in trained
    }


def _finished(out: Path, record: Mapping[str, Any]) -> dict[str, tuple[Path, ...]]:
    finished = {}
    for row in record["rows"]:
        places = [out / folder for folder in row["folders"]]
        done = tuple(place for place in places if int(place.name.removeprefix("seed-")) in row["seeds"]["finished"])
        if done:
            finished[row["label"]] = done
    return finished


def _against(systems: Mapping[str, SystemScores], name: str) -> dict[tuple[str, str], Contrast]:
    """Every other system against this one; nothing where it is not among them."""
    if name not in systems:
        return {}
    others = {other: system for other, system in systems.items() if other != name}
    return compare(others, systems[name], metrics_to_test(systems), _between_trainings(others, systems[name]))


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


def _against_each(
    systems: Mapping[str, SystemScores], others: Mapping[str, SystemScores]
) -> dict[tuple[str, str], Contrast]:
    """Every system that has a counterpart among the others against that one."""
    paired = {name: system for name, system in systems.items() if name in others}
    p_seeds = {
        key: p for name, system in paired.items() for key, p in _between_trainings({name: system}, others[name]).items()
    }
    return compare(paired, others, metrics_to_test(paired), p_seeds)


def rows_of_same_decoding(suite: SuiteSet, terms: Mapping[str, Terms], *, with_priors: bool) -> dict[str, str]:
    """Row -> the reference's row that also drafts by its decoder, or by utility, and is told as much of the prior.

    A prior that no study has, or of which nothing was learned, counts as none.
    """
    reference = suite.table.reference
    own = [row for row in suite.table.rows if row.label in terms and not (row.average_seeds or row.average_with)]

    def decoding_of(label: str) -> tuple[str, str]:
        read = terms[label]["earlier study"]
        return terms[label]["drafts"], "no" if read == UNLEARNED or not with_priors else read

    rows = {decoding_of(row.label): row.label for row in own if reference in (row.label, row.run_of)}
    return {label: rows[decoding_of(label)] for label in terms if label != rows.get(decoding_of(label), label)}


_FIGURES = ("heads", "heads_ap", "recalled", "draft", "draft_heads", "draft_recalled", "per_reference", "per_draft")
_COMPARED = ("class_probabilities", "calibration", "recalled")


def _floors(
    pairs: Mapping[str, Sequence[Sequence[Pair]]], full: Mapping[str, SystemScores], scoring: Scoring
) -> dict[str, SystemScores]:
    """Floors from the predictions, and the reports of the method with the best findings F1 given to other studies."""
    if not pairs:
        return {}
    best = max(pairs, key=lambda method: full[method].mean("CE_F1") or 0.0)
    return floor_systems(pairs[best][0], scoring) | shuffled_system(best, pairs[best][0], scoring)


def _evidence(folders: tuple[Path, ...], dataset: Dataset) -> MethodEvidence:
    labeler = get_labeler(LABELER_OF[dataset.card.modality])
    agreements: list[EvidenceAgreement] = []
    kinds: dict[str, None] = {}
    for folder in folders:
        rows = []
        for _, row in read_jsonl(folder / "predictions.jsonl"):
            kinds.update(dict.fromkeys(name for name, value in row["evidence"].items() if value))
            # Without its maps.
            compared = {name: row["evidence"][name] for name in _COMPARED if name in row["evidence"]}
            rows.append({"ref": row["ref"], "hyp": row["hyp"], "evidence": compared})
        agreements.append(evidence_agreement(rows, labeler))
    values = {name: [getattr(item, name) for item in agreements] for name in _FIGURES}
    means = {name: None if None in known else fmean(known) for name, known in values.items()}
    return MethodEvidence(means, agreements[0].recalled_kind, tuple(kinds))


# Figures as the cells of tables.


def mean_std(system: SystemScores, metric: str) -> str:
    """Mean over seeds, with the standard deviation (n - 1) where there are several."""
    mean, std = system.mean(metric), system.std(metric)
    return number(mean, 3) if mean is None or std is None else f"{mean:.3f} ± {std:.3f}"


def with_interval(system: SystemScores, metric: str) -> str:
    """The same with the 95 % interval over studies."""
    interval = system.interval(metric)
    text = mean_std(system, metric)
    return text if interval is None or text == DASH else f"{text} [{interval[0]:.3f}, {interval[1]:.3f}]"


P_VALUES = ("studies", "Holm", "seeds")


def difference(tested: Contrast | None, shown: Sequence[str] = P_VALUES) -> str:
    """The difference with its interval over studies and the p-values that are shown."""
    if tested is None:
        return DASH
    text = _signed(tested.difference)
    if tested.low is not None and tested.high is not None:
        text += f" [{_signed(tested.low)}, {_signed(tested.high)}]"
    values = zip(P_VALUES, (tested.p_studies, tested.p_holm, tested.p_seeds), strict=True)
    known = [f"{name} {p_value(p)}" for name, p in values if p is not None and name in shown]
    mark = " *" if tested.holds else ""
    return f"{text}; p {', '.join(known)}{mark}" if known else text


def share_of_normal(systems: Mapping[str, SystemScores]) -> tuple[str, ...]:
    """The sentence on normal studies that stands beside CIDEr; none without labels."""
    notes = (one.abnormal.note for system in systems.values() for one in system.evaluations if one.abnormal is not None)
    return tuple(islice(notes, 1))


def on_abnormal(system: SystemScores, metric: str) -> str:
    """Mean over seeds on the abnormal studies alone; a dash unless every seed has a value."""
    values = [None if one.abnormal is None else one.abnormal.corpus[metric].value for one in system.evaluations]
    known = [value for value in values if value is not None]
    return number(fmean(known), 3) if known and len(known) == len(values) else DASH


def _signed(value: float) -> str:
    text = f"{value:+.3f}"
    return "+0.000" if text == "-0.000" else text


def p_value(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def count(value: float | None) -> str:
    """A large number: 1,234 or 5.6 M."""
    if value is None:
        return DASH
    return f"{value / 1e6:.2f} M" if value >= 1e6 else f"{value:,.0f}"


def megabytes(value: float | None) -> str:
    return DASH if value is None else f"{value / 1e6:,.0f} MB" if value >= 1e7 else f"{value / 1e6:.1f} MB"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return DASH
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def rate(value: float | None) -> str:
    return DASH if value is None else f"{value:.3g}"


def percent(value: float | None) -> str:
    return DASH if value is None else f"{100 * value:.0f} %"


# The best method by each measure, and the methods that cannot be told apart from it.


def choice_table(results: SetResults) -> TextTable:
    """One line per need: the best method, its figure, and the methods that its interval does not separate from it."""
    rows = [_best_by_score(name, results.full) for name, metric in METRICS.items() if metric.need]
    costs = results.costs
    for need, values, shown in (
        ("least training (CPU)", {name: cost.cpu_s for name, cost in costs.items()}, duration),
        ("least memory in training", {name: cost.peak_memory for name, cost in costs.items()}, megabytes),
        ("fewest parameters", {name: cost.parameters for name, cost in costs.items()}, count),
    ):
        rows.append(_extreme(need, values, shown, smallest=True))
    paces = {name: cost.reports_per_s for name, cost in costs.items()}
    rows.append(_extreme("fastest writing (reports/s)", paces, rate, smallest=False))
    notes = (
        f"not told apart: methods whose difference to the best has p >= {ALPHA} over studies, not corrected: the best"
        " is picked after the fact, so read this as a hint and the tests on the set's page as the answer",
        *share_of_normal(results.full),
        *unequal_terms(results.terms, results.full),
    )
    head = ("need", "best here", "figure", "not told apart from it")
    return TextTable(f"Which for what: {results.suite.kind.title}", head, tuple(rows), notes)


def _best_by_score(metric: str, systems: Mapping[str, SystemScores]) -> tuple[str, ...]:
    need = METRICS[metric].need
    means = {name: mean for name, system in systems.items() if (mean := system.mean(metric)) is not None}
    if not means:
        return need, DASH, DASH, DASH
    best = max(means, key=lambda name: METRICS[metric].rank(means[name]))
    others = {name: system for name, system in systems.items() if name != best and name in means}
    tested = compare(others, systems[best], (metric,))
    near = [name for name in others if (p := tested[name, metric].p_studies) is None or p >= ALPHA]
    return need, best, f"{means[best]:.3f}", ", ".join(near) or "none"


def _extreme(
    need: str, values: Mapping[str, float | None], shown: Callable[[float | None], str], *, smallest: bool
) -> tuple[str, ...]:
    known = {name: value for name, value in values.items() if value is not None}
    if len(known) < 2:
        return need, DASH, DASH, DASH
    best = (min if smallest else max)(known, key=known.__getitem__)
    rest = ", ".join(f"{name} {shown(value)}" for name, value in known.items() if name != best)
    missing = [name for name in values if name not in known]
    return (
        need,
        best,
        shown(known[best]),
        f"others: {rest}" + (f"; not measured: {', '.join(missing)}" if missing else ""),
    )
