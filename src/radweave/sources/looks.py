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
from radweave.sources.alignment import CELLS, Placement, find_placements, fit_mean
from radweave.sources.descriptors import CELL_SIZES, ORIENTATIONS, SIZE, STYLE, describe

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]

NUM_VIEWS = 2
"""Frontal and lateral. A view of unknown kind counts as frontal, which most are."""
UNSEEN = 0.5
"""What a view that is not there adds to a squared distance. A view that is there lies about as far from the mean, so
that two studies of which one lacks it are about 1 apart, which is typical.
"""
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
    centre and deviation of the style, the mean of the descriptors, and how far apart two studies typically are by each.
    """

    mean: Tensor
    centre: Tensor
    deviation: Tensor
    middle: Tensor
    typical: Tensor

    def __init__(self, config: LooksConfig) -> None:
        super().__init__()
        self.config, self.dim, self.channels = config, DIM, 1
        self.register_buffer("mean", torch.zeros(NUM_VIEWS, CELLS, CELLS))
        self.register_buffer("centre", torch.zeros(NUM_VIEWS, STYLE))
        self.register_buffer("deviation", torch.ones(NUM_VIEWS, STYLE))
        self.register_buffer("middle", torch.zeros(NUM_VIEWS, DIM))
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
            if len(vectors):
                self.middle[view] = torch.from_numpy(vectors.mean(axis=0))
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


Squared = Callable[[Singles, Singles], Floats]
"""Squared distances (N, J) of rows (N, D) and (J, D)."""


def one_by_one(left: Singles, right: Singles) -> Floats:
    """Squared distances (N, J), a study at a time: alone and in any batch the same."""
    return np.stack([together(row[None], right)[0] for row in left])


def together(left: Singles, right: Singles) -> Floats:
    """Squared distances (N, J) by one product, for fitting."""
    squares = [(side.astype(np.float64) ** 2).sum(axis=1) for side in (left, right)]
    return np.asarray(np.maximum(squares[0][:, None] + squares[1][None] - 2.0 * (left @ right.T), 0))


def distances(looks: Looks, left: Described, right: Described, squared: Squared = one_by_one) -> Distances:
    """Distances (N, J) to training studies, by the views that any of those has.

    A view that is not there counts as the mean of the others, moved by ``UNSEEN`` in a direction of its own. So all
    distances are between points of one space, and kernels of them have no negative eigenvalues. A mean over the views
    that two studies share has no such space: one study without a lateral view is then near to too many, and the weights
    of all studies change.
    """
    shape = (len(left.present), len(right.present))
    looked, style = np.zeros(shape), np.zeros(shape)
    views = np.flatnonzero(right.present.any(axis=0)).tolist()
    scales, middles = looks.typical.double().cpu().numpy(), looks.middle.cpu().numpy()
    for view in views:
        both = left.present[:, view, None] & right.present[None, :, view]
        for name, part, scale in zip(NAMES, parts(), scales[view], strict=True):
            vectors = [side.vectors[:, view, part] for side in (left, right)]
            unseen = [
                _from_the_mean(rows, side.present[:, view], middles[view, part], scale)
                for rows, side in zip(vectors, (left, right), strict=True)
            ]
            apart = np.where(both, squared(*vectors) / scale, unseen[0][:, None] + unseen[1][None])
            if name == "style":
                style += apart
            else:
                looked += apart
    num = max(len(views), 1) * (len(NAMES) - 1)
    share = looks.config.style / (len(NAMES) - 1)
    return Distances(looked / num, (looked + looks.config.style * style) / (num * (1 + share)))


def _from_the_mean(vectors: Singles, present: NDArray[np.bool_], middle: Singles, scale: float) -> Floats:
    """How far (N,) each study is from the mean by a view that the other lacks; that of a missing view is ``UNSEEN``."""
    apart = ((vectors.astype(np.float64) - middle) ** 2).sum(axis=1) / scale
    # The other one, which lacks the view, adds its own ``UNSEEN``.
    return np.where(present, apart, UNSEEN)


def among(looks: Looks, studies: Described) -> Distances:
    """Distances (J, J) among training studies; none to itself."""
    apart = distances(looks, studies, studies, together)
    for one in (apart.findings, apart.wording):
        np.fill_diagonal(one, 0)
    return apart
