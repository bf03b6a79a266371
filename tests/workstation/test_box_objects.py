"""Boxes as DICOM: where they lie on radiographs and slices, and what a presentation state repeats of its images."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydicom import dcmread
from pydicom.dataset import Dataset

from radweave.core.errors import InputError
from radweave.data.boxes import box_of_mask
from radweave.inference.pictures import read_scan
from radweave.io.images import read_radiograph
from radweave.workstation.box_objects import on_images
from radweave.workstation.finished import FinishedReport, MarkedBox
from radweave.workstation.formats import BOXES, FORMATS, MAPS
from radweave.workstation.identity import read_identities
from tests.image_files import chest, edit, write_dicom, write_series
from tests.workstation.archive import needs
from tests.workstation.reports import BOX, PLACE, SIGNED, STUDY, finished, identity, placed

TID1500 = "sr-tid1500"
SLICES, ROWS, COLUMNS = slice(5, 9), slice(10, 20), slice(12, 30)
"""The bright voxels of the scan, as it is stored."""


def written(name: str, report: FinishedReport) -> Dataset:
    return dcmread(io.BytesIO(FORMATS[name].bytes_of(report)))


def about(*files: Path, **changes: Any) -> FinishedReport:
    """A report about files; boxes are those of ``places``."""
    sources, _ = read_identities(files)
    pictures = [read_scan(file) if file.is_dir() else read_radiograph(file) for file in files]
    places = on_images(changes.pop("places", (PLACE,)), pictures, files, sources)
    return finished(sources=sources, places=places, **changes)


def outlines(dataset: Dataset) -> dict[str, NDArray[np.float64]]:
    """SOP Instance UID of each annotated image -> left, top, right and bottom of its only line."""
    edges = {}
    for item in dataset.GraphicAnnotationSequence:
        (graphic,), (image,) = item.GraphicObjectSequence, item.ReferencedImageSequence
        points = np.array(graphic.GraphicData).reshape(-1, 2)
        assert len(points) == graphic.NumberOfGraphicPoints
        assert (points[0] == points[-1]).all()
        edges[str(image.ReferencedSOPInstanceUID)] = np.concatenate([points.min(axis=0), points.max(axis=0)])
    return edges


def regions(dataset: Dataset) -> list[Dataset]:
    """The groups of a TID 1500 report that have a box."""
    (groups,) = [item for item in dataset.ContentSequence if _name(item) == "126010"]
    return [
        group for group in groups.ContentSequence
        if any(item.ValueType.startswith("SCOORD") for item in group.ContentSequence)
    ]  # fmt: skip


def _name(item: Dataset) -> str:
    return str(item.ConceptNameCodeSequence[0].CodeValue) if "ConceptNameCodeSequence" in item else ""


def test_a_presentation_state_draws_each_box_on_its_view(tmp_path: Path) -> None:
    same = {"StudyInstanceUID": STUDY, "SeriesInstanceUID": f"{STUDY}.1"}
    files = (write_dicom(tmp_path / "a.dcm", chest(96, 80), **same),
             write_dicom(tmp_path / "b.dcm", chest(60, 50), **same))  # fmt: skip
    boxes = (MarkedBox(1, (0.5, 0.25, 0.75, 0.5)), MarkedBox(0, (0.0, 0.5, 0.5, 1.0)))
    report = about(*files, places=(replace(PLACE, boxes=boxes),), signature=SIGNED)
    dataset = written(BOXES, report)
    first, second = (source.sop_instance_uid for source in report.sources)
    edges = outlines(dataset)
    assert edges[first].tolist() == [0, 48, 40, 96]
    assert edges[second].tolist() == [25, 15, 37.5, 30]
    assert {
        text.UnformattedTextValue for item in dataset.GraphicAnnotationSequence for text in item.TextObjectSequence
    } == {"Pleural Effusion"}
    assert dataset.GraphicLayerSequence[0].GraphicLayerDescription == "Chest imaging report"
    draft = written(BOXES, replace(report, signature=None))
    assert draft.GraphicLayerSequence[0].GraphicLayerDescription == "Chest imaging report, unverified draft"
    (series,) = dataset.ReferencedSeriesSequence
    assert {str(item.ReferencedSOPInstanceUID) for item in series.ReferencedImageSequence} == {first, second}
    corners = {
        str(item.ReferencedImageSequence[0].ReferencedSOPInstanceUID): list(item.DisplayedAreaBottomRightHandCorner)
        for item in dataset.DisplayedAreaSelectionSequence
    }
    assert corners == {first: [80, 96], second: [50, 60]}


@pytest.mark.parametrize(
    ("tags", "window", "shape"),
    [
        ({"WindowCenter": [300, 5], "WindowWidth": [500, 9], "RescaleSlope": 2, "RescaleIntercept": -7,
          "PhotometricInterpretation": "MONOCHROME1", "VOILUTFunction": "SIGMOID"}, (300, 500, "SIGMOID"), "INVERSE"),
        ({"WindowCenter": "x", "RescaleSlope": 2, "RescaleIntercept": -7}, None, "IDENTITY"),
    ],
    ids=["window", "none"],
)  # fmt: skip
def test_a_presentation_state_repeats_the_grey_values_of_its_images(
    tags: dict[str, Any], window: tuple[float, float, str] | None, shape: str, tmp_path: Path
) -> None:
    path = write_dicom(tmp_path / "a.dcm", chest(96, 80), **{name: v for name, v in tags.items() if v != "x"})
    dataset = written(BOXES, about(path))
    assert (dataset.RescaleSlope, dataset.RescaleIntercept, dataset.PresentationLUTShape) == (2, -7, shape)
    if window is None:
        assert "SoftcopyVOILUTSequence" not in dataset
    else:
        (item,) = dataset.SoftcopyVOILUTSequence
        assert (item.WindowCenter, item.WindowWidth, item.VOILUTFunction) == window


def test_a_table_becomes_a_window_over_its_range(tmp_path: Path) -> None:
    table = Dataset()
    table.add_new("LUTDescriptor", "US", [1000, 200, 16])
    table.add_new("LUTData", "OW", np.arange(1000, dtype="<u2").tobytes())
    path = write_dicom(tmp_path / "a.dcm", chest(96, 80), VOILUTSequence=[table])
    (item,) = written(BOXES, about(path)).SoftcopyVOILUTSequence
    assert (item.WindowCenter, item.WindowWidth) == (700, 1000)


def test_what_one_presentation_state_cannot_show_is_refused() -> None:
    shown = identity().display
    other = identity(sop_instance_uid=f"{STUDY}.1.2", display=shown.model_copy(update={"is_inverted": True}))
    places = (replace(PLACE, boxes=(BOX, replace(BOX, image=1, source=1))),)
    with pytest.raises(InputError, match="differs between the images") as caught:
        written(BOXES, finished(sources=(identity(), other), places=places))
    assert caught.value.field == "PhotometricInterpretation"
    table = identity(display=shown.model_copy(update={"has_table": True}))
    with pytest.raises(InputError, match="cannot be repeated"):
        written(BOXES, finished(sources=(table,)))
    for places in ((), (replace(PLACE, boxes=()),), (replace(PLACE, boxes=(MarkedBox(0, BOX.box),)),)):
        with pytest.raises(InputError, match="no sentence has a box"):
            written(BOXES, finished(places=places))


def test_a_structured_report_has_each_box_of_a_radiograph_with_its_sentence_and_place() -> None:
    (group,) = regions(written(TID1500, finished()))
    inside = {_name(item): item for item in group.ContentSequence}
    assert inside["112039"].TextValue == PLACE.sentence
    assert inside["121071"].ConceptCodeSequence[0].CodeMeaning == "Pleural effusion"
    site = inside["363698007"]
    assert site.ConceptCodeSequence[0].CodeValue == "43799004"
    assert {item.ConceptCodeSequence[0].CodeMeaning for item in site.ContentSequence} == {"Left", "left pleura"}
    assert inside["STATED"].ConceptCodeSequence[0].CodeMeaning == "Present"
    assert float(inside["PLACE"].MeasuredValueSequence[0].NumericValue) == 0.8
    (region,) = [item for item in group.ContentSequence if item.ValueType == "SCOORD"]
    assert region.GraphicType == "POLYLINE"
    assert list(region.GraphicData) == [40, 24, 60, 24, 60, 48, 40, 48, 40, 24]
    (image,) = region.ContentSequence
    assert image.ReferencedSOPSequence[0].ReferencedSOPInstanceUID == f"{STUDY}.1.1"


def test_a_finding_that_a_sentence_leaves_open_is_not_said_to_be_there(tmp_path: Path) -> None:
    files = (write_dicom(tmp_path / "a.dcm", chest(96, 80)), scan(tmp_path / "scan", *ORIENTATIONS["axial"])[0].parent)
    for file, box in zip(files, (BOX.box, (0.2, 0.2, 0.2, 0.4, 0.4, 0.4)), strict=True):
        place = replace(PLACE, boxes=(MarkedBox(0, box),), is_uncertain=True)
        for places, state, label in (
            ((place,), "Undetermined", "Pleural Effusion, left open"),
            ((place, replace(place, is_uncertain=False)), "Present", "Pleural Effusion"),
        ):
            report = about(file, places=places)
            *_, group = regions(written(TID1500, report))
            (stated,) = [item for item in group.ContentSequence if _name(item) == "STATED"]
            assert stated.ConceptCodeSequence[0].CodeMeaning == state
            texts = [item.TextObjectSequence for item in written(BOXES, report).GraphicAnnotationSequence]
            assert [[text.UnformattedTextValue for text in one] for one in texts] == [[label]] * len(texts)


ORIENTATIONS = {
    "axial": ([1, 0, 0, 0, 1, 0], [0, 0, 2]),
    "from the head": ([1, 0, 0, 0, 1, 0], [0, 0, -2]),
    "prone": ([-1, 0, 0, 0, -1, 0], [0, 0, 2]),
    "sagittal": ([0, 1, 0, 0, 0, -1], [2, 0, 0]),
    "coronal": ([1, 0, 0, 0, 0, -1], [0, -2, 0]),
}
"""Directions of rows and columns, and the step from slice to slice in mm."""


def scan(folder: Path, orientation: list[int], step: list[float]) -> list[Path]:
    hu = np.full((24, 40, 48), -900, np.int16)
    hu[SLICES, ROWS, COLUMNS] = 300
    paths = write_series(folder, hu)
    move(paths, orientation, [np.array(step) * number for number in range(len(paths))])
    return paths


def move(paths: list[Path], orientation: list[int], offsets: Sequence[NDArray[np.float64]]) -> None:
    for path, offset in zip(paths, offsets, strict=True):
        edit(path, ImageOrientationPatient=orientation, ImagePositionPatient=(offset - [30, 40, 100]).tolist())


@pytest.mark.parametrize("kind", ORIENTATIONS)
def test_a_box_of_a_scan_lies_on_its_voxels_in_every_orientation(kind: str, tmp_path: Path) -> None:
    orientation, step = ORIENTATIONS[kind]
    paths = scan(tmp_path / "scan", orientation, step)
    box = box_of_mask(read_scan(tmp_path / "scan").hu > 0)
    assert box is not None
    report = about(tmp_path / "scan", places=(replace(PLACE, boxes=(MarkedBox(0, box),)),))
    edges = outlines(written(BOXES, report))
    assert {*edges} == {str(dcmread(path).SOPInstanceUID) for path in paths[SLICES]}
    wanted = [COLUMNS.start, ROWS.start, COLUMNS.stop, ROWS.stop]
    assert all(edge.tolist() == pytest.approx(wanted, abs=0.01) for edge in edges.values())
    (group,) = regions(written(TID1500, report))
    faces = [item for item in group.ContentSequence if item.ValueType == "SCOORD3D"]
    points = np.concatenate([np.array(face.GraphicData).reshape(-1, 3) for face in faces])
    across, down = np.array(orientation, float).reshape(2, 3)
    ends = [
        np.array([-30.0, -40.0, -100.0]) + (number - 0.5) * np.array(step, float)
        + (column - 0.5) * 1.25 * across + (row - 0.5) * 1.5 * down
        for number, row, column in ((SLICES.start, ROWS.start, COLUMNS.start), (SLICES.stop, ROWS.stop, COLUMNS.stop))
    ]  # fmt: skip
    ends_of_axes = set()
    for face in faces:
        corners = np.array(face.GraphicData).reshape(-1, 3)
        (axis,) = np.flatnonzero(np.ptp(corners, axis=0) < 1e-3)
        ends_of_axes.add((int(axis), round(float(corners[0, axis]), 2)))
    assert len(faces) == len(ends_of_axes) == 6, "one face at each end of each axis"
    assert np.allclose(points.min(axis=0), np.minimum(*ends), atol=1e-3)
    assert np.allclose(points.max(axis=0), np.maximum(*ends), atol=1e-3)
    assert faces[0].ReferencedFrameOfReferenceUID == report.patient.frame_of_reference_uid


def test_a_box_of_a_tilted_scan_lies_on_its_voxels(tmp_path: Path) -> None:
    paths = scan(tmp_path / "scan", [1, 0, 0, 0, 1, 0], [0, 1.5, 2])  # each slice a row further back
    hu = read_scan(tmp_path / "scan").hu
    box = box_of_mask(hu > 0)
    assert box is not None
    edges = outlines(written(BOXES, about(tmp_path / "scan", places=(replace(PLACE, boxes=(MarkedBox(0, box),)),))))
    assert len(edges) == SLICES.stop - SLICES.start
    for number in range(SLICES.start, SLICES.stop):
        left, top, right, bottom = edges[str(dcmread(paths[number]).SOPInstanceUID)]
        # Upright, the block leans over: its box reaches from the first slice's rows to the last one's.
        rows = ROWS.start + SLICES.start - number, ROWS.stop + SLICES.stop - 1 - number
        assert [left, top, right, bottom] == pytest.approx([COLUMNS.start, rows[0], COLUMNS.stop, rows[1]], abs=0.01)


def test_a_box_of_a_scan_lies_on_its_series_alone(tmp_path: Path) -> None:
    paths = scan(tmp_path / "scan", *ORIENTATIONS["axial"])
    first = dcmread(paths[0])
    localizer = write_localizer(tmp_path / "scan" / "00.dcm", first)
    box = box_of_mask(read_scan(tmp_path / "scan").hu > 0)
    assert box is not None
    report = about(tmp_path / "scan", places=(replace(PLACE, boxes=(MarkedBox(0, box),)),))
    assert report.patient.sop_instance_uid == dcmread(localizer).SOPInstanceUID
    assert {*outlines(written(BOXES, report))} == {str(dcmread(path).SOPInstanceUID) for path in paths[SLICES]}
    (group,) = regions(written(TID1500, report))
    faces = [item for item in group.ContentSequence if item.ValueType == "SCOORD3D"]
    assert {face.ReferencedFrameOfReferenceUID for face in faces} == {first.FrameOfReferenceUID}
    (series,) = [item for item in group.ContentSequence if item.ValueType == "UIDREF" and _name(item) == "121232"]
    assert first.SeriesInstanceUID == series.UID


UNEVEN = [np.array([0, 0, 2.0 * n if n < 12 else 24 + 2.8 * (n - 12)]) for n in range(24)]
"""Offsets of slices, of which the middle ones lie more than 4 mm from even distances."""


def test_a_map_of_a_scan_with_uneven_slices_is_refused_and_one_beside_a_localizer_is_of_the_scan(
    tmp_path: Path,
) -> None:
    paths = scan(tmp_path / "scan", *ORIENTATIONS["axial"])
    write_localizer(tmp_path / "scan" / "00.dcm", dcmread(paths[0]))
    even = written(MAPS, about(tmp_path / "scan", maps=(placed("Lung nodule"),)))
    assert even.FrameOfReferenceUID == dcmread(paths[0]).FrameOfReferenceUID
    move(paths, [1, 0, 0, 0, 1, 0], UNEVEN)
    with pytest.raises(InputError, match="uneven distances") as caught:
        written(MAPS, about(tmp_path / "scan", maps=(placed("Lung nodule"),)))
    assert caught.value.field == "ImagePositionPatient"


def write_localizer(path: Path, first: Dataset) -> Path:
    """A localizer in front of a whole scan, in another frame of reference."""
    return write_dicom(
        path, chest(40, 48), SOPClassUID=first.SOPClassUID, Modality="CT", ViewPosition=None,
        PatientID=first.get("PatientID"), PatientName=first.get("PatientName"), StudyInstanceUID=first.StudyInstanceUID,
        FrameOfReferenceUID=f"{STUDY}.9", ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"], PixelSpacing=[1.5, 1.25],
        RescaleSlope=2, RescaleIntercept=0,
        ImageOrientationPatient=[1, 0, 0, 0, 0, -1], ImagePositionPatient=[-30, -20, 0],
    )  # fmt: skip


def test_a_box_of_a_scan_with_uneven_slices_lies_nowhere(tmp_path: Path) -> None:
    paths = scan(tmp_path / "scan", *ORIENTATIONS["axial"])
    move(paths, [1, 0, 0, 0, 1, 0], UNEVEN)
    report = about(tmp_path / "scan", places=(replace(PLACE, boxes=(MarkedBox(0, (0.2, 0.2, 0.2, 0.4, 0.4, 0.4)),)),))
    assert regions(written(TID1500, report)) == []
    with pytest.raises(InputError, match="no sentence has a box"):
        written(BOXES, report)


@pytest.mark.parametrize(
    ("tags", "ratio"),
    [({}, [1, 1]), ({"ImagerPixelSpacing": [0.2, 0.1]}, [2, 1]), ({"PixelAspectRatio": [3, 4]}, [3, 4]),
     ({"PixelSpacing": [0, 0], "PixelAspectRatio": [3, 4]}, [3, 4])],
    ids=["not stated", "detector", "ratio", "no spacing"],
)  # fmt: skip
def test_a_presentation_state_keeps_the_shape_of_pixels(tags: dict[str, Any], ratio: list[int], tmp_path: Path) -> None:
    path = write_dicom(tmp_path / "a.dcm", chest(96, 80), **tags)
    (area,) = written(BOXES, about(path)).DisplayedAreaSelectionSequence
    assert list(area.PresentationPixelAspectRatio) == ratio
    assert "PresentationPixelSpacing" not in area
    path = write_dicom(tmp_path / "b.dcm", chest(96, 80), PixelSpacing=[0.3, 0.2], ImagerPixelSpacing=[1, 1])
    (area,) = written(BOXES, about(path)).DisplayedAreaSelectionSequence
    assert list(area.PresentationPixelSpacing) == [0.3, 0.2]


def test_a_list_of_presentation_states_tells_a_draft_from_a_signed_report() -> None:
    labels = [written(BOXES, finished(**more)).ContentLabel for more in ({}, {"signature": SIGNED})]
    assert labels == ["DRAFT_BOXES", "SIGNED_BOXES"]


def test_a_box_between_two_slices_is_drawn_on_the_nearest_one(tmp_path: Path) -> None:
    paths = scan(tmp_path / "scan", *ORIENTATIONS["axial"])
    box = (6.7 / 24, 0.25, 0.25, 6.9 / 24, 0.5, 0.5)
    edges = outlines(written(BOXES, about(tmp_path / "scan", places=(replace(PLACE, boxes=(MarkedBox(0, box),)),))))
    assert [*edges] == [str(dcmread(paths[6]).SOPInstanceUID)]
    assert next(iter(edges.values())).tolist() == pytest.approx([12, 10, 24, 20], abs=0.01)


def test_a_scan_without_a_frame_of_reference_has_no_region_in_its_report(tmp_path: Path) -> None:
    paths = scan(tmp_path / "scan", *ORIENTATIONS["axial"])
    for path in paths:
        edit(path, FrameOfReferenceUID=None)
    report = about(tmp_path / "scan", places=(replace(PLACE, boxes=(MarkedBox(0, (0.2, 0.2, 0.2, 0.4, 0.4, 0.4)),)),))
    assert regions(written(TID1500, report)) == []


@pytest.mark.programs
@pytest.mark.parametrize("name", [BOXES, TID1500])
def test_a_validator_finds_no_error_in_boxes_of_files(name: str, tmp_path: Path) -> None:
    needs("dciodvfy")
    scan(tmp_path / "scan", *ORIENTATIONS["coronal"])
    same = {"StudyInstanceUID": STUDY, "PatientOrientation": ["L", "F"]}
    views = [write_dicom(tmp_path / f"{n}.dcm", chest(96, 80), WindowCenter=9, WindowWidth=9, **same) for n in "ab"]
    both = (replace(PLACE, boxes=(MarkedBox(0, BOX.box), MarkedBox(1, BOX.box))),)
    deep = (replace(PLACE, boxes=(MarkedBox(0, (0.2, 0.2, 0.2, 0.4, 0.4, 0.4)),)),)
    reports = [about(*views, places=both), about(tmp_path / "scan", places=deep, signature=SIGNED)]
    # Without boxes, where a version before had some.
    reports += [replace(one, places=(), signature=SIGNED, predecessor=one) for one in reports]
    for report in reports:
        path = tmp_path / "object.dcm"
        path.write_bytes(FORMATS[name].bytes_of(report))
        done = subprocess.run(["dciodvfy", "-new", str(path)], capture_output=True, text=True, timeout=60, check=False)
        lines = (done.stdout + done.stderr).splitlines()
        assert [line for line in lines if line.startswith(("Error", "Abort"))] == []
        assert any(line in ("GrayscaleSoftcopyPresentationState", "Comprehensive3DSR") for line in lines)
