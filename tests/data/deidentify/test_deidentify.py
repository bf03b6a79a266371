"""Patients taken out of images: nothing of them in any byte, and what belongs together still does."""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import shutil
import subprocess
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydicom import dcmread
from pydicom.datadict import dictionary_VR, keyword_for_tag
from pydicom.dataelem import DataElement, RawDataElement
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate, generate_frames
from pydicom.sequence import Sequence
from pydicom.tag import Tag
from pydicom.uid import UID, ExplicitVRLittleEndian, ImplicitVRLittleEndian, JPEG2000Lossless, RLELossless

from radweave.core.errors import InputError
from radweave.data.deidentify.folder import DeidentifiedImage, deidentify_file, deidentify_folder
from radweave.data.deidentify.key import Key, read_key, write_key
from radweave.data.deidentify.rewrite import table
from radweave.data.deidentify.traces import Traces
from tests.command_line import radweave
from tests.image_files import CANARY, compressed, save, write_dicom

KEY, OTHER = Key(b"k" * 32), Key(b"o" * 32)
_TEXTUAL = ("AE", "AS", "CS", "DA", "DS", "DT", "IS", "LO", "LT", "PN", "SH", "ST", "TM", "UC", "UR", "UT")
_ROOT = "1.2.826.0.1.3680043.8.498.77"


def clean(path: Path, key: Key = KEY, **more: Any) -> tuple[Dataset, DeidentifiedImage]:
    cleaned = deidentify_file(path, key, **more)
    return dcmread(io.BytesIO(cleaned.data)), cleaned


def canary(vr: str, number: int) -> Any:
    """A value that names the patient, in the representation of the attribute."""
    if vr in _TEXTUAL:
        return CANARY
    if vr == "UI":
        return f"{_ROOT}.{number}"
    if vr in ("OB", "OW", "OD", "OF", "OL", "OV", "UN"):
        return CANARY.encode().ljust(16)
    if vr == "SQ":
        item = Dataset()
        item.add_new(0x00081030, "LO", CANARY)
        item.add_new(0x00080104, "LO", f"seen by {CANARY}")
        return Sequence([item])
    return 0x5A5A if vr in ("US", "SS") else 0x5A5A5A5A if vr in ("UL", "SL", "UV", "SV") else 1.5


def _element(tag: int, vr: str, value: Any) -> Any:
    """An element; a text as it stands in the file, whether or not it is one of its kind."""
    if vr in _TEXTUAL:
        return RawDataElement(Tag(tag), vr, len(value), value.encode(), 0, False, True)
    return DataElement(tag, vr, value)


def laden(path: Path, **tags: Any) -> Path:
    """An image with a canary in each attribute of the table, in a sequence that stays, private ones, overlays, meta."""
    dataset = dcmread(write_dicom(path, **tags))
    unchanged = {"StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID"}
    inside = Dataset()
    for number, tag in enumerate(sorted(table())):
        try:
            vr = dictionary_VR(tag).split(" or ")[0]
        except KeyError:
            vr = "LO"
        if Tag(tag).group < 8 or keyword_for_tag(tag) in unchanged:
            continue
        for place in (dataset, inside):
            place[tag] = _element(tag, vr, canary(vr, number))
    dataset.DerivationCodeSequence = [inside]  # of no row of the table, so it stays and is walked through
    for place in (dataset, inside):
        block = place.private_block(0x0019, CANARY, create=True)
        block.add_new(1, "LO", CANARY)
        place.add_new(0x60000010, "US", 4)
        place.add_new(0x60003000, "OW", CANARY.encode())
        place.add_new(0x60004000, "LT", CANARY)
        place.add_new(0x50003000, "OW", CANARY.encode())
        place.add_new(0x00091234, "UN", CANARY.encode())
    dataset.Manufacturer, dataset.SoftwareVersions = f"Made for {CANARY}", ["1.0", CANARY.lower()]
    dataset.file_meta.SourceApplicationEntityTitle = CANARY
    dataset.file_meta.PrivateInformationCreatorUID, dataset.file_meta.PrivateInformation = f"{_ROOT}.1", CANARY.encode()
    dataset.preamble = CANARY.encode().ljust(128, b"\0")
    return save(dataset, path)


def test_no_attribute_of_the_profile_table_survives_in_any_byte(tmp_path: Path) -> None:
    path = laden(tmp_path / "a.dcm")
    assert path.read_bytes().count(CANARY.encode()) > 800
    dataset, cleaned = clean(path)
    assert CANARY.lower().encode() not in cleaned.data.lower()
    assert _ROOT.encode() not in cleaned.data
    assert cleaned.data[:128] == b"\0" * 128
    left = [
        element for element in dataset.iterall() if element.tag.is_private or element.tag.group >> 8 in (0x50, 0x60)
    ]
    assert left == []
    assert np.array_equal(dataset.pixel_array, dcmread(path).pixel_array)
    assert "DerivationCodeSequence" in dataset


@pytest.mark.parametrize("surplus", [0, 40])
@pytest.mark.parametrize(("stated", "entries"), [(4, 4), (300, 300), (65_535, 65_535), (0, 65_536)])
def test_a_lookup_table_is_cut_to_its_stated_entries(tmp_path: Path, stated: int, entries: int, surplus: int) -> None:
    """0 states 65536 entries (PS3.3 C.11.1.1.1, C.7.6.3.1.5); what stands behind them is read by nobody."""
    path = write_dicom(tmp_path / "a.dcm")
    dataset = dcmread(path)
    values = (np.arange(entries) % 4000).astype("<u2")
    item = Dataset()
    item.add_new(0x00283002, "US", [stated, 0, 16])
    item.add_new(0x00283006, "OW", values.tobytes() + (CANARY.encode() * surplus)[: 2 * surplus])
    dataset.VOILUTSequence = [item]
    dataset_out, cleaned = clean(save(dataset, path))
    (left,) = dataset_out.VOILUTSequence
    assert list(left.LUTDescriptor) == [stated, 0, 16]
    assert left.LUTData == values.tobytes()
    assert CANARY.encode() not in cleaned.data


def test_an_incomplete_lookup_table_is_removed(tmp_path: Path) -> None:
    path = write_dicom(tmp_path / "a.dcm")
    dataset = dcmread(path)
    item = Dataset()
    item.add_new(0x00283002, "US", [0, 0, 16])
    item.add_new(0x00283006, "OW", b"\1\2" * 300)
    dataset.VOILUTSequence = [item]
    dataset_out, _ = clean(save(dataset, path))
    assert all("LUTData" not in one for one in dataset_out.get("VOILUTSequence", ()))


def test_words_of_the_patient_are_removed_from_unlisted_attributes(tmp_path: Path) -> None:
    path = write_dicom(tmp_path / "a.dcm", PatientName="Nightingale^Florence^Ann", PatientID="4711-x")
    dataset = dcmread(path)
    dataset.ManufacturerModelName = "for nightingale, f."
    dataset.SoftwareVersions = ["7.1", "build of FLORENCE"]
    dataset.GridID, dataset.DeviceID = "4711", "7007"
    dataset.TextValue = dataset.SegmentDescription = "seen on Monday"
    dataset.EvaluatorName, dataset.RetrieveURL = "Doe^Jo", "http://there/x"
    dataset.add_new(0x00181151, "IS", "12")  # a number stays
    dataset.add_new(0x00187060, "CS", "not/a code: 4711 x")
    _, cleaned = clean(save(dataset, path))
    dataset_out = dcmread(io.BytesIO(cleaned.data))
    for word in (b"nightingale", b"florence", b"4711", b"monday", b"there/x", b"doe"):
        assert word not in cleaned.data.lower()
    assert (dataset_out.ManufacturerModelName, dataset_out.SoftwareVersions) == ("REMOVED", ["7.1", "REMOVED"])
    assert (dataset_out.GridID, dataset_out.DeviceID, dataset_out.XRayTubeCurrent) == ("REMOVED", "7007", 12)


def test_other_spellings_of_names_and_dates_in_texts_are_removed(tmp_path: Path) -> None:
    path = write_dicom(
        tmp_path / "a.dcm", PatientName="Müller^Zoë", SpecificCharacterSet="ISO_IR 192", StudyDate="19991231",
        PatientBirthDate="19010203", BodyPartExamined="CHEST 19991231", Manufacturer="for Mueller",
        ManufacturerModelName="of zoe", DeviceID="31.12.1999", GridID="1901-02-03", SoftwareVersions="7 of 1998-12-31",
    )  # fmt: skip
    dataset_out, _ = clean(path)
    values = (
        dataset_out.BodyPartExamined,
        dataset_out.Manufacturer,
        dataset_out.ManufacturerModelName,
        dataset_out.DeviceID,
        dataset_out.GridID,
    )
    assert values == ("REMOVED",) * 5
    assert dataset_out.SoftwareVersions == "REMOVED"  # a date of anyone


@pytest.mark.parametrize("encoding", ["ascii", "utf-16-le", "utf-16-be"])
def test_a_word_of_the_patient_in_the_values_of_pixels_is_refused(tmp_path: Path, encoding: str) -> None:
    path = write_dicom(tmp_path / "a.dcm", bits=8)
    dataset = dcmread(path)
    pixels, word = bytearray(dataset.PixelData), CANARY.encode(encoding)
    pixels[1001 : 1001 + len(word)] = word
    dataset.PixelData = bytes(pixels)
    with pytest.raises(InputError, match="holds a name, a number or a date of the patient") as caught:
        deidentify_file(save(dataset, path), KEY)
    assert CANARY not in str(caught.value)


def test_a_number_that_is_a_grey_area_is_no_trace(tmp_path: Path) -> None:
    ramp = np.tile(np.arange(96, dtype=np.float64) / 255, (80, 1))  # holds "0123456789" and the alphabet
    for number in ("000000", "123456", "fedcba"):
        path = write_dicom(tmp_path / "a.dcm", np.maximum(ramp, 48 / 255), bits=8, PatientID=number)
        assert clean(path)[0].PatientID.startswith("RW-")


def test_digits_of_new_identifiers_are_no_trace(tmp_path: Path) -> None:
    """A moved date or a new UID may hold the digits of another date or number of the header by chance."""
    study = f"{_ROOT}.9"
    first, _ = clean(write_dicom(tmp_path / "a.dcm", StudyInstanceUID=study))
    tags = {"StudyInstanceUID": study, "SeriesDate": first.StudyDate, "StudyID": first.StudyInstanceUID[5:13]}
    dataset_out, _ = clean(write_dicom(tmp_path / "a.dcm", **tags))
    assert (dataset_out.StudyDate, dataset_out.StudyInstanceUID) == (first.StudyDate, first.StudyInstanceUID)


def _frames(path: Path, syntax: UID, change: Any) -> Path:
    dataset = dcmread(compressed(path, syntax, bits=8))
    (frame,) = generate_frames(dataset.PixelData, number_of_frames=1)
    dataset.PixelData = encapsulate([change(frame)])
    return save(dataset, path)


@pytest.mark.parametrize("syntax", [RLELossless, JPEG2000Lossless])
def test_trailing_bytes_of_a_compressed_image_are_removed_and_a_truncated_one_is_refused(
    tmp_path: Path, syntax: UID
) -> None:
    path = _frames(tmp_path / "a.dcm", syntax, lambda frame: frame.rstrip(b"\0") + CANARY.encode() * 2)
    dataset_out, cleaned = clean(path)
    assert CANARY.encode() not in cleaned.data
    assert dataset_out.file_meta.TransferSyntaxUID == ExplicitVRLittleEndian
    assert np.array_equal(dataset_out.pixel_array, dcmread(write_dicom(tmp_path / "b.dcm", bits=8)).pixel_array)
    with pytest.raises(InputError, match="damaged"):
        deidentify_file(_frames(path, syntax, lambda frame: frame[: len(frame) // 2]), KEY)


def test_more_frames_than_stated_are_refused(tmp_path: Path) -> None:
    dataset = dcmread(compressed(tmp_path / "a.dcm", RLELossless, bits=8))
    (frame,) = generate_frames(dataset.PixelData, number_of_frames=1)
    dataset.NumberOfFrames, dataset.PixelData = 2, encapsulate([frame, frame, frame])
    with pytest.raises(InputError) as caught:
        deidentify_file(save(dataset, tmp_path / "a.dcm"), KEY)
    assert caught.value.field == "PixelData"
    dataset.NumberOfFrames = 3
    assert clean(save(dataset, tmp_path / "a.dcm"))[0].NumberOfFrames == 3


@pytest.mark.parametrize("high", [11, 13, 15])
def test_stored_bits_survive_at_any_position_of_a_word(tmp_path: Path, high: int) -> None:
    dataset = dcmread(write_dicom(tmp_path / "a.dcm", bits=12))
    stored = np.frombuffer(dataset.PixelData, "<u2").astype(np.uint32)
    noise = np.random.default_rng(3).integers(0, 1 << 16, stored.shape)
    around = 0xFFFF ^ (0xFFF << (high - 11))
    dataset.HighBit = high
    dataset.PixelData = ((stored << (high - 11)) | (noise & around)).astype("<u2").tobytes()
    dataset_out, _ = clean(save(dataset, tmp_path / "a.dcm"))
    assert np.array_equal(np.frombuffer(dataset_out.PixelData, "<u2"), stored << (high - 11))
    assert (dataset_out.HighBit, dataset_out.BitsStored) == (high, 12)


def test_a_patient_number_in_image_geometry_is_refused_and_elsewhere_removed(tmp_path: Path) -> None:
    path = write_dicom(tmp_path / "a.dcm", PatientID="71-8845-2", XRayTubeCurrent="7188452", Exposure="12")
    dataset, _ = clean(path)
    assert ("XRayTubeCurrent" in dataset, dataset.Exposure) == (False, 12)
    for tags in ({"RescaleIntercept": "-7188452"}, {"ImagePositionPatient": [1, 2, 7188452]}):
        with pytest.raises(InputError, match="cannot be left out") as caught:
            deidentify_file(write_dicom(path, PatientID="71-8845-2", **tags), KEY)
        assert caught.value.field == next(iter(tags))
    assert clean(write_dicom(path, PatientID="1024", RescaleIntercept="-1024"))[0].RescaleIntercept == -1024


@pytest.mark.parametrize(
    "text",
    [
        "Zquillby", "ＺＱＵＩＬＬＢＹ",
        "Z q u i l l b y", "Z.q.u.i.l.l.b.y", "xZquillbyx", "jonxzquillby",
        "Zquillby7", "Li Xu", "li-xu", "XULI", "VB_LI_2", "JohnLi", "grunwaldt", "Gruenwaldt", "12345678", "12.3456.78",
        "x12-3456-78x", "1960_04_12", "12.IV.1960", "12. Dezember 1960",
        "12 de abril de 1960", "4/12/60", "12APR60",
        "04/1960", "a.b@c.example", "Dr. Nobody", "+49 176 5559 8432", "Quixola",
    ],
)  # fmt: skip
def test_texts_with_a_trace_are_detected(text: str) -> None:
    assert _traces().in_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "SIEMENS", "Olive line", "Philips Medical", "MAXIMUM 12", "7.1.22b", "syngo CT 2013B", "1.25 mm", "xuv",
        "General", "Hospital", "Fuji 5000 plus", "B31f 30", "CXDI-50G", "DigitalDiagnost 4.2.1", "345 678",
    ],
)  # fmt: skip
def test_texts_without_a_trace_stay(text: str) -> None:
    assert not _traces().in_text(text)


def _traces() -> Traces:
    names = ("Zquillby^Jonx", "Li^Xu", "Grünwaldt^Zoë", "Mens^John")
    return Traces(names, ["12-3456-78"], ["Quixola General Hospital"], ["19600412"])


@pytest.mark.parametrize(
    ("tags", "gone"),
    [
        ({"SoftwareVersions": ["Zquil", "lby"]}, "SoftwareVersions"),
        ({"SoftwareVersions": ["9.12", "34", "5678"]}, "SoftwareVersions"),
        ({"XRayTubeCurrent": [ord(sign) for sign in "Zquillby"]}, "XRayTubeCurrent"),
        ({"ReferencedPathIndex": [ord(sign) for sign in "Zquillby"]}, "ReferencedPathIndex"),
        ({"ReferencedPathIndex": list(np.frombuffer(b"Zquillby", ">u2").astype(int))}, "ReferencedPathIndex"),
        ({"ReferencedPathIndex": list(np.frombuffer(b"Zquillby", "<u2").astype(int))}, "ReferencedPathIndex"),
        ({"StudyTime": "196004"}, "StudyTime"),
    ],
)
def test_a_trace_split_over_several_values_is_detected(tmp_path: Path, tags: dict[str, Any], gone: str) -> None:
    dataset_out, _ = clean(write_dicom(tmp_path / "a.dcm", PatientName="Zquillby^Jonx", PatientID="12-34-5678", **tags))
    assert dataset_out.get(gone, "") in ("", "REMOVED")
    plain = {"SoftwareVersions": ["7", "8"], "XRayTubeCurrent": [7, 8], "ReferencedPathIndex": [7, 8]}
    plain["StudyTime"] = "195904"
    dataset_out, _ = clean(write_dicom(tmp_path / "a.dcm", PatientName="Zquillby^Jonx", **{gone: plain[gone]}))
    assert dataset_out[gone].value == plain[gone]


def test_codes_of_the_standard_stay_even_if_they_equal_a_name(tmp_path: Path) -> None:
    dataset_out, _ = clean(
        write_dicom(tmp_path / "a.dcm", PatientName="Pa^Chest", Manufacturer="of Pa", DeviceID="path")
    )
    assert (dataset_out.ViewPosition, dataset_out.BodyPartExamined) == ("PA", "CHEST")
    assert (dataset_out.Manufacturer, dataset_out.DeviceID) == ("REMOVED", "path")


def test_pseudonyms_depend_on_patient_and_key_only(tmp_path: Path) -> None:
    study = {"StudyInstanceUID": f"{_ROOT}.1", "SeriesInstanceUID": f"{_ROOT}.2"}
    one = write_dicom(tmp_path / "1.dcm", PatientID="A", **study)
    two = write_dicom(tmp_path / "2.dcm", PatientID=" A ", PatientName="Other^Spelling", **study)
    third = write_dicom(tmp_path / "3.dcm", PatientID="A", IssuerOfPatientID="B")
    (first, _), (second, _), (foreign, _) = clean(one), clean(two), clean(third)
    assert first.PatientID == first.PatientName == second.PatientID
    assert first.PatientID.startswith("RW-")
    assert first.StudyInstanceUID == second.StudyInstanceUID != dcmread(one).StudyInstanceUID
    assert first.SOPInstanceUID != second.SOPInstanceUID
    assert first.file_meta.MediaStorageSOPInstanceUID == first.SOPInstanceUID
    assert foreign.PatientID != first.PatientID
    other, _ = clean(one, OTHER)
    assert other.PatientID != first.PatientID
    assert other.StudyInstanceUID != first.StudyInstanceUID
    assert clean(one)[1].data == clean(one)[1].data
    assert (first.PatientIdentityRemoved, first.LongitudinalTemporalInformationModified) == ("YES", "MODIFIED")
    assert [item.CodeValue for item in first.DeidentificationMethodCodeSequence] == ["113100", "113107"]
    assert first.PatientBirthDate == first.AccessionNumber == ""


def test_references_between_files_still_hold(tmp_path: Path) -> None:
    one = dcmread(write_dicom(tmp_path / "1.dcm"))
    item = Dataset()
    item.ReferencedSOPClassUID, item.ReferencedSOPInstanceUID = one.SOPClassUID, one.SOPInstanceUID
    two = write_dicom(tmp_path / "2.dcm", SourceImageSequence=[item], FrameOfReferenceUID=f"{_ROOT}.5")
    (first, _), (second, _) = clean(tmp_path / "1.dcm"), clean(two)
    (dataset_out,) = second.SourceImageSequence
    assert dataset_out.ReferencedSOPInstanceUID == first.SOPInstanceUID
    assert dataset_out.ReferencedSOPClassUID == first.SOPClassUID
    assert second.FrameOfReferenceUID == Key(b"k" * 32).uid(f"{_ROOT}.5")
    used = [str(e.value) for e in second.iterall() if e.VR == "UI"]
    assert all(UID(uid).name != uid or uid.startswith("2.25.") for uid in used)


def test_dates_of_a_patient_keep_their_order_and_distances_and_times_stay(tmp_path: Path) -> None:
    days = ["20191231", "20200229", "2020.03.01", "20240101"]
    moved = []
    for number, day in enumerate(days):
        tags = {"StudyTime": "101112.5", "AcquisitionDateTime": day.replace(".", "") + "235959.5+0100"}
        path = write_dicom(
            tmp_path / f"{number}.dcm", StudyDate=day, SeriesDate=day, ContributionDateTime="2020", **tags
        )
        dataset, _ = clean(path)
        assert (dataset.StudyTime, dataset.SeriesDate) == ("101112.5", dataset.StudyDate)
        assert dataset.AcquisitionDateTime == f"{dataset.StudyDate}235959.5+0100"
        assert "ContributionDateTime" not in dataset or not dataset.ContributionDateTime
        moved.append(_day(dataset.StudyDate))
    known = [_day(day.replace(".", "")) for day in days]
    assert [late - moved[0] for late in moved] == [late - known[0] for late in known]
    assert 366 <= (known[0] - moved[0]).days <= 3652
    other, _ = clean(write_dicom(tmp_path / "other.dcm", PatientID="another", StudyDate=days[0]))
    assert _day(other.StudyDate) != moved[0]


def _day(text: str) -> date:
    return date(int(text[:4]), int(text[4:6]), int(text[6:]))


def test_images_without_a_patient_id_are_grouped_by_study(tmp_path: Path) -> None:
    one = write_dicom(tmp_path / "1.dcm", PatientID="", StudyInstanceUID=f"{_ROOT}.1")
    two = write_dicom(tmp_path / "2.dcm", PatientID=None, StudyInstanceUID=f"{_ROOT}.1")
    three = write_dicom(tmp_path / "3.dcm", PatientID="", StudyInstanceUID=f"{_ROOT}.2")
    first, second, third = (clean(path)[0].PatientID for path in (one, two, three))
    assert first == second != third


@pytest.mark.parametrize(
    ("tags", "field"),
    [
        ({"BurnedInAnnotation": "YES"}, "BurnedInAnnotation"),
        ({"SOPClassUID": "1.2.840.10008.5.1.4.1.1.7"}, "SOPClassUID"),
        ({"SOPClassUID": "1.2.840.10008.5.1.4.1.1.7.4"}, "SOPClassUID"),
        ({"ConversionType": "DF"}, "ConversionType"),
        ({"Modality": "US"}, "Modality"),
    ],
)
def test_possible_burned_in_text_is_refused_unless_allowed(tmp_path: Path, tags: dict[str, Any], field: str) -> None:
    path = write_dicom(tmp_path / "a.dcm", **tags)
    with pytest.raises(InputError) as caught:
        deidentify_file(path, KEY)
    assert caught.value.field == field
    assert clean(path, burned_in=True)[0].PatientIdentityRemoved == "YES"
    if field != "BurnedInAnnotation":
        assert clean(write_dicom(path, **tags, BurnedInAnnotation="NO"))[0].PatientIdentityRemoved == "YES"


@pytest.mark.parametrize(
    ("tags", "field"),
    [
        ({"SOPClassUID": "1.2.3.4"}, "SOPClassUID"),
        ({"PixelData": None}, "PixelData"),
        ({"StudyInstanceUID": None}, "SOPInstanceUID"),
    ],
)
def test_unsafe_files_are_refused(tmp_path: Path, tags: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        deidentify_file(write_dicom(tmp_path / "a.dcm", **tags), KEY)
    assert caught.value.field == field


@pytest.mark.parametrize("signed", [False, True])
def test_overlays_in_the_bits_above_the_pixels_are_cleared(tmp_path: Path, signed: bool) -> None:
    path = write_dicom(tmp_path / "a.dcm", bits=12, signed=signed)
    dataset = dcmread(path)
    plain = dataset.pixel_array.copy()
    words = np.frombuffer(dataset.PixelData, "<u2").copy()
    words[::3] = (words[::3] & 0x0FFF) | 0x4000
    dataset.PixelData = words.tobytes()
    dataset.add_new(0x60000100, "US", 16)
    dataset.add_new(0x60000102, "US", 14)
    dataset_out, _ = clean(save(dataset, path))
    assert np.array_equal(np.frombuffer(dataset_out.PixelData, plain.dtype).reshape(plain.shape), plain)


def test_names_of_every_script_are_removed_in_every_encoding(tmp_path: Path) -> None:
    dataset = dcmread(write_dicom(tmp_path / "a.dcm", SpecificCharacterSet="ISO_IR 192"))
    dataset.PatientName, dataset.Manufacturer = "Yamada^Tarou=山田^太郎", "日本の会社"
    dataset.ManufacturerModelName = "山田様"
    dataset.file_meta.TransferSyntaxUID = ImplicitVRLittleEndian
    dataset_out, cleaned = clean(save(dataset, tmp_path / "a.dcm"))
    assert dataset_out.SpecificCharacterSet == "ISO_IR 192"
    assert (dataset_out.Manufacturer, dataset_out.ManufacturerModelName) == ("日本の会社", "REMOVED")
    assert "山田".encode() not in cleaned.data


def test_a_bad_file_does_not_affect_others_and_file_names_are_dropped(tmp_path: Path) -> None:
    source = tmp_path / f"in {CANARY}" / CANARY
    source.mkdir(parents=True)
    good = [write_dicom(source / f"{CANARY}{number}.dcm") for number in range(3)]
    shutil.copy(good[0], source / "copy.dcm")
    other = dcmread(good[1])
    other.SeriesDescription, other.Rows = "x", 48
    save(other, source / "same_instance.dcm")
    (source / "half.dcm").write_bytes(good[0].read_bytes()[:-500])
    (source / "notes.txt").write_text("not an image")
    write_dicom(source / "text.dcm", BurnedInAnnotation="YES")
    done = deidentify_folder(tmp_path / f"in {CANARY}", tmp_path / "out", KEY)
    assert (done.images, done.duplicates, len(done.refused)) == (3, 1, 4)
    record = json.loads((tmp_path / "out" / "deidentified.json").read_text())
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in source.iterdir()}
    reasons = {file["sha256"]: file["reason"] for file in record["refused_files"]}
    assert set(reasons) == {digests[name] for name in ("same_instance.dcm", "half.dcm", "notes.txt", "text.dcm")}
    assert reasons[digests["text.dcm"]].startswith("BurnedInAnnotation may bear text")
    assert sum(record["refused"].values()) == 4
    unchanged = sorted((tmp_path / "out").rglob("*.dcm"))
    assert len(unchanged) == 3
    assert not any(CANARY in path.relative_to(tmp_path).as_posix() for path in (tmp_path / "out").rglob("*"))
    assert not any(CANARY.encode() in path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file())
    with pytest.raises(InputError, match="exists already"):
        deidentify_folder(source, tmp_path / "out", KEY)
    assert deidentify_folder(good[0], tmp_path / "out", KEY, overwrite=True).images == 1
    assert len(list((tmp_path / "out").rglob("*.dcm"))) == 1
    with pytest.raises(InputError, match="no image can be de-identified"):
        deidentify_folder(source / "notes.txt", tmp_path / "none", KEY)
    assert not (tmp_path / "none").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_key_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "key"
    write_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_key(path).uid("1.2") == read_key(path).uid("1.2") != KEY.uid("1.2")
    with pytest.raises(InputError, match="no key is made"):
        write_key(path)
    path.chmod(0o640)
    with pytest.raises(InputError, match="others may read the key"):
        read_key(path)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(InputError, match="too short"):
        read_key(path)
    assert "kkkk" not in repr(KEY) + str(KEY)


def test_the_command_prints_counts_and_names_no_patient(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_dicom(tmp_path / "in" / "a.dcm")
    write_dicom(tmp_path / "in" / "b.dcm", BurnedInAnnotation="YES")
    arguments = ("data", "deidentify", tmp_path / "in", "--out", tmp_path / "out", "--key", tmp_path / "key")
    missing = radweave(*arguments)
    assert (missing.returncode, "--new-key" in missing.stderr) == (2, True)
    done = radweave(*arguments, "--new-key")
    assert (done.returncode, "1 images, 1 studies, 1 patients" in done.stdout) == (2, True), done.stderr
    assert "BurnedInAnnotation" in done.stderr
    assert CANARY not in done.stdout + done.stderr
    second_run = radweave(*arguments[:3], "--out", tmp_path / "all", *arguments[5:], "--allow-burned-in")
    assert second_run.returncode == 0, second_run.stderr


def test_a_validator_finds_no_new_error(tmp_path: Path) -> None:
    if shutil.which("dciodvfy") is None:
        pytest.skip("not installed: dciodvfy (make test-hospital installs it)")

    def errors(path: Path) -> set[str]:
        done = subprocess.run(["dciodvfy", "-new", str(path)], capture_output=True, text=True, timeout=60)
        return {line for line in (done.stdout + done.stderr).splitlines() if line.startswith(("Error", "Abort"))}

    path = write_dicom(tmp_path / "a.dcm")
    (tmp_path / "b.dcm").write_bytes(deidentify_file(path, KEY).data)
    assert errors(tmp_path / "b.dcm") <= errors(path)


def test_derived_values_reveal_nothing_of_each_other() -> None:
    """A name, a shift and a UID of one text are of three digests; else a name would be the beginning of a UID."""
    key = KEY
    for text in ("A", "1.2.3"):
        digests = {
            key.pseudonym(text).removeprefix("RW-").lower()[:12],
            f"{int(key.uid(text).removeprefix('2.25.')):032x}"[:12],
            hmac.new(bytes.fromhex(key.as_hex()), f"{len(text)}:{text}".encode(), hashlib.sha256).hexdigest()[:12],
        }
        assert len(digests) == 3
        name = int(key.pseudonym(text).removeprefix("RW-"), 16)
        assert key.days(text) != -(366 + name % 3287)
