"""A real archive that is asked: polled while it is killed, and for priors. ``make test-hospital``."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from pydicom import dcmread

from radweave.workstation.settings import Settings
from tests.image_files import CANARY
from tests.workstation.archive import AET, PASSWORD, USER, Archive, needs, start
from tests.workstation.fake_workers import comparing_worker, fake_worker
from tests.workstation.hospitals import figure, image, plan_file, studies
from tests.workstation.load import free_port, until
from tests.workstation.query_archive import OTHER_PATIENTS, TODAY, days_ago, flat, text_of
from tests.workstation.stations import running as working
from tests.workstation.stations import wait_for

pytestmark = pytest.mark.programs
WAYS = ("web", "move", "get")
STUDIES = 50


class Joint:
    """An archive and a workstation that know each other."""

    def __init__(self, folder: Path, way: str) -> None:
        self.folder, self.way, self.port = folder, way, free_port()
        self.more: dict[str, Any] = {"DicomModalities": {
            "radweave": {"AET": "RADWEAVE", "Host": "127.0.0.1", "Port": self.port, "AllowGet": True},
        }}  # fmt: skip
        self.archive: Archive = start(folder / "orthanc", **self.more)
        (folder / "password").write_text(PASSWORD)

    def restart(self) -> None:
        self.archive = start(self.folder / "orthanc", http=self.archive.http, dicom=self.archive.dicom, **self.more)

    def settings(self, settings: Settings, **query: Any) -> Settings:
        web = {
            "url": f"{self.archive.url}/dicom-web", "user": USER, "password_file": str(self.folder / "password"),
        }  # fmt: skip
        dicom = {"host": "127.0.0.1", "port": self.archive.dicom, "ae_title": AET}
        protocol = {"web": web} if self.way == "web" else {"dicom": {**dicom, "retrieve": self.way}}
        plan = {
            "receive": {"ae_title": "RADWEAVE", "port": self.port, "peers": {AET: "127.0.0.1"}, "quiet_s": 0.3},
            "send": [{"name": "archive", "formats": ["sr-basic", "pdf-dicom"], "events": ["drafted"], "web": web}],
            "query": [{"name": "archive", **protocol, "poll": {"every_s": 1, "quiet_s": 1}, **query}],
        }
        return settings.model_copy(update={"hospital": plan_file(self.folder / "plan.yaml", **plan)})

    def push(self, *files: Path) -> None:
        subprocess.run(
            ["dcmsend", "-aec", AET, "127.0.0.1", str(self.archive.dicom), *map(str, files)], check=True, timeout=120
        )

    def under_studies(self) -> dict[str, list[str]]:
        """Modalities of the instances of each study, as QIDO has them."""
        study_json: dict[str, list[str]] = {}
        for row in self.archive.web().search_for_instances():
            study_json.setdefault(row["0020000D"]["Value"][0], []).append(row["00080060"]["Value"][0])
        return {study: sorted(modalities) for study, modalities in study_json.items()}


@pytest.mark.parametrize("way", WAYS)
def test_fifty_polled_studies_are_drafted_once_over_restarts_of_archive_and_server(
    settings: Settings, tmp_path: Path, way: str, capfd: pytest.CaptureFixture[str]
) -> None:
    needs("dcmsend", "Orthanc")
    joint = Joint(tmp_path, way)
    images = [image(tmp_path / f"{number:02}.dcm", **TODAY) for number in range(STUDIES)]
    try:
        joint.push(*images)
        with_plan = joint.settings(settings)
        with working(with_plan, fake_worker) as (client, station):
            until(lambda: figure(client, "studies_fetched") >= STUDIES // 4, seconds=120)
            joint.archive.kill()
            token, before = station.token, figure(client, "studies_fetched")
            until(lambda: figure(client, "archive_failures") >= 1, seconds=120)
            joint.restart()
            until(lambda: figure(client, "studies_fetched") > before, seconds=120)
        with working(with_plan, fake_worker) as (client, _):  # the workstation too is started again
            client.headers["Authorization"] = f"Bearer {token}"
            drafted = f'radweave_studies{{state="drafted"}} {STUDIES}\n'
            until(lambda: drafted in client.get("/metrics").text, seconds=240)
            until(lambda: {*map(tuple, joint.under_studies().values())} == {("CR", "DOC", "SR")}, seconds=240)
            protocol = figure(client, "archive_questions")
            until(lambda: figure(client, "archive_questions") > protocol + 8, seconds=60)
            metrics = client.get("/metrics").text
            assert drafted in metrics
            rows = client.get("/api/v1/studies").json()
            assert rows["total"] == STUDIES
        assert set(joint.under_studies()) == {str(dcmread(path).StudyInstanceUID) for path in images}
        assert len(joint.archive.get("/instances")) == 3 * STUDIES
        assert CANARY not in "".join(capfd.readouterr()) + metrics
        assert not any(CANARY in str(file) for file in settings.state.rglob("*"))
    finally:
        joint.archive.kill()


@pytest.mark.parametrize("way", WAYS)
def test_only_the_patients_own_prior_changes_the_draft(settings: Settings, tmp_path: Path, way: str) -> None:
    needs("dcmsend", "Orthanc", "dsrdump")
    joint = Joint(tmp_path, way)
    try:
        now = flat(tmp_path / "now.dcm", 0.8, **TODAY)
        joint.push(now, flat(tmp_path / "old.dcm", 0.4, **days_ago(30)), flat(tmp_path / "x.dcm", 0.9, **days_ago(60)))
        joint.push(*(flat(tmp_path / f"{name}.dcm", 0.1, **days_ago(7), **who) for name, who in OTHER_PATIENTS.items()))
        with working(joint.settings(settings, priors={}), comparing_worker) as (client, _):
            (study,) = until(lambda: studies(client), seconds=60)
            wait_for(client, study["id"], "drafted")
            study_json = client.get(f"/api/v1/studies/{study['id']}").json()
            text = text_of(study_json)
            assert text == "The opacity is larger since the prior of 30 days ago."
            own = str(dcmread(now).StudyInstanceUID)
            until(lambda: joint.under_studies()[own] == ["CR", "DOC", "SR"], seconds=60)
        (row,) = [row for row in joint.archive.web().search_for_instances(own) if row["00080060"]["Value"][0] == "SR"]
        uids = [row[tag]["Value"][0] for tag in ("0020000D", "0020000E", "00080018")]
        joint.archive.web().retrieve_instance(*uids).save_as(tmp_path / "back.dcm", enforce_file_format=True)
        shown = subprocess.run(["dsrdump", "+Pl", str(tmp_path / "back.dcm")], check=True, capture_output=True)
        assert text.encode() in shown.stdout
    finally:
        joint.archive.kill()


def test_an_archive_without_the_patient_does_not_change_the_draft(settings: Settings, tmp_path: Path) -> None:
    needs("dcmsend", "Orthanc")
    joint = Joint(tmp_path, "web")
    try:
        joint.push(flat(tmp_path / "now.dcm", 0.8, **TODAY))
        joint.push(*(flat(tmp_path / f"{name}.dcm", 0.1, **days_ago(7), **who) for name, who in OTHER_PATIENTS.items()))
        with working(joint.settings(settings, priors={}), comparing_worker) as (client, _):
            (study,) = until(lambda: studies(client), seconds=60)
            wait_for(client, study["id"], "drafted")
            study_json = client.get(f"/api/v1/studies/{study['id']}").json()
            assert text_of(study_json) == "There is an opacity."
            assert "another patient" in str(study_json)
            assert figure(client, "priors_refused") == 1
    finally:
        joint.archive.kill()
