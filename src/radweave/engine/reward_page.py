"""The page ``reward.html`` of a run: the course of the stage that rewards drafts, from ``metrics.jsonl``.

One file that loads nothing: rewards by name, divergence, entropy, length and distinct samples over the updates, figures
of validation by epoch, and drafts of a few fixed validation studies.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from radweave.core.storage import write_text
from radweave.core.study import RESEARCH_ONLY
from radweave.methods.stage import REWARD

REWARD_PAGE: Final = "reward.html"
WIDTH: Final = 320
HEIGHT: Final = 110
POINTS: Final = 160
"""Points of a line; of more updates each point is a mean."""
TITLES: Final[Mapping[str, str]] = {
    "kl": "Divergence from before the stage, nats per token",
    "entropy": "Entropy, nats per token",
    "length": "Length of samples, tokens",
    "distinct": "Distinct: share of a study's samples; of all drafts",
    "constant": "Studies whose samples all have one reward",
    "reward_edited": "Reward of edited samples",
    "report": "Loss of the reports",
}
"""Titles of panels beside those of the rewards; those of figures of validation alone are their names."""

Points = Sequence[tuple[int, float]]
"""(update, value)."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A figure over the updates: of the samples, of the likeliest reports, and of validation drafts."""

    title: str
    samples: Points
    likeliest: Points
    validation: Points

    @property
    def range(self) -> tuple[float, float]:
        """Least and greatest value."""
        values = [value for points in (self.samples, self.likeliest, self.validation) for _, value in points]
        return min(values), max(values)

    @property
    def last(self) -> str:
        """The last value of the samples, and that of validation, in words."""
        parts = (("samples", self.samples), ("likeliest", self.likeliest), ("validation", self.validation))
        return ", ".join(f"{name} {points[-1][1]:.3f}" for name, points in parts if points)

    def places(self, points: Points, updates: int) -> list[tuple[float, float]]:
        """Points as pixels (x, y) of a drawing of ``WIDTH`` x ``HEIGHT``, y downwards."""
        low, high = self.range
        scale = HEIGHT / (high - low or 1.0)
        return [(round(WIDTH * at / max(updates, 1), 1), round(HEIGHT - (one - low) * scale, 1)) for at, one in points]

    def path(self, points: Points, updates: int) -> str:
        """The line through the points, as the path of an SVG."""
        return "M" + "L".join(f"{x} {y}" for x, y in self.places(points, updates)) if points else ""


@dataclass(frozen=True, slots=True)
class Followed:
    """A validation study: its report, and [(first epoch, draft)] for every draft that differs from the one before."""

    report: str
    drafts: Sequence[tuple[int, str]]


def write_reward_page(folder: Path, stage: str, method: str) -> Path:
    """Write the page of a stage into its run folder, from what is logged there so far."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row["stage"] == stage]
    updates = [row for row in rows if "validation" not in row]
    epochs = [row for row in rows if "validation" in row]
    environment = Environment(
        loader=PackageLoader("radweave", "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    page = environment.get_template("reward.html.j2").render(
        method=method,
        notice=RESEARCH_ONLY,
        updates=max((row["step"] for row in rows), default=0),
        panels=panels(updates, epochs),
        epochs=epochs,
        columns=[name for name in epochs[-1]["validation"] if name != "loss"] if epochs else [],
        followed=followed(epochs),
        width=WIDTH,
        height=HEIGHT,
    )
    write_text(folder / REWARD_PAGE, page)
    return folder / REWARD_PAGE


def panels(updates: Sequence[Mapping[str, Any]], epochs: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """The reward, its parts, and what else is watched, in this order; a figure without a value has no panel."""
    names = dict.fromkeys(name for row in (*updates, *(row["validation"] for row in epochs)) for name in row)
    parts = [name for name in names if name.startswith(f"{REWARD}_") and name not in (*TITLES, f"{REWARD}_likeliest")]
    titles = {REWARD: "Reward", **{name: f"Reward: {name.removeprefix(f'{REWARD}_')}" for name in parts}, **TITLES}
    made = []
    for name, title in titles.items():
        likeliest = _points(updates, f"{REWARD}_likeliest") if name == REWARD else []
        validation = [(row["step"], row["validation"][name]) for row in epochs if _is_known(row["validation"], name)]
        panel = Panel(title, [] if name == "report" else _points(updates, name), likeliest, validation)
        if panel.samples or panel.validation:
            made.append(panel)
    return made


def _is_known(row: Mapping[str, Any], name: str) -> bool:
    return row.get(name) is not None


def _points(updates: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    """The values of a figure, in at most ``POINTS`` means of neighbouring updates, each at the last of them."""
    known = [(row["step"], row[name]) for row in updates if _is_known(row, name)]
    size = -(-len(known) // POINTS) or 1
    groups = [known[first : first + size] for first in range(0, len(known), size)]
    return [(group[-1][0], statistics.fmean(value for _, value in group)) for group in groups]


def followed(epochs: Sequence[Mapping[str, Any]]) -> list[Followed]:
    """The studies whose drafts are logged."""
    drafts = [(row["epoch"] + 1, row["drafts"]) for row in epochs if row.get("drafts")]
    if not drafts:
        return []
    studies = []
    for place, (_, report) in enumerate(drafts[-1][1]):
        different: list[tuple[int, str]] = []
        for epoch, texts in drafts:
            if not different or different[-1][1] != texts[place][0]:
                different.append((epoch, texts[place][0]))
        studies.append(Followed(report, different))
    return studies
