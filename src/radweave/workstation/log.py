"""Audit log: append only, each entry with the hash of the one before.

The chain reveals changed, removed and inserted entries. Rewriting the whole database can rewrite the log too; a copy of
the last hash kept elsewhere reveals that as well.
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
    """Result of a verification: number of entries, last hash, and the first wrong entry.

    ``altered`` are the entries of signatures that the stored report contradicts; 0 stands for a report signed without
    an entry.
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
    """Add an entry in the transaction of its action. ``details`` hold counts and versions, no text."""
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
    """True if the hash of an entry matches its content."""
    made = _hash(row.number, row.time, row.user_id, row.action, row.study_id, row.details, row.previous)
    return bool(made == row.hash)


def verify(connection: sa.Connection) -> Checked:
    """Verify the hash chain of the whole log."""
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
    """Time of a user's first entry of this action for a study."""
    wanted = (log.c.study_id == study, log.c.user_id == user, log.c.action == action)
    return connection.execute(sa.select(sa.func.min(log.c.time)).where(*wanted)).scalar()


def note_first(database: Database, action: str, *, user: int, study: str, **details: Any) -> None:
    """Log an action of a user on a study, the first time only."""
    with database.reading() as connection:
        earlier = first(connection, action, user=user, study=study)
    if earlier is not None:
        return
    with database.writing() as connection:
        if first(connection, action, user=user, study=study) is None:  # two requests at once
            append(connection, action, user=user, study=study, details=details)


def entries(
    connection: sa.Connection, *, study: str | None, offset: int, limit: int, newest_first: bool = False
) -> list[dict[str, Any]]:
    """Entries of a study, or all, as JSON values, by default the oldest first."""
    order = log.c.number.desc() if newest_first else log.c.number
    query = sa.select(log).order_by(order).offset(offset).limit(limit)
    if study is not None:
        query = query.where(log.c.study_id == study)
    names = user_names(connection)
    return [
        {
            "number": row.number, "time": row.time.isoformat(), "user": row.user_id,
            "user_name": names.get(row.user_id), "action": row.action,
            "study": row.study_id, "details": row.details, "previous": row.previous, "hash": row.hash,
        }
        for row in connection.execute(query)
    ]  # fmt: skip
