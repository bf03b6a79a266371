"""Rendering of chat templates in the reading process: templates are programs that can loop and grow.

Jinja's sandbox keeps a template from Python's objects only: nested loops run for ever, and one multiplication makes a
text of gigabytes. The reading process limits time and memory.

The environment is the usual one of templates: trimmed blocks, loop controls, ``tojson`` without HTML escapes,
``raise_exception`` to refuse a conversation, ``generation`` around the assistant's text. One difference:
``strftime_now`` always gives the same day, since a prompt, and so a report, must not depend on the date.
"""

from __future__ import annotations

import datetime
import json
from typing import Any, Final

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from radweave.core.errors import InputError
from radweave.io import worker
from radweave.io.worker import Task

MAX_LETTERS = 100_000
"""Limit of a rendered turn; a prompt has some hundreds."""
TODAY = datetime.datetime(2024, 7, 26)
"""The default day of Llama 3's templates."""


class _Generation(Extension):
    """``{% generation %} ... {% endgeneration %}`` gives its content, in a scope of its own."""

    tags = {"generation"}  # noqa: RUF012  # jinja's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _raise(message: str) -> None:
    raise TemplateError(message)


def _json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: Any = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def render(request: dict[str, Any]) -> worker.Message:
    """``{"text": ...}`` of a template and its variables.

    Raises:
        InputError: if the template is broken, refuses the conversation, or writes too much.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _json
    environment.globals.update(raise_exception=_raise, strftime_now=TODAY.strftime)
    try:
        text = environment.from_string(request["template"]).render(**request["variables"])
    except TemplateError as error:
        raise InputError(f"the template fails with {type(error).__name__}") from None
    if len(text) > MAX_LETTERS:
        raise InputError("the template writes too much", got=f"{len(text)} letters", expected=f"at most {MAX_LETTERS}")
    return {"text": text}, {}


TASKS: Final[dict[str, Task]] = {"chat_template": render}
