"""The part of the body by a header: what contradicts a chest, what is one among others, and what is free text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydicom.dataset import Dataset

from image_files import CANARY, chest, dataset, save, thorax_hu, write_series
from radweave.data.ct import NO_SCANS
from radweave.inference.pictures import MixtureError, NoChestError, read_pictures, refuse_doubtful, refuse_mixture
from radweave.io.images import read_radiograph
from radweave.io.volumes import read_volume

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
def test_a_body_part_that_contradicts_is_refused(part: str, tmp_path: Path) -> None:
    assert "not a chest" in (refused(tmp_path, BodyPartExamined=part) or "")


@pytest.mark.parametrize("part", [*CHESTS, *PARTLY, "", "PORTABLE"])
def test_a_chest_among_others_and_an_unknown_term_are_not_refused(part: str, tmp_path: Path) -> None:
    assert refused(tmp_path, BodyPartExamined=part) is None
    said = " ".join(warnings_of(tmp_path, BodyPartExamined=part))
    assert ("in part" in said) == (part in PARTLY)
    assert ("not stated to be a chest" in said) == (part == "PORTABLE")


@pytest.mark.parametrize(
    "text",
    ["KNEE 2 VIEWS", "Knie links", "Röntgen Schädel", "GENOU DROIT", "Rodilla derecha", "ginocchio", "Hüfte bds.",
     "XR HAND_3V", "左膝正侧位", "ABDOMEN SUPINE", "MAMMOGRAPHY", "Épaule face"],
)  # fmt: skip
def test_descriptions_name_another_part_where_no_tag_does(text: str, tmp_path: Path) -> None:
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
def test_descriptions_of_a_chest_and_of_no_part_pass(text: str, tmp_path: Path) -> None:
    for field in ("StudyDescription", "SeriesDescription", "ProtocolName"):
        tags = {field: text, "SpecificCharacterSet": "ISO_IR 192"}
        assert refused(tmp_path, BodyPartExamined=None, **tags) is None, field


def test_fields_about_the_image_must_agree_and_the_study_s_do_not_count_against_them(tmp_path: Path) -> None:
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


def test_an_unknown_code_is_read_by_its_meaning_and_never_shown(tmp_path: Path) -> None:
    for meaning, is_refused in (("Left knee", True), ("Thorax", False), (CANARY, False)):
        tags = {"BodyPartExamined": None, "AnatomicRegionSequence": region("99-1", meaning)}
        assert (refused(tmp_path, **tags) is not None) == is_refused, meaning
        assert CANARY not in " ".join(warnings_of(tmp_path, **tags))


def test_free_text_never_enters_a_message(tmp_path: Path) -> None:
    said = refused(tmp_path, BodyPartExamined=f"KNEE {CANARY}"[:16], SeriesDescription=f"{CANARY} knee")
    assert said is not None
    assert "ZZTEST" not in said
    assert "KNEE" not in said, "a part in a site's own words is not repeated"


def test_a_scan_of_another_part_is_refused_too(tmp_path: Path) -> None:
    for part, texts in (("CHEST", 0), ("KNEE", 1)):
        folder = tmp_path / part
        write_series(folder, thorax_hu(), BodyPartExamined=part)
        found = [text for text in read_volume(folder).warnings if text.startswith("not a chest: the body part")]
        assert len(found) == texts


def test_a_mixture_stays_a_mixture_whatever_is_forced(tmp_path: Path) -> None:
    pixels = (chest() * 4095).astype(int)
    files = [save(dataset(pixels, bits=12, PatientID=name), tmp_path / f"{name}.dcm") for name in ("A", "B")]
    with pytest.raises(MixtureError):
        refuse_mixture(read_pictures(files, NO_SCANS), files)
