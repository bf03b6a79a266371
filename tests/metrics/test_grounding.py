"""Scores of boxes: against their definitions, in an evaluation, and what a pairs file may hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from radweave.core.errors import InputError
from radweave.core.study import FindingBox
from radweave.metrics import Options, Pair, evaluate_pairs
from radweave.metrics.grounding import NO_BOXES, box_statistics, matched
from radweave.metrics.pairs import read_pairs

OPTIONS = Options(meteor=False, resamples=0, floors=False)


def box(label: str, *numbers: float) -> FindingBox:
    return FindingBox(label=label, box=numbers)


def pair(name: str, boxes: list[FindingBox] | None, ref_boxes: list[FindingBox] | None) -> Pair:
    sides = (None if side is None else tuple(side) for side in (boxes, ref_boxes))
    return Pair(name, "Left effusion.", ("Left effusion.",), boxes=next(sides), ref_boxes=next(sides))


def scores(*pairs: Pair) -> dict[str, float]:
    return {key: statistic.corpus() for key, statistic in box_statistics(pairs).items()}


def test_the_same_boxes_score_one_and_another_label_zero() -> None:
    nodule, mass = box("nodule", 0, 0, 0.5, 0.5), box("mass", 0, 0, 0.5, 0.5)
    assert set(scores(pair("a", [nodule], [nodule])).values()) == {1.0}
    assert set(scores(pair("a", [mass], [nodule])).values()) == {0.0}


def test_scores_are_those_of_their_definitions() -> None:
    true = [box("nodule", 0, 0, 0.5, 0.5), box("nodule", 0.6, 0.6, 1, 1)]
    # IoU of 1/3 with the first, whose border holds its middle; the second is missed.
    drafted = [box("nodule", 0.25, 0, 0.75, 0.5)]
    result = scores(pair("a", drafted, true))
    assert result["box_IoU"] == pytest.approx((1 / 3 + 0) / 2)
    assert result["box_pointing"] == 0.5
    assert result["box_F1_30"] == pytest.approx(2 / 3)
    assert result["box_F1_50"] == 0


def test_each_box_is_matched_once() -> None:
    true = [box("a", 0, 0, 0.5, 0.5)]
    near, same = box("a", 0, 0, 0.5, 0.4), box("a", 0, 0, 0.5, 0.5)
    assert matched([near, same], true, 0.5) == 1
    assert scores(pair("a", [near, same], true))["box_F1_50"] == pytest.approx(2 / 3)


def test_studies_without_boxes_count_where_they_can() -> None:
    one = box("a", 0, 0, 0.5, 0.5)
    result = scores(pair("a", [one], [one]), pair("b", [one], []), pair("c", None, None))
    assert result["box_IoU"] == 1, "of studies with a box in the reference"
    assert result["box_F1_50"] == pytest.approx(2 / 3), "an invented box is one"
    assert scores(pair("c", None, None)) == {}


def test_an_evaluation_has_them_where_the_pairs_do() -> None:
    one = box("a", 0, 0, 0.5, 0.5)
    evaluation = evaluate_pairs([pair("a", [one], [one]), pair("b", [one], [one])], options=OPTIONS)
    assert evaluation.corpus["box_IoU"].value == 1
    assert "box_IoU" in evaluation.to_json()["definitions"]
    without = evaluate_pairs([pair("a", None, None)], options=Options(meteor=False, resamples=0, scores=("box_IoU",)))
    assert without.corpus["box_IoU"].unavailable == NO_BOXES
    assert "box_F1_30" not in without.corpus


def row(**more: Any) -> str:
    return json.dumps({"study_id": "a", "hyp": "x", "ref": "y", **more})


def test_a_pairs_file_holds_boxes(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    one = {"label": "nodule", "box": [0, 0, 0.5, 0.5]}
    file.write_text(row(boxes=[one], ref_boxes=[]), encoding="utf-8")
    (read,) = read_pairs(file).pairs
    assert (read.boxes, read.ref_boxes) == ((box("nodule", 0, 0, 0.5, 0.5),), ())
    file.write_text(row(boxes="of another program"), encoding="utf-8")
    (read,) = read_pairs(file).pairs
    assert read.boxes is None


@pytest.mark.parametrize(
    ("boxes", "message"),
    [
        ([{"label": "a", "box": [0.5, 0, 0.1, 1]}], "low to its high corner"),
        ([{"label": "a", "box": [0, 0, 0, 1, 1, 1]}], "of an image and of a volume"),
        ("no list", "not a list of boxes"),
        ([7], "boxes"),
    ],
)
def test_boxes_that_are_none_are_refused(tmp_path: Path, boxes: object, message: str) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(row(boxes=boxes, ref_boxes=[{"label": "a", "box": [0, 0, 1, 1]}]), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_pairs(file)
