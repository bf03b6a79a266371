"""RadFact: supported sentences of draft and reference and their boxes, at a fake endpoint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from radweave.core.study import FindingBox
from radweave.labels import get_labeler
from radweave.metrics import Options, Pair, evaluate_pairs
from radweave.metrics.evaluate import Evaluation
from radweave.metrics.grounding import NO_BOXES
from radweave.metrics.radfact import KEYS, OF_BOXES, is_usable, radfact_prompt
from tests.metrics.judge_server import completion, serving

DRAFT = "There is a left pleural effusion. The heart is enlarged. Clear bones."
REFERENCE = "Left pleural effusion. Left basilar atelectasis."
LEFT = (0.6, 0.6, 0.9, 0.9)
BOXES = (FindingBox(label="Pleural Effusion", box=LEFT), FindingBox(label="Cardiomegaly", box=(0.3, 0.5, 0.7, 0.8)))
REF_BOXES = (
    FindingBox(label="Pleural Effusion", box=(0.4, 0.6, 0.8, 1.0)),
    FindingBox(label="Atelectasis", box=(0.7, 0.7, 0.9, 0.9)),
)
PAIR = Pair("a", DRAFT, (REFERENCE,), boxes=BOXES, ref_boxes=REF_BOXES)


def row(sentence: int, *evidence: int) -> dict[str, Any]:
    return {"sentence": sentence, "supported": bool(evidence), "evidence": list(evidence)}


def answer(draft: Sequence[Any], reference: Sequence[Any]) -> str:
    return f"Here:\n```json\n{json.dumps({'draft': draft, 'reference': reference})}\n```"


def evaluated(pairs: Sequence[Pair], text: str, *, labels: bool = True, scores: Sequence[str] = ()) -> Evaluation:
    scores = tuple(scores) or (*KEYS, *OF_BOXES)
    with serving(lambda *_: (200, {}, completion(text))) as server:
        options = Options(
            meteor=False, floors=False, resamples=0, scores=tuple(scores), judge=server.url, judge_model="m"
        )
        return evaluate_pairs(pairs, labeler=get_labeler("chexpert14") if labels else None, options=options)


def values(result: Evaluation) -> dict[str, float | None]:
    return {key: result.corpus[key].value for key in (*KEYS, *OF_BOXES)}


def test_supported_sentences_count_and_their_boxes_where_those_of_the_evidence_cover_them() -> None:
    # Two thirds of the draft's box lie in that of the reference, and three eighths of the reference's in the draft's.
    result = evaluated([PAIR], answer([row(1, 1), row(2), row(3)], [row(1, 1), row(2)]))
    assert values(result) == pytest.approx(
        {
            "RadFact_P": 1 / 3, "RadFact_R": 1 / 2,
            "RadFact_grounding_P": 1.0, "RadFact_spatial_P": 1 / 2,
            "RadFact_grounding_R": 0.0, "RadFact_spatial_R": 0.0,
        }
    )  # fmt: skip


def test_boxes_of_several_sentences_of_evidence_count_together() -> None:
    wide = replace(PAIR, boxes=(FindingBox(label="Pleural Effusion", box=(0.5, 0.2, 0.9, 1.0)),))
    alone = values(evaluated([wide], answer([row(1, 1)], [])))
    both = values(evaluated([wide], answer([row(1, 1, 2)], [])))
    assert (alone["RadFact_grounding_P"], both["RadFact_grounding_P"]) == (0.0, 0.0)
    narrow = replace(wide, boxes=(FindingBox(label="Pleural Effusion", box=(0.7, 0.7, 0.95, 0.9)),))
    assert values(evaluated([narrow], answer([row(1, 1)], [])))["RadFact_grounding_P"] == 0.0, "two fifths"
    assert values(evaluated([narrow], answer([row(1, 1, 2)], [])))["RadFact_grounding_P"] == 1.0
    nowhere = answer([row(1, 9)], [])
    assert values(evaluated([narrow], nowhere))["RadFact_grounding_P"] == 0.0, "there is no such sentence"


def test_of_several_references_the_best_value_counts_and_of_no_sentence_there_is_none() -> None:
    text = answer([row(1, 1)], [row(1, 1)])
    two = Pair("a", "Effusion.", ("Effusion. Nothing else.", "Effusion."))
    assert evaluated([two], text, scores=KEYS).corpus["RadFact_R"].value == 1.0
    empty = evaluated([Pair("a", "", ("Effusion.",))], text, scores=KEYS)
    assert empty.corpus["RadFact_P"].value is None
    assert empty.corpus["RadFact_R"].value == 1.0


def test_without_boxes_or_a_labeler_there_are_the_scores_of_sentences_alone() -> None:
    text = answer([row(1, 1)], [row(1, 1)])
    plain = evaluated([replace(PAIR, boxes=None)], text)
    assert plain.corpus["RadFact_P"].value == 1 / 3
    assert {plain.corpus[key].unavailable for key in OF_BOXES} == {NO_BOXES}
    unlabelled = evaluated([PAIR], text, labels=False)
    assert {unlabelled.corpus[key].unavailable for key in OF_BOXES} == {"unavailable: needs a labeler"}


@pytest.mark.parametrize(
    "text",
    [
        "no",
        "[1]",
        '{"draft": []}',
        '{"draft": {}, "reference": []}',
        "{",
        '{"draft": [{"sentence": 1e999, "supported": true}], "reference": []}',
    ],
)
def test_an_answer_of_another_form_gives_no_score_and_is_counted(text: str) -> None:
    assert is_usable(text) is None
    result = evaluated([PAIR], text)
    assert result.corpus["RadFact_P"].value is None
    assert "no usable answer for 1 of 1 pairs" in result.protocol.versions["radfact"]


def test_without_an_endpoint_the_rows_say_so() -> None:
    options = Options(meteor=False, floors=False, resamples=0, scores=KEYS)
    result = evaluate_pairs([PAIR], options=options)
    assert all("--judge URL --judge-model NAME" in str(result.corpus[key].unavailable) for key in KEYS)


def test_the_question_numbers_the_sentences_of_both_reports() -> None:
    text = radfact_prompt(REFERENCE, DRAFT)
    assert "Sentences of the draft:\n1. There is a left pleural effusion.\n2. The heart is enlarged.\n" in text
    assert "Sentences of the reference:\n1. Left pleural effusion.\n2. Left basilar atelectasis.\n" in text
