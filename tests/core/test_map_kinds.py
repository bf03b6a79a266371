"""Captions of maps: what they show, in which unit, and what they do not."""

from __future__ import annotations

import pytest

from radweave.core.map_kinds import KEY, KINDS, UNKNOWN, kind_of


@pytest.mark.parametrize("name", [*KINDS, "unknown"])
def test_every_caption_says_what_in_which_unit_and_what_not(name: str) -> None:
    kind = KINDS.get(name, UNKNOWN)
    assert "Unit:" in kind.caption("Edema")
    assert "not the outline of a lesion" in kind.caution("Edema")
    assert "lesion boundary" in kind.note
    assert "{" not in kind.caption("Edema") + kind.caution("Edema") + kind.note
    if kind.of_class:
        assert "Edema" in kind.caption("Edema")
        assert "that the finding is there" in kind.note
    assert kind.adds_up == ("add up to 1" in kind.unit)


def test_captions_differ_as_the_maps_do() -> None:
    assert len({kind.caption("Edema") for kind in KINDS.values()}) == len(KINDS)
    assert "no class" in KINDS["difference"].caution("difference")
    assert "same for every class" in KINDS["eigencam"].caution("Edema")


def test_evidence_that_states_no_kind_or_an_unknown_one_is_not_dressed_up() -> None:
    for evidence in ({}, {KEY: None}, {KEY: "a new one"}, {KEY: ["gradcam"]}):
        assert kind_of(evidence) is UNKNOWN
    assert kind_of({KEY: "difference"}) is KINDS["difference"]
