"""Radiographs that were moved are found where they lie."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

from radweave.methods.descriptors import CELLS, Placement, find_placements, fit_mean, place, standardised

RNG = np.random.default_rng(0)
IMAGE = ndimage.gaussian_filter(RNG.random((2 * CELLS, 2 * CELLS)), 5).astype(np.float32)
MEAN = standardised(place(IMAGE, Placement(), CELLS)[None])[0]


@pytest.mark.parametrize(("down", "right"), [(0, 0), (2, -3), (-4, 1)])
def test_a_moved_image_is_laid_back_over_the_mean(down: int, right: int) -> None:
    moved = ndimage.shift(IMAGE, (2 * down, 2 * right), order=1, mode="nearest")
    (result,) = find_placements([moved], MEAN)
    assert result == Placement(1.0, (-down, -right))
    inside = slice(8, -8)
    back = standardised(place(moved, result, CELLS)[None])[0]
    assert np.corrcoef(back[inside, inside].ravel(), MEAN[inside, inside].ravel())[0, 1] > 0.95


def test_a_small_image_is_magnified() -> None:
    small = ndimage.zoom(IMAGE, 1 / 1.2, order=1)
    edge = (len(IMAGE) - len(small)) // 2
    padded = np.pad(small, (edge, len(IMAGE) - len(small) - edge), mode="edge")
    (result,) = find_placements([padded], MEAN)
    assert result.scale == pytest.approx(1.2)


def test_the_mean_of_moved_images_is_taken_of_images_in_place() -> None:
    images = [ndimage.shift(IMAGE, (move, -move), order=1, mode="nearest") for move in (-6, -2, 0, 2, 6)]
    inside = slice(8, -8)

    def sharpness(passes: int) -> float:
        return float(fit_mean(images, passes)[inside, inside].std())

    assert sharpness(2) > sharpness(1)
