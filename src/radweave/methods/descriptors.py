"""Descriptors of a radiograph's frontal and lateral view, or of planes of a scan, and distances between studies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from scipy import ndimage
from torch import Tensor, nn

from radweave.core.batch import Batch, VisionFeatures
from radweave.core.config import Config
from radweave.core.study import Modality
from radweave.drafting.smoothers import typical

# Radiographs of one view laid over their mean, so that the same place shows the same organ.
#
# An image is searched over scale and shift for the window that correlates best with the mean of all images, at 40 x 40
# cells, by products of spectra; the mean is then taken again and the search repeated.


Floats = NDArray[np.float32]

CELLS = 40
MAX_SHIFT = 5
SCALES = (0.9, 1.0, 1.1, 1.2)


@dataclass(frozen=True, slots=True)
class Placement:
    """Alignment of an image to the mean: magnified by ``scale``, then moved by ``shift`` (rows, columns) cells."""

    scale: float = 1.0
    shift: tuple[int, int] = (0, 0)


def standardised(images: Floats) -> Floats:
    """Images (N, H, W) with mean 0 and standard deviation 1 each."""
    mean = images.mean(axis=(1, 2), keepdims=True)
    return np.asarray((images - mean) / (images.std(axis=(1, 2), keepdims=True) + 1e-6), dtype=np.float32)


def place(image: Floats, placement: Placement, size: int) -> Floats:
    """The image (H, W) scaled about its centre and shifted, on a square of ``size``; outside of it the edge repeats."""
    height, width = image.shape
    step = (height / size / placement.scale, width / size / placement.scale)
    cell = (height / CELLS / placement.scale, width / CELLS / placement.scale)
    offset = [
        (extent - 1) / 2 - s * (size - 1) / 2 - moved * c
        for extent, s, c, moved in zip(image.shape, step, cell, placement.shift, strict=True)
    ]
    smooth = ndimage.gaussian_filter(image, [max(0.0, 0.5 * s - 0.25) for s in step])
    return np.asarray(
        ndimage.affine_transform(smooth, step, offset, (size, size), order=1, mode="nearest"), dtype=np.float32
    )


def find_placements(images: Sequence[Floats], mean: Floats) -> list[Placement]:
    """The best placement of each image (H, W) on ``mean`` (40, 40)."""
    # The window keeps the borders, where collimation and labels are, from deciding.
    window = np.outer(np.hanning(CELLS + 2)[1:-1], np.hanning(CELLS + 2)[1:-1]).astype(np.float32)
    pad = 2 * CELLS
    target = np.conj(np.fft.rfft2(window * mean, (pad, pad)))
    energy = np.conj(np.fft.rfft2(window, (pad, pad)))
    shifts = np.r_[0 : MAX_SHIFT + 1, -MAX_SHIFT:0]
    best = np.full(len(images), -np.inf)
    placements = [Placement()] * len(images)
    for scale in SCALES:
        small = standardised(np.stack([place(image, Placement(scale), CELLS) for image in images]))
        spectra, squares = np.fft.rfft2(small, (pad, pad)), np.fft.rfft2(small**2, (pad, pad))
        product = np.fft.irfft2(spectra * target, (pad, pad))[:, shifts][:, :, shifts]
        norm = np.sqrt(np.maximum(np.fft.irfft2(squares * energy, (pad, pad))[:, shifts][:, :, shifts], 1e-6))
        score = (product / norm).reshape(len(images), -1)
        top = score.argmax(axis=1)
        for row in np.flatnonzero(score[np.arange(len(images)), top] > best):
            down, right = divmod(int(top[row]), len(shifts))
            best[row] = score[row, top[row]]
            placements[row] = Placement(scale, (-int(shifts[down]), -int(shifts[right])))
    return placements


def mean_image(images: Sequence[Floats], placements: Sequence[Placement]) -> Floats:
    """Mean (40, 40) of the standardised images as they are placed."""
    placed = np.stack([place(image, how, CELLS) for image, how in zip(images, placements, strict=True)])
    return np.asarray(standardised(placed).mean(axis=0))


def fit_mean(images: Sequence[Floats], passes: int = 2) -> Floats:
    """The mean (40, 40) of images (H, W) that were placed on it, ``passes`` times over."""
    mean = mean_image(images, [Placement()] * len(images))
    for _ in range(passes - 1):
        mean = mean_image(images, find_placements(images, mean))
    return mean


# Classical descriptors of a radiograph: pixels, oriented gradients, and the style of its acquisition.


SIZE = 160
ORIENTATIONS = 9
CELL_SIZES = (8, 10, 20)
STYLE = 28
"""Numbers of the style."""


def oriented_gradients(image: Floats, cell: int) -> Floats:
    """Histograms of oriented gradients (flat), one block of 2 x 2 cells normalised after another.

    Source: Dalal and Triggs, "Histograms of oriented gradients for human detection", CVPR 2005.
    """
    down, right = np.gradient(image)
    strength = np.hypot(down, right)
    angle = (np.arctan2(down, right) % np.pi) * (ORIENTATIONS / np.pi) - 0.5
    lower = np.floor(angle)
    share = (angle - lower).astype(np.float32)
    rows, columns = (extent // cell for extent in image.shape)
    histogram = np.zeros((rows, columns, ORIENTATIONS), dtype=np.float32)
    for number, weight in ((lower, 1 - share), (lower + 1, share)):
        slot = number.astype(np.int64) % ORIENTATIONS
        for orientation in range(ORIENTATIONS):
            part = np.where(slot == orientation, strength * weight, 0)[: rows * cell, : columns * cell]
            histogram[..., orientation] += part.reshape(rows, cell, columns, cell).sum(axis=(1, 3))
    blocks = np.concatenate([histogram[r : rows - 1 + r, c : columns - 1 + c] for r in (0, 1) for c in (0, 1)], axis=-1)
    blocks /= np.sqrt((blocks**2).sum(axis=-1, keepdims=True)) + 1e-3 * cell**2
    blocks = np.minimum(blocks, 0.2)
    return np.asarray(blocks / (np.linalg.norm(blocks, axis=-1, keepdims=True) + 1e-6)).ravel()


def describe(image: Floats, placement: Placement) -> dict[str, Floats]:
    """Descriptor name -> vector of an image (H, W) with values 0 to 1."""
    large = standardised(place(image, placement, SIZE)[None])[0]
    small = standardised(place(image, placement, 32)[None])[0]
    described = {"pixels": small.ravel()}
    described |= {f"gradients{cell}": oriented_gradients(large, cell) for cell in CELL_SIZES}
    described["style"] = style(image)
    return described


def style(image: Floats) -> Floats:
    """Acquisition style of the unaligned image: histogram, gradient energy, borders."""
    histogram = np.histogram(image, bins=16, range=(0.0, 1.0))[0] / image.size
    down, right = np.gradient(image)
    energy = np.log1p(100 * np.array([np.abs(down).mean(), np.abs(right).mean(), (down**2).mean(), (right**2).mean()]))
    edge = max(1, round(0.04 * min(image.shape)))
    borders = [image[:edge], image[-edge:], image[:, :edge], image[:, -edge:]]
    around = np.array([value for strip in borders for value in (strip.mean(), strip.std())])
    return np.concatenate([np.sqrt(histogram), energy, around]).astype(np.float32)


Doubles = NDArray[np.float64]
Singles = NDArray[np.float32]

NUM_VIEWS = 2
"""Frontal and lateral. A view of unknown kind counts as frontal, which most are."""
NUM_SLABS = 4
"""Slabs of equal height that a scan is cut into, from the feet to the head."""
NUM_PLANES = 3 + NUM_SLABS
"""Views of a scan: its mean from the front and from the side, its maximum from the front, and the mean of each slab."""
UNSEEN = 0.5
"""Contribution of a missing view to a squared distance. A view that is there lies about as far from the mean, so
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


class _DescriptorsConfig(Config):
    """Settings of descriptors.

    ``aligned`` lays them over their mean first. ``style`` is what the style of the acquisition counts in the distance
    that decides the wording; the distance that decides findings does without it.
    """

    num_views: ClassVar[int]
    aligned: bool = True
    style: float = Field(default=2.0, ge=0)

    def build(self) -> DescriptorExtractor:
        return DescriptorExtractor(self)


class DescriptorsConfig(_DescriptorsConfig):
    """Descriptors of a radiograph's frontal and lateral view."""

    reads: ClassVar[Modality] = "xray"
    num_views: ClassVar[int] = NUM_VIEWS
    kind: Literal["descriptors"] = "descriptors"


class ScanDescriptorsConfig(_DescriptorsConfig):
    """Descriptors of the planes of a scan."""

    reads: ClassVar[Modality] = "ct"
    num_views: ClassVar[int] = NUM_PLANES
    kind: Literal["scan_descriptors"] = "scan_descriptors"


@dataclass(frozen=True, slots=True)
class Described:
    """Vectors (B, V, DIM) of the views of studies, and which of them are there (B, V)."""

    vectors: Singles
    present: NDArray[np.bool_]

    @classmethod
    def empty(cls, count: int, num_views: int = NUM_VIEWS) -> Described:
        """Of so many studies, without a view."""
        return cls(np.zeros((count, num_views, DIM), dtype=np.float32), np.zeros((count, num_views), dtype=bool))


class DescriptorExtractor(nn.Module):
    """Descriptors of radiographs or scans. What it takes from the training split stands in buffers: the mean image of
    each view, centre and deviation of the style, the mean of the descriptors, and how far apart two studies typically
    are by each.
    """

    mean: Tensor
    centre: Tensor
    deviation: Tensor
    middle: Tensor
    typical: Tensor

    def __init__(self, config: _DescriptorsConfig) -> None:
        super().__init__()
        self.config, self.dim, self.channels = config, DIM, 1
        self.num_views = config.num_views
        self.register_buffer("mean", torch.zeros(self.num_views, CELLS, CELLS))
        self.register_buffer("centre", torch.zeros(self.num_views, STYLE))
        self.register_buffer("deviation", torch.ones(self.num_views, STYLE))
        self.register_buffer("middle", torch.zeros(self.num_views, DIM))
        self.register_buffer("typical", torch.ones(self.num_views, len(NAMES)))

    def forward(self, pixel_values: Tensor) -> VisionFeatures:
        """Tokens: one (N, 1, DIM) for each image (N, 1, H, W), which counts as frontal, or (N, V, DIM) for a scan
        (N, 1, D, H, W).
        """
        if pixel_values.ndim == 5:
            views = [planes_of(volume[0].float().cpu().numpy()) for volume in pixel_values]
        else:
            views = [{0: image[0].cpu().numpy()} for image in pixel_values]
        rows = [[self.vector(image, view) for view, image in own.items()] for own in views]
        return VisionFeatures(torch.from_numpy(np.stack(rows)).to(pixel_values.device), (1, len(rows[0])))

    def vector(self, image: Singles, view: int) -> Singles:
        """The descriptors (DIM,) of an image (H, W), values 0 to 1; the style as it is."""
        where = find_placements([image], self.mean[view].cpu().numpy())[0] if self.config.aligned else Placement()
        described = describe(image, where)
        return np.concatenate([described[name] for name in NAMES])

    def describe(self, batch: Batch) -> Described:
        """Descriptors of the first frontal and the first lateral view of each study, or of a scan's planes."""
        described = Described.empty(len(batch), self.num_views)
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
        for view in range(self.num_views):
            images = [views[view] for views in studies if view in views]
            if images:
                self.mean[view] = torch.from_numpy(fit_mean(images))

    def fit_scales(self, described: Described) -> None:
        """Take the scales from training studies as they were read, and standardise them."""
        for view in range(self.num_views):
            style = described.vectors[described.present[:, view], view, -STYLE:]
            if len(style):
                self.centre[view] = torch.from_numpy(style.mean(axis=0))
                self.deviation[view] = torch.from_numpy(style.std(axis=0) + 1e-6)
        self.standardise(described)
        for view in range(self.num_views):
            vectors = described.vectors[described.present[:, view], view]
            if len(vectors):
                self.middle[view] = torch.from_numpy(vectors.mean(axis=0))
            for number, part in enumerate(parts() if len(vectors) else ()):
                rows, squares = vectors[:, part], _squared_norms(vectors[:, part])
                self.typical[view, number] = typical(_squared_distances(rows, squares, rows, squares))


def views_of(batch: Batch) -> list[dict[int, Singles]]:
    """Per study its first frontal (0) and its first lateral (1) image (H, W), or a scan's planes."""
    if batch.volume is not None:
        return [planes_of(volume) for volume in batch.volume[:, 0].float().cpu().numpy()]
    assert batch.pixel_values is not None
    assert batch.view_mask is not None
    assert batch.view_ids is not None
    pixels = batch.pixel_values[:, :, 0].float().cpu().numpy()
    studies: list[dict[int, Singles]] = []
    for row, (mask, kinds) in enumerate(zip(batch.view_mask.tolist(), batch.view_ids.tolist(), strict=True)):
        views: dict[int, Singles] = {}
        for place, (present, kind) in enumerate(zip(mask, kinds, strict=True)):
            if present:
                views.setdefault(1 if kind == 2 else 0, pixels[row, place])
        studies.append(views)
    return studies


def planes_of(volume: Singles) -> dict[int, Singles]:
    """Views of a scan (D, H, W) by their number, each an image: from the front and from the side with the head up."""
    upright = volume[::-1]
    slabs = np.array_split(volume, NUM_SLABS)
    planes = (upright.mean(axis=1), upright.mean(axis=2), upright.max(axis=1), *(slab.mean(axis=0) for slab in slabs))
    return dict(enumerate(planes))


def parts() -> list[slice]:
    """Position of each descriptor in a vector."""
    ends = np.cumsum(list(SIZES.values())).tolist()
    return [slice(end - size, end) for end, size in zip(ends, SIZES.values(), strict=True)]


@dataclass(frozen=True, slots=True)
class Distances:
    """Squared distances (..., J) to the training studies, in units of the typical one, for findings and for wording."""

    findings: Doubles
    wording: Doubles


@dataclass(frozen=True, slots=True)
class Rows:
    """A descriptor of a view of N studies: vectors (N, D), their squared norms (N,), which studies have the view (N,),
    and their squared distance (N,) from the mean, which is what counts where the other study lacks the view.
    """

    vectors: Singles
    squares: Doubles
    present: NDArray[np.bool_]
    unseen: Doubles

    def only(self, row: int) -> Rows:
        """One of the studies."""
        rows = slice(row, row + 1)
        return Rows(self.vectors[rows], self.squares[rows], self.present[rows], self.unseen[rows])


Placed = Mapping[tuple[int, str], Rows]
"""Rows of studies by view and descriptor."""


def placed(extractor: DescriptorExtractor, studies: Described) -> Placed:
    """The rows of studies. Those of training studies are the same for every new study: compute them once."""
    scales, middles = extractor.typical.double().cpu().numpy(), extractor.middle.cpu().numpy()
    rows = {}
    for view in range(studies.present.shape[1]):
        present = studies.present[:, view]
        for name, part, scale in zip(NAMES, parts(), scales[view], strict=True):
            vectors = studies.vectors[:, view, part]
            apart = _squared_norms(vectors, middles[view, part]) / scale
            # The other one, which lacks the view, adds its own ``UNSEEN``.
            rows[view, name] = Rows(vectors, _squared_norms(vectors), present, np.where(present, apart, UNSEEN))
    return rows


def _squared_norms(rows: Singles, middle: Singles | float = 0.0) -> Doubles:
    return np.asarray(((rows.astype(np.float64) - middle) ** 2).sum(axis=1))


def _squared_distances(left: Singles, left_squares: Doubles, right: Singles, right_squares: Doubles) -> Doubles:
    """Squared distances (N, J) of rows (N, D) and (J, D) by one product, and their squared norms."""
    return np.asarray(np.maximum(left_squares[:, None] + right_squares[None] - 2.0 * (left @ right.T), 0))


def distances(extractor: DescriptorExtractor, left: Described, right: Placed) -> Distances:
    """Distances (N, J) to training studies, by the views that any of those has; alone and in any batch the same.

    A view that is not there counts as the mean of the others, moved by ``UNSEEN`` in a direction of its own. So all
    distances are between points of one space, and kernels of them have no negative eigenvalues. A mean over the views
    that two studies share has no such space: one study without a lateral view is then near to too many, and the weights
    of all studies change.
    """
    queries = placed(extractor, left)
    each = [
        _distances(extractor, {key: rows.only(number) for key, rows in queries.items()}, right)
        for number in range(len(left.present))
    ]
    return Distances(np.concatenate([one.findings for one in each]), np.concatenate([one.wording for one in each]))


def _distances(extractor: DescriptorExtractor, left: Placed, right: Placed) -> Distances:
    scales = extractor.typical.double().cpu().numpy()
    views = [view for view in range(len(scales)) if right[view, NAMES[0]].present.any()]
    shape = (len(left[0, NAMES[0]].present), len(right[0, NAMES[0]].present))
    looked, style = np.zeros(shape), np.zeros(shape)
    for view in views:
        for name, scale in zip(NAMES, scales[view], strict=True):
            one, other = left[view, name], right[view, name]
            squared = _squared_distances(one.vectors, one.squares, other.vectors, other.squares)
            unseen = one.unseen[:, None] + other.unseen[None]
            apart = np.where(one.present[:, None] & other.present[None], squared / scale, unseen)
            if name == "style":
                style += apart
            else:
                looked += apart
    num = max(len(views), 1) * (len(NAMES) - 1)
    share = extractor.config.style / (len(NAMES) - 1)
    return Distances(looked / num, (looked + extractor.config.style * style) / (num * (1 + share)))


def among(extractor: DescriptorExtractor, studies: Described) -> Distances:
    """Distances (J, J) among training studies; none to itself."""
    rows = placed(extractor, studies)
    apart = _distances(extractor, rows, rows)
    for one in (apart.findings, apart.wording):
        np.fill_diagonal(one, 0)
    return apart
