"""Descriptors of radiographs: of which views, and what of them is of the image as it is."""

from __future__ import annotations

import numpy as np
import torch

from radweave.core.batch import Batch
from radweave.methods.descriptors import (
    DIM,
    NUM_PLANES,
    STYLE,
    Described,
    DescriptorsConfig,
    Placement,
    describe,
    planes_of,
    style,
    views_of,
)


def test_the_first_frontal_and_the_first_lateral_view_count() -> None:
    pixels = torch.arange(4.0).reshape(1, 4, 1, 1, 1).expand(1, 4, 1, 2, 2)
    batch = Batch(
        ["s"], ["p"], pixel_values=pixels, view_mask=torch.tensor([[True, True, True, False]]),
        view_ids=torch.tensor([[1, 1, 2, 2]]),
    )  # fmt: skip
    (result,) = views_of(batch)
    assert {view: float(image[0, 0]) for view, image in result.items()} == {0: 0.0, 1: 2.0}
    padded = Batch(["s"], ["p"], pixels, torch.tensor([[True, False, False, False]]), torch.tensor([[2, 1, 1, 1]]))
    assert list(views_of(padded)[0]) == [1], "what is padded is no view"


def test_the_style_is_that_of_the_image_as_it_is() -> None:
    image = np.random.default_rng(0).random((48, 48), dtype=np.float32)
    moved = describe(image, Placement(1.2, (3, -2)))
    assert np.array_equal(moved["style"], style(image))
    assert not np.array_equal(moved["pixels"], describe(image, Placement())["pixels"])


def test_descriptors_are_standardised_and_missing_ones_are_0() -> None:
    rng = np.random.default_rng(1)
    extractor, descriptions = DescriptorsConfig(aligned=False).build(), Described.empty(8)
    descriptions.vectors[:] = rng.normal(3, 2, (8, 2, DIM))
    descriptions.present[:6, 0] = True
    extractor.fit_scales(descriptions)
    known = descriptions.vectors[:6, 0, -STYLE:]
    assert np.abs(known.mean(axis=0)).max() < 1e-4
    assert np.abs(known.std(axis=0) - 1).max() < 1e-3
    assert not descriptions.vectors[6:].any()
    assert not descriptions.vectors[:, 1].any()


def test_planes_of_a_scan_have_the_head_up_and_the_feet_first() -> None:
    volume = np.zeros((8, 4, 6), dtype=np.float32)
    volume[7, 1, 2] = 1.0  # at the head
    planes = planes_of(volume)
    assert len(planes) == NUM_PLANES
    front, side, brightest, *slabs = planes.values()
    assert front.shape == brightest.shape == (8, 6)
    assert side.shape == (8, 4)
    assert front[0, 2] == 1 / 4
    assert side[0, 1] == 1 / 6
    assert brightest[0, 2] == 1
    assert [float(slab.sum()) for slab in slabs] == [0, 0, 0, 1 / 2], "the last slab is at the head"
    assert [slab.shape for slab in slabs] == [(4, 6)] * 4
