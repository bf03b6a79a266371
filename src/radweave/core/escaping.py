"""Untrusted text as Markdown, as CSV, and on the terminal.

Markdown escapes only characters with an effect, so that names and figures stay readable in the file itself.
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from radweave.core.errors import printable

if TYPE_CHECKING:
    from rich.console import Console

_INLINE = re.compile(
    r"[\\`*|~]"  # escapes, code, emphasis, cells
    r"|(?<!\w)_|_(?!\w)"  # emphasis; inside a word an underscore is literal
    r"|<(?=[A-Za-z/!?])|&(?=[#\w])"  # HTML
    r"|(?<=\])[(:\[]"  # links
    r"|(?<=:)/(?=/)|(?<=www)\.",  # addresses, which become links by themselves
    re.IGNORECASE,
)
_BLOCK = re.compile(r"^(#+|[>+-]|=+$|-{2,}$|\d+(?=[.)]\s))(?=\S*\s|$)")
_PLAIN = re.compile(r"[\w ./:+-]*", re.ASCII)


class Markdown(str):
    """Markdown, not to be escaped again."""


def escaped(text: str) -> Markdown:
    """One line of text as Markdown."""
    line = printable(re.sub(r"\s+", " ", text))
    line = _INLINE.sub(lambda match: f"\\{match[0]}", line)
    if line == "-" or not _BLOCK.match(line):
        return Markdown(line)
    # A number that starts a list is escaped at its point, everything else at its first character.
    return Markdown(re.sub(r"^(\d+)", r"\1\\", line) if line[0].isdigit() else f"\\{line}")


def code(text: str) -> Markdown:
    """One line of text as inline code."""
    line = printable(re.sub(r"\s+", " ", text))
    if _PLAIN.fullmatch(line):
        return Markdown(f"`{line}`")
    return Markdown("<code>" + re.sub(r"[^\w ]", lambda match: f"&#{ord(match[0])};", line) + "</code>")


_FORMULA = re.compile(r"\s*[=+\-@\t\r＝＋－＠]")
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")


def csv_line(cells: Sequence[str]) -> str:
    """One CSV record; an apostrophe before formulas keeps spreadsheets from running them."""
    harmless = [f"'{cell}" if _FORMULA.match(cell) and not _NUMBER.fullmatch(cell) else cell for cell in cells]
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(harmless)
    return buffer.getvalue()


def plain_console(*, stderr: bool = False, width: int | None = None) -> Console:
    """A rich console without markup, emoji codes or highlights; ``style`` of a call colours a whole line."""
    from rich.console import Console

    # Notebooks and build servers ask for colours by the environment (FORCE_COLOR), and rich takes that for a terminal.
    terminal = None if (sys.stderr if stderr else sys.stdout).isatty() else False
    console = Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False, force_terminal=terminal)
    # In a log a sentence is one line, however long; a terminal breaks it between words.
    console.soft_wrap = stderr and not console.is_terminal
    return console
