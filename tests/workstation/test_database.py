"""The database: its log, its versions, its times; and what is said where the extra is not there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
import sqlalchemy as sa

from radweave.core.errors import InputError
from radweave.workstation import log
from radweave.workstation.database import MIGRATIONS, NEWEST, Database, migrate, tokens, users
from radweave.workstation.database import log as log_table
from radweave.workstation.drafts import edit_distance
from radweave.workstation.store import NewStudy, add
from radweave.workstation.users import add_user, by_password, by_session, by_token, first_token, open_session
from tests.command_line import radweave

FOLDED = next(number for number, step in MIGRATIONS.items() if step.__name__ == "_add_folded_names")


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    opened = Database(url)
    with opened.writing() as connection:
        for number in range(3):
            log.append(connection, "opened", user=1, study="s", details={"version": number})
    yield opened
    opened.close()


TAMPERED = {
    "an entry changed": ("UPDATE log SET user_id = 2 WHERE number = 2", 2),
    "an entry taken out": ("DELETE FROM log WHERE number = 2", 2),
    "the end cut off": ("DELETE FROM log WHERE number = 3", 3),
    "all taken out": ("DELETE FROM log", 1),
}
TRIGGERS = {"sqlite": ("log_no_update", "log_no_delete"), "postgresql": ("log_append_only ON log",)}


@pytest.mark.parametrize("kind", TAMPERED)
def test_a_changed_log_is_found(kind: str, database: Database, url: str) -> None:
    statement, broken = TAMPERED[kind]
    with database.reading() as connection:
        assert log.verify(connection).broken is None
        assert log.verify(connection).entries == 3
    raw = sa.create_engine(url)
    with pytest.raises(sa.exc.DBAPIError, match="append only"), raw.begin() as connection:
        connection.exec_driver_sql(statement)
    with raw.begin() as connection:
        for trigger in TRIGGERS[raw.dialect.name]:
            connection.exec_driver_sql(f"DROP TRIGGER {trigger}")
        connection.exec_driver_sql(statement)
    raw.dispose()
    with database.reading() as connection:
        assert log.verify(connection).broken == broken


def test_a_changed_entry_with_recomputed_hashes_is_found(database: Database, url: str) -> None:
    with database.reading() as connection:
        second, third = connection.execute(sa.select(log_table).order_by(log_table.c.number)).all()[1:]
    made = log._hash(2, second.time, 2, second.action, second.study_id, second.details, second.previous)
    raw = sa.create_engine(url)
    with raw.begin() as connection:
        for trigger in TRIGGERS[raw.dialect.name]:
            connection.exec_driver_sql(f"DROP TRIGGER {trigger}")
        connection.execute(log_table.update().where(log_table.c.number == 2).values(user_id=2, hash=made))
        connection.execute(log_table.update().where(log_table.c.number == 3).values(previous=made))
    raw.dispose()
    assert third.previous != made
    with database.reading() as connection:
        assert log.verify(connection).broken == 3


def test_a_session_ends_with_its_time_and_is_known_by_its_own_secret(database: Database) -> None:
    with database.writing() as connection:
        user = by_token(connection, str(first_token(connection)))
        assert user is not None
        over, _ = open_session(connection, user, seconds=-1)
        assert by_session(connection, over) is None, "though it is not yet removed"
        secret, csrf = open_session(connection, user, seconds=60)
        assert by_session(connection, f"{secret}x") is None
        result = by_session(connection, secret)
    assert result is not None
    assert (result.id, result.csrf) == (user.id, csrf)


def test_the_command_checks_the_log(database: Database, url: str, tmp_path: Path) -> None:
    done = radweave("serve", tmp_path / "run", "--database", url, "--verify-log")
    assert (done.returncode, done.stdout[:10]) == (0, "3 entries,")
    with database.writing() as connection:
        connection.exec_driver_sql("UPDATE log_head SET number = 4")
    assert radweave("serve", tmp_path / "run", "--database", url, "--verify-log").returncode == 2


def test_an_older_database_is_brought_up_and_a_newer_one_refused(database: Database) -> None:
    def step(connection: sa.Connection) -> None:
        connection.exec_driver_sql("ALTER TABLE studies ADD COLUMN hint TEXT")

    with database.writing() as connection:
        migrate(connection, steps={NEWEST + 1: step}, newest=NEWEST + 1)
        assert "hint" in [column["name"] for column in sa.inspect(connection).get_columns("studies")]
        with pytest.raises(InputError, match="newer"):
            migrate(connection, newest=NEWEST)


@pytest.mark.parametrize(
    ("version", "older"),
    [
        (1, ("ALTER TABLE sentences DROP COLUMN section", "ALTER TABLE sentences DROP COLUMN details",
             "ALTER TABLE drafts DROP COLUMN restores")),
        (2, ("DROP TABLE outbox", "DROP TABLE arrivals")),
        (5, ("ALTER TABLE asked DROP COLUMN images",)),
        (8, ("DROP TABLE refusals",)),
        (9, ("DROP TABLE locks", "ALTER TABLE studies DROP COLUMN priority")),
        (10, ("DROP TABLE arms",)),
    ],
)  # fmt: skip
def test_an_older_database_gets_all_tables_and_columns(
    version: int, older: tuple[str, ...], database: Database
) -> None:
    with database.writing() as connection:
        add(connection, NewStudy("a"), owner=None)
        new = _columns(connection)
        for statement in (*older, f"UPDATE schema_version SET version = {version}"):
            connection.exec_driver_sql(statement)
        assert _columns(connection) != new
        migrate(connection)
        assert _columns(connection) == new
        assert connection.exec_driver_sql("SELECT version FROM schema_version").scalar_one() == NEWEST
        assert connection.exec_driver_sql("SELECT priority FROM studies").scalar_one() == "routine"


def _columns(connection: sa.Connection) -> dict[str, set[str]]:
    result = sa.inspect(connection)
    return {table: {column["name"] for column in result.get_columns(table)} for table in result.get_table_names()}


def test_a_step_that_fails_leaves_the_old_version(database: Database) -> None:
    def step(connection: sa.Connection) -> None:
        connection.exec_driver_sql("ALTER TABLE studies ADD COLUMN hint TEXT")
        raise RuntimeError

    with pytest.raises(RuntimeError), database.writing() as connection:
        migrate(connection, steps={NEWEST + 1: step}, newest=NEWEST + 1)
    with database.reading() as connection:
        assert "hint" not in [column["name"] for column in sa.inspect(connection).get_columns("studies")]


def test_times_are_utc(database: Database) -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    with database.writing() as connection:
        connection.execute(users.insert().values(name="n", role="reader", created=noon))
        retained = connection.execute(sa.select(users.c.created)).scalar_one()
    assert (retained, retained.tzinfo) == (noon, UTC)


def test_secrets_cannot_be_read_from_the_database(database: Database) -> None:
    with database.writing() as connection:
        token = first_token(connection)
        assert token is not None
        assert first_token(connection) is None
        add_user(connection, "r", role="reader", password="long enough words")
        retained = str(connection.execute(sa.select(tokens)).all() + connection.execute(sa.select(users)).all())
        assert token not in retained
        assert "long enough words" not in retained
        assert "$argon2id$" in retained
        assert by_token(connection, token) is not None
        assert by_password(connection, "r", "long enough words") is not None
        assert by_password(connection, "r", "another password") is None
        assert by_password(connection, "admin", "") is None
        for wrong in ({"role": "king"}, {"password": "short"}, {"name": "r"}):
            with pytest.raises(InputError):
                add_user(connection, **{"name": "x", "role": "reader", "password": None, **wrong})


@pytest.mark.parametrize(
    ("before", "after", "distance"),
    [
        ("", "", 0),
        ("a b c", "", 3),
        ("", "a b", 2),
        ("a b c", "a x c", 1),
        ("a b c d", "b c d e", 2),
        ("a b", "b a", 2),
    ],
)
def test_edit_distance(before: str, after: str, distance: int) -> None:
    assert edit_distance(before.split(), after.split()) == distance


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("radweave.core.extras.EXTRAS", {"serve": ("no_such_package",)})
    done = radweave("serve", tmp_path)
    assert done.returncode == 2
    assert "pip install 'radweave[serve]'" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_database_that_cannot_be_opened_does_not_show_its_password() -> None:
    with pytest.raises(InputError) as error:
        Database("sqlite:////no/such/folder/a.db")
    assert error.value.field == "--database"
    with pytest.raises(InputError):
        Database("nosuch://user:geheim@host/x")


def test_a_reader_has_one_view_while_another_writes(database: Database) -> None:
    def count(connection: sa.Connection) -> int:
        return int(connection.execute(sa.select(sa.func.count()).select_from(log_table)).scalar_one())

    with database.reading() as reader:
        before = count(reader)
        with database.writing() as writer:
            log.append(writer, "opened", user=1)
        assert count(reader) == before
    with database.reading() as reader:
        assert count(reader) == before + 1


def test_writers_in_opposite_order_do_not_deadlock(database: Database) -> None:
    """Each reads what the other one writes; whoever comes second sees what the first one did."""
    with database.writing() as connection:
        ids = [add_user(connection, name, role="reader", password=None) for name in ("a", "b")]
    both, failed = threading.Barrier(2), []

    def write(first: int, second: int) -> None:
        both.wait()
        try:
            for _ in range(20):
                with database.writing() as connection:
                    for number in (first, second):
                        connection.execute(users.update().where(users.c.id == number).values(role="admin"))
                    log.append(connection, "opened", user=first)
        except sa.exc.DBAPIError as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=order) for order in (ids, ids[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    with database.reading() as connection:
        assert log.verify(connection) == log.Checked(43, log.verify(connection).hash)


def test_an_older_database_gets_folded_names_and_keeps_look_alikes(database: Database) -> None:
    with database.writing() as connection:
        new = _columns(connection)
        first = add_user(connection, "Anna", role="reader", password="long enough words")
        connection.execute(users.insert().values(name="аnna", role="reader", created=datetime.now(UTC)))  # Cyrillic
        connection.exec_driver_sql("UPDATE users SET folded = NULL")
        connection.exec_driver_sql(f"UPDATE schema_version SET version = {FOLDED - 1}")
        migrate(connection)
        assert _columns(connection) == new
        rows = connection.execute(sa.select(users.c.name, users.c.folded).order_by(users.c.id)).all()
        assert [tuple(row) for row in rows] == [("Anna", "anna"), ("аnna", None)]
        result = by_password(connection, "ANNA", "long enough words")
        assert result is not None
        assert result.id == first
        assert by_password(connection, "аnna", "long enough words") is None
