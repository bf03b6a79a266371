"""A configuration that explains itself."""

from __future__ import annotations

import pytest

from radweave.core.config import explained_yaml, parse_yaml
from radweave.methods import load_method, method_names

PRESETS = [(method, preset) for method in method_names() for preset in load_method(method).PRESETS]


@pytest.mark.parametrize(("method", "preset"), PRESETS)
def test_it_reads_back_as_the_record(method: str, preset: str) -> None:
    experiment = load_method(method).PRESETS[preset]()
    assert type(experiment).model_validate(parse_yaml(explained_yaml(experiment))) == experiment


def test_it_says_what_a_component_is_and_the_default_of_what_differs() -> None:
    lines = explained_yaml(load_method("baseline").PRESETS["tiny"]()).splitlines()
    place = lines.index("  language_model:")
    assert "# A Llama-type decoder built from nothing" in lines[place - 4]
    assert "    hidden_size: 128  # default 256" in lines
    assert "    max_positions: 2048" in lines
