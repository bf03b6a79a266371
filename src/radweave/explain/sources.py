"""Rows of tables: what each source of evidence says of each class and counts, and what changed since the prior."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from radweave.labels.changes import STATES

KEY = "sources"
"""In the evidence: class -> source -> ``probability`` and ``weight``."""
CHANGES = "changes"
"""In the evidence: class -> ``before``, what the prior's report says of it, and state -> probability."""


def source_rows(evidence: Mapping[str, Any]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """The sources, and for each class a cell per source: its probability and its weight in the stack.

    Nothing where the evidence has none, or has it in another form.
    """
    found = evidence.get(KEY)
    if not isinstance(found, Mapping) or not all(isinstance(one, Mapping) for one in found.values()):
        return [], []
    names = list(dict.fromkeys(source for one in found.values() for source in one))
    return names, [(str(name), [_cell(one.get(source)) for source in names]) for name, one in found.items()]


def added_cells(names: Sequence[str], added: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What each of these sources adds: out-of-fold average precision with it and without. Nothing of no source."""
    found = [added_text(added.get(name, {})) for name in names]
    return found if any(found) else []


def added_text(figures: Mapping[str, Any]) -> str:
    """What a source adds, from ``RunCard.sources``: over all findings together, and the mean over classes."""
    parts = []
    for name, title in (("together", "all"), ("by_class", "mean")):
        whole, rest = figures.get(name), figures.get(f"{name}_without")
        if isinstance(whole, (int, float)) and isinstance(rest, (int, float)):
            parts.append(f"{whole - rest:+.3f} {title}")
    return ", ".join(parts)


def change_rows(evidence: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """For each class what the prior's report says of it, and the probability of each state; nothing without a prior."""
    found = evidence.get(CHANGES)
    if not isinstance(found, Mapping) or not all(isinstance(one, Mapping) for one in found.values()):
        return []
    return [
        (str(name), [str(one.get("before", "")), *(_share(one.get(state)) for state in STATES)])
        for name, one in found.items()
    ]


def _share(value: Any) -> str:
    return f"{100 * value:.0f} %" if isinstance(value, (int, float)) else ""


def _cell(said: Any) -> str:
    try:
        return f"{100 * float(said['probability']):.0f} % x {float(said['weight']):.2f}"
    except (KeyError, TypeError, ValueError):
        return ""
