"""Which studies an archive has named, and what became of each, in the database: no image is fetched twice in vain.

    seen -> came (its objects lie among the arrivals)
      |
      +--> nothing (it has no image that fits)

One that has another number of objects than it had is seen again: more may have come to it. Then its series tell whether
these are images, or reports such as ours. A study is kept by a digest of its UID. The rows of studies that no question
finds any more stay: they are small.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any, Final, Literal

import sqlalchemy as sa

from radweave.base.hashes import sha256_bytes
from radweave.hospital.asking import FoundStudy
from radweave.serve.schema import asked, now

FIRST_PAUSE_S: Final = 2.0
LONGEST_PAUSE_S: Final = 600.0


def digest(study: FoundStudy) -> str:
    """What a study is kept by."""
    return sha256_bytes(study.study_instance_uid.encode())


def seen(connection: sa.Connection, query: str, study: FoundStudy, quiet_s: float) -> bool:
    """Note that a study was named; whether it is to be fetched now: nothing came to it for a while, it is its turn."""
    name, time = digest(study), now()
    row = _row(connection, query, name)
    if row is None:
        values = {"state": "seen", "instances": study.instances, "since": time, "tries": 0, "due": time}
        connection.execute(asked.insert().values(query=query, study=name, **values))
        return quiet_s <= 0
    # No wait is longer than this: the clock was set back since.
    is_due = not time < row.due <= time + timedelta(seconds=LONGEST_PAUSE_S)
    if row.instances != study.instances or row.since > time:
        _change(connection, query, name, state="seen", instances=study.instances, since=time)
        return quiet_s <= 0 and is_due
    return bool(row.since + timedelta(seconds=quiet_s) <= time and is_due)


def fetched(connection: sa.Connection, query: str, study: FoundStudy) -> str | None:
    """The digest of the series that were fetched of a study."""
    row = _row(connection, query, digest(study))
    return None if row is None else row.images


def end(
    connection: sa.Connection, query: str, study: FoundStudy, state: Literal["came", "nothing"], images: str | None
) -> None:
    """Note that a study need not be asked for, as long as nothing comes to it; ``images`` digests what was fetched."""
    _change(connection, query, digest(study), state=state, images=images, tries=0)


def later(connection: sa.Connection, query: str, study: FoundStudy) -> None:
    """Let a study wait that could not be fetched, longer after each try."""
    name = digest(study)
    row = _row(connection, query, name)
    assert row is not None, "it was seen"
    pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(row.tries, 20))
    _change(connection, query, name, tries=row.tries + 1, due=now() + timedelta(seconds=pause))


def within(connection: sa.Connection, query: str, studies: Collection[FoundStudy]) -> list[FoundStudy]:
    """Those that are still to be asked for, or have another number of objects than they had."""
    rows = sa.select(asked.c.study, asked.c.instances).where(asked.c.query == query, asked.c.state != "seen")
    known = {row.study: row.instances for row in connection.execute(rows)}
    nothing = object()
    return [study for study in studies if known.get(digest(study), nothing) != study.instances]


def _row(connection: sa.Connection, query: str, name: str) -> sa.Row[Any] | None:
    return connection.execute(sa.select(asked).where(asked.c.query == query, asked.c.study == name)).first()


def _change(connection: sa.Connection, query: str, name: str, **values: Any) -> None:
    connection.execute(asked.update().where(asked.c.query == query, asked.c.study == name).values(**values))
