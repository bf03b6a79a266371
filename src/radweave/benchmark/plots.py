"""Figures as pictures, drawn with PIL: seeds as dots beside the floors, and quality against cost."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

from radweave.benchmark.results import SetResults
from radweave.benchmark.scores import SystemScores

PANELS = {"CE_F1": "findings F1 (micro)", "CE_F1_macro": "findings F1 (macro)", "CIDEr": "CIDEr", "BLEU_4": "BLEU-4"}
_WIDTH, _LEFT, _RIGHT, _ROW, _TOP, _FOOT = 460, 120, 24, 26, 34, 34
_DARK, _GREY, _BLUE, _PALE = (25, 25, 25), (130, 130, 130), (20, 90, 170), (225, 225, 225)
_FLOOR_STYLES = ((190, 80, 40), (90, 130, 60))
_TICKS = 4
NOTICE = "Research software, not a medical device."


@dataclass(frozen=True, slots=True)
class Axis:
    """Values from ``low`` to ``high`` on pixels from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float) -> Axis:
        """An axis with a margin around the values."""
        low, high = min(values), max(values)
        margin = 0.08 * (high - low) or 0.05 * abs(high) or 0.05
        return cls(low - margin, high + margin, start, end)


def score_plot(results: SetResults) -> bytes:
    """Four panels: a row per method, a dot per seed, a bar for the interval over studies, a line per floor."""
    height = _TOP + _ROW * len(results.full) + _FOOT
    footer = 20 + 16 * (len(results.floors) + 1)
    image = Image.new("RGB", (2 * _WIDTH, 2 * height + footer), "white")
    for place, (metric, title) in enumerate(PANELS.items()):
        panel = _panel(results.full, results.floors, metric, title, height)
        image.paste(panel, ((place % 2) * _WIDTH, (place // 2) * height))
    draw = ImageDraw.Draw(image)
    caption = f"{_source(results)}: dots are training seeds, bars 95 % over test studies. {NOTICE}"
    _text(draw, (12, 2 * height + 6), caption)
    for place, name in enumerate(results.floors):
        y = 2 * height + 24 + 16 * place
        draw.line((12, y + 7, 40, y + 7), fill=_FLOOR_STYLES[place % 2], width=2)
        _text(draw, (46, y), f"floor: {name}")
    return _png(image)


def _source(results: SetResults) -> str:
    return f"{results.suite.kind.title}, data {results.record['dataset']['fingerprint'][:12]}"


def _panel(
    systems: Mapping[str, SystemScores], floors: Mapping[str, SystemScores], metric: str, title: str, height: int
) -> Image.Image:
    image = Image.new("RGB", (_WIDTH, height), "white")
    draw = ImageDraw.Draw(image)
    _text(draw, (_LEFT, 8), title, size=14)
    values = {name: [v for v in system.values.get(metric, ()) if v is not None] for name, system in systems.items()}
    lines = [mean for system in floors.values() if (mean := system.mean(metric)) is not None]
    bounds = [bound for system in systems.values() for bound in system.interval(metric) or ()]
    every = [value for found in values.values() for value in found] + lines + bounds
    if not every:
        return image
    axis = Axis.over(every, _LEFT, _WIDTH - _RIGHT)
    bottom = _TOP + _ROW * len(systems)
    _ticks(draw, axis, _TOP, bottom)
    for place, value in enumerate(lines):
        x = axis.at(value)
        draw.line((x, _TOP, x, bottom), fill=_FLOOR_STYLES[place % 2], width=2)
    for row, (name, system) in enumerate(systems.items()):
        y = _TOP + _ROW * row + _ROW // 2
        _text(draw, (8, y - 7), name)
        interval = system.interval(metric)
        if interval is not None:
            draw.line((axis.at(interval[0]), y, axis.at(interval[1]), y), fill=_GREY, width=3)
        for value in values[name]:
            x = axis.at(value)
            draw.ellipse((x - 4, y - 4, x + 4, y + 4), fill=_BLUE, outline="white")
        mean = system.mean(metric)
        if mean is not None:
            x = axis.at(mean)
            draw.line((x, y - 9, x, y + 9), fill=_DARK, width=2)
    return image


def _ticks(draw: ImageDraw.ImageDraw, axis: Axis, top: int, bottom: int) -> None:
    for value in ticks(axis.low, axis.high):
        x = axis.at(value)
        draw.line((x, top, x, bottom), fill=_PALE)
        _text(draw, (x - 12, bottom + 5), f"{value:g}", fill=_GREY)
    draw.line((axis.start, bottom, axis.end, bottom), fill=_GREY)


def ticks(low: float, high: float) -> list[float]:
    """A few round values between two others."""
    raw = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * times for times in (1, 2, 5, 10) if power * times >= raw)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(step * number, 10) for number in range(first, last + 1)]


def cost_plot(results: SetResults) -> bytes | None:
    """Findings F1 against the cost of training; None where the methods have no measure of it in common."""
    scores = {name: mean for name, system in results.full.items() if (mean := system.mean("CE_F1")) is not None}
    found = _common_cost(results, list(scores))
    if found is None:
        return None
    title, minutes = found
    width, height = 2 * _WIDTH, 380
    left, right, top, bottom = 70, 130, 44, 90
    image = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(image)
    floors = {name: mean for name, system in results.floors.items() if (mean := system.mean("CE_F1")) is not None}
    across = Axis.over(list(minutes.values()), left, width - right)
    up = Axis.over([*scores.values(), *floors.values()], height - bottom, top)
    _ticks(draw, across, top, height - bottom)
    for value in ticks(up.low, up.high):
        draw.line((left, up.at(value), width - right, up.at(value)), fill=_PALE)
        _text(draw, (20, up.at(value) - 7), f"{value:g}", fill=_GREY)
    for place, (name, value) in enumerate(floors.items()):
        draw.line((left, up.at(value), width - right, up.at(value)), fill=_FLOOR_STYLES[place % 2], width=2)
        _text(draw, (left + 4, up.at(value) - 16), f"floor: {name}", fill=_FLOOR_STYLES[place % 2])
    _text(draw, (left, 14), f"findings F1 (micro) against {title}, one seed", size=14)
    taken: list[tuple[float, float]] = []
    for name in scores:
        x, y = across.at(minutes[name]), up.at(scores[name])
        draw.ellipse((x - 5, y - 5, x + 5, y + 5), fill=_BLUE)
        while any(abs(x - other) < 90 and abs(y - above) < 13 for other, above in taken):
            y += 13
        taken.append((x, y))
        _text(draw, (x + 9, y - 7), name)
    _text(draw, (12, height - 58), "minutes", fill=_GREY)
    _text(draw, (12, height - 34), f"{_source(results)}: means over seeds. {NOTICE}")
    return _png(image)


def _common_cost(results: SetResults, methods: Sequence[str]) -> tuple[str, dict[str, float]] | None:
    """The first measure of training time that all methods have, in minutes."""
    measures = {
        "CPU time of training": {method: results.costs[method].cpu_s for method in methods},
        "time of training": {method: results.costs[method].train_s for method in methods},
        "time of the updates": {method: results.costs[method].updates_s for method in methods},
    }
    for title, seconds in measures.items():
        known = {method: value / 60 for method, value in seconds.items() if value is not None}
        if len(known) == len(methods) and len(known) > 1:
            return title, known
    return None


def _text(
    draw: ImageDraw.ImageDraw,
    place: tuple[float, float],
    text: str,
    *,
    size: int = 12,
    fill: tuple[int, int, int] = _DARK,
) -> None:
    draw.text(place, text, fill=fill, font=ImageFont.load_default(size))


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()
