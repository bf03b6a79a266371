"""Numbers that options take have bounds: one digit too many is a clear error, not a machine that hangs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from command_line import radweave
from radweave.cli import app


def options(command: Any, verb: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, inner in getattr(command, "commands", {}).items():
        yield from options(inner, (*verb, name))
    if not hasattr(command, "commands"):
        for option in command.params:
            yield f"{' '.join(verb)} {option.opts[0]}", option


def test_every_number_has_bounds() -> None:
    numbers = {
        name: option
        for name, option in options(typer.main.get_command(app))
        if getattr(getattr(option, "type_descriptor", None), "annotation", None) in (int, float)
    }
    assert {"evaluate --resamples", "generate --batch-size", "phantom --studies", "explain --threshold"} <= set(numbers)
    assert [name for name, option in numbers.items() if None in (option.min, option.max)] == []


@pytest.mark.parametrize(("number", "bound"), [("1000000000", "100000"), ("-1", "equal to 0")])
def test_too_many_resamples_are_refused_before_a_file_is_opened(number: str, bound: str, tmp_path: Path) -> None:
    done = radweave("evaluate", tmp_path / "none.jsonl", "--resamples", number)
    assert done.returncode == 2
    assert "'--resamples'" in done.stderr
    assert bound in done.stderr
