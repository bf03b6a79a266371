"""Results as tables: on the terminal, in Markdown, in LaTeX. The same cells everywhere.

Runs stand side by side only where they were scored by the same protocol hash; a column never mixes two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from radweave.base.markdown import escaped
from radweave.base.terminal import plain_console

DASH = "-"


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of strings, with notes below; without columns the notes stand alone.

    The first column is left-aligned, the others right-aligned.
    """

    title: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()


def number(value: Any, digits: int = 4) -> str:
    if value is None:
        return DASH
    if isinstance(value, float):
        return f"{value:.{digits}f}"
    return str(value)


# What fits a terminal and a page that shows code; more runs than fit side by side come in several tables.
_MOST_COLUMNS = 100


def print_tables(tables: Sequence[TextTable]) -> None:
    """Print to standard output, as wide as the terminal but within 100 columns: a wider table comes in parts."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    console = plain_console()
    width = min(console.width, _MOST_COLUMNS) if console.is_terminal else _MOST_COLUMNS
    console = plain_console(width=width)
    for table in (part for whole in tables for part in in_parts(whole, width)):
        if table.columns:
            shown = Table(title=table.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
            for index, column in enumerate(table.columns):
                shown.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
            for row in table.rows:
                shown.add_row(*row)
            console.print(shown)
        else:
            console.print(table.title, style="bold")
        for note in table.notes:
            console.print(note, style="dim" if table.columns else "yellow")
        console.print()


_EDGES = 2
"""Blanks beside a cell, and beside the table."""


def in_parts(table: TextTable, width: int) -> list[TextTable]:
    """The table as it is where it fits ``width`` characters, else as several with some of its columns each.

    All begin with the first column; the notes stand below the last part. A column is never cut.
    """
    sizes = [max(map(len, column)) + _EDGES for column in zip(table.columns, *table.rows, strict=True)]
    if sum(sizes) + _EDGES <= width or len(sizes) < 3:
        return [table]
    groups: list[list[int]] = [[]]
    for place, size in enumerate(sizes[1:], start=1):
        if groups[-1] and _EDGES + sizes[0] + sum(sizes[other] for other in groups[-1]) + size > width:
            groups.append([])
        groups[-1].append(place)
    return [
        TextTable(
            f"{table.title} ({number} of {len(groups)})" if len(groups) > 1 else table.title,
            tuple(table.columns[place] for place in (0, *group)),
            tuple(tuple(row[place] for place in (0, *group)) for row in table.rows),
            table.notes if number == len(groups) else (),
        )
        for number, group in enumerate(groups, start=1)
    ]


def markdown_tables(tables: Sequence[TextTable]) -> str:
    parts = []
    for table in tables:
        parts.append(f"### {escaped(table.title)}\n")
        if table.columns:
            ruler = "| " + " | ".join(["---"] + ["---:"] * (len(table.columns) - 1)) + " |"
            head, *rows = (_markdown_row(row) for row in (table.columns, *table.rows))
            parts.append("\n".join((head, ruler, *rows)) + "\n")
        if table.notes:
            parts.append("\n".join(f"- {escaped(note)}" for note in table.notes) + "\n")
    return "\n".join(parts)


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(escaped(cell) for cell in cells) + " |"


_LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}


def latex_escape(text: str) -> str:
    return "".join(_LATEX_SPECIAL.get(character, character) for character in text)


def latex_tables(tables: Sequence[TextTable]) -> str:
    """Plain ``tabular`` environments that need no package."""
    return "\n\n".join(_latex_table(table) for table in tables) + "\n"


def _latex_table(table: TextTable) -> str:
    notes = [latex_escape(note) + r"\\" for note in table.notes]
    if not table.columns:
        return "\n".join([rf"\paragraph{{{latex_escape(table.title)}}}", *notes])
    rows = [" & ".join(latex_escape(cell) for cell in row) + r" \\" for row in (table.columns, *table.rows)]
    rows.insert(1, r"\hline")
    align = "l" + "r" * (len(table.columns) - 1)
    lines = [r"\begin{table}", rf"\caption{{{latex_escape(table.title)}}}", rf"\begin{{tabular}}{{{align}}}", r"\hline"]
    lines += [*rows, r"\hline", r"\end{tabular}", *([r"\par\footnotesize", *notes] if notes else []), r"\end{table}"]
    return "\n".join(lines)


def score_cell(score: Mapping[str, Any]) -> str:
    """``value [low, high]``, or a dash."""
    if score["value"] is None:
        return DASH
    bounds = score.get("interval")
    text = number(score["value"])
    return f"{text} [{bounds[0]:.3f}, {bounds[1]:.3f}]" if bounds else text
