"""Configurations, weights and overrides of earlier versions, by their former names."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from radweave.core.config import from_yaml, read_yaml
from radweave.core.errors import InputError
from radweave.engine.loop import _step_seed
from radweave.methods import load_method, renamed, resolve
from radweave.methods.experiment import BuildContext
from radweave.methods.renamed import rename_keys, rename_stages

FORMER = Path(__file__).with_name("former")
"""``config.yaml`` of toy runs as commit 77539d1 wrote them."""


@pytest.fixture(autouse=True)
def _notes_anew() -> Iterator[None]:
    renamed._note.cache_clear()
    yield
    renamed._note.cache_clear()


def test_a_former_configuration_is_the_present_one() -> None:
    kind = type(load_method("kernels").PRESETS["tiny"]())
    experiment = from_yaml(kind, FORMER / "kernels.yaml")
    assert resolve("kernels", "tiny", [], FORMER / "kernels.yaml") == experiment


def test_a_configuration_with_a_part_that_is_gone_is_refused_by_name() -> None:
    kind = type(load_method("weave").PRESETS["tiny"]())
    with pytest.raises(InputError, match=r"model\.difference.*no longer has this part"):
        from_yaml(kind, FORMER / "weave.yaml")
    with pytest.raises(InputError, match=r"model\.difference.*no longer has this part"):
        resolve("weave", "tiny", [], FORMER / "weave.yaml")


def test_an_override_by_a_former_name_is_noted_once(caplog: pytest.LogCaptureFixture) -> None:
    former = ["stages.eyes.epochs=3", "model.dense.speaks=false"]
    present = [text.replace("eyes", "encoder").replace("speaks", "is_source") for text in former]
    with caplog.at_level(logging.WARNING):
        assert resolve("weave", "tiny", former) == resolve("weave", "tiny", former) == resolve("weave", "tiny", present)
    assert caplog.messages == [
        "'stages.eyes' is now called 'stages.encoder'",
        "'model.dense.speaks' is now called 'model.dense.is_source'",
    ]


def test_a_key_under_both_names_is_refused() -> None:
    values = read_yaml(FORMER / "kernels.yaml")
    values["model"]["descriptors"] = values["model"]["looks"]
    with pytest.raises(InputError, match=r"'?model\.descriptors'?.*former|former.*model\.descriptors"):
        rename_keys(values, note=False)


def test_keys_of_other_packages_are_left_alone() -> None:
    class Other(type(load_method("baseline").PRESETS["tiny"]())):  # type: ignore[misc]
        pass

    assert Other.__module__ == __name__
    assert not Other.had_former_keys()


def test_saved_weights_and_cards_have_present_names() -> None:
    tokenizer: Any = None  # nothing is written
    model = resolve("kernels", "tiny", []).model.build(BuildContext(tokenizer, 32))
    former = {name.replace("descriptors.", "looks."): value + 1 for name, value in model.state_dict().items()}
    model.load_state_dict(former, strict=True)
    assert model.state_dict()["descriptors.typical"].min() == 2
    assert rename_stages({"eyes": 3, "report": 4}) == {"encoder": 3, "report": 4}


def test_a_renamed_stage_draws_the_numbers_of_its_former_name() -> None:
    assert _step_seed(0, "encoder", 5, 0) == _step_seed(0, "eyes", 5, 0) != _step_seed(0, "report", 5, 0)
