"""Broken and hostile image files: the outcome that each must have. Numbers are those of the project's fault list."""

from __future__ import annotations

import gzip
import io
import logging
import os
import random
import struct
import subprocess
import sys
import time
import warnings
import zlib
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pydicom.encaps import encapsulate, generate_frames
from pydicom.uid import DeflatedExplicitVRLittleEndian, JPEG2000Lossless, JPEGLSLossless, RLELossless, generate_uid

import radweave
from radweave.core.errors import InputError
from radweave.io import dicom_parse
from radweave.io import dicom_parse as dicom_scan
from radweave.io.dicom import DOUBTFUL, display, read_dicom
from radweave.io.images import read_radiograph
from radweave.io.inspect import inspect
from radweave.io.sandbox import sandbox
from radweave.io.volumes import read_stored, read_volume
from tests.image_files import (
    CANARY,
    chest,
    compressed,
    dataset,
    edit,
    save,
    thorax_hu,
    write_baseline_jpeg,
    write_dicom,
    write_series,
)


def refusal(path: Path) -> str:
    """The message ``read_radiograph`` refuses a file with; one line that begins with the file."""
    with pytest.raises(InputError) as caught:
        read_radiograph(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message.removeprefix(str(path))


def volume_refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_volume(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["plain", "implicit", "deflated", "rle", "j2k", "jls", "jpeg"])
def test_01_a_cut_dicom_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "whole.dcm"
    image = chest(40, 32)
    if kind == "jpeg":
        write_baseline_jpeg(path, image)
    elif kind in ("rle", "j2k", "jls"):
        compressed(path, {"rle": RLELossless, "j2k": JPEG2000Lossless, "jls": JPEGLSLossless}[kind], image)
    else:
        ds = dataset(np.rint(image * 4095), bits=12)
        if kind == "deflated":
            ds.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
        if kind == "implicit":
            ds.file_meta.TransferSyntaxUID = "1.2.840.10008.1.2"
        save(ds, path)
    assert read_radiograph(path).pixels.shape == (40, 32)
    whole, cut = path.read_bytes(), tmp_path / "cut.dcm"
    for length in range(0, len(whole) - 1, 97):
        cut.write_bytes(whole[:length])
        refusal(cut)


@pytest.mark.parametrize("name", ["a.dcm", "a.nii.gz", "a.png"])
@given(data=st.binary(max_size=600))
@settings(max_examples=100, deadline=None)
def test_02_random_bytes_are_refused(tmp_path_factory: pytest.TempPathFactory, name: str, data: bytes) -> None:
    path = tmp_path_factory.mktemp("random") / name
    path.write_bytes(data)
    [record] = inspect(path)
    assert not record.accepted
    assert record.reason


STARTS = (b"\0" * 128 + b"DICM", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"\x1f\x8b\x08\0", b"NRRD0004\n")


@pytest.mark.parametrize("start", STARTS)
def test_02_random_bytes_behind_a_true_beginning(tmp_path: Path, start: bytes) -> None:
    path, source = tmp_path / "a", random.Random(1)
    for _ in range(60):
        path.write_bytes(start + source.randbytes(source.randrange(1500)))
        [record] = inspect(path)
        assert not record.accepted


@pytest.mark.slow
def test_02_ten_thousand_random_files(tmp_path: Path) -> None:
    path, source = tmp_path / "a", random.Random(2)
    starts = [b"", *STARTS]
    for index in range(10_000):
        path.write_bytes(starts[index % len(starts)] + source.randbytes(source.randrange(2000)))
        assert not inspect(path)[0].accepted


def test_02_a_text_file_named_dcm(tmp_path: Path) -> None:
    (tmp_path / "a.dcm").write_text("patient notes")
    assert "no kind that can be read" in refusal(tmp_path / "a.dcm")


def nested(depth: int, *, defined: bool) -> bytes:
    """Sequences within sequences, explicit VR, with defined or undefined lengths."""
    tag, item = b"\x40\x00\x30\xa7SQ\0\0", b"\xfe\xff\x00\xe0"
    if defined:
        value = b""
        for _ in range(depth):
            value = item + struct.pack("<I", len(value)) + value
            value = tag + struct.pack("<I", len(value)) + value
        return value
    end = b"\xfe\xff\x0d\xe0\0\0\0\0" + b"\xfe\xff\xdd\xe0\0\0\0\0"
    return (tag + b"\xff\xff\xff\xff" + item + b"\xff\xff\xff\xff") * depth + end * depth


@pytest.mark.parametrize("defined", [True, False])
@pytest.mark.parametrize("depth", [300, 5000])
def test_03_deep_sequences_are_refused_and_the_reader_lives_on(tmp_path: Path, depth: int, defined: bool) -> None:
    path = write_dicom(tmp_path / "a.dcm")
    started = sandbox().started
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.index(b"\xe0\x7f\x10\x00")] + nested(depth, defined=defined))
    assert "nested too deeply" in refusal(path)
    assert sandbox().started == max(started, 1)


def test_03_usual_nesting_is_read(tmp_path: Path) -> None:
    path = write_dicom(tmp_path / "a.dcm")
    whole = path.read_bytes()
    place = whole.index(b"\xe0\x7f\x10\x00")
    for defined in (True, False):
        path.write_bytes(whole[:place] + nested(12, defined=defined) + whole[place:])
        assert read_radiograph(path).pixels.shape == (96, 80)


def test_04_deflate_bomb(tmp_path: Path) -> None:
    """One megabyte that inflates to a gigabyte; the process that reads it stays below 512 MB."""
    whole = write_dicom(tmp_path / "a.dcm").read_bytes()
    layout = dicom_scan.find_layout(whole)
    meta = whole[: layout.start].replace(b"1.2.840.10008.1.2.1\0", b"1.2.840.10008.1.2.1.99")
    length = int.from_bytes(meta[140:144], "little") + len(meta) - layout.start
    meta = meta[:140] + length.to_bytes(4, "little") + meta[144:]
    place = meta.index(b"1.2.840.10008.1.2.1.99") - 2
    meta = meta[:place] + (22).to_bytes(2, "little") + meta[place + 2 :]
    deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = deflate.compress(b"\xe0\x7f\x10\x00OB\0\0" + struct.pack("<I", 1 << 30)) + deflate.flush(zlib.Z_FULL_FLUSH)
    megabyte = deflate.compress(bytes(1 << 20)) + deflate.flush(zlib.Z_FULL_FLUSH)  # stands by itself, so it repeats
    bomb = tmp_path / "bomb.dcm"
    bomb.write_bytes(meta + packed + megabyte * 1024 + deflate.flush())
    assert bomb.stat().st_size < 2 << 20
    code = (
        "import sys\n"
        "from radweave.io.dicom_parse import parse_dicom\n"
        "try: parse_dicom({'path': sys.argv[1]})\n"
        "except ValueError as error: print(error)\n"
        # Not ru_maxrss: that starts at the size of the process that forked this one.
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(bomb)], capture_output=True, text=True, check=True)
    message, peak_kb = done.stdout.splitlines()
    assert "too large" in message
    assert int(peak_kb) < 512 << 10
    assert "too large" in refusal(bomb)


def nifti_header(shape: tuple[int, ...], kind: int = 4) -> bytes:
    header = nib.Nifti1Header()
    header["dim"] = [len(shape), *shape] + [1] * (7 - len(shape))
    header["datatype"], header["bitpix"] = kind, {4: 16, 64: 64}[kind]
    header["vox_offset"], header["magic"] = 352, b"n+1"
    header["pixdim"][1:4] = 1
    return bytes(header.binaryblock) + b"\0" * 4


def test_05_nifti_bomb_is_refused_from_its_header(tmp_path: Path) -> None:
    path = tmp_path / "a.nii.gz"
    with gzip.open(path, "wb", compresslevel=6) as file:
        file.write(nifti_header((512, 512, 700)))
        for _ in range(350):
            file.write(bytes(1 << 20))
    assert path.stat().st_size < 1 << 20
    assert "far more than the compressed file can hold" in volume_refusal(path)


@pytest.mark.parametrize("shape", [(32767, 32767, 32767), (2048, 2048, 2048)])
def test_05_huge_nifti_is_refused_from_its_header(tmp_path: Path, shape: tuple[int, int, int]) -> None:
    (tmp_path / "a.nii").write_bytes(nifti_header(shape, 64))
    assert "too large" in volume_refusal(tmp_path / "a.nii")


@pytest.mark.parametrize("size", [(30_000, 30_000), (30_000, 20)])
def test_06_huge_png(tmp_path: Path, size: tuple[int, int]) -> None:
    Image.new("L", (16, 16)).save(tmp_path / "a.png")
    data = (tmp_path / "a.png").read_bytes()
    header = b"IHDR" + struct.pack(">II", *size) + data[24:29]
    (tmp_path / "a.png").write_bytes(data[:12] + header + struct.pack(">I", zlib.crc32(header)) + data[33:])
    assert "too large" in refusal(tmp_path / "a.png")


def test_06_huge_jpeg_header(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.new("L", (16, 16)).save(buffer, "JPEG")
    data = buffer.getvalue()
    place = data.index(b"\xff\xc0") + 5
    (tmp_path / "a.jpg").write_bytes(data[:place] + b"\xff\xff\xff\xff" + data[place + 4 :])
    assert "too large" in refusal(tmp_path / "a.jpg")


@pytest.mark.parametrize("extent", ["png", "jpg"])
def test_06_cut_rasters(tmp_path: Path, extent: str) -> None:
    path = tmp_path / f"a.{extent}"
    Image.fromarray(np.rint(chest() * 255).astype(np.uint8)).save(path)
    whole = path.read_bytes()
    for length in range(0, len(whole) - 20, max(97, len(whole) // 40)):
        path.write_bytes(whole[:length])
        refusal(path)


@pytest.mark.parametrize(
    ("tags", "word"),
    [
        ({"Rows": 65535, "Columns": 65535}, "too large"),
        ({"NumberOfFrames": 2_000_000_000}, "several frames"),
        ({"NumberOfFrames": 0}, "NumberOfFrames"),
        ({"Rows": 0}, "Rows"),
        ({"Columns": 0}, "Columns"),
        ({"Rows": None}, "Rows"),
        ({"BitsAllocated": 12}, "BitsAllocated"),
        ({"BitsStored": 20}, "BitsStored"),
        ({"Rows": 500}, "truncated"),
        ({"SamplesPerPixel": 0}, "SamplesPerPixel"),
        ({"PixelData": None}, "no pixel data"),
    ],
)
def test_07_impossible_sizes(tmp_path: Path, tags: dict[str, object], word: str) -> None:
    path = edit(write_dicom(tmp_path / "a.dcm"), **tags)
    message = refusal(path)
    assert word in message


@pytest.mark.parametrize(
    "fault", ["os.kill(os.getpid(), signal.SIGSEGV)", "raise Panic('Smith^John')", "time.sleep(99)"]
)
def test_08_09_a_decoder_that_crashes_panics_or_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """The true reader with one bad decoder in it: that file is refused and the next one is read."""
    from radweave.io.sandbox import Sandbox

    (tmp_path / "bad_decoder.py").write_text(
        "import os, signal, time\n"
        "from radweave.io import dicom_parse\n"
        "from radweave.io.parsers import TASKS\n"
        "class Panic(BaseException): pass\n"
        "def decode(*_, **__): " + fault + "\n"
        "true = dicom_parse._decode\n"
        "dicom_parse._decode = lambda ds, *rest: (decode if ds.Rows == 40 else true)(ds, *rest)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    pool = Sandbox("bad_decoder", size=1)
    bad, good = write_dicom(tmp_path / "bad.dcm", chest(40, 32)), write_dicom(tmp_path / "good.dcm")
    monkeypatch.setattr("radweave.io.dicom.READ_TIMEOUT_S", 1.0)
    with pytest.raises(InputError) as caught:
        read_dicom(bad, pool=pool)
    assert "Smith" not in str(caught.value)
    assert read_dicom(good, pool=pool).stored_pixels().shape == (96, 80)
    pool.close()


@pytest.mark.parametrize("kind", ["rle", "jpeg"])
def test_10_a_corrupt_frame_is_doubted_or_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.dcm"
    image = chest(128, 112, noise=0.02)
    write_baseline_jpeg(path, image) if kind == "jpeg" else compressed(path, RLELossless, image)
    whole = path.read_bytes()
    expected = display(read_dicom(path))[0]
    assert read_radiograph(path).warnings == ()
    start = whole.index(b"\xe0\x7f\x10\x00") + 700
    source, silent = random.Random(5), 0
    for _ in range(20):
        broken = bytearray(whole)
        for _ in range(20):
            broken[source.randrange(start, len(whole) - 20)] = source.randrange(256)
        path.write_bytes(broken)
        try:
            radiograph = read_radiograph(path)
        except InputError:
            continue
        wrong = float((np.abs(radiograph.pixels - expected) > 0.1).mean())
        doubted = any(text.startswith(DOUBTFUL) for text in radiograph.warnings)
        silent += wrong > 0.1 and not doubted
    assert silent == 0


def test_10_noise_and_patterns_are_doubted(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).uniform(0, 1, (96, 80))
    board = (np.indices((96, 80)) // 8).sum(axis=0) % 2
    for image in (noise, board):
        radiograph = read_radiograph(write_dicom(tmp_path / "a.dcm", image))
        assert any(text.startswith(DOUBTFUL) for text in radiograph.warnings)


def test_10_a_cut_jpeg_2000_codestream_is_doubted_or_refused(tmp_path: Path) -> None:
    path = compressed(tmp_path / "a.dcm", JPEG2000Lossless, chest(128, 112))
    from pydicom import dcmread

    ds = dcmread(path)
    frame = next(generate_frames(ds.PixelData, number_of_frames=1))
    for share in (0.5, 0.9, 0.99):
        ds.PixelData = encapsulate([frame[: int(len(frame) * share)]])
        try:
            radiograph = read_radiograph(save(ds, path))
        except InputError:
            continue
        assert any("end marker" in text for text in radiograph.warnings)


def test_11_an_unsupported_transfer_syntax(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = compressed(tmp_path / "a.dcm", RLELossless)
    from pydicom import dcmread

    ds = dcmread(path)
    ds.file_meta.TransferSyntaxUID = "1.2.840.10008.1.2.4.102"
    save(ds, path)
    assert "MPEG-4" in refusal(path)
    monkeypatch.setitem(dicom_parse.DECODERS, "1.2.840.10008.1.2.4.80", ("absent", "pyjpegls"))
    with pytest.raises(InputError, match="pip install pyjpegls"):
        dicom_parse._plugin("1.2.840.10008.1.2.4.80")
    with pytest.raises(InputError, match="not define"):
        dicom_parse._plugin("?")


@pytest.mark.parametrize("modality", ["CT", "MR", "US", "RTSTRUCT", "SR", "PT", "XX"])
def test_12_other_modalities_are_refused(tmp_path: Path, modality: str) -> None:
    assert "is not a radiograph" in refusal(write_dicom(tmp_path / "a.dcm", Modality=modality))


def test_12_a_slice_without_modality_is_refused(tmp_path: Path) -> None:
    path = write_series(tmp_path / "s")[0]
    assert "CT image" in refusal(edit(path, Modality=None))


@pytest.mark.parametrize(
    ("tags", "word"),
    [
        ({"BodyPartExamined": "HAND"}, "HAND"),
        ({"BodyPartExamined": "SOMETHING"}, "another than the chest"),
        ({"ViewPosition": "LL"}, "lateral"),
        ({"Modality": "OT"}, "modality OT"),
        ({"Modality": None}, "no modality"),
        ({"PresentationIntentType": "FOR PROCESSING"}, "not processed for display"),
        ({"PixelSpacing": [0.2, 0.1]}, "not square"),
        ({"PixelAspectRatio": [2, 1]}, "not square"),
        ({"BurnedInAnnotation": "YES"}, "burned-in"),
        ({"PresentationLUTShape": "INVERSE"}, "contradicts"),
        ({"WindowCenter": 90000, "WindowWidth": 10}, "shows nothing"),
        ({"WindowCenter": 100, "WindowWidth": 0}, "WindowWidth"),
    ],
)
def test_12_doubtful_content_is_read_with_a_warning(tmp_path: Path, tags: dict[str, object], word: str) -> None:
    radiograph = read_radiograph(write_dicom(tmp_path / "a.dcm", **tags))
    assert any(word in text for text in radiograph.warnings)


def test_13_colour_palette_and_frames_are_refused(tmp_path: Path) -> None:
    colour = dataset(np.rint(np.stack([chest()] * 3, axis=2) * 255), bits=8)
    assert "colour" in refusal(save(colour, tmp_path / "rgb.dcm"))
    assert "not a grey image" in refusal(write_dicom(tmp_path / "p.dcm", PhotometricInterpretation="PALETTE COLOR"))
    assert "several frames" in refusal(write_dicom(tmp_path / "f.dcm", NumberOfFrames=2))
    # Every depth, sign and polarity giving the same image: tests/io/test_dicom.py.


@pytest.mark.parametrize("value", [None, "0", "nan", "inf", "-1"])
def test_14_pixel_spacing_of_a_radiograph(tmp_path: Path, value: str | None) -> None:
    path = write_dicom(tmp_path / "a.dcm")
    if value is not None:
        _raw_tag(path, 0x00280030, "DS", f"{value}\\{value}")
    radiograph = read_radiograph(path)
    assert radiograph.spacing_mm is None
    assert (radiograph.warnings == ()) == (value is None)


@pytest.mark.parametrize("value", ["nan", "0", "abc", "1e999"])
def test_14_slope_of_a_radiograph(tmp_path: Path, value: str) -> None:
    plain = read_radiograph(write_dicom(tmp_path / "plain.dcm"))
    path = write_dicom(tmp_path / "a.dcm")
    _raw_tag(path, 0x00281053, "DS", value)
    radiograph = read_radiograph(path)
    np.testing.assert_array_equal(radiograph.pixels, plain.pixels)
    assert any("RescaleSlope" in text for text in radiograph.warnings)


def _raw_tag(path: Path, tag: int, vr: str, value: str) -> None:
    """Put an element into an explicit little-endian file, in its place, whatever its value."""
    from pydicom import config, dcmread
    from pydicom.dataelem import RawDataElement
    from pydicom.tag import Tag

    ds = dcmread(path)
    data = value.encode() + b" " * (len(value) % 2)
    config.settings.reading_validation_mode = config.IGNORE
    ds._dict[Tag(tag)] = RawDataElement(Tag(tag), vr, len(data), data, 0, False, True)
    save(ds, path)


@pytest.mark.parametrize(
    ("tag", "vr", "value"),
    [
        (0x00280030, "DS", "0\\0"),
        (0x00280030, "DS", "nan\\1"),
        (0x00281053, "DS", "nan"),
        (0x00281053, "DS", "0"),
        (0x00200032, "DS", "1\\2"),
        (0x00200037, "DS", "1\\0\\0\\1\\0\\0"),
    ],
)
def test_14_geometry_and_slope_of_ct(tmp_path: Path, tag: int, vr: str, value: str) -> None:
    for path in write_series(tmp_path / "s", thorax_hu(3)):
        _raw_tag(path, tag, vr, value)
    volume_refusal(tmp_path / "s")


def test_14_a_ct_without_slope_or_spacing(tmp_path: Path) -> None:
    for name in ("RescaleSlope", "RescaleIntercept", "PixelSpacing", "ImagePositionPatient"):
        for path in write_series(tmp_path / name, thorax_hu(3)):
            edit(path, **{name: None})
        assert name in volume_refusal(tmp_path / name)


def test_15_missing_slice(tmp_path: Path) -> None:
    paths = write_series(tmp_path / "s")
    paths[7].unlink()
    paths[8].unlink()
    assert "slices are missing (got 2 missing of 24)" in volume_refusal(tmp_path / "s")


def test_15_duplicated_slice(tmp_path: Path) -> None:
    paths = write_series(tmp_path / "s")
    (tmp_path / "s" / "copy.dcm").write_bytes(paths[5].read_bytes())
    volume = read_volume(tmp_path / "s")
    np.testing.assert_array_equal(volume.hu, thorax_hu())
    assert any("duplicated" in text for text in volume.warnings)
    edit(tmp_path / "s" / "copy.dcm", SOPInstanceUID=generate_uid(), PixelData=bytes(2 * 40 * 48))
    assert "two different slices lie at one position" in volume_refusal(tmp_path / "s")


@pytest.mark.parametrize(
    ("tag", "word"),
    [("SeriesInstanceUID", "series"), ("StudyInstanceUID", "studies"), ("FrameOfReferenceUID", "frames of reference")],
)
def test_15_mixed_series(tmp_path: Path, tag: str, word: str) -> None:
    paths = write_series(tmp_path / "s")
    for path in paths[12:]:
        edit(path, **{tag: generate_uid()})
    assert f"mixes several {word}" in volume_refusal(tmp_path / "s")


def test_15_mixed_sizes_spacings_and_orientations(tmp_path: Path) -> None:
    for name, tags in {
        "spacings": {"PixelSpacing": [1, 1]},
        "orientations": {"ImageOrientationPatient": [0, 1, 0, 0, 0, -1]},
    }.items():
        paths = write_series(tmp_path / name)
        edit(paths[3], **tags)
        assert name in volume_refusal(tmp_path / name)


def test_15_gantry_tilt_is_named_and_undone(tmp_path: Path) -> None:
    hu = thorax_hu()
    for index, path in enumerate(write_series(tmp_path / "s", hu)):
        edit(path, ImagePositionPatient=[-30, -40 + 0.5 * index, -100 + 2 * index])
    volume = read_volume(tmp_path / "s")
    assert any("gantry tilt of 14.0 degrees" in text for text in volume.warnings)
    # Half a millimetre a slice on pixels of 1.5 mm: every third slice is shifted by whole pixels, exactly undone.
    stored = read_stored(tmp_path / "s").values
    np.testing.assert_array_equal(volume.hu[0], stored[0])
    np.testing.assert_array_equal(volume.hu[3, 1:], stored[3, :-1])
    np.testing.assert_array_equal(volume.hu[6, 2:], stored[6, :-2])
    assert (volume.hu[6, :1] == -1024).all()


def test_15_uneven_gaps_and_shifts_are_named(tmp_path: Path) -> None:
    paths = write_series(tmp_path / "s")
    edit(paths[4], ImagePositionPatient=[-30, -40, -100 + 2 * 4 + 0.5])
    assert any("not uniform" in text for text in read_volume(tmp_path / "s").warnings)
    edit(paths[6], ImagePositionPatient=[-20, -40, -100 + 2 * 6])
    assert "shifted unevenly" in volume_refusal(tmp_path / "s")


def test_15_localizers_and_files_without_an_image_are_left_out(tmp_path: Path) -> None:
    paths = write_series(tmp_path / "s", np.concatenate([thorax_hu(), thorax_hu()[:2]]))
    edit(paths[-1], ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"], ImageOrientationPatient=[1, 0, 0, 0, 0, -1])
    edit(paths[-2], Modality="SR", PixelData=None, Rows=None, Columns=None)
    volume = read_volume(tmp_path / "s")
    np.testing.assert_array_equal(volume.hu, thorax_hu())
    assert volume.warnings == ("1 files without an image left out", "1 localizer images left out")


def save_nifti(path: Path, values: np.ndarray, affine: np.ndarray) -> Path:
    nib.save(nib.Nifti1Image(values, affine), path)
    return path


FLAT = np.diag([1.0, 1, 0, 1])
FALLEN_TOGETHER = np.array([[1.0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])


@pytest.mark.parametrize("affine", [FLAT, FALLEN_TOGETHER, np.full((4, 4), np.nan)])
def test_16_singular_affine_is_refused(tmp_path: Path, affine: np.ndarray) -> None:
    image = nib.Nifti1Image(np.ascontiguousarray(thorax_hu().T), np.eye(4))
    for row, name in enumerate(("srow_x", "srow_y", "srow_z")):
        image.header[name] = affine[row]
    image.header["sform_code"], image.header["qform_code"] = 1, 0
    path = tmp_path / "a.nii"
    with path.open("wb") as file:
        image.header["vox_offset"], image.header["magic"] = 352, b"n+1"
        image.header.write_to(file)
        file.write(np.asarray(image.dataobj).tobytes(order="F"))
    volume_refusal(path)
    # Oblique, left-handed and permuted affines: tests/io/test_volumes.py.


def test_16_negative_voxel_size(tmp_path: Path) -> None:
    for code in (0, 1):
        data = bytearray(nifti_header((4, 5, 6)))
        struct.pack_into("<4f", data, 76, 1.0, -1.0, 1.0, 1.0)
        struct.pack_into("<hh", data, 252, 0, code)
        struct.pack_into("<12f", data, 280, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0)
        path = tmp_path / f"{code}.nii"
        path.write_bytes(bytes(data) + thorax_hu(6, 5, 4).tobytes())
        if code == 0:
            assert "pixdim" in volume_refusal(path)
        else:
            assert any("pixdim" in text for text in read_volume(path).warnings)


def test_16_four_dimensions(tmp_path: Path) -> None:
    values = np.stack([thorax_hu().T] * 2, axis=3)
    assert "not one 3D volume" in volume_refusal(save_nifti(tmp_path / "a.nii", values, np.eye(4)))
    single = save_nifti(tmp_path / "b.nii", values[..., :1], np.eye(4))
    assert read_stored(single).values.shape == thorax_hu().shape


def test_16_strong_anisotropy_is_reported(tmp_path: Path) -> None:
    path = save_nifti(tmp_path / "a.nii", np.ascontiguousarray(thorax_hu().T), np.diag([0.5, 0.5, 10.0, 1.0]))
    assert any("20 times longer" in text for text in read_volume(path).warnings)


def test_17_nan_and_constant(tmp_path: Path) -> None:
    values = np.ascontiguousarray(thorax_hu().T).astype(np.float32)
    all_nan = save_nifti(tmp_path / "a.nii", np.full_like(values, np.nan), np.eye(4))
    assert "no numbers" in volume_refusal(all_nan)
    values[3, 4, 5] = np.nan
    values[6, 7, 8] = np.inf
    volume = read_volume(save_nifti(tmp_path / "b.nii", values, np.eye(4)))
    assert any("2 voxels" in text for text in volume.warnings)
    assert np.isfinite(volume.hu).all()
    assert volume.hu.min() >= -1024
    constant = save_nifti(tmp_path / "c.nii", np.zeros((4, 4, 4), dtype=np.int16), np.eye(4))
    assert "all voxels are equal" in volume_refusal(constant)
    assert "all pixels are equal" in refusal(write_dicom(tmp_path / "a.dcm", np.full((40, 40), 0.5)))
    Image.new("L", (40, 40), 7).save(tmp_path / "a.png")
    assert "all pixels are equal" in refusal(tmp_path / "a.png")


def test_18_two_patients_in_one_folder(tmp_path: Path) -> None:
    paths = write_series(tmp_path / "s")
    edit(paths[9], PatientID="another")
    message = volume_refusal(tmp_path / "s")
    assert "several patients" in message
    assert "another" not in message


def test_19_one_sop_instance_with_different_pixels(tmp_path: Path) -> None:
    paths = write_series(tmp_path / "s")
    from pydicom import dcmread

    edit(paths[9], SOPInstanceUID=dcmread(paths[2]).SOPInstanceUID)
    assert "claim to be the same image" in volume_refusal(tmp_path / "s")


def test_missing_files_are_reported(tmp_path: Path) -> None:
    (tmp_path / "empty.png").touch()
    assert "missing" in refusal(tmp_path / "nothing.png")
    assert "empty" in refusal(tmp_path / "empty.png")
    assert "not a file" in refusal(tmp_path)
    with pytest.raises(InputError):
        read_radiograph(Path("a\0b.png"))
    os.mkfifo(tmp_path / "pipe")
    assert "not a file" in refusal(tmp_path / "pipe")


def test_41_no_patient_value_leaves_the_reader(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """The canary stands in every identifier and, as a bad value, in dates, times, numbers and codes."""
    caplog.set_level(logging.DEBUG)
    bad = {0x00080020: "DA", 0x00080030: "TM", 0x00281050: "DS", 0x00281051: "DS", 0x00280030: "DS", 0x00200013: "IS",
           0x00080060: "CS", 0x00180015: "CS", 0x00185101: "CS", 0x20500020: "CS", 0x00080005: "CS", 0x00080008: "CS",
           0x00080016: "UI", 0x0020000D: "UI", 0x00181164: "DS", 0x00281053: "DS"}  # fmt: skip
    with warnings.catch_warnings(record=True) as caught:
        for tag, vr in bad.items():
            path = write_dicom(tmp_path / "a.dcm")
            _raw_tag(path, tag, vr, f"{CANARY}^{tag:08x}")
            caplog.clear()  # writing the file above warns in this process; reading must not
            text = repr(inspect(path))
            try:
                text += repr(read_radiograph(path))
            except InputError as error:
                text += str(error)
            assert CANARY not in text, f"{tag:08x}"
        for path in write_series(tmp_path / "s"):
            _raw_tag(path, 0x00180050, "DS", CANARY)
        capfd.readouterr()
        assert CANARY not in repr(inspect(tmp_path / "s"))
    printed = capfd.readouterr()
    assert CANARY not in printed.out + printed.err + caplog.text
    # Not those of the writers above, which are no part of the package, wherever the checkout lies.
    package = Path(radweave.__file__).parent
    made_here = [str(w.message) for w in caught if Path(w.filename).is_relative_to(package)]
    assert not made_here


def test_reading_hostile_files_is_quick(tmp_path: Path) -> None:
    """No case here may come near a time limit; the bound is a hundred times what they take."""
    path = write_dicom(tmp_path / "a.dcm")
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.index(b"\xe0\x7f\x10\x00")] + nested(5000, defined=False))
    before = time.process_time()
    refusal(path)
    assert time.process_time() - before < 5
