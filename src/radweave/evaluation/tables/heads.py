"""The table of what drafts' probabilities are worth, and its picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from radweave.base.figures import BLUE, GREY, new_figure, png
from radweave.evaluation.statistics import wilson_interval
from radweave.evaluation.tables.formats import DASH, TextTable, number, score_cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NOTICE = "Research software, not a medical device."
_SPLITS = {"train": "training", "val": "validation"}


def heads_table(result: Mapping[str, Any], suffix: str) -> TextTable:
    """Ranking and calibration by class; means and F1 stand below."""
    heads = result["heads"]
    rows = [
        (
            name,
            str(one["positives"]),
            _cell(one["auroc"]),
            _cell(one["average_precision"]),
            number(one["calibration_error"], 3) if one["calibrated"] else "not calibrated",
            number(one["threshold"], 3),
        )
        for name, one in heads["classes"].items()
    ]
    split = _SPLITS.get(heads["calibrated_on"] or "")
    notes = (
        f"micro average precision of findings {_cell(heads['micro_average_precision'])}",
        f"F1 at the thresholds: heads {number(heads['heads_f1'], 3)}, draft {number(heads['draft_f1'], 3)}: the draft"
        f" reaches {number(heads['draft_share_of_heads'], 2)} of it; macro over classes with 5 positives or more: heads"
        f" {number(heads['heads_macro_f1'], 3)}, draft {number(heads['draft_macro_f1'], 3)}",
        f"calibrated on the run's {split} split; expected calibration error over all calibrated findings"
        f" {number(heads['calibration_error'], 3)} (bins of equal count)"
        if split
        else "the probabilities are not calibrated",
        "classes with fewer than 5 positives or negatives have no AUROC, average precision or calibration error",
    )
    columns = ("class", "positives", "AUROC", "average precision", "calibration error", "threshold")
    return TextTable(f"Probabilities of the heads{suffix}", columns, tuple(rows), notes)


def _cell(estimate: Mapping[str, Any]) -> str:
    return DASH if estimate["value"] is None else score_cell(estimate)


def reliability_plot(result: Mapping[str, Any]) -> bytes | None:
    """What was said against what was seen, all findings and each class (PNG); None where nothing is calibrated."""
    heads = result["heads"]
    curves = {"all findings": heads["reliability"]}
    curves |= {name: one["reliability"] for name, one in heads["classes"].items() if one["reliability"]}
    curves = {name: bins for name, bins in curves.items() if bins}
    if not curves:
        return None
    across = min(4, len(curves))
    down = -(-len(curves) // across)
    figure = new_figure(3 * across, 3 * down + 0.4)
    panels = list(figure.subplots(down, across, squeeze=False).flat)
    for panel, (name, bins) in zip(panels, curves.items(), strict=False):
        _panel(panel, name, bins)
    for panel in panels[len(curves) :]:
        panel.set_axis_off()
    figure.supxlabel(
        "probability in the draft (0 to 1)\neach dot is a bin with its number of studies; bars: 95 % (Wilson); line:"
        f" where both are equal. {_NOTICE}",
        size=9,
    )
    figure.supylabel("share that had it, by the references (0 to 1)", size=9)
    return png(figure)


def _panel(panel: Axes, name: str, bins: Any) -> None:
    bars = [wilson_interval(round(one["seen"] * one["count"]), one["count"]) or (0.0, 1.0) for one in bins]
    end = min(1.05, max(0.1, *(one["said"] for one in bins), *(high for _, high in bars)) * 1.1)
    panel.plot([0, end], [0, end], color=GREY, linewidth=1)
    for one, (low, high) in zip(bins, bars, strict=True):
        panel.vlines(one["said"], low, high, color=BLUE, alpha=0.45, linewidth=2)
    panel.plot([one["said"] for one in bins], [one["seen"] for one in bins], "o-", color=BLUE, markersize=4)
    for one in bins:
        panel.annotate(str(one["count"]), (one["said"], one["seen"]), textcoords="offset points", xytext=(3, 4), size=6)
    panel.set_title(name, size=9)
    panel.set_xlim(0, end)
    panel.set_ylim(0, end)
    panel.tick_params(labelsize=7)
