"""Words of change beside the report of the study before."""

from __future__ import annotations

import pytest

from radweave.core.study import LabelState, Report
from radweave.inference.explain.support import find_support
from radweave.labels import get_labeler
from radweave.workstation.result import changes_from_prior, conflicts_with_prior, read_prior_states

LABELER = get_labeler("chexpert14")
BEFORE = "There is a small pleural effusion. No pneumothorax."


@pytest.mark.parametrize(
    ("sentence", "reason"),
    [
        ("There is a new pleural effusion.", "calls Pleural Effusion new, and the prior report affirms it"),
        ("The pneumothorax is unchanged.", "calls Pneumothorax unchanged, and in the prior report it is denied"),
        ("The cardiomegaly is stable.", "calls Cardiomegaly unchanged, and in the prior report it is not mentioned"),
        ("The pneumothorax has resolved.", "calls Pneumothorax resolved, and the prior report denies it"),
        ("The pleural effusion is unchanged.", None),
        ("There is a new pneumothorax.", None),
        ("The pleural effusion has resolved.", None),
        ("No new pleural effusion.", None),
        ("There is a pleural effusion.", None),
    ],
)
def test_a_sentence_in_conflict_with_the_prior_report(sentence: str, reason: str | None) -> None:
    actual = find_support(Report(sentence, "s"), LABELER)
    reasons = conflicts_with_prior(actual.sentences[0], read_prior_states(BEFORE, LABELER))
    assert reasons == ([] if reason is None else [reason])
    assert conflicts_with_prior(actual.sentences[0], read_prior_states(None, LABELER)) == []


def test_changes_between_two_reports() -> None:
    text = "The pleural effusion is smaller. There is a pneumothorax. The lungs are clear."
    before = {
        **read_prior_states(BEFORE, LABELER), "Cardiomegaly": LabelState.POSITIVE, "Edema": LabelState.NEGATIVE,
    }  # fmt: skip
    rows = {row["name"]: row["change"] for row in changes_from_prior(find_support(Report(text, "s"), LABELER), before)}
    assert rows == {
        "Pleural Effusion": "smaller", "Pneumothorax": "new", "Cardiomegaly": "not mentioned any more",
    }  # fmt: skip
