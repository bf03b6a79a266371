"""Places of findings over the tokens of a frozen encoder: a map, boxes, sides and zones of each class.

    h_s   = GELU(LN(W z_s + P(x_s) + e_view)),  h <- h + GELU(C * h)      z standardised tokens, x_s middle of the cell
    m_cs  = logit that cell s shows class c
    b_cs  = corners of the box of class c that cell s belongs to
    l_cp  = sum_s a_cs u_cp(h_s),  a_c = softmax_s m_c                    p a side or a zone

C is a convolution over the cells of one view or scan, P two layers, u linear. Three kinds of targets train it, each as
far as the training split has it: label states (the largest cells of a map say if the class is there), boxes (the cells
that a box covers, and its corners) and places in the words of reports. Without boxes, maps learn from the other two
alone.

Sources: Tian et al., "FCOS", ICCV 2019 (each cell of an object gives its box); Ilse et al., "Attention-based deep
multiple instance learning", ICML 2018 (from places of studies to weights of cells); Wang et al., "ChestX-ray8", CVPR
2017 (log-sum-exp pooling of maps, boxes by their threshold).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from radweave.nn.connector import NUM_VIEW_KINDS, ViewTokens

LATERAL = 2
"""The view kind that shows both sides in one place."""
SAME, MOST_BOXES = 0.2, 4
"""Overlap from which on two boxes mark one finding, and the most boxes of a class on one image."""
CELLS = CORNERS = 4.0
"""Weights of the loss of cells, and of the distance of corners beside their overlap."""
SHARPNESS = 4.0
"""Of the pooling: r of log(mean(exp(r m))) / r, between the mean and the largest cell."""


@dataclass(frozen=True, slots=True)
class PlaceLogits:
    """``maps`` (B, V, S, K), ``boxes`` (B, V, S, K, 2 n) corners in array order and shares of the model's input,
    ``places`` (B, K, P), and ``present`` (B, K), of the class being there.
    """

    maps: Float[Tensor, "batch views cells classes"]
    boxes: Float[Tensor, "batch views cells classes corners"]
    places: Float[Tensor, "batch classes places"]
    present: Float[Tensor, "batch classes"]


@dataclass(frozen=True, slots=True)
class PlaceTargets:
    """Targets of B studies.

    ``states`` (B, K) are 1 for there, 0 for not there, NaN for unknown. ``places`` (B, K, P) are 1 and 0, NaN where the
    report does not say. ``boxes`` (M, 3 + 2 n) has a row for each box: study, view, class, and its corners in array
    order and shares of the model's input.
    """

    states: Float[Tensor, "batch classes"]
    places: Float[Tensor, "batch classes places"]
    boxes: Float[Tensor, "boxes numbers"]


def cell_edges(grid: Sequence[int]) -> tuple[Float[Tensor, "cells axes"], Float[Tensor, "cells axes"]]:
    """Low and high corner of every cell in array order and shares of the input, cells in row-major order."""
    low = torch.cartesian_prod(*(torch.arange(size) / size for size in grid)).view(prod(grid), len(grid))
    return low, low + 1 / torch.tensor(grid)


class PlaceHead(nn.Module):
    """Maps, boxes and places of K classes.

    Args:
        dim: width of the encoder's tokens.
        axes: 2 for radiographs, 3 for volumes.
        num_classes: K.
        num_places: P.
        hidden: width of the layers.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, dim: int, axes: int, num_classes: int, num_places: int, hidden: int) -> None:
        super().__init__()
        self.axes, self.num_classes, self.num_places = axes, num_classes, num_places
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("deviation", torch.ones(dim))
        self.tokens = nn.Linear(dim, hidden)
        self.position = nn.Sequential(nn.Linear(axes, hidden), nn.GELU(), nn.Linear(hidden, hidden))
        self.view = nn.Embedding(NUM_VIEW_KINDS, hidden)
        self.norm = nn.LayerNorm(hidden)
        convolution = nn.Conv2d if axes == 2 else nn.Conv3d
        self.context = convolution(hidden, hidden, 3, padding=1)
        self.dropout = nn.Dropout(0.2)
        self.maps = nn.Linear(hidden, num_classes)
        self.boxes = nn.Linear(hidden, num_classes * 2 * axes)
        self.places = nn.Linear(hidden, num_classes * num_places)
        self.presence = nn.Parameter(torch.stack([torch.ones(num_classes), torch.zeros(num_classes)]))

    def forward(self, views: ViewTokens) -> PlaceLogits:
        """The logits for the studies of a batch."""
        batch, num_views, cells, _ = views.tokens.shape
        low, high = cell_edges(views.grid)
        middle, extent = ((low + high) / 2).to(views.tokens), (high - low).to(views.tokens)
        hidden = self.tokens((views.tokens - self.mean) / self.deviation) + self.position(middle * 2 - 1)
        hidden = F.gelu(self.norm(hidden + self.view(views.view_ids)[:, :, None]))
        spread = hidden.flatten(0, 1).transpose(1, 2).reshape(batch * num_views, -1, *views.grid)
        hidden = hidden + F.gelu(self.context(spread)).flatten(2).transpose(1, 2).view_as(hidden)
        hidden = self.dropout(hidden)
        maps = self.maps(hidden)
        # Middle and half extent, in cells: about one cell around this one at first.
        shape = self.boxes(hidden).view(batch, num_views, cells, self.num_classes, 2, self.axes)
        centre = middle[:, None] + extent[:, None] * shape[..., 0, :]
        half = extent[:, None] * F.softplus(shape[..., 1, :])
        corners = torch.cat([centre - half, centre + half], -1).clamp(0, 1)
        weights = self._weights(maps, views)
        by_cell = self.places(hidden).view(batch, num_views, cells, self.num_classes, self.num_places)
        places = (weights[..., None] * by_cell).sum((1, 2))
        return PlaceLogits(maps, corners, places, self._present(maps, views.view_mask))

    def _weights(self, maps: Tensor, views: ViewTokens) -> Float[Tensor, "batch views cells classes"]:
        """Share of each cell in the places of a class; lateral views have none beside others."""
        sided = views.view_mask & (views.view_ids != LATERAL)
        used = torch.where(sided.any(1, keepdim=True), sided, views.view_mask)
        flat = maps.masked_fill(~used[:, :, None, None], -torch.inf).flatten(1, 2)
        return flat.softmax(1).view_as(maps)

    def _present(self, maps: Tensor, view_mask: Bool[Tensor, "batch views"]) -> Float[Tensor, "batch classes"]:
        """Logit of the class being there, from the largest cells of all views."""
        flat = (maps * SHARPNESS).masked_fill(~view_mask[:, :, None, None], -torch.inf).flatten(1, 2)
        count = (view_mask.sum(1) * maps.shape[2]).to(maps.dtype)
        pooled = (flat.logsumexp(1) - count.log()[:, None]) / SHARPNESS
        return pooled * self.presence[0] + self.presence[1]


def place_loss(logits: PlaceLogits, targets: PlaceTargets, views: ViewTokens) -> Float[Tensor, ""]:
    """Sum of the means over what is known: classes, cells and corners of boxes, places."""
    loss = _known_cross_entropy(logits.present, targets.states) + _known_cross_entropy(logits.places, targets.places)
    cells, corners = _box_losses(logits, targets, views)
    return loss + cells + corners


def _known_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean binary cross-entropy over the targets that are no NaN; 0 without any."""
    known = ~targets.isnan()
    apart = F.binary_cross_entropy_with_logits(logits, targets.nan_to_num(), reduction="none")
    return torch.where(known, apart, torch.zeros_like(apart)).sum() / known.sum().clamp(min=1)


def _box_losses(logits: PlaceLogits, targets: PlaceTargets, views: ViewTokens) -> tuple[Tensor, Tensor]:
    """Losses of the cells and of the corners.

    A cell's target is the share of it that boxes of the class cover. It is known on images with a box of the class, and
    where the class is not there. The corners are learned from the cells of a box by the share that it covers of them.
    """
    if not len(targets.boxes):
        return logits.maps.new_zeros(()), logits.maps.new_zeros(())
    covered = torch.full_like(logits.maps, torch.nan)
    absent = (targets.states == 0)[:, None, None].expand_as(covered) & views.view_mask[:, :, None, None]
    covered[absent] = 0.0
    low, high = (edges.to(logits.maps) for edges in cell_edges(views.grid))
    study, view, name = targets.boxes[:, :3].long().T
    start, end = targets.boxes[:, 3:].chunk(2, dim=1)
    shared = torch.minimum(high[None], end[:, None]) - torch.maximum(low[None], start[:, None])
    share = shared.clamp(min=0).prod(-1) / (high - low).prod(-1)
    for row, cells in enumerate(share):
        place = study[row], view[row], slice(None), name[row]
        covered[place] = torch.maximum(covered[place].nan_to_num(), cells)
    # Cells of a box that hardly reach into any count as much as those of a large one.
    weight = share / share.sum(1, keepdim=True).clamp(min=1e-6)
    drawn = logits.boxes[study, view, :, name]
    wanted = targets.boxes[:, None, 3:].expand_as(drawn)
    apart = CORNERS * (drawn - wanted).abs().mean(-1) + 1 - box_overlap(drawn, wanted)
    return CELLS * _known_cross_entropy(logits.maps, covered), (apart * weight).sum() / len(targets.boxes)


def box_overlap(boxes: Float[Tensor, "*n corners"], others: Float[Tensor, "*n corners"]) -> Float[Tensor, "*n"]:
    """Intersection over union of boxes (low corner, high corner) in pairs."""
    (low, high), (low2, high2) = boxes.chunk(2, -1), others.chunk(2, -1)
    shared = (torch.minimum(high, high2) - torch.maximum(low, low2)).clamp(min=0).prod(-1)
    union = (high - low).prod(-1) + (high2 - low2).prod(-1) - shared
    return shared / union.clamp(min=1e-9)


def boxes_of_map(
    maps: Float[Tensor, " cells"], corners: Float[Tensor, "cells corners"] | None, grid: Sequence[int], least: float
) -> list[tuple[list[float], float]]:
    """Boxes of one class on one image, with the probability of the cell that gives each; the likeliest first.

    With ``corners`` each cell of at least ``least`` gives a box, unless a likelier one overlaps it by more than
    ``SAME`` (non-maximum suppression). Without, that of all cells with half of the largest probability.
    """
    cells = maps.sigmoid()
    low, high = cell_edges(grid)
    if float(cells.max()) < least:
        return []
    if corners is None:
        chosen = cells >= cells.max() / 2
        return [([*low[chosen].amin(0).tolist(), *high[chosen].amax(0).tolist()], float(cells.max()))]
    taken: list[Tensor] = []
    boxes: list[tuple[list[float], float]] = []
    for cell in cells.argsort(descending=True, stable=True).tolist():
        if float(cells[cell]) < least or len(boxes) == MOST_BOXES:
            break
        if all(float(box_overlap(corners[cell], other)) <= SAME for other in taken):
            taken.append(corners[cell])
            boxes.append((corners[cell].tolist(), float(cells[cell])))
    return boxes
