"""Text from outside as Markdown that says the text and does nothing else: no links, HTML, headings or table cells.

Only what would have an effect is escaped, so that names and figures stay readable in the file itself.
"""

from __future__ import annotations

import re

from radweave.base.errors import printable

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
