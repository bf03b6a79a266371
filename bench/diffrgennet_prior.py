"""Does `diffrgennet` speak of change better when it is given the prior study? Phantom visits: run by hand.

    radweave phantom DATASET --studies 1500
    python bench/diffrgennet_prior.py DATASET OUT --seeds 0 1 2

Trains the tiny preset with and without ``data.priors`` (runs under OUT that are finished are taken as they are), writes
the test studies that have a prior, and scores their change words: F1 with 95 % bootstrap intervals over patients, and
the difference with its interval from the same resamples. As a control the run that knows priors also writes without
them, and with another patient's. Everything goes to OUT/change_words.json.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from radweave.core.json_files import write_json
from radweave.data.cache.images import build_cache
from radweave.data.dataset import Dataset
from radweave.data.loader import Example
from radweave.engine.prepare import prepare
from radweave.engine.restore import restore
from radweave.engine.train import train
from radweave.inference.predictor import Predictor
from radweave.labels.comparisons import CHANGES
from radweave.metrics.pairs import Pair
from radweave.metrics.statistics import Floats, Statistic, bootstrap, cluster_index, resampled_weights
from radweave.nn.decoding import OWN_DECODER

# F1 of change words. A word counts once per report; a clause that denies it ("no new opacity") does not count.
_CLAUSE_END = re.compile(r"[.;,:\n]|\b(?:and|but|with|while)\b")
_DENIED = re.compile(r"\b(?:no|not|without)\b(?! (?:longer|(?:\w+ ){0,2}change)\b)")


def change_words(text: str) -> frozenset[str]:
    """The changes that a report speaks of, of the keys of ``CHANGES``."""
    changes: set[str] = set()
    for clause in _CLAUSE_END.split(text.lower()):
        if not _DENIED.search(clause):
            changes |= {name for name, pattern in CHANGES.items() if pattern.search(clause)}
    return frozenset(changes)


def change_statistics(pairs: Sequence[Pair]) -> dict[str, Statistic]:
    """F1 of every change, ``micro`` over all of them and ``macro`` over those that occur; NaN where nothing does.

    Several references of a study are taken together.
    """
    rows = np.zeros((len(pairs), len(CHANGES), 3))
    for study, pair in enumerate(pairs):
        hyp = change_words(pair.hyp)
        ref = frozenset().union(*(change_words(text) for text in pair.refs))
        for column, name in enumerate(CHANGES):
            rows[study, column] = (
                name in hyp and name in ref,
                name in hyp and name not in ref,
                name in ref and name not in hyp,
            )
    flat = rows.reshape(len(pairs), -1)
    values: dict[str, Callable[[Floats], Floats]] = {"micro": _micro, "macro": _macro}
    values |= {name: _of_column(column) for column, name in enumerate(CHANGES)}
    return {name: Statistic(flat, value, value(flat)) for name, value in values.items()}


def change_table(pairs: Sequence[Pair], *, resamples: int = 1000, seed: int = 0) -> dict[str, dict[str, Any]]:
    """Change -> F1, its 95 % bootstrap interval over patients, and in how many references and reports it stands."""
    statistics = change_statistics(pairs)
    intervals = bootstrap(
        statistics, cluster_index([pair.patient_id for pair in pairs]), resamples=resamples, seed=seed
    )
    table: dict[str, dict[str, Any]] = {}
    for name, statistic in statistics.items():
        f1 = statistic.corpus()
        interval = intervals[name]
        table[name] = {"f1": None if np.isnan(f1) else f1, "interval": [interval.low, interval.high]}
        if name in CHANGES:
            table[name]["references"] = sum(any(name in change_words(text) for text in pair.refs) for pair in pairs)
            table[name]["reports"] = sum(name in change_words(pair.hyp) for pair in pairs)
    return table


def _f1(counts: Floats) -> Floats:
    """(..., 3) true positives, false positives, false negatives -> (...)"""
    with np.errstate(invalid="ignore"):
        return np.asarray(2 * counts[..., 0] / (2 * counts[..., 0] + counts[..., 1] + counts[..., 2]))


def _by_change(sums: Floats) -> Floats:
    return sums.reshape(*sums.shape[:-1], len(CHANGES), 3)


def _micro(sums: Floats) -> Floats:
    return _f1(_by_change(sums).sum(-2))


def _macro(sums: Floats) -> Floats:
    each = _f1(_by_change(sums))
    defined = ~np.isnan(each)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(defined, each, 0.0).sum(-1) / defined.sum(-1))


def _of_column(column: int) -> Callable[[Floats], Floats]:
    return lambda sums: _f1(_by_change(sums)[..., column, :])


def pairs_of(folder: Path, dataset: Dataset, prior: str) -> list[Pair]:
    """Reports of the test studies that have a usable prior, written with it, without it, or with a stranger's."""
    run = restore(folder)
    cache = build_cache(dataset, size=run.experiment.data.image_size)
    data = run.experiment.data.model_copy(update={"priors": True})
    experiment = run.experiment.model_copy(update={"data": data})
    prepared = prepare(dataset, "test", experiment, run.tokenizer, cache, need_text=True)
    examples = [example for example in prepared.examples if example.prior is not None]
    shown: list[Example] = []
    for number, example in enumerate(examples):
        other = examples[(number + len(examples) // 2) % len(examples)]
        shown.append(replace(example, prior={"own": example.prior, "none": None, "strange": other.prior}[prior]))
    reports = Predictor.of(run, decoding=[OWN_DECODER]).reports(shown)
    return [
        Pair(example.study_id, report.text, (example.report or "",), patient_id=example.patient_id, has_prior=True)
        for example, report in zip(examples, reports, strict=True)
    ]


def difference(with_prior: list[Pair], without: list[Pair], resamples: int = 1000) -> dict[str, Any]:
    """Micro F1 with the prior minus without, and its interval from paired resamples of patients."""
    left, right = (change_statistics(pairs)["micro"] for pairs in (with_prior, without))
    clusters = cluster_index([pair.patient_id for pair in with_prior])
    drawn = np.concatenate(
        [left.value(w @ left.rows) - right.value(w @ right.rows) for w in resampled_weights(clusters, resamples, 0)]
    )
    low, high = np.nanpercentile(drawn, [2.5, 97.5])
    return {"f1_difference": left.corpus() - right.corpus(), "interval": [float(low), float(high)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--override", action="append", default=[], help="further overrides of the experiment")
    arguments = parser.parse_args()
    dataset = Dataset.open(arguments.dataset)
    results: dict[str, Any] = {}
    for seed in arguments.seeds:
        folders = {}
        for name, priors in (("without", "false"), ("with", "true")):
            folders[name] = arguments.out / f"{name}_{seed}"
            overrides = [f"seed={seed}", f"data.priors={priors}", *arguments.override]
            train("diffrgennet", arguments.dataset, folders[name], overrides=overrides, resume=True)
        written = {
            "trained without priors": pairs_of(folders["without"], dataset, "none"),
            "trained with, own prior": pairs_of(folders["with"], dataset, "own"),
            "trained with, no prior": pairs_of(folders["with"], dataset, "none"),
            "trained with, a stranger's prior": pairs_of(folders["with"], dataset, "strange"),
        }
        results[f"seed {seed}"] = {
            "studies": len(written["trained without priors"]),
            **{name: change_table(pairs) for name, pairs in written.items()},
            "own prior minus none": difference(written["trained with, own prior"], written["trained without priors"]),
        }
        write_json(arguments.out / "change_words.json", results)
        scored = {name: value["micro"] for name, value in results[f"seed {seed}"].items() if name.startswith("trained")}
        print(json.dumps({"seed": seed, **scored}))


if __name__ == "__main__":
    main()
