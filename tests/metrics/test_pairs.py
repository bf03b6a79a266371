"""A line of a pairs file: every field arrives as what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from radweave.core.study import LabelState
from radweave.metrics import Pair, read_pairs
from radweave.metrics.pairs import Probabilities

ROW = {
    "study_id": "s1",
    "hyp": "Lungs clear.",
    "refs": ["The lungs are clear.", "Clear."],
    "floors": {"constant": "Normal.", "nearest_neighbour": None},
    "patient_id": "p1",
    "has_prior": False,
    "labels": {"Edema": 1, "Fracture": 0, "Pneumonia": -1, "Atelectasis": None, "Lung Lesion": "uncertain"},
    "modality": "ct",
    "evidence": {"comparisons_removed": [{"was": "Stable.", "now": None}, {"was": "New mass.", "now": "Mass."}]},
}
PAIR = Pair(
    "s1",
    "Lungs clear.",
    ("The lungs are clear.", "Clear."),
    floors={"constant": "Normal."},
    patient_id="p1",
    has_prior=False,
    labels={
        "Edema": LabelState.POSITIVE,
        "Fracture": LabelState.NEGATIVE,
        "Pneumonia": LabelState.UNCERTAIN,
        "Atelectasis": LabelState.BLANK,
        "Lung Lesion": LabelState.UNCERTAIN,
    },
    modality="ct",
    comparisons_removed=2,
)


# Another set of classes in each field.
EVIDENCE = {
    "class_probabilities": {"Edema": 0.2, "Fracture": 0.4, "Pneumonia": None, "No Finding": 1},
    "calibration": {
        "split": "val",
        "thresholds": {"Edema": 0.3, "No Finding": 0.6},
        "alike": {"Edema": [3, 9], "Fracture": [1, 8]},
        "uncalibrated": {"Pneumonia": 2},
    },
}
PROBABILITIES = Probabilities(
    {"Edema": 0.2, "Fracture": 0.4, "No Finding": 1.0},
    {"Edema": 0.3, "No Finding": 0.6},
    frozenset({"Edema", "Fracture"}),
    "val",
)


@pytest.mark.parametrize(
    ("row", "pair"),
    [
        (ROW, PAIR),
        ({"study_id": "a", "hyp": "x", "ref": "y", "has_prior": True}, Pair("a", "x", ("y",), has_prior=True)),
        (
            {"study_id": "a", "hyp": "x", "ref": "y", "evidence": EVIDENCE},
            Pair("a", "x", ("y",), probabilities=PROBABILITIES),
        ),
    ],
)
def test_a_line_becomes_a_pair(tmp_path: Path, row: dict[str, Any], pair: Pair) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps(row) + "\n")
    assert read_pairs(path).pairs == (pair,)
