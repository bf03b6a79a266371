"""Boxes of phantom findings against the pixels that a finding changes."""

from __future__ import annotations

import numpy as np
import pytest

from radweave.core.study import Modality
from radweave.data.boxes import box_of_mask
from radweave.phantom.study import PhantomImage, PhantomOptions, PhantomStudy, draw_ct_study, draw_xray_study

OPTIONS = PhantomOptions(
    prevalence="balanced", image_size=64, volume_size=32, slices=16, lateral_share=1, masks=True, boxes=True
)


def drawn(modality: Modality, index: int, options: PhantomOptions = OPTIONS) -> PhantomStudy:
    return (draw_xray_study if modality == "xray" else draw_ct_study)(3, index, options)


def inside(image: PhantomImage, box: tuple[float, ...]) -> tuple[slice, ...]:
    shape = np.array(image.pixels.shape)
    half = len(shape)
    low, high = np.array(box[:half]), np.array(box[half:])
    if half == 2:
        low, high = low[::-1], high[::-1]
    return tuple(map(slice, np.rint(low * shape).astype(int), np.rint(high * shape).astype(int)))


@pytest.mark.long
@pytest.mark.parametrize("modality", ["xray", "ct"])
def test_a_finding_lies_in_its_boxes_and_they_are_tight(modality: Modality) -> None:
    names, several = set(), 0
    for index in range(5):
        study = drawn(modality, index)
        for image in study.images:
            boxes = image.ref.boxes
            for finding, mask in zip(study.findings, image.masks, strict=True):
                own = [each for each in boxes if each.label == finding.name]
                if sum(other.name == finding.name for other in study.findings) > 1:
                    continue  # several devices
                assert bool(own) == mask.any()
                outside = mask.copy()
                for each in own:
                    part = mask[inside(image, each.box)]
                    for axis in range(part.ndim):
                        rest = tuple(other for other in range(part.ndim) if other != axis)
                        assert part.any(rest)[[0, -1]].all(), "no border of a box is empty"
                    outside[inside(image, each.box)] = False
                assert not outside.any()
                names.add(finding.name)
                several += len(own) > 1
                if image.ref.view == "LATERAL" and finding.count == 1:
                    assert len(own) <= 1, "both sides lie over each other"
    assert len(names) >= 6
    assert several


@pytest.mark.parametrize("modality", ["xray", "ct"])
def test_boxes_are_on_the_side_of_the_finding(modality: Modality) -> None:
    sided = 0
    for index in range(5):
        study = drawn(modality, index)
        image = study.images[0]
        for finding in study.findings:
            if not finding.visible or finding.name in ("Support Devices", "Medical material"):
                continue
            own = [each.box for each in image.ref.boxes if each.label == finding.name]
            # x grows to the patient's left, which is at the right of an image.
            middles = [(box[0] + box[2]) / 2 if len(box) == 4 else (box[2] + box[5]) / 2 for box in own]
            if finding.side in ("left", "right"):
                assert all((middle > 0.5) == (finding.side == "left") for middle in middles)
                sided += bool(middles)
            elif finding.side == "bilateral" and len(middles) == 2:
                assert min(middles) < 0.5 < max(middles)
    assert sided >= 2


def test_boxes_have_the_sentence_of_their_finding_and_no_mask_is_needed() -> None:
    study = drawn("xray", 1, OPTIONS.model_copy(update={"masks": False}))
    for image, masked in zip(study.images, drawn("xray", 1).images, strict=True):
        assert image.ref.boxes == masked.ref.boxes
        assert not image.masks
        assert image.twin is None
        for each in image.ref.boxes:
            assert each.sentence
            assert each.sentence in (study.record.findings or "")
    assert study.record.images[0].boxes == study.images[0].ref.boxes


def test_without_the_option_nothing_is_marked() -> None:
    assert all(image.ref.boxes == () for image in drawn("xray", 1, PhantomOptions(image_size=64, masks=True)).images)
    assert box_of_mask(np.zeros((2, 2), bool)) is None
