"""Whose an upload is, as far as its headers say, and which studies it comes after; the rule is ``data/earlier``.

Headers are read of the files, compared, and forgotten. What is kept are a digest of the patient's id with a secret of
this workstation, by which studies to compare with are found, and the time between two studies of one patient.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from radweave.base.errors import InputError
from radweave.base.storage import write_text
from radweave.data.earlier import why_no_prior
from radweave.data.reading.series import series_files
from radweave.hospital.identity import Identity, read_identities
from radweave.serve.schema import earlier, patients, studies
from radweave.serve.store import uploaded

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
