"""From class activation maps to the visual bank: regions that stand for a disease, as the encoder sees them.

Per training study and positive disease: the map, its mean in cells of 16 x 16 pixels, the cells above tau (the six
strongest where there are more), the image with all else set to 0 (Eq. 1), and of its encoding the tokens at those
cells. All studies are mined, and of a disease's regions a draw fills its cap.

Source: Wang et al., AM-MRG, Sec. III-B, III-C and IV-B, Fig. 4.
Deviations: the map is not smoothed between tokens before cells are averaged (``cell_means``). A region's pattern is the
mean of the encoder's tokens that its cell touches; cells that touch the same tokens are one region. The paper's code
encodes every cell enlarged to a whole image and projects the result with random weights; Eq. 1 masks, and here the
Hopfield network's own projections are the only ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from radweave.core.batch import Batch
from radweave.core.config import Config, Count, Pixels
from radweave.data.loader import collate
from radweave.methods.model import TrainingView
from radweave.nn.cam import CamKind, cell_means, view_maps
from radweave.nn.connector import encode_views
from radweave.nn.heads import POSITIVE
from radweave.nn.memory.bank import Bank, patient_code

STUDIES_AT_ONCE = 16
Score = Callable[[Tensor, Tensor], Tensor]
"""From the tokens of all views (B, V, S, D) and their mask (B, V) to disease logits (B, K)."""
Span = tuple[int, int]
Item = TypeVar("Item")
Mined = tuple[Tensor, dict[str, Any]]
"""A region's pattern, and its row in the bank."""


class RegionConfig(Config):
    """Settings of the regions. ``cell`` is in pixels; ``threshold`` is a share of a study's strongest activation."""

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


def find_regions(cells: Float[Tensor, "views rows columns"], threshold: float) -> list[Region]:
    """Cells whose mean exceeds ``threshold``, strongest first; equals in reading order."""
    flat = cells.flatten()
    order = torch.argsort(flat, descending=True, stable=True)[: int((flat > threshold).sum())]
    views, rows, columns = (axis.tolist() for axis in np.unravel_index(order.cpu().numpy(), tuple(cells.shape)))
    places = zip(views, rows, columns, flat[order].tolist(), strict=True)
    return [Region(view, row, column, value) for view, row, column, value in places]


def apart(regions: Sequence[Region], grid: tuple[int, ...], cell: int, image_size: int, most: int) -> list[Region]:
    """The first ``most`` regions, leaving out those that touch the same tokens as one before them."""
    regions_found: dict[tuple[int, Span, Span], Region] = {}
    for region in regions:
        regions_found.setdefault((region.view, *touched(region, grid, cell, image_size)), region)
        if len(regions_found) == most:
            break
    return list(regions_found.values())


def masked_views(
    pixels: Float[Tensor, "views 1 h w"], regions: Sequence[Region], cell: int
) -> Float[Tensor, "views 1 h w"]:
    """Every pixel outside the regions set to 0 (Eq. 1)."""
    mask = torch.zeros_like(pixels)
    for region in regions:
        top, left = region.row * cell, region.column * cell
        mask[region.view, :, top : top + cell, left : left + cell] = 1.0
    return pixels * mask


def touched(region: Region, grid: tuple[int, ...], cell: int, image_size: int) -> tuple[Span, Span]:
    """The ranges of token rows and columns that a region's cell overlaps."""
    spans = []
    for first, tokens in zip((region.row * cell, region.column * cell), grid, strict=True):
        last = min(first + cell, image_size)
        spans.append((first * tokens // image_size, -(-last * tokens // image_size)))
    return spans[0], spans[1]


def region_patterns(
    tokens: Float[Tensor, "views s d"], grid: tuple[int, ...], regions: Sequence[Region], cell: int, image_size: int
) -> Float[Tensor, "n d"]:
    """Mean token of each region."""
    patterns = []
    for region in regions:
        rows, columns = touched(region, grid, cell, image_size)
        view = tokens[region.view].view(*grid, -1)
        patterns.append(view[slice(*rows), slice(*columns)].mean((0, 1)))
    return torch.stack(patterns)


def stated_diseases(class_states: Int[Tensor, "studies classes"]) -> list[tuple[int, list[int]]]:
    """(row, diseases) of every study with a positive label."""
    rows = (class_states == POSITIVE).tolist()
    regions_found = [
        (row, [number for number, positive in enumerate(states) if positive]) for row, states in enumerate(rows)
    ]
    return [(row, diseases) for row, diseases in regions_found if diseases]


class CappedDraw(Generic[Item]):
    """At most ``most`` of what is offered, drawn so that each has the same chance, whatever their number is.

    Every offer gets a random key, and the smallest keys stay: no more than ``most`` are ever held.
    """

    def __init__(self, most: int, seed: Sequence[int]) -> None:
        self._most = most
        self._random = np.random.default_rng(seed)
        self._offered = 0
        self._heap: list[tuple[float, int, Item]] = []

    def offer(self, item: Item) -> None:
        entry = (-self._random.random(), self._offered, item)
        self._offered += 1
        if len(self._heap) < self._most:
            heapq.heappush(self._heap, entry)
        else:
            heapq.heappushpop(self._heap, entry)

    def drawn(self) -> list[Item]:
        """The items that were drawn, in the order in which it was offered."""
        return [item for _, _, item in sorted(self._heap, key=itemgetter(1))]


@torch.no_grad()
def build_visual_bank(training: TrainingView, encoder: nn.Module, score: Score, config: RegionConfig) -> Bank:
    """Mine the whole training split: ``patterns`` (N, D), and rows with study, patient code, disease, view, cell,
    activation.

    Of a disease with more regions than allowed a seeded draw stays, so that no study fills the bank; one with fewer
    has all there are.
    """
    device = next(encoder.parameters()).device
    wanted = stated_diseases(training.class_states)
    draws: list[CappedDraw[Mined]] = [
        CappedDraw(config.regions_per_disease, [training.seed, number]) for number in range(len(training.classes))
    ]
    for start in range(0, len(wanted), STUDIES_AT_ONCE):
        chunk = wanted[start : start + STUDIES_AT_ONCE]
        batch = collate([training.examples[row] for row, _ in chunk], pad_id=training.pad_id).to(device)
        for number, regions_found, row in _mine(batch, [diseases for _, diseases in chunk], encoder, score, config):
            draws[number].offer((regions_found, {**row, "disease": training.classes[number]}))
    patterns_drawn = [mined for draw in draws for mined in draw.drawn()]
    patterns = torch.stack([pattern for pattern, _ in patterns_drawn]) if patterns_drawn else torch.zeros(0, 1)
    return Bank({"patterns": patterns}, tuple(row for _, row in patterns_drawn))


def _mine(
    batch: Batch, diseases: Sequence[Sequence[int]], encoder: nn.Module, score: Score, config: RegionConfig
) -> list[tuple[int, Tensor, dict[str, Any]]]:
    """(disease, pattern, row) of every region of a batch."""
    assert batch.pixel_values is not None
    size = batch.pixel_values.shape[-1]
    views = encode_views(encoder, batch)
    classes = sorted({number for numbers in diseases for number in numbers})
    maps = view_maps(config.cam, views, lambda tokens: score(tokens, views.view_mask), classes)
    cells = cell_means(maps.flatten(0, 2), size, config.cell)
    cells = cells.view(*maps.shape[:3], *cells.shape[1:])
    mined = []
    for study, numbers in enumerate(diseases):
        for number in numbers:
            cell_map = cells[classes.index(number), study]
            above = find_regions(cell_map, config.threshold)
            regions = apart(above, views.grid, config.cell, size, config.regions_per_image)
            if not regions:  # a map without any positive place
                continue
            masked = masked_views(batch.pixel_values[study], regions, config.cell)
            encoded = encoder(masked)
            regions_found = region_patterns(encoded.tokens, encoded.grid, regions, config.cell, size)
            for region, pattern in zip(regions, regions_found.cpu(), strict=True):
                row = {
                    "study_id": batch.study_ids[study],
                    "patient": patient_code(batch.patient_ids[study]),
                    "view": region.view,
                    "cell": [region.row, region.column],
                    "activation": round(region.activation, 4),
                }
                mined.append((number, pattern, row))
    return mined
