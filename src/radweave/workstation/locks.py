"""Locks of studies: a study that a reader edits is theirs until they leave, sign, log out or are idle.

    with database.writing() as connection:
        acquire(connection, study, user, idle_s=900)

Others see who has it and may read. A change needs the lock and takes one that is free; one that another reader has is
taken over explicitly, which the log records. A lock is a row of the database, whose one writer at a time decides
between two requests, processes and machines.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from radweave.workstation import log
from radweave.workstation.database import locks, now, users
from radweave.workstation.drafts import ConflictError
from radweave.workstation.users import CLOCK_SET_BACK, User

TAKEN_OVER = "lock taken over"


class HeldError(ConflictError):
    """Another reader has the study in hand."""


def is_active(idle_s: float) -> sa.ColumnElement[bool]:
    """Condition of locks in force: renewed within ``idle_s`` seconds, and not in the future of a clock set back."""
    return sa.and_(locks.c.renewed > now() - timedelta(seconds=idle_s), locks.c.renewed < now() + CLOCK_SET_BACK)


def acquire(connection: sa.Connection, study: str, user: User, *, idle_s: float, instead_of: int | None = None) -> None:
    """Take the lock of a study for ``user``, or renew it.

    Args:
        instead_of: the number of the reader to take it over from, whom ``user`` was shown as its holder.

    Raises:
        HeldError: if another reader has it, and is not the one whom ``user`` was shown.
    """
    query = sa.select(locks, users.c.name).join(users, users.c.id == locks.c.user_id)
    held = connection.execute(query.where(locks.c.study_id == study, is_active(idle_s))).first()
    if held is not None and held.user_id == user.id:
        connection.execute(locks.update().where(locks.c.study_id == study).values(renewed=now()))
        return
    if held is not None:
        if held.user_id != instead_of:
            reason = "another reader has this study in hand; take it over first"
            raise HeldError(reason, field="lock", got=held.name, expected=user.name)
        log.append(connection, TAKEN_OVER, user=user.id, study=study, details={"from": held.user_id})
    release(connection, study)
    connection.execute(locks.insert().values(study_id=study, user_id=user.id, since=now(), renewed=now()))


def release(connection: sa.Connection, study: str, user: User | None = None) -> None:
    """Release the lock of a study, only that of ``user`` if given."""
    own = sa.true() if user is None else locks.c.user_id == user.id
    connection.execute(locks.delete().where(locks.c.study_id == study, own))


def holders(connection: sa.Connection, ids: Collection[str], user: User, *, idle_s: float) -> dict[str, dict[str, Any]]:
    """Study -> its lock as JSON values: reader, since when, when it ends unless renewed, and if own."""
    query = sa.select(locks, users.c.name).join(users, users.c.id == locks.c.user_id)
    return {
        row.study_id: {
            "user_id": row.user_id, "user": row.name, "since": row.since.isoformat(),
            "ends": (row.renewed + timedelta(seconds=idle_s)).isoformat(), "is_own": row.user_id == user.id,
        }
        for row in connection.execute(query.where(locks.c.study_id.in_(list(ids)), is_active(idle_s)))
    }  # fmt: skip
