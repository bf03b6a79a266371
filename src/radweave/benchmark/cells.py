"""Figures as the cells of tables."""

from __future__ import annotations

from radweave.benchmark.scores import Contrast, SystemScores
from radweave.evaluation.tables.formats import DASH, number


def mean_std(system: SystemScores, metric: str) -> str:
    """Mean over seeds, with the standard deviation (n - 1) where there are several."""
    mean, std = system.mean(metric), system.std(metric)
    return number(mean, 3) if mean is None or std is None else f"{mean:.3f} ± {std:.3f}"


def with_interval(system: SystemScores, metric: str) -> str:
    """The same with the 95 % interval over studies."""
    interval = system.interval(metric)
    text = mean_std(system, metric)
    return text if interval is None or text == DASH else f"{text} [{interval[0]:.3f}, {interval[1]:.3f}]"


def difference(tested: Contrast | None) -> str:
    """The difference with its interval over studies and its p-values."""
    if tested is None:
        return DASH
    text = _signed(tested.difference)
    if tested.low is not None and tested.high is not None:
        text += f" [{_signed(tested.low)}, {_signed(tested.high)}]"
    named = (("studies", tested.p_studies), ("Holm", tested.p_holm), ("seeds", tested.p_seeds))
    known = [f"{name} {p_value(p)}" for name, p in named if p is not None]
    mark = " *" if tested.holds else ""
    return f"{text}; p {', '.join(known)}{mark}" if known else text


def _signed(value: float) -> str:
    text = f"{value:+.3f}"
    return "+0.000" if text == "-0.000" else text


def p_value(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def count(value: float | None) -> str:
    """A large number: 1,234 or 5.6 M."""
    if value is None:
        return DASH
    return f"{value / 1e6:.2f} M" if value >= 1e6 else f"{value:,.0f}"


def megabytes(value: int | None) -> str:
    return DASH if value is None else f"{value / 1e6:,.0f} MB" if value >= 1e7 else f"{value / 1e6:.1f} MB"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return DASH
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def rate(value: float | None) -> str:
    return DASH if value is None else f"{value:.3g}"


def percent(value: float | None) -> str:
    return DASH if value is None else f"{100 * value:.0f} %"
