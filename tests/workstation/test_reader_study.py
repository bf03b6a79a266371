"""The table of a reader study: from signatures, by reader, without names of studies."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from radweave.workstation.reports import as_csv, as_table, signed_studies
from radweave.workstation.station import Station
from tests.command_line import radweave
from tests.workstation.fake_workers import IMAGE
from tests.workstation.stations import log_in, one_draft, wait_for


@pytest.fixture
def signed(started: tuple[TestClient, Station]) -> str:
    """A study of which one of two sentences was replaced, by one of two words more; its number."""
    client, _ = started
    study = str(one_draft(client)["id"])
    place = f"/api/v1/studies/{study}"
    edit = {"op": "replace", "key": 1, "text": "There is a large opacity on the left."}
    assert client.patch(f"{place}/sentences", json={"version": 1, "edits": [edit]}).status_code == 200
    assert client.post(f"{place}/sign", json={"version": 2, "seconds": 61.25}).status_code == 200
    return study


def test_counts_of_a_signed_study(signed: str, started: tuple[TestClient, Station]) -> None:
    with started[1].database.reading() as connection:
        (row,) = csv.DictReader(io.StringIO(as_csv(signed_studies(connection))))
    assert row.pop("signed").startswith("20")
    assert row == {
        "study": signed, "reader": "admin", "seconds": "61.2", "versions": "2", "words_changed": "2",
        "words_drafted": "11", "sentences_drafted": "2", "sentences_accepted": "1", "sentences_signed": "2",
        "sentences_flagged": "1", "method": "none", "weights": "",
    }  # fmt: skip


def test_the_table_has_a_line_for_each_reader_and_one_for_all(signed: str, started: tuple[TestClient, Station]) -> None:
    client, station = started
    csrf = log_in(client, "@SUM(1)")
    files = [("files", ("chest.png", io.BytesIO(IMAGE)))]
    (study,) = client.post("/api/v1/studies", files=files, headers=csrf).json()["studies"]
    wait_for(client, study, "drafted")
    for action, body in (("looked", {"version": 1, "sentences": [1]}), ("sign", {"version": 1, "seconds": 20})):
        assert client.post(f"/api/v1/studies/{study}/{action}", json=body, headers=csrf).status_code == 200
    with station.database.reading() as connection:
        rows = signed_studies(connection)
    lines = as_table(rows).splitlines()
    assert [line.split()[0] for line in lines] == ["reader", "@SUM(1)", "admin", "all"]
    assert "3 of 4 (75 %)" in lines[-1]
    # A spreadsheet must not run a reader's name.
    assert "'@SUM(1)" in as_csv(rows)


def test_the_command_prints_and_writes(
    signed: str, started: tuple[TestClient, Station], toy_run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "study.csv"
    command = ("serve", "report", toy_run, "--database", started[1].settings.url, "--csv", out)
    done = radweave(*command)
    assert (done.returncode, "1 of 2 (50 %)" in done.stdout, signed in out.read_text()) == (0, True, True)
    repeated = radweave(*command)
    assert (repeated.returncode, "--overwrite" in repeated.stderr) == (2, True)
    assert radweave(*command, "--overwrite").returncode == 0


def test_without_a_workstation_there_is_no_table(tmp_path: Path) -> None:
    done = radweave("serve", "report", tmp_path / "run")
    assert (done.returncode, "no workstation was started" in done.stderr) == (2, True)
    assert not (tmp_path / "run.workstation").exists()
