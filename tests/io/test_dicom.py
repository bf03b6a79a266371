"""Display of DICOM images, and the part of the body by their headers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydicom.dataset import Dataset
from pydicom.sequence import Sequence as DicomSequence
from pydicom.uid import JPEG2000Lossless, JPEGLSLossless, RLELossless

from radweave.core.errors import InputError
from radweave.core.study import View
from radweave.data.ct import NO_SCANS
from radweave.inference.pictures import MixtureError, NoChestError, read_pictures, refuse_doubtful, refuse_mixture
from radweave.io import dicom
from radweave.io.dicom import DOUBTFUL, display, read_dicom, significant_bits, window
from radweave.io.images import read_radiograph
from radweave.io.volumes import read_volume
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

DEPTHS = (8, 10, 12, 14, 16)


def pixels(path: Path) -> np.ndarray:
    return read_radiograph(path).pixels


def near(bits: int) -> float:
    """Half a grey level of the coarser of two images, each rounded once."""
    return 1.01 / ((1 << bits) - 1)


@pytest.mark.parametrize("bits", DEPTHS)
@pytest.mark.parametrize("signed", [False, True])
def test_display_is_independent_of_bit_depth(tmp_path: Path, bits: int, signed: bool) -> None:
    image = chest()
    shown = pixels(write_dicom(tmp_path / "a.dcm", image, bits=bits, signed=signed))
    np.testing.assert_allclose(shown, image, atol=near(bits))


@pytest.mark.parametrize("bits", DEPTHS)
def test_monochrome1_is_the_inverted_monochrome2(tmp_path: Path, bits: int) -> None:
    image = chest()
    straight = pixels(write_dicom(tmp_path / "2.dcm", image, bits=bits))
    inverted = pixels(write_dicom(tmp_path / "1.dcm", image, bits=bits, PhotometricInterpretation="MONOCHROME1"))
    np.testing.assert_allclose(inverted, 1 - straight, atol=1e-6)


@given(bits=st.integers(8, 16), seed=st.integers(0, 1000), signed=st.booleans())
@settings(max_examples=15, deadline=None)
def test_inverted_pixels_with_the_inverted_tag_are_the_same_image(
    tmp_path_factory: pytest.TempPathFactory, bits: int, seed: int, signed: bool
) -> None:
    folder = tmp_path_factory.mktemp("inverted")
    image = np.random.default_rng(seed).uniform(0, 1, (20, 24))
    image[0, 0], image[0, 1] = 0, 1
    one = pixels(write_dicom(folder / "a.dcm", image, bits=bits, signed=signed))
    two = pixels(
        write_dicom(folder / "b.dcm", 1 - image, bits=bits, signed=signed, PhotometricInterpretation="MONOCHROME1")
    )
    # 1 - image rounds its ties to the other side, by one grey level at most.
    np.testing.assert_allclose(one, two, atol=near(bits))


@pytest.mark.parametrize("syntax", [JPEG2000Lossless, JPEGLSLossless, RLELossless])
@pytest.mark.parametrize("bits", [8, 12, 16])
def test_lossless_compression_changes_nothing(tmp_path: Path, syntax: str, bits: int) -> None:
    plain = write_dicom(tmp_path / "plain.dcm", bits=bits)
    packed = compressed(tmp_path / "packed.dcm", syntax, bits=bits)
    assert read_dicom(packed).header.transfer_syntax == syntax
    np.testing.assert_array_equal(read_dicom(packed).stored_pixels(), read_dicom(plain).stored_pixels())
    assert read_radiograph(packed).warnings == read_radiograph(plain).warnings == ()


def test_jpeg_lossless_by_gdcm(tmp_path: Path) -> None:
    gdcm = pytest.importorskip("gdcm")
    plain, packed = write_dicom(tmp_path / "plain.dcm"), tmp_path / "packed.dcm"
    reader, change, writer = gdcm.ImageReader(), gdcm.ImageChangeTransferSyntax(), gdcm.ImageWriter()
    reader.SetFileName(str(plain))
    assert reader.Read()
    change.SetTransferSyntax(gdcm.TransferSyntax(gdcm.TransferSyntax.JPEGLosslessProcess14_1))
    change.SetInput(reader.GetImage())
    assert change.Change()
    writer.SetFileName(str(packed))
    writer.SetFile(reader.GetFile())
    writer.SetImage(change.GetOutput())
    assert writer.Write()
    assert read_dicom(packed).header.transfer_syntax == "1.2.840.10008.1.2.4.70"
    np.testing.assert_array_equal(read_dicom(packed).stored_pixels(), read_dicom(plain).stored_pixels())


def test_baseline_jpeg_is_near_the_original(tmp_path: Path) -> None:
    image = chest(noise=0)
    shown = pixels(write_baseline_jpeg(tmp_path / "a.dcm", image))
    # Quality 92 quantises the strongest coefficients by 3 grey levels of 255.
    assert float(np.abs(shown - image).mean()) < 3 / 255


def test_modality_lut_and_rescale(tmp_path: Path) -> None:
    image = chest()
    item = Dataset()
    item.add_new(0x00283002, "US", [4096, 0, 16])
    item.add_new(0x00283006, "OW", (np.arange(4096, dtype="<u2") * 16).tobytes())
    looked_up = write_dicom(tmp_path / "lut.dcm", image, ModalityLUTSequence=DicomSequence([item]))
    np.testing.assert_allclose(pixels(looked_up), image, atol=2 * near(12))
    rescaled = write_dicom(tmp_path / "rescale.dcm", image, RescaleSlope=2, RescaleIntercept=-500)
    np.testing.assert_allclose(pixels(rescaled), image, atol=near(12))
    falling = write_dicom(tmp_path / "falling.dcm", image, RescaleSlope=-1, RescaleIntercept=4095)
    np.testing.assert_allclose(pixels(falling), 1 - image, atol=near(12))


def test_signed_lut_descriptor(tmp_path: Path) -> None:
    image = chest()
    item = Dataset()
    item.add_new(0x00283002, "SS", [4096, -2048, 16])
    item.add_new(0x00283006, "US", (np.arange(4096) * 16).tolist())
    path = write_dicom(tmp_path / "lut.dcm", image, signed=True, ModalityLUTSequence=DicomSequence([item]))
    np.testing.assert_allclose(pixels(path), image, atol=2 * near(12))


def test_voi_lut_is_used_before_the_window(tmp_path: Path) -> None:
    image = chest()
    item = Dataset()
    item.add_new(0x00283002, "US", [4096, 0, 8])
    item.add_new(0x00283006, "OW", (255 - np.arange(4096) // 16).astype("<u2").tobytes())
    path = write_dicom(
        tmp_path / "voi.dcm", image, VOILUTSequence=DicomSequence([item]), WindowCenter=0, WindowWidth=10
    )
    np.testing.assert_allclose(pixels(path), 1 - image, atol=2 * near(8))


def test_the_first_of_several_windows(tmp_path: Path) -> None:
    image = chest()
    several = write_dicom(tmp_path / "a.dcm", image, WindowCenter=[2000, 100], WindowWidth=[1000, 50])
    one = write_dicom(tmp_path / "b.dcm", image, WindowCenter=2000, WindowWidth=1000)
    np.testing.assert_array_equal(pixels(several), pixels(one))
    np.testing.assert_allclose(pixels(one), np.clip((np.rint(image * 4095) - 1999.5) / 999 + 0.5, 0, 1), atol=1e-5)


def test_window_functions_match_the_standard() -> None:
    """The worked points of PS3.3 C.11.2.1.2: LINEAR with c = 2048, w = 4096 maps 0 to black and 4095 to white."""
    values = np.array([-5, 0, 2048, 4095, 5000], dtype=np.float32)
    np.testing.assert_allclose(window(values, 2048, 4096), [0, 0, 2048 / 4095, 1, 1], atol=1e-6)
    np.testing.assert_allclose(window(values, 2048, 4096, "LINEAR_EXACT"), [0, 0, 0.5, 4095 / 4096, 1], atol=1e-6)
    np.testing.assert_allclose(window(values, 2048, 4096, "SIGMOID"), 1 / (1 + np.exp(-4 * (values - 2048) / 4096)),
                               atol=1e-6)  # fmt: skip
    np.testing.assert_array_equal(window(np.array([0.4, 0.6], dtype=np.float32), 1, 1), [0, 1])
    assert window(values, 0, 0) is None


def test_overlay_bits_are_removed(tmp_path: Path) -> None:
    image = chest()
    values = np.rint(image * 1023).astype(np.int64)
    marked = values | (np.indices(values.shape).sum(axis=0) % 2) << 14
    path = save(dataset(marked, bits=10), tmp_path / "overlay.dcm")
    np.testing.assert_allclose(pixels(path), image, atol=near(10))
    # Also where the library that reads the file has not cut them off.
    header = read_dicom(path).header
    assert significant_bits(np.array([5 | 1 << 14, 1023 | 7 << 10], np.uint16), header).tolist() == [5, 1023]


def test_image_in_the_upper_bits(tmp_path: Path) -> None:
    image = chest()
    values = np.rint(image * 1023).astype(np.int64) << 6
    path = save(dataset(values, bits=10, HighBit=15), tmp_path / "high.dcm")
    shown, _ = display(read_dicom(path))
    np.testing.assert_allclose(shown, image, atol=near(10))


@pytest.mark.parametrize(("value", "limit"), [(4095, None), (4095, 4000), (4000, 4095)])
def test_padding_is_black_and_ignored(tmp_path: Path, value: int, limit: int | None) -> None:
    """The value and the limit of a range may come in either order."""
    image = chest() * 0.2
    values = np.rint(image * 4095).astype(np.int64)
    padded = np.pad(values, 8, constant_values=4095 if limit is None else 4050)
    tags: dict[str, Any] = {"PixelPaddingValue": value} | ({} if limit is None else {"PixelPaddingRangeLimit": limit})
    one = read_radiograph(save(dataset(values, bits=12), tmp_path / "a.dcm")).pixels
    two = read_radiograph(save(dataset(padded, bits=12, **tags), tmp_path / "b.dcm")).pixels
    np.testing.assert_allclose(two[8:-8, 8:-8], one, atol=1e-6)
    assert float(two[:8].max()) == 0


def test_low_contrast_is_stretched_with_a_warning(tmp_path: Path) -> None:
    radiograph = read_radiograph(write_dicom(tmp_path / "a.dcm", chest() * 0.1 + 0.3, bits=16))
    assert float(np.ptp(radiograph.pixels)) > 0.9
    assert any("stretched" in text for text in radiograph.warnings)


@pytest.mark.parametrize(
    ("tags", "view"),
    [
        ({"ViewPosition": "PA"}, View.PA),
        ({"ViewPosition": "AP"}, View.AP),
        ({"ViewPosition": "LL"}, View.LATERAL),
        ({"ViewPosition": "ap supine"}, View.AP),
        ({"ViewPosition": None}, View.UNKNOWN),
        ({"ViewPosition": None, "PatientOrientation": ["L", "F"]}, View.FRONTAL),
        ({"ViewPosition": None, "PatientOrientation": ["A", "F"]}, View.LATERAL),
        ({"ViewPosition": None, "SeriesDescription": "W Chest Lat."}, View.LATERAL),
    ],
)
def test_views(tmp_path: Path, tags: dict[str, object], view: View) -> None:
    assert read_radiograph(write_dicom(tmp_path / "a.dcm", **tags)).view is view


@pytest.mark.parametrize(
    ("view", "orientation", "doubted"),
    [
        ("PA", ["L", "F"], False),
        ("LL", ["A", "FR"], False),
        (None, ["P", "F"], False),
        ("PA", ["R", "F"], True),
        (None, ["R", "F"], True),
        ("PA", ["L", "H"], True),
        ("AP", ["F", "L"], True),
        ("PA", [], False),
    ],
)
def test_an_image_that_lies_mirrored_or_turned_by_its_header_is_doubted(
    tmp_path: Path, view: str | None, orientation: list[str], doubted: bool
) -> None:
    path = write_dicom(tmp_path / "a.dcm", ViewPosition=view, PatientOrientation=orientation)
    assert any(text.startswith(DOUBTFUL) for text in read_radiograph(path).warnings) is doubted


def test_view_code(tmp_path: Path) -> None:
    code = Dataset()
    code.CodeValue, code.CodingSchemeDesignator, code.CodeMeaning = "399348003", "SCT", "antero-posterior"
    path = write_dicom(tmp_path / "a.dcm", ViewPosition=None, ViewCodeSequence=DicomSequence([code]))
    assert read_radiograph(path).view is View.AP


def test_keys_group_files_without_identifying(tmp_path: Path) -> None:
    one = read_radiograph(write_dicom(tmp_path / "a.dcm"))
    two = read_radiograph(write_dicom(tmp_path / "b.dcm"))
    other = read_radiograph(edit(write_dicom(tmp_path / "c.dcm"), PatientID="someone else"))
    unknown = read_radiograph(edit(write_dicom(tmp_path / "d.dcm"), PatientID=None))
    assert one.patient_key == two.patient_key != other.patient_key
    assert unknown.patient_key is None
    assert one.study_key != two.study_key
    assert CANARY not in repr(one)


def test_a_file_without_preamble(tmp_path: Path) -> None:
    whole = write_dicom(tmp_path / "a.dcm").read_bytes()
    bare = tmp_path / "bare.dcm"
    bare.write_bytes(whole[132:])
    np.testing.assert_array_equal(pixels(bare), pixels(tmp_path / "a.dcm"))
    start = 132 + 12 + int.from_bytes(whole[140:144], "little")  # after the group length element and its group
    bare.write_bytes(whole[start:])
    radiograph = read_radiograph(bare)
    np.testing.assert_array_equal(radiograph.pixels, pixels(tmp_path / "a.dcm"))
    assert any("guessed" in text for text in radiograph.warnings)


OTHERS = [
    "EXTREMITY",
    "KNEE",
    "HAND",
    "FOOT",
    "SKULL",
    "ABDOMEN",
    "HEAD",
    "NECK",
    "PELVIS",
    "HIP",
    "SHOULDER",
    "ELBOW",
    "WRIST",
    "ANKLE",
    "LEG",
    "ARM",
    "BREAST",
    "CSPINE",
    "LSPINE",
    "FINGER",
    "TOE",
    "JAW",
    "FEMUR",
    "TIBIA",
    "HUMERUS",
    "FOREARM",
    "SCAPULA",
    "UP_EXM",
]
CHESTS = [
    "CHEST",
    "THORAX",
    "RIB",
    "RIBS",
    "STERNUM",
    "LUNG",
    "HEART",
    "CHESTABDOMEN",
    "CHESTABDPELVIS",
    "NECKCHEST",
    "WHOLEBODY",
]
PARTLY = ["CLAVICLE", "TSPINE", "SPINE"]


def region(code: str, meaning: str = "") -> list[Dataset]:
    item = Dataset()
    item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = code, "SCT", meaning
    return [item]


def warnings_of(tmp_path: Path, **tags: Any) -> tuple[str, ...]:
    file = save(dataset((chest() * 4095).astype(int), bits=12, **tags), tmp_path / "a.dcm")
    return read_radiograph(file).warnings


def refused(tmp_path: Path, **tags: Any) -> str | None:
    """Why a run of radiographs refuses a picture with these tags, or None."""
    file = save(dataset((chest() * 4095).astype(int), bits=12, **tags), tmp_path / "a.dcm")
    try:
        refuse_doubtful(read_pictures([file], NO_SCANS), [file])
    except NoChestError as error:
        return error.reason
    return None


@pytest.mark.parametrize("part", OTHERS)
def test_another_body_part_is_refused(part: str, tmp_path: Path) -> None:
    assert "not a chest" in (refused(tmp_path, BodyPartExamined=part) or "")


@pytest.mark.parametrize("part", [*CHESTS, *PARTLY, "", "PORTABLE"])
def test_chest_among_other_parts_and_unknown_terms_pass(part: str, tmp_path: Path) -> None:
    assert refused(tmp_path, BodyPartExamined=part) is None
    message = " ".join(warnings_of(tmp_path, BodyPartExamined=part))
    assert ("in part" in message) == (part in PARTLY)
    assert ("not stated to be a chest" in message) == (part == "PORTABLE")


@pytest.mark.parametrize(
    "text",
    ["KNEE 2 VIEWS", "Knie links", "Röntgen Schädel", "GENOU DROIT", "Rodilla derecha", "ginocchio", "Hüfte bds.",
     "XR HAND_3V", "左膝正侧位", "ABDOMEN SUPINE", "MAMMOGRAPHY", "Épaule face"],
)  # fmt: skip
def test_another_part_in_descriptions_is_refused(text: str, tmp_path: Path) -> None:
    for field in ("StudyDescription", "SeriesDescription", "ProtocolName"):
        why = refused(tmp_path, BodyPartExamined=None, **{field: text, "SpecificCharacterSet": "ISO_IR 192"})
        assert why is not None, field
        assert "a description names another part of the body" in why
        assert text.split()[0] not in why


@pytest.mark.parametrize(
    "text", ["CHEST PA", "Thorax stehend", "TÓRAX AP", "chest and abdomen", "PA 72 INCH, 6 FEET", "HEAD FIRST",
             "ARMS UP",
             "胸部正位", "Routine", "Rx torace, ginocchio escluso"]
)  # fmt: skip
def test_descriptions_of_a_chest_or_without_a_part_pass(text: str, tmp_path: Path) -> None:
    for field in ("StudyDescription", "SeriesDescription", "ProtocolName"):
        tags = {field: text, "SpecificCharacterSet": "ISO_IR 192"}
        assert refused(tmp_path, BodyPartExamined=None, **tags) is None, field


def test_fields_of_the_image_must_agree_and_override_the_study(tmp_path: Path) -> None:
    differ = "different parts of the body"
    assert differ in (refused(tmp_path, BodyPartExamined="CHEST", SeriesDescription="KNEE AP") or "")
    assert differ in (refused(tmp_path, BodyPartExamined="KNEE", ProtocolName="Thorax") or "")
    knee = region("72696002")
    assert differ in (refused(tmp_path, BodyPartExamined="CHEST", AnatomicRegionSequence=knee) or "")
    # An acute abdominal series has a chest, and a trauma series too.
    assert refused(tmp_path, BodyPartExamined="CHEST", StudyDescription="ACUTE ABDOMEN SERIES") is None
    assert refused(tmp_path, BodyPartExamined="ABDOMEN", StudyDescription="CHEST AND ABDOMEN") is not None
    assert refused(tmp_path, BodyPartExamined=["CHEST", "ABDOMEN"]) is None


@pytest.mark.parametrize(("code", "is_refused"), [
    ("51185008", False), ("T-D3000", False), ("416775004", False), ("72696002", True), ("T-D8700", True),
    ("818981001", True),
])  # fmt: skip
def test_coded_regions_are_read(code: str, is_refused: bool, tmp_path: Path) -> None:
    tags = {"BodyPartExamined": None, "AnatomicRegionSequence": region(code)}
    assert (refused(tmp_path, **tags) is not None) == is_refused


def test_an_unknown_region_code_counts_by_its_meaning(tmp_path: Path) -> None:
    for meaning, is_refused in (("Left knee", True), ("Thorax", False), (CANARY, False)):
        tags = {"BodyPartExamined": None, "AnatomicRegionSequence": region("99-1", meaning)}
        assert (refused(tmp_path, **tags) is not None) == is_refused, meaning
        assert CANARY not in " ".join(warnings_of(tmp_path, **tags))


def test_free_text_never_enters_a_message(tmp_path: Path) -> None:
    message = refused(tmp_path, BodyPartExamined=f"KNEE {CANARY}"[:16], SeriesDescription=f"{CANARY} knee")
    assert message is not None
    assert "ZZTEST" not in message
    assert "KNEE" not in message, "a part in a site's own words is not repeated"


def test_a_volume_of_another_part_is_refused(tmp_path: Path) -> None:
    for part, texts in (("CHEST", 0), ("KNEE", 1)):
        folder = tmp_path / part
        write_series(folder, thorax_hu(), BodyPartExamined=part)
        result = [text for text in read_volume(folder).warnings if text.startswith("not a chest: the body part")]
        assert len(result) == texts


def test_force_does_not_accept_a_mixture_of_parts(tmp_path: Path) -> None:
    pixels = (chest() * 4095).astype(int)
    files = [save(dataset(pixels, bits=12, PatientID=name), tmp_path / f"{name}.dcm") for name in ("A", "B")]
    with pytest.raises(MixtureError):
        refuse_mixture(read_pictures(files, NO_SCANS), files)


def test_a_header_is_parsed_once_until_its_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_dicom(tmp_path / "a.dcm", chest())
    parsed: list[Path] = []
    parse = dicom.read_dicom
    monkeypatch.setattr(dicom, "read_dicom", lambda file, **options: parsed.append(file) or parse(file, **options))
    header = dicom.read_header(path)
    moved = path.rename(tmp_path / "b.dcm")
    assert dicom.read_header(moved) is header
    assert parsed == [path]
    changed = write_dicom(tmp_path / "c.dcm", chest(), Modality="CR")
    os.utime(changed, ns=(0, 0))
    changed.replace(moved)
    assert dicom.read_header(moved) != header
    assert len(parsed) == 2
    with pytest.raises(InputError):
        dicom.read_header(tmp_path / "missing.dcm")
