"""The work list: studies, their files, states and patients. Every change is one transaction with its log entry.

    waiting -> drafting -> drafted -> edited -> signed (and addenda), or rejected (and reopened)
     | ^          |           |          |
     | +----------|-----------+----------+  with later images
     +------------+-> refused (with the reason), or back to the existing draft

A change names its initial state, so that one of two concurrent changes has no effect: the draft of a cancelled study is
dropped, and no study is drafted twice.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from radweave.core.errors import InputError
from radweave.core.same_patient import why_no_prior
from radweave.core.storage import write_text
from radweave.io.volumes import series_files
from radweave.workstation import log, outbox, related
from radweave.workstation.database import (
    ROUTINE,
    STATES,
    earlier,
    evidence,
    files,
    now,
    patients,
    priors,
    refusals,
    studies,
)
from radweave.workstation.drafts import drafted_version, forget_places_on_scan, write
from radweave.workstation.find_prior import Prior
from radweave.workstation.identity import Identity, read_identities
from radweave.workstation.users import User

CANCELLED = "cancelled"
_QUEUED: Final = ("waiting", "drafting")
EXTENDABLE: Final = ("waiting", "drafted", "edited")
"""States in which a study accepts later images."""
REDRAFTED: Final = "images came after version {}: this is a new draft, of all of them"
EDITED: Final = "; what a reader had written is version {}"
NOT_REDRAFTED: Final = "images came after this draft, and it says nothing of them: {}"


@dataclass(frozen=True, slots=True)
class NewStudy:
    """A study to add: its files as (path, upload name), or its id in the data set.

    ``refused`` is the reason if it cannot be drafted. ``prior`` is the result of a search for the prior.
    ``priority`` is one of ``PRIORITIES``.
    """

    name: str
    files: tuple[tuple[Path, str], ...] = ()
    dataset_study: str | None = None
    source: str | None = None
    refused: str | None = None
    prior: Prior | None = None
    priority: str = ROUTINE


@dataclass(frozen=True, slots=True)
class Job:
    """A study to be drafted."""

    id: str
    files: tuple[str, ...]
    dataset_study: str | None
    prior: Prior | None = None


def add(connection: sa.Connection, study: NewStudy, *, owner: int | None) -> str:
    """Add a study to the work list; return its number."""
    made, time = uuid.uuid4().hex, now()
    connection.execute(
        studies.insert().values(
            id=made, name=study.name[:200], state="refused" if study.refused else "waiting", reason=study.refused,
            owner_id=owner, source=study.source, dataset_study=study.dataset_study, version=0, tries=0, created=time,
            changed=time, priority=study.priority,
        )
    )  # fmt: skip
    _add_files(connection, made, study.files)
    if study.prior is not None:
        connection.execute(priors.insert().values(study_id=made, **asdict(study.prior)))
    log.append(connection, "submitted", user=owner, study=made, details={"files": len(study.files)})
    if study.refused:
        log.append(connection, "refused", study=made)
    return made


def _add_files(connection: sa.Connection, study: str, named: Sequence[tuple[Path, str]]) -> None:
    rows = [
        {"study_id": study, "position": number, "path": str(path), "name": name}
        for number, (path, name) in enumerate(named)
    ]
    if rows:
        connection.execute(files.insert(), rows)


def is_known(connection: sa.Connection, source: str) -> bool:
    return connection.execute(sa.select(studies.c.id).where(studies.c.source == source)).first() is not None


def counts(connection: sa.Connection, user: User | None = None) -> dict[str, int]:
    """Number of studies per state, of those visible to ``user`` if given."""
    numbers = dict.fromkeys(STATES, 0)
    is_visible = sa.true() if user is None else visible(user)
    query = sa.select(studies.c.state, sa.func.count()).where(is_visible).group_by(studies.c.state)
    for state, number in connection.execute(query):
        numbers[state] = number
    return numbers


def queued(connection: sa.Connection) -> int:
    """Number of studies that wait or are being drafted."""
    numbers = counts(connection)
    return numbers["waiting"] + numbers["drafting"]


def claim(connection: sa.Connection, most: int) -> list[Job]:
    """Take the oldest waiting studies. A study that was tried before is taken alone, since it may have ended a process.

    A study is taken after its prior.
    """
    query = sa.select(studies).where(studies.c.state == "waiting", ~related.waits_for_prior())
    query = query.order_by(studies.c.created, studies.c.id)
    rows = connection.execute(query.limit(most)).all()
    if rows and rows[0].tries:
        rows = rows[:1]
    else:
        rows = [row for row in rows if not row.tries]
    jobs = []
    for row in rows:
        if not _move(connection, row.id, ("waiting",), "drafting", tries=row.tries + 1):
            continue
        related.find(connection, row.id)  # its prior may have been refused meanwhile
        jobs.append(Job(row.id, tuple(uploaded(connection, row.id)), row.dataset_study, prior_of(connection, row.id)))
    return jobs


def prior_of(connection: sa.Connection, study: str) -> Prior | None:
    """The prior: a local study, or the result of a search in archives; None without a search.

    A reader's choice takes precedence, then a prior from an archive, then a local study.
    """
    local = related.prior_of(connection, study)
    row = connection.execute(sa.select(priors).where(priors.c.study_id == study)).first()
    from_archive = None if row is None else Prior(row.outcome, tuple(row.files), row.report, row.days, row.reason)
    if related.is_by_hand(connection, study) and local is None:
        return None
    if local is None or (from_archive is not None and from_archive.files and local.found_by != related.BY_HAND):
        return from_archive
    text, is_signed = related.text_of(connection, local)
    # An unsigned draft is no report.
    report = text if is_signed else None
    return Prior(
        "found", tuple(uploaded(connection, local.id)), report, related.days_between(connection, study, local.id)
    )


def finish(connection: sa.Connection, study: str, result: Mapping[str, Any]) -> bool:
    """Store a draft; False if the study no longer waits for it."""
    before = connection.execute(sa.select(studies.c.version).where(studies.c.id == study)).scalar_one()
    version = before + 1
    if not _move(connection, study, ("drafting",), "drafted", version=version):
        return False
    is_edited = before > drafted_version(connection, study)
    write(connection, study, version, result["text"], result["sentences"])
    parts = {name: result[name] for name in ("evidence", "findings", "model")}
    prior = prior_of(connection, study)
    texts = [*result["warnings"], *(() if prior is None else prior.warnings)]
    if before:
        texts.append(REDRAFTED.format(before) + (EDITED.format(before) if is_edited else ""))
        connection.execute(evidence.delete().where(evidence.c.study_id == study))
        outbox.forget_drafted(connection, study)
    warnings = [_with_upload_names(connection, study, text) for text in texts]
    connection.execute(evidence.insert().values(study_id=study, **parts, warnings=warnings))
    log.append(connection, "drafted", study=study, details={"version": version, "model": dict(result["model"])})
    return True


def refuse(connection: sa.Connection, study: str, reason: str, *, user: int | None = None) -> bool:
    """Refuse a study with the reason; False if it changed meanwhile. A study with a draft returns to it."""
    if reason != CANCELLED and _restore_draft(connection, study, reason):
        return False
    if not _move(connection, study, _QUEUED, "refused", reason=_with_upload_names(connection, study, reason)):
        return False
    log.append(connection, CANCELLED if reason == CANCELLED else "refused", user=user, study=study)
    return True


def _restore_draft(connection: sa.Connection, study: str, reason: str) -> bool:
    """Return to the draft of a study that cannot be drafted again with its later images; False without a draft."""
    version = connection.execute(sa.select(studies.c.version).where(studies.c.id == study)).scalar_one()
    if not version:
        return False
    state = "edited" if version > drafted_version(connection, study) else "drafted"
    if _move(connection, study, _QUEUED, state):
        warnings = connection.execute(sa.select(evidence.c.warnings).where(evidence.c.study_id == study)).scalar_one()
        texts = [*warnings, NOT_REDRAFTED.format(_with_upload_names(connection, study, reason))]
        connection.execute(evidence.update().where(evidence.c.study_id == study).values(warnings=texts))
        log.append(connection, "not drafted again", study=study)
    return True


def add_images(connection: sa.Connection, study: str, more: Sequence[tuple[Path, str]], count: int) -> bool:
    """Queue an unsigned study again with all its files, of which ``count`` are new; False if its state forbids it."""
    if not _move(connection, study, EXTENDABLE, "waiting", tries=0):
        return False
    connection.execute(files.delete().where(files.c.study_id == study))
    connection.execute(refusals.update().where(refusals.c.study_id == study).values(holds=False))
    _add_files(connection, study, more)
    forget_places_on_scan(connection, study)
    outbox.forget_drafted(connection, study, states=("waiting",))  # it would lack the new images
    log.append(connection, "images came", study=study, details={"files": count})
    return True


def reason_of(connection: sa.Connection, study: str) -> str:
    """Reason of a refusal."""
    return connection.execute(sa.select(studies.c.reason).where(studies.c.id == study)).scalar() or ""


def _with_upload_names(connection: sa.Connection, study: str, text: str) -> str:
    """A text with the upload names of files in place of their stored names."""
    for row in connection.execute(sa.select(files.c.path, files.c.name).where(files.c.study_id == study)):
        text = text.replace(Path(row.path).name, row.name)
    return text


def give_back(connection: sa.Connection, ids: Sequence[str], *, tries: int, reason: str) -> list[str]:
    """Queue studies in drafting again; refuse and return those with ``tries`` attempts."""
    refused = []
    query = sa.select(studies.c.id, studies.c.tries).where(studies.c.id.in_(ids), studies.c.state == "drafting")
    for study, had in connection.execute(query).all():
        if had >= tries:
            if refuse(connection, study, reason):
                refused.append(study)
        else:
            _move(connection, study, ("drafting",), "waiting")
    return refused


def recover(connection: sa.Connection) -> int:
    """Queue the studies that a killed server was drafting; its end does not count as an attempt."""
    done = connection.execute(
        studies.update()
        .where(studies.c.state == "drafting")
        .values(state="waiting", tries=sa.case((studies.c.tries > 0, studies.c.tries - 1), else_=0), changed=now())
    )
    return int(done.rowcount)


def _move(connection: sa.Connection, study: str, states: Sequence[str], state: str, **values: Any) -> bool:
    done = connection.execute(
        studies.update()
        .where(studies.c.id == study, studies.c.state.in_(states))
        .values(state=state, changed=now(), **values)
    )
    return bool(done.rowcount)


def visible(user: User) -> sa.ColumnElement[bool]:
    """Condition of studies visible to a user: all for admins, else its own and those without an owner."""
    return sa.true() if user.is_admin else sa.or_(studies.c.owner_id.is_(None), studies.c.owner_id == user.id)


def find(connection: sa.Connection, study: str, user: User) -> sa.Row[Any] | None:
    """A study visible to the user, or None."""
    return connection.execute(sa.select(studies).where(studies.c.id == study, visible(user))).first()


def work_list(
    connection: sa.Connection, user: User, *conditions: sa.ColumnElement[bool], offset: int, limit: int
) -> tuple[int, list[dict[str, Any]]]:
    """Number of visible studies that meet ``conditions``, and a page of them as JSON values, the newest first."""
    wanted = [visible(user), *conditions]
    total = connection.execute(sa.select(sa.func.count()).select_from(studies).where(*wanted)).scalar_one()
    query = sa.select(studies).where(*wanted).order_by(studies.c.created.desc(), studies.c.id)
    return total, [as_json(row) for row in connection.execute(query.offset(offset).limit(limit))]


def set_priority(connection: sa.Connection, study: str, priority: str, user: User) -> None:
    """Set the priority of a study."""
    connection.execute(studies.update().where(studies.c.id == study).values(priority=priority, changed=now()))
    log.append(connection, "priority set", user=user.id, study=study, details={"priority": priority})


def as_json(row: sa.Row[Any]) -> dict[str, Any]:
    return {
        "id": row.id, "name": row.name, "state": row.state, "reason": row.reason, "version": row.version,
        "priority": row.priority,
        "created": row.created.isoformat(), "changed": row.changed.isoformat(),
    }  # fmt: skip


def file_names(connection: sa.Connection, study: str) -> list[str]:
    """Upload names of a study's files."""
    query = sa.select(files.c.name).where(files.c.study_id == study).order_by(files.c.position)
    return list(connection.execute(query).scalars())


def uploaded(connection: sa.Connection, study: str) -> list[str]:
    """Paths of a study's files in their order."""
    query = sa.select(files.c.path).where(files.c.study_id == study).order_by(files.c.position)
    return list(connection.execute(query).scalars())


def _shown() -> sa.ColumnElement[bool]:
    """Condition of studies whose images are stored: all but unreadable and cancelled ones."""
    return sa.or_(studies.c.state != "refused", studies.c.id.in_(sa.select(refusals.c.study_id)))


def readable(connection: sa.Connection) -> set[str]:
    """Studies whose images can be shown."""
    return set(connection.execute(sa.select(studies.c.id).where(_shown())).scalars())


def stored_paths(connection: sa.Connection) -> set[str]:
    """Paths of all files of studies and priors that are still needed."""
    query = sa.select(files.c.path).join(studies).where(_shown())
    of_priors = sa.select(priors.c.files).join(studies).where(_shown())
    prior_paths = (path for paths in connection.execute(of_priors).scalars() for path in paths)
    return {*connection.execute(query).scalars(), *prior_paths}


# Patients and earlier studies by DICOM headers; the rule is ``core/same_patient``. Stored are a digest of the patient
# id keyed with a secret of the workstation, and the time between two studies of a patient.

_SECRET: Final = "patients.key"
_MOST: Final = 50
"""Most recent studies of a patient that a new one is compared with."""
_SAME: Final = ("study_date", "patient_birth_date", "patient_sex")

ReadPatient = Callable[[Sequence[Path]], Identity | None]


def read_secret(state: Path) -> bytes:
    """The secret of a workstation, created at its first start."""
    file = state / _SECRET
    try:
        secret = bytes.fromhex(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        secret = b""
    if len(secret) != 32:
        secret = secrets.token_bytes(32)
        write_text(file, secret.hex())
        file.chmod(0o600)
    return secret


def read_patient(files: Sequence[Path]) -> Identity | None:
    """Identity in the files of a study; None if a file has none, or they disagree.

    The first slice of a series stands for all: a series of several patients is no scan.
    """
    try:
        first_files = [series_files(file)[0] if file.is_dir() else file for file in files]
        identities, _ = read_identities(first_files)
    except (InputError, OSError):
        return None
    if not identities or len(identities) < len(first_files):
        return None
    if any(len({getattr(one, field) for one in identities}) > 1 for field in _SAME):
        return None
    return min(identities, key=lambda one: one.study_time)


def record_patient(
    connection: sa.Connection, study: str, identity: Identity, secret: bytes, whose: ReadPatient
) -> list[str]:
    """Store the patient digest and the earlier studies of a new study; return the studies with a new earlier one.

    Nothing is stored for placeholder patient ids.
    """
    if why_no_prior(identity, identity.model_copy(update={"study_instance_uid": ""})) == "no_patient_id":
        return []
    patient = hmac.new(secret, f"patient {identity.patient_id.strip()}".encode(), hashlib.sha256).hexdigest()
    query = (
        sa.select(studies.c.id)
        .join(patients, patients.c.study_id == studies.c.id)
        .where(patients.c.patient == patient, studies.c.state != "refused")
        .order_by(studies.c.created.desc(), studies.c.id)
    )
    later = []
    for other in connection.execute(query.limit(_MOST)).scalars().all():
        its = whose([Path(path) for path in uploaded(connection, other)])
        for one, whose_one, prior, whose_prior in ((study, identity, other, its), (other, its, study, identity)):
            if whose_one is None or whose_prior is None or why_no_prior(whose_one, whose_prior) is not None:
                continue
            days, seconds = _apart(whose_one, whose_prior)
            connection.execute(earlier.insert().values(study_id=one, prior_id=prior, days=days, seconds=seconds))
            later.append(one)
    connection.execute(patients.insert().values(study_id=study, patient=patient))
    return list(dict.fromkeys(later))


def _apart(study: Identity, prior: Identity) -> tuple[int, int]:
    """Calendar days between two studies, and seconds between their times of day as far as known."""
    days = [date.fromisoformat(one.study_date).toordinal() for one in (study, prior)]
    clocks = [f"{one.study_time:0<6}"[:6] for one in (study, prior)]
    seconds = [3600 * int(clock[:2]) + 60 * int(clock[2:4]) + int(clock[4:6]) for clock in clocks]
    return days[0] - days[1], seconds[0] - seconds[1]
