"""Identifiers of the header are detected in other representations, spellings, languages and encodings."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydicom import config, dcmread
from pydicom.dataelem import RawDataElement
from pydicom.dataset import Dataset
from pydicom.tag import Tag

from radweave.core.errors import InputError
from radweave.data.deidentify.folder import deidentify_file
from radweave.data.deidentify.key import Key
from radweave.data.deidentify.traces import Traces
from tests.image_files import chest, dataset, save

KEY = Key(b"k" * 32)
MANUFACTURER, MODEL, CODE_MEANING = 0x00080070, 0x00081090, 0x00080104
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(autouse=True)
def _any_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config.settings, "writing_validation_mode", config.IGNORE)
    monkeypatch.setattr(config.settings, "reading_validation_mode", config.IGNORE)


def _raw(ds: Dataset, tag: int, vr: str, text: str | bytes) -> None:
    data = text.encode() if isinstance(text, str) else text
    data += b" " * (len(data) % 2)
    ds[tag] = RawDataElement(Tag(tag), vr, len(data), data, 0, False, True)


def _image(**tags: Any) -> Dataset:
    header = {"PatientName": "Zquillby^Jonx", "PatientID": "12-3456-78", "PatientBirthDate": "19600412"} | tags
    return dataset(np.rint(chest(40, 32) * 255).astype(np.int64), bits=8, SpecificCharacterSet="ISO_IR 192", **header)


def _cleaned(ds: Dataset, folder: Path) -> Dataset:
    return dcmread(io.BytesIO(deidentify_file(save(ds, folder / "0.dcm"), KEY).data))


@pytest.mark.parametrize("text", ["Frau Müller", "die Müllers", "Mu\u0308ller"])
def test_a_name_without_diacritics_is_detected_in_text_with_them(text: str) -> None:
    assert Traces(["MUELLER^ANNA"], [], [], []).in_text(text)
    assert not Traces(["SCHMIDT^ANNA"], [], [], []).in_text(text)


@pytest.mark.parametrize("vr", ["LO", "SH", "ST", "UT", "UN", "AE"])
def test_names_and_ids_are_detected_in_other_representations(tmp_path: Path, vr: str) -> None:
    ds = _image()
    _raw(ds, 0x00100010, vr, "Zquillby^Jonx")
    _raw(ds, 0x00100020, vr, "A55-91-2")
    _raw(ds, MANUFACTURER, "LO", "for Zquillby")
    _raw(ds, MODEL, "LO", "X A55912")
    cleaned_file = _cleaned(ds, tmp_path)
    assert (cleaned_file.Manufacturer, cleaned_file.ManufacturerModelName) == ("REMOVED", "REMOVED")


def _private_name(ds: Dataset) -> None:
    ds.private_block(0x0029, "ACME", create=True).add_new(1, "PN", "Wrobelski^Xu")


def _private_sequence(ds: Dataset) -> None:
    item = Dataset()
    item.PatientName = "Wrobelski^Xu"
    ds.private_block(0x0029, "ACME", create=True).add_new(2, "SQ", [item])


def _operator(ds: Dataset) -> None:
    code, item = Dataset(), Dataset()
    code.CodeValue, code.CodingSchemeDesignator, code.CodeMeaning = "1", "99X", "Wrobelski, Xu"
    item.PersonIdentificationCodeSequence = [code]
    ds.OperatorIdentificationSequence = [item]


def _mail(ds: Dataset) -> None:
    _raw(ds, 0x00102155, "LT", "mailto:wrobelski.x@posteo.example")


@pytest.mark.parametrize("tell", [_private_name, _private_sequence, _operator, _mail])
def test_names_from_private_values_codes_and_addresses_are_detected(
    tmp_path: Path, tell: Callable[[Dataset], None]
) -> None:
    ds = _image()
    tell(ds)
    _raw(ds, MANUFACTURER, "LO", "for Wrobelski")
    assert _cleaned(ds, tmp_path).Manufacturer == "REMOVED"


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("Featherstonehaughs-Cholmondeley^Aurelia", "FEATHERSTONEHAUG"),
        ("Featherstonehaughs-Cholmondeley^Aurelia", "by Cholmond"),
        ("Grünwaldt^Zoë", "GR?NWALDT"), ("Grünwaldt^Zoë", "Gr_nwaldt"), ("Grünwaldt^Zoë", "gr%C3%BCnwaldt"),
        ("Grünwaldt^Zoë", "Gr&#252;nwaldt"), ("Grünwaldt^Zoë", "Gr&uuml;nwaldt"), ("Grünwaldt^Zoë", "GrÃ¼nwaldt"),
        ("Grünwaldt^Zoë", "Gr=FCnwaldt"),
    ],
)  # fmt: skip
def test_truncated_and_lossy_names_are_detected(tmp_path: Path, name: str, written: str) -> None:
    ds = _image(PatientName=name)
    _raw(ds, MANUFACTURER, "LO", written)
    assert _cleaned(ds, tmp_path).Manufacturer == "REMOVED"


@pytest.mark.parametrize("number", ["123/456/78", "No 123.456.78", "X12/34/56/78"])
def test_ids_of_ascending_digits_are_detected_in_texts(tmp_path: Path, number: str) -> None:
    ds = _image()
    _raw(ds, MANUFACTURER, "LO", number)
    assert _cleaned(ds, tmp_path).Manufacturer == "REMOVED"


def test_an_id_without_its_leading_zeros_is_known(tmp_path: Path) -> None:
    ds = _image(PatientID="00004711")
    _raw(ds, MANUFACTURER, "LO", "No 4711")
    assert _cleaned(ds, tmp_path).Manufacturer == "REMOVED"


@pytest.mark.parametrize(
    "written",
    ["1960年4月12日", "12 avr. 60", "12.IV.60", "60 Apr 12", "(12) of April, 60", "xApril 12, 1960"],
)
def test_dates_in_other_languages_are_detected(tmp_path: Path, written: str) -> None:
    ds = _image()
    _raw(ds, MANUFACTURER, "LO", written)
    assert _cleaned(ds, tmp_path).Manufacturer == "REMOVED"


@pytest.mark.parametrize(
    ("tag", "vr", "value"),
    [
        (0x00189073, "FD", 12345678.0), (0x00189073, "FD", 19600412.0), (0x00186016, "UL", 12345678),
        (0x00186018, "UL", 19600412), (0x00186020, "SL", 19600412), (0x00189461, "FL", [12345678.0, 1.0]),
        (0x00180050, "DS", "1.2345678E7"), (0x00181111, "DS", "1960.0412"), (0x00181110, "DS", "12345.678"),
    ],
)  # fmt: skip
def test_numbers_equal_to_an_id_or_a_date_are_removed(tmp_path: Path, tag: int, vr: str, value: Any) -> None:
    ds = _image()
    if vr == "DS":
        _raw(ds, tag, vr, value)
    else:
        ds.add_new(tag, vr, value)
    assert tag not in _cleaned(ds, tmp_path)


@pytest.mark.parametrize(("patient", "value"), [("00004711", "4711"), ("MRN0098231", "9.8231E4"), ("P-4711", "4711.0")])
def test_numbers_equal_to_a_short_id_are_removed(tmp_path: Path, patient: str, value: str) -> None:
    ds = _image(PatientID=patient)
    _raw(ds, 0x00181110, "DS", value)
    assert 0x00181110 not in _cleaned(ds, tmp_path)


def test_other_numbers_stay(tmp_path: Path) -> None:
    ds = _image()
    ds.add_new(0x00189073, "FD", 12.345679)
    ds.add_new(0x00186016, "UL", 1234)
    _raw(ds, 0x00181110, "DS", "1800.25")
    cleaned_file = _cleaned(ds, tmp_path)
    assert (cleaned_file[0x00189073].value, cleaned_file[0x00186016].value, cleaned_file[0x00181110].value) == (
        12.345679,
        1234,
        1800.25,
    )


@pytest.mark.parametrize("written", [b"12. April 1960  ", b"12th of april 60", b"XU LI  ", b"Li^Xu   "])
def test_a_short_name_or_a_date_in_a_table_is_refused(tmp_path: Path, written: bytes) -> None:
    ds, item = _image(PatientName="Xu^Li"), Dataset()
    item.LUTDescriptor, item.ModalityLUTType = [32, 0, 16], "US"
    item.add_new(0x00283006, "OW", (np.arange(32, dtype="<u2") * 1000).tobytes()[: 64 - len(written)] + written)
    ds.ModalityLUTSequence = [item]
    with pytest.raises(InputError, match="bears a name"):
        deidentify_file(save(ds, tmp_path / "0.dcm"), KEY)


@pytest.mark.parametrize(("name", "text"), [("Wang^Bo", b"WANG BO"), ("Wang^Bo", b"bo^wang"), ("X^Y", b"7734 2210")])
def test_a_short_name_and_an_id_with_a_space_in_the_pixels_are_refused(tmp_path: Path, name: str, text: bytes) -> None:
    ds = _image(PatientName=name, PatientID="7734 2210")
    ds.PixelData = ds.PixelData[:100] + text + ds.PixelData[100 + len(text) :]
    with pytest.raises(InputError, match="in its bytes"):
        deidentify_file(save(ds, tmp_path / "0.dcm"), KEY)


def test_a_short_name_as_the_bytes_of_tags_is_refused(tmp_path: Path) -> None:
    ds = _image(PatientName="Xu^Li")
    _raw(ds, 0x00209165, "AT", b" Xu Li  ")
    with pytest.raises(InputError, match="bears a name"):
        deidentify_file(save(ds, tmp_path / "0.dcm"), KEY)


def test_an_item_with_a_character_set_of_its_own_keeps_no_text_beyond_ascii(tmp_path: Path) -> None:
    ds, item = _image(PatientName="Grünwaldt^Zoë"), Dataset()
    item.SpecificCharacterSet = "ISO_IR 144"
    item.CodeValue, item.CodingSchemeDesignator = "1", "99X"
    _raw(item, CODE_MEANING, "LO", "Müllertz".encode("latin-1"))
    ds.DerivationCodeSequence = [item]
    assert _cleaned(ds, tmp_path).DerivationCodeSequence[0].CodeMeaning == "REMOVED"


@pytest.mark.parametrize("text", ["Siemens", "VB20A 7.1", "Fluorospot Compact FD", "12 bit", "DX-D 400", "2 mm Al"])
def test_device_names_stay(tmp_path: Path, text: str) -> None:
    ds = _image(PatientName="Grünwaldt^Zoë")
    _raw(ds, MANUFACTURER, "LO", text)
    assert _cleaned(ds, tmp_path).Manufacturer == text
