"""Figures as pictures: seeds as dots beside the floors, and quality against cost. Needs the extra ``plots``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from radweave.base.figures import BLUE, GREY, OTHERS, new_figure, png
from radweave.benchmark.results import SetResults
from radweave.benchmark.scores import SystemScores

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS = {
    "CE_F1": "findings F1, micro (0 to 1)",
    "CE_F1_macro": "findings F1, macro (0 to 1)",
    "CIDEr": "CIDEr (0 to 10)",
    "BLEU_4": "BLEU-4 (0 to 1)",
}
# Floors differ in their dashes too.
_DASHES = ("--", ":", "-.", (0, (1, 1)))
_NOTICE = "Research software, not a medical device."


def score_plot(results: SetResults) -> bytes:
    """Four panels: a row per method, a dot per seed, a bar for the interval over studies, a line per floor (PNG)."""
    figure = new_figure(10, 2.6 + 0.62 * len(results.full))
    for panel, (metric, title) in zip(figure.subplots(2, 2).flat, PANELS.items(), strict=True):
        _score_panel(panel, results.full, results.floors, metric)
        panel.set_xlabel(title)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    figure.supxlabel(f"{_source(results)}: dots are training seeds, bars 95 % over test studies. {_NOTICE}", size=7)
    return png(figure)


def _score_panel(
    panel: Axes, systems: Mapping[str, SystemScores], floors: Mapping[str, SystemScores], metric: str
) -> None:
    for place, (name, system) in enumerate(floors.items()):
        mean = system.mean(metric)
        if mean is not None:
            panel.axvline(mean, **_floor(place, name))
    for row, system in enumerate(systems.values()):
        interval, mean = system.interval(metric), system.mean(metric)
        if interval is not None:
            panel.hlines(row, *interval, color=GREY, linewidth=3)
        values = [value for value in system.values.get(metric, ()) if value is not None]
        panel.plot(values, [row] * len(values), "o", color=BLUE, markeredgecolor="white")
        if mean is not None:
            panel.vlines(mean, row - 0.3, row + 0.3, color="black")
    panel.set_yticks(range(len(systems)), list(systems))
    panel.invert_yaxis()
    panel.grid(axis="x", alpha=0.3)


def cost_plot(results: SetResults) -> bytes | None:
    """Findings F1 against the cost of training (PNG); None where the methods have no measure of it in common."""
    scores = {name: mean for name, system in results.full.items() if (mean := system.mean("CE_F1")) is not None}
    found = _common_cost(results, list(scores))
    if found is None:
        return None
    title, minutes = found
    figure = new_figure(8, 4.5)
    panel = figure.subplots()
    for place, (name, system) in enumerate(results.floors.items()):
        mean = system.mean("CE_F1")
        if mean is not None:
            panel.axhline(mean, **_floor(place, name))
    for name, score in scores.items():
        interval = results.full[name].interval("CE_F1")
        if interval is not None:
            panel.vlines(minutes[name], *interval, color=GREY, linewidth=2)
        panel.plot(minutes[name], score, "o", color=BLUE)
        panel.annotate(name, (minutes[name], score), xytext=(7, 4), textcoords="offset points")
    panel.set_xlabel(f"{title}, one seed (minutes)")
    panel.set_ylabel(PANELS["CE_F1"])
    panel.margins(x=0.15)
    panel.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    figure.supxlabel(f"{_source(results)}: means over seeds, bars 95 % over test studies. {_NOTICE}", size=7)
    return png(figure)


def _common_cost(results: SetResults, methods: Sequence[str]) -> tuple[str, dict[str, float]] | None:
    """The first measure of training time that all methods have, in minutes."""
    measures = {
        "CPU time of training": {method: results.cost_of(method).cpu_s for method in methods},
        "time of training": {method: results.cost_of(method).train_s for method in methods},
        "time of the updates": {method: results.cost_of(method).updates_s for method in methods},
    }
    for title, seconds in measures.items():
        known = {method: value / 60 for method, value in seconds.items() if value is not None}
        if len(known) == len(methods) and len(known) > 1:
            return title, known
    return None


def _source(results: SetResults) -> str:
    return f"{results.suite.kind.title}, data {results.record['dataset']['fingerprint'][:12]}"


def _floor(place: int, name: str) -> dict[str, Any]:
    """How the line of a floor is drawn and called."""
    return {"color": OTHERS[place % 4], "linestyle": _DASHES[place % 4], "label": f"floor: {name}"}
