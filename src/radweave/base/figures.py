"""Figures by matplotlib, which is loaded only when one is drawn. Needs the extra ``plots``."""

from __future__ import annotations

import io
from importlib.util import find_spec
from typing import TYPE_CHECKING

from radweave.base.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers tell apart.
BLUE, GREY = "#0072B2", "#7a7a7a"
OTHERS = ("#D55E00", "#009E73", "#CC79A7", "#E69F00")


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def refuse_without_plots() -> None:
    """Refuse work that ends in figures where none can be drawn.

    Raises:
        InputError: with the line that installs what is missing.
    """
    if not can_draw():
        raise InputError("figures need matplotlib: pip install 'radweave[plots]'")


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
