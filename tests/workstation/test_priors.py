"""The study before one: a patient's own and earlier, never another patient's, never another user's."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from radweave.workstation import store
from radweave.workstation.database import meta
from radweave.workstation.database import studies as studies_table
from radweave.workstation.settings import Settings
from radweave.workstation.station import Station
from tests.image_files import write_dicom
from tests.workstation.fake_workers import IMAGE
from tests.workstation.stations import PASSWORD, running, upload, wait_for

ANN = {"PatientID": "HOSP-4711", "IssuerOfPatientID": "HOUSE", "PatientName": "Müller^Ann",
       "PatientBirthDate": "19010203", "PatientSex": "F"}  # fmt: skip
Client = TestClient


def file(folder: Path, day: str | None, **tags: Any) -> tuple[str, bytes]:
    """A radiograph of Ann of a day in March 2020, or of somebody else."""
    about = {**ANN, "StudyDate": day and f"202003{day}", **tags}
    path = write_dicom(folder / "x.dcm", **about)
    return f"{day}.dcm", path.read_bytes()


def sent(client: Client, *files: tuple[str, bytes], **more: Any) -> list[str]:
    """The studies of an upload, once they are drafted."""
    ids: list[str] = upload(client, *files, **more).json()["studies"]
    for study in ids:
        wait_for(client, study, "drafted")
    return ids


def prior(client: Client, study: str, **more: Any) -> Any:
    answer = client.get(f"/api/v1/studies/{study}/prior", **more)
    assert answer.status_code == 200, answer.text
    return answer.json()["prior"]


def prior_id(client: Client, study: str) -> str | None:
    result = prior(client, study)
    return None if result is None else str(result["id"])


@pytest.fixture
def other_user(client: Client) -> dict[str, str]:
    reader = client.post("/api/v1/users", json={"name": "other", "password": PASSWORD}).json()["id"]
    return {"Authorization": f"Bearer {client.post(f'/api/v1/users/{reader}/token').json()['token']}"}


@pytest.mark.parametrize("together", [True, False])
def test_the_prior_is_found_in_any_order_of_arrival(together: bool, client: Client, tmp_path: Path) -> None:
    late, early, middle = (file(tmp_path, day, PatientName=name) for day, name in
                           (("20", "Muller^Ann"), ("01", "MÜLLER^ANN"), ("10", "Müller^Ann^M.^Dr.")))  # fmt: skip
    if together:
        ids = dict(zip("lem", sent(client, late, early, middle), strict=True))
    else:
        ids = {name: sent(client, one)[0] for name, one in zip("lem", (late, early, middle), strict=True)}
    assert {name: prior_id(client, study) for name, study in ids.items()} == {
        "l": ids["m"], "m": ids["e"], "e": None,
    }  # fmt: skip
    result = prior(client, ids["l"])
    assert (result["days"], result["found_by"], result["is_signed"]) == (10, "headers", False)
    listed = client.get(f"/api/v1/studies/{ids['l']}/images").json()
    assert [(one["name"], one["file"]) for one in listed["prior"]] == [("prior-0", "10.dcm")]
    words = client.get(f"/api/v1/studies/{ids['l']}/images/prior-0/pixels")
    assert words.content == client.get(f"/api/v1/studies/{ids['m']}/images/0/pixels").content


NOT_HERS: dict[str, dict[str, Any]] = {
    "another id, the same name": {"PatientID": "HOSP-4712"},
    "the id of another issuer": {"IssuerOfPatientID": "elsewhere"},
    "ids that were swapped": {"PatientName": "Schmidt^Bea"},
    "too little that agrees": {"PatientName": "", "PatientBirthDate": ""},
    "another day of birth": {"PatientBirthDate": "19010204"},
    "another sex": {"PatientSex": "M"},
    "no date": {"StudyDate": None},
    "a date that there is not": {"StudyDate": "20200230"},
    "the same day": {"StudyDate": "20200320"},
    "the same day, no time": {"StudyDate": "20200320", "StudyTime": "080000"},
    "no id": {"PatientID": ""},
}


@pytest.mark.parametrize("kind", NOT_HERS)
def test_a_study_not_certainly_earlier_and_of_the_patient_is_no_prior(
    kind: str, client: Client, tmp_path: Path
) -> None:
    (other,) = sent(client, file(tmp_path, "01", **NOT_HERS[kind]))
    (study,) = sent(client, file(tmp_path, "20"))
    assert (prior_id(client, study), prior_id(client, other)) == (None, None)
    assert client.get(f"/api/v1/studies/{study}/images").json()["prior"] == []
    assert client.get(f"/api/v1/studies/{study}/images/prior-0/pixels").status_code == 404


@pytest.mark.parametrize("nobody", ["ANONYMOUS", "0000", "unknown", "X"])
def test_placeholder_patient_ids_relate_no_studies(nobody: str, client: Client, tmp_path: Path) -> None:
    same = {"PatientID": nobody, "PatientName": nobody}
    sent(client, file(tmp_path, "01", **same))
    (study,) = sent(client, file(tmp_path, "20", **same))
    assert prior_id(client, study) is None


def test_on_one_day_the_time_decides(client: Client, tmp_path: Path) -> None:
    (first,) = sent(client, file(tmp_path, "20", StudyTime="080000"))
    (second,) = sent(client, file(tmp_path, "20", StudyTime="0900", StudyID="2"))
    (third,) = sent(client, file(tmp_path, "20", StudyTime="091500.5"))
    assert [prior_id(client, study) for study in (first, second, third)] == [None, first, second]


def test_another_users_study_is_never_the_prior(client: Client, tmp_path: Path, other_user: dict[str, str]) -> None:
    (mine,) = sent(client, file(tmp_path, "01"))
    ids: list[str] = upload(client, file(tmp_path, "20"), headers=other_user).json()["studies"]
    wait_for(client, ids[0], "drafted")
    assert prior(client, ids[0], headers=other_user) is None
    # Nor by hand, and not by an admin, who sees both: the reader would see it then.
    for headers in (other_user, {}):
        chosen = client.put(f"/api/v1/studies/{ids[0]}/prior", json={"prior": mine}, headers=headers)
        assert (chosen.status_code, "no such study" in chosen.text) == (400, True)
        listed = client.get(f"/api/v1/studies/{ids[0]}/priors", headers=headers).json()["studies"]
        assert mine not in [one["id"] for one in listed]


def test_a_prior_whose_owner_changed_is_not_shown(started: tuple[Client, Station], tmp_path: Path) -> None:
    """What the database says is asked again for every answer."""
    client, station = started
    early, late = sent(client, file(tmp_path, "01"), file(tmp_path, "20"))
    other = client.post("/api/v1/users", json={"name": "other", "password": PASSWORD}).json()["id"]
    with station.database.writing() as connection:
        connection.execute(studies_table.update().where(studies_table.c.id == early).values(owner_id=other))
    assert prior_id(client, late) is None
    assert client.get(f"/api/v1/studies/{late}/images/prior-0/pixels").status_code == 404


def test_a_reader_chooses_the_prior_of_images_without_headers(client: Client) -> None:
    one, two, three = (sent(client, (name, IMAGE))[0] for name in ("1.png", "2.png", "3.png"))
    place = f"/api/v1/studies/{three}"
    offered = client.get(f"{place}/priors").json()["studies"]
    assert [row["name"] for row in offered] == ["2.png", "1.png"]
    assert [row["id"] for row in client.get(f"{place}/priors", params={"search": "1"}).json()["studies"]] == [one]
    chosen = client.put(f"{place}/prior", json={"prior": two}).json()["prior"]
    assert (chosen["id"], chosen["found_by"], chosen["days"], chosen["was_used"]) == (two, "hand", None, False)
    assert client.put(f"/api/v1/studies/{two}/prior", json={"prior": one}).status_code == 200
    for study, wrong in ((three, three), (one, three), (three, "f" * 32), (three, "x" * 40)):
        assert client.put(f"/api/v1/studies/{study}/prior", json={"prior": wrong}).status_code in (400, 422)
    assert client.put(f"{place}/prior", json={"prior": None}).json()["prior"] is None
    entries = client.get(f"{place}/log").json()["entries"]
    choices = [entry["details"] for entry in entries if entry["action"] == "prior chosen"]
    assert choices == [{"prior": two}, {"prior": None}]


@pytest.mark.parametrize("nobody", ["", "ANONYMOUS"])
def test_placeholder_ids_do_not_limit_the_choice_of_a_prior(nobody: str, client: Client, tmp_path: Path) -> None:
    one, other = (sent(client, file(tmp_path, day, PatientID=nobody))[0] for day in ("01", "20"))
    chosen = client.put(f"/api/v1/studies/{other}/prior", json={"prior": one})
    assert (chosen.status_code, chosen.json()["prior"]["id"]) == (200, one)


def test_a_chosen_prior_must_agree_with_the_headers(client: Client, tmp_path: Path) -> None:
    (bea,) = sent(client, file(tmp_path, "01", PatientName="Schmidt^Bea"))
    (eve,) = sent(client, file(tmp_path, "01", PatientID="HOSP-4712"))
    early, late = sent(client, file(tmp_path, "02"), file(tmp_path, "20"))
    for study, wrong, words in (
        (late, bea, "no earlier"),
        (late, eve, "another patient"),
        (early, late, "itself|no earlier"),
    ):
        answer = client.put(f"/api/v1/studies/{study}/prior", json={"prior": wrong})
        assert answer.status_code == 400
        assert any(word in answer.text for word in words.split("|"))
    # A reader who says that there is none is not overruled by what comes later.
    assert client.put(f"/api/v1/studies/{late}/prior", json={"prior": None}).status_code == 200
    sent(client, file(tmp_path, "10"))
    assert prior_id(client, late) is None


def test_a_signed_study_keeps_its_prior(client: Client, tmp_path: Path) -> None:
    early, late = sent(client, file(tmp_path, "01"), file(tmp_path, "20"))
    place = f"/api/v1/studies/{late}"
    client.post(f"{place}/looked", json={"version": 1, "sentences": [1]})
    assert client.post(f"{place}/sign", json={"version": 1}).status_code == 200
    sent(client, file(tmp_path, "10"))
    assert prior_id(client, late) == early
    assert client.put(f"{place}/prior", json={"prior": None}).status_code == 409


def test_a_draft_is_compared_with_a_signed_prior_report(started: tuple[Client, Station], tmp_path: Path) -> None:
    client, station = started
    (early,) = sent(client, file(tmp_path, "01"))
    client.post(f"/api/v1/studies/{early}/looked", json={"version": 1, "sentences": [1]})
    signed = client.post(f"/api/v1/studies/{early}/sign", json={"version": 1})
    assert signed.status_code == 200
    (late,) = sent(client, file(tmp_path, "20"))
    with station.database.reading() as connection:
        result = store.prior_of(connection, late)
    assert result is not None
    assert result.report == client.get(f"/api/v1/studies/{early}").json()["draft"]["text"]
    assert prior(client, late)["was_used"]


def test_changes_from_prior_are_read_from_both_texts(client: Client, tmp_path: Path) -> None:
    early, late = sent(client, file(tmp_path, "01"), file(tmp_path, "20"))
    before = {"op": "insert", "text": "There is a pleural effusion."}
    client.patch(f"/api/v1/studies/{early}/sentences", json={"version": 1, "edits": [before]})
    result = prior(client, late)
    assert result["report"].startswith("There is a pleural effusion.")
    assert {"name": "Pleural Effusion", "before": "affirmed", "now": "not mentioned",
            "change": "not mentioned any more"} in result["changes"]  # fmt: skip


def test_a_study_is_drafted_after_its_prior_and_with_it(settings: Settings, tmp_path: Path) -> None:
    """Both come in one archive, the later one first. Where the prior is refused, the one before that counts."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for day in ("20", "10", "01"):
            archive.writestr(*file(tmp_path, day))
    with running(settings) as (client, station):
        station.inference.stop()
        late, middle, early = upload(client, ("a.zip", buffer.getvalue())).json()["studies"]
        with station.database.writing() as connection:
            first = store.claim(connection, 8)
            assert [(job.id, job.prior) for job in first] == [(early, None)]
            assert store.claim(connection, 8) == []
            store.refuse(connection, middle, "damaged")
            draft = {"text": "A.", "evidence": {}, "findings": [], "model": {}, "warnings": [], "sentences": []}
            store.finish(connection, early, draft)
            (job,) = store.claim(connection, 8)
        assert job.id == late
        assert job.prior is not None
        # Nobody signed it: its images are a prior, its draft is no report.
        assert (job.prior.files, job.prior.report, job.prior.days) == (first[0].files, None, 19)
        assert prior_id(client, late) == early


def test_no_table_names_a_patient(started: tuple[Client, Station], tmp_path: Path) -> None:
    client, station = started
    sent(client, file(tmp_path, "01"), file(tmp_path, "20"))
    with station.database.reading() as connection:
        tables = "".join(str(connection.execute(sa.select(table)).all()) for table in meta.sorted_tables)
    for value in (*ANN.values(), "Müller", "muller", "202003"):
        if len(value) > 1:
            assert value not in tables, value
