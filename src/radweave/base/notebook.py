"""What a notebook shows of our objects: plain HTML in which every text is escaped, and the notice below."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from radweave.base.study import RESEARCH_ONLY

_SMALL = 'style="font-size:smaller;opacity:.75"'


def shown(title: str, *parts: str, warnings: Sequence[str] = ()) -> str:
    """A titled box with parts that are HTML already, with warnings and the notice that ends it."""
    marked = "".join(f"<li>{escape(text)}</li>" for text in warnings)
    return "".join(
        (
            '<div style="border-left:3px solid #0072B2;padding-left:.8em;max-width:60em">',
            f"<p><b>{escape(title)}</b></p>",
            *parts,
            f"<p>Mind:</p><ul>{marked}</ul>" if marked else "",
            f"<p {_SMALL}>{escape(RESEARCH_ONLY)}</p></div>",
        )
    )


def paragraph(text: str) -> str:
    """A paragraph that keeps the line breaks of a text."""
    return f'<p style="white-space:pre-wrap">{escape(text)}</p>'


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; its first column is text, the others are numbers."""
    head = "".join(f'<th style="text-align:{_side(place)}">{escape(name)}</th>' for place, name in enumerate(columns))
    lines = (
        "".join(f'<td style="text-align:{_side(place)}">{escape(cell)}</td>' for place, cell in enumerate(row))
        for row in rows
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _side(place: int) -> str:
    return "left" if place == 0 else "right"
