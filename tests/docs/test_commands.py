"""Every command of README and the pages is one: its verb, options, methods, presets, fields and tables are there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from radweave.cli import app
from radweave.core.config import override
from radweave.core.errors import InputError
from radweave.methods import load_method
from radweave.nn.decoding import DecodingConfig
from tests.docs.page_commands import PAGES, commands

UsageError: Any = typer.BadParameter.__mro__[1]
"""Of whichever click typer has: its own, or the package."""
ROOT_COMMAND = typer.main.get_command(app)
PLACEHOLDER = "METHOD"


def parsed(words: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """The verb and the values of its options, as typer reads them; nothing runs.

    Raises:
        UsageError: for a verb or an option that does not exist, or a value that does not fit.
    """
    command: Any = ROOT_COMMAND
    context, rest, verb = command.context_class(command), list(words), ""
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, rest)
        verb = f"{verb} {name}".strip()
    return verb, command.make_context(verb, list(rest), parent=context).params


def refuse_unknown(verb: str, values: dict[str, Any]) -> None:
    """Refuse a method, preset, field or table that does not exist."""
    method = values.get("method")
    if verb in ("train", "config", "estimate") and method is not None and method != PLACEHOLDER:
        if values.get("resume") and (values.get("dataset") is None or "=" in str(values["dataset"])):
            return  # a run folder, which knows its method
        presets = load_method(method).PRESETS
        if values["preset"] not in presets:
            raise InputError("no such preset", got=values["preset"])
        override(presets[values["preset"]](), values["overrides"] or [])
    if verb == "ablate" and method not in (None, PLACEHOLDER) and values["table"] not in (None, "NAME"):
        assert values["table"] in load_method(method).TABLES, values["table"]
    if verb == "generate" and values["decoding"]:
        override(DecodingConfig(), values["decoding"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_is_one(page: Path) -> None:
    wrong = []
    for command in commands(page):
        try:
            refuse_unknown(*parsed(command.words))
        except (UsageError, InputError, AssertionError) as error:
            reason = str(error.format_message() if isinstance(error, UsageError) else error)
            if not (command.in_prose and re.search("^Missing argument|requires an argument", reason)):
                wrong.append(f"{command}: {reason}")
    assert not wrong, "\n".join(wrong)
