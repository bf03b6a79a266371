"""The model and the floors that came with its predictions, scored by the same program, side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from radweave.evaluation.evaluate import Options, evaluate_pairs
from radweave.evaluation.pairs import Pair
from radweave.evaluation.records import ClinicalKey, number_or_none
from radweave.evaluation.result import Evaluation
from radweave.labels import Labeler

MODEL = "model"
FLOOR_NAMES = {"constant": "one constant report", "nearest_neighbour": "nearest training image"}
FINDING_F1 = ClinicalKey("negative", "without_no_finding", "micro", "f1")


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


def finding_f1(evaluation: Evaluation) -> float | None:
    """Micro F1 of the findings, No Finding left out, uncertain as negative; None where no side has any."""
    return number_or_none(evaluation.clinical_statistics[FINDING_F1].corpus())
