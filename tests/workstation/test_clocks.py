"""A clock that is set back or forward: nothing waits for the time that was, and nothing is valid for longer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from radweave.workstation import database as schema
from radweave.workstation import hospital, outbox, store, users
from radweave.workstation.archive import FoundStudy, found_study
from radweave.workstation.database import Database
from radweave.workstation.hospital import Arrivals
from radweave.workstation.hospital_plan import Dicom, Route, Target
from radweave.workstation.store import NewStudy
from tests.workstation.fake_workers import drafted
from tests.workstation.hospitals import image

TARGET = Target(name="archive", formats=("sr-basic",), events=("drafted",), dicom=Dicom(host="h", port=1, ae_title="A"))
Shift = Callable[[timedelta], None]
DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)


@pytest.fixture
def shift(monkeypatch: pytest.MonkeyPatch) -> Shift:
    """Sets the clock of the server, and nothing else."""
    honest = schema.now
    moved = [timedelta(0)]

    def now() -> datetime:
        return honest() + moved[0]

    for module in (outbox, hospital, users, store):
        monkeypatch.setattr(module, "now", now)

    def set_to(by: timedelta) -> None:
        moved[0] = by

    return set_to


def due(database: Database) -> int:
    with database.writing() as connection:
        return len(outbox.due(connection, [TARGET], 9))


def failed(database: Database) -> None:
    with database.writing() as connection:
        for row in outbox.due(connection, [TARGET], 9):
            outbox.later(connection, row, "away")


@pytest.mark.parametrize("tries", [0, 1, 5])
@pytest.mark.parametrize("back", [2 * MINUTE, DAY])
def test_a_report_is_sent_though_the_clock_was_set_back(
    database: Database, shift: Shift, tries: int, back: timedelta
) -> None:
    with database.writing() as connection:
        study = store.add(connection, NewStudy("a"), owner=None)
        store.claim(connection, 1)
        store.finish(connection, study, drafted(study))
        outbox.arrived(connection, study)
        assert outbox.enqueue(connection, [TARGET]) == 1
    for number in range(tries):
        shift(number * 20 * MINUTE)
        failed(database)
    if tries:
        assert due(database) == 0  # it waits, as long as the clock goes on
    last = max(0, tries - 1) * 20 * MINUTE
    shift(last - back)
    assert due(database) == 1
    failed(database)
    assert due(database) == 0  # and waits again, by the new clock
    shift(last - back + 20 * MINUTE)
    assert due(database) == 1


def named(number: int) -> FoundStudy:
    query_row = {"StudyInstanceUID": "1.2.3", "NumberOfStudyRelatedInstances": str(number)}
    result = found_study(query_row)
    assert result is not None
    return result


def test_a_study_of_an_archive_is_fetched_though_the_clock_was_set_back(database: Database, shift: Shift) -> None:
    def is_settled(by: timedelta, quiet_s: float = 30, number: int = 2) -> bool:
        shift(by)
        with database.writing() as connection:
            return hospital.note_listed(connection, "archive", named(number), quiet_s)

    assert not is_settled(timedelta(0))
    assert not is_settled(-DAY)  # it is as if it had come now
    assert not is_settled(MINUTE / 4 - DAY)
    assert is_settled(MINUTE - DAY)
    with database.writing() as connection:
        hospital.retry_later(connection, "archive", named(2))
        assert not hospital.note_listed(connection, "archive", named(2), 0)
    assert is_settled(2 * MINUTE - DAY)
    shift(timedelta(0))
    with database.writing() as connection:
        hospital.retry_later(connection, "archive", named(2))
    assert is_settled(-3 * DAY, quiet_s=0)
    assert not is_settled(-3 * DAY, number=3)


def test_a_login_lasts_no_longer_though_the_clock_was_set_back(database: Database, shift: Shift) -> None:
    with database.writing() as connection:
        users.add_user(connection, "reader", role="reader", password=None)
        row = connection.execute(schema.users.select()).one()
        secret, _ = users.open_session(connection, users.User(row.id, row.name, row.role), seconds=3600)

    def is_open(by: timedelta) -> bool:
        shift(by)
        with database.reading() as connection:
            return users.by_session(connection, secret) is not None

    assert is_open(timedelta(0))
    assert is_open(-MINUTE)
    assert is_open(59 * MINUTE)
    assert not is_open(61 * MINUTE)
    assert not is_open(-DAY)


@pytest.mark.parametrize("by_s", [-86_400.0, 86_400.0])
def test_received_studies_wait_by_the_monotonic_clock(
    tmp_path: Path, by_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are of another day than the server's clock says, one way or the other."""
    taken: list[int] = []
    clock = [1000.0]
    looking = Arrivals({"": (Route(),)}, 10, tmp_path, lambda files, *_: not taken.append(len(files)), lambda _: None)
    monkeypatch.setattr("radweave.workstation.hospital.time.monotonic", lambda: clock[0])

    def look(seconds: float) -> list[int]:
        clock[0] += seconds
        looking.run_once()
        return taken

    place = tmp_path / "association"
    place.mkdir()
    image(place / "1.dcm", StudyInstanceUID="1.2.3")
    os.utime(place / "1.dcm", times=(time.time() + by_s,) * 2)
    assert look(0) == []
    assert look(9) == []
    place.mkdir()
    image(place / "2.dcm", StudyInstanceUID="1.2.3")
    assert look(9) == []  # more came
    assert look(9) == []
    assert look(2) == [2]
    assert not any((tmp_path / "studies").iterdir())
