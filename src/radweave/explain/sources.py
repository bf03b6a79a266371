"""What each source of evidence says of each class, and how much it counts, as rows of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KEY = "sources"
"""In the evidence: class -> source -> ``probability`` and ``weight``."""


def source_rows(evidence: Mapping[str, Any]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """The sources, and for each class a cell per source: its probability and its weight in the stack.

    Nothing where the evidence has none, or has it in another form.
    """
    found = evidence.get(KEY)
    if not isinstance(found, Mapping) or not all(isinstance(one, Mapping) for one in found.values()):
        return [], []
    names = list(dict.fromkeys(source for one in found.values() for source in one))
    return names, [(str(name), [_cell(one.get(source)) for source in names]) for name, one in found.items()]


def _cell(said: Any) -> str:
    try:
        return f"{100 * float(said['probability']):.0f} % x {float(said['weight']):.2f}"
    except (KeyError, TypeError, ValueError):
        return ""
