"""What is to be sent: once for each report, due again later where there is no receipt, and sent only with one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from radweave.core.errors import InputError
from radweave.workstation import drafts, hospital, outbox, store
from radweave.workstation.database import WITHOUT, Database, arms, arrivals, now, studies
from radweave.workstation.database import outbox as table
from radweave.workstation.events import Metrics
from radweave.workstation.hospital import Sender
from radweave.workstation.hospital_plan import Dicom, Target
from radweave.workstation.reports import stored_report
from radweave.workstation.sending import NotStoredError
from radweave.workstation.store import NewStudy
from radweave.workstation.users import User, add_user
from tests.workstation.fake_workers import drafted

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


def test_a_draft_that_a_reader_study_hides_waits_for_its_signature(database: Database) -> None:
    with database.writing() as connection:
        for (study,) in connection.execute(sa.select(studies.c.id)).all():
            connection.execute(arms.insert().values(study_id=study, arm=WITHOUT))
        assert outbox.enqueue(connection, [TARGET]) == 0
        connection.execute(studies.update().values(state="signed"))
        assert outbox.enqueue(connection, [TARGET]) == 1


def store_row(connection: sa.Connection, study: str) -> sa.Row[Any]:
    return connection.execute(sa.select(studies).where(studies.c.id == study)).one()


def sign(connection: sa.Connection, study: str, user: User) -> None:
    """Look at all sentences of the first version and sign it."""
    flagged = [row["key"] for row in drafts.read(connection, study, 1)["sentences"]]
    drafts.mark_reviewed(connection, study, 1, flagged, user)
    drafts.sign(connection, study, 1, 1.0, user)


def rows(database: Database) -> list[Any]:
    with database.reading() as connection:
        return list(connection.execute(sa.select(table)).all())


def look(database: Database, monkeypatch: pytest.MonkeyPatch, outcome: str | Exception) -> list[Any]:
    """The rows after one look of a sender whose archive does this."""

    def send(target: Target, data: bytes, is_stopped: Any) -> str:
        assert [row.state for row in rows(database)] == ["waiting"], "nothing is noted before there is a receipt"
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(hospital, "send", send)
    monkeypatch.setattr(Sender, "_object", lambda self, row: b"")
    Sender(database, (TARGET,), Metrics()).run_once()
    return rows(database)


def test_received_studies_are_reported_once_and_uploads_never(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    (row,) = look(database, monkeypatch, "kept")
    assert (row.state, row.receipt, row.tries) == ("sent", "kept", 1)
    with database.writing() as connection:
        assert outbox.enqueue(connection, [TARGET]) == 0
        assert not outbox.due(connection, [TARGET], 9)


def test_a_draft_is_not_sent_after_its_signed_report(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    both = TARGET.model_copy(update={"events": ("drafted", "signed")})
    sent: list[str] = []
    monkeypatch.setattr(hospital, "send", lambda target, data, is_stopped: sent.append(data.decode()) or "kept")
    monkeypatch.setattr(Sender, "_object", lambda self, row: row.event.encode())
    with database.writing() as connection:
        (study,) = connection.execute(sa.select(arrivals.c.study_id)).scalars()
        name = add_user(connection, "Dr. Weber", role="reader", password=None)
        sign(connection, study, User(name, "Dr. Weber", "reader"))
        assert stored_report(connection, store_row(connection, study), 1).report.signature is not None
        assert stored_report(connection, store_row(connection, study), 1, event="drafted").report.signature is None
    metrics = Metrics()
    Sender(database, (both,), metrics).run_once()
    assert sent == ["signed"]
    result = {row.event: (row.state, row.receipt) for row in rows(database)}
    assert result["signed"][0] == "sent"
    assert result["drafted"] == ("refused", "the study was signed before its draft was sent")
    assert "radweave_reports_superseded_total 1" in metrics.text({}, ready=True)
    Sender(database, (TARGET.model_copy(update={"name": "drafts"}),), metrics).run_once()
    assert sent == ["signed", "drafted"], "who asked for drafts alone gets them"


def test_a_report_without_a_receipt_waits_longer_after_each_attempt(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = []
    for tries in (1, 2, 3):
        (row,) = look(database, monkeypatch, NotStoredError("away"))
        assert (row.state, row.receipt, row.tries) == ("waiting", "away", tries)
        pauses.append(row.due - row.changed)
        with database.writing() as connection:
            assert not outbox.due(connection, [TARGET], 9), "its turn has not come"
            connection.execute(table.update().values(due=now() - timedelta(seconds=1)))
    assert [round(pause.total_seconds()) for pause in pauses] == [1, 2, 4]


def test_a_report_that_cannot_be_made_is_refused_permanently(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    (row,) = look(database, monkeypatch, InputError("is missing", field="StudyInstanceUID"))
    assert (row.state, row.receipt) == ("refused", "StudyInstanceUID: is missing")
