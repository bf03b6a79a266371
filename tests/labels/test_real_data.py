"""The rule-based labelers against real labels. Bounds are the project's aims, or well below what was measured once."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from radweave.core.study import LabelState
from radweave.labels import get_labeler

CODES = {"1.0": LabelState.POSITIVE, "0.0": LabelState.NEGATIVE, "-1.0": LabelState.UNCERTAIN, "": LabelState.BLANK}


def rows(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def macro_f1(reference: list[dict[str, bool]], predicted: list[dict[str, bool]]) -> float:
    scores = []
    for name in reference[0]:
        hits = sum(a[name] and b[name] for a, b in zip(reference, predicted, strict=True))
        if any(each[name] for each in reference):
            scores.append(2 * hits / (sum(each[name] for each in reference) + sum(each[name] for each in predicted)))
    return sum(scores) / len(scores)


def positive(name: str, texts: list[str]) -> list[dict[str, bool]]:
    return [
        {label: mention.state is LabelState.POSITIVE for label, mention in labels.items()}
        for labels in get_labeler(name).label(texts)
    ]


def test_ct18_against_manual_labels(shared_data: Path) -> None:
    reports = rows(shared_data / "ct_reports" / "labelled_reports.jsonl")
    reference = [{name: value == 1 for name, value in row["labels"].items()} for row in reports]
    assert macro_f1(reference, positive("ct18", [row["report"] for row in reports])) >= 0.85


def test_nih14_against_manual_labels(shared_data: Path) -> None:
    studies = [row for row in rows(shared_data / "iu_xray" / "manifest.jsonl") if row["labels_nih14_manual"]]
    classes = get_labeler("nih14").classes
    reference = [{name: row["labels_nih14_manual"][name] == 1 for name in classes} for row in studies]
    texts = [" ".join(filter(None, (row["findings"], row["impression"]))) for row in studies]
    assert macro_f1(reference, positive("nih14", texts)) >= 0.80


def test_chexpert14_against_the_published_labeler(shared_data: Path) -> None:
    """Same state for a study and class. Its raw positives hold many faults, so no high bound on F1 makes sense."""
    studies = [row for row in rows(shared_data / "iu_xray" / "manifest.jsonl") if row["labels_chexpert14_auto"]]
    codes = {1: LabelState.POSITIVE, 0: LabelState.NEGATIVE, -1: LabelState.UNCERTAIN, None: LabelState.BLANK}
    predicted = get_labeler("chexpert14").label([row["findings"] for row in studies])
    pairs = [
        (codes[code], labels[name].state)
        for row, labels in zip(studies, predicted, strict=True)
        for name, code in row["labels_chexpert14_auto"].items()
    ]
    assert sum(reference is state for reference, state in pairs) / len(pairs) >= 0.95


@pytest.mark.parametrize("source", ["chexpert_labeler_labeled_reports.csv", "chexbert_labeled_reports.csv"])
def test_chexpert14_on_the_published_examples(shared_data: Path, source: str) -> None:
    with (shared_data / "eval_oracles" / source).open(encoding="utf-8", newline="") as file:
        examples = list(csv.DictReader(file))
    column = next(iter(examples[0]))
    for example, labels in zip(
        examples, get_labeler("chexpert14").label([row[column] for row in examples]), strict=True
    ):
        expected = {name: CODES[example[name]] for name in labels}
        assert {name: mention.state for name, mention in labels.items()} == expected
