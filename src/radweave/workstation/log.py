"""The log of who did what: append only, each entry with the hash of the one before.

It tells that an entry was changed, taken out or put in. Who can rewrite all of the database can rewrite the log too:
the hash of the last entry, kept elsewhere, tells that as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from radweave.core.storage import sha256_json
from radweave.workstation.database import FIRST_HASH, Database, log, log_head, now
from radweave.workstation.users import user_names


@dataclass(frozen=True, slots=True)
class Checked:
    """What a look through the log found: how many entries, the last hash, and the first entry that is wrong.

    ``altered`` are the entries that say of something signed what the database does not hold any more; 0 stands for what
    no entry says was signed.
    """

    entries: int
    hash: str
    broken: int | None = None
    altered: tuple[int, ...] = ()


def append(
    connection: sa.Connection,
    action: str,
    *,
    user: int | None = None,
    study: str | None = None,
    details: Mapping[str, Any] | None = None,
) -> None:
    """Add an entry in the transaction of what it is about. ``details`` hold counts and versions, no text."""
    head = connection.execute(sa.select(log_head).with_for_update()).one()
    time, held = now(), dict(details or {})
    number = head.number + 1
    entry = _hash(number, time, user, action, study, held, head.hash)
    connection.execute(
        log.insert().values(
            number=number, time=time, user_id=user, action=action, study_id=study, details=held, previous=head.hash,
            hash=entry,
        )
    )  # fmt: skip
    connection.execute(log_head.update().values(number=number, hash=entry))


def _hash(
    number: int, time: datetime, user: int | None, action: str, study: str | None, details: Any, previous: str
) -> str:
    return sha256_json([number, time.isoformat(), user, action, study, details, previous])


def is_whole(row: sa.Row[Any]) -> bool:
    """Whether an entry has its own hash."""
    made = _hash(row.number, row.time, row.user_id, row.action, row.study_id, row.details, row.previous)
    return bool(made == row.hash)


def verify(connection: sa.Connection) -> Checked:
    """Look through the chain of the whole log."""
    previous, number = FIRST_HASH, 0
    for row in connection.execute(sa.select(log).order_by(log.c.number)):
        number += 1
        made = _hash(number, row.time, row.user_id, row.action, row.study_id, row.details, previous)
        if (row.number, row.previous, row.hash) != (number, previous, made):
            return Checked(number, previous, broken=number)
        previous = made
    head = connection.execute(sa.select(log_head)).one()
    if (head.number, head.hash) != (number, previous):
        return Checked(number, previous, broken=number + 1)
    return Checked(number, previous)


def first(connection: sa.Connection, action: str, *, user: int, study: str) -> datetime | None:
    """When a user did something with a study for the first time."""
    wanted = (log.c.study_id == study, log.c.user_id == user, log.c.action == action)
    return connection.execute(sa.select(sa.func.min(log.c.time)).where(*wanted)).scalar()


def note_first(database: Database, action: str, *, user: int, study: str, **details: Any) -> None:
    """Say that a user looked at something of a study, the first time that it did."""
    with database.reading() as connection:
        seen = first(connection, action, user=user, study=study)
    if seen is not None:
        return
    with database.writing() as connection:
        if first(connection, action, user=user, study=study) is None:  # it may have looked twice at once
            append(connection, action, user=user, study=study, details=details)


def entries(
    connection: sa.Connection, *, study: str | None, offset: int, limit: int, newest_first: bool = False
) -> list[dict[str, Any]]:
    """Entries as JSON values, the oldest first unless asked for otherwise; of one study, or all."""
    order = log.c.number.desc() if newest_first else log.c.number
    asked = sa.select(log).order_by(order).offset(offset).limit(limit)
    if study is not None:
        asked = asked.where(log.c.study_id == study)
    names = user_names(connection)
    return [
        {
            "number": row.number, "time": row.time.isoformat(), "user": row.user_id,
            "user_name": names.get(row.user_id), "action": row.action,
            "study": row.study_id, "details": row.details, "previous": row.previous, "hash": row.hash,
        }
        for row in connection.execute(asked)
    ]  # fmt: skip
