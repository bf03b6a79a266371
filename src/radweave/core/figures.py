"""Figures by matplotlib, which is loaded only when one is drawn. Needs the extra ``plots``."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from radweave.core.extras import missing, refuse_without

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers tell apart.
BLUE, GREY = "#0072B2", "#7a7a7a"
OTHERS = ("#D55E00", "#009E73", "#CC79A7", "#E69F00")
MARKERS = ("o", "s", "^", "D", "v", "P")
"""Shapes beside the colours: nothing is told by colour alone."""


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return not missing("plots")


def refuse_without_plots() -> None:
    """Refuse work that ends in figures where none can be drawn.

    Raises:
        InputError: with the line that installs what is missing.
    """
    refuse_without("plots", "drawing figures")


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of this many inches.

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
