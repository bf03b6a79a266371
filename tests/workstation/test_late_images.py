"""Images that come to a study later: it is drafted again with all of them, once, and not when it is signed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from pydicom import dcmread

from radweave.workstation import drafts, outbox, store
from radweave.workstation.database import Database
from radweave.workstation.database import studies as studies_table
from radweave.workstation.settings import Settings
from radweave.workstation.store import NewStudy
from tests.image_files import save
from tests.workstation.fake_workers import PLACED, drafted, drafted_with_places
from tests.workstation.hospitals import Archive, figure, image, listening, plan_file, push, studies
from tests.workstation.load import free_port, until
from tests.workstation.query_archive import TODAY, QueryArchive, web
from tests.workstation.stations import running

pytestmark = pytest.mark.usefixtures("short_pauses")


@pytest.fixture
def archive() -> Iterator[Archive]:
    with listening(Archive()) as started:
        yield started


def version_of(client: Any, study: str, version: int) -> dict[str, Any]:
    """The study, once its newest version is this one and nothing more is to be drafted."""

    def when_ready() -> Any:
        study_json = client.get(f"/api/v1/studies/{study}").json()
        return study_json if study_json["version"] == version and study_json["state"] in ("drafted", "signed") else None

    study_json: dict[str, Any] = until(when_ready)
    return study_json


def test_later_images_are_drafted_until_the_study_is_signed(
    settings: Settings, tmp_path: Path, archive: Archive
) -> None:
    port = free_port()
    plan = {
        "receive": {"ae_title": "RADWEAVE", "port": port, "peers": {"SCANNER": "127.0.0.1"}, "quiet_s": 0.1},
        "send": [{"name": "archive", "formats": ["sr-basic"], "events": ["drafted"],
                  "dicom": {"host": "127.0.0.1", "port": archive.port, "ae_title": "ARCHIVE"}}],
    }  # fmt: skip
    settings = settings.model_copy(update={"hospital": plan_file(tmp_path / "plan.yaml", **plan)})
    first = image(tmp_path / "1.dcm")
    same = {"StudyInstanceUID": dcmread(first).StudyInstanceUID}
    more = [image(tmp_path / f"{n}.dcm", **same) for n in (2, 3, 4)]
    with running(settings) as (client, _):
        push(port, first)
        (study,) = [row["id"] for row in until(lambda: studies(client))]
        version_of(client, study, 1)
        until(lambda: len(archive.came) == 1)
        push(port, first, more[0])  # one of them is here
        study_json = version_of(client, study, 2)
        assert (len(study_json["files"]), study_json["draft"]["undo"], study_json["draft"]["drafted"]) == (2, None, 2)
        assert "images came after version 1" in str(study_json)
        until(lambda: len(archive.came) == 2)
        place = f"/api/v1/studies/{study}"
        client.patch(f"{place}/sentences", json={"version": 2, "edits": [{"op": "insert", "text": "Mine."}]})
        push(port, more[1])
        study_json = version_of(client, study, 4)
        assert "what a reader had written is version 3" in str(study_json)
        assert "Mine." in client.get(f"{place}/versions/3").json()["text"]
        assert "Mine." not in study_json["draft"]["text"]
        (flagged,) = [row["key"] for row in study_json["draft"]["sentences"] if row["flagged"]]
        client.post(f"{place}/looked", json={"version": 4, "sentences": [flagged]})
        signed = client.post(f"{place}/sign", json={"version": 4, "seconds": 3})
        assert signed.status_code == 200, signed.text
        assert version_of(client, study, 4)["signature"]["edit_distance_words"] == 0  # held against the newest draft
        push(port, more[2])
        until(lambda: figure(client, "images_after_signing") == 1)
        push(port, first)
        until(lambda: figure(client, "studies_again") == 1)
        assert version_of(client, study, 4)["state"] == "signed"
        assert (len(studies(client)), figure(client, "studies_grew")) == (1, 2)
        (row,) = client.get(f"{place}/sent").json()
        assert (row["version"], row["state"]) == (4, "sent")
    assert list(archive.came.values()) == [1, 1, 1]  # of each draft one report, and none twice


def test_later_images_of_a_polled_archive_are_fetched_and_reports_are_not(settings: Settings, tmp_path: Path) -> None:
    query = {"name": "archive", "poll": {"every_s": 0.1, "quiet_s": 0, "last_h": 48}}
    first = image(tmp_path / "1.dcm", **TODAY)
    with web(QueryArchive(first)) as queried:
        plan = {"query": [{**query, "web": {"url": queried.url}}]}
        settings = settings.model_copy(update={"hospital": plan_file(tmp_path / "plan.yaml", **plan)})
        with running(settings) as (client, _):
            (study,) = [row["id"] for row in until(lambda: studies(client))]
            version_of(client, study, 1)
            report = dcmread(first)
            report.Modality, report.SeriesInstanceUID, report.SOPInstanceUID = "SR", "1.2.3", "1.2.3.4"
            queried.files.append(save(report, tmp_path / "report.dcm"))
            looked = queried.requests["SERIES"]
            until(lambda: queried.requests["SERIES"] > looked)  # it saw that something came
            asked_again = queried.requests["STUDY"]
            until(lambda: queried.requests["STUDY"] > asked_again + 3)
            assert (queried.requests["WADO"], queried.requests["SERIES"]) == (1, looked + 1)
            own = dcmread(first)
            same = {"StudyInstanceUID": own.StudyInstanceUID, "SeriesInstanceUID": own.SeriesInstanceUID}
            queried.files.append(image(tmp_path / "2.dcm", ViewPosition="LATERAL", **same, **TODAY))
            assert len(version_of(client, study, 2)["files"]) == 2
            asked_again = queried.requests["STUDY"]
            until(lambda: queried.requests["STUDY"] > asked_again + 3)
            assert (figure(client, "studies_fetched"), figure(client, "studies_grew")) == (2, 1)
            assert version_of(client, study, 2)["version"] == 2


def test_a_study_that_cannot_be_redrafted_keeps_its_draft(url: str, tmp_path: Path) -> None:
    database = Database(url)
    with database.writing() as connection:
        study = store.add(connection, NewStudy("a", files=((tmp_path / "1", "1"),)), owner=None)
        outbox.arrived(connection, study)
        (_job,) = store.claim(connection, 1)
        assert not store.add_images(
            connection, study, [(tmp_path / "1", "1"), (tmp_path / "2", "2")], 1
        )  # being drafted
        store.finish(connection, study, drafted(study))
        assert store.add_images(connection, study, [(tmp_path / "1", "1"), (tmp_path / "2", "2")], 1)
        (job,) = store.claim(connection, 1)
        assert len(job.files) == 2
        assert not store.refuse(connection, study, "2 cannot be read")
        row = connection.execute(sa.select(studies_table).where(studies_table.c.id == study)).one()
        assert (row.state, row.version, row.reason) == ("drafted", 1, None)
        evidence = drafts.read_evidence(connection, study)
        assert evidence is not None
        assert any("2 cannot be read" in text for text in evidence["warnings"])
        store.add_images(connection, study, [(tmp_path / "1", "1")], 1)
        store.claim(connection, 1)
        assert store.give_back(connection, [study], tries=1, reason="it took too long") == []
        assert store.counts(connection)["drafted"] == 1
    database.close()


@pytest.mark.parametrize(("modality", "boxes", "views"), [("xray", 2, 1), ("ct", 0, 0)])
def test_boxes_and_maps_of_a_scan_end_when_more_slices_come(
    modality: str, boxes: int, views: int, url: str, tmp_path: Path
) -> None:
    database, old = Database(url), [(tmp_path / "1", "1")]
    with database.writing() as connection:
        study = store.add(connection, NewStudy("a", files=tuple(old)), owner=None)
        store.claim(connection, 1)
        result = drafted_with_places({"id": study, "files": ["1"]}, modality)
        result["evidence"]["views"] = [{"image": 0, "covers": [[0, 1]] * (3 if modality == "ct" else 2)}]
        store.finish(connection, study, result)
        assert store.add_images(connection, study, [(tmp_path / "2", "2")], 1)
        store.claim(connection, 1)
        assert not store.refuse(connection, study, "2 cannot be read")
        rows = drafts.read(connection, study, 1)["sentences"]
        evidence = drafts.read_evidence(connection, study)
    assert [row["text"] for row in rows] == [row["text"] for row in result["sentences"]]
    assert sum(len(place["boxes"]) for row in rows for place in row["details"]["places"]) == boxes
    assert [place["named"] for row in rows for place in row["details"]["places"]] == [
        named for _, _, named, *_ in PLACED
    ]
    assert evidence is not None
    assert len(evidence["evidence"]["views"]) == views
    database.close()
