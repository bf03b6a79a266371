"""The database: SQLite beside the run, or what a URL names.

    with database.writing() as connection: ...

Readers of SQLite see the last commit while one writer writes (WAL). A writer takes the lock when it begins, so that it
never finds out in the middle that another one was faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, OperationalError

from radweave.base.errors import InputError
from radweave.serve.schema import migrate

BUSY_S = 30
"""How long a writer waits for another one."""


class Database:
    """Transactions of one database; safe to use from threads."""

    def __init__(self, url: str) -> None:
        """Open the database, made or brought to the newest version where it is not.

        Raises:
            InputError: if the URL names none that can be opened, or one of a newer program.
        """
        try:
            self._engine = sa.create_engine(url, **_options(url))
        except (ArgumentError, ImportError, sa.exc.NoSuchModuleError) as error:
            raise InputError(
                "no database that can be used: the URL is none, or its driver is not installed", field="--database",
                got=type(error).__name__, expected="sqlite:///FILE or postgresql+psycopg://...",
            ) from None  # fmt: skip
        if self._engine.dialect.name == "sqlite":
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
        with self._engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """All of the block is written, or nothing of it."""
        with self._engine.connect() as plain:
            connection = plain.execution_options(writes=True)
            with connection.begin():
                yield connection

    def close(self) -> None:
        self._engine.dispose()


def _options(url: str) -> dict[str, Any]:
    return {"connect_args": {"timeout": BUSY_S}} if url.startswith("sqlite") else {"pool_pre_ping": True}


def _set_up_sqlite(connection: Any, record: object) -> None:
    connection.isolation_level = None  # the driver's own BEGIN comes too late; see ``_begin_sqlite``
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
