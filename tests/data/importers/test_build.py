"""The text that a study is learned from."""

from __future__ import annotations

import pytest

from radweave.base.study import TargetText
from radweave.data.cleaning import cleaner
from radweave.data.importers.build import target_text
from radweave.data.importers.source import RawStudy


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
def test_every_section_asked_for_has_a_text(
    target: TargetText, findings: str | None, impression: str | None, expected: str | None
) -> None:
    study = RawStudy("s", "p", findings=findings, impression=impression)
    assert target_text(study, target, cleaner("none")) == expected


def test_a_report_without_sections_is_taken_for_any_target() -> None:
    assert target_text(RawStudy("s", "p", report="Clear lungs."), "findings+impression", cleaner("none")) == (
        "Clear lungs."
    )
