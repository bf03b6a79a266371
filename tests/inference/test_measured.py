"""A model card has the test scores that it is given, with intervals and floors, or says that there are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import radweave
from radweave.core.errors import InputError
from radweave.data.dataset import Dataset
from radweave.inference.export import export


def test_scores_with_floors_stand_in_the_card(toy_run: Path, toy_dataset: Dataset, tmp_path: Path) -> None:
    drafts = tmp_path / "p.jsonl"
    assert radweave("generate", toy_run, "--data", toy_dataset.path, "--out", drafts).returncode == 0
    done = radweave("evaluate", drafts, "--no-meteor", "--resamples", "20", "--out", tmp_path / "scores")
    assert done.returncode == 0, done.stderr
    made = radweave("export", toy_run, tmp_path / "a", "--scores", tmp_path / "scores/evaluation.json")
    assert made.returncode == 0, made.stderr
    page = (tmp_path / "a/README.md").read_text()
    assert "| BLEU_4 |" in page
    assert "| constant_report |" in page
    assert "6 studies; 95 % intervals" in page
    assert "None were given" not in page
    assert "None were given" in (export(toy_run, tmp_path / "b") / "README.md").read_text()


def test_a_file_of_anything_else_is_refused_and_nothing_is_written(toy_run: Path, tmp_path: Path) -> None:
    for text in ("{}", '{"format": "radweave-evaluation"}', "[]", "no json"):
        (tmp_path / "e.json").write_text(text)
        with pytest.raises(InputError, match=r"e\.json"):
            export(toy_run, tmp_path / "out", scores=tmp_path / "e.json")
        assert not (tmp_path / "out").exists()
