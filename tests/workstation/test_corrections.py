"""What readers signed as a data set: only as it was signed, by patient, with the drafts beside it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from radweave.data.dataset import Dataset
from radweave.engine.train import train
from radweave.workstation.corrections import _part
from radweave.workstation.database import NEWEST, studies
from radweave.workstation.settings import Settings
from radweave.workstation.station import Station
from tests.command_line import radweave
from tests.image_files import write_dicom
from tests.toys import TOY_OVERRIDES, TOY_SIZES
from tests.workstation.stations import running, upload, wait_for

PATIENTS = 8
NAME = "Canary^Casey"


def sign(client: TestClient, study: str, *texts: str) -> None:
    """Add sentences to a draft, look at all of it and sign it after 20 seconds."""
    place = f"/api/v1/studies/{study}"
    edits = [{"op": "insert", "text": text} for text in texts]
    if edits:
        assert client.patch(f"{place}/sentences", json={"version": 1, "edits": edits}).status_code == 200
    draft = client.get(place).json()["draft"]
    keys = [row["key"] for row in draft["sentences"]]
    assert client.post(f"{place}/looked", json={"version": draft["version"], "sentences": keys}).status_code == 200
    answer = client.post(f"{place}/sign", json={"version": draft["version"], "seconds": 20})
    assert answer.status_code == 200, answer.text


@pytest.fixture
def station(settings: Settings, tmp_path: Path) -> Iterator[tuple[TestClient, Station, list[str]]]:
    """A workstation with two signed studies of each patient, a year apart, and one that is not signed."""
    with running(settings) as (client, opened):
        ids = []
        for number in range(2 * PATIENTS + 1):
            fields = {
                "PatientID": f"CANARY-{number // 2}", "PatientName": f"{NAME}{number // 2}",
                "StudyDate": f"{2020 + number % 2}0504", "StudyTime": "120000", "StudyInstanceUID": f"1.2.{number + 1}",
                "SOPInstanceUID": f"1.2.3.{number + 1}", "Modality": "DX", "BodyPartExamined": "CHEST",
                "ViewPosition": "PA", "PatientBirthDate": "19500101",
            }  # fmt: skip
            image = np.random.default_rng(number).random((40, 48))
            path = write_dicom(tmp_path / f"{number}.dcm", image, **fields)
            (study,) = upload(client, (f"canary-{number}.dcm", path.read_bytes())).json()["studies"]
            wait_for(client, study, "drafted")
            ids.append(study)
        for number, study in enumerate(ids[:-1]):
            sign(client, study, *([f"Edited {number % 3} times."] if number % 2 else []))
        yield client, opened, ids


def imported(state: Path, out: Path, *options: object) -> Any:
    return radweave("data", "import", "corrections", state, "--out", out, *options)


def test_signed_studies_become_a_data_set_that_trains(
    station: tuple[TestClient, Station, list[str]], settings: Settings, tmp_path: Path
) -> None:
    _, opened, ids = station
    url = ["--database", settings.url] if settings.database else []
    done = imported(settings.state, tmp_path / "set", *url)
    assert done.returncode == 0, done.stderr
    dataset = Dataset.open(tmp_path / "set")
    found = {study.study_id: study for split in ("train", "val", "test") for study in dataset.studies(split)}
    assert set(found) == set(ids[:-1]), "what is not signed is not there"
    assert found[ids[1]].report == "Edited 1 times. The heart is normal. There is an opacity on the left."
    assert found[ids[0]].report == "The heart is normal. There is an opacity on the left."
    by_patient: dict[str, set[str]] = {}
    for study in found.values():
        by_patient.setdefault(study.patient_id, set()).add(str(study.split))
    assert len(by_patient) == PATIENTS
    assert {len(parts) for parts in by_patient.values()} == {1}
    assert [found[ids[number]].prior for number in (0, 1)] == [None, ids[0]]
    assert {str(image.view) for image in found[ids[0]].images} == {"PA"}
    pairs = [json.loads(line) for line in (tmp_path / "set" / "corrections.jsonl").read_text().splitlines()]
    (pair,) = [row for row in pairs if row["study_id"] == ids[1]]
    assert pair == {
        "study_id": ids[1], "draft": "The heart is normal. There is an opacity on the left.",
        "signed": found[ids[1]].report, "seconds": 20.0, "reader": 1, "words_changed": 3, "sentences_drafted": 2,
        "sentences_accepted": 2, "method": "none", "weights": None,
    }  # fmt: skip
    with opened.database.reading() as connection:
        from radweave.workstation.database import log_head

        head = connection.execute(log_head.select()).one()
    assert any(head.hash in note for note in dataset.card.notes)
    names = ("manifest.jsonl", "corrections.jsonl", "dataset.json")
    text = "".join((tmp_path / "set" / name).read_text() for name in names)
    for secret in ("CANARY", "canary", "Casey", "20200504", "20210504", "19500101", str(settings.state)):
        assert secret not in text, secret
    overrides = [*TOY_OVERRIDES, *TOY_SIZES["baseline"], "stages.report.epochs=1"]
    assert imported(settings.state, tmp_path / "cut", "--split", "6:1:1", *url).returncode == 0
    assert (train("baseline", tmp_path / "cut", tmp_path / "run", overrides=overrides) / "weights.safetensors").exists()


def test_an_altered_report_and_a_moved_folder(
    station: tuple[TestClient, Station, list[str]], settings: Settings, tmp_path: Path
) -> None:
    _, opened, ids = station
    if settings.database:
        pytest.skip("the folder of SQLite is moved whole")
    with opened.database.writing() as connection:
        connection.execute(studies.update().where(studies.c.id == ids[2]).values(name="another"))
    opened.stop()
    shutil.move(settings.state, tmp_path / "moved")
    done = imported(tmp_path / "moved", tmp_path / "set", "--link")
    assert (done.returncode, "left out: 1 x differs from the signed report" in done.stdout) == (0, True)
    assert ids[2] not in (tmp_path / "set" / "manifest.jsonl").read_text()
    assert ids[2] not in (tmp_path / "set" / "corrections.jsonl").read_text()


def test_another_version_or_no_workstation_is_refused_and_nothing_changes(
    station: tuple[TestClient, Station, list[str]], settings: Settings, tmp_path: Path
) -> None:
    _, opened, _ = station
    url = ["--database", settings.url] if settings.database else []
    with opened.database.writing() as connection:
        connection.exec_driver_sql(f"UPDATE schema_version SET version = {NEWEST - 1}")
    done = imported(settings.state, tmp_path / "set", *url)
    assert (done.returncode, f"version {NEWEST - 1}" in done.stderr) == (2, True)
    with opened.database.reading() as connection:
        assert connection.exec_driver_sql("SELECT version FROM schema_version").scalar() == NEWEST - 1
    (tmp_path / "empty").mkdir()
    done = imported(tmp_path / "empty", tmp_path / "set")
    assert (done.returncode, "is no workstation's folder" in done.stderr) == (2, True)
    assert list((tmp_path / "empty").iterdir()) == []
    assert not (tmp_path / "set").exists()
    done = radweave("data", "import", "folder", tmp_path / "empty", "--out", tmp_path / "set", "--database", "x")
    assert (done.returncode, "--database" in done.stderr) == (2, True)
    assert "corrections" in radweave("data", "import", "correction", tmp_path, "--out", tmp_path / "set").stderr


def test_parts_are_of_the_stated_sizes_and_depend_on_the_patient_alone() -> None:
    parts = [_part(f"{int((number + 0.5) / 1000 * 0xFFFFFFFF):08x}{'0' * 56}") for number in range(1000)]
    assert [parts.count(part) for part in ("train", "val", "test")] == [700, 100, 200]
