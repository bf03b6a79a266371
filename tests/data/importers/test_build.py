"""The text that a study is learned from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from radweave.core.study import TargetText
from radweave.data.importers.build import _stored, target_text
from radweave.data.importers.source import ImportOptions, RawStudy
from radweave.data.targets import Sections, cleaner


@pytest.mark.parametrize(
    ("target", "findings", "impression", "expected"),
    [
        ("findings+impression", "Clear lungs.", "Normal.", "Clear lungs. Normal."),
        ("findings+impression", "Clear lungs.", None, None),
        ("findings+impression", " ", "Normal.", None),
        ("findings", "Clear lungs.", None, "Clear lungs."),
        ("impression", "Clear lungs.", None, None),
    ],
)
def test_every_requested_section_has_a_text(
    target: TargetText, findings: str | None, impression: str | None, expected: str | None
) -> None:
    study = RawStudy("s", "p", sections=Sections(findings, impression))
    assert target_text(study, target, cleaner("none")) == expected


def test_a_report_without_sections_is_taken_for_any_target() -> None:
    assert target_text(RawStudy("s", "p", report="Clear lungs."), "findings+impression", cleaner("none")) == (
        "Clear lungs."
    )


def test_the_card_holds_no_path_of_any_option() -> None:
    """Every option that is a path, so that one more is not forgotten; the rest stands in the card."""
    paths = [name for name, field in ImportOptions.model_fields.items() if "Path" in str(field.annotation)]
    assert len(paths) >= 3
    stored = _stored(ImportOptions.model_validate({name: Path(f"/somebody/{name}.json") for name in paths}))
    assert "somebody" not in json.dumps(stored)
    assert stored["annotation"] == "annotation.json"
    assert _stored(ImportOptions(seed=3)) == {**_stored(ImportOptions()), "seed": 3}
    assert _stored(ImportOptions(link=True)) == _stored(ImportOptions(link=False)), "links or copies: the same data"
