"""One-line overrides: values, component swaps, their order, and what a typo is answered with."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import Field

from radweave.core.config import Config, fields_set, override
from radweave.core.errors import InputError
from radweave.methods.stage import StageConfig


class Small(Config):
    """A component."""

    kind: Literal["small"] = "small"
    size: int = 1


class Large(Config):
    """Its alternative."""

    kind: Literal["large"] = "large"
    size: int = 100
    depth: int = 3


class Plain(Config):
    """One record for two kinds."""

    kind: Literal["flat", "round"]


class FromFile(Config):
    """Another, which cannot be without a path."""

    kind: Literal["file"] = "file"
    path: str
    size: int = 5


class Experiment(Config):
    """A record with a swappable component."""

    part: Annotated[Small | Large | Plain | FromFile, Field(discriminator="kind")] = Small()
    rate: float = 0.1
    weights: dict[str, float] = Field(default={"report": 1.0})


def test_a_nested_value_is_replaced() -> None:
    changed = override(Experiment(), ["part.size=7", "rate=0.5"])
    assert changed == Experiment(part=Small(size=7), rate=0.5)


def test_a_bare_word_swaps_the_component_with_its_own_defaults() -> None:
    changed = override(Experiment(part=Small(size=7)), ["part=large", "part.depth=9"])
    assert changed.part == Large(size=100, depth=9)


def test_a_dict_entry_can_be_changed_but_not_added() -> None:
    assert override(Experiment(), ["weights.report=0.5"]).weights == {"report": 0.5}
    with pytest.raises(InputError, match=r"no field 'reprot'.*report"):
        override(Experiment(), ["weights.reprot=0.5"])


def test_an_open_mapping_accepts_new_names() -> None:
    """Parts that a stage does not name are frozen; the model refuses names that it does not have."""
    changed = override(StageConfig(finetune={"a": "full"}, losses={}), ["finetune.b=lora"])
    assert changed.trained == {"a": "full", "b": "lora"}
    assert override(StageConfig(finetune={}, losses={"report": 1.0}), ["losses.words=0.5"]).losses == {
        "report": 1.0,
        "words": 0.5,
    }
    with pytest.raises(InputError, match=r"no field 'loses'.*did you mean 'losses'"):
        override(StageConfig(finetune={}, losses={"report": 1.0}), ["loses.report=0.5"])


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
def test_a_typing_error_is_answered_with_the_known_names(assignment: str, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        override(Experiment(), [assignment])
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "assignments", [["part=file", "part.path=x"], ["part.path=x", "part=file"], ["part={kind: file, path: x}"]]
)
def test_a_kind_and_its_required_field_may_come_in_either_order(assignments: list[str]) -> None:
    assert override(Experiment(), assignments).part == FromFile(path="x")


def test_one_record_may_have_several_kinds() -> None:
    assert override(Experiment(), ["part=round"]).part == Plain(kind="round")


def test_a_field_set_before_a_swap_applies_to_the_new_kind() -> None:
    assert override(Experiment(), ["part.size=7", "part=large"]).part == Large(size=7)
    assert override(Experiment(part=Large()), ["part.depth=9", "part=small"]).part == Small()
    with pytest.raises(InputError, match="no field 'dept'"):
        override(Experiment(part=Large()), ["part.dept=9", "part=small"])


def test_a_component_as_a_mapping_replaces_earlier_fields() -> None:
    assert override(Experiment(), ["part.size=7", "part={kind: large, depth: 2}"]).part == Large(depth=2)


def test_the_later_assignment_wins() -> None:
    assert override(Experiment(), ["part=large", "rate=0.2", "part=small", "rate=0.3"]) == Experiment(rate=0.3)


def test_a_validation_error_names_its_assignment() -> None:
    with pytest.raises(InputError, match=r"override 'part=file'.*path.*required"):
        override(Experiment(), ["part=file", "rate=0.2"])
    with pytest.raises(InputError, match=r"override 'part\.size=big'"):
        override(Experiment(), ["rate=0.2", "part.size=big", "weights.report=1"])


def test_a_wildcard_matches_every_name() -> None:
    start = Experiment(weights={"report": 1.0, "words": 2.0})
    assert override(start, ["weights.*=0.5", "weights.words=3"]).weights == {"report": 0.5, "words": 3.0}


def test_changes_of_a_file_precede_overrides() -> None:
    changes = {"part": {"kind": "large", "depth": 8}, "rate": 0.4, "weights": {"report": 7}}
    changed = override(Experiment(), ["part.size=1", "rate=0.5"], changes)
    assert changed == Experiment(part=Large(size=1, depth=8), rate=0.5, weights={"report": 7.0})
    assert override(Experiment(), [], Experiment(part=Large(depth=8)).model_dump(mode="json")).part == Large(depth=8)
    with pytest.raises(InputError, match="no field 'dept'"):
        override(Experiment(), [], {"part": {"kind": "large", "dept": 8}})


def test_fields_set() -> None:
    assert fields_set(["part.size=7"], {"weights": {"report": 1}}) == {"part", "part.size", "weights", "weights.report"}
