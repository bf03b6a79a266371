"""Identities of images: read as they are, or refused by the name of the field."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydicom import dcmread
from pydicom.dataelem import RawDataElement
from pydicom.tag import Tag

from radweave.core.errors import InputError
from radweave.workstation.identity import read_identities
from radweave.workstation.identity_parse import parse_identity
from tests.image_files import CANARY, save, write_series
from tests.workstation.reports import dicom_image

NAMES = {
    "ISO_IR 100": "Müller^Jörg",
    "ISO_IR 144": "Люкceмбypг^Анна",
    "ISO_IR 126": "Διονυσιος^Μ",
    "ISO_IR 192": "Yamada^Tarou=山田^太郎=やまだ^たろう",
    "GB18030": "Wang^XiaoDong=王^小东",
    "\\ISO 2022 IR 87": "Yamada^Tarou=山田^太郎",
    "\\ISO 2022 IR 149": "Hong^Gildong=洪^吉洞=홍^길동",
}


def read(path: Path) -> tuple[dict[str, object], list[str]]:
    """The answer of the parser, in this process."""
    identities, _ = parse_identity({"path": str(path)})
    return identities, identities.pop("warnings")


def raw(path: Path, keyword_tag: int, vr: str, value: bytes) -> Path:
    """A file with a value that no writer would let through."""
    dataset = dcmread(path)
    tag = Tag(keyword_tag)
    dataset._dict[tag] = RawDataElement(tag, vr, len(value), value, 0, False, True)
    return save(dataset, path)


@pytest.mark.parametrize(("charset", "name"), NAMES.items())
def test_names_of_every_script_are_read(tmp_path: Path, charset: str, name: str) -> None:
    path = dicom_image(tmp_path / "a.dcm", SpecificCharacterSet=charset.split("\\"), PatientName=name)
    identities, warnings = read(path)
    assert identities["PatientName"] == name
    assert warnings == []


def test_identities_are_read_from_images(tmp_path: Path) -> None:
    path = dicom_image(tmp_path / "a.dcm", PatientSex="F", StudyDate="1999.12.31", StudyTime="10:11:12.5")
    (identities,), warnings = read_identities([path])
    assert (identities.patient_name, identities.patient_id) == (f"{CANARY}^Ann", CANARY)
    assert (identities.study_date, identities.study_time, identities.patient_birth_date) == (
        "19991231",
        "101112.5",
        "19010203",
    )
    assert (identities.modality, identities.rows, identities.columns) == ("CR", 96, 80)
    assert warnings == ()
    assert CANARY not in repr(identities)
    assert CANARY not in str(identities)


@pytest.mark.parametrize(
    ("tag", "vr", "value", "field", "word"),
    [
        (0x00100020, "LO", CANARY.encode() * 6, "PatientID", "longer than DICOM allows"),
        (0x00100010, "PN", CANARY.encode() * 6 + b"^A", "PatientName", "longer than DICOM allows"),
        (0x00100010, "PN", b"A=B=C=" + CANARY.encode(), "PatientName", "three groups"),
        (0x00100020, "LO", CANARY.encode() + b"\\B", "PatientID", "several values"),
        (0x00100020, "LO", CANARY.encode() + b"\x07", "PatientID", "control characters"),
        (0x0020000D, "UI", CANARY.encode(), "StudyInstanceUID", "not a value of its kind"),
        (0x0020000D, "UI", b"1.02.3", "StudyInstanceUID", "not a value of its kind"),
        (0x00080050, "SH", CANARY.encode() * 2, "AccessionNumber", "longer than DICOM allows"),
    ],
)
def test_invalid_identifying_values_are_refused(
    tmp_path: Path, tag: int, vr: str, value: bytes, field: str, word: str
) -> None:
    path = raw(dicom_image(tmp_path / "a.dcm"), tag, vr, value)
    with pytest.raises(InputError, match=word) as caught:
        read(path)
    assert caught.value.field == field
    assert CANARY not in str(caught.value)


def test_bytes_outside_the_character_set_are_refused(tmp_path: Path) -> None:
    path = dicom_image(tmp_path / "a.dcm", SpecificCharacterSet="ISO_IR 192")
    with pytest.raises(InputError, match="character set that the file states"):
        read(raw(path, 0x00100010, "PN", CANARY.encode() + b"\xff\xfe"))


def test_an_unknown_character_set_is_refused(tmp_path: Path) -> None:
    path = raw(dicom_image(tmp_path / "a.dcm"), 0x00080005, "CS", b"ISO_IR 999")
    with pytest.raises(InputError, match="none that DICOM defines") as caught:
        read(path)
    assert caught.value.field == "SpecificCharacterSet"


def test_names_beyond_ascii_without_a_character_set_come_with_a_warning(tmp_path: Path) -> None:
    identities, warnings = read(raw(dicom_image(tmp_path / "a.dcm"), 0x00100010, "PN", b"M\xfcller^J"))
    assert identities["PatientName"] == "Müller^J"
    assert warnings == ["the file states no character set for its names; they are taken as Latin-1"]


@pytest.mark.parametrize(
    ("tag", "vr", "value", "field"),
    [
        (0x00100030, "DA", b"1999-99-99", "PatientBirthDate"),
        (0x00100030, "DA", b"20230229", "PatientBirthDate"),
        (0x00080020, "DA", b"00000101", "StudyDate"),
        (0x00100040, "CS", b"FEMALE", "PatientSex"),
        (0x00101010, "AS", b"forty", "PatientAge"),
        (0x00081030, "LO", b"a" * 80, "StudyDescription"),
        (0x00080030, "TM", b"25", "StudyTime"),
    ],
)
def test_invalid_describing_values_are_left_out_and_named(
    tmp_path: Path, tag: int, vr: str, value: bytes, field: str
) -> None:
    identities, warnings = read(raw(dicom_image(tmp_path / "a.dcm"), tag, vr, value))
    assert identities[field] == ""
    assert len(warnings) == 1
    assert warnings[0].startswith(f"{field} ")
    assert value.decode() not in warnings[0]


def test_images_of_two_patients_are_refused(tmp_path: Path) -> None:
    study = "1.2.3"
    files = [
        dicom_image(tmp_path / f"{number}.dcm", StudyInstanceUID=study, PatientID=f"{CANARY}{number}")
        for number in (1, 2)
    ]
    with pytest.raises(InputError, match="different patients or studies") as caught:
        read_identities(files)
    assert caught.value.field == "PatientID"
    assert CANARY not in str(caught.value)


def test_a_series_has_all_its_slices_and_other_files_no_identity(tmp_path: Path) -> None:
    write_series(tmp_path / "scan")
    (tmp_path / "x.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    identities, _ = read_identities([tmp_path / "scan"])
    assert len(identities) == 24
    assert len({one.sop_instance_uid for one in identities}) == 24
    assert len({one.series_instance_uid for one in identities}) == 1
    assert read_identities([tmp_path / "x.png"]) == ((), ())
