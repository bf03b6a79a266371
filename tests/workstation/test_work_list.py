"""What the work list shows of a study's headers, and what it is sorted and searched by."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from radweave.workstation.settings import Settings
from radweave.workstation.work_list import IDENTIFYING, _hidden_age
from tests.image_files import write_dicom
from tests.workstation.fake_workers import IMAGE
from tests.workstation.stations import running, upload, wait_for

JANE = {
    "PatientName": "Doe^Jane^^Dr", "PatientID": "J-7", "PatientSex": "F", "PatientBirthDate": "19600512",
    "StudyDate": "20240511", "AccessionNumber": "A1", "Modality": "DX", "BodyPartExamined": "CHEST",
    "StudyDescription": "Chest PA", "RequestedProcedurePriority": "HIGH",
}  # fmt: skip
ADAM = {
    "PatientName": "Adams^Adam", "PatientID": "A-1", "PatientSex": "M", "PatientAge": "007Y", "StudyDate": "20230101",
    "AccessionNumber": "B2", "Modality": "CR", "BodyPartExamined": "THORAX", "RequestedProcedurePriority": "MEDIUM",
}  # fmt: skip


@pytest.fixture
def opened(settings: Settings, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TestClient]:
    """A client of a workstation with two radiographs and an image without headers, all drafted."""
    hides = getattr(request, "param", False)
    with running(settings.model_copy(update={"hide_patients": hides})) as (client, _):
        for name, fields in (("jane.dcm", JANE), ("adam.dcm", ADAM)):
            upload(client, (name, write_dicom(tmp_path / name, **fields).read_bytes()))
        upload(client, ("plain.png", IMAGE))
        for one in client.get("/api/v1/studies").json()["studies"]:
            wait_for(client, one["id"], "drafted")
        yield client


@pytest.fixture
def listed(opened: TestClient) -> Any:
    """Asks for the work list."""

    def ask(**query: Any) -> list[dict[str, Any]]:
        answer = opened.get("/api/v1/studies", params=query)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["studies"]
        return found

    return ask


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


def names(rows: list[dict[str, Any]]) -> list[str]:
    return [one["name"] for one in rows]


def test_priorities_are_those_of_the_headers_of_the_upload_or_of_a_reader(opened: TestClient, listed: Any) -> None:
    assert {one["name"]: one["priority"] for one in listed()} == {
        "jane.dcm": "high", "adam.dcm": "routine", "plain.png": "routine",
    }  # fmt: skip
    parts = {"files": ("now.png", IMAGE), "priority": (None, "stat")}
    (now,) = opened.post("/api/v1/studies", files=parts).json()["studies"]
    wait_for(opened, now, "drafted")
    assert names(listed(sort="priority", descending=True)) == ["now.png", "jane.dcm", "adam.dcm", "plain.png"]
    refused = opened.post("/api/v1/studies", files={**parts, "priority": (None, "soon")})
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, "priority")
    assert opened.put(f"/api/v1/studies/{now}/priority", json={"priority": "low"}).json()["priority"] == "low"
    assert names(listed(sort="priority", descending=True))[-1] == "now.png"
    assert names(listed(priority="low")) == ["now.png"]
    entry = opened.get(f"/api/v1/studies/{now}/log").json()["entries"][-1]
    assert (entry["action"], entry["details"]) == ("priority set", {"priority": "low"})


def test_it_is_filtered_by_headers_and_by_who_has_a_study(opened: TestClient, listed: Any) -> None:
    assert names(listed(modality="dx")) == ["jane.dcm"]
    assert names(listed(body_part="THORAX")) == ["adam.dcm"]
    assert names(listed(since="20230101", until="20231231")) == ["adam.dcm"]
    assert names(listed(until="20241231")) == ["adam.dcm", "jane.dcm"]
    assert names(listed(since="20240101")) == ["jane.dcm"]
    assert names(listed(holder="own")) == []
    jane = listed(search="doe")[0]["id"]
    opened.post(f"/api/v1/studies/{jane}/lock", json={})
    assert names(listed(holder="own")) == ["jane.dcm"]
    assert "jane.dcm" not in names(listed(holder="nobody"))
    assert names(listed(holder="others")) == []
    assert names(listed(sort="holder", descending=True))[0] == "jane.dcm"


def test_the_next_study_is_the_most_urgent_then_the_oldest_and_not_one_in_another_hand(opened: TestClient) -> None:
    def following(**query: Any) -> list[str]:
        return names(opened.get("/api/v1/studies/next", params=query).json()["studies"])

    assert following(limit=5) == ["jane.dcm", "adam.dcm", "plain.png"], "urgency first, then the date of the study"
    ids = {one["name"]: one["id"] for one in opened.get("/api/v1/studies").json()["studies"]}
    assert following(skip=[ids["jane.dcm"], ids["adam.dcm"]]) == ["plain.png"]
    other = opened.post("/api/v1/users", json={"name": "ben", "role": "admin"}).json()["id"]
    token = opened.post(f"/api/v1/users/{other}/token").json()["token"]
    opened.post(f"/api/v1/studies/{ids['jane.dcm']}/lock", json={}, headers={"Authorization": f"Bearer {token}"})
    opened.post(f"/api/v1/studies/{ids['adam.dcm']}/lock", json={})
    assert following() == ["adam.dcm"], "one's own is not left out"
    opened.post(f"/api/v1/studies/{ids['adam.dcm']}/reject", json={"version": 1, "reason": "No chest."})
    assert following(limit=5) == ["plain.png"]


@pytest.mark.parametrize("opened", [True], indirect=True)
def test_where_patients_are_hidden_no_route_names_one(opened: TestClient, listed: Any) -> None:
    rows = listed(sort="patient_age", descending=True)
    jane = rows[0]
    assert (jane["headers"]["patient_age"], jane["headers"]["accession_number"]) == ("063Y", "")
    assert jane["headers"]["patient_id"].startswith("Patient ")
    assert jane["name"] == f"Study {jane['id'][:8]}"
    assert names(listed(search=jane["headers"]["patient_id"])) == [jane["name"]]
    assert listed(search="doe") == []
    texts = [json.dumps(rows)]
    for end in ("", "/evidence", "/images", "/prior", "/priors", "/log", "/versions/1"):
        answer = opened.get(f"/api/v1/studies/{jane['id']}{end}")
        assert answer.status_code == 200, end
        texts.append(answer.text)
    for secret in ("Doe", "Jane", "jane.dcm", "J-7", "20240511", "19600512", "Chest PA", "adam.dcm", "Adams"):
        assert not any(secret in text for text in texts), secret
    assert opened.get(f"/api/v1/studies/{jane['id']}/report").status_code == 403


def test_signs_that_reverse_a_line_are_not_shown(opened: TestClient, listed: Any, tmp_path: Path) -> None:
    fields = {"SpecificCharacterSet": "ISO_IR 192", "PatientName": "Do\u202ee^Jo\u2066an", "PatientID": "P-\u202e12"}
    path = write_dicom(tmp_path / "turned.dcm", **fields)
    (study,) = upload(opened, (path.name, path.read_bytes())).json()["studies"]
    headers = wait_for(opened, study, "drafted")["headers"]
    assert (headers["patient_name"], headers["patient_id"]) == ("Doe, Joan", "P-12")


@pytest.mark.parametrize("opened", [False, True], indirect=True)
def test_images_come_with_the_headers_of_the_study_and_of_its_prior(
    opened: TestClient, listed: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    jane = listed(sort="patient_age", descending=True)[0]
    path = write_dicom(tmp_path / "before.dcm", **JANE | {"StudyDate": "20230511", "StudyInstanceUID": "1.2.9"})
    (before,) = upload(opened, (path.name, path.read_bytes())).json()["studies"]
    wait_for(opened, before, "drafted")
    shown = opened.get(f"/api/v1/studies/{jane['id']}/images").json()
    assert shown["headers"] == jane["headers"]
    assert [one["name"] for one in shown["prior"]] == ["prior-0"]
    prior = shown["prior_headers"]
    if request.node.callspec.params["opened"]:
        assert {prior[name] for name in IDENTIFYING} == {""}
    else:
        assert (prior["patient_name"], prior["study_date"]) == ("Doe, Jane Dr", "20230511")


@pytest.mark.parametrize("opened", [True], indirect=True)
def test_a_hidden_name_is_not_in_the_reason_of_a_refusal(opened: TestClient, tmp_path: Path) -> None:
    path = write_dicom(tmp_path / "x.dcm", PatientID="1")
    (study,) = upload(opened, ("doe-jane.dcm", path.read_bytes()[:400])).json()["studies"]
    row = wait_for(opened, study, "refused")
    assert (row["files"], "doe-jane" in json.dumps(row)) == (["image 1"], False)


def test_ages_from_90_are_shown_as_90_where_patients_are_hidden() -> None:
    assert [_hidden_age(age) for age in ("103Y", "089Y", "090Y", "011M", "")] == ["090Y", "089Y", "090Y", "011M", ""]


def test_an_unknown_column_is_refused(settings: Settings) -> None:
    with running(settings) as (client, _):
        assert client.get("/api/v1/studies", params={"sort": "password"}).status_code == 422
