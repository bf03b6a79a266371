"""What a report says of change, against phantoms whose change is known, and what two reports leave open."""

from __future__ import annotations

import numpy as np
import pytest

from radweave.labels import get_labeler
from radweave.labels.comparisons import GOES_ON, PRESENT, STATES, possible, stated_changes
from radweave.phantom.report import write_report
from radweave.phantom.study import course_of, slot_of

LABELER = get_labeler("chexpert14")
NOTHING: frozenset[str] = frozenset()


@pytest.mark.parametrize(
    ("text", "read_changes"),
    [
        ("Small left pleural effusion, larger than before.", {"Pleural Effusion": {"worse"}}),
        ("There is a new left pneumothorax.", {"Pneumothorax": {"new"}}),
        ("Cardiomegaly is unchanged.", {"Cardiomegaly": {"unchanged"}}),
        ("The effusion has decreased since the prior study.", {"Pleural Effusion": {"improved"}}),
        ("The right pneumothorax has resolved.", {"Pneumothorax": {"resolved"}}),
        ("No new effusion.", {}),
        ("The heart is enlarged. There is a small effusion.", {}),
        ("The patient is clinically stable. There is a small effusion.", {}),
    ],
)
def test_changes_are_stated_of_affirmed_classes_and_resolution_of_denied_ones(
    text: str, read_changes: dict[str, set[str]]
) -> None:
    (result,) = stated_changes([text], LABELER)
    assert {name: set(states) for name, states in result.items()} == read_changes


def test_phantom_reports_state_the_changes_of_their_findings() -> None:
    states = {"new": "new", "increased": "worse", "decreased": "improved", "unchanged": "unchanged"}
    states["resolved"] = "resolved"
    texts, truths = [], []
    for index in range(240):
        slot = slot_of(3, index)
        if slot.visit:
            _, findings = course_of(3, slot, "balanced")
            texts.append(write_report(findings, np.random.default_rng([3, index]), has_prior=True).findings)
            # One of a class alone: of two the report may say two things. Devices are said to be there or removed.
            names = [one.name for one in findings]
            truths.append(
                {
                    one.name: states[one.trend]
                    for one in findings
                    if names.count(one.name) == 1 and one.certainty == "definite" and one.name != "Support Devices"
                }
            )
    read = stated_changes(texts, LABELER)
    pairs = [
        (truth[name], read_changes.get(name, NOTHING))
        for truth, read_changes in zip(truths, read, strict=True)
        for name in truth
    ]
    assert len(pairs) > 100
    # Pneumonia is also an opacity, of which another sentence may say otherwise.
    assert sum(state in read_changes for state, read_changes in pairs) / len(pairs) > 0.97
    assert sum({state} == set(read_changes) for state, read_changes in pairs) / len(pairs) > 0.9


def test_stated_change_decides_else_affirmed_classes() -> None:
    assert possible(True, True, frozenset({"worse"})) == {"worse"}
    assert possible(False, True, frozenset({"unchanged"})) == {"unchanged"}, "said, whatever the prior's report has"
    assert possible(True, True, frozenset()) == GOES_ON
    assert possible(False, True, frozenset()) == {"new"}
    assert possible(None, True, frozenset()) == PRESENT
    assert possible(True, False, frozenset()) == {"resolved"}
    assert possible(False, False, frozenset({"resolved"})) == {"resolved"}
    assert possible(False, False, frozenset()) == {"absent"}
    assert possible(None, False, frozenset()) == {"absent", "resolved"}
    assert {*STATES} == {*PRESENT, "absent", "resolved"}
