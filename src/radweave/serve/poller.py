"""The thread that asks an archive for new studies again and again, and lays what is new among the arrivals.

The same question is asked each time, and the bookmark says what of the answer is new: a server that was killed goes
on where it was. A study lies aside until all of it came, so that none is drafted with half of its images. One to which
images came since is fetched again, whole; who takes it in knows what is new.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from radweave.base.hashes import sha256_bytes
from radweave.hospital.asking import Archive, Asked, Count, FoundSeries, FoundStudy, NotAnsweredError
from radweave.hospital.plan import Query, may_hold
from radweave.serve import bookmark
from radweave.serve.again import Again
from radweave.serve.arrivals import OF_QUERY
from radweave.serve.database import Database
from radweave.serve.events import say

PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 600.0


class Poller(Again):
    """Asks ``archive``; lays studies into ``folder``, over ``aside``. ``room`` is how many more may wait for drafts."""

    def __init__(
        self, query: Query, archive: Archive, database: Database, folder: Path, aside: Path, room: Callable[[], int],
        count: Count,
    ) -> None:  # fmt: skip
        assert query.poll is not None
        self._query, self._poll, self._archive, self._database = query, query.poll, archive, database
        self._folder, self._aside, self._room, self._count = folder, aside / query.name, room, count
        self._next, self._failures = 0.0, 0
        shutil.rmtree(self._aside, ignore_errors=True)
        super().__init__(f"poll-{query.name}", pause_s=PAUSE_S, failed="poll-failed")

    def look(self) -> int:
        """Ask where it is time to, and fetch what is new; 0, for the next question must wait."""
        if time.monotonic() < self._next:
            return 0
        self._next = time.monotonic() + self._poll.every_s
        try:
            waits = self._look()
        except NotAnsweredError as error:
            self._failures += 1
            pause = min(LONGEST_PAUSE_S, self._poll.every_s * 2 ** min(self._failures, 20))
            self._next = time.monotonic() + pause
            if not self._stopping.is_set():
                say("archive-not-answered", place=str(error), count=self._failures)
            return 0
        self._failures = 0
        if waits:
            self._next = min(self._next, time.monotonic() + max(self._poll.quiet_s, PAUSE_S))
        return 0

    def _look(self) -> bool:
        """Ask, and fetch what is new; whether something waits until nothing more comes to it."""
        with self._database.reading() as connection:
            new = bookmark.within(connection, self._query.name, self._named())
        new.sort(key=lambda one: (one.study_date, one.study_time, one.study_instance_uid))
        with self._database.writing() as connection:
            ready = [one for one in new if bookmark.seen(connection, self._query.name, one, self._poll.quiet_s)]
        for study in ready[: max(0, self._room())]:
            if self._stopping.is_set():
                return False
            try:
                self._fetch(study)
            except NotAnsweredError as error:
                # It waits longer each time, so that the others come past it; the next question tells who is away.
                with self._database.writing() as connection:
                    bookmark.later(connection, self._query.name, study)
                say("study-not-fetched", place=str(error))
                return True
        return len(ready) < len(new)

    def _named(self) -> list[FoundStudy]:
        """The studies that fit the rule, each once."""
        since = datetime.now() - timedelta(hours=self._poll.last_h)
        days = f"{since:%Y%m%d}-{datetime.now() + timedelta(days=1):%Y%m%d}"
        found: dict[str, FoundStudy] = {}
        for modality in self._poll.modality:
            keys = {"StudyDate": days, "ModalitiesInStudy": modality}
            for study in self._archive.studies(keys, self._asked()):
                found.setdefault(study.study_instance_uid, study)
        return [study for study in found.values() if _is_since(study, since)]

    def _asked(self) -> Asked:
        return Asked(time.monotonic() + self._query.timeout_s, self._query.most, self._stopping.is_set)

    def _fetch(self, study: FoundStudy) -> None:
        wanted = [
            series
            for series in self._archive.series(study.study_instance_uid, self._asked())
            if series.modality in self._poll.modality and may_hold(self._poll.routes, series.body_part)
        ]
        images = _digest(wanted)
        with self._database.reading() as connection:
            before = bookmark.fetched(connection, self._query.name, study)
        if images is not None and images == before:  # what came is no image: a report, perhaps ours
            with self._database.writing() as connection:
                bookmark.end(connection, self._query.name, study, "came", images)
            return
        place = self._aside / uuid.uuid4().hex
        place.mkdir(parents=True)
        try:
            came = sum(self._archive.fetch(study.study_instance_uid, one.uid, place, self._asked()) for one in wanted)
            if came:
                place.rename(self._folder / f"{self._query.name}{OF_QUERY}{place.name}")
            with self._database.writing() as connection:
                bookmark.end(connection, self._query.name, study, "came" if came else "nothing", images)
            self._count("studies_fetched" if came else "studies_without_images", 1)
        finally:
            shutil.rmtree(place, ignore_errors=True)


def _digest(series: Sequence[FoundSeries]) -> str | None:
    """What series hold, as far as the archive says; None where it does not say how many objects each has."""
    if any(one.instances is None for one in series):
        return None
    return sha256_bytes("/".join(sorted(f"{one.uid}:{one.instances}" for one in series)).encode())


def _is_since(study: FoundStudy, since: datetime) -> bool:
    """Whether a study is of the time that is asked for; one that does not say when it was made passes."""
    clock = f"{study.study_time[:6]:0<6}" if study.study_time else "235959"
    return not study.study_date or f"{study.study_date}{clock}" >= f"{since:%Y%m%d%H%M%S}"
