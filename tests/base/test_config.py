"""Records as YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from radweave.base.config import Config, from_yaml, to_yaml
from radweave.base.errors import InputError


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
