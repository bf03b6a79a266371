"""Does a disease token look at its finding? Attention of a trained `dast` run against the phantom's masks: run by hand.

    python bench/dast_attention.py RUN --studies 300 --seed 4242 --figure dast_attention.png --table dast_attention.json

Fresh studies are drawn, of a seed that no training set should share; or those of the test split of a phantom written
with ``--masks`` are read (``--dataset``), which is faster. For every finding that is in an image, and the
map of its class over all views of the study, these figures against what chance gives:

- pointing: does the patch with the most attention touch the mask? Chance: the share of patches that touch it.
- share: how much attention lies inside the mask. Chance: the mask's share of the image area.
- auc: the chance that a patch touching the mask has more attention than one that does not (0.5 by chance), which does
  not ask how sharp a map is; and the same of the class's mean map (next item).
- share, prior: the same share for the class's mean map over studies of the same views WITHOUT the finding. More than
  this means that the map follows the study, not only the class's usual place.

Intervals are 95 % bootstrap intervals over studies.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from radweave.core.study import Split
from radweave.data.dataset import Dataset
from radweave.data.loader import Example, collate, ordered_views, view_id
from radweave.data.square import to_square
from radweave.engine.restore import restore
from radweave.methods.dast.model import DastModel
from radweave.nn.connector import encode_views
from radweave.phantom.study import PhantomOptions, draw_xray_study

Floats = NDArray[np.float64]
FIGURE_CLASSES = 6


@dataclass(frozen=True, slots=True)
class Sight:
    """A study as the model sees it: squares (V, size, size), the class maps (K, V, h, w), for each class the share of
    every patch that its mask covers (V, h, w), the mask itself, and the kinds of the views.
    """

    squares: NDArray[np.uint8]
    maps: Floats
    masks: dict[str, Floats]
    outlines: dict[str, NDArray[np.bool_]]
    views: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Masked:
    """A study's views: pixels (rows, columns) uint8, the kind of each, and for each class its mask in every view."""

    name: str
    pixels: list[NDArray[np.uint8]]
    kinds: tuple[int, ...]
    masks: dict[str, list[NDArray[np.bool_]]]


def drawn_studies(count: int, seed: int, prevalence: Any) -> Iterator[Masked]:
    """Fresh phantom studies."""
    options = PhantomOptions(prevalence=prevalence, masks=True)
    for index in range(count):
        study = draw_xray_study(seed, index, options)
        found = {image.ref.path: image for image in study.images}
        images = [found[ref.path] for ref in ordered_views(list(study.record.images), 2)]
        masks: dict[str, list[NDArray[np.bool_]]] = {}
        for number, finding in enumerate(study.findings):
            add(masks, finding.name, [image.masks[number] for image in images])
        kinds = tuple(view_id(image.ref.view) for image in images)
        yield Masked(study.record.study_id, [image.pixels.astype(np.uint8) for image in images], kinds, masks)


def stored_studies(dataset: Dataset, split: Split, limit: int) -> Iterator[Masked]:
    """Studies of a phantom that was written with ``--masks``."""
    for study in islice(dataset.studies(split), limit):
        refs = ordered_views(study.images, 2)
        places = [study.images.index(ref) for ref in refs]
        masks: dict[str, list[NDArray[np.bool_]]] = {}
        for finding in study.truth:
            files = [finding["masks"][place] for place in places]
            add(masks, finding["name"], [grey(dataset.path / file) > 127 for file in files])
        yield Masked(
            study.study_id,
            [grey(dataset.path / ref.path) for ref in refs],
            tuple(view_id(ref.view) for ref in refs),
            masks,
        )


def grey(path: Path) -> NDArray[np.uint8]:
    return np.asarray(Image.open(path).convert("L"))


def add(masks: dict[str, list[NDArray[np.bool_]]], name: str, views: list[NDArray[np.bool_]]) -> None:
    """Join the mask of a finding to those of its class."""
    masks[name] = [old | new for old, new in zip(masks[name], views, strict=True)] if name in masks else views


def look(model: DastModel, study: Masked, side: int) -> Sight:
    """Run the vision side on a study and bring its masks to the patch grid."""
    squares = np.stack([to_square(pixels.astype(np.float32) / 255.0, side) for pixels in study.pixels])
    example = Example(study.name, study.name, squares, tuple(range(len(squares))), study.kinds)
    with torch.inference_mode():
        views = encode_views(model.vision_encoder, collate([example], pad_id=0))
        attention = model.disease_tokens(*views.flat()).attention[0]
    maps = attention.reshape(len(attention), len(squares), *views.grid).double().numpy()
    outlines = {
        name: np.stack([to_square(mask.astype(np.float32), side) > 127 for mask in masks])
        for name, masks in study.masks.items()
    }
    outlines = {name: outline for name, outline in outlines.items() if outline.any()}
    covered = {name: cover(outline, views.grid) for name, outline in outlines.items()}
    return Sight(squares, maps, covered, outlines, study.kinds)


def cover(mask: NDArray[np.bool_], grid: tuple[int, ...]) -> Floats:
    """The share of every patch that a mask (V, size, size) covers."""
    views, side = mask.shape[:2]
    height, width = grid
    return mask.reshape(views, height, side // height, width, side // width).mean((2, 4))


def measure(sights: list[Sight], classes: tuple[str, ...]) -> dict[str, list[dict[str, float]]]:
    """Per class, the figures of every finding."""
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    for number, name in enumerate(classes):
        priors = {
            views: np.mean([s.maps[number] for s in sights if s.views == views and name not in s.masks], axis=0)
            for views in {s.views for s in sights}
        }
        for sight in sights:
            if name not in sight.masks:
                continue
            mask, seen = sight.masks[name], sight.maps[number]
            found[name].append(
                {
                    "pointing": float(mask.flat[int(seen.argmax())] > 0),
                    "pointing_chance": float((mask > 0).mean()),
                    "auc": ranking(seen, mask > 0),
                    "auc_prior": ranking(priors[sight.views], mask > 0),
                    "share": float((seen * mask).sum()),
                    "share_chance": float(mask.mean()),
                    "share_prior": float((priors[sight.views] * mask).sum()),
                }
            )
    return found


def ranking(values: Floats, inside: NDArray[np.bool_]) -> float:
    """The share of pairs (inside, outside) in which the patch inside has the larger value; a tie counts half."""
    if inside.all():
        return 0.5
    pairs = values[inside][:, None] - values[~inside][None, :]
    return float((pairs > 0).mean() + 0.5 * (pairs == 0).mean())


def summary(rows: list[dict[str, float]], rng: np.random.Generator) -> dict[str, Any]:
    """Means, and intervals of what lies above chance."""
    table = np.array([[row[key] for key in rows[0]] for row in rows])
    columns = {key: table[:, place] for place, key in enumerate(rows[0])}
    picks = rng.integers(0, len(rows), (2000, len(rows)))

    def interval(values: Floats) -> list[float]:
        return [round(float(x), 4) for x in np.percentile(values[picks].mean(1), [2.5, 97.5])]

    return {
        "findings": len(rows),
        **{key: round(float(values.mean()), 4) for key, values in columns.items()},
        "pointing_above_chance": interval(columns["pointing"] - columns["pointing_chance"]),
        "auc_above_chance": interval(columns["auc"] - 0.5),
        "auc_above_prior": interval(columns["auc"] - columns["auc_prior"]),
        "share_above_chance": interval(columns["share"] - columns["share_chance"]),
        "share_above_prior": interval(columns["share"] - columns["share_prior"]),
    }


def panel(square: NDArray[np.uint8], seen: Floats, outline: NDArray[np.bool_], side: int) -> Image.Image:
    """The image, reddened by attention, with the mask's border in green."""
    grey = np.asarray(Image.fromarray(square).resize((side, side)), dtype=np.float64)
    scaled = Image.fromarray((255 * seen / max(seen.max(), 1e-12)).astype(np.uint8))
    heat = np.asarray(scaled.resize((side, side), Image.Resampling.BICUBIC), dtype=np.float64) / 255
    pixels = np.stack([grey + (255 - grey) * 0.6 * heat, grey * (1 - 0.5 * heat), grey * (1 - 0.5 * heat)], axis=-1)
    inside = np.asarray(Image.fromarray(outline).resize((side, side), Image.Resampling.NEAREST))
    edge = inside & ~(np.roll(inside, 1, 0) & np.roll(inside, -1, 0) & np.roll(inside, 1, 1) & np.roll(inside, -1, 1))
    pixels[edge] = (0, 230, 90)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def draw_figure(
    sights: list[Sight], classes: tuple[str, ...], results: dict[str, dict[str, Any]], path: Path, side: int = 240
) -> None:
    """For the most frequent classes: the median finding by attention share, and bars of share, prior and chance."""
    names = sorted(results, key=lambda name: -results[name]["findings"])[:FIGURE_CLASSES]
    sheet = Image.new("RGB", (len(names) * side, side + 150), "white")
    draw = ImageDraw.Draw(sheet)
    for column, name in enumerate(names):
        number = classes.index(name)
        with_it = [sight for sight in sights if name in sight.masks]
        ranked = sorted(with_it, key=lambda s: float((s.maps[number] * s.masks[name]).sum()))
        sight = ranked[len(ranked) // 2]
        view = int(sight.masks[name].sum((1, 2)).argmax())
        left = column * side
        shown = panel(sight.squares[view], sight.maps[number][view], sight.outlines[name][view], side - 8)
        sheet.paste(shown, (left + 4, 4))
        result = results[name]
        draw.text((left + 6, side), f"{name} (n={result['findings']})", fill="black")
        bars = (
            ("inside mask", "share", "#c0392b"),
            ("usual place", "share_prior", "#7f8c8d"),
            ("area", "share_chance", "#bdc3c7"),
        )
        top = max(result[key] for _, key, _ in bars)
        for row, (label, key, colour) in enumerate(bars):
            y = side + 20 + 22 * row
            draw.rectangle((left + 80, y, left + 80 + int((side - 140) * result[key] / top), y + 14), fill=colour)
            draw.text((left + 6, y + 2), label, fill="black")
            draw.text((left + side - 54, y + 2), f"{result[key]:.3f}", fill="black")
        hits = (
            f"points at it {result['pointing']:.2f} ({result['pointing_chance']:.2f})   AUC {result['auc']:.2f} (0.50)"
        )
        draw.text((left + 6, side + 90), hits, fill="black")
    note = (
        "Red: attention of the class's disease token. Green: border of the finding. The median finding of each class."
    )
    draw.text((6, side + 122), note, fill="black")
    sheet.save(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--dataset", type=Path, help="a phantom written with --masks; its test split is used")
    parser.add_argument("--studies", type=int, default=300)
    parser.add_argument("--seed", type=int, default=4242)
    parser.add_argument("--prevalence", choices=("long-tail", "balanced"), default="balanced")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--table", type=Path)
    args = parser.parse_args()
    run = restore(args.run)
    model = run.model
    if not isinstance(model, DastModel):
        parser.error("the run is not one of the method dast")
    side = run.experiment.data.image_size
    if args.dataset is None:
        studies = drawn_studies(args.studies, args.seed, args.prevalence)
    else:
        studies = stored_studies(Dataset.open(args.dataset), "test", args.studies)
    sights = [look(model, study, side) for study in studies]
    rng = np.random.default_rng(0)
    found = measure(sights, model.classes)
    results = {name: summary(rows, rng) for name, rows in found.items() if len(rows) >= 5}
    results_all = summary([row for rows in found.values() for row in rows], rng)
    for name, result in {**results, "all findings": results_all}.items():
        print(
            f"{name:28s} n {result['findings']:4d}  pointing {result['pointing']:.3f} (chance "
            f"{result['pointing_chance']:.3f})  auc {result['auc']:.3f} (usual place {result['auc_prior']:.3f})  share "
            f"{result['share']:.3f} (area {result['share_chance']:.3f}, usual place {result['share_prior']:.3f})  auc "
            f"above chance {result['auc_above_chance']}"
        )
    if args.table:
        args.table.write_text(json.dumps({**results, "all findings": results_all}, indent=1) + "\n", encoding="utf-8")
    if args.figure:
        draw_figure(sights, model.classes, results, args.figure)


if __name__ == "__main__":
    main()
