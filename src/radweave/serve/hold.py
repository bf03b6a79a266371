"""One server works on a database at a time: another one would take what this one is drafting for left behind."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from radweave.base.errors import InputError
from radweave.base.locks import exclusive

_NUMBER: Final = 722_811_302
"""Of PostgreSQL's advisory lock; any, but always the same."""


class Hold:
    """The lock of one server on one database: a file beside SQLite's, a connection to PostgreSQL. One thread at a time.

    It goes with the process; PostgreSQL's goes with the connection too, so ``keep`` is called again and again.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._held: ExitStack | None = None
        self._connection: sa.Connection | None = None

    def keep(self) -> None:
        """Take the lock, or look whether it is still there and take it again where it is not.

        Raises:
            InputError: if another server has it.
            OperationalError: if the database does not answer.
        """
        if self._held is not None and self._is_there():
            return
        self.end()
        with ExitStack() as taken:
            if not (self._by_connection if self._engine.dialect.name == "postgresql" else self._by_file)(taken):
                raise InputError("another server works on it", field="--database")
            self._held = taken.pop_all()

    def _is_there(self) -> bool:
        if self._connection is None:
            return True
        try:
            self._connection.exec_driver_sql("SELECT 1")
        except OperationalError:
            return False
        return True

    def _by_file(self, taken: ExitStack) -> bool:
        file = self._engine.url.database
        if not file or file == ":memory:":  # nobody else can open it
            return True
        try:
            taken.enter_context(exclusive(Path(f"{file}.server"), wait=False))
        except BlockingIOError:
            return False
        return True

    def _by_connection(self, taken: ExitStack) -> bool:
        opened = taken.enter_context(self._engine.connect())
        # Back in the pool it would keep its lock.
        taken.callback(opened.invalidate)
        self._connection = opened.execution_options(isolation_level="AUTOCOMMIT")
        return bool(self._connection.execute(sa.select(sa.func.pg_try_advisory_lock(_NUMBER))).scalar_one())

    def end(self) -> None:
        """Let another server have it."""
        held, self._held, self._connection = self._held, None, None
        if held is not None:
            held.close()
