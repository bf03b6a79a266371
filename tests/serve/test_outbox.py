"""What is to be sent: once for each report, due again later where there is no receipt, and sent only with one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from stand_ins import drafted

from radweave.base.errors import InputError
from radweave.hospital.plan import Dicom, Target
from radweave.hospital.sending import NotKeptError
from radweave.serve import outbox, sender, store
from radweave.serve.database import Database
from radweave.serve.metrics import Metrics
from radweave.serve.schema import now
from radweave.serve.schema import outbox as table
from radweave.serve.sender import Sender
from radweave.serve.store import NewStudy

TARGET = Target(name="archive", formats=("sr-basic",), events=("drafted",), dicom=Dicom(host="h", port=1, ae_title="A"))


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    opened = Database(url)
    with opened.writing() as connection:
        for arrived in (True, False):
            study = store.add(connection, NewStudy("a"), owner=None)
            store.claim(connection, 1)
            store.finish(connection, study, drafted(study))
            if arrived:
                outbox.arrived(connection, study)
    yield opened
    opened.close()


def rows(database: Database) -> list[Any]:
    with database.reading() as connection:
        return list(connection.execute(sa.select(table)).all())


def look(database: Database, monkeypatch: pytest.MonkeyPatch, outcome: str | Exception) -> list[Any]:
    """The rows after one look of a sender whose archive does this."""

    def send(target: Target, data: bytes) -> str:
        assert [row.state for row in rows(database)] == ["waiting"], "nothing is noted before there is a receipt"
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(sender, "send", send)
    monkeypatch.setattr(Sender, "_object", lambda self, row: b"")
    Sender(database, (TARGET,), Metrics()).look()
    return rows(database)


def test_what_arrived_is_sent_once_and_what_was_uploaded_never(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    (row,) = look(database, monkeypatch, "kept")
    assert (row.state, row.receipt, row.tries) == ("sent", "kept", 1)
    with database.writing() as connection:
        assert outbox.enqueue(connection, [TARGET]) == 0
        assert not outbox.due(connection, [TARGET], 9)


def test_without_a_receipt_it_waits_longer_after_each_try(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = []
    for tries in (1, 2, 3):
        (row,) = look(database, monkeypatch, NotKeptError("away"))
        assert (row.state, row.receipt, row.tries) == ("waiting", "away", tries)
        pauses.append(row.due - row.changed)
        with database.writing() as connection:
            assert not outbox.due(connection, [TARGET], 9), "its turn has not come"
            connection.execute(table.update().values(due=now() - timedelta(seconds=1)))
    assert [round(pause.total_seconds()) for pause in pauses] == [1, 2, 4]


def test_what_cannot_be_made_is_refused_for_good(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = look(database, monkeypatch, InputError("is missing", field="StudyInstanceUID"))
    assert (row.state, row.receipt) == ("refused", "StudyInstanceUID: is missing")
