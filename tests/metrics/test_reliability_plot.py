"""The picture of what probabilities are worth: intervals on every dot, no empty panels, nothing without a name."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.figure import Figure

from radweave.metrics import tables
from radweave.metrics.statistics import wilson_interval

BINS = [{"said": 0.1, "seen": 0.0, "count": 20, "low": 0.0}, {"said": 0.6, "seen": 0.5, "count": 10, "low": 0.4}]


def drawn(number: int, monkeypatch: pytest.MonkeyPatch) -> Figure:
    """The figure over all findings and this many classes."""
    figures: list[Figure] = []
    monkeypatch.setattr(tables, "png", lambda figure: figures.append(figure) or b"")
    classes: dict[str, Any] = {f"class {place}": {"reliability": BINS} for place in range(number)}
    assert tables.reliability_plot({"heads": {"reliability": BINS, "classes": classes}}) is not None
    return figures[0]


def test_every_dot_has_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    panel = drawn(1, monkeypatch).axes[0]
    bars = [segment for bar in panel.collections for segment in bar.get_segments()]
    result = [(x, low, high) for (x, low), (_, high) in bars]
    hits = (0, 5)
    expected = [
        (one["said"], *(wilson_interval(had, int(one["count"])) or ())) for one, had in zip(BINS, hits, strict=True)
    ]
    assert result == [pytest.approx(one) for one in expected]
    assert panel.get_ylim()[1] >= expected[1][2], "no bar is cut off"


def test_panels_without_a_curve_are_not_shown_and_the_axes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    figure = drawn(4, monkeypatch)
    assert len(figure.axes) == 8
    assert [panel.axison for panel in figure.axes] == [True] * 5 + [False] * 3
    assert "(0 to 1)" in figure.get_supxlabel()
    assert "95 %" in figure.get_supxlabel()
    assert "(0 to 1)" in figure.get_supylabel()


def test_nothing_calibrated_no_picture() -> None:
    assert tables.reliability_plot({"heads": {"reliability": [], "classes": {}}}) is None
