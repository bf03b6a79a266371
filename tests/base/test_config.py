"""One-line overrides: values, component swaps, and what a typo is answered with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from radweave.base.config import Config, from_yaml, override, to_yaml
from radweave.base.errors import InputError
from radweave.contract.stage import StageConfig


class Small(Config):
    """A component."""

    kind: Literal["small"] = "small"
    size: int = 1


class Large(Config):
    """Its alternative."""

    kind: Literal["large"] = "large"
    size: int = 100
    depth: int = 3


class Experiment(Config):
    """A record with a swappable component."""

    part: Annotated[Small | Large, Field(discriminator="kind")] = Small()
    rate: float = 0.1
    weights: dict[str, float] = Field(default={"report": 1.0})


def test_a_value_deep_inside_is_replaced_and_the_rest_kept() -> None:
    changed = override(Experiment(), ["part.size=7", "rate=0.5"])
    assert changed == Experiment(part=Small(size=7), rate=0.5)


def test_a_bare_word_swaps_the_component_with_its_own_defaults() -> None:
    changed = override(Experiment(part=Small(size=7)), ["part=large", "part.depth=9"])
    assert changed.part == Large(size=100, depth=9)


def test_a_dict_entry_can_be_changed_but_not_invented() -> None:
    assert override(Experiment(), ["weights.report=0.5"]).weights == {"report": 0.5}
    with pytest.raises(InputError, match=r"no field 'reprot'.*report"):
        override(Experiment(), ["weights.reprot=0.5"])


def test_a_stage_may_be_told_of_a_part_that_it_does_not_name_yet() -> None:
    """Parts that a stage does not name are frozen; the model refuses names that it does not have."""
    changed = override(StageConfig(finetune={"a": "full"}, losses={}), ["finetune.b=lora"])
    assert changed.trained == {"a": "full", "b": "lora"}
    with pytest.raises(InputError, match=r"no field 'reprot'"):
        override(StageConfig(finetune={}, losses={"report": 1.0}), ["losses.reprot=0.5"])


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("part.sise=3", ["'part' has no field 'sise'", "did you mean 'size'", "one of kind, size"]),
        ("rat=3", ["the experiment has no field 'rat'", "part, rate, weights"]),
        ("part=huge", ["part", "small", "large"]),
        ("rate=fast", ["rate", "number"]),
        ("rate.slow=1", ["'rate' is a plain value"]),
        ("rate", ["key=value"]),
    ],
)
def test_a_mistake_is_named_with_what_exists_there(assignment: str, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        override(Experiment(), [assignment])
    for word in words:
        assert word in str(caught.value)


def test_yaml_round_trip(tmp_path: Path) -> None:
    config = Experiment(part=Large(depth=4), rate=0.25)
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(config))
    assert from_yaml(Experiment, path) == config


def test_a_yaml_file_with_an_unknown_field_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("rate: 1.0\nspeed: 2\n")
    with pytest.raises(InputError, match=r"config\.yaml.*speed"):
        from_yaml(Experiment, path)
