"""Asking archives: new studies are drafted once, with the patient's own prior or without any, whatever ends between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydicom import dcmread

from radweave.workstation.settings import Settings
from tests.image_files import CANARY, write_dicom
from tests.workstation.fake_workers import comparing_worker
from tests.workstation.hospitals import figure, image, plan_file, push, studies
from tests.workstation.load import free_port, until
from tests.workstation.query_archive import OTHER_PATIENTS, TODAY, QueryArchive, days_ago, dicom, flat, text_of, web
from tests.workstation.stations import running, wait_for

pytestmark = pytest.mark.usefixtures("short_pauses")


@pytest.fixture(autouse=True)
def _short_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radweave.workstation.hospital.FIRST_RETRY_S", 0.1)


@pytest.fixture
def archive() -> Iterator[QueryArchive]:
    with web(QueryArchive()) as started:
        yield started


def polling(settings: Settings, folder: Path, query: dict[str, Any], **plan: Any) -> Settings:
    """Settings with a plan that asks one archive."""
    poll = {"every_s": 0.1, "quiet_s": 0, "last_h": 48}
    made = {"query": [{"name": "archive", "poll": poll, **query}], **plan}
    return settings.model_copy(update={"hospital": plan_file(folder / "plan.yaml", **made)})


def test_new_studies_are_fetched_and_drafted_once_after_a_restart_too(
    settings: Settings, tmp_path: Path, archive: QueryArchive, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = polling(settings, tmp_path, {"web": {"url": archive.url}})
    archive.files += [image(tmp_path / f"{n}.dcm", **TODAY) for n in range(2)]
    archive.files.append(image(tmp_path / "old.dcm", **days_ago(9)))
    archive.files.append(image(tmp_path / "hand.dcm", BodyPartExamined="HAND", **TODAY))
    archive.fails.add("SERIES")
    with running(settings) as (client, station):
        until(lambda: figure(client, "archive_failures") >= 2)
        archive.fails.clear()
        until(lambda: len(studies(client)) == 2)
        until(lambda: figure(client, "studies_without_images") == 1)
        token = station.token
    fetched = archive.requests["WADO"]
    archive.files.append(image(tmp_path / "new.dcm", **TODAY))
    with running(settings) as (client, _):
        client.headers["Authorization"] = f"Bearer {token}"
        for study in until(lambda: studies(client) if len(studies(client)) == 3 else None):
            wait_for(client, study["id"], "drafted")
        study_requests = archive.requests["STUDY"]
        until(lambda: archive.requests["STUDY"] > study_requests + 3)
        assert len(studies(client)) == 3
        assert figure(client, "studies_again") == 0
        metrics = client.get("/metrics").text
    assert (fetched, archive.requests["WADO"]) == (2, 3)
    assert CANARY not in "".join(capfd.readouterr()) + metrics
    assert not any(CANARY in str(file) for file in settings.state.rglob("*"))


def test_an_incomplete_study_waits_until_it_is_complete(
    settings: Settings, tmp_path: Path, archive: QueryArchive
) -> None:
    poll = {"every_s": 0.1, "quiet_s": 1.0}
    settings = polling(settings, tmp_path, {"web": {"url": archive.url}, "poll": poll})
    archive.files.append(image(tmp_path / "a.dcm", **TODAY))
    same = {"StudyInstanceUID": dcmread(tmp_path / "a.dcm").StudyInstanceUID}
    with running(settings) as (client, _):
        until(lambda: archive.requests.get("STUDY", 0) >= 4)  # of two kinds of images
        archive.files.append(image(tmp_path / "b.dcm", ViewPosition="LATERAL", **same, **TODAY))
        (study,) = until(lambda: studies(client))
        assert len(client.get(f"/api/v1/studies/{study['id']}").json()["files"]) == 2


def test_half_a_study_of_a_killed_server_is_not_drafted(
    settings: Settings, tmp_path: Path, archive: QueryArchive
) -> None:
    settings = polling(settings, tmp_path, {"web": {"url": archive.url}})
    left = settings.retrieved / "polls" / "archive" / "half"
    left.mkdir(parents=True)
    image(left / "1.dcm")
    with running(settings) as (client, _):
        until(lambda: archive.requests.get("STUDY", 0) >= 4)
        assert studies(client) == []
        assert not left.exists()


def draft_of(client: Any) -> dict[str, Any]:
    (study,) = until(lambda: studies(client))
    wait_for(client, study["id"], "drafted")
    draft: dict[str, Any] = client.get(f"/api/v1/studies/{study['id']}").json()
    return draft


@pytest.mark.parametrize("way", ["web", "move"])  # C-GET: tests of the archive
def test_a_prior_in_the_archive_changes_what_the_draft_compares(settings: Settings, tmp_path: Path, way: str) -> None:
    port = free_port()
    now = flat(tmp_path / "now.dcm", 0.8, **TODAY)
    held = QueryArchive(flat(tmp_path / "old.dcm", 0.4, **days_ago(30)), flat(tmp_path / "x.dcm", 0.9, **days_ago(60)))
    held.moves_to["RADWEAVE"] = port
    receive = {
        "ae_title": "RADWEAVE", "port": port, "peers": {"SCANNER": "127.0.0.1", "ARCHIVE": "127.0.0.1"}, "quiet_s": 0.1,
    }  # fmt: skip
    with web(held) if way == "web" else dicom(held):
        peer = {"host": "127.0.0.1", "port": held.port, "ae_title": "ARCHIVE", "retrieve": way}
        query = {"web": {"url": held.url}} if way == "web" else {"dicom": peer}
        settings = polling(settings, tmp_path, {**query, "poll": None, "priors": {}}, receive=receive)
        with running(settings, comparing_worker) as (client, station):
            assert push(port, now) == [0x0000]
            draft = draft_of(client)
            assert text_of(draft) == "The opacity is larger since the prior of 30 days ago."
            place = f"/api/v1/studies/{draft['id']}/images"
            (shown,) = client.get(place).json()["prior"]
            assert client.get(f"{place}/{shown['name']}/pixels").status_code == 200
            assert figure(client, "priors_found") == 1
            station._sweep()  # what a start does: the prior's files are kept with the study
            assert len(list(settings.files.rglob("prior*.dcm"))) == 1
            assert len(studies(client)) == 1


@pytest.mark.parametrize("other_patient", OTHER_PATIENTS)
def test_another_patients_study_never_changes_a_draft(
    settings: Settings, tmp_path: Path, archive: QueryArchive, other_patient: str, capfd: pytest.CaptureFixture[str]
) -> None:
    archive.files += [
        flat(tmp_path / "now.dcm", 0.8, **TODAY),
        flat(tmp_path / "old.dcm", 0.4, **days_ago(30), **OTHER_PATIENTS[other_patient]),
    ]
    settings = polling(settings, tmp_path, {"web": {"url": archive.url}, "priors": {}})
    with running(settings, comparing_worker) as (client, _):
        draft = draft_of(client)
        metrics = client.get("/metrics").text
        refused = figure(client, "priors_refused")
    assert text_of(draft) == "There is an opacity."
    same_id = "PatientID" not in OTHER_PATIENTS[other_patient]
    assert refused == int(same_id)
    assert ("may be another patient's" in str(draft)) is same_id
    assert "Other" not in "".join(capfd.readouterr()) + metrics


def test_a_draft_without_a_late_prior_carries_a_warning(
    settings: Settings, tmp_path: Path, archive: QueryArchive
) -> None:
    port = free_port()
    receive = {"ae_title": "RADWEAVE", "port": port, "peers": {"SCANNER": "127.0.0.1"}, "quiet_s": 0.1}
    query = {"web": {"url": archive.url}, "poll": None, "priors": {"wait_s": 0.2}}
    settings = polling(settings, tmp_path, query, receive=receive)
    archive.wait_s = 0.8
    with running(settings, comparing_worker) as (client, _):
        push(port, flat(tmp_path / "now.dcm", 0.8, **TODAY))
        draft = draft_of(client)
        assert text_of(draft) == "There is an opacity."
        assert "did not answer in time" in str(draft)
        assert figure(client, "priors_late") == 1


def test_only_runs_trained_with_priors_get_a_prior(toy_run: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    from radweave.workstation.inference import PRIOR_NOT_USED, InferenceModel

    inference = InferenceModel(toy_run, None, untrained=False)
    inference.predictor = replace(inference.predictor, ood=None)
    job = {
        "id": "a", "files": [str(write_dicom(tmp_path / "now.dcm"))], "dataset_study": None,
        "prior": {"files": [str(write_dicom(tmp_path / "old.dcm"))], "report": "There is an effusion.", "days": 3},
    }  # fmt: skip
    read = inference._read(job)
    assert read.example.prior is None
    assert PRIOR_NOT_USED in read.warnings
    data = inference.run.experiment.data.model_copy(update={"priors": True})
    inference.run = replace(inference.run, experiment=inference.run.experiment.model_copy(update={"data": data}))
    read = inference._read(job)
    assert read.example.prior is not None
    assert read.example.prior.report == "There is an effusion."
    assert read.example.prior.pixels.shape == read.example.pixels.shape
    (answer,) = inference.answers([job])
    assert answer["kind"] == "drafted"
    assert answer["evidence"]["study"]["prior"]["report"] == "There is an effusion."
