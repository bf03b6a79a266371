"""Small image files for tests, made on the spot: DICOM of many kinds, CT series, NIfTI, PNG. Nothing here is real."""

from __future__ import annotations

import io
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.uid import UID, ExplicitVRLittleEndian, JPEGBaseline8Bit, generate_uid

from radweave.io import dicom, viewer

CANARY = "ZZTESTCANARY"
CR_STORAGE = "1.2.840.10008.5.1.4.1.1.1"
CT_STORAGE = "1.2.840.10008.5.1.4.1.1.2"


def chest(rows: int = 96, columns: int = 80, *, noise: float = 0.01) -> np.ndarray:
    """A smooth chest-like picture in [0, 1]: bright middle and shoulders, two dark lungs."""
    y, x = np.meshgrid(np.linspace(-1, 1, rows), np.linspace(-1, 1, columns), indexing="ij")
    image = 0.75 - 0.2 * y * y
    for side in (-1, 1):
        image -= 0.5 * np.exp(-(((x - 0.45 * side) / 0.28) ** 4 + ((y + 0.1) / 0.65) ** 4))
    image += np.random.default_rng(1).normal(0, noise, image.shape)
    return np.asarray((image - image.min()) / np.ptp(image))


def dataset(pixels: np.ndarray, *, bits: int, signed: bool = False, **tags: Any) -> FileDataset:
    """A CR image with integer ``pixels`` (rows, columns[, samples]) and the canary as every identifier."""
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = UID(str(tags.get("SOPClassUID", CR_STORAGE)))
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    ds = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
    ds.SOPClassUID = meta.MediaStorageSOPClassUID
    ds.SOPInstanceUID = meta.MediaStorageSOPInstanceUID = generate_uid()
    ds.StudyInstanceUID, ds.SeriesInstanceUID = generate_uid(), generate_uid()
    ds.PatientName, ds.PatientID, ds.AccessionNumber = f"{CANARY}^Ann", CANARY, CANARY
    ds.StudyDescription = ds.InstitutionName = ds.SeriesDescription = CANARY
    ds.StudyDate, ds.PatientBirthDate = "19991231", "19010203"
    ds.Modality, ds.BodyPartExamined, ds.ViewPosition = "CR", "CHEST", "PA"
    ds.Rows, ds.Columns = pixels.shape[:2]
    ds.SamplesPerPixel = 1 if pixels.ndim == 2 else pixels.shape[2]
    ds.PhotometricInterpretation = "MONOCHROME2" if pixels.ndim == 2 else "RGB"
    if pixels.ndim == 3:
        ds.PlanarConfiguration = 0
    ds.BitsAllocated = 8 if bits <= 8 else 16
    ds.BitsStored, ds.HighBit, ds.PixelRepresentation = bits, bits - 1, int(signed)
    kind = f"<{'i' if signed else 'u'}{ds.BitsAllocated // 8}"
    raw = pixels.astype(kind).tobytes()
    ds.PixelData = raw + b"\0" * (len(raw) % 2)
    ds["PixelData"].VR = "OW" if ds.BitsAllocated == 16 else "OB"
    for name, value in tags.items():
        if value is None:
            delattr(ds, name)
        else:
            setattr(ds, name, value)
    return ds


def save(ds: Dataset, path: Path) -> Path:
    ds.save_as(path, enforce_file_format=True)
    return path


def write_dicom(
    path: Path, image: np.ndarray | None = None, *, bits: int = 12, signed: bool = False, **tags: Any
) -> Path:
    """Write a picture in [0, 1] over the full range of ``bits``; with ``signed`` around 0."""
    image = chest() if image is None else image
    values = np.rint(image * ((1 << bits) - 1)).astype(np.int64) - ((1 << (bits - 1)) if signed else 0)
    return save(dataset(values, bits=bits, signed=signed, **tags), path)


def write_baseline_jpeg(path: Path, image: np.ndarray, **tags: Any) -> Path:
    """A DICOM file whose frame is a grey 8-bit JPEG."""
    buffer = io.BytesIO()
    Image.fromarray(np.rint(image * 255).astype(np.uint8)).save(buffer, "JPEG", quality=92)
    ds = dataset(np.rint(image * 255), bits=8, **tags)
    ds.file_meta.TransferSyntaxUID = JPEGBaseline8Bit
    ds.PixelData = encapsulate([buffer.getvalue()])
    ds["PixelData"].is_undefined_length = True
    return save(ds, path)


def compressed(path: Path, syntax: UID, image: np.ndarray | None = None, *, bits: int = 12, **tags: Any) -> Path:
    """Write a picture compressed by pydicom's encoder for ``syntax``."""
    write_dicom(path, image, bits=bits, **tags)
    from pydicom import dcmread

    ds = dcmread(path)
    ds.compress(syntax, generate_instance_uid=False)
    return save(ds, path)


def thorax_hu(z: int = 24, y: int = 40, x: int = 48) -> np.ndarray:
    """A body with two lungs in air, int16 HU (z, y, x); no two slices and no two sides are alike."""
    zz, yy, xx = np.meshgrid(np.linspace(-1, 1, z), np.linspace(-1, 1, y), np.linspace(-1, 1, x), indexing="ij")
    hu = np.full(zz.shape, -1000.0)
    hu[(xx / 0.85) ** 2 + (yy / 0.8) ** 2 < 1] = 40.0
    for side, size in ((-1, 0.28), (1, 0.32)):
        hu[((xx - 0.42 * side) / size) ** 2 + (yy / 0.55) ** 2 < 1] = -850.0
    hu[(np.abs(xx) < 0.1) & (np.abs(yy - 0.5) < 0.12)] = 600.0
    hu += 20 * zz + np.random.default_rng(2).normal(0, 8, hu.shape)
    return np.clip(np.rint(hu), -1024, 3071).astype(np.int16)


def write_series(folder: Path, hu: np.ndarray | None = None, *, step_mm: float = 2.0, **tags: Any) -> list[Path]:
    """A CT series, one file a slice, file names in no order of place; gives the paths by slice."""
    hu = thorax_hu() if hu is None else hu
    folder.mkdir(parents=True, exist_ok=True)
    study, series, frame = generate_uid(), generate_uid(), generate_uid()
    paths = []
    for index, plane in enumerate(hu):
        ds = dataset(plane.astype(np.int64) + 1024, bits=12, SOPClassUID=CT_STORAGE, Modality="CT", ViewPosition=None)
        ds.StudyInstanceUID, ds.SeriesInstanceUID, ds.FrameOfReferenceUID = study, series, frame
        ds.ImageType = ["ORIGINAL", "PRIMARY", "AXIAL"]
        ds.RescaleSlope, ds.RescaleIntercept = 1, -1024
        ds.PixelSpacing = [1.5, 1.25]
        ds.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
        ds.ImagePositionPatient = [-30.0, -40.0, -100.0 + step_mm * index]
        ds.InstanceNumber = index + 1
        for name, value in tags.items():
            setattr(ds, name, value)
        paths.append(save(ds, folder / f"{(index * 7919) % 1000:03d}.dcm"))
    return paths


_MET_TYPES = {"i1": "CHAR", "u1": "UCHAR", "i2": "SHORT", "u2": "USHORT", "i4": "INT", "f4": "FLOAT", "f8": "DOUBLE"}


def write_metaimage(
    path: Path,
    values: np.ndarray,
    *,
    compressed: bool = False,
    big_endian: bool = False,
    matrix: str = "1 0 0 0 1 0 0 0 1",
    offset: str = "1 2 3",
    spacing: str = "2 2 5",
) -> Path:
    """``values`` (z, y, x) as MetaImage: in one file (.mha), or as a header and a ``.raw`` file beside it (.mhd)."""
    data = values.astype(values.dtype.newbyteorder(">" if big_endian else "<")).tobytes()
    data = zlib.compress(data) if compressed else data
    detached = path.suffix == ".mhd"
    lines = [
        "ObjectType = Image",
        "NDims = 3",
        "BinaryData = True",
        f"BinaryDataByteOrderMSB = {big_endian}",
        f"CompressedData = {compressed}",
        *([f"CompressedDataSize = {len(data)}"] if compressed else []),
        f"TransformMatrix = {matrix}",
        f"Offset = {offset}",
        "CenterOfRotation = 0 0 0",
        "AnatomicalOrientation = RAI",
        f"ElementSpacing = {spacing}",
        f"DimSize = {' '.join(str(n) for n in values.shape[::-1])}",
        f"ElementType = MET_{_MET_TYPES[values.dtype.str[1:]]}",
        f"ElementDataFile = {path.stem + '.raw' if detached else 'LOCAL'}",
    ]
    path.write_bytes("\n".join(lines).encode() + b"\n" + (b"" if detached else data))
    if detached:
        path.with_suffix(".raw").write_bytes(data)
    return path


def edit(path: Path, **tags: Any) -> Path:
    """Change tags of a DICOM file in place; None deletes."""
    from pydicom import dcmread

    ds = dcmread(path)
    for name, value in tags.items():
        if value is None:
            delattr(ds, name)
        else:
            setattr(ds, name, value)
    return save(ds, path)


def shown_bytes(
    words: np.ndarray, about: dict[str, Any], preset: dict[str, Any], *, inverted: bool = False
) -> np.ndarray:
    """Grey values on the screen, 0 to 255, of a window, as ``window.js`` computes them; ``inverted`` by the reader."""
    shown = dicom.window(viewer.values_of(words, about), preset["center"], preset["width"], preset["function"])
    assert shown is not None, "a window of a width that is not allowed"
    if bool(about["inverted"]) != inverted:
        shown = np.float32(1) - shown
    if about["padding"] is not None:
        shown[words == about["padding"]] = 0.0
    return np.floor(shown * np.float32(255) + np.float32(0.5)).astype(np.uint8)
