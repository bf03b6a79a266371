"""The way to and from archives: who may send, what is drafted, what goes back, once, whatever ends in between."""

from __future__ import annotations

import io
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from pydicom import dcmread

from radweave.workstation import api
from radweave.workstation.formats import FORMATS
from radweave.workstation.settings import Settings
from tests.command_line import radweave
from tests.image_files import CANARY
from tests.workstation.fake_workers import drafted
from tests.workstation.hospitals import Archive, figure, image, listening, plan_file, push, studies
from tests.workstation.load import free_port, until
from tests.workstation.stations import running, upload, wait_for

pytestmark = pytest.mark.usefixtures("short_pauses")


def with_hospital(settings: Settings, folder: Path, archive: Archive | None, **receive: Any) -> tuple[Settings, int]:
    """Settings with a plan that receives from SCANNER, and sends to the archive what was drafted and signed."""
    port = free_port()
    send = [] if archive is None else [
        {"name": "archive", "formats": ["sr-basic"], "events": ["drafted", "signed"],
         "dicom": {"host": "127.0.0.1", "port": archive.port, "ae_title": "ARCHIVE"}},
    ]  # fmt: skip
    plan = {
        "receive": {"ae_title": "RADWEAVE", "port": port, "peers": {"SCANNER": "127.0.0.1"}, "quiet_s": 0.1, **receive},
        "send": send,
    }
    return settings.model_copy(update={"hospital": plan_file(folder / "plan.yaml", **plan)}), port


@pytest.fixture
def archive() -> Iterator[Archive]:
    with listening(Archive()) as started:
        yield started


def test_a_received_study_is_drafted_and_its_report_sent_back(
    settings: Settings, tmp_path: Path, archive: Archive, capfd: pytest.CaptureFixture[str]
) -> None:
    settings, port = with_hospital(settings, tmp_path, archive)
    path = image(tmp_path / "a.dcm")
    with running(settings) as (client, _):
        assert push(port, path) == [0x0000]
        (study,) = until(lambda: studies(client))
        wait_for(client, study["id"], "drafted")
        until(lambda: figure(client, "reports_sent") == 1)
        (row,) = client.get(f"/api/v1/studies/{study['id']}/sent").json()
        assert (row["state"], row["receipt"], row["tries"]) == ("sent", "C-STORE: status 0x0000", 1)
        draft = client.get(f"/api/v1/studies/{study['id']}").json()["draft"]
        client.post(f"/api/v1/studies/{study['id']}/looked", json={"version": 1, "sentences": [1]})
        signed = client.post(f"/api/v1/studies/{study['id']}/sign", json={"version": 1, "seconds": 3})
        assert signed.status_code == 200, signed.text
        until(lambda: len(archive.came) == 2)
        assert push(port, path) == [0x0000]  # the same study again is not drafted again
        until(lambda: figure(client, "studies_again") == 1)
        assert len(studies(client)) == 1
        metrics = client.get("/metrics").text
    assert set(archive.came.values()) == {1}
    objects = [dcmread(io.BytesIO(data)) for data in archive.data.values()]
    assert {item.StudyInstanceUID for item in objects} == {dcmread(path).StudyInstanceUID}
    flags = sorted(item.VerificationFlag for item in objects)
    assert flags == ["UNVERIFIED", "VERIFIED"]
    first, report = sorted(objects, key=lambda item: str(item.VerificationFlag))
    (named,) = report.PredecessorDocumentsSequence[0].ReferencedSeriesSequence[0].ReferencedSOPSequence
    assert named.ReferencedSOPInstanceUID == first.SOPInstanceUID
    (finding,) = report.ContentSequence[9].ContentSequence
    assert finding.TextValue == " ".join(row["text"] for row in draft["sentences"])
    output = "".join(capfd.readouterr())
    assert CANARY not in output + metrics
    assert not any(CANARY in str(file) for file in settings.state.rglob("*"))


def test_waiting_reports_are_sent_once_over_restarts_of_archive_and_server(
    settings: Settings, tmp_path: Path, archive: Archive
) -> None:
    with ExitStack() as away:
        other = away.enter_context(listening(Archive()))
        settings, port = with_hospital(settings, tmp_path, other)
        archive_port = other.port
    paths = [image(tmp_path / f"{n}.dcm") for n in range(3)]
    with running(settings) as (client, station):
        push(port, *paths[:2])
        until(lambda: figure(client, "sending_failures") >= 2)
        token = station.token
    with listening(archive, archive_port), running(settings) as (client, _):
        client.headers["Authorization"] = f"Bearer {token}"
        push(port, paths[2])
        until(lambda: figure(client, "reports_sent") == 3)
    assert set(archive.came.values()) == {1}


def test_a_report_sent_again_is_the_same_instance(settings: Settings, tmp_path: Path, archive: Archive) -> None:
    settings, port = with_hospital(settings, tmp_path, archive)
    with running(settings) as (client, station):
        push(port, image(tmp_path / "a.dcm"))
        until(lambda: figure(client, "reports_sent") == 1)
        before = dict(archive.data)
        with station.database.writing() as connection:
            connection.exec_driver_sql("UPDATE outbox SET state = 'waiting'")
        until(lambda: figure(client, "reports_sent") == 2)
    assert archive.data == before
    assert set(archive.came.values()) == {2}


def test_only_known_peers_may_send(settings: Settings, tmp_path: Path) -> None:
    settings, port = with_hospital(settings, tmp_path, None, peers={"SCANNER": "127.0.0.1", "FAR": "192.0.2.7"})
    path = image(tmp_path / "a.dcm")
    with running(settings) as (client, _):
        assert push(port, path, calling="STRANGER") == ["refused"]
        assert push(port, path, called="OTHER") == ["refused"]
        assert push(port, path, calling="FAR") != [0x0000]
        until(lambda: figure(client, "peers_refused") == 3)
        assert figure(client, "objects_received") == 0
        assert push(port, path) == [0x0000]
        until(lambda: studies(client))


def test_images_that_fit_no_route_are_dropped_and_counted(settings: Settings, tmp_path: Path) -> None:
    routes = [{"modality": ["CR", "DX"], "body_part": ["CHEST", ""], "view": ["PA", "AP"]}]
    settings, port = with_hospital(settings, tmp_path, None, routes=routes)
    one = dcmread(image(tmp_path / "a.dcm"))
    same = {"StudyInstanceUID": one.StudyInstanceUID}
    files = [
        tmp_path / "a.dcm",
        image(tmp_path / "b.dcm", BodyPartExamined="HAND", **same),
        image(tmp_path / "c.dcm", Modality="MG", **same),
        image(tmp_path / "d.dcm", ViewPosition="LATERAL", **same),
        image(tmp_path / "e.dcm", BodyPartExamined="", **same),
    ]
    with running(settings) as (client, _):
        assert push(port, *files) == [0x0000] * 5
        (study,) = until(lambda: studies(client))
        assert figure(client, "objects_not_routed") == 3
        assert len(client.get(f"/api/v1/studies/{study['id']}").json()["files"]) == 2


def test_cut_and_broken_connections_do_not_affect_others(settings: Settings, tmp_path: Path) -> None:
    settings, port = with_hospital(settings, tmp_path, None)
    with running(settings) as (client, _):
        for output in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x01\x00\x00\x00\x7f\xff\xff\xff", b"\0" * 4096):
            with socket.create_connection(("127.0.0.1", port)) as cut:
                cut.sendall(output)
        assert push(port, image(tmp_path / "a.dcm")) == [0x0000]
        assert until(lambda: studies(client))


def test_objects_of_a_killed_server_are_drafted_after_a_restart(settings: Settings, tmp_path: Path) -> None:
    settings, _ = with_hospital(settings, tmp_path, None)
    left = settings.incoming / f"{'a' * 32}.open"
    left.mkdir(parents=True)
    image(left / "1.dcm")
    (left / "2.dcm").write_bytes(b"no DICOM")
    with running(settings) as (client, _):
        assert until(lambda: studies(client))
        assert figure(client, "objects_unreadable") == 1
        until(lambda: not [path for path in settings.incoming.rglob("*") if path.is_file()])


def test_a_study_without_a_possible_report_is_refused_with_its_field(
    settings: Settings, tmp_path: Path, archive: Archive
) -> None:
    settings, port = with_hospital(settings, tmp_path, archive)
    path = image(tmp_path / "a.dcm", SpecificCharacterSet="ISO_IR 192")
    data = path.read_bytes().replace(f"{CANARY}^Ann".encode(), f"{CANARY}\xff^An".encode("latin-1"))
    path.write_bytes(data)
    with running(settings) as (client, _):
        push(port, path)
        (study,) = until(lambda: studies(client))
        rows = until(lambda: [row for row in client.get(f"/api/v1/studies/{study['id']}/sent").json()
                              if row["state"] == "refused"])  # fmt: skip
        assert "PatientName" in rows[0]["receipt"]
        assert CANARY not in str(rows)
    assert archive.came == {}


def test_uploaded_studies_are_not_sent_to_an_archive(settings: Settings, tmp_path: Path, archive: Archive) -> None:
    settings, _ = with_hospital(settings, tmp_path, archive)
    with running(settings) as (client, _):
        (study,) = upload(client, ("a.dcm", image(tmp_path / "a.dcm").read_bytes())).json()["studies"]
        wait_for(client, study, "drafted")
        time.sleep(0.2)  # some looks of the sender
        assert client.get(f"/api/v1/studies/{study}/sent").json() == []
    assert archive.came == {}


def test_a_report_is_given_in_every_format(settings: Settings, tmp_path: Path) -> None:
    with running(settings) as (client, _):
        (study,) = upload(client, ("a.dcm", image(tmp_path / "a.dcm").read_bytes())).json()["studies"]
        wait_for(client, study, "drafted")
        place = f"/api/v1/studies/{study}/report"
        assert client.get(place).content.startswith(b"%PDF-")
        assert client.get(f"{place}?format=fhir").json()["resourceType"] == "Bundle"
        text = client.get(f"{place}?format=text").text
        assert all(row["text"] in text for row in drafted(study)["sentences"])
        report = dcmread(io.BytesIO(client.get(f"{place}?format=sr-basic").content))
        assert report.PatientID == CANARY
        assert client.get(f"{place}?format=fhir-r5").json()["resourceType"] == "Bundle"
        assert client.get(f"{place}?format=hl7").content.startswith(b"MSH|")
        pages = dcmread(io.BytesIO(client.get(f"{place}?format=pdf-dicom").content))
        assert bytes(pages.EncapsulatedDocument).startswith(b"%PDF-")
        none = client.get(f"{place}?format=map-dicom")  # nor any map
        assert (none.status_code, "no map that fits" in none.text) == (400, True)
        coded = client.get(f"{place}?format=sr-tid1500")  # this worker knows no class
        assert (coded.status_code, "no class of findings" in coded.text) == (400, True)
        assert client.get(f"{place}?format=docx").status_code == 400


def test_the_page_offers_every_format() -> None:
    script = (files("radweave.workstation") / "static" / "exports.js").read_text("utf-8")
    table = script.split("const FORMATS = {", 1)[1].split("}", 1)[0]
    assert set(re.findall(r'"?([a-z0-9-]+)"?: "', table)) == set(FORMATS)
    assert FORMATS.keys() <= set(re.findall(r"[a-z0-9-]+", api.report.__doc__ or "")), "and the interface names them"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("receive: {ae_title: RADWEAVE, port: 1, peers: {}}", "peers"),
        ("receive: {ae_title: A-NAME-THAT-IS-TOO-LONG, port: 1, peers: {A: b}}", "AE title"),
        ("send: [{name: a, formats: [docx], web: {url: 'http://x'}}]", "sr-tid1500"),
        ("send: [{name: a, formats: [sr-basic]}]", "give web or dicom"),
        (
            "send: [{name: a, formats: [sr-basic], web: {url: 'http://x'}, dicom: {host: h, port: 1, ae_title: A}}]",
            "give web or dicom",
        ),
        (
            "send: [{name: a, formats: [sr-basic], web: {url: 'http://x'}},"
            " {name: a, formats: [sr-basic], web: {url: 'http://y'}}]",
            "two of them have one name",
        ),
        ("sent: []", "sent"),
        ("query: [{name: a, poll: {}}]", "give web or dicom"),
        ("query: [{name: a, web: {url: 'http://x'}}]", "give poll or priors"),
        ("query: [{name: a, poll: {}, dicom: {host: b, port: 1, ae_title: A}}]", "needs the receiver"),
        ("query: [{name: a, poll: {modality: ['C*']}, web: {url: 'http://x'}}]", "modality"),
        ("query: [{name: a, priors: {}, web: {url: 'http://x', password_file: /no/where}}]", "no such file"),
        (
            "{receive: {ae_title: A, port: 1, peers: {A: b}, deidentify: {key_file: k}},"
            " query: [{name: a, priors: {}, web: {url: 'http://x'}}]}",
            "no archive knows a pseudonym",
        ),
        ("receive: {ae_title: A, port: 11112, host: 192.0.2.1, peers: {A: b}}", "cannot listen"),
        ("send: [{name: a, formats: [sr-basic], web: {url: 'http://x', password_file: /no/where}}]", "no such file"),
        ("receive: {ae_title: A, port: 11112, peers: {A: b}, deidentify: {key_file: /no/where}}", "cannot be read"),
        (
            "receive: {ae_title: A, port: 11112, peers: {A: b}, deidentify: {key_file: /no/where}}\n"
            "send: [{name: a, formats: [sr-basic], web: {url: 'http://x'}}]",
            "no report of a de-identified study is sent",
        ),
        (
            "receive: {ae_title: A, port: 11112, peers: {A: b}, tls: {certificate: /a, key: /b, authority: /c}}",
            "the certificate",
        ),
    ],
)
def test_an_invalid_plan_is_refused(toy_run: Path, tmp_path: Path, text: str, word: str) -> None:
    (tmp_path / "plan.yaml").write_text(text)
    done = radweave("serve", toy_run, "--hospital", tmp_path / "plan.yaml")
    assert (done.returncode, word in done.stderr) == (2, True), done.stderr
