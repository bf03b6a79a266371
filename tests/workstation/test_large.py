"""Uploads of real size and content: what is too much is named, and no name of a patient leaves the image."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from radweave.workstation.inference import main
from radweave.workstation.settings import Settings
from radweave.workstation.station import Station
from tests.image_files import write_dicom
from tests.workstation.fake_workers import IMAGE
from tests.workstation.stations import left_behind, running, upload, wait_for

CANARIES = {
    "PatientName": "Kanarienvogel^Karl", "PatientID": "KANARI-4711", "PatientBirthDate": "19010203",
    "StudyDate": "19991231", "AccessionNumber": "KANARI-ACC", "InstitutionName": "Kanarien Klinik",
    "ReferringPhysicianName": "Kanarienarzt", "StudyInstanceUID": "1.2.3.4711.4712",
}  # fmt: skip


def _zip(*members: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return buffer.getvalue()


def _overlapping() -> bytes:
    """Members that share one packed stream: a small file that says to be large (Fifield's bomb)."""
    data = bytearray(_zip(("a", bytes(50 << 20))))
    at = data.find(b"PK\x01\x02")
    entry, end = bytes(data[at : data.rfind(b"PK\x05\x06")]), bytearray(data[data.rfind(b"PK\x05\x06") :])
    many = 100
    end[8:12] = many.to_bytes(2, "little") * 2
    end[12:16] = (many * len(entry)).to_bytes(4, "little")
    return bytes(data[:at]) + entry * many + bytes(end)


TOO_MUCH: dict[str, tuple[Callable[[], bytes], str]] = {
    "10,000 files": (lambda: _zip(*[(f"{number}.png", b"") for number in range(10_000)]), "at most 2000"),
    "shared members": (_overlapping, "lists a file twice"),
    "a file of one byte again and again": (lambda: _zip(("a.png", bytes(64 << 20))), "archive_ratio"),
}


@pytest.mark.parametrize("kind", TOO_MUCH)
def test_the_usual_limits_hold(kind: str, started: tuple[TestClient, Station]) -> None:
    client, station = started
    make, words = TOO_MUCH[kind]
    answer = upload(client, ("a.zip", make()))
    assert answer.status_code == 400
    assert words in answer.text
    assert left_behind(station.settings) == []


def test_ten_thousand_files_of_a_form(started: tuple[TestClient, Station]) -> None:
    client, station = started
    answer = upload(client, *[(f"{number}.png", b"x") for number in range(10_000)])
    assert (answer.status_code, "2000" in answer.text) == (400, True)
    assert left_behind(station.settings) == []


@pytest.mark.parametrize("hidden", [True, False])
def test_no_patient_leaves_the_image(
    settings: Settings, tmp_path: Path, capfd: pytest.CaptureFixture[str], hidden: bool
) -> None:
    """A readable file and damaged ones through the real process: log, figures, file names, refusals, answers.

    Where patients are not hidden, readers see their headers in the study, on its films and in the work list alone.
    """
    settings = settings.model_copy(update={"hide_patients": hidden})
    good = write_dicom(tmp_path / "good.dcm", **CANARIES).read_bytes()
    cut = good[: len(good) // 2]
    strange = write_dicom(tmp_path / "strange.dcm", **CANARIES, Modality="Kanarien", BodyPartExamined="KANARIENHAND")
    with running(settings, main) as (client, _):
        sent = [("a.dcm", good), ("b.dcm", cut), ("c.dcm", strange.read_bytes()), ("d.dcm", b"Kanarien" * 100)]
        sent.append(("e.zip", _zip(("inner.zip", _zip(("a.png", IMAGE))))))  # not opened: bombs grow by nesting
        ids = [study for one in sent for study in upload(client, one).json().get("studies", [])]
        result = [wait_for(client, study, "drafted", "refused", seconds=240) for study in ids]
        assert result[-1]["state"] == "refused"
        as_text = [json.dumps(one if hidden else {**one, "headers": None}) for one in result]
        for study in ids:
            for place in ("evidence", "log"):
                as_text.append(client.get(f"/api/v1/studies/{study}/{place}").text)
            films = client.get(f"/api/v1/studies/{study}/images").json()
            as_text.append(json.dumps(films if hidden else {**films, "headers": None, "prior_headers": None}))
        as_text.append(client.get("/metrics").text)
        as_text += [str(path) for path in settings.state.rglob("*")]
    out = capfd.readouterr()
    assert out.err.count("\n") > len(ids)
    values = [*CANARIES.values(), "Kanarien", "KANARI"]
    for text in (*as_text, out.err, out.out):
        for value in values:
            assert value.lower() not in text.lower(), (value, text[:500])
