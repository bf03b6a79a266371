"""How studies look: the descriptors of their frontal and their lateral view, and distances between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from radweave.base.batch import Batch, VisionFeatures
from radweave.base.config import Config
from radweave.base.study import Modality
from radweave.drafting.smoothers import typical
from radweave.methods.kernels.alignment import CELLS, Placement, find_placements, fit_mean
from radweave.methods.kernels.descriptors import CELL_SIZES, ORIENTATIONS, SIZE, STYLE, describe

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]

NUM_VIEWS = 2
"""Frontal and lateral. A view of unknown kind counts as frontal, which most are."""
STYLE_LIMIT = 3.0
"""A style further from the mean than this many deviations is as far: an odd image must not be unlike all others."""


def _sizes() -> dict[str, int]:
    blocks = {cell: SIZE // cell - 1 for cell in CELL_SIZES}
    gradients = {f"gradients{cell}": side**2 * 4 * ORIENTATIONS for cell, side in blocks.items()}
    return {"pixels": 32 * 32, **gradients, "style": STYLE}


SIZES: Mapping[str, int] = _sizes()
"""Descriptor -> its length, in the order in which they stand in a vector."""
DIM = sum(SIZES.values())
NAMES = tuple(SIZES)


class LooksConfig(Config):
    """How images are described.

    ``aligned`` lays them over their mean first. ``style`` is what the style of the acquisition counts in the distance
    that decides the wording; the distance that decides findings does without it.
    """

    reads: ClassVar[Modality] = "xray"
    kind: Literal["descriptors"] = "descriptors"
    aligned: bool = True
    style: float = Field(default=2.0, ge=0)

    def build(self) -> Looks:
        return Looks(self)


@dataclass(frozen=True, slots=True)
class Described:
    """Vectors (B, 2, DIM) of the views of studies, and which of them are there (B, 2)."""

    vectors: Singles
    present: NDArray[np.bool_]

    @classmethod
    def empty(cls, count: int) -> Described:
        """Of so many studies, without a view."""
        return cls(np.zeros((count, NUM_VIEWS, DIM), dtype=np.float32), np.zeros((count, NUM_VIEWS), dtype=bool))


class Looks(nn.Module):
    """Descriptors of radiographs. What it takes from the training split stands in buffers: the mean image of each view,
    centre and deviation of the style, and how far apart two studies typically are by each descriptor.
    """

    mean: Tensor
    centre: Tensor
    deviation: Tensor
    typical: Tensor

    def __init__(self, config: LooksConfig) -> None:
        super().__init__()
        self.config, self.dim, self.channels = config, DIM, 1
        self.register_buffer("mean", torch.zeros(NUM_VIEWS, CELLS, CELLS))
        self.register_buffer("centre", torch.zeros(NUM_VIEWS, STYLE))
        self.register_buffer("deviation", torch.ones(NUM_VIEWS, STYLE))
        self.register_buffer("typical", torch.ones(NUM_VIEWS, len(NAMES)))

    def forward(self, pixel_values: Tensor) -> VisionFeatures:
        """One token (N, 1, DIM) for each image (N, 1, H, W), which counts as frontal."""
        rows = [self.vector(image[0].cpu().numpy(), 0) for image in pixel_values]
        tokens = torch.from_numpy(np.stack(rows)).to(pixel_values.device)
        return VisionFeatures(tokens[:, None], (1, 1))

    def vector(self, image: Singles, view: int) -> Singles:
        """The descriptors (DIM,) of an image (H, W), values 0 to 1; the style as it is."""
        where = find_placements([image], self.mean[view].cpu().numpy())[0] if self.config.aligned else Placement()
        described = describe(image, where)
        return np.concatenate([described[name] for name in NAMES])

    def describe(self, batch: Batch) -> Described:
        """Descriptors of the first frontal and the first lateral view of each study."""
        described = Described.empty(len(batch))
        self.read(batch, described, 0)
        self.standardise(described)
        return described

    def read(self, batch: Batch, into: Described, first: int) -> None:
        """Describe a batch from row ``first`` on, the style as it is."""
        for row, views in enumerate(views_of(batch), start=first):
            for view, image in views.items():
                into.vectors[row, view] = self.vector(image, view)
                into.present[row, view] = True

    def standardise(self, described: Described) -> None:
        """Give the style of training studies mean 0 and deviation 1, in place."""
        style = described.vectors[:, :, -STYLE:]
        centre, deviation = self.centre.cpu().numpy(), self.deviation.cpu().numpy()
        style[:] = np.clip((style - centre) / deviation, -STYLE_LIMIT, STYLE_LIMIT)
        described.vectors[~described.present] = 0

    def fit_means(self, batches: Iterable[Batch]) -> None:
        """Take the mean image of each view from training studies."""
        if not self.config.aligned:
            return
        studies = [views for batch in batches for views in views_of(batch)]
        for view in range(NUM_VIEWS):
            images = [views[view] for views in studies if view in views]
            if images:
                self.mean[view] = torch.from_numpy(fit_mean(images))

    def fit_scales(self, described: Described) -> None:
        """Take the scales from training studies as they were read, and standardise them."""
        for view in range(NUM_VIEWS):
            style = described.vectors[described.present[:, view], view, -STYLE:]
            if len(style):
                self.centre[view] = torch.from_numpy(style.mean(axis=0))
                self.deviation[view] = torch.from_numpy(style.std(axis=0) + 1e-6)
        self.standardise(described)
        for view in range(NUM_VIEWS):
            vectors = described.vectors[described.present[:, view], view]
            for number, part in enumerate(parts() if len(vectors) else ()):
                self.typical[view, number] = typical(together(vectors[:, part], vectors[:, part]))


def views_of(batch: Batch) -> list[dict[int, Singles]]:
    """Per study its first frontal (0) and its first lateral (1) image (H, W)."""
    assert batch.pixel_values is not None
    assert batch.view_mask is not None
    assert batch.view_ids is not None
    pixels = batch.pixel_values[:, :, 0].float().cpu().numpy()
    found: list[dict[int, Singles]] = []
    for row, (mask, kinds) in enumerate(zip(batch.view_mask.tolist(), batch.view_ids.tolist(), strict=True)):
        views: dict[int, Singles] = {}
        for place, (there, kind) in enumerate(zip(mask, kinds, strict=True)):
            if there:
                views.setdefault(1 if kind == 2 else 0, pixels[row, place])
        found.append(views)
    return found


def parts() -> list[slice]:
    """Where each descriptor stands in a vector."""
    ends = np.cumsum(list(SIZES.values())).tolist()
    return [slice(end - size, end) for end, size in zip(ends, SIZES.values(), strict=True)]


@dataclass(frozen=True, slots=True)
class Distances:
    """Squared distances (..., J) to the training studies, in units of the typical one, for findings and for wording."""

    findings: Floats
    wording: Floats


def one_by_one(left: Singles, right: Singles) -> Floats:
    """Squared distances (N, J), a study at a time: alone and in any batch the same."""
    return np.stack([together(row[None], right)[0] for row in left])


def together(left: Singles, right: Singles) -> Floats:
    """Squared distances (N, J) by one product, for fitting."""
    squares = [(side.astype(np.float64) ** 2).sum(axis=1) for side in (left, right)]
    return np.asarray(np.maximum(squares[0][:, None] + squares[1][None] - 2.0 * (left @ right.T), 0))


def distances(
    looks: Looks, left: Described, right: Described, squared: Callable[[Singles, Singles], Floats] = one_by_one
) -> Distances:
    """Distances (N, J): the mean over the descriptors of the views that both studies have, 1 where they share none."""
    shape = (len(left.present), len(right.present))
    total, weight, style = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    scales = looks.typical.double().cpu().numpy()
    for view in range(NUM_VIEWS):
        both = left.present[:, view, None] & right.present[None, :, view]
        for name, part, scale in zip(NAMES, parts(), scales[view], strict=True):
            apart = np.where(both, squared(left.vectors[:, view, part], right.vectors[:, view, part]) / scale, 0)
            if name == "style":
                style += apart
            else:
                total += apart
                weight += both
    counted, share = np.maximum(weight, 1), looks.config.style / (len(NAMES) - 1)
    with_style = (total + looks.config.style * style) / (counted * (1 + share))
    return Distances(np.where(weight > 0, total / counted, 1.0), np.where(weight > 0, with_style, 1.0))
