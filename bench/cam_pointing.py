"""Do activation maps point at the findings? On a phantom with masks, beside the centre of the lungs. Run by hand.

    radweave phantom DATA --modality xray --studies 1000 --masks
    radweave train am_mrg DATA --out RUN
    python bench/cam_pointing.py RUN DATA [--split test] [--picture cams.png] [--json cams.json]

Per finding of the truth and view with a mask (masks of one class are joined; classes without a place, such as No
Finding, have none), the map of that class, enlarged to the model's image:

- hit rate ("pointing game", Zhang et al., IJCV 2018): is the strongest pixel inside the mask?
- mean IoU of the mask and the pixels above half of the map's peak.

"lung centres" asks the image nothing: a point at the centre of each lung (its hit rate is the mean of the two), and the
two lung fields as ellipses; one of each in a lateral view. "anywhere" is the mean share of the image that masks cover:
the hit rate of a point drawn at random. Findings count whether the model sees them or not; a second line takes only
those to which it gives a probability of one half or more.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image

from radweave.core.study import Split, Study
from radweave.data.cache.images import build_cache
from radweave.data.dataset import Dataset
from radweave.data.loader import Example, collate, ordered_views, view_id
from radweave.data.square import to_square
from radweave.engine.prepare import prepare
from radweave.engine.restore import Run, restore
from radweave.inference.explain.maps import PALETTE
from radweave.nn.cam import CAM_KINDS, view_maps
from radweave.nn.connector import encode_views

# (across, down, half width, half height) as shares of a phantom's image: both lungs from the front, one from the side.
LUNGS = {1: ((0.28, 0.45, 0.13, 0.3), (0.72, 0.45, 0.13, 0.3)), 2: ((0.5, 0.48, 0.22, 0.3),)}
TILE = 192


@dataclass(slots=True)
class Tally:
    """Hits and overlaps of one way to point."""

    hits: list[float]
    overlaps: list[float]

    def add(self, hit: float, overlap: float) -> None:
        self.hits.append(hit)
        self.overlaps.append(overlap)

    def figures(self) -> dict[str, float]:
        return {"hit_rate": float(np.mean(self.hits)), "mean_iou": float(np.mean(self.overlaps))}


def class_masks(dataset: Dataset, study: Study, views: Sequence[int], size: int) -> dict[str, NDArray[np.bool_]]:
    """Class -> (V, size, size): where its findings are drawn; ``views`` are indices into the study's images."""
    masks: dict[str, NDArray[np.bool_]] = {}
    for finding in study.truth:
        for place, image in enumerate(views):
            if image >= len(finding.get("masks", ())):
                continue
            pixels = np.asarray(Image.open(dataset.path / finding["masks"][image]), dtype=np.float32) / 255
            drawn = to_square(pixels, size) > 127
            joined = masks.setdefault(finding["name"], np.zeros((len(views), size, size), dtype=bool))
            joined[place] |= drawn
    return masks


def iou(left: NDArray[np.bool_], right: NDArray[np.bool_]) -> float:
    return float((left & right).sum() / max(1, (left | right).sum()))


def point_at(heat: NDArray[np.float32], mask: NDArray[np.bool_]) -> tuple[float, float]:
    """Hit and IoU of one map; a map that is 0 everywhere points nowhere."""
    if heat.max() <= 0:
        return 0.0, 0.0
    return float(mask.flat[int(heat.argmax())]), iou(heat >= heat.max() / 2, mask)


def point_at_lungs(kind: int, mask: NDArray[np.bool_]) -> tuple[float, float]:
    size = mask.shape[0]
    down, across = np.mgrid[0:size, 0:size] / size
    lungs = LUNGS.get(kind, LUNGS[1])
    fields = np.zeros_like(mask)
    for x, y, half_x, half_y in lungs:
        fields |= ((across - x) / half_x) ** 2 + ((down - y) / half_y) ** 2 <= 1
    hits = [mask[int(y * size), int(x * size)] for x, y, _, _ in lungs]
    return float(np.mean(hits)), iou(fields, mask)


def studies(run: Run, dataset: Dataset, split: Split) -> Iterator[tuple[Example, Study, list[int]]]:
    """Examples as the model reads them, their studies, and which image each view is."""
    data = run.experiment.data
    cache = build_cache(dataset, size=data.image_size)
    prepared = prepare(dataset, split, run.experiment, run.tokenizer, cache, need_text=False)
    by_id = {study.study_id: study for study in dataset.studies(split)}
    for example in prepared.examples:
        study = by_id[example.study_id]
        views = ordered_views([ref for ref in study.images if ref.path in cache.rows], data.max_views)
        yield example, study, [study.images.index(ref) for ref in views]


def maps_of(run: Run, example: Example, classes: Sequence[int]) -> tuple[dict[str, NDArray[np.float32]], list[float]]:
    """Kind -> (classes, V, size, size), and the probabilities of those classes."""
    model: Any = run.model
    batch = collate([example], pad_id=0)
    device = next(model.parameters()).device
    with torch.no_grad():
        views = encode_views(model.vision_encoder, batch.to(device))
        logits = model.score(views.tokens, views.view_mask)[0]
    size = run.experiment.data.image_size
    found = {}
    for kind in CAM_KINDS:
        maps = view_maps(kind, views, lambda tokens: model.score(tokens, views.view_mask), classes)[:, 0]
        large = F.interpolate(maps, size=(size, size), mode="bilinear", align_corners=False)
        found[kind] = large.cpu().numpy()
    return found, logits.sigmoid()[list(classes)].tolist()


def overlay(pixels: NDArray[np.uint8], heat: NDArray[np.float32] | None, mask: NDArray[np.bool_]) -> Image.Image:
    """A view with a map in colours and the border of the mask in white."""
    picture = Image.fromarray(pixels).convert("RGBA").resize((TILE, TILE))
    if heat is not None and heat.max() > 0:
        colours = PALETTE[np.rint(heat / heat.max() * 254).astype(np.uint8)]
        picture.alpha_composite(Image.fromarray(colours, "RGBA").resize((TILE, TILE)))
    large = np.asarray(Image.fromarray(mask).resize((TILE, TILE)))
    inner = large & np.roll(large, 2, 0) & np.roll(large, -2, 0) & np.roll(large, 2, 1) & np.roll(large, -2, 1)
    drawn = np.asarray(picture.convert("RGB")).copy()
    drawn[large & ~inner] = 255
    return Image.fromarray(drawn)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--split", default="test")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    run, dataset = restore(options.run), Dataset.open(options.data)
    names, size = list(run.card.classes), run.experiment.data.image_size
    ways = (*CAM_KINDS, "lung centres")
    tallies = {group: {way: Tally([], []) for way in ways} for group in ("all", "seen")}
    by_class: dict[str, dict[str, Tally]] = {}
    areas: list[float] = []
    rows: dict[str, list[Image.Image]] = {}
    surest: dict[str, float] = {}
    for example, study, views in studies(run, dataset, options.split):
        masks = {name: mask for name, mask in class_masks(dataset, study, views, size).items() if name in names}
        if not masks:
            continue
        maps, probabilities = maps_of(run, example, [names.index(name) for name in masks])
        for number, (name, mask) in enumerate(masks.items()):
            for view in np.flatnonzero(mask.any((1, 2))).tolist():
                areas.append(float(mask[view].mean()))
                pointed = {kind: point_at(maps[kind][number, view], mask[view]) for kind in CAM_KINDS}
                pointed["lung centres"] = point_at_lungs(view_id(study.images[views[view]].view), mask[view])
                for way, (hit, overlap) in pointed.items():
                    tallies["all"][way].add(hit, overlap)
                    by_class.setdefault(name, {w: Tally([], []) for w in ways})[way].add(hit, overlap)
                    if probabilities[number] >= 0.5:
                        tallies["seen"][way].add(hit, overlap)
                if view == 0 and probabilities[number] > surest.get(name, 0.0):
                    surest[name] = probabilities[number]
                    tiles = [overlay(example.pixels[view], None, mask[view])]
                    tiles += [overlay(example.pixels[view], maps[kind][number, view], mask[view]) for kind in CAM_KINDS]
                    rows[name] = tiles
    report(tallies, by_class, areas, rows, options)


def report(
    tallies: dict[str, dict[str, Tally]],
    by_class: dict[str, dict[str, Tally]],
    areas: list[float],
    rows: dict[str, list[Image.Image]],
    options: argparse.Namespace,
) -> None:
    result: dict[str, Any] = {"split": options.split, "findings": len(areas), "anywhere": float(np.mean(areas))}
    for group, ways in tallies.items():
        count = len(next(iter(ways.values())).hits)
        print(f"{group}: {count} findings in views")
        result[group] = {"findings": count}
        for way, tally in ways.items() if count else ():
            figures = tally.figures()
            result[group][way] = figures
            print(f"  {way:13} hit rate {figures['hit_rate']:.3f}   mean IoU {figures['mean_iou']:.3f}")
    print(f"  {'anywhere':13} hit rate {result['anywhere']:.3f}")
    result["classes"] = {
        name: {"findings": len(ways["gradcam"].hits), **{way: tally.figures() for way, tally in ways.items()}}
        for name, ways in sorted(by_class.items())
    }
    for name, ways in result["classes"].items():
        best = max(CAM_KINDS, key=lambda kind: ways[kind]["hit_rate"])
        print(
            f"  {name:27} {ways['findings']:4}  gradcam {ways['gradcam']['hit_rate']:.2f}  "
            f"best {best} {ways[best]['hit_rate']:.2f}  lung centres {ways['lung centres']['hit_rate']:.2f}"
        )
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    if options.picture and rows:
        sheet = Image.new("RGB", (TILE * (1 + len(CAM_KINDS)), TILE * len(rows)))
        for number, name in enumerate(sorted(rows)):
            for place, tile in enumerate(rows[name]):
                sheet.paste(tile, (place * TILE, number * TILE))
        sheet.save(options.picture)
        print(f"{options.picture}: per class the study the model is surest of; image and mask, {', '.join(CAM_KINDS)}")
        print(f"from top to bottom: {', '.join(sorted(rows))}")


if __name__ == "__main__":
    main()
