"""What the work list shows of a study's headers, and what it is sorted and searched by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from radweave.workstation.settings import Settings
from tests.image_files import write_dicom
from tests.workstation.fake_workers import IMAGE
from tests.workstation.stations import running, upload

JANE = {
    "PatientName": "Doe^Jane^^Dr", "PatientID": "J-7", "PatientSex": "F", "PatientBirthDate": "19600512",
    "StudyDate": "20240511", "AccessionNumber": "A1", "Modality": "DX", "BodyPartExamined": "CHEST",
    "StudyDescription": "Chest PA",
}  # fmt: skip
ADAM = {
    "PatientName": "Adams^Adam", "PatientID": "A-1", "PatientSex": "M", "PatientAge": "007Y", "StudyDate": "20230101",
    "AccessionNumber": "B2", "Modality": "CR", "BodyPartExamined": "CHEST",
}  # fmt: skip


@pytest.fixture
def listed(settings: Settings, tmp_path: Path) -> Any:
    """Asks for the work list of two radiographs and an image without headers."""
    with running(settings) as (client, _):
        for name, fields in (("jane.dcm", JANE), ("adam.dcm", ADAM)):
            upload(client, (name, write_dicom(tmp_path / name, **fields).read_bytes()))
        upload(client, ("plain.png", IMAGE))

        def ask(**query: Any) -> list[dict[str, Any]]:
            answer = client.get("/api/v1/studies", params=query)
            assert answer.status_code == 200, answer.text
            found: list[dict[str, Any]] = answer.json()["studies"]
            return found

        yield ask


def test_headers_are_shown(listed: Any) -> None:
    jane = next(one for one in listed() if one["name"] == "jane.dcm")["headers"]
    assert jane == {
        "patient_name": "Doe, Jane Dr", "patient_id": "J-7", "patient_sex": "F", "patient_age": "063Y",
        "accession_number": "A1", "modality": "DX", "body_part_examined": "CHEST", "study_date": "20240511",
        "study_description": "Chest PA",
    }  # fmt: skip
    plain = next(one for one in listed() if one["name"] == "plain.png")["headers"]
    assert set(plain.values()) == {""}


def test_it_is_sorted_by_a_column_and_searched_by_patient_and_accession(listed: Any) -> None:
    def names(**query: Any) -> list[str]:
        return [one["name"] for one in listed(**query)]

    assert names(sort="patient_name", descending=False) == ["plain.png", "adam.dcm", "jane.dcm"]
    assert names(sort="study_date", descending=True) == ["jane.dcm", "adam.dcm", "plain.png"]
    assert names(sort="name", descending=False) == ["adam.dcm", "jane.dcm", "plain.png"]
    assert names(search="doe") == ["jane.dcm"]
    assert names(search="a-1") == ["adam.dcm"]
    assert names(search="B2") == ["adam.dcm"]


def test_an_unknown_column_is_refused(settings: Settings) -> None:
    with running(settings) as (client, _):
        assert client.get("/api/v1/studies", params={"sort": "password"}).status_code == 422
