"""The demo's plots: scores beside floors, and how training went. Needs the extra ``plots``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radweave.base.figures import BLUE, MARKERS, OTHERS, new_figure, png
from radweave.evaluation.records import Estimate
from radweave.runs.folder import StageFigures

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """A system's name and its scores with intervals, by metric."""

    name: str
    scores: Mapping[str, Estimate]


def score_plot(rows: Sequence[ScoreRow], titles: Mapping[str, str]) -> bytes:
    """A panel for each metric: a row per system, a dot and its 95 % interval (PNG). The first row is the model's."""
    figure = new_figure(9.5, 1.4 + 0.42 * len(rows) * math.ceil(len(titles) / 2))
    panels = figure.subplots(math.ceil(len(titles) / 2), 2, sharey=True, squeeze=False).flat
    for panel, (metric, title) in zip(panels, titles.items(), strict=False):
        for place, row in enumerate(rows):
            _dot(panel, place, row.scores[metric])
        panel.set_yticks(range(len(rows)), [row.name for row in rows])
        panel.set_xlabel(title)
        panel.set_xlim(left=0)
        panel.grid(axis="x", alpha=0.3)
    figure.axes[0].invert_yaxis()
    figure.supxlabel("dots: scores on the test studies; bars: 95 %, bootstrap over their patients", size=8)
    return png(figure)


def _dot(panel: Axes, place: int, score: Estimate) -> None:
    if score.value is None:
        return
    colour, marker = (BLUE, "o") if place == 0 else (OTHERS[(place - 1) % len(OTHERS)], MARKERS[place % len(MARKERS)])
    if score.bounds is not None:
        panel.hlines(place, *score.bounds, color=colour, linewidth=2.5)
        panel.plot(score.bounds, [place, place], "|", color=colour, markersize=9)
    panel.plot([score.value], [place], marker, color=colour, markersize=8, markeredgecolor="white", clip_on=False)


def curve_plot(stages: Mapping[str, StageFigures]) -> bytes | None:
    """Validation loss per epoch of every stage that was trained, a panel each (PNG); None where nothing was."""
    shown = {name: history for name, history in stages.items() if history.epochs}
    if not shown:
        return None
    figure = new_figure(2.6 * max(len(shown), 2), 2.8)
    for panel, (name, history) in zip(figure.subplots(1, len(shown), squeeze=False).flat, shown.items(), strict=True):
        losses = [math.nan if row["loss"] is None else float(row["loss"]) for row in history.epochs]
        epochs = range(1, len(losses) + 1)
        panel.plot(epochs, losses, "o-", color=BLUE, markersize=4)
        for epoch, loss, row in zip(epochs, losses, history.epochs, strict=True):
            if row.get("step") == history.best_step:
                panel.plot(epoch, loss, "D", color=OTHERS[0], markersize=7, label="weights kept")
        panel.set_title(f"stage {name}", size=9)
        panel.set_xlabel("epoch")
        panel.locator_params(axis="x", integer=True)
        panel.grid(alpha=0.3)
    figure.axes[0].set_ylabel("validation loss (nats)")
    named = next((found for panel in figure.axes if (found := panel.get_legend_handles_labels())[0]), None)
    if named is not None:
        figure.legend(*named, loc="outside upper right", frameon=False)
    figure.supxlabel("one run with one seed: how much another would differ is not known", size=8)
    return png(figure)
