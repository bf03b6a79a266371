"""The patient's study before one, of those that are here: found by the headers of what came in, or chosen by a reader.

Found is the newest of those that ``patients`` kept as earlier studies of the same patient. Never another patient's, and
never another user's: an upload's prior is of the same owner, or everybody's. What is signed keeps the one that it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from radweave.core.errors import InputError
from radweave.workstation import drafts as signed
from radweave.workstation import log
from radweave.workstation.database import drafts, earlier, links, now, patients, studies
from radweave.workstation.database import log as log_table
from radweave.workstation.drafts import ConflictError
from radweave.workstation.users import User

BY_HEADERS, BY_HAND = "headers", "hand"
FOUND, CHOSEN = "prior found", "prior chosen"
CHANGEABLE: Final = ("waiting", "drafted", "edited")
_LONGEST: Final = 1_000
"""Steps of a chain of priors."""


def find(connection: sa.Connection, study: str) -> None:
    """Keep the newest earlier study of the same patient as the prior, unless a reader chose one, or it is signed."""
    row = connection.execute(sa.select(studies.c.state).where(studies.c.id == study)).one()
    kept = connection.execute(sa.select(links).where(links.c.study_id == study)).first()
    if row.state in ("signed", "refused") or (kept is not None and kept.found_by == BY_HAND):
        return
    own = studies.alias("own")
    asked = (
        sa.select(earlier.c.prior_id)
        .join(studies, studies.c.id == earlier.c.prior_id)
        .join(own, own.c.id == earlier.c.study_id)
        .where(own.c.id == study, studies.c.state != "refused", _may_show(own, studies))
        .order_by(earlier.c.days, earlier.c.seconds, studies.c.created.desc(), studies.c.id)
    )
    there = connection.execute(asked).scalars().all()
    best = next((other for other in there if study not in _chain(connection, other)), None)
    if best != (None if kept is None else kept.prior_id):
        _set(connection, study, best, BY_HEADERS)
        log.append(connection, FOUND, study=study, details={"prior": best})


def _may_show(study: Any, prior: Any) -> sa.ColumnElement[bool]:
    """Who may see the study may see the prior: both are of one user, or the prior is everybody's."""
    return sa.or_(prior.c.owner_id.is_(None), prior.c.owner_id == study.c.owner_id)


def prior_of(connection: sa.Connection, study: str) -> sa.Row[Any] | None:
    """The study that is another one's prior, with ``found_by``; asked anew each time whether it may be shown."""
    own = studies.alias("own")
    asked = (
        sa.select(studies, links.c.found_by)
        .join(links, links.c.prior_id == studies.c.id)
        .join(own, own.c.id == links.c.study_id)
        .where(own.c.id == study, studies.c.state != "refused", _may_show(own, studies))
    )
    return connection.execute(asked).first()


def is_by_hand(connection: sa.Connection, study: str) -> bool:
    """Whether a reader chose the prior, or said that there is none."""
    return connection.execute(sa.select(links.c.found_by).where(links.c.study_id == study)).scalar() == BY_HAND


def is_as_drafted(connection: sa.Connection, study: str) -> bool:
    """Whether the prior is the one that there was when the study was drafted."""
    last = sa.select(sa.func.max(log_table.c.number)).where(log_table.c.study_id == study)
    drafted = connection.execute(last.where(log_table.c.action == "drafted")).scalar()
    changed = connection.execute(last.where(log_table.c.action.in_((FOUND, CHOSEN)))).scalar()
    return drafted is not None and (changed is None or changed < drafted)


def text_of(connection: sa.Connection, prior: sa.Row[Any]) -> tuple[str | None, bool]:
    """What is written of a prior, its newest version with its addenda, and whether that is signed.

    None where there is no draft, it was rejected, or it is not what was signed.
    """
    try:
        is_signed = bool(signed.check(connection, prior.id))
    except signed.AlteredError:
        return None, False
    asked = sa.select(drafts.c.text).where(drafts.c.study_id == prior.id, drafts.c.version == prior.version)
    text = connection.execute(asked).scalar()
    if text is None or prior.state == "rejected":
        return None, False
    return "\n\n".join([text, *(row.text for row in signed.of_study(connection, prior.id))]), is_signed


def days_between(connection: sa.Connection, study: str, prior: str) -> int | None:
    """How many days before the study the prior was made; None where it is not known."""
    this = (earlier.c.study_id == study, earlier.c.prior_id == prior)
    return connection.execute(sa.select(earlier.c.days).where(*this)).scalar()


def choices(connection: sa.Connection, study: sa.Row[Any], search: str | None, most: int) -> list[dict[str, Any]]:
    """Studies that may be chosen as the prior: of the same owner, or everybody's; the newest first."""
    own = studies.alias("own")
    asked = sa.select(studies).join(own, own.c.id == study.id).where(studies.c.id != study.id, _may_show(own, studies))
    asked = asked.where(studies.c.state != "refused", studies.c.dataset_study.is_(None))
    if search:
        asked = asked.where(studies.c.name.icontains(search, autoescape=True))
    rows = connection.execute(asked.order_by(studies.c.created.desc(), studies.c.id).limit(most)).all()
    return [{"id": row.id, "name": row.name, "created": row.created.isoformat()} for row in rows]


def choose(connection: sa.Connection, study: sa.Row[Any], prior: str | None, user: User) -> None:
    """Take a study as the prior, or none, whatever the headers let find.

    Raises:
        ConflictError: if the study is being drafted, signed or refused.
        InputError: if there is no such study that may be it, or the headers say that it is of someone else, or later.
    """
    moved = studies.update().where(studies.c.id == study.id, studies.c.state.in_(CHANGEABLE)).values(changed=now())
    if not connection.execute(moved).rowcount:
        raise ConflictError("cannot be changed", field="state", got=study.state, expected=" or ".join(CHANGEABLE))
    if prior is not None:
        _refuse_unfit(connection, study, prior)
    _set(connection, study.id, prior, BY_HAND)
    log.append(connection, CHOSEN, user=user.id, study=study.id, details={"prior": prior})


def _refuse_unfit(connection: sa.Connection, study: sa.Row[Any], prior: str) -> None:
    own = studies.alias("own")
    asked = (
        sa.select(studies.c.id)
        .join(own, own.c.id == study.id)
        .where(studies.c.id == prior, studies.c.state != "refused", _may_show(own, studies))
        .where(studies.c.dataset_study.is_(None), own.c.dataset_study.is_(None))
    )
    if connection.execute(asked).first() is None:
        raise InputError("no such study that may be the prior", field="prior")
    if prior == study.id or study.id in _chain(connection, prior):
        raise InputError("a study cannot come before itself", field="prior")
    asked = sa.select(patients.c.patient).where(patients.c.study_id.in_((prior, study.id)))
    said = connection.execute(asked).scalars().all()
    if len(said) < 2:  # images without headers: the reader knows
        return
    if len(set(said)) > 1:
        raise InputError("is of another patient, as the headers say", field="prior")
    if days_between(connection, study.id, prior) is None:
        raise InputError("is no earlier study of the same patient, as far as the headers say", field="prior")


def _chain(connection: sa.Connection, study: str) -> Sequence[str]:
    """The priors before a study, as far as they go."""
    found: list[str] = []
    here: str | None = study
    while here is not None and len(found) < _LONGEST:
        asked = sa.select(links.c.prior_id).where(links.c.study_id == here)
        here = connection.execute(asked).scalar()
        if here is not None:
            found.append(here)
    return found


def _set(connection: sa.Connection, study: str, prior: str | None, found_by: str) -> None:
    connection.execute(links.delete().where(links.c.study_id == study))
    connection.execute(links.insert().values(study_id=study, prior_id=prior, found_by=found_by))


def waits_for_its_prior() -> sa.ColumnElement[bool]:
    """Whether a study's prior is still to be drafted: what changed since cannot be said before."""
    before = studies.alias("before")
    return sa.exists().where(
        links.c.study_id == studies.c.id, before.c.id == links.c.prior_id,
        before.c.state.in_(("waiting", "drafting")),
    )  # fmt: skip
