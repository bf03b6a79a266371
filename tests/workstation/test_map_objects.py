"""Maps as DICOM: what they lie over, where they are, what they say of themselves."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pydicom import dcmread
from pydicom.dataset import Dataset

from radweave.core.errors import InputError
from radweave.core.study import LabelState
from radweave.io.volumes import Geometry, Volume
from radweave.workstation.finished import CAUTION, Finding
from radweave.workstation.formats import FORMATS, MAPS
from radweave.workstation.map_objects import FINE, heat_maps
from tests.image_files import CANARY
from tests.workstation.reports import STUDY, finished, identity, placed

CT = {"modality": "CT", "sop_class_uid": "1.2.840.10008.5.1.4.1.1.2"}


def written(**changes: Any) -> Dataset:
    return dcmread(io.BytesIO(FORMATS[MAPS].bytes_of(finished(**changes))))


def test_maps_of_radiographs_are_captioned_pictures() -> None:
    one = finished().maps[0]
    dataset = written(maps=(one, one))
    assert dataset.SOPClassUID.name == "Multi-frame True Color Secondary Capture Image Storage"
    assert (dataset.NumberOfFrames, list(dataset.FrameLabelVector)) == (2, ["Cardiomegaly", "Cardiomegaly"])
    assert (dataset.BurnedInAnnotation, dataset.SeriesDescription, dataset.ImageComments) == ("YES", CAUTION, CAUTION)
    assert "not a lesion boundary" in dataset.DerivationDescription
    (source,) = dataset.SourceImageSequence
    assert source.ReferencedSOPInstanceUID == f"{STUDY}.1.1"
    frame = dataset.pixel_array[0].astype(int)
    colour = frame.max(axis=2) - frame.min(axis=2)
    left = (frame.shape[1] - 80) // 2
    assert colour[:96, left].max() == 0, "no heat, no colour"
    assert colour[:96, left + 70 : left + 80].min() > 60, "the heat is coloured"
    assert frame[96 + 28 :].max() == 255, "the strip below has its text burned in"
    assert "FrameOfReferenceUID" not in dataset
    assert "FrameIncrementPointer" not in written(), "of one frame it may not be there"


def test_maps_of_a_scan_lie_in_its_frame_of_reference() -> None:
    report = finished(sources=(identity(**CT, frame_of_reference_uid=f"{STUDY}.7"),), maps=(placed("Lung nodule"),))
    dataset = dcmread(io.BytesIO(FORMATS[MAPS].bytes_of(report)))
    assert dataset.SOPClassUID.name == "Parametric Map Storage"
    assert (dataset.FrameOfReferenceUID, dataset.PatientID) == (f"{STUDY}.7", CANARY)
    assert (dataset.SeriesDescription, dataset.ContentQualification) == (CAUTION, "RESEARCH")
    values = np.frombuffer(dataset.FloatPixelData, "<f4").reshape(4, 6, 8)
    frame, row, column = np.unravel_index(int(values.argmax()), values.shape)
    group = dataset.PerFrameFunctionalGroupsSequence[int(frame)]
    corner = np.array(group.PlanePositionSequence[0].ImagePositionPatient, dtype=float)
    shared = dataset.SharedFunctionalGroupsSequence[0]
    across = np.array(shared.PlaneOrientationSequence[0].ImageOrientationPatient, dtype=float).reshape(2, 3)
    spacing = [float(value) for value in shared.PixelMeasuresSequence[0].PixelSpacing]
    place = corner + across[0] * spacing[1] * column + across[1] * spacing[0] * row
    assert np.allclose(place, (-150 + 7 * 5, -160 + 5 * 5, -200 + 2 * 6))


def test_missing_maps_and_maps_without_a_frame_of_reference_are_refused() -> None:
    with pytest.raises(InputError, match="maps have no place") as caught:
        written(sources=(identity(**CT),), maps=(placed("Lung nodule"),))
    assert caught.value.field == "FrameOfReferenceUID"
    with pytest.raises(InputError, match="no map that fits"):
        written(maps=())


def test_a_map_lies_over_the_part_of_its_picture_that_the_model_saw() -> None:
    # A picture of 100 x 50 in a square: the map's columns reach half a width beyond it on each side.
    picture: Any = SimpleNamespace(pixels=np.zeros((100, 50), np.float32))
    evidence = {
        "attention_maps": {"Mass": [[[0, 0, 0, 0], [0, 4, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]], "Odd": [[1, 2]]},
        "views": [{"covers": [(0.0, 1.0), (-0.5, 2.0)]}],
    }
    rows = [Finding(name, 0.9, 0.5, LabelState.POSITIVE) for name in ("Mass", "Odd")]
    (place,) = heat_maps(evidence, [("View 1", picture)], rows)
    (panel,) = place.panels
    assert panel.heat is not None
    row, column = np.unravel_index(int(panel.heat.argmax()), panel.heat.shape)
    height, width = panel.heat.shape
    assert abs((row + 0.5) / height - 1.5 / 4) < 0.01
    assert abs((column + 0.5) / width - (1.5 / 4 * 2 - 0.5)) < 0.02
    assert place.peak == 4


def test_a_map_of_a_scan_is_placed_by_the_scans_own_geometry() -> None:
    volume = Volume(
        np.zeros((20, 30, 40), np.int16), (3.0, 2.0, 1.0),
        Geometry((1.0, 2.0, 3.0), (-10.0, -20.0, -30.0), (1, 0, 0, 0, 1, 0, 0, 0, 1)), "nifti", (),
    )  # fmt: skip
    weights = np.zeros((2, 2, 2))
    weights[1, 0, 1] = 1
    evidence = {"attention_maps": {"Mass": [weights.tolist()]}, "views": [{"covers": [(0.0, 1.0)] * 3}]}
    (place,) = heat_maps(evidence, [("CT", volume)], [Finding("Mass", 0.9, 0.5, LabelState.POSITIVE)])
    assert place.placed is not None
    assert place.placed.values.shape == (FINE, FINE, FINE)
    first, last = (place.placed.affine_lps @ (n, n, n, 1) for n in (-0.5, FINE - 0.5))
    assert np.allclose(first[:3], (-10.5, -21.0, -31.5)), "the corner of the first voxel"
    assert np.allclose(last[:3], (29.5, 39.0, 28.5)), "the corner of the last"
    assert place.placed.values[-1, 0, -1] == 1
    assert place.placed.values[0, -1, 0] == 0
