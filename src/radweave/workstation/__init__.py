"""The workstation: a local server that receives studies, drafts their reports, and stores edits and signatures.

    serve(Settings(run=Path("run"), state=Path("run.workstation")))

One process answers requests, another holds the model. The database is the queue between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from radweave.core.errors import InputError
from radweave.core.extras import refuse_without
from radweave.workstation.settings import Settings, refuse_contradictions

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from sqlalchemy import Connection

    from radweave.data.importers import OpenSource

__all__ = ["check_log", "correction_importer", "needed", "report", "serve"]


def needed() -> None:
    """Refuse to go on without the packages of the extra.

    Raises:
        InputError: naming the first that is not installed, and the line that installs all.
    """
    refuse_without("serve", "serve")


def serve(settings: Settings) -> None:
    """Serve until a signal comes.

    Raises:
        InputError: if the run, the data set, the database or the extra is not there, or settings contradict each
            other.
    """
    refuse_contradictions(settings)
    needed()
    from radweave.workstation.app import run

    run(settings)


def check_log(settings: Settings) -> str:
    """Verify the log of a workstation; return a summary.

    Raises:
        InputError: if it was changed, naming the first entry that is wrong, or if what was signed was altered,
            naming the entries that say what it was.
    """
    with _reading(settings) as connection:
        from radweave.workstation.drafts import verify

        checked = verify(connection)
    if checked.broken is not None:
        raise InputError("the log was changed", field="entry", got=checked.broken)
    if checked.altered:
        got = ", ".join(map(str, checked.altered))
        raise InputError("a signed report was altered: it differs from the log", field="entry", got=got)
    return f"{checked.entries} entries, each with the hash of the one before; the last is {checked.hash}"


def report(settings: Settings) -> tuple[str, str]:
    """Summary table of the signed studies of a workstation, and all signatures as CSV.

    Raises:
        InputError: if there is no workstation.
    """
    with _reading(settings) as connection:
        from radweave.workstation.reports import as_csv, as_table, signed_studies

        rows = signed_studies(connection)
    return as_table(rows), as_csv(rows)


def correction_importer(database: str | None = None) -> OpenSource:
    """The importer of signed reports, which opens the folder of a workstation; ``database`` is the URL of another."""
    needed()
    from functools import partial

    from radweave.workstation.corrections import open_source

    return partial(open_source, database=database)


def _reading(settings: Settings) -> AbstractContextManager[Connection]:
    """The database of a workstation that was started before."""
    needed()
    from radweave.workstation.database import reading_of

    if settings.database is None and not settings.state.is_dir():
        raise InputError("no workstation was started here", file=settings.state)
    return reading_of(settings.url)
