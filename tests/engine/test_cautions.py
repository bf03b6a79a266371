"""A run that collapsed, or was hardly trained, says so at once: to who trains it, drafts with it, or gets it."""

from __future__ import annotations

from pathlib import Path

import pytest

import radweave as package
from radweave.data.dataset import Dataset
from radweave.engine.run_folder import read_card, read_card_alone
from radweave.inference.export import export
from tests.command_line import radweave
from tests.toys import TOY_OVERRIDES, TOY_SIZES, write_toy_dataset


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Enough studies of validation to judge drafts by."""
    folder = tmp_path_factory.mktemp("many")
    return write_toy_dataset(folder / "data", folder / "src", counts=(12, 20, 2))


@pytest.mark.long
def test_cautions_of_short_training_and_collapse_are_shown_everywhere(many: Dataset, tmp_path: Path) -> None:
    sizes = [*TOY_OVERRIDES, *TOY_SIZES["baseline"], "stages.report.epochs=1", "stages.report.select=loss"]
    trained = radweave("train", "baseline", many.path, "--out", tmp_path / "run", *sizes, "decoding.max_new_tokens=4")
    assert trained.returncode == 0, trained.stderr
    card = read_card(tmp_path / "run")
    assert card.cautions[0] == "barely trained: 3 updates of the stage that writes reports"
    assert any(text.startswith("drafts of 20 validation studies: no better than the floor") for text in card.cautions)
    for caution in card.cautions:
        assert f"mind: {caution}" in trained.stderr
    image = many.image_path("images/1_0.png")
    report = package.load(tmp_path / "run").report(image)
    assert set(card.cautions) <= set(report.warnings)
    drafted = radweave("generate", tmp_path / "run", "--data", many.path, "--out", tmp_path / "drafts.jsonl")
    minded = [line for line in drafted.stderr.splitlines() if line.startswith("mind: ")]
    assert minded[:-1] == [f"mind: {caution}" for caution in card.cautions]
    assert minded[-1].startswith("mind: NOT TESTED whether images look like those of training")
    page = (export(tmp_path / "run", tmp_path / "model") / "README.md").read_text()
    assert "Known when its training ended" in page
    assert "barely trained: 3 updates" in page


def test_a_card_without_cautions_has_no_field(toy_run: Path, tmp_path: Path) -> None:
    from radweave.engine.run_folder import write_card

    card = read_card_alone(toy_run).model_copy(update={"cautions": ()})
    write_card(tmp_path, card)
    assert "cautions" not in (tmp_path / "run.json").read_text()
    assert read_card_alone(tmp_path) == card


def test_a_method_without_training_has_cautions_from_its_drafts_alone(many: Dataset, tmp_path: Path) -> None:
    done = radweave("train", "kernels", many.path, "--out", tmp_path / "run", *TOY_SIZES["kernels"])
    assert done.returncode == 0, done.stderr
    assert not any("barely trained" in text for text in read_card(tmp_path / "run").cautions)
