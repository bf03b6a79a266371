"""Refused studies whose images can be shown, and their draft all the same, where a user with the right to it asks.

    POST /api/v1/studies/ID/anyway {"refusal": "unfamiliar"}

What ``--force`` is to ``radweave generate``. A reader may ask where the images merely look unlike those of training; an
admin also where the file names another part of the body, or its integrity is doubtful. Files that cannot be read, and
images of several patients, are drafted on for nobody. The draft says so wherever it goes: in its warnings, which every
export has, on its page and in the work list; the log has who asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import sqlalchemy as sa

from radweave.serve import log
from radweave.serve.schema import now, refusals, studies
from radweave.serve.signed import ConflictError
from radweave.serve.users import User, user_names

ROLES: Final = {"unfamiliar": ("reader", "admin"), "body part": ("admin",), "integrity": ("admin",)}
"""Kind of a refusal -> who may ask for a draft all the same; nobody where a kind is not listed."""
ACTION: Final = "draft asked for although refused"


class NotAllowedError(Exception):
    """The role of who asks does not reach; the text says which does."""


def keep(connection: sa.Connection, study: str, kind: str | None, reason: str) -> bool:
    """Remember a refusal, of the kind that its images can be shown; whether it is of one."""
    forget(connection, study)
    if kind is not None:
        connection.execute(refusals.insert().values(study_id=study, kind=kind, reason=reason))
    return kind is not None


def forget(connection: sa.Connection, study: str) -> None:
    """Where a study's files go, nothing of their refusal stays."""
    connection.execute(refusals.delete().where(refusals.c.study_id == study))


def shows_images(connection: sa.Connection, study: str) -> bool:
    """Whether a refused study still shows its images."""
    return connection.execute(sa.select(refusals.c.kind).where(refusals.c.study_id == study)).first() is not None


def allowed(connection: sa.Connection, ids: Iterable[str]) -> dict[str, str]:
    """Study -> the kind of refusal that somebody set aside, and that is set aside for its next draft."""
    return {row.study_id: row.kind for row in connection.execute(_set_aside(ids)) if row.holds}


def _set_aside(ids: Iterable[str]) -> sa.Select[Any]:
    return sa.select(refusals).where(refusals.c.study_id.in_(list(ids)), refusals.c.asked_by.is_not(None))


def warning(connection: sa.Connection, study: str) -> tuple[str, ...]:
    """What stands first among the warnings of a draft that was refused before; a draft that was not ends its mark."""
    row = connection.execute(_set_aside([study])).first()
    if row is None or not row.holds:
        forget(connection, study)
        return ()
    return (f"DRAFTED ALTHOUGH IT WAS REFUSED, because a user asked for it: {row.reason}",)


def as_json(connection: sa.Connection, study: sa.Row[Any], user: User) -> dict[str, Any]:
    """Of a study: its refusal with what ``user`` may do about it, and who set one aside."""
    row = connection.execute(sa.select(refusals).where(refusals.c.study_id == study.id)).first()
    if row is None:
        return {"refusal": None, "drafted_anyway": None}
    who = user_names(connection).get(row.asked_by)
    told = None if row.asked_by is None else {"kind": row.kind, "by": who, "time": row.asked.isoformat()}
    roles = ROLES.get(row.kind, ())
    refusal = {"kind": row.kind, "may_draft": user.role in roles, "roles": list(roles)}
    return {"refusal": refusal if study.state == "refused" else None, "drafted_anyway": told}


def mark(connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the work list, with which of them were refused and are drafted all the same."""
    marked = {row.study_id: row.kind for row in connection.execute(_set_aside(row["id"] for row in rows))}
    return [{**row, "drafted_anyway": marked.get(row["id"])} for row in rows]


def ask(connection: sa.Connection, study: sa.Row[Any], kind: str, user: User) -> None:
    """Let a refused study wait for its draft all the same; ``kind`` is the refusal that ``user`` saw.

    Raises:
        ConflictError: if it is not refused, for another reason, or for one that nobody sets aside.
        NotAllowedError: if the user's role does not reach.
    """
    row = connection.execute(sa.select(refusals).where(refusals.c.study_id == study.id)).first()
    if study.state != "refused" or row is None or row.kind not in ROLES:
        raise ConflictError("cannot be drafted all the same", field="state", got=study.state)
    if user.role not in ROLES[row.kind]:
        raise NotAllowedError(f"a study refused for its {row.kind} needs the role {' or '.join(ROLES[row.kind])}")
    if kind != row.kind:
        raise ConflictError("was refused for another reason", field="refusal", expected=row.kind)
    moved = connection.execute(
        studies.update()
        .where(studies.c.id == study.id, studies.c.state == "refused")
        .values(state="waiting", reason=None, tries=0, changed=now())
    )
    if not moved.rowcount:  # another request was faster
        raise ConflictError("cannot be drafted all the same", field="state")
    set_aside = {"asked_by": user.id, "asked": now(), "holds": True}
    connection.execute(refusals.update().where(refusals.c.study_id == study.id).values(set_aside))
    log.append(connection, ACTION, user=user.id, study=study.id, details={"refusal": row.kind})
