"""Configuration records as YAML."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import pytest

from radweave.core.config import Config, explained_yaml, from_yaml, parse_yaml, read_yaml, to_yaml
from radweave.core.errors import InputError
from radweave.core.json_files import read_json
from radweave.methods import load_method, method_names


class Part(Config):
    """A record inside another."""

    kind: Literal["part"] = "part"
    depth: int = 3


class Whole(Config):
    """The other."""

    part: Part = Part()
    rate: float = 0.1


def test_yaml_round_trip(tmp_path: Path) -> None:
    config = Whole(part=Part(depth=4), rate=0.25)
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(config))
    assert from_yaml(Whole, path) == config


def test_a_yaml_file_with_an_unknown_field_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("rate: 1.0\nspeed: 2\n")
    with pytest.raises(InputError, match=r"config\.yaml.*speed"):
        from_yaml(Whole, path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("&a {seed: *a}", "nested too deeply"),
        ("seed: &a [*a]", "nested too deeply"),
        ("l0: &l0 [1, 1]\n" + "".join(f"l{n}: &l{n} [{f'*l{n - 1}, ' * 9}]\n" for n in range(1, 9)), "more than"),
    ],
)
def test_endless_references_are_refused(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=f"not valid YAML: {reason}"):
        read_yaml(path)


def test_pipes_and_devices_are_not_read(tmp_path: Path) -> None:
    for read in (read_yaml, read_json):
        with pytest.raises(InputError, match=r"^/dev/null: is no plain file$"):  # else a pipe would be waited for
            read(Path("/dev/null"))
    os.mkfifo(tmp_path / "pipe")
    for read in (read_yaml, read_json):
        with pytest.raises(InputError, match="is no plain file"):
            read(tmp_path / "pipe")


PRESETS = [(method, preset) for method in method_names() for preset in load_method(method).PRESETS]


@pytest.mark.parametrize(("method", "preset"), PRESETS)
def test_explained_yaml_reads_back_as_the_record(method: str, preset: str) -> None:
    experiment = load_method(method).PRESETS[preset]()
    assert type(experiment).model_validate(parse_yaml(explained_yaml(experiment))) == experiment


def test_explained_yaml_describes_components_and_names_changed_defaults() -> None:
    lines = explained_yaml(load_method("baseline").PRESETS["tiny"]()).splitlines()
    place = lines.index("  language_model:")
    assert "# A Llama-type decoder built from nothing" in lines[place - 4]
    assert "    hidden_size: 128  # default 256" in lines
    assert "    max_positions: 2048" in lines
