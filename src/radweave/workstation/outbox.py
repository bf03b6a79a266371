"""Reports waiting to be sent, or sent, to archives; in the database, so that a restarted server continues.

    waiting -> sent (with the receipt)
       |
       +-> refused (with the reason): no report can be made of the study, or it was signed before its draft was sent

An event is ``drafted``, ``signed``, ``rejected`` (a notice for a draft that may have been sent), or ``addendum 1``,
``addendum 2``, each after the one before it. There is one row per study, target, format and event; a new draft after
later images replaces the rows of the older draft. Failed attempts are repeated after growing pauses.
A server that ends between the archive's receipt and its row sends the same bytes with the same instance UID again, of
which an archive keeps one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import sqlalchemy as sa

from radweave.workstation import log
from radweave.workstation.database import WITHOUT, addenda, arms, arrivals, drafts, now, outbox, signoffs, studies
from radweave.workstation.formats import MAPS
from radweave.workstation.hospital_plan import Target

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 600.0
DEIDENTIFIED: Final = "nobodys-"
"""Prefix of the key of a study de-identified here. Its reports are never sent, since the pseudonym is no patient."""
_DRAFTED: Final = ("drafted", "edited", "signed")


def arrived(connection: sa.Connection, study: str) -> None:
    """Record that a study came from an archive, in the transaction that adds it to the work list."""
    connection.execute(arrivals.insert().values(study_id=study))


def forget_drafted(
    connection: sa.Connection, study: str, *, states: Sequence[str] = ("waiting", "sent", "refused")
) -> None:
    """Remove rows of a study's draft, which a new draft replaces."""
    this = (outbox.c.study_id == study, outbox.c.event == "drafted", outbox.c.state.in_(states))
    connection.execute(outbox.delete().where(*this))


def enqueue(connection: sa.Connection, targets: Sequence[Target]) -> int:
    """Add rows of new reports; return their number."""
    made = 0
    for target in targets:
        for event in target.events:
            for name in target.formats:
                made += _enqueue(connection, target.name, name, event)
                if event == "signed":
                    made += _enqueue_addenda(connection, target.name, name)
                elif name != MAPS:  # a notice has none
                    made += _enqueue_rejected(connection, target.name, name)
    return made


def _enqueue(connection: sa.Connection, target: str, name: str, event: str) -> int:
    known = sa.exists().where(
        outbox.c.study_id == studies.c.id, outbox.c.target == target, outbox.c.format == name, outbox.c.event == event
    )
    query = sa.select(studies.c.id).join(arrivals, arrivals.c.study_id == studies.c.id).where(~known)
    if event == "signed":
        query = query.add_columns(signoffs.c.version).join(signoffs, signoffs.c.study_id == studies.c.id)
    else:
        newest = sa.select(sa.func.max(drafts.c.version)).where(
            drafts.c.study_id == studies.c.id, drafts.c.author_id.is_(None)
        )
        is_hidden = sa.exists().where(arms.c.study_id == studies.c.id, arms.c.arm == WITHOUT)  # of a reader study
        is_shown = sa.or_(studies.c.state == "signed", ~is_hidden)
        query = query.add_columns(newest.scalar_subquery()).where(studies.c.state.in_(_DRAFTED), is_shown)
    rows = [(study, event, version) for study, version in connection.execute(query).all()]
    return _insert(connection, target, name, rows)


def _enqueue_addenda(connection: sa.Connection, target: str, name: str) -> int:
    """Add addenda whose report, or addendum before, is sent or refused."""
    this, before = outbox.alias("this"), outbox.alias("before")
    event = sa.literal("addendum ") + sa.cast(addenda.c.number, sa.String)
    one_less = sa.literal("addendum ") + sa.cast(addenda.c.number - 1, sa.String)
    follows = sa.case((addenda.c.number == 1, "signed"), else_=one_less)
    same = [(table.c.study_id == addenda.c.study_id) & (table.c.target == target) & (table.c.format == name)
            for table in (this, before)]  # fmt: skip
    query = sa.select(addenda.c.study_id, event, before.c.version).join(
        before, same[1] & (before.c.event == follows) & (before.c.state != "waiting")
    )
    known = sa.exists().where(same[0], this.c.event == event)
    return _insert(connection, target, name, connection.execute(query.where(~known)).all())


def _enqueue_rejected(connection: sa.Connection, target: str, name: str) -> int:
    """Add notices of rejected drafts that the target has or may have."""
    known = sa.select(outbox.c.study_id).where(
        outbox.c.target == target, outbox.c.format == name, outbox.c.event == "rejected"
    )
    query = (
        sa.select(outbox.c.study_id, sa.literal("rejected"), outbox.c.version)
        .join(studies, studies.c.id == outbox.c.study_id)
        .where(
            outbox.c.target == target, outbox.c.format == name, outbox.c.event == "drafted",
            outbox.c.state != "refused", studies.c.state == "rejected", outbox.c.study_id.not_in(known),
        )
    )  # fmt: skip
    return _insert(connection, target, name, connection.execute(query).all())


def _insert(connection: sa.Connection, target: str, name: str, events: Sequence[Any]) -> int:
    rows = [
        {"study_id": study, "target": target, "format": name, "event": event, "version": version, "state": "waiting",
         "tries": 0, "due": now(), "changed": now()}
        for study, event, version in events
    ]  # fmt: skip
    if rows:
        connection.execute(outbox.insert(), rows)
    return len(rows)


def due(connection: sa.Connection, targets: Sequence[Target], most: int) -> Sequence[sa.Row[Any]]:
    """Due rows, the oldest first. Rejected drafts wait, and notices of reopened ones.

    A row changed in the future is due: the clock was set back.
    """
    time, is_rejected = now(), studies.c.state == "rejected"
    is_due = sa.or_(outbox.c.due <= time, outbox.c.changed > time)
    is_draft, is_notice = outbox.c.event == "drafted", outbox.c.event == "rejected"
    stands = sa.or_(sa.and_(is_draft, ~is_rejected), sa.and_(is_notice, is_rejected), ~sa.or_(is_draft, is_notice))
    query = (
        sa.select(outbox)
        .join(studies, studies.c.id == outbox.c.study_id)
        .where(
            outbox.c.state == "waiting", is_due, stands,
            outbox.c.target.in_([target.name for target in targets]),
        )
    )  # fmt: skip
    return connection.execute(query.order_by(outbox.c.due, outbox.c.study_id, outbox.c.format).limit(most)).all()


def sent(connection: sa.Connection, row: sa.Row[Any], receipt: str) -> None:
    """Store a receipt."""
    _change(connection, row, state="sent", receipt=receipt, tries=row.tries + 1)
    details = {"target": row.target, "format": row.format, "event": row.event, "version": row.version}
    log.append(connection, "sent", study=row.study_id, details=details)


def refused(connection: sa.Connection, row: sa.Row[Any], reason: str) -> None:
    """Record that no report of this kind can be made of the study."""
    _change(connection, row, state="refused", receipt=reason)
    log.append(connection, "not sent", study=row.study_id, details={"target": row.target, "format": row.format})


def is_signed(connection: sa.Connection, study: str) -> bool:
    """True if the study has a signed report."""
    return connection.execute(sa.select(signoffs.c.version).where(signoffs.c.study_id == study)).first() is not None


def predecessor(connection: sa.Connection, row: sa.Row[Any]) -> sa.Row[Any] | None:
    """Row of the preceding version that the target has in the same format, or None."""
    if row.event == "drafted":
        return None
    number = int(row.event.rpartition(" ")[2]) if row.event.startswith("addendum ") else 0
    before = [f"addendum {one}" for one in range(number - 1, 0, -1)] + (["signed"] if number else []) + ["drafted"]
    same = [outbox.c[key] == getattr(row, key) for key in ("study_id", "target", "format")]
    query = sa.select(outbox).where(*same, outbox.c.event.in_(before), outbox.c.state == "sent")
    sent_rows = {sent_row.event: sent_row for sent_row in connection.execute(query)}
    return next((sent_rows[event] for event in before if event in sent_rows), None)


def later(connection: sa.Connection, row: sa.Row[Any], reason: str) -> None:
    """Delay the next attempt, longer after each one."""
    pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(row.tries, 20))
    due_then = now() + timedelta(seconds=pause)
    _change(connection, row, state="waiting", receipt=reason, tries=row.tries + 1, due=due_then)


def _change(connection: sa.Connection, row: sa.Row[Any], **values: Any) -> None:
    keys = ("study_id", "target", "format", "event")
    this = [outbox.c[key] == getattr(row, key) for key in keys]
    connection.execute(outbox.update().where(*this).values(changed=now(), **values))


def of_study(connection: sa.Connection, study: str) -> list[dict[str, Any]]:
    """Rows of a study as JSON values."""
    query = sa.select(outbox).where(outbox.c.study_id == study).order_by(outbox.c.target, outbox.c.format)
    names = ("target", "format", "event", "version", "state", "tries", "receipt")
    return [
        {**{name: getattr(row, name) for name in names}, "changed": row.changed.isoformat()}
        for row in connection.execute(query)
    ]
