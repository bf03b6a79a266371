"""Attention maps of a draft as one DICOM object.

Radiographs: Multi-frame True Color Secondary Capture (PS3.3 A.8.5), a frame for each class and view, with the colours
and their legend burned in. A radiograph has no patient coordinates, and none are invented.
CT: a Parametric Map (A.75) in the scan's frame of reference, a channel for each class; viewers lay it over the scan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from highdicom.content import (
    PixelMeasuresSequence,
    PlaneOrientationSequence,
    PlanePositionSequence,
    VOILUTTransformation,
)
from highdicom.pm import ParametricMap, RealWorldValueMapping
from highdicom.sr import CodedConcept
from numpy.typing import NDArray
from pydicom.dataset import Dataset
from pydicom.uid import MultiFrameTrueColorSecondaryCaptureImageStorage, ParametricMapStorage

from radweave.core.errors import InputError
from radweave.core.evidence import DraftEvidence
from radweave.core.map_kinds import kind_of
from radweave.inference.explain.maps import Floats, Panel, between, between_weights, captioned, middles, shown
from radweave.io.volumes import Volume
from radweave.workstation import structured_reports
from radweave.workstation.box_objects import are_even, slices_of
from radweave.workstation.finished import (
    CAUTION,
    MAKER,
    Finding,
    FinishedReport,
    HeatMap,
    PlacedMap,
    instance_uid,
    model_line,
    series_uid,
    status_line,
)
from radweave.workstation.formats import MAPS
from radweave.workstation.identity import Identity
from radweave.workstation.structured_reports import coded, envelope, file_bytes, private_code, reference

if TYPE_CHECKING:
    from radweave.inference.pictures import Picture

SERIES_NUMBER: Final = 9904
# Attributes that highdicom writes itself.
_LIBRARYS: Final = ("SOPClassUID", "SOPInstanceUID", "SeriesInstanceUID", "SeriesNumber", "Modality")


def write_maps(report: FinishedReport) -> bytes:
    """The maps as a file.

    Raises:
        InputError: without a map that fits the images; for a scan without a frame of reference, or with slices at
            uneven distances; or as ``envelope`` does.
    """
    if not report.maps:
        raise InputError("the method gave no map that fits the images", field="--format", got=MAPS)
    return _parametric(report) if report.maps[0].placed is not None else _captures(report)


def _captures(report: FinishedReport) -> bytes:
    dataset = envelope(
        report, MultiFrameTrueColorSecondaryCaptureImageStorage, kind=MAPS, modality="OT", number=SERIES_NUMBER
    )
    frames, names = _frames(report)
    dataset.ImageType = ["DERIVED", "SECONDARY"]
    dataset.ConversionType = "SYN"
    dataset.PatientOrientation = ""
    dataset.BurnedInAnnotation, dataset.RecognizableVisualFeatures = "YES", "NO"
    dataset.ImageComments = CAUTION
    _derived_from_images(dataset, report)
    dataset.NumberOfFrames, dataset.Rows, dataset.Columns = frames.shape[:3]
    if len(names) > 1:  # a single frame must not have these
        dataset.FrameIncrementPointer = [0x00182001, 0x00182002]
        dataset.PageNumberVector = list(range(1, len(names) + 1))
        dataset.FrameLabelVector = [name[:16] for name in names]
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation, dataset.PlanarConfiguration = 3, "RGB", 0
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = 8, 8, 7, 0
    data = frames.tobytes()
    dataset.add_new("PixelData", "OB", data + b"\0" * (len(data) % 2))
    return file_bytes(dataset)


def _frames(report: FinishedReport) -> tuple[NDArray[np.uint8], list[str]]:
    """Frames (N, H, W, 3), padded with black, and the class of each."""
    known = {finding.name: finding.probability for finding in report.findings}
    pictures, names = [], []
    for heat_map in report.maps:
        probability = known.get(heat_map.name)
        stated = "" if probability is None else f", probability {probability:.2f}"
        for panel in heat_map.panels:
            below = (panel.title, f"Map: {heat_map.note}.", CAUTION, status_line(report), f"By {model_line(report)}")
            pictures.append(np.asarray(captioned(panel, f"{heat_map.name}{stated}", below, heat_map.peak)))
            names.append(heat_map.name)
    height, width = (max(picture.shape[axis] for picture in pictures) for axis in (0, 1))
    frames = np.zeros((len(pictures), height, width, 3), np.uint8)
    for frame, picture in zip(frames, pictures, strict=True):
        frame[: picture.shape[0], : picture.shape[1]] = picture
    return frames, names


def _derived_from_images(dataset: Dataset, report: FinishedReport) -> None:
    dataset.BodyPartExamined = "CHEST"
    notes = "; ".join(dict.fromkeys(heat_map.note for heat_map in report.maps))
    dataset.DerivationDescription = f"{MAKER} {report.model.method}: {notes}"[:1024]
    dataset.SourceImageSequence = []
    for source in report.sources:
        item = reference(source.sop_class_uid, source.sop_instance_uid)
        item.PurposeOfReferenceCodeSequence = [coded(structured_reports.PROCESSED_SOURCE)]
        dataset.SourceImageSequence.append(item)


def _parametric(report: FinishedReport) -> bytes:
    head = envelope(report, ParametricMapStorage, kind=MAPS, modality="OT", number=SERIES_NUMBER)
    slices = slices_of(report.sources)
    source = slices[0].image if slices else report.patient
    if not source.frame_of_reference_uid:
        raise InputError("is missing in the scan: its maps have no place", field="FrameOfReferenceUID")
    if slices and not are_even(slices):
        reason = "has slices at uneven distances, over which no map can be laid"
        raise InputError(reason, field="ImagePositionPatient", expected="slices within half a step of even distances")
    maps = [heat_map for heat_map in report.maps if heat_map.placed is not None]
    first = maps[0].placed
    assert first is not None
    affine = first.affine_lps
    spacing = np.linalg.norm(affine[:3, :3], axis=0)
    directions = affine[:3, :3] / spacing
    positions = [tuple(map(float, (affine @ (0, 0, z, 1))[:3])) for z in range(len(first.values))]
    built = ParametricMap(
        source_images=[_stand_in(source)],
        pixel_array=np.stack([heat_map.placed.values for heat_map in maps if heat_map.placed is not None], axis=-1),
        series_instance_uid=series_uid(report, MAPS),
        series_number=SERIES_NUMBER,
        sop_instance_uid=instance_uid(report, MAPS),
        instance_number=1,
        manufacturer=MAKER,
        manufacturer_model_name=report.model.method,
        software_versions=report.model.version,
        device_serial_number=report.model.digest[:16],
        contains_recognizable_visual_features=False,
        real_world_value_mappings=[[_meaning(heat_map)] for heat_map in maps],
        voi_lut_transformations=[VOILUTTransformation(window_center=0.5, window_width=1.0)],
        content_description="Where the model looked; no lesion boundary",
        content_label="ATTENTION",
        pixel_measures=PixelMeasuresSequence(
            pixel_spacing=[float(spacing[1]), float(spacing[0])],
            slice_thickness=float(spacing[2]),
            spacing_between_slices=float(spacing[2]),
        ),
        plane_orientation=PlaneOrientationSequence("PATIENT", [float(value) for value in directions[:, :2].T.ravel()]),
        plane_positions=[PlanePositionSequence("PATIENT", position) for position in positions],
    )
    for element in head:
        if element.keyword not in _LIBRARYS:
            built.add(element)
    built.ImageComments = CAUTION
    _derived_from_images(built, report)
    return file_bytes(built)


def _meaning(heat_map: HeatMap) -> RealWorldValueMapping:
    """The meaning of a channel: shares of the largest value of the class's map."""
    name, units = structured_reports.code_of(heat_map.name), structured_reports.NO_UNITS
    return RealWorldValueMapping(
        lut_label=private_code(heat_map.name).value,
        lut_explanation=f"{heat_map.name}: where the model looked"[:64],
        unit=CodedConcept(units.value, units.scheme, units.meaning),
        value_range=(0.0, 1.0),
        slope=1.0,
        intercept=0.0,
        quantity_definition=CodedConcept(name.value, name.scheme, name.meaning),
    )


def _stand_in(source: Identity) -> Dataset:
    """An image of the scan without its patient for highdicom, whose log may quote values."""
    stub = Dataset()
    stub.SOPClassUID, stub.SOPInstanceUID = source.sop_class_uid, source.sop_instance_uid
    stub.StudyInstanceUID, stub.SeriesInstanceUID = source.study_instance_uid, source.series_instance_uid
    stub.FrameOfReferenceUID, stub.Modality = source.frame_of_reference_uid, "CT"
    for keyword in ("PatientName", "PatientID", "PatientBirthDate", "PatientSex", "AccessionNumber", "StudyID",
                    "StudyDate", "StudyTime", "ReferringPhysicianName", "PositionReferenceIndicator"):  # fmt: skip
        setattr(stub, keyword, "")
    stub.Rows, stub.Columns = source.rows or 512, source.columns or 512
    stub.ImageOrientationPatient, stub.ImagePositionPatient = [1, 0, 0, 0, 1, 0], [0, 0, 0]
    stub.PixelSpacing, stub.SliceThickness = [1, 1], 1
    return stub


# Maps over their images: radiographs as pictures, a scan as a grid in patient coordinates. A map shows attention: it is
# no outline of a lesion, and absent findings have one too.

FINE: Final = 64
"""Voxels of a scan's map along each axis; viewers show each as a block."""


def stack(evidence: DraftEvidence, name: str) -> list[Floats] | None:
    """One map for each of the evidence's ``views``; None if it is missing or does not fit them."""
    views = evidence.get("views") or []
    try:
        weights = np.asarray((evidence.get("attention_maps") or {})[name], dtype=np.float64)
    except (KeyError, TypeError, ValueError):
        return None
    if not views or weights.ndim < 1 or len(weights) < len(views) or not weights.size:
        return None
    fits = all(len(view.get("covers") or ()) == weights.ndim - 1 for view in views)
    usable = bool(np.isfinite(weights).all()) and bool((weights >= 0).all()) and float(weights.max()) > 0
    return [*weights[: len(views)]] if fits and usable else None


def on_grid(
    weights: Floats, covers: Sequence[Sequence[float]], shape: tuple[int, int, int]
) -> tuple[Floats, NDArray[np.float64]]:
    """A scan's map, resampled linearly to ``FINE`` voxels an axis, and its affine to the scan's voxels (x, y, z).

    Args:
        weights: the map (z, y, x).
        covers: the covered part of the scan, as (start, extent) along each axis in shares of the scan's size.
        shape: the scan's voxels (z, y, x).
    """
    placed, fine = np.eye(4), weights
    for axis, (start, extent) in enumerate(covers):
        fine = np.moveaxis(
            np.tensordot(between_weights(fine.shape[axis], middles(FINE)), fine, axes=(1, axis)), 0, axis
        )
        step = extent * shape[axis] / FINE
        placed[2 - axis, 2 - axis] = step
        # The centre of the first voxel; centres are whole numbers.
        placed[2 - axis, 3] = start * shape[axis] + step / 2 - 0.5
    return fine, placed


def heat_maps(
    evidence: DraftEvidence, pictures: Sequence[tuple[str, Picture]], findings: Sequence[Finding]
) -> tuple[HeatMap, ...]:
    """Maps of the relevant classes, the most probable first.

    Args:
        evidence: ``attention_maps`` by name, and ``views`` with the part of each picture that a map ``covers``.
        pictures: title and picture of each view, in order.
        findings: classes with their probabilities.
    """
    from radweave.inference.explain.maps import choose

    known = {finding.name: finding for finding in findings}
    maps = {name: stack(evidence, name) for name in evidence.get("attention_maps") or {} if name in known}
    covers = [view["covers"] for view in evidence.get("views") or ()]
    note = kind_of(evidence).note
    made = []
    for name in choose([name for name, layers in maps.items() if layers is not None], known):
        layers = maps[name]
        assert layers is not None
        peak = max(float(weights.max()) for weights in layers)
        each = list(zip(layers, covers, pictures, strict=False))
        volumes = [(weights, cover, picture) for weights, cover, (_, picture) in each if isinstance(picture, Volume)]
        if volumes:
            made.append(HeatMap(name, peak, placed=_placed(*volumes[0]), note=note))
            continue
        panels = tuple(_panel(title, picture, weights, cover) for weights, cover, (title, picture) in each
                       if not isinstance(picture, Volume))  # fmt: skip
        made.append(HeatMap(name, peak, panels, note=note))
    return tuple(made)


def _panel(title: str, picture: Any, weights: Floats, covers: Sequence[Sequence[float]]) -> Panel:
    grey = shown(picture.pixels)
    rows, columns = ((middles(size) - start) / extent for size, (start, extent) in zip(grey.shape, covers, strict=True))
    return Panel(title, grey, between(weights, rows, columns))


def _placed(weights: Floats, covers: Sequence[Sequence[float]], volume: Volume) -> PlacedMap:
    z, y, x = volume.hu.shape
    fine, placed = on_grid(weights, covers, (z, y, x))
    return PlacedMap((fine / fine.max()).astype(np.float32), volume.geometry.affine() @ placed)
