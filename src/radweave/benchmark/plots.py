"""Figures as pictures, from the record of a set (``benchmark.json``): seeds and floors, and quality against cost.

Whatever is drawn stands in the record, so that pictures can be drawn anew without the runs. Names stand beside what
they name, not in a legend: floors are rows like the methods, with their own intervals. Needs the extra ``plots``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

from radweave.base.figures import BLUE, GREY, MARKERS, OTHERS, new_figure, png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS = {
    "CE_F1": "findings F1, micro (0 to 1)",
    "CE_F1_macro": "findings F1, macro (0 to 1)",
    "CIDEr": "CIDEr (0 to 10)",
    "BLEU_4": "BLEU-4 (0 to 1)",
}
_NOTICE = "Research software, not a medical device."
_LABEL_CHARS = 36
Scores = Mapping[str, Mapping[str, Any]]
"""By metric: ``values`` of the seeds, their ``mean``, and the ``interval`` of that over studies."""


def score_plot(record: Mapping[str, Any]) -> bytes:
    """Four panels: a row per method and per floor, a dot per seed, a bar for the interval over studies (PNG)."""
    methods, floors = _systems(record)
    rows = [*methods, *floors]
    figure = new_figure(10, 1.8 + 0.56 * len(rows))
    panels = figure.subplots(2, 2, sharey=True)
    for panel, (metric, title) in zip(panels.flat, PANELS.items(), strict=True):
        _score_panel(panel, methods, floors, metric)
        panel.set_xlabel(title)
    labels = [*methods, *(f"floor: {name}" for name in floors)]
    panels.flat[0].set_yticks(range(len(rows)), [fill(label, _LABEL_CHARS) for label in labels])
    for panel in panels[:, 0]:
        panel.tick_params(axis="y", labelsize=7.5)
    panels.flat[0].invert_yaxis()
    figure.supxlabel(
        f"{_source(record)}. Blue dots: training seeds; black ticks: their means; other marks: floors; bars: 95 % over"
        f" test studies.\nDashed line: the best floor of a panel. {_NOTICE}",
        size=7,
    )
    return png(figure)


def _score_panel(panel: Axes, methods: Mapping[str, Scores], floors: Mapping[str, Scores], metric: str) -> None:
    best = _best(floors, metric)
    if best is not None:
        panel.axvline(best[1], color="black", linestyle="--", linewidth=0.8, zorder=0)
    if floors:
        panel.axhspan(len(methods) - 0.5, len(methods) + len(floors) - 0.5, color=GREY, alpha=0.1, linewidth=0)
    for row, scores in enumerate([*methods.values(), *floors.values()]):
        found = scores.get(metric)
        if found is None or found["mean"] is None:
            continue
        colour, marker = (BLUE, "o") if row < len(methods) else _look(row - len(methods))
        if found["interval"] is not None:
            panel.hlines(row, *found["interval"], color=GREY if row < len(methods) else colour, linewidth=3)
        values = [value for value in found["values"] if value is not None]
        panel.plot(
            values,
            [row] * len(values),
            marker,
            color=colour,
            markeredgecolor="white",
            markersize=7,
            clip_on=False,
            zorder=3,
        )
        if row < len(methods):
            panel.vlines(found["mean"], row - 0.3, row + 0.3, color="black")
    panel.grid(axis="x", alpha=0.3)


def cost_plot(record: Mapping[str, Any]) -> bytes | None:
    """Findings F1 against the cost of training (PNG); None where the methods have no measure of it in common."""
    methods, floors = _systems(record)
    known = {name: scores["CE_F1"] for name, scores in methods.items() if scores["CE_F1"]["mean"] is not None}
    found = _common_cost(record, list(known))
    if found is None:
        return None
    title, minutes = found
    figure = new_figure(8, 4.5)
    panel = figure.subplots()
    best = _best(floors, "CE_F1")
    if best is not None:
        name, value, interval = best
        panel.axhline(value, color=OTHERS[0], linestyle="--")
        if interval is not None:
            panel.axhspan(*interval, color=OTHERS[0], alpha=0.12, linewidth=0)
        panel.annotate(f"best floor: {name}", (0.01, value), xycoords=("axes fraction", "data"), xytext=(0, 3),
                       textcoords="offset points", size=8)  # fmt: skip
    for name, score in known.items():
        if score["interval"] is not None:
            panel.vlines(minutes[name], *score["interval"], color=GREY, linewidth=2)
        panel.plot(minutes[name], score["mean"], "o", color=BLUE)
        panel.annotate(name, (minutes[name], score["mean"]), xytext=(7, 4), textcoords="offset points", size=9)
    panel.set_xlabel(f"{title}, one seed (minutes)")
    panel.set_ylabel(PANELS["CE_F1"])
    panel.margins(x=0.25)
    panel.grid(alpha=0.3)
    figure.supxlabel(f"{_source(record)}: means over seeds; bars and band: 95 % over test studies. {_NOTICE}", size=7)
    return png(figure)


def _systems(record: Mapping[str, Any]) -> tuple[dict[str, Scores], dict[str, Scores]]:
    """The methods and the floors under the full protocol: only a method's drafts have evidence."""
    found: Mapping[str, Scores] = record["scores"]["full"]
    methods = {name: scores for name, scores in found.items() if name in record["evidence"]}
    return methods, {name: scores for name, scores in found.items() if name not in methods}


def _best(floors: Mapping[str, Scores], metric: str) -> tuple[str, float, Sequence[float] | None] | None:
    """Name, mean and interval of the floor that scores highest."""
    known = {name: scores[metric] for name, scores in floors.items() if scores.get(metric, {}).get("mean") is not None}
    if not known:
        return None
    name = max(known, key=lambda one: float(known[one]["mean"]))
    return name, float(known[name]["mean"]), known[name]["interval"]


def _common_cost(record: Mapping[str, Any], methods: Sequence[str]) -> tuple[str, dict[str, float]] | None:
    """The first measure of training time that all methods have, in minutes."""
    trained = record.get("trained", {})
    costs = {method: record["costs"].get(trained.get(method, method), {}) for method in methods}
    measures = {"CPU time of training": "cpu_s", "time of training": "train_s", "time of the updates": "updates_s"}
    for title, key in measures.items():
        known = {method: cost[key] / 60 for method, cost in costs.items() if cost.get(key) is not None}
        if len(known) == len(methods) and len(known) > 1:
            return title, known
    return None


def _source(record: Mapping[str, Any]) -> str:
    return f"{record['title']}, data {record['dataset']['fingerprint'][:12]}"


def _look(place: int) -> tuple[str, str]:
    """Colour and mark of a floor: no two of the first twenty are alike."""
    return OTHERS[place % len(OTHERS)], MARKERS[1:][place % (len(MARKERS) - 1)]
