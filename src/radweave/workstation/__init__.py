"""The workstation: a server on this machine that takes studies in, drafts them, and keeps what readers make of it.

    serve(Settings(run=Path("run"), state=Path("run.workstation")))

One process answers requests, another one holds the model. The database is the queue between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from radweave.core.errors import InputError
from radweave.core.extras import refuse_without
from radweave.workstation.settings import Settings

if TYPE_CHECKING:
    from sqlalchemy import Connection

__all__ = ["check_log", "needed", "report", "serve"]


def needed() -> None:
    """Look for the packages of the extra, before anything else is done.

    Raises:
        InputError: naming the first that is not installed, and the line that installs all.
    """
    refuse_without("serve", "serve")


def serve(settings: Settings) -> None:
    """Serve until a signal comes.

    Raises:
        InputError: if the run, the data set, the database or the extra is not there.
    """
    needed()
    from radweave.workstation.app import run

    run(settings)


def check_log(settings: Settings) -> str:
    """Look through the log of a workstation; return what to say of it.

    Raises:
        InputError: if it was changed, naming the first entry that is wrong, or if what was signed was altered,
            naming the entries that say what it was.
    """
    with _reading(settings) as connection:
        from radweave.workstation.drafts import verify

        found = verify(connection)
    if found.broken is not None:
        raise InputError("the log was changed", field="entry", got=found.broken)
    if found.altered:
        got = ", ".join(map(str, found.altered))
        raise InputError("what was signed was altered: it is not what the log says", field="entry", got=got)
    return f"{found.entries} entries, each with the hash of the one before; the last is {found.hash}"


def report(settings: Settings) -> tuple[str, str]:
    """What readers made of the drafts of a workstation: a table to look at, and all signatures as CSV.

    Raises:
        InputError: if there is no workstation.
    """
    with _reading(settings) as connection:
        from radweave.workstation.reports import as_csv, as_table, signed_studies

        rows = signed_studies(connection)
    return as_table(rows), as_csv(rows)


@contextmanager
def _reading(settings: Settings) -> Iterator[Connection]:
    """The database of a workstation that was started before."""
    needed()
    from radweave.workstation.database import Database

    if settings.database is None and not settings.state.is_dir():
        raise InputError("no workstation was started here", file=settings.state)
    database = Database(settings.url)
    try:
        with database.reading() as connection:
            yield connection
    finally:
        database.close()
