"""Asking an archive by the web and by DICOM: what it says, what it gives, and what it does not answer."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pydicom import dcmread

from radweave.workstation.archive import Archive, FoundStudy, NotAnsweredError, QueryLimits, found_study
from radweave.workstation.archive_clients import DicomArchive, WebArchive
from radweave.workstation.find_prior import Prior, copied, find_prior
from radweave.workstation.finished import Section
from radweave.workstation.formats import FORMATS
from radweave.workstation.hospital_plan import Priors, QueriedDicom, Receive, Target, Web
from radweave.workstation.identity import read_identities
from radweave.workstation.receiver import Receiver
from radweave.workstation.sending import NotStoredError, send
from tests.image_files import CANARY, save, write_series
from tests.workstation.load import free_port
from tests.workstation.query_archive import QueryArchive, dicom, web
from tests.workstation.reports import SIGNED, dicom_image, finished

WAYS = ("web", "get", "move")
LATER = {"StudyDate": "20000630", "StudyTime": "0900"}


class Way:
    """An archive, who asks it one of three ways, and what was counted."""

    def __init__(self, archive: QueryArchive, asks: Archive, counted: Counter[str]) -> None:
        self.archive, self.asks, self.counted = archive, asks, counted


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Way]:
    archive, counted = QueryArchive(), Counter[str]()

    def count(name: str, by: int = 1) -> None:
        counted[name] += by

    serving: AbstractContextManager[Any] = web(archive) if request.param == "web" else dicom(archive)
    with serving:
        if request.param == "web":
            yield Way(archive, WebArchive(Web(url=archive.url), count), counted)
            return
        peer = QueriedDicom(host="127.0.0.1", port=archive.port, ae_title="ARCHIVE", retrieve=request.param)
        plan = Receive(ae_title="RADWEAVE", port=free_port(), peers={"ARCHIVE": "127.0.0.1"})
        archive.moves_to["RADWEAVE"] = plan.port
        receiver = Receiver(plan, tmp_path / "incoming", count)
        if request.param == "move":
            receiver.start()
        yield Way(archive, DicomArchive(peer, count, receiver, plan.ae_title), counted)
        receiver.stop()


def soon(most: int = 100, seconds: float = 60.0) -> QueryLimits:
    return QueryLimits(time.monotonic() + seconds, most)


def test_a_prior_is_queried_and_retrieved_unchanged(way: Way, tmp_path: Path) -> None:
    one = dicom_image(tmp_path / "a.dcm", PatientName="Müller^Jörg", SpecificCharacterSet="ISO_IR 192")
    way.archive.files += [one, dicom_image(tmp_path / "b.dcm", PatientID="another")]
    (prior,) = way.asks.studies({"PatientID": CANARY, "StudyDate": "19991201-20000101"}, soon())
    held = dcmread(one)
    assert (prior.study_instance_uid, prior.patient_name) == (held.StudyInstanceUID, "Müller^Jörg")
    assert (prior.patient_birth_date, prior.study_date, prior.instances) == ("19010203", "19991231", 1)
    assert CANARY not in repr(prior)
    (series,) = way.asks.series(prior.study_instance_uid, soon())
    assert (series.modality, series.body_part) == ("CR", "CHEST")
    (tmp_path / "to").mkdir()
    assert way.asks.fetch(prior.study_instance_uid, series.uid, tmp_path / "to", soon()) == 1
    (file,) = (tmp_path / "to").iterdir()
    came = dcmread(file)
    assert came.PixelData == held.PixelData
    assert came.PatientName == held.PatientName
    assert way.counted["objects_retrieved"] == 1
    assert way.counted["archive_failures"] == 0
    assert not list((tmp_path / "incoming").rglob("*.dcm"))  # nobody takes it for one to be drafted


def test_errors_of_an_archive_name_no_patient(way: Way, tmp_path: Path) -> None:
    way.archive.files.append(dicom_image(tmp_path / "a.dcm"))
    way.archive.fails |= {"STUDY"}
    with pytest.raises(NotAnsweredError, match=r"HTTP 503|status 0xA700") as failed:
        way.asks.studies({"PatientID": CANARY}, soon())
    assert CANARY not in str(failed.value)
    assert way.counted["archive_failures"] == 1
    with pytest.raises(NotAnsweredError, match="in time"):
        way.asks.studies({"PatientID": CANARY}, soon(seconds=0))


def test_a_slow_archive_is_abandoned(way: Way, tmp_path: Path) -> None:
    way.archive.files.append(dicom_image(tmp_path / "a.dcm"))
    way.archive.wait_s = 0.6
    with pytest.raises(NotAnsweredError):
        way.asks.studies({"PatientID": CANARY}, soon(seconds=0.2))
    assert way.counted["archive_failures"] == 1


def test_answers_over_the_limit_are_cancelled(tmp_path: Path) -> None:
    archive, counted = QueryArchive(*(dicom_image(tmp_path / f"{n}.dcm") for n in range(5))), Counter[str]()
    archive.pending = 0xFF01
    with dicom(archive):
        peer = QueriedDicom(host="127.0.0.1", port=archive.port, ae_title="ARCHIVE")
        asks = DicomArchive(peer, lambda name, by: counted.update({name: by}))
        assert len(asks.studies({"PatientID": CANARY}, soon(most=2))) == 2
    assert counted["archive_answers_cut"] == 1
    assert counted["archive_warnings"] >= 2


def test_late_objects_of_a_move_are_refused(tmp_path: Path) -> None:
    """An archive that goes on sending a prior that nobody waits for does not make a new study of it."""
    counted = Counter[str]()
    plan = Receive(ae_title="RADWEAVE", port=free_port(), peers={"SCANNER": "127.0.0.1"})
    receiver = Receiver(plan, tmp_path / "incoming", lambda name: counted.update([name]))
    receiver.start()
    one = dicom_image(tmp_path / "a.dcm")
    try:
        from tests.workstation.hospitals import push

        with receiver.expecting([str(dcmread(one).SOPInstanceUID)], tmp_path):
            assert push(plan.port, one) == [0x0000]
        assert push(plan.port, one) == [0x0124]
        assert push(plan.port, dicom_image(tmp_path / "b.dcm")) == [0x0000]
    finally:
        receiver.stop()
    assert counted == {"objects_received": 2, "objects_late": 1}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"StudyInstanceUID": "1.2/../3"}, None),
        ({"StudyInstanceUID": "1." + "2" * 64}, None),
        ({"StudyInstanceUID": "1.2", "StudyDate": "1999.12.31", "StudyTime": "10:11"}, ("19991231", "1011", None)),
        ({"StudyInstanceUID": "1.2", "StudyDate": "soon", "NumberOfStudyRelatedInstances": "-1"}, ("", "", None)),
        ({"StudyInstanceUID": "1.2", "NumberOfStudyRelatedInstances": " 3"}, ("", "", 3)),
        ({"StudyInstanceUID": "1.2", "PatientName": "M\ufffdller"}, ("", "", None)),
    ],
)
def test_invalid_values_of_an_answer_are_dropped(answer: dict[str, str], expected: tuple[Any, ...] | None) -> None:
    study = found_study(answer)
    assert (study and (study.study_date, study.study_time, study.instances)) == expected
    assert not (study and study.patient_name)  # one that cannot be read says nothing


class Shelf:
    """An archive as a list: what it says of a study may differ from the headers of its objects."""

    def __init__(self, *files: Path) -> None:
        self.files, self.says = files, dict[str, Any]()
        self.keys: list[dict[str, str]] = []

    def studies(self, keys: dict[str, str], limits: QueryLimits) -> list[FoundStudy]:
        self.keys.append(dict(keys))
        studies = [found_study({name: str(row.get(name, "")) for name in (
            "StudyInstanceUID", "PatientID", "IssuerOfPatientID", "PatientName", "PatientBirthDate", "PatientSex",
            "StudyDate", "StudyTime")} | self.says) for row in map(dcmread, self.files)]  # fmt: skip
        return [one for one in dict.fromkeys(studies) if one is not None]

    def series(self, study: str, limits: QueryLimits) -> Any:
        from radweave.workstation.archive import found_series

        rows = [row for row in map(dcmread, self.files) if row.StudyInstanceUID == study]
        return [found_series({name: str(row.get(name, "")) for name in (
            "SeriesInstanceUID", "Modality", "BodyPartExamined")}) for row in rows]  # fmt: skip

    def fetch(self, study: str, series: str, folder: Path, limits: QueryLimits) -> int:
        for number, file in enumerate(self.files):
            if dcmread(file).SeriesInstanceUID == series:
                (folder / f"{number}.dcm").write_bytes(file.read_bytes())
        return 1


def prior_of(study: Path, shelf: Shelf, folder: Path, **plan: Any) -> tuple[Prior, Counter[str]]:
    counted = Counter[str]()

    def count(name: str, by: int) -> None:
        counted[name] += by

    (identity,), _ = read_identities([study])
    return find_prior(shelf, identity, Priors(**plan), folder / "to", soon(), count), counted


def test_the_newest_fitting_study_is_the_prior_with_its_signed_report(tmp_path: Path) -> None:
    now = dicom_image(tmp_path / "now.dcm", **LATER)
    old = dicom_image(tmp_path / "old.dcm", StudyDate="19980101")
    side = dicom_image(tmp_path / "side.dcm", StudyDate="20000101", ViewPosition="LATERAL")
    front = dicom_image(tmp_path / "front.dcm", StudyDate="20000101", StudyInstanceUID=dcmread(side).StudyInstanceUID)
    hand = dicom_image(tmp_path / "hand.dcm", StudyDate="20000301", BodyPartExamined="HAND")
    after = dicom_image(tmp_path / "after.dcm", StudyDate="20010101")
    reports = []
    older = replace(SIGNED, time=SIGNED.time - timedelta(days=1))
    # The newest is neither the first nor the last of them.
    for number, signature in enumerate((older, SIGNED, older, None)):
        sources, _ = read_identities([front])
        report = finished(sources=sources, signature=signature)
        if signature is not SIGNED:
            told = "Nobody has signed this." if signature is None else f"Nodule {number}."
            report = replace(report, sections=(Section("findings", told),))
        reports.append(tmp_path / f"report{number}.dcm")
        reports[-1].write_bytes(FORMATS["sr-basic"].bytes_of(report))
    shelf = Shelf(old, side, front, hand, after, now, *reports)
    prior, counted = prior_of(now, shelf, tmp_path)
    assert (prior.outcome, prior.days) == ("found", 181)
    assert [dcmread(file).SOPInstanceUID for file in prior.files] == [
        dcmread(file).SOPInstanceUID for file in (front, side)
    ]
    assert prior.report is not None
    assert "The heart is enlarged." in prior.report
    assert "Small left effusion." in prior.report
    assert "Nobody" not in prior.report
    assert "Nodule" not in prior.report
    assert counted == {}
    assert shelf.keys == [{"PatientID": CANARY, "StudyDate": "19950627-20000630"}]


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ({"PatientName": "Other^Eve"}, "other_name"),
        ({"PatientBirthDate": "19010204"}, "other_birth_date"),
        ({"PatientSex": "M"}, "other_sex"),
        ({"IssuerOfPatientID": "ELSEWHERE"}, "other_issuer"),
    ],
)
@pytest.mark.parametrize("index_is_right", [True, False])
def test_another_patients_study_is_no_prior_despite_the_index(
    before: dict[str, str], reason: str, index_is_right: bool, tmp_path: Path
) -> None:
    mine = {"PatientSex": "F", "IssuerOfPatientID": "HOUSE"}
    now = dicom_image(tmp_path / "now.dcm", **LATER, **mine)
    shelf = Shelf(dicom_image(tmp_path / "old.dcm", **{**mine, **before}))
    if not index_is_right:
        own = dcmread(now)
        shelf.says = {name: str(own[name].value) for name in before}
    prior, counted = prior_of(now, shelf, tmp_path)
    assert (prior.outcome, prior.reason, prior.files) == ("refused", reason, ())
    assert counted == {f"priors_refused_{reason}": 1}
    assert CANARY not in " ".join(prior.warnings)


def test_an_id_with_wildcards_is_not_queried(tmp_path: Path) -> None:
    for name in ("A*", "A?", "UNKNOWN", ""):
        shelf = Shelf()
        prior, _ = prior_of(dicom_image(tmp_path / "now.dcm", PatientID=name, **LATER), shelf, tmp_path)
        assert (prior.outcome, shelf.keys) == ("none", [])


def test_a_damaged_report_leaves_the_prior_without_one(tmp_path: Path) -> None:
    now, old = dicom_image(tmp_path / "now.dcm", **LATER), dicom_image(tmp_path / "old.dcm")
    report = dcmread(old)
    report.Modality, report.SeriesInstanceUID, report.VerificationFlag = "SR", "1.2.3", "VERIFIED"
    prior, _ = prior_of(now, Shelf(old, save(report, tmp_path / "report.dcm")), tmp_path)
    assert (prior.outcome, prior.report) == ("found", None)


def test_the_prior_of_a_scan_is_the_series_with_most_slices(tmp_path: Path) -> None:
    before = {"StudyInstanceUID": "1.2.5", "StudyDate": "20000101", "BodyPartExamined": "CHEST"}
    now = write_series(tmp_path / "now", StudyInstanceUID="1.2.4", **LATER)
    thin = write_series(tmp_path / "thin", np.zeros((6, 4, 4)), SeriesInstanceUID="1.2.5.1", **before)
    thick = write_series(tmp_path / "thick", np.zeros((3, 4, 4)), SeriesInstanceUID="1.2.5.2", **before)
    scout = {"SeriesInstanceUID": "1.2.5.3", "ImageType": ["ORIGINAL", "PRIMARY", "LOCALIZER"]}
    scouts = write_series(tmp_path / "scout", np.zeros((7, 4, 4)), **scout, **before)
    shelf = Shelf(*thick, *scouts, *thin, *now)
    prior, counted = prior_of(now[0], shelf, tmp_path, modality=["CT"])
    assert (prior.outcome, prior.days, counted) == ("found", 181, {})
    (scan,) = copied(prior, tmp_path / "copy").files
    assert sorted(str(dcmread(file).SOPInstanceUID) for file in Path(scan).iterdir()) == sorted(
        str(dcmread(file).SOPInstanceUID) for file in thin
    )
    assert prior_of(now[0], shelf, tmp_path / "x", modality=["CR"])[0].outcome == "none"
    eve = write_series(tmp_path / "other", PatientName="Other^Eve", **LATER)
    other, counted = prior_of(eve[0], Shelf(*thin, *thick), tmp_path / "y", modality=["CT"])
    assert (other.outcome, counted) == ("refused", {"priors_refused_other_name": 1})


@pytest.mark.parametrize("where", ["asked", "sent"])
def test_redirections_are_refused(where: str) -> None:
    """An archive that sends who asks elsewhere: neither a question nor a report goes there."""
    came: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

        def do_GET(self) -> None:
            came.append(self.path)
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(307)
            self.send_header("Location", f"http://127.0.0.1:{server.server_address[1]}/elsewhere/studies")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_POST(self) -> None:
            self.do_GET()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    place = Web(url=f"http://127.0.0.1:{server.server_address[1]}/dicom-web")
    try:
        if where == "asked":
            with pytest.raises(NotAnsweredError, match="TooManyRedirects"):
                WebArchive(place, lambda *_: None).studies({"PatientID": CANARY}, soon())
        else:
            target = Target(name="a", formats=("sr-basic",), web=place)
            with pytest.raises(NotStoredError, match="TooManyRedirects"):
                send(target, FORMATS["sr-basic"].bytes_of(finished()))
    finally:
        server.shutdown()
        server.server_close()
    assert len(came) == 1
    assert came[0].startswith("/dicom-web/studies")


def test_a_compressed_list_over_the_limit_is_not_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("radweave.workstation.sending.ROW_BYTES", 1)
    with web(QueryArchive(dicom_image(tmp_path / "a.dcm"))) as archive:
        asks = WebArchive(Web(url=archive.url), lambda *_: None)
        with pytest.raises(NotAnsweredError, match="too long"):
            asks.studies({"PatientID": CANARY}, soon())
        (tmp_path / "to").mkdir()
        held = dcmread(tmp_path / "a.dcm")
        assert asks.fetch(held.StudyInstanceUID, held.SeriesInstanceUID, tmp_path / "to", soon()) == 1
        monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=1 << 29))
        with pytest.raises(NotAnsweredError, match="cannot be kept"):
            asks.fetch(held.StudyInstanceUID, held.SeriesInstanceUID, tmp_path / "to", soon())
