"""Boxes of findings: what is one, and where it goes with crops, padding and resizing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from radweave.core.errors import InputError
from radweave.core.study import FindingBox, ImageRef, Study
from radweave.data.boxes import (
    box_from_window,
    box_in_window,
    box_of_mask,
    contains_middle,
    covered_share,
    overlap,
    says_no_place,
)
from radweave.data.ct import CtPreprocessing, covered, preprocess
from radweave.data.dataset import Dataset, DatasetCard, DatasetWriter
from radweave.data.square import covered_by_square, to_square
from tests.data.test_ct import volume as make_volume


@pytest.mark.parametrize(
    ("box", "message"),
    [
        ((0.1, 0.2, 0.3), "4 numbers"),
        ((0.1, 0.2, 0.3, 1.2), "0 to 1"),
        ((-0.1, 0.2, 0.3, 0.4), "0 to 1"),
        ((0.1, 0.2, float("nan"), 0.4), "0 to 1"),
        ((0.5, 0.2, 0.3, 0.4), "low to its high corner"),
        ((0.1, 0.2, 0.1, 0.4), "not empty"),
        ((0.1, 0.1, 0.1, 0.4, 0.1, 0.4), "not empty"),
    ],
)
def test_what_is_no_box_is_refused(box: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        FindingBox(label="Nodule", box=box)


def test_a_box_has_the_dimensions_of_its_image() -> None:
    flat, solid = FindingBox(label="a", box=(0, 0, 1, 1)), FindingBox(label="a", box=(0, 0, 0, 1, 1, 1))
    assert ImageRef(path="a.png", boxes=(flat,)).boxes == (flat,)
    with pytest.raises(ValidationError, match="4 numbers: 6 of 'a'"):
        ImageRef(path="a.png", boxes=(solid,))
    with pytest.raises(ValidationError, match="6 numbers: 4 of 'a'"):
        ImageRef(path="a.nii.gz", modality="ct", boxes=(flat,))


def test_a_bad_box_in_a_manifest_names_its_line_and_field(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "set", DatasetCard(name="x")) as writer:
        boxes = (FindingBox(label="Nodule", box=(0.1, 0.2, 0.3, 0.4), sentence="A nodule."),)
        writer.add(Study(study_id="a", patient_id="p", images=(ImageRef(path="images/a.png", boxes=boxes),)))
    dataset = Dataset.open(tmp_path / "set")
    (study,) = dataset.studies()
    assert study.images[0].boxes == boxes
    assert dataset.card.counts["boxes"] == 1
    row = json.loads(dataset.manifest_path.read_text())
    row["images"][0]["boxes"][0]["box"] = [0.3, 0.2, 0.1, 0.4]
    dataset.manifest_path.write_text(json.dumps(row))
    with pytest.raises(InputError, match=r"images\.0\.boxes\.0\.box.*low to its high corner: 0\.3 0\.2 0\.1 0\.4"):
        list(Dataset.open(tmp_path / "set").studies())


def test_the_box_of_a_mask_is_tight() -> None:
    mask = np.zeros((10, 20), bool)
    assert box_of_mask(mask) is None
    mask[2:5, 4:6] = True
    assert box_of_mask(mask) == (0.2, 0.2, 0.3, 0.5)
    volume = np.zeros((4, 10, 20), bool)
    volume[1, 2:5, 4:6] = True
    assert box_of_mask(volume) == (0.25, 0.2, 0.2, 0.5, 0.5, 0.3)


@pytest.mark.parametrize("shape", [(60, 40), (40, 60), (50, 50)])
def test_a_box_goes_with_its_pixels_into_the_square(shape: tuple[int, int]) -> None:
    image = np.zeros(shape, np.float32)
    image[20:32, 8:20] = 1
    box = box_of_mask(image > 0)
    assert box is not None
    window = covered_by_square(*shape, 120)
    moved = box_in_window(box, window)
    assert moved is not None
    # To a pixel of the square at each border.
    np.testing.assert_allclose(moved, box_of_mask(to_square(image, 120) > 127), atol=1 / 120)
    np.testing.assert_allclose(box_from_window(moved, window), box, atol=1e-9)


@pytest.mark.parametrize(
    "options",
    [
        CtPreprocessing(size=(16, 24, 24)),
        CtPreprocessing(crop="body", size=(20, 20, 20), fit="resize"),
        CtPreprocessing(spacing_mm=(2, 1, 1), size=(20, 40, 50)),
    ],
)
def test_a_box_goes_with_its_voxels_through_the_preprocessing(options: CtPreprocessing) -> None:
    hu = np.full((20, 30, 36), -1000, np.int16)
    hu[2:18, 3:27, 4:32] = 0
    hu[8:13, 10:18, 12:22] = 900
    volume = make_volume(hu, (2.0, 1.5, 1.5))
    box = box_of_mask(hu == 900)
    assert box is not None
    moved = box_in_window(box, covered(volume, options))
    assert moved is not None
    scan = preprocess(volume, options)
    np.testing.assert_allclose(moved, box_of_mask(scan > 450), atol=1.01 / min(scan.shape))


def test_a_box_is_cut_at_the_window_and_goes_with_it() -> None:
    window = ((0.5, 0.5), (0.0, 0.5))  # the lower left quarter
    assert box_in_window((0.25, 0.25, 0.75, 0.75), window) == (0.5, 0.0, 1.0, 0.5)
    assert box_in_window((0.6, 0.6, 0.9, 0.9), window) is None
    padded = ((-0.5, 2.0), (0.0, 1.0))
    assert box_from_window((0.0, 0.0, 1.0, 0.2), padded) is None
    assert box_from_window((0.0, 0.0, 1.0, 0.5), padded) == (0.0, 0.0, 1.0, 0.5)


def test_a_box_of_nearly_the_whole_image_says_no_place() -> None:
    assert says_no_place((0.05, 0.05, 0.95, 0.95))
    assert says_no_place((0.02, 0.02, 0.05, 0.98, 0.98, 0.95))
    assert not says_no_place((0.1, 0.1, 0.9, 0.9)), "both lungs whole"
    assert not says_no_place((0.05, 0.05, 0.05, 0.95, 0.95, 0.85))
    assert not says_no_place((-0.5, 0, 1, 1)), "outside is another matter"


def test_the_share_that_others_cover_counts_what_overlaps_once() -> None:
    left, right, middle = (0, 0, 0.5, 1), (0.5, 0, 1, 1), (0.25, 0, 0.75, 1)
    assert covered_share([left], [middle]) == covered_share([left, right], [middle]) == pytest.approx(0.5)
    assert covered_share([left, middle], [right, middle]) == pytest.approx(2 / 3)
    assert covered_share([left], [right]) == covered_share([left], []) == 0
    assert covered_share([(0, 0, 0, 1, 1, 1)], [(0, 0, 0, 0.5, 0.5, 1), (0.5, 0, 0, 1, 1, 1)]) == pytest.approx(0.75)
    assert covered_share([left], [(0, 0, 0, 1, 1, 1)]) == 0, "a box of a scan"


def test_overlap_and_pointing() -> None:
    assert overlap((0, 0, 0.5, 0.5), (0, 0, 0.5, 0.5)) == 1
    assert overlap((0, 0, 0.5, 0.5), (0.25, 0, 0.75, 0.5)) == pytest.approx(1 / 3)
    assert overlap((0, 0, 0.5, 0.5), (0.5, 0.5, 1, 1)) == 0
    assert overlap((0, 0, 0, 1, 1, 0.5), (0, 0, 0, 1, 0.5, 1)) == pytest.approx(1 / 3)
    assert contains_middle((0, 0, 0.5, 0.5), (0.2, 0.2, 0.4, 0.4))
    assert not contains_middle((0, 0, 0.5, 0.5), (0.4, 0.4, 0.8, 0.8))
    with pytest.raises(ValueError, match="4 and 6"):
        overlap((0, 0, 1, 1), (0, 0, 0, 1, 1, 1))
