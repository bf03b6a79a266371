"""Does the semantic difference map lie on the findings? A trained `diffvp` run against the phantom's 3D masks, by hand.

    python bench/diffvp_difference_map.py RUN DATASET --studies 200 --figure diffvp_difference.png --table map.json

DATASET is a CT phantom written with ``--masks``; its test split is used, with the run's own draws of references. Four
maps of every abnormal study, over its voxels:

- difference: the method's map, sum_i w_i A_i, from the token grid to voxels by trilinear interpolation.
- attention: the same without difference, mean_i A_i.
- other study: the difference map of the next study, which knows the usual places and nothing of this patient.
- pixels: |X - X_ref| of target and reference, voxel by voxel; ``pixels, smooth`` the same averaged over each cell of
  the token grid, so that it is as coarse as the others.

and these figures of each, with the union of the study's masks:

- pointing: does the voxel with the largest value lie in a mask? Chance: the share of voxels in masks.
- top 5 %: the share of the strongest 5 % of all voxels that lie in a mask. Chance: the same share.
- found: per finding, the share of its mask that the strongest 5 % cover. Chance: 0.05.

Intervals are 95 % bootstrap intervals over studies, of the differences from the map ``difference``.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from radweave.data.cache.images import build_cache
from radweave.data.dataset import Dataset
from radweave.data.loader import Example, collate
from radweave.engine.prepare import prepare
from radweave.engine.restore import Run, restore
from radweave.methods.diffvp.model import DiffvpModel, Forward
from radweave.methods.diffvp.pool import STUDY_DRAW

Volume = NDArray[np.float32]
Mask = NDArray[np.bool_]
KINDS = ("difference", "attention", "other study", "pixels", "pixels, smooth")
TOP = 0.05


@dataclass(frozen=True, slots=True)
class Sight:
    """A study: its scan and its reference's (D, H, W), its maps over voxels, and the masks of its findings."""

    study_id: str
    scan: Volume
    reference: Volume
    maps: dict[str, Volume]
    masks: list[tuple[str, Mask]]
    top_share: float

    @property
    def union(self) -> Mask:
        return np.any([mask for _, mask in self.masks], axis=0)


def examples_of(run: Run, dataset: Dataset) -> tuple[list[Example], dict[str, Example]]:
    """Test examples, and those of the training split by study."""
    data = run.experiment.data
    cache = build_cache(dataset, size=data.image_size, ct=data.ct)
    test, train = (
        prepare(dataset, split, run.experiment, run.tokenizer, cache, need_text=False).examples
        for split in ("test", "train")
    )
    return test, {example.study_id: example for example in train}


def look(run: Run, model: DiffvpModel, dataset: Dataset, limit: int) -> list[Sight]:
    """Maps of the abnormal test studies."""
    test, train = examples_of(run, dataset)
    truths = {study.study_id: study.truth for study in dataset.studies("test")}
    chosen = [example for example in test if any(f.get("masks") for f in truths[example.study_id])][:limit]
    seen = []
    for example in chosen:
        batch = collate([example], pad_id=0)
        with torch.inference_mode():
            study = Forward(model, batch, STUDY_DRAW)
            views, difference = study.views, study.difference_maps()
            importance = study.comparison.importance()
        drawn = study.comparison.reference.drawn[0]
        assert drawn is not None
        scan, reference = (side.pixels[0].astype(np.float32) / 255 for side in (example, train[drawn]))
        apart = torch.from_numpy(np.abs(scan - reference))
        cells = {
            "difference": difference[0, 0].view(views.grid),
            "attention": study.latents.attention[0].mean(0).view(views.grid),
            "pixels, smooth": F.adaptive_avg_pool3d(apart[None, None], views.grid)[0, 0],
        }
        maps = {name: to_voxels(values.float(), scan.shape) for name, values in cells.items()}
        maps["pixels"] = apart.numpy()
        masks = [
            (finding["name"], mask)
            for finding in truths[example.study_id]
            for file in finding.get("masks", [])
            if (mask := read_mask(dataset.path / file, scan.shape)).any()
        ]
        strongest = importance[0].topk(min(8, importance.shape[1])).values.sum() / importance[0].sum()
        if masks:
            seen.append(Sight(example.study_id, scan, reference, maps, masks, float(strongest)))
    for sight, other in zip(seen, [*seen[1:], seen[0]], strict=True):
        sight.maps["other study"] = other.maps["difference"]
    return seen


def to_voxels(cells: torch.Tensor, size: tuple[int, ...]) -> Volume:
    values: Volume = F.interpolate(cells[None, None], size=size, mode="trilinear", align_corners=False)[0, 0].numpy()
    return values


def read_mask(path: Path, size: tuple[int, ...]) -> Mask:
    """A mask of the phantom as the model sees its scan: z to the head, y to the back, x to the left, resized."""
    image = nib.load(path)
    codes = nib.aff2axcodes(image.affine)
    values = np.asarray(image.dataobj).transpose(2, 1, 0)
    turned = [axis for axis, code in enumerate(reversed(codes)) if code in "RAI"]
    inside = torch.from_numpy(np.flip(values, turned).astype(np.float32))[None, None]
    resized: Mask = F.interpolate(inside, size=size, mode="nearest")[0, 0].numpy() > 127
    return resized


def strongest_voxels(values: Volume) -> Mask:
    """The strongest 5 % of all voxels."""
    count = round(TOP * values.size)
    inside = np.zeros(values.size, dtype=bool)
    inside[np.argpartition(values.ravel(), -count)[-count:]] = True
    return inside.reshape(values.shape)


def figures(sight: Sight) -> dict[str, dict[str, float]]:
    union, rows = sight.union, {}
    for name in KINDS:
        values = sight.maps[name]
        top = strongest_voxels(values)
        rows[name] = {
            "pointing": float(union.flat[int(values.argmax())]),
            "top": float(union[top].mean()),
            "found": float(np.mean([top[mask].mean() for _, mask in sight.masks])),
        }
    rows["chance"] = {"pointing": float(union.mean()), "top": float(union.mean()), "found": TOP}
    return rows


def summary(sights: list[Sight]) -> dict[str, dict[str, object]]:
    """Means per map, and intervals of (difference - map)."""
    rows = [figures(sight) for sight in sights]
    picks = np.random.default_rng(0).integers(0, len(rows), (2000, len(rows)))
    result: dict[str, dict[str, object]] = {}
    for name in (*KINDS, "chance"):
        result[name] = {}
        for key in ("pointing", "top", "found"):
            values = np.array([row[name][key] for row in rows])
            ahead = np.array([row["difference"][key] for row in rows]) - values
            low, high = np.percentile(ahead[picks].mean(1), [2.5, 97.5])
            result[name][key] = round(float(values.mean()), 4)
            result[name][f"{key}, difference ahead by"] = [round(float(low), 4), round(float(high), 4)]
    return result


def per_class(sights: list[Sight]) -> dict[str, dict[str, float]]:
    """Per class, how much of its masks the strongest 5 % of each map cover."""
    found: dict[str, dict[str, list[float]]] = {}
    for sight in sights:
        tops = {name: strongest_voxels(sight.maps[name]) for name in KINDS}
        for label, mask in sight.masks:
            for name, top in tops.items():
                found.setdefault(label, {}).setdefault(name, []).append(float(top[mask].mean()))
    return {
        label: {"findings": len(next(iter(rows.values())))}
        | {name: round(float(np.mean(values)), 4) for name, values in rows.items()}
        for label, rows in sorted(found.items())
    }


def tile(grey: Volume, heat: Volume | None, mask: Mask | None, side: int) -> Image.Image:
    """A slice, reddened by a map (0 to its volume's peak, already scaled), with the mask's border in green."""
    size = (side, side)
    base = np.asarray(Image.fromarray((grey * 255).astype(np.uint8)).resize(size), dtype=np.float64)
    pixels = np.repeat(base[..., None], 3, axis=2)
    if heat is not None:
        red = np.asarray(Image.fromarray((heat.clip(0, 1) * 255).astype(np.uint8)).resize(size), dtype=np.float64) / 255
        pixels = np.stack([base + (255 - base) * 0.7 * red, base * (1 - 0.5 * red), base * (1 - 0.5 * red)], axis=-1)
    if mask is not None:
        inside = np.asarray(Image.fromarray(mask).resize(size, Image.Resampling.NEAREST))
        edge = inside.copy()
        for axis in (0, 1):
            for step in (1, -1):
                edge &= np.roll(inside, step, axis)
        pixels[inside & ~edge] = (0, 230, 90)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def draw_figure(sights: list[Sight], path: Path, side: int = 192) -> None:
    """Axial slices of three studies: the best quarter, the median and the worst quarter by the share found."""
    ranked = sorted(sights, key=lambda sight: figures(sight)["difference"]["found"])
    shown = [ranked[int(share * (len(ranked) - 1))] for share in (0.75, 0.5, 0.25)]
    titles = ("target, findings", "reference", "difference map", "|target - reference|", "attention alone")
    sheet = Image.new("RGB", (len(titles) * side, 22 + len(shown) * (side + 4)), "white")
    draw = ImageDraw.Draw(sheet)
    for column, title in enumerate(titles):
        draw.text((column * side + 4, 5), title, fill="black")
    for row, sight in enumerate(shown):
        level = int(sight.union.sum((1, 2)).argmax())
        grey, mask = sight.scan[level], sight.union[level]
        heats = [
            sight.maps[name] / max(float(sight.maps[name].max()), 1e-9)
            for name in ("difference", "pixels", "attention")
        ]
        tiles = [tile(grey, None, mask, side), tile(sight.reference[level], None, None, side)]
        tiles += [tile(grey, heat[level], mask, side) for heat in heats]
        for column, image in enumerate(tiles):
            sheet.paste(image, (column * side, 22 + row * (side + 4)))
    sheet.save(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--studies", type=int, default=200)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--table", type=Path)
    args = parser.parse_args()
    run = restore(args.run)
    model = run.model
    if not isinstance(model, DiffvpModel) or run.experiment.data.modality != "ct":
        parser.error("the run is not one of the method diffvp on scans")
    sights = look(run, model, Dataset.open(args.dataset), args.studies)
    overall, classes = summary(sights), per_class(sights)
    shares = [sight.top_share for sight in sights]
    print(f"{len(sights)} studies; the 8 most important latent tokens hold {np.mean(shares):.3f} of the importance")
    for name, row in overall.items():
        print(
            f"{name:16s} pointing {row['pointing']:.3f}  top 5 % {row['top']:.3f}  found {row['found']:.3f}"
            f"   found, difference ahead by {row['found, difference ahead by']}"
        )
    for label, found in classes.items():
        print(f"  {label:38s}", "  ".join(f"{key} {value}" for key, value in found.items()))
    if args.table:
        content = {"studies": len(sights), "top_8_share": float(np.mean(shares)), "maps": overall, "classes": classes}
        args.table.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if args.figure:
        draw_figure(sights, args.figure)


if __name__ == "__main__":
    main()
