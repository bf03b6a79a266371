"""The work list: studies, their files and states. Every change is one transaction with its entry in the log.

    waiting -> drafting -> drafted -> edited -> signed (and addenda), or rejected (and reopened)
     | ^          |           |          |
     | +----------|-----------+----------+  where images came later
     +------------+-> refused (with the reason), or back to the draft that there was

A change names the state that it starts from, so that of two that meet one finds nothing to do: a draft that comes after
the study was cancelled is dropped, and no study is drafted twice.
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
from radweave.workstation.database import STATES, earlier, evidence, files, now, patients, priors, refusals, studies
from radweave.workstation.drafts import drafted_version, write
from radweave.workstation.find_prior import Prior
from radweave.workstation.identity import Identity, read_identities
from radweave.workstation.users import User

CANCELLED = "cancelled"
GROWING: Final = ("waiting", "drafted", "edited")
"""States in which a study takes images that come later."""
AGAIN: Final = "images came after version {}: this is a new draft, of all of them"
EDITED: Final = "; what a reader had written is version {}"
NOT_AGAIN: Final = "images came after this draft, and it says nothing of them: {}"


@dataclass(frozen=True, slots=True)
class NewStudy:
    """A study that comes in: its files as (where they lie, what they were called), or its place in the data set.

    ``refused`` is set where it is clear already that there will be no draft. ``prior`` is the patient's study
    before it, where one was looked for.
    """

    name: str
    files: tuple[tuple[Path, str], ...] = ()
    dataset_study: str | None = None
    source: str | None = None
    refused: str | None = None
    prior: Prior | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A study to be drafted."""

    id: str
    files: tuple[str, ...]
    dataset_study: str | None
    prior: Prior | None = None


def add(connection: sa.Connection, study: NewStudy, *, owner: int | None) -> str:
    """Put a study on the work list."""
    made, time = uuid.uuid4().hex, now()
    connection.execute(
        studies.insert().values(
            id=made, name=study.name[:200], state="refused" if study.refused else "waiting", reason=study.refused,
            owner_id=owner, source=study.source, dataset_study=study.dataset_study, version=0, tries=0, created=time,
            changed=time,
        )
    )  # fmt: skip
    rows = [
        {"study_id": made, "position": number, "path": str(path), "name": name}
        for number, (path, name) in enumerate(study.files)
    ]
    if rows:
        connection.execute(files.insert(), rows)
    if study.prior is not None:
        connection.execute(priors.insert().values(study_id=made, **asdict(study.prior)))
    log.append(connection, "submitted", user=owner, study=made, details={"files": len(rows)})
    if study.refused:
        log.append(connection, "refused", study=made)
    return made


def is_known(connection: sa.Connection, source: str) -> bool:
    return connection.execute(sa.select(studies.c.id).where(studies.c.source == source)).first() is not None


def counts(connection: sa.Connection, user: User | None = None) -> dict[str, int]:
    """How many studies there are of each state; of those only that ``user`` may see, where one is given."""
    found = dict.fromkeys(STATES, 0)
    seen = sa.true() if user is None else visible(user)
    asked = sa.select(studies.c.state, sa.func.count()).where(seen).group_by(studies.c.state)
    for state, number in connection.execute(asked):
        found[state] = number
    return found


def queued(connection: sa.Connection) -> int:
    """How many studies wait for a draft that is not there."""
    found = counts(connection)
    return found["waiting"] + found["drafting"]


def claim(connection: sa.Connection, most: int) -> list[Job]:
    """Take the oldest studies that wait. One that was taken before, and came back, is taken alone: it may be why.

    One whose prior waits too is taken after it.
    """
    asked = sa.select(studies).where(studies.c.state == "waiting", ~related.waits_for_its_prior())
    asked = asked.order_by(studies.c.created, studies.c.id)
    rows = connection.execute(asked.limit(most)).all()
    if rows and rows[0].tries:
        rows = rows[:1]
    else:
        rows = [row for row in rows if not row.tries]
    jobs = []
    for row in rows:
        if not _move(connection, row.id, ("waiting",), "drafting", tries=row.tries + 1):
            continue
        related.find(connection, row.id)  # the one that was found may have been refused in the meantime
        jobs.append(Job(row.id, tuple(uploaded(connection, row.id)), row.dataset_study, prior_of(connection, row.id)))
    return jobs


def prior_of(connection: sa.Connection, study: str) -> Prior | None:
    """The patient's study before: one that is here, or what came of asking archives; None where nobody looked.

    A reader's choice goes before all, what an archive gave before what was found here.
    """
    here = related.prior_of(connection, study)
    row = connection.execute(sa.select(priors).where(priors.c.study_id == study)).first()
    given = None if row is None else Prior(row.outcome, tuple(row.files), row.report, row.days, row.reason)
    if related.is_by_hand(connection, study) and here is None:
        return None
    if here is None or (given is not None and given.files and here.found_by != related.BY_HAND):
        return given
    text, is_signed = related.text_of(connection, here)
    # What nobody signed is no report: nothing is held against it, and no model reads it.
    report = text if is_signed else None
    return Prior(
        "found", tuple(uploaded(connection, here.id)), report, related.days_between(connection, study, here.id)
    )


def finish(connection: sa.Connection, study: str, result: Mapping[str, Any]) -> bool:
    """Keep a draft; whether the study still waited for it."""
    before = connection.execute(sa.select(studies.c.version).where(studies.c.id == study)).scalar_one()
    version = before + 1
    if not _move(connection, study, ("drafting",), "drafted", version=version):
        return False
    is_edited = before > drafted_version(connection, study)
    write(connection, study, version, result["text"], result["sentences"])
    given = {name: result[name] for name in ("evidence", "findings", "model")}
    prior = prior_of(connection, study)
    said = [*result["warnings"], *(() if prior is None else prior.warnings)]
    if before:
        said.append(AGAIN.format(before) + (EDITED.format(before) if is_edited else ""))
        connection.execute(evidence.delete().where(evidence.c.study_id == study))
        outbox.forget_drafted(connection, study)
    warnings = [_as_they_came(connection, study, text) for text in said]
    connection.execute(evidence.insert().values(study_id=study, **given, warnings=warnings))
    log.append(connection, "drafted", study=study, details={"version": version, "model": dict(result["model"])})
    return True


def refuse(
    connection: sa.Connection,
    study: str,
    reason: str,
    *,
    user: int | None = None,
    states: Sequence[str] = ("waiting", "drafting"),
) -> bool:
    """Say that there will be no draft, and why; whether there was none yet. A study that has one goes back to it."""
    if reason != CANCELLED and _back(connection, study, reason, states):
        return False
    if not _move(connection, study, states, "refused", reason=_as_they_came(connection, study, reason)):
        return False
    log.append(connection, CANCELLED if reason == CANCELLED else "refused", user=user, study=study)
    return True


def _back(connection: sa.Connection, study: str, reason: str, states: Sequence[str]) -> bool:
    """Keep the draft of a study that cannot be drafted again with the images that came later."""
    version = connection.execute(sa.select(studies.c.version).where(studies.c.id == study)).scalar_one()
    if not version:
        return False
    state = "edited" if version > drafted_version(connection, study) else "drafted"
    if _move(connection, study, states, state):
        given = connection.execute(sa.select(evidence.c.warnings).where(evidence.c.study_id == study)).scalar_one()
        said = [*given, NOT_AGAIN.format(_as_they_came(connection, study, reason))]
        connection.execute(evidence.update().where(evidence.c.study_id == study).values(warnings=said))
        log.append(connection, "not drafted again", study=study)
    return True


def grow(connection: sa.Connection, study: str, more: Sequence[tuple[Path, str]], count: int) -> bool:
    """Let a study that is not signed wait again, with all of its files, of which ``count`` are new; whether it does."""
    if not _move(connection, study, GROWING, "waiting", tries=0):
        return False
    connection.execute(files.delete().where(files.c.study_id == study))
    connection.execute(refusals.update().where(refusals.c.study_id == study).values(holds=False))
    rows = [
        {"study_id": study, "position": number, "path": str(path), "name": name}
        for number, (path, name) in enumerate(more)
    ]
    connection.execute(files.insert(), rows)
    outbox.forget_drafted(connection, study, states=("waiting",))  # it would be of images that nobody looked at
    log.append(connection, "images came", study=study, details={"files": count})
    return True


def reason_of(connection: sa.Connection, study: str) -> str:
    """Why a study was refused."""
    return connection.execute(sa.select(studies.c.reason).where(studies.c.id == study)).scalar() or ""


def _as_they_came(connection: sa.Connection, study: str, text: str) -> str:
    """A text about a study's files under the names that they came with, not those that they lie under."""
    for row in connection.execute(sa.select(files.c.path, files.c.name).where(files.c.study_id == study)):
        text = text.replace(Path(row.path).name, row.name)
    return text


def give_back(connection: sa.Connection, ids: Sequence[str], *, tries: int, reason: str) -> list[str]:
    """Let studies wait again that were being drafted; those that had ``tries`` are refused, and returned."""
    refused = []
    asked = sa.select(studies.c.id, studies.c.tries).where(studies.c.id.in_(ids), studies.c.state == "drafting")
    for study, had in connection.execute(asked).all():
        if had >= tries:
            if refuse(connection, study, reason):
                refused.append(study)
        else:
            _move(connection, study, ("drafting",), "waiting")
    return refused


def recover(connection: sa.Connection) -> int:
    """After a server that was killed: what it was drafting waits again. Its end counts as nobody's try."""
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
    """Which studies a user may see: all, or its own and everybody's."""
    return sa.true() if user.is_admin else sa.or_(studies.c.owner_id.is_(None), studies.c.owner_id == user.id)


def find(connection: sa.Connection, study: str, user: User) -> sa.Row[Any] | None:
    """A study, or None where there is none that this user may see."""
    return connection.execute(sa.select(studies).where(studies.c.id == study, visible(user))).first()


def work_list(
    connection: sa.Connection, user: User, *, state: str | None, search: str | None, offset: int, limit: int
) -> tuple[int, list[dict[str, Any]]]:
    """How many studies fit, and a page of them as JSON values, the newest first."""
    wanted = [visible(user)]
    if state is not None:
        wanted.append(studies.c.state == state)
    if search:
        wanted.append(studies.c.name.icontains(search, autoescape=True))
    total = connection.execute(sa.select(sa.func.count()).select_from(studies).where(*wanted)).scalar_one()
    asked = sa.select(studies).where(*wanted).order_by(studies.c.created.desc(), studies.c.id)
    return total, [as_json(row) for row in connection.execute(asked.offset(offset).limit(limit))]


def as_json(row: sa.Row[Any]) -> dict[str, Any]:
    return {
        "id": row.id, "name": row.name, "state": row.state, "reason": row.reason, "version": row.version,
        "created": row.created.isoformat(), "changed": row.changed.isoformat(),
    }  # fmt: skip


def file_names(connection: sa.Connection, study: str) -> list[str]:
    """What a study's files were called when they came in."""
    asked = sa.select(files.c.name).where(files.c.study_id == study).order_by(files.c.position)
    return list(connection.execute(asked).scalars())


def uploaded(connection: sa.Connection, study: str) -> list[str]:
    """Where a study's files lie, in their order."""
    asked = sa.select(files.c.path).where(files.c.study_id == study).order_by(files.c.position)
    return list(connection.execute(asked).scalars())


def _shown() -> sa.ColumnElement[bool]:
    """Studies whose images are kept: all but those that were refused because they cannot be read, or are cancelled."""
    return sa.or_(studies.c.state != "refused", studies.c.id.in_(sa.select(refusals.c.study_id)))


def readable(connection: sa.Connection) -> set[str]:
    """The studies whose images may be looked at."""
    return set(connection.execute(sa.select(studies.c.id).where(_shown())).scalars())


def kept_paths(connection: sa.Connection) -> set[str]:
    """The files of all studies, and of their priors, that may still be read."""
    asked = sa.select(files.c.path).join(studies).where(_shown())
    before = sa.select(priors.c.files).join(studies).where(_shown())
    theirs = (path for paths in connection.execute(before).scalars() for path in paths)
    return {*connection.execute(asked).scalars(), *theirs}


# Whose an upload is, as far as its headers say, and which studies it comes after; the rule is ``data/earlier``.
#
# Headers are read of the files, compared, and forgotten. What is kept are a digest of the patient's id with a secret of
# this workstation, by which studies to compare with are found, and the time between two studies of one patient.


_SECRET: Final = "patients.key"
_MOST: Final = 50
"""Studies of one patient that a new one is compared with, the newest of those that came in."""
_SAME: Final = ("study_date", "patient_birth_date", "patient_sex")

Whose = Callable[[Sequence[Path]], Identity | None]


def read_secret(state: Path) -> bytes:
    """The secret of a workstation, made at its first start."""
    file = state / _SECRET
    try:
        kept = bytes.fromhex(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        kept = b""
    if len(kept) != 32:
        kept = secrets.token_bytes(32)
        write_text(file, kept.hex())
        file.chmod(0o600)
    return kept


def read_whose(files: Sequence[Path]) -> Identity | None:
    """Whose the files of a study are; None where one does not say, or they disagree.

    Of a series' folder the first slice is asked: a series of several patients is no scan.
    """
    try:
        asked = [series_files(file)[0] if file.is_dir() else file for file in files]
        found, _ = read_identities(asked)
    except (InputError, OSError):
        return None
    if not found or len(found) < len(asked):
        return None
    if any(len({getattr(one, field) for one in found}) > 1 for field in _SAME):
        return None
    return min(found, key=lambda one: one.study_time)


def keep(connection: sa.Connection, study: str, found: Identity, secret: bytes, whose: Whose) -> list[str]:
    """Keep whose a new study is and what it comes after; return the studies that now come after another one.

    Of an id that is nobody's nothing is kept: a reader may know.
    """
    if why_no_prior(found, found.model_copy(update={"study_instance_uid": ""})) == "no_patient_id":
        return []
    patient = hmac.new(secret, f"patient {found.patient_id.strip()}".encode(), hashlib.sha256).hexdigest()
    asked = (
        sa.select(studies.c.id)
        .join(patients, patients.c.study_id == studies.c.id)
        .where(patients.c.patient == patient, studies.c.state != "refused")
        .order_by(studies.c.created.desc(), studies.c.id)
    )
    later = []
    for other in connection.execute(asked.limit(_MOST)).scalars().all():
        its = whose([Path(path) for path in uploaded(connection, other)])
        for one, whose_one, before, whose_before in ((study, found, other, its), (other, its, study, found)):
            if whose_one is None or whose_before is None or why_no_prior(whose_one, whose_before) is not None:
                continue
            days, seconds = _apart(whose_one, whose_before)
            connection.execute(earlier.insert().values(study_id=one, prior_id=before, days=days, seconds=seconds))
            later.append(one)
    connection.execute(patients.insert().values(study_id=study, patient=patient))
    return list(dict.fromkeys(later))


def _apart(study: Identity, before: Identity) -> tuple[int, int]:
    """Days of the calendar between two studies, and seconds between their times of day as far as they are known."""
    days = [date.fromisoformat(one.study_date).toordinal() for one in (study, before)]
    clocks = [f"{one.study_time:0<6}"[:6] for one in (study, before)]
    seconds = [3600 * int(clock[:2]) + 60 * int(clock[2:4]) + int(clock[4:6]) for clock in clocks]
    return days[0] - days[1], seconds[0] - seconds[1]
