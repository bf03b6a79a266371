"""The one way to a terminal through rich: what is printed is text, never rich's markup, emoji codes or highlights."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def plain_console(*, stderr: bool = False, width: int | None = None) -> Console:
    """A console that prints names as they are, in tables too; ``style`` of a call still colours a whole line."""
    from rich.console import Console

    # Notebooks and build servers ask for colours by the environment (FORCE_COLOR), and rich takes that for a terminal.
    terminal = None if (sys.stderr if stderr else sys.stdout).isatty() else False
    console = Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False, force_terminal=terminal)
    # In a log a sentence is one line, however long; a terminal breaks it between words.
    console.soft_wrap = stderr and not console.is_terminal
    return console
