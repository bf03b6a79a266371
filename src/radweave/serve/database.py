"""The database: SQLite beside the run, or what a URL names.

    with database.writing() as connection: ...

One writer writes at a time and takes its lock when it begins, so that it never finds out in the middle that another one
was faster; readers see the last commit meanwhile. SQLite does so by itself (WAL, ``BEGIN IMMEDIATE``); on PostgreSQL a
writer holds an advisory lock, and a reader has one snapshot (``REPEATABLE READ``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, OperationalError

from radweave.base.errors import InputError
from radweave.base.extras import refuse_without
from radweave.serve.hold import Hold
from radweave.serve.schema import migrate

BUSY_S = 30
"""How long a writer waits for another one."""
_NUMBER: Final = 722_811_301
"""Of PostgreSQL's advisory lock; any, but always the same."""
_LARGEST: Final = (1 << 31) - 1
_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "sqlite": {"connect_args": {"timeout": BUSY_S}},
    # Connections that a server that was started again has closed are noticed before they are used.
    "postgresql": {
        "connect_args": {"connect_timeout": 10, "options": f"-c lock_timeout={BUSY_S}s"}, "pool_pre_ping": True,
    },
}  # fmt: skip
_READING: Final[dict[str, dict[str, Any]]] = {
    "sqlite": {},
    "postgresql": {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True},
}


class Database:
    """Transactions of one database; safe to use from threads."""

    def __init__(self, url: str) -> None:
        """Open the database, made or brought to the newest version where it is not.

        Raises:
            InputError: if the URL names none that can be opened, one whose extra is not installed, or one of a newer
                program.
        """
        try:
            kind = sa.make_url(url).get_backend_name()
            if kind == "postgresql":
                refuse_without("postgres", "a PostgreSQL database", field="--database")
            self._engine = sa.create_engine(url, **_OPTIONS[kind])
        except (ArgumentError, ImportError, KeyError, sa.exc.NoSuchModuleError) as error:
            raise InputError(
                "no database that can be used: the URL is none, or its driver is not installed", field="--database",
                got=type(error).__name__, expected="sqlite:///FILE or postgresql+psycopg://...",
            ) from None  # fmt: skip
        self._reading = _READING[kind]
        sa.event.listen(self._engine, "before_cursor_execute", _refuse_unstorable)
        self.hold = Hold(self._engine)
        if kind == "sqlite":
            sa.event.listen(self._engine, "connect", _set_up_sqlite)
            sa.event.listen(self._engine, "begin", _begin_sqlite)
        try:
            with self.writing() as connection:
                migrate(connection)
        except OperationalError:
            # What the driver says may hold the password of the URL.
            raise InputError("cannot be opened", field="--database", got=self._engine.url.render_as_string()) from None

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """One view of the data, which nobody else's writing changes."""
        with self._engine.connect() as plain:
            connection = plain.execution_options(**self._reading)
            with connection.begin():
                yield connection

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """All of the block is written, or nothing of it; nobody else writes meanwhile."""
        with self._engine.connect() as plain:
            connection = plain.execution_options(writes=True)
            with connection.begin():
                if self._engine.dialect.name == "postgresql":
                    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_NUMBER)))
                yield connection

    def close(self) -> None:
        self.hold.end()
        self._engine.dispose()


def _refuse_unstorable(
    connection: sa.Connection, cursor: object, statement: str, parameters: Any, context: object, many: bool
) -> None:
    """One rule for all that comes from outside, wherever it goes: text that is text, numbers of usual size.

    Raises:
        InputError: for what one database keeps, the other refuses, and neither finds again.
    """
    for row in parameters if many else [parameters]:
        for value in row.values() if isinstance(row, Mapping) else row:
            if isinstance(value, str) and not _is_text(value):
                raise InputError("holds what is no text: NUL, or half a character")
            if isinstance(value, int) and abs(value) > _LARGEST:
                raise InputError("holds a number that is too large")


def _is_text(value: str) -> bool:
    if value.isascii():
        return "\0" not in value
    return "\0" not in value and not any("\ud800" <= character <= "\udfff" for character in value)


def _set_up_sqlite(connection: Any, record: object) -> None:
    connection.isolation_level = None  # the driver's own BEGIN comes too late; see ``_begin_sqlite``
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
