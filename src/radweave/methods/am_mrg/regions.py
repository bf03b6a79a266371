"""From class activation maps to the visual bank: regions that stand for a disease, as the encoder sees them.

Per study and positive disease: the map, its mean in cells of 16 x 16 pixels, the cells above tau (the six strongest
where there are more), the image with all else set to 0 (Eq. 1), and of its encoding the tokens at those cells.

Source: Wang et al., AM-MRG, Sec. III-B and III-C, Fig. 4.
Deviations: a region's pattern is the mean of the encoder's tokens that its cell touches; cells that touch the same
tokens are one region. The paper's code encodes every cell enlarged to a whole image and projects the result with random
weights; Eq. 1 masks, and here the Hopfield network's own projections are the only ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from radweave.base.batch import Batch
from radweave.base.config import Config, Count, Pixels
from radweave.contract.view import TrainingView
from radweave.data.loader import collate
from radweave.memory.bank import Bank, patient_code
from radweave.nn.cam import CamKind, cell_means, view_maps
from radweave.nn.supervision import POSITIVE
from radweave.nn.views import encode_views

STUDIES_AT_ONCE = 16
Score = Callable[[Tensor, Tensor], Tensor]
"""From the tokens of all views (B, V, S, D) and their mask (B, V) to disease logits (B, K)."""


class RegionConfig(Config):
    """How regions are found. ``cell`` is in pixels; ``threshold`` is a share of a study's strongest activation."""

    cam: CamKind = "gradcam"
    cell: Pixels = 16
    threshold: float = Field(default=0.75, ge=0, lt=1)
    regions_per_image: Count = 6
    regions_per_disease: Count = 500


@dataclass(frozen=True, slots=True)
class Region:
    """One cell of one view, and how strongly its disease's map is there."""

    view: int
    row: int
    column: int
    activation: float


def find_regions(cells: Float[Tensor, "views rows columns"], threshold: float, most: int) -> list[Region]:
    """Cells whose mean exceeds ``threshold``, strongest first, at most ``most``; equals in reading order."""
    flat = cells.flatten()
    order = torch.argsort(flat, descending=True, stable=True)[:most]
    views, rows, columns = (axis.tolist() for axis in np.unravel_index(order.cpu().numpy(), tuple(cells.shape)))
    places = zip(views, rows, columns, flat[order].tolist(), strict=True)
    return [Region(view, row, column, value) for view, row, column, value in places if value > threshold]


def masked_views(
    pixels: Float[Tensor, "views 1 h w"], regions: Sequence[Region], cell: int
) -> Float[Tensor, "views 1 h w"]:
    """Every pixel outside the regions set to 0 (Eq. 1)."""
    mask = torch.zeros_like(pixels)
    for region in regions:
        top, left = region.row * cell, region.column * cell
        mask[region.view, :, top : top + cell, left : left + cell] = 1.0
    return pixels * mask


def touched(first: int, cell: int, image_size: int, tokens: int) -> tuple[int, int]:
    """The range of token rows (or columns) that the cell starting at pixel ``first`` overlaps."""
    last = min(first + cell, image_size)
    return first * tokens // image_size, -(-last * tokens // image_size)


def region_patterns(
    tokens: Float[Tensor, "views s d"], grid: tuple[int, ...], regions: Sequence[Region], cell: int, image_size: int
) -> tuple[list[Region], Float[Tensor, "n d"]]:
    """Mean token of each region; of regions that touch the same tokens the strongest is kept."""
    height, width = grid
    kept, patterns, seen = [], [], set()
    for region in regions:
        rows = touched(region.row * cell, cell, image_size, height)
        columns = touched(region.column * cell, cell, image_size, width)
        if (region.view, rows, columns) in seen:
            continue
        seen.add((region.view, rows, columns))
        view = tokens[region.view].view(height, width, -1)
        kept.append(region)
        patterns.append(view[slice(*rows), slice(*columns)].mean((0, 1)))
    return kept, torch.stack(patterns) if patterns else tokens.new_zeros(0, tokens.shape[-1])


def draw_studies(
    class_states: Int[Tensor, "studies classes"], per_disease: int, seed: int
) -> list[tuple[int, list[int]]]:
    """Which studies are looked at for which diseases: of each disease at most ``per_disease`` with a positive label.

    Returns:
        (row, diseases) by row. The draw hangs on the labels and the seed only.
    """
    wanted: dict[int, list[int]] = {}
    for number in range(class_states.shape[1]):
        rows = torch.nonzero(class_states[:, number] == POSITIVE).flatten().numpy()
        order = np.random.default_rng([seed, number]).permutation(rows)[:per_disease]
        for row in order.tolist():
            wanted.setdefault(row, []).append(number)
    return sorted(wanted.items())


@torch.no_grad()
def build_visual_bank(training: TrainingView, encoder: nn.Module, score: Score, config: RegionConfig) -> Bank:
    """Mine the training split: ``patterns`` (N, D), and rows with study, patient code, disease, view, cell, activation.

    Of a disease with more regions than allowed a seeded draw stays, so that no study fills the bank.
    """
    device = next(encoder.parameters()).device
    wanted = draw_studies(training.class_states, config.regions_per_disease, training.seed)
    patterns: list[list[Tensor]] = [[] for _ in training.classes]
    rows: list[list[dict[str, Any]]] = [[] for _ in training.classes]
    for start in range(0, len(wanted), STUDIES_AT_ONCE):
        chunk = wanted[start : start + STUDIES_AT_ONCE]
        batch = collate([training.examples[row] for row, _ in chunk], pad_id=training.pad_id).to(device)
        for number, found, row in _mine(batch, [diseases for _, diseases in chunk], encoder, score, config):
            patterns[number].append(found)
            rows[number].append({**row, "disease": training.classes[number]})
    return _capped(patterns, rows, config.regions_per_disease, training.seed)


def _mine(
    batch: Batch, diseases: Sequence[Sequence[int]], encoder: nn.Module, score: Score, config: RegionConfig
) -> list[tuple[int, Tensor, dict[str, Any]]]:
    """(disease, pattern, row) of every region of a batch."""
    assert batch.pixel_values is not None
    size = batch.pixel_values.shape[-1]
    views = encode_views(encoder, batch)
    asked = sorted({number for numbers in diseases for number in numbers})
    maps = view_maps(config.cam, views, lambda tokens: score(tokens, views.view_mask), asked)
    cells = cell_means(maps.flatten(0, 2), size, config.cell)
    cells = cells.view(*maps.shape[:3], *cells.shape[1:])
    mined = []
    for study, numbers in enumerate(diseases):
        for number in numbers:
            cell_map = cells[asked.index(number), study]
            regions = find_regions(cell_map, config.threshold, config.regions_per_image)
            if not regions:
                continue
            masked = masked_views(batch.pixel_values[study], regions, config.cell)
            encoded = encoder(masked)
            kept, found = region_patterns(encoded.tokens, encoded.grid, regions, config.cell, size)
            for region, pattern in zip(kept, found.cpu(), strict=True):
                row = {
                    "study_id": batch.study_ids[study],
                    "patient": patient_code(batch.patient_ids[study]),
                    "view": region.view,
                    "cell": [region.row, region.column],
                    "activation": round(region.activation, 4),
                }
                mined.append((number, pattern, row))
    return mined


def _capped(patterns: list[list[Tensor]], rows: list[list[dict[str, Any]]], most: int, seed: int) -> Bank:
    kept_patterns, kept_rows = [], []
    for number, found in enumerate(patterns):
        order = np.random.default_rng([seed, number, 1]).permutation(len(found))[:most]
        for place in sorted(order.tolist()):
            kept_patterns.append(found[place])
            kept_rows.append(rows[number][place])
    stacked = torch.stack(kept_patterns) if kept_patterns else torch.zeros(0, 1)
    return Bank({"patterns": stacked}, tuple(kept_rows))
