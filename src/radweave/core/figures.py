"""Figures by matplotlib, loaded on first use. Needs the extra ``plots``."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from radweave.core.extras import missing, refuse_without

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The colour-blind safe palette of Okabe and Ito.
BLUE, GREY = "#0072B2", "#7a7a7a"
OTHERS = ("#D55E00", "#009E73", "#CC79A7", "#E69F00")
MARKERS = ("o", "s", "^", "D", "v", "P")
"""Marker shapes, so that colour is never the only distinction."""


def can_draw() -> bool:
    """True if matplotlib is installed."""
    return not missing("plots")


def refuse_without_plots() -> None:
    """Refuse work that ends in figures if matplotlib is missing.

    Raises:
        InputError: with the command that installs it.
    """
    refuse_without("plots", "drawing figures")


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, sized in inches.

    Raises:
        InputError: if matplotlib is not installed.
    """
    refuse_without_plots()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=120, layout="constrained")


def png(figure: Figure) -> bytes:
    """The figure as PNG; equal figures give equal bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
