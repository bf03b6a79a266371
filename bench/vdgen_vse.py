"""VDGen's readings of VSE side by side: loss curves, and how far apart the features of different images end.

    python bench/vdgen_vse.py DATASET OUT RUN [RUN ...]

Each RUN is a finished vdgen run on DATASET; what it is called follows from its configuration. OUT gets ``spread.md``
(the table of the method's page), ``curves.json`` and ``curves.png``. Features are those of the test images; nothing is
trained here. Runs are made with, for example,

    radweave train vdgen DATASET --out runs/others
    radweave train vdgen DATASET --out runs/all model.vse.self_in_denominator=true
    radweave train vdgen DATASET --out runs/views model.vse=two_views
    radweave train vdgen DATASET --out runs/none model.vse=none
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn import functional

from radweave.core.errors import InputError
from radweave.core.json_files import write_json
from radweave.core.storage import write_text
from radweave.data.cache.images import build_cache
from radweave.data.dataset import Dataset
from radweave.data.loader import StudyLoader
from radweave.engine.prepare import prepare
from radweave.engine.restore import Run, restore
from radweave.methods.vdgen.model import VdgenModel
from radweave.methods.vdgen.self_equilibration import NoEquilibration

TERMS = ("report", "vse", "did")
SMOOTHING = 25
"""Steps that a point of a curve is the mean of."""


def mean_pairwise_cosine(features: Tensor) -> float:
    """Mean cosine over all pairs of different rows (N, D), N > 1; 1 where all are equal."""
    unit = functional.normalize(features.double(), dim=1)
    total = unit.sum(0).square().sum() - unit.square().sum()
    return float(total / (len(unit) * (len(unit) - 1)))


def effective_rank(features: Tensor) -> float:
    """Exponential of the entropy of the normalised singular values of centred rows (N, D); 0 where all rows are equal.

    Source: Roy & Vetterli, "The effective rank", EUSIPCO 2007, Eq. 3.
    Deviations: the mean over rows is taken out first.
    """
    centred = features.double() - features.double().mean(0)
    values = torch.linalg.svdvals(centred)
    if float(values.sum()) <= 1e-12 * len(features):
        return 0.0
    return float(torch.special.entr(values / values.sum()).sum().exp())


COLOURS = ("#1b6ca8", "#c0392b", "#2e8b57", "#8e6bbf", "#7f7f7f", "#d08a00")

Curves = dict[str, dict[str, list[tuple[int, float]]]]


def main() -> None:
    dataset, out = Dataset.open(Path(sys.argv[1])), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    curves: Curves = {}
    lines = [
        "| VSE | seed | loss vse | loss did | loss report | cos(h) | rank(h) | cos(z) | rank(z) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for folder in map(Path, sys.argv[3:]):
        run = restore(folder)
        name = f"{reading(run)}, seed {run.experiment.seed}"
        curves[name] = smoothed(folder / "metrics.jsonl")
        last = [f"{curves[name][term][-1][1]:.3f}" for term in ("vse", "did", "report")]
        lines.append("| " + " | ".join([reading(run), str(run.experiment.seed), *last, *spread(run, dataset)]) + " |")
        print(lines[-1], flush=True)
    notes = [
        "",
        f"Losses: mean of the last {SMOOTHING} steps. h: mean normalised token of a study, z: its projection.",
        "cos: mean cosine over all pairs of test studies; rank: effective rank (Roy & Vetterli 2007), centred.",
    ]
    write_text(out / "spread.md", "\n".join(lines + notes) + "\n")
    write_json(out / "curves.json", curves)
    draw(curves, out / "curves.png")


def reading(run: Run) -> str:
    """What the run makes of Eq. 3."""
    vse = run.experiment.model.vse
    if vse.kind == "self":
        return "sum over all" if vse.self_in_denominator else "sum over the others"
    return {"two_views": "two views", "none": "w/o VSE"}[vse.kind]


def smoothed(path: Path) -> dict[str, list[tuple[int, float]]]:
    """The report stage's loss terms: (step, mean of the steps since the point before)."""
    rows: list[dict[str, Any]] = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    steps = [row for row in rows if row["stage"] == "report" and "report" in row]
    if not steps:
        raise InputError("no step of the stage 'report' in it", file=path)
    size = min(SMOOTHING, len(steps))
    chunks = [steps[end - size : end] for end in range(size, len(steps) + 1, size)]
    return {
        term: [(chunk[-1]["step"], sum(row[term] for row in chunk) / len(chunk)) for chunk in chunks] for term in TERMS
    }


def spread(run: Run, dataset: Dataset) -> list[str]:
    """Mean pairwise cosine and effective rank of h and of z over the test split, as cells."""
    model = run.model
    if not isinstance(model, VdgenModel):
        raise InputError("not a run of vdgen", file=run.folder, got=run.card.method)
    h = features(run, model, dataset)
    cells = [f"{mean_pairwise_cosine(h):.3f}", f"{effective_rank(h):.1f}"]
    if isinstance(model.vse, NoEquilibration):
        return [*cells, "-", "-"]
    with torch.no_grad():
        z = model.vse.project(h)
    return [*cells, f"{mean_pairwise_cosine(z):.3f}", f"{effective_rank(z):.1f}"]


@torch.no_grad()
def features(run: Run, model: VdgenModel, dataset: Dataset) -> Tensor:
    """The h of every test study (N, D)."""
    cache = build_cache(dataset, size=run.experiment.data.image_size)
    prepared = prepare(dataset, "test", run.experiment, run.tokenizer, cache, need_text=False)
    batches = StudyLoader(prepared.examples, 32, int(run.tokenizer.pad_token_id)).epoch()
    return torch.cat([model.encode(batch).mean() for batch in batches])


def draw(curves: Curves, path: Path, size: tuple[int, int] = (440, 300)) -> None:
    """One panel per loss term, one line per run."""
    width, height = size
    legend = 22 * len(curves) + 16
    image = Image.new("RGB", (width * len(TERMS), height + legend), "white")
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(13)
    for panel, term in enumerate(TERMS):
        lines = {name: terms[term] for name, terms in curves.items()}
        draw_panel(pen, font, term, lines, (panel * width, 0, width, height))
    for row, name in enumerate(curves):
        y = height + 12 + 22 * row
        pen.line([(56, y + 8), (90, y + 8)], fill=COLOURS[row % len(COLOURS)], width=3)
        pen.text((100, y), name, fill="black", font=font)
    image.save(path)


def draw_panel(
    pen: ImageDraw.ImageDraw,
    font: Any,
    title: str,
    lines: Mapping[str, Sequence[tuple[int, float]]],
    box: tuple[int, int, int, int],
) -> None:
    """Axes with four marks each, and the lines."""
    x0, y0, width, height = box
    left, top, right, bottom = x0 + 56, y0 + 30, x0 + width - 14, y0 + height - 28
    values = [value for line in lines.values() for _, value in line]
    low, high = min(values), max(values)
    high = high if high > low else low + 1.0
    last = max(step for line in lines.values() for step, _ in line)
    pen.text((left, y0 + 8), f"loss: {title}", fill="black", font=font)
    pen.rectangle((left, top, right, bottom), outline="#999999")
    for mark in range(4):
        y = bottom - (bottom - top) * mark / 3
        pen.text((x0 + 6, y - 8), f"{low + (high - low) * mark / 3:.2f}", fill="#444444", font=font)
        x = left + (right - left) * mark / 3
        pen.text((x - 10, bottom + 6), str(round(last * mark / 3)), fill="#444444", font=font)
    for row, line in enumerate(lines.values()):
        points = [
            (left + (right - left) * step / last, bottom - (bottom - top) * (value - low) / (high - low))
            for step, value in line
        ]
        pen.line(points, fill=COLOURS[row % len(COLOURS)], width=2)


if __name__ == "__main__":
    main()
