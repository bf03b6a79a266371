"""Captions of maps: what they show, in which unit, and what they do not."""

from __future__ import annotations

import pytest

from radweave.core.map_kinds import KEY, KINDS, UNKNOWN, kind_of


@pytest.mark.parametrize("name", [*KINDS, "unknown"])
def test_every_kind_has_content_unit_and_caution(name: str) -> None:
    kind = KINDS.get(name, UNKNOWN)
    assert "Unit:" in kind.caption("Edema")
    assert "not the outline of a lesion" in kind.caution("Edema")
    assert "lesion boundary" in kind.note
    assert "{" not in kind.caption("Edema") + kind.caution("Edema") + kind.note
    if kind.of_class:
        assert "Edema" in kind.caption("Edema")
        assert "that the finding is there" in kind.note
    assert kind.adds_up == ("add up to 1" in kind.unit)


def test_captions_are_distinct() -> None:
    assert len({kind.caption("Edema") for kind in KINDS.values()}) == len(KINDS)
    assert "no class" in KINDS["difference"].caution("difference")
    assert "same for every class" in KINDS["eigencam"].caution("Edema")


def test_evidence_without_a_known_kind_is_unknown() -> None:
    for evidence in ({}, {KEY: None}, {KEY: "a new one"}, {KEY: ["gradcam"]}):
        assert kind_of(evidence) is UNKNOWN
    assert kind_of({KEY: "difference"}) is KINDS["difference"]
