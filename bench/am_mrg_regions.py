"""Regions that a trained `am_mrg` run has mined for its visual memory (AM-MRG, Fig. 4): run by hand.

    python bench/am_mrg_regions.py RUN DATASET --figure regions.png [--regions 4] [--classes 8]

One row per disease, its strongest regions of different training studies in boxes, each on its image, and beside each
the activation map that it was mined from, in colours. Activations are relative to a study's strongest, so most studies
tie, and of these the first in the bank are shown. The pictures show training images: what is drawn from real data is a
patient's.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from radweave.data.cache.images import build_cache
from radweave.data.dataset import Dataset
from radweave.data.loader import Example, collate
from radweave.engine.prepare import prepare
from radweave.engine.restore import restore
from radweave.inference.explain.maps import PALETTE
from radweave.methods.am_mrg.model import REGIONS, AmMrgModel
from radweave.nn.cam import view_maps
from radweave.nn.connector import encode_views
from radweave.nn.memory.bank import load_bank

SIDE, LABEL = 192, 22
"""Pixels of an image on the figure, and of the line above a row."""


def strongest(rows: tuple[dict[str, Any], ...], regions: int, classes: int) -> dict[str, list[dict[str, Any]]]:
    """For the diseases with the most regions the strongest ones, each of another study; equals in the bank's order."""
    by_disease = defaultdict(list)
    for row in rows:
        by_disease[row["disease"]].append(row)
    chosen = sorted(by_disease, key=lambda name: -len(by_disease[name]))[:classes]
    best: dict[str, list[dict[str, Any]]] = {name: [] for name in chosen}
    for name in chosen:
        for row in sorted(by_disease[name], key=lambda one: -one["activation"]):
            if len(best[name]) < regions and row["study_id"] not in {one["study_id"] for one in best[name]}:
                best[name].append(row)
    return best


def activation_map(model: AmMrgModel, example: Example, disease: int, view: int) -> NDArray[np.float32]:
    """A disease's map on one view (rows, columns of tokens), 1 at the study's strongest place."""
    batch = collate([example], pad_id=0)
    with torch.no_grad():
        views = encode_views(model.vision_encoder, batch)
    kind = model.sources.regions.cam
    maps = view_maps(kind, views, lambda tokens: model.score(tokens, views.view_mask), [disease])
    heat: NDArray[np.float32] = maps[0, 0, view].cpu().numpy()
    return heat


def coloured(picture: Image.Image, heat: NDArray[np.float32]) -> Image.Image:
    """The picture beneath its map in colours; a pixel has the value of its token, as the regions are mined."""
    colours = PALETTE[np.rint(heat.clip(0, 1) * 254).astype(np.uint8)]
    layer = Image.fromarray(colours, "RGBA").resize(picture.size, Image.Resampling.NEAREST)
    return Image.alpha_composite(picture.convert("RGBA"), layer).convert("RGB")


def main() -> None:
    """Draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--figure", type=Path, required=True)
    parser.add_argument("--regions", type=int, default=4)
    parser.add_argument("--classes", type=int, default=8)
    options = parser.parse_args()
    run, dataset = restore(options.run), Dataset.open(options.dataset)
    assert isinstance(run.model, AmMrgModel), "a run of am_mrg"
    size, cell = run.experiment.data.image_size, run.model.sources.regions.cell
    cache = build_cache(dataset, size=size, ct=run.experiment.data.ct)
    prepared = prepare(dataset, "train", run.experiment, run.tokenizer, cache, need_text=True)
    examples = {example.study_id: example for example in prepared.examples}
    best = strongest(load_bank(options.run / "memories" / REGIONS).rows, options.regions, options.classes)
    classes = list(run.card.classes)
    sheet = Image.new("RGB", (2 * options.regions * SIDE, len(best) * (SIDE + LABEL)), "white")
    draw = ImageDraw.Draw(sheet)
    scale = SIDE / size
    for number, (name, rows) in enumerate(best.items()):
        top = number * (SIDE + LABEL)
        draw.text((4, top + 5), name, fill="black")
        for place, row in enumerate(rows):
            example = examples[row["study_id"]]
            pixels = np.asarray(list(example.pixels)[row["view"]], dtype=np.uint8)
            picture = Image.fromarray(pixels).convert("RGB").resize((SIDE, SIDE))
            left, upper = 2 * place * SIDE, top + LABEL
            sheet.paste(picture, (left, upper))
            heat = activation_map(run.model, example, classes.index(name), row["view"])
            sheet.paste(coloured(picture, heat), (left + SIDE, upper))
            line, column = row["cell"]
            x, y = left + column * cell * scale, upper + line * cell * scale
            draw.rectangle((x, y, x + cell * scale, y + cell * scale), outline="yellow", width=2)
    sheet.quantize(64).save(options.figure, optimize=True)


if __name__ == "__main__":
    main()
