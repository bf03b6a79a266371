"""CT volumes of the phantom: HU, orientation, geometry shared with the radiograph, lossless files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from radweave.core.ontology import CT18
from radweave.core.study import LabelState
from radweave.phantom.anatomy import Ellipsoid, Tube, draw_anatomy
from radweave.phantom.ct import Scan, Voxels, make_ct_scene, scan_noise
from radweave.phantom.findings import Finding
from radweave.phantom.lesions import make_scene
from radweave.phantom.scene import AIR_HU, LUNG_HU, Filling, Scene, build_scene
from radweave.phantom.study import PhantomOptions, course_of, draw_ct_study, slot_of, write_phantom_dataset
from radweave.phantom.xray import WATER_PER_MM, Exposure, Projector

SMALL = PhantomOptions(volume_size=48, slices=24)


def test_the_turnover_reaches_a_scan() -> None:
    """A later visit's findings, resolved ones too, are those of its course."""
    options = PhantomOptions(volume_size=16, slices=8, prevalence="balanced", turnover="real")
    index = next(
        index
        for index in range(60)
        if course_of(2, slot_of(2, index), "balanced", "ct", "real")
        != course_of(2, slot_of(2, index), "balanced", "ct", "low")
    )
    study = draw_ct_study(2, index, options)
    assert study.findings == course_of(2, slot_of(2, index), "balanced", "ct", "real")[1]
    assert study.record.prior is not None


def test_volume_of_a_painted_solid_is_its_volume() -> None:
    scan = Scan()
    voxels = Voxels(scan)
    cell = float(np.prod(scan.spacing_mm))
    result = voxels._share(Ellipsoid((10, 5, -20), (40, 30, 50), tilt_deg=25))
    assert result is not None
    # The edge is a voxel wide and the distance to it approximate.
    assert result[1].sum() * cell == pytest.approx(4 / 3 * np.pi * 40 * 30 * 50, rel=0.08)
    ball = voxels._segment(Tube(((0, 0, -60), (0, 0, 60)), 12.0), (slice(0, 48), slice(0, 96), slice(0, 96)))
    assert ball.sum() * cell == pytest.approx(np.pi * 144 * 120 + 4 / 3 * np.pi * 12**3, rel=0.08)


def test_tissues_have_their_hu_and_the_liver_lies_right() -> None:
    scan = Scan(noise_hu=0.0)
    hu = scan_noise(Voxels(scan).volume(build_scene(draw_anatomy(np.random.default_rng(1)), arms_up=True)), scan)
    assert hu.shape == (48, 96, 96)
    assert hu[:, 0, 0].max() == AIR_HU
    lung = hu[28, 40:60, 20:35]
    assert np.median(lung) == pytest.approx(LUNG_HU, abs=30)
    # Low slices: liver under the right dome (low x), fat and stomach under the left one.
    right, left = hu[2, 45:60, 20:35], hu[2, 45:60, 62:75]
    assert np.median(right) == pytest.approx(58, abs=15)
    assert np.median(right) > np.median(left) + 5
    # The spine lies at the back, the sternum in front.
    assert hu[24, 60:85, 44:52].max() > 200


def test_the_radiograph_is_the_projection_of_the_volume() -> None:
    """Summed along y, the voxels give what the rays give in closed form."""
    anatomy = draw_anatomy(np.random.default_rng(2))
    scene = make_scene(anatomy, [], arms_up=True)
    scene.organs = []  # the radiograph does not tell fat from muscle
    scan = Scan(shape=(60, 120, 96), spacing_mm=(5.0, 3.0, 3.75), noise_hu=0.0)
    volume = Voxels(scan).volume(scene)
    summed = ((volume + 1000) / 1000 * WATER_PER_MM * 3.0).sum(1)[::-1]
    projector = Projector(Exposure("PA", size=96, field_mm=360.0))
    rays = projector.rays
    # The same window seen from very far: nearly parallel rays.
    rays.__init__(  # type: ignore[misc]
        np.array([0.0, 1e4, -14.0]), np.array([0.0, -140.0, -14.0]), np.array([1.0, 0.0, 0.0]), 60, 96, 4.0
    )
    depth = projector.depth(scene)
    rows = np.abs(np.arange(60)[:, None] * 5.0 - 147.5 - ((np.arange(60) - 29.5) * 4.0)[None, :]).argmin(0)
    columns = np.abs(np.arange(96)[:, None] * 3.75 - 178.125 - ((np.arange(96) - 47.5) * 4.0)[None, :]).argmin(0)
    matched = summed[rows][:, columns]
    inside = (matched > 1.0) & (np.abs(np.arange(96) - 47.5) < 40)[None, :]
    assert np.corrcoef(matched[inside], depth[inside])[0, 1] > 0.95
    assert np.median(np.abs(matched - depth)[inside]) < 0.25


@pytest.mark.parametrize("name", [n for n in CT18 if n != "Cardiomegaly"])
def test_every_abnormality_changes_the_volume(name: str) -> None:
    finding = Finding(
        name=name,
        kind="pacemaker" if name == "Medical material" else "typical",
        side="left" if name in ("Lung nodule", "Pleural effusion", "Medical material") else "bilateral",
        zone="lower",
        severity="moderate",
        size_mm=20,
        count=2,
        seed=4,
    )
    voxels = Voxels(Scan())
    anatomy = draw_anatomy(np.random.default_rng(4))
    change = np.abs(voxels.volume(make_ct_scene(anatomy, [finding])) - voxels.volume(make_ct_scene(anatomy, [])))
    assert (change > 25).sum() >= 10
    if finding.side == "left" and name != "Medical material":
        assert (change[:, :, :40] > 25).sum() == 0


@pytest.mark.parametrize("change", ["lungs", "fillings", "body", "solids", "organs"])
def test_cached_solids_do_not_change_a_volume(change: str) -> None:
    """What is kept between two scenes of an anatomy hangs on all that it is made of."""
    anatomy = draw_anatomy(np.random.default_rng(3))
    scan = Scan(shape=(12, 24, 24), spacing_mm=(26.0, 15.0, 15.0), noise_hu=0.0)

    def scene(changed: bool) -> Scene:
        made = build_scene(anatomy, arms_up=True)
        if changed and change == "lungs":
            made.lung_hu = {**made.lung_hu, "left": made.lung_hu["left"] - 90.0}
        elif changed and change == "fillings":
            made.fillings["right"].append(Filling(made.cavities["right"][:1], 10.0))
        elif changed:
            setattr(made, change, getattr(made, change)[:-1])
        return made

    used = Voxels(scan)
    before = used.volume(scene(changed=False))
    after = used.volume(scene(changed=True))
    np.testing.assert_array_equal(after, Voxels(scan).volume(scene(changed=True)))
    assert (after != before).any()


@pytest.mark.long
def test_masks_cover_the_difference_from_the_twin() -> None:
    compared = 0
    for index in range(12):
        study = draw_ct_study(5, index, PhantomOptions(volume_size=64, slices=32, prevalence="balanced", masks=True))
        image = study.images[0]
        assert image.twin is not None
        assert len(image.masks) == len(study.findings)
        difference = np.abs(image.pixels.astype(int) - image.twin.astype(int))
        together = np.any(image.masks, axis=0) if image.masks else np.zeros(difference.shape, bool)
        for finding, mask in zip(study.findings, image.masks, strict=True):
            assert mask.any() == finding.visible or finding.severity == "mild"
        if together.any():
            # Same noise in both: what differs strongly is what some finding did, alone or with another.
            assert (together & (difference > 60)).sum() >= 0.97 * (difference > 60).sum()
            compared += 1
    assert compared >= 6


@pytest.mark.long
def test_a_study_is_reproducible_and_labelled_by_its_report() -> None:
    observed: set[str] = set()
    for index in range(30):
        study = draw_ct_study(6, index, PhantomOptions(volume_size=16, slices=8, prevalence="balanced"))
        labels = study.record.labels["ct18"]
        assert tuple(labels) == CT18
        assert study.record.findings == " ".join(study.record.regions.values())
        for finding in study.findings:
            if finding.visible and finding.certainty == "definite":
                assert labels[finding.name] is LabelState.POSITIVE
                observed.add(finding.name)
    assert len(observed) >= 15
    first, repeated = (draw_ct_study(6, 3, SMALL) for _ in range(2))
    assert first.images[0].pixels.tobytes() == repeated.images[0].pixels.tobytes()
    assert first.record == repeated.record


def test_files_read_back_equal_with_the_right_axes(tmp_path: Path) -> None:
    import nibabel as nib

    dataset = write_phantom_dataset(tmp_path / "d", modality="ct", num_studies=2, seed=9, options=SMALL)
    write_phantom_dataset(tmp_path / "e", modality="ct", num_studies=2, seed=9, options=SMALL)
    for index, study in enumerate(dataset.studies()):
        path = dataset.image_path(study.images[0].path)
        assert path.read_bytes() == (tmp_path / "e" / study.images[0].path).read_bytes()
        file = nib.load(path)
        drawn = draw_ct_study(9, index, SMALL).images[0]
        np.testing.assert_array_equal(np.asarray(file.dataobj).transpose(2, 1, 0), drawn.pixels)
        # x to the patient's left, y to the back, z to the head.
        assert nib.aff2axcodes(file.affine) == ("L", "P", "S")
        np.testing.assert_allclose(file.header.get_zooms(), study.images[0].spacing_mm[::-1], rtol=1e-6)  # type: ignore[index]
