"""Related studies: the prior of a study among the local studies, by headers or chosen by a reader.

By headers the prior is the newest earlier study of the same patient. It is never of another patient, and its owner is
the same or none. The prior of a signed study does not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from radweave.core.errors import InputError
from radweave.workstation import log
from radweave.workstation.database import earlier, links, now, patients, studies
from radweave.workstation.database import log as log_table
from radweave.workstation.drafts import AlteredError, ConflictError, addenda_of, check_signed, draft_row
from radweave.workstation.users import User

BY_HEADERS, BY_HAND = "headers", "hand"
PRIOR_FOUND, PRIOR_CHOSEN = "prior found", "prior chosen"
CHANGEABLE: Final = ("waiting", "drafted", "edited")
_LONGEST: Final = 1_000
"""Longest chain of priors followed."""


def find(connection: sa.Connection, study: str) -> None:
    """Set the newest earlier study of the patient as the prior, unless a reader chose one or the study is signed."""
    row = connection.execute(sa.select(studies.c.state).where(studies.c.id == study)).one()
    link = connection.execute(sa.select(links).where(links.c.study_id == study)).first()
    if row.state in ("signed", "refused") or (link is not None and link.found_by == BY_HAND):
        return
    own = studies.alias("own")
    query = (
        sa.select(earlier.c.prior_id)
        .join(studies, studies.c.id == earlier.c.prior_id)
        .join(own, own.c.id == earlier.c.study_id)
        .where(own.c.id == study, studies.c.state != "refused", _may_show(own, studies))
        .order_by(earlier.c.days, earlier.c.seconds, studies.c.created.desc(), studies.c.id)
    )
    candidates = connection.execute(query).scalars().all()
    best = next((other for other in candidates if study not in _chain(connection, other)), None)
    if best != (None if link is None else link.prior_id):
        _set_prior(connection, study, best, BY_HEADERS)
        log.append(connection, PRIOR_FOUND, study=study, details={"prior": best})


def _may_show(study: Any, prior: Any) -> sa.ColumnElement[bool]:
    """Condition that users who see the study may see the prior: same owner, or visible to all."""
    return sa.or_(prior.c.owner_id.is_(None), prior.c.owner_id == study.c.owner_id)


def prior_of(connection: sa.Connection, study: str) -> sa.Row[Any] | None:
    """The prior of a study, with ``found_by``, if it may be shown."""
    own = studies.alias("own")
    query = (
        sa.select(studies, links.c.found_by)
        .join(links, links.c.prior_id == studies.c.id)
        .join(own, own.c.id == links.c.study_id)
        .where(own.c.id == study, studies.c.state != "refused", _may_show(own, studies))
    )
    return connection.execute(query).first()


def is_by_hand(connection: sa.Connection, study: str) -> bool:
    """True if a reader chose the prior, or chose none."""
    return connection.execute(sa.select(links.c.found_by).where(links.c.study_id == study)).scalar() == BY_HAND


def is_as_drafted(connection: sa.Connection, study: str) -> bool:
    """True if the prior has not changed since the draft."""
    last = sa.select(sa.func.max(log_table.c.number)).where(log_table.c.study_id == study)
    drafted = connection.execute(last.where(log_table.c.action == "drafted")).scalar()
    changed = connection.execute(last.where(log_table.c.action.in_((PRIOR_FOUND, PRIOR_CHOSEN)))).scalar()
    return drafted is not None and (changed is None or changed < drafted)


def text_of(connection: sa.Connection, prior: sa.Row[Any]) -> tuple[str | None, bool]:
    """Newest text of a prior with its addenda, and True if it is signed.

    The text is None without a draft, and if it was rejected or altered.
    """
    try:
        is_signed = bool(check_signed(connection, prior.id))
    except AlteredError:
        return None, False
    draft = draft_row(connection, prior.id, prior.version)
    if draft is None or prior.state == "rejected":
        return None, False
    return "\n\n".join([draft.text, *(row.text for row in addenda_of(connection, prior.id))]), is_signed


def days_between(connection: sa.Connection, study: str, prior: str) -> int | None:
    """Days between the prior and the study; None if unknown."""
    this = (earlier.c.study_id == study, earlier.c.prior_id == prior)
    return connection.execute(sa.select(earlier.c.days).where(*this)).scalar()


def choices(connection: sa.Connection, study: sa.Row[Any], search: str | None, most: int) -> list[dict[str, Any]]:
    """Candidates for the prior, of the same owner or visible to all, the newest first."""
    own = studies.alias("own")
    query = sa.select(studies).join(own, own.c.id == study.id).where(studies.c.id != study.id, _may_show(own, studies))
    query = query.where(studies.c.state != "refused", studies.c.dataset_study.is_(None))
    if search:
        query = query.where(studies.c.name.icontains(search, autoescape=True))
    rows = connection.execute(query.order_by(studies.c.created.desc(), studies.c.id).limit(most)).all()
    return [{"id": row.id, "name": row.name, "created": row.created.isoformat()} for row in rows]


def choose(connection: sa.Connection, study: sa.Row[Any], prior: str | None, user: User) -> None:
    """Choose a study as the prior, or none.

    Raises:
        ConflictError: if the study is being drafted, signed or refused.
        InputError: if the study is no candidate, or by its headers of another patient or later.
    """
    moved = studies.update().where(studies.c.id == study.id, studies.c.state.in_(CHANGEABLE)).values(changed=now())
    if not connection.execute(moved).rowcount:
        raise ConflictError("cannot be changed", field="state", got=study.state, expected=" or ".join(CHANGEABLE))
    if prior is not None:
        _refuse_unfit(connection, study, prior)
    _set_prior(connection, study.id, prior, BY_HAND)
    log.append(connection, PRIOR_CHOSEN, user=user.id, study=study.id, details={"prior": prior})


def _refuse_unfit(connection: sa.Connection, study: sa.Row[Any], prior: str) -> None:
    own = studies.alias("own")
    query = (
        sa.select(studies.c.id)
        .join(own, own.c.id == study.id)
        .where(studies.c.id == prior, studies.c.state != "refused", _may_show(own, studies))
        .where(studies.c.dataset_study.is_(None), own.c.dataset_study.is_(None))
    )
    if connection.execute(query).first() is None:
        raise InputError("no such study that may be the prior", field="prior")
    if prior == study.id or study.id in _chain(connection, prior):
        raise InputError("a study cannot come before itself", field="prior")
    query = sa.select(patients.c.patient).where(patients.c.study_id.in_((prior, study.id)))
    digests = connection.execute(query).scalars().all()
    if len(digests) < 2:  # images without headers: trust the reader
        return
    if len(set(digests)) > 1:
        raise InputError("is of another patient by the headers", field="prior")
    if days_between(connection, study.id, prior) is None:
        raise InputError("is no earlier study of the patient by the headers", field="prior")


def _chain(connection: sa.Connection, study: str) -> Sequence[str]:
    """Chain of priors of a study."""
    chain: list[str] = []
    current: str | None = study
    while current is not None and len(chain) < _LONGEST:
        query = sa.select(links.c.prior_id).where(links.c.study_id == current)
        current = connection.execute(query).scalar()
        if current is not None:
            chain.append(current)
    return chain


def _set_prior(connection: sa.Connection, study: str, prior: str | None, found_by: str) -> None:
    connection.execute(links.delete().where(links.c.study_id == study))
    connection.execute(links.insert().values(study_id=study, prior_id=prior, found_by=found_by))


def waits_for_prior() -> sa.ColumnElement[bool]:
    """Condition that the prior of a study is still to be drafted, which its comparison needs."""
    before = studies.alias("before")
    return sa.exists().where(
        links.c.study_id == studies.c.id, before.c.id == links.c.prior_id,
        before.c.state.in_(("waiting", "drafting")),
    )  # fmt: skip
