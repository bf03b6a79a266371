"""Radiographs of the phantom: reproducible, oriented, exact where a closed form is known."""

from __future__ import annotations

import numpy as np
import pytest

from radweave.core.ontology import CHEXPERT14
from radweave.core.study import LabelState
from radweave.phantom.anatomy import Box, Ellipsoid, Tube, draw_anatomy
from radweave.phantom.findings import Finding
from radweave.phantom.lesions import make_scene
from radweave.phantom.scene import build_scene
from radweave.phantom.study import PhantomOptions, draw_xray_study
from radweave.phantom.xray import Exposure, Projector, Rays, develop, difference, make_rays, union_length

SMALL = PhantomOptions(image_size=64)


def straight_rays(rows: int = 41) -> Rays:
    """Rays from so far away that they are parallel to y, one pixel per mm."""
    return Rays(
        source=np.array([0.0, -1e4, 0.0]),
        origin=np.array([0.0, 0.0, 0.0]),
        across=np.array([1.0, 0.0, 0.0]),
        rows=rows,
        columns=rows,
        pixel_mm=1.0,
    )


def test_chord_of_a_sphere_is_its_closed_form() -> None:
    rays = straight_rays()
    low, high = rays.interval(Ellipsoid((0, 0, 0), (15, 15, 15)))
    chord = np.maximum(high - low, 0) * rays.length_mm
    r = np.hypot(rays.u, rays.v)
    expected = 2 * np.sqrt(np.maximum(15.0**2 - r**2, 0))
    # t is a share of 10 m in single precision: about 1 um; the rest is the rays' spread, 2 mm in 1,000.
    assert np.abs(chord - expected)[r < 13].max() < 0.02


def test_a_turned_ellipsoid_and_box_are_turned() -> None:
    rays = make_rays(Exposure("PA", size=64))
    shape = Ellipsoid((10, 5, 0), (60, 20, 10), tilt_deg=30)
    box = Box((10, 5, 0), (60, 20, 10), tilt_deg=30)
    for solid, volume in ((shape, 4 / 3 * np.pi * 60 * 20 * 10), (box, 8 * 60 * 20 * 10)):
        low, high = rays.interval(solid)
        chord = np.maximum(high - low, 0) * rays.length_mm
        magnified = (1800 / (1800 - 140 - 5)) ** 2 * volume
        # Summed chords are the volume, magnified: 3 % for the depth of the shape and the pixel grid.
        assert chord.sum() * rays.pixel_mm**2 == pytest.approx(magnified, rel=0.03)


def test_union_and_difference_of_intervals_count_nothing_twice() -> None:
    rng = np.random.default_rng(0)
    low, high = rng.uniform(0, 5, (2, 3, 4)).astype(np.float32)
    low, high = np.minimum(low, high), np.maximum(low, high) + 3
    holes = [tuple(np.sort(rng.uniform(0, 10, (2, 3, 4)).astype(np.float32), axis=0)) for _ in range(4)]
    far = np.float32(1e6)
    holes[1][0][0], holes[1][1][0] = far, -far  # some rays miss one of the solids
    grid = np.linspace(0, 12, 24_001)[:, None, None]
    inside = (grid > low) & (grid < high)
    in_hole = np.zeros_like(inside)
    for a, b in holes:
        in_hole |= (grid > a) & (grid < b)
    step = grid[1, 0, 0] - grid[0, 0, 0]
    rest = difference(low, high, [(a, b) for a, b in holes]).length()
    # The sampled length is right to a grid step per border.
    np.testing.assert_allclose(rest, (inside & ~in_hole).sum(0) * step, atol=10 * step)
    np.testing.assert_allclose(union_length([(a, b) for a, b in holes]), in_hole.sum(0) * step, atol=10 * step)


def test_a_tube_casts_the_chord_of_a_cylinder() -> None:
    rays = straight_rays()
    image = np.zeros((41, 41), np.float32)
    rays.add_tubes([Tube(((0.0, 0.0, -40.0), (0.0, 0.0, 40.0)), 6.0)], [1.0], image)
    assert image[20, 20] == pytest.approx(12.0, rel=0.01)
    assert image[20, 16] == pytest.approx(2 * np.sqrt(36 - 16), rel=0.01)
    assert image[20, 30] == 0


def test_a_study_depends_on_seed_and_index_only() -> None:
    first = draw_xray_study(7, 5, SMALL)
    draw_xray_study(7, 2, SMALL)
    repeated = draw_xray_study(7, 5, SMALL)
    assert first.record == repeated.record
    for a, b in zip(first.images, repeated.images, strict=True):
        assert a.pixels.tobytes() == b.pixels.tobytes()
    assert draw_xray_study(8, 5, SMALL).images[0].pixels.tobytes() != first.images[0].pixels.tobytes()


def test_anatomy_of_a_normal_radiograph() -> None:
    for seed in range(5):
        anatomy = draw_anatomy(np.random.default_rng(seed))
        exposure = Exposure("PA", size=128, seed=seed)
        image = develop(Projector(exposure).depth(build_scene(anatomy)), exposure).astype(float)
        right, middle, left = image[55:75, 25:45].mean(), image[55:75, 60:68].mean(), image[55:75, 85:105].mean()
        assert middle > right + 40
        assert middle > left + 40
        # The heart reaches further to the patient's left, the image's right.
        rows = slice(70, 82)
        assert image[rows, 72:86].mean() > image[rows, 42:56].mean()
        assert anatomy.dome_top_mm("right") > anatomy.dome_top_mm("left")


@pytest.mark.parametrize("side", ["right", "left"])
def test_an_effusion_is_on_its_side(side: str) -> None:
    anatomy = draw_anatomy(np.random.default_rng(3))
    exposure = Exposure("PA", size=96)
    projector = Projector(exposure)
    finding = Finding(name="Pleural Effusion", kind="typical", side=side, severity="severe", size_mm=80)
    change = projector.depth(make_scene(anatomy, [finding])) - projector.depth(make_scene(anatomy, []))
    here, present = (change[:, :44], change[:, 52:]) if side == "right" else (change[:, 52:], change[:, :44])
    assert here.max() > 0.5
    assert np.abs(present).max() < 1e-4


def test_labels_equal_the_statements_of_the_report() -> None:
    observed: set[str] = set()
    for index in range(32):
        study = draw_xray_study(1, index, PhantomOptions(image_size=32, prevalence="balanced", lateral_share=0))
        labels = study.record.labels["chexpert14"]
        assert tuple(labels) == CHEXPERT14
        text = f"{study.record.findings} {study.record.impression}".lower()
        for finding in study.findings:
            if finding.visible and finding.certainty == "definite":
                assert labels[finding.name] is LabelState.POSITIVE
                observed.add(finding.name)
        if labels["Pneumothorax"] is LabelState.NEGATIVE:
            assert "no pneumothorax" in text or "or pneumothorax" in text or "pneumothorax has resolved" in text
        if labels["Pneumothorax"] is LabelState.BLANK:
            assert "pneumothorax" not in text
    assert len(observed) >= 11


def test_normal_prevalence_gives_normal_reports() -> None:
    for index in range(10):
        study = draw_xray_study(2, index, PhantomOptions(image_size=32, prevalence="normal"))
        assert study.findings == ()
        assert study.record.labels["chexpert14"]["No Finding"] is LabelState.POSITIVE


def test_a_later_visit_names_its_prior() -> None:
    studies = [draw_xray_study(4, i, PhantomOptions(image_size=32)).record for i in range(16)]
    ids = {s.study_id: s for s in studies}
    later = [s for s in studies if s.prior]
    assert later
    for study in later:
        assert study.prior in ids
        assert ids[study.prior].patient_id == study.patient_id
        assert ids[study.prior].split == study.split


@pytest.mark.long
def test_masks_cover_the_difference_from_the_twin() -> None:
    compared = 0
    for index in range(16):
        study = draw_xray_study(5, index, PhantomOptions(image_size=96, prevalence="balanced", masks=True))
        for image in study.images:
            assert image.twin is not None
            assert len(image.masks) == len(study.findings)
            difference = np.abs(image.pixels.astype(int) - image.twin.astype(int))
            together = np.any(image.masks, axis=0) if image.masks else np.zeros(difference.shape, bool)
            for finding, mask in zip(study.findings, image.masks, strict=True):
                assert finding.visible or not mask.any()
            if not any(f.visible for f in study.findings):
                np.testing.assert_array_equal(image.pixels, image.twin)
            if (difference > 25).any():
                # Same noise in both; blur and edge enhancement carry a change 3 to 4 pixels past the mask.
                near = np.pad(together, 4)
                size = together.shape[0]
                near = np.any([near[i : i + size, j : j + size] for i in range(9) for j in range(9)], axis=0)
                assert (near & (difference > 25)).sum() >= 0.97 * (difference > 25).sum()
                # And the masks are where the image differs, not just everywhere.
                assert difference[together].mean() > 3 * difference[~near].mean()
                compared += 1
    assert compared >= 8


@pytest.mark.parametrize("name", [n for n in CHEXPERT14 if n != "No Finding"])
def test_every_observation_changes_the_radiograph(name: str) -> None:
    anatomy = draw_anatomy(np.random.default_rng(6))
    finding = Finding(
        name=name,
        kind="central line" if name == "Support Devices" else "acute",
        side="midline" if name in ("Cardiomegaly", "Enlarged Cardiomediastinum") else "right",
        zone="mid",
        severity="moderate",
        size_mm={"Cardiomegaly": 170, "Enlarged Cardiomediastinum": 95, "Lung Opacity": 80}.get(name, 25),
        seed=3,
    )
    projector = Projector(Exposure("PA", size=128))
    change = np.abs(projector.depth(make_scene(anatomy, [finding])) - projector.depth(make_scene(anatomy, [])))
    assert (change > 0.04).sum() >= 20
    if name in ("Lung Lesion", "Lung Opacity", "Consolidation", "Pneumonia", "Pneumothorax", "Pleural Effusion"):
        assert (change[:, 68:] > 0.04).sum() == 0
