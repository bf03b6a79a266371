"""Which method for which need: the best by each measure, and what cannot be told apart from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from radweave.benchmark.cells import count, duration, megabytes, rate
from radweave.benchmark.results import SetResults
from radweave.benchmark.scores import ALPHA, SystemScores, compare
from radweave.evaluation.tables.formats import DASH, TextTable

NEEDS = {
    "findings named right (micro F1)": "CE_F1",
    "rare findings too (macro F1)": "CE_F1_macro",
    "wording near the references (CIDEr)": "CIDEr",
    "long common phrases (ROUGE-L)": "ROUGE_L",
}


def choice_table(results: SetResults) -> TextTable:
    """One line per need: the best method, its figure, and the methods that its interval does not separate from it."""
    rows = [
        (*_best_by_score(need, metric, results.full), _floors(metric, results.floors)) for need, metric in NEEDS.items()
    ]
    costs = results.costs
    for need, values, shown in (
        ("least training (CPU)", {name: cost.cpu_s for name, cost in costs.items()}, duration),
        ("least memory in training", {name: cost.peak_memory for name, cost in costs.items()}, _megabytes),
        ("fewest parameters", {name: cost.parameters for name, cost in costs.items()}, count),
    ):
        rows.append((*_extreme(need, values, shown, smallest=True), DASH))
    paces = {name: cost.reports_per_s for name, cost in costs.items()}
    rows.append((*_extreme("fastest writing (reports/s)", paces, rate, smallest=False), DASH))
    notes = (
        f"not told apart: methods whose difference to the best has p >= {ALPHA} over studies, not corrected: the best"
        " is picked after the fact, so read this as a hint and the tests on the set's page as the answer",
    )
    head = ("need", "best here", "figure", "not told apart from it", "floors")
    return TextTable(f"Which for what: {results.suite.kind.title}", head, tuple(rows), notes)


def _floors(metric: str, floors: Mapping[str, SystemScores]) -> str:
    known = {name: mean for name, system in floors.items() if (mean := system.mean(metric)) is not None}
    return ", ".join(f"{name} {mean:.3f}" for name, mean in known.items()) or DASH


def _megabytes(value: float | None) -> str:
    return megabytes(None if value is None else int(value))


def _best_by_score(need: str, metric: str, systems: Mapping[str, SystemScores]) -> tuple[str, ...]:
    means = {name: mean for name, system in systems.items() if (mean := system.mean(metric)) is not None}
    if not means:
        return need, DASH, DASH, DASH
    best = max(means, key=means.__getitem__)
    others = {name: system for name, system in systems.items() if name != best and name in means}
    tested = compare(others, systems[best], (metric,))
    near = [name for name in others if (p := tested[name, metric].p_studies) is None or p >= ALPHA]
    return need, best, f"{means[best]:.3f}", ", ".join(near) or "none"


def _extreme(
    need: str, values: Mapping[str, float | None], shown: Callable[[float | None], str], *, smallest: bool
) -> tuple[str, ...]:
    known = {name: value for name, value in values.items() if value is not None}
    if len(known) < 2:
        return need, DASH, DASH, DASH
    best = (min if smallest else max)(known, key=known.__getitem__)
    rest = ", ".join(f"{name} {shown(value)}" for name, value in known.items() if name != best)
    missing = [name for name in values if name not in known]
    return (
        need,
        best,
        shown(known[best]),
        f"others: {rest}" + (f"; not measured: {', '.join(missing)}" if missing else ""),
    )
