"""The model and the floors that came with its predictions, scored by the same program, side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from radweave.evaluation.constants import FINDINGS, WORDING
from radweave.evaluation.evaluate import Options, evaluate_pairs
from radweave.evaluation.floors import shuffled_pairing
from radweave.evaluation.pairs import Pair
from radweave.evaluation.records import FINDING_F1, Estimate
from radweave.evaluation.result import Evaluation
from radweave.evaluation.tables.clinical import POLICY_NAMES
from radweave.labels import Labeler

MODEL = "model"
FLOOR_NAMES = {
    "constant": "one constant report",
    FINDINGS: "constant report, best for findings",
    WORDING: "constant report, best for wording",
    "nearest_neighbour": "nearest training image",
}


def floor_pairs(pairs: Sequence[Pair], seed: int = 0) -> dict[str, list[Pair]]:
    """The floors of a system as systems of their own: those that came with every prediction, and its own reports given
    to other studies.
    """
    texts: dict[str, Sequence[str]] = {
        f"floor: {name}": [pair.floors[key] for pair in pairs]
        for key, name in FLOOR_NAMES.items()
        if all(key in pair.floors for pair in pairs)
    }
    shuffled = shuffled_pairing(pairs, seed).texts
    if shuffled is not None:
        texts["floor: its reports, given to other studies"] = shuffled
    return {
        name: [dataclasses.replace(pair, hyp=hyp, floors={}) for pair, hyp in zip(pairs, hyps, strict=True)]
        for name, hyps in texts.items()
    }


def score_systems(
    pairs: Sequence[Pair], labeler: Labeler, protocol: str = "full", *, resamples: int = 1000
) -> dict[str, Evaluation]:
    """Evaluate the generated reports, and each floor that every prediction carries as if it were the model."""
    systems = {MODEL: [pair.hyp for pair in pairs]}
    for key, name in FLOOR_NAMES.items():
        if all(key in pair.floors for pair in pairs):
            systems[name] = [pair.floors[key] for pair in pairs]
    options = Options(meteor=False, floors=False, resamples=resamples)
    return {
        name: evaluate_pairs(
            [dataclasses.replace(pair, hyp=hyp, floors={}) for pair, hyp in zip(pairs, hyps, strict=True)],
            protocol,
            labeler=labeler,
            options=options,
        )
        for name, hyps in systems.items()
    }


def finding_f1(evaluation: Evaluation) -> Estimate:
    """Micro F1 of the findings with its interval, No Finding left out, uncertain as negative; None for 0/0.

    The evaluation was made with a labeler.
    """
    assert evaluation.clinical is not None
    table = evaluation.clinical.policies[POLICY_NAMES[FINDING_F1.policy]]
    return table.groups[FINDING_F1.group][FINDING_F1.average].f1
