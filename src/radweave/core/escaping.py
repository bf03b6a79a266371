"""Text from outside as Markdown that says the text and does nothing else: no links, HTML, headings or table cells.

Only what would have an effect is escaped, so that names and figures stay readable in the file itself.
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
    r"|(?<!\w)_|_(?!\w)"  # emphasis; inside a word an underline is one
    r"|<(?=[A-Za-z/!?])|&(?=[#\w])"  # HTML
    r"|(?<=\])[(:\[]"  # links
    r"|(?<=:)/(?=/)|(?<=www)\.",  # addresses, which become links by themselves
    re.IGNORECASE,
)
_BLOCK = re.compile(r"^(#+|[>+-]|=+$|-{2,}$|\d+(?=[.)]\s))(?=\S*\s|$)")
_PLAIN = re.compile(r"[\w ./:+-]*", re.ASCII)


class Markdown(str):
    """Text that is Markdown already."""


def escaped(text: str) -> Markdown:
    """One line of text as Markdown."""
    line = printable(re.sub(r"\s+", " ", text))
    line = _INLINE.sub(lambda found: f"\\{found[0]}", line)
    if line == "-" or not _BLOCK.match(line):
        return Markdown(line)
    # A number that starts a list is escaped at its point, everything else at its first character.
    return Markdown(re.sub(r"^(\d+)", r"\1\\", line) if line[0].isdigit() else f"\\{line}")


def code(text: str) -> Markdown:
    """One line of text in the type of code."""
    line = printable(re.sub(r"\s+", " ", text))
    if _PLAIN.fullmatch(line):
        return Markdown(f"`{line}`")
    return Markdown("<code>" + re.sub(r"[^\w ]", lambda found: f"&#{ord(found[0])};", line) + "</code>")


# CSV that a spreadsheet shows as text: no cell of it is run as a formula.


_FORMULA = re.compile(r"\s*[=+\-@\t\r＝＋－＠]")
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")


def csv_line(cells: Sequence[str]) -> str:
    """One record. A cell that a spreadsheet would take for a formula gets an apostrophe in front; numbers stay."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow([_harmless(cell) for cell in cells])
    return buffer.getvalue()


def _harmless(cell: str) -> str:
    return f"'{cell}" if _FORMULA.match(cell) and not _NUMBER.fullmatch(cell) else cell


# The one way to a terminal through rich: what is printed is text, never rich's markup, emoji codes or highlights.


def plain_console(*, stderr: bool = False, width: int | None = None) -> Console:
    """A console that prints names as they are, in tables too; ``style`` of a call still colours a whole line."""
    from rich.console import Console

    # Notebooks and build servers ask for colours by the environment (FORCE_COLOR), and rich takes that for a terminal.
    terminal = None if (sys.stderr if stderr else sys.stdout).isatty() else False
    console = Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False, force_terminal=terminal)
    # In a log a sentence is one line, however long; a terminal breaks it between words.
    console.soft_wrap = stderr and not console.is_terminal
    return console
