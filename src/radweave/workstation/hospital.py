"""All that joins a workstation to a hospital's systems: receiver, who asks, what sorts their objects, sender."""

from __future__ import annotations

import math
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import sqlalchemy as sa

from radweave.core.errors import InputError
from radweave.core.extras import refuse_without
from radweave.core.storage import sha256_bytes, write_aside
from radweave.io.dicom import read_dicom
from radweave.workstation import outbox, reports, store
from radweave.workstation.archive import Archive, Count, FoundSeries, FoundStudy, NotAnsweredError, QueryLimits
from radweave.workstation.database import Database, asked, now, studies
from radweave.workstation.disk import NoRoomError, Room
from radweave.workstation.drafts import AlteredError, ConflictError, note_altered
from radweave.workstation.events import Again, Metrics, quiet, say, say_failure
from radweave.workstation.find_prior import Prior, find_prior
from radweave.workstation.formats import FORMATS, MAPS
from radweave.workstation.hospital_plan import Dicom, Plan, Priors, Query, Receive, Route, Target, Web, may_hold
from radweave.workstation.identity import Identity, read_identities
from radweave.workstation.outbox import NOBODYS
from radweave.workstation.receiver import OPEN
from radweave.workstation.sending import NotStoredError, send
from radweave.workstation.settings import Settings

if TYPE_CHECKING:
    from radweave.workstation.archive import Archive
    from radweave.workstation.receiver import Receiver

_QUOTING: Final = ("pynetdicom", "dicomweb_client", "pydicom", "highdicom", "urllib3", "radweave.workstation",
                   "radweave.workstation.events")  # fmt: skip
"""What logs by the standard library. A log of the others may quote a header or an address with a patient's id."""


class Joined:
    """What a plan asks for, and nothing where it asks for nothing."""

    def __init__(
        self, plan: Plan, settings: Settings, database: Database, metrics: Metrics, submit: Submit, disk: Room
    ) -> None:
        """Nothing runs before ``start``; ``refuse_unusable`` has seen the plan."""
        self._parts: list[_Part] = []
        if plan.is_empty:
            return
        quiet(*_QUOTING)
        from radweave.workstation.receiver import Receiver

        receiver = None
        if plan.receive is not None:
            receiver = Receiver(plan.receive, settings.incoming, metrics.count, disk.of_device)
            self._parts.append(receiver)
        asked = [(query, _archive(query, plan, receiver, metrics)) for query in plan.query]
        if plan.receive is not None or plan.query:
            routes = {query.name: query.poll.routes for query in plan.query if query.poll is not None}
            quiet_s, clean = 0.0, None
            if plan.receive is not None:
                routes[""], quiet_s, clean = plan.receive.routes, plan.receive.quiet_s, _cleaner(plan.receive)
            seeking = [one for one in asked if one[0].priors is not None]
            seeker = Seeker(seeking, settings.asked / "priors", metrics.count) if seeking else None
            self._parts.append(Arrivals(routes, quiet_s, settings.incoming, submit, metrics.count, seeker, clean))

        def room() -> int:
            try:
                disk.refuse(1)
            except NoRoomError:
                return 0
            with database.reading() as connection:
                return settings.limits.waiting - store.queued(connection) - sum(1 for _ in settings.incoming.iterdir())

        for query, archive in asked:
            if query.poll is not None:
                aside = settings.asked / "polls"
                self._parts.append(Poller(query, archive, database, settings.incoming, aside, room, metrics.count))
        if plan.send:
            self._parts.append(Sender(database, plan.send, metrics))

    def start(self) -> None:
        """Begin to listen, to ask, to sort and to send.

        Raises:
            InputError: if the port is taken, or a certificate cannot be used.
        """
        for part in self._parts:
            part.start()

    def stop(self) -> None:
        """Stop all at once: each may wait a while for its peer."""
        if self._parts:
            with ThreadPoolExecutor(len(self._parts)) as at_once:
                for stopped in [at_once.submit(part.stop) for part in self._parts]:
                    stopped.result()


class _Part(Protocol):
    def start(self) -> None: ...
    def stop(self) -> None: ...


def _archive(query: Query, plan: Plan, receiver: Receiver | None, metrics: Metrics) -> Archive:
    from radweave.workstation.archive_clients import DicomArchive, WebArchive

    if query.web is not None:
        return WebArchive(query.web, metrics.count)
    assert query.dicom is not None
    return DicomArchive(query.dicom, metrics.count, receiver, "" if plan.receive is None else plan.receive.ae_title)


def refuse_unusable(plan: Plan) -> None:
    """Look at all that would stop a server after it has begun.

    Raises:
        InputError: if the extra is not installed, the port is taken, or a certificate, key or password cannot be used.
    """
    if plan.is_empty:
        return
    refuse_without("hospital", "this plan", field="--hospital")
    from radweave.workstation.sending import server_context

    if plan.receive is not None:
        if plan.receive.tls is not None:
            server_context(plan.receive.tls)
        _cleaner(plan.receive)
        _refuse_taken(plan.receive.host, plan.receive.port)
    for target in plan.send:
        _refuse_unusable(target.web, target.dicom, f"send.{target.name}")
    for query in plan.query:
        _refuse_unusable(query.web, query.dicom, f"query.{query.name}")


def _refuse_unusable(web: Web | None, dicom: Dicom | None, field: str) -> None:
    from radweave.workstation.sending import client_context

    if dicom is not None and dicom.tls is not None:
        client_context(dicom.tls)
    for file in (web.password_file, web.authority) if web is not None else ():
        if file is not None and not file.is_file():
            raise InputError("no such file", file=file, field=field)


def _cleaner(plan: Receive) -> Clean | None:
    """What takes the patient out of a file, where the plan asks for it.

    Raises:
        InputError: if the key cannot be used.
    """
    if plan.deidentify is None:
        return None
    from radweave.data.deidentify.folder import deidentify_file
    from radweave.data.deidentify.key import read_key

    key, burned_in = read_key(plan.deidentify.key_file), plan.deidentify.burned_in
    return lambda file: deidentify_file(file, key, burned_in=burned_in).data


def _refuse_taken(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise InputError(f"cannot listen: {error.strerror}", field="receive.port", got=port) from None


# Looking for the priors of studies that came in, beside the thread that sorts them, for no longer than stated.


AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class _Looking:
    end: float
    answer: Future[Prior]
    prior: Prior | None = None


class Seeker:
    """Asks the archives one after the other; what one has is laid below ``folder`` until ``forget``."""

    def __init__(self, archives: Sequence[tuple[Query, Archive]], folder: Path, count: Count) -> None:
        self._archives, self._folder, self._count = archives, folder, count
        self._looking: dict[str, _Looking] = {}
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="priors")
        self._is_stopped = False
        shutil.rmtree(folder, ignore_errors=True)

    def look_for(self, name: str, files: Sequence[Path]) -> Prior | None:
        """What came of looking for the prior of a study; None while it is looked for. ``name`` is the study's own."""
        if name not in self._looking:
            wait = max(query.priors.wait_s for query, _ in self._archives if query.priors is not None)
            end = time.monotonic() + wait
            self._looking[name] = _Looking(end, self._threads.submit(self._ask, name, tuple(files), end))
        looking = self._looking[name]
        if looking.prior is not None:
            return looking.prior
        if not looking.answer.done() and time.monotonic() < looking.end:
            return None
        prior = Prior("late") if not looking.answer.done() else looking.answer.result()
        looking.answer.cancel()
        self._looking[name] = replace(looking, prior=prior)
        self._count(f"priors_{prior.outcome}", 1)
        return prior

    def forget(self, name: str) -> None:
        """Remove what was found; what comes later is removed when it is there."""
        looking = self._looking.pop(name, None)
        if looking is not None:
            looking.answer.add_done_callback(lambda _: shutil.rmtree(self._folder / name, ignore_errors=True))

    def stop(self) -> None:
        self._is_stopped = True
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _ask(self, name: str, files: Sequence[Path], end: float) -> Prior:
        try:
            sources, _ = read_identities(list(files))
        except InputError:  # no report could be made of it, and whose prior it were nobody knows
            return Prior("none")
        outcome = Prior("none")
        for query, archive in self._archives:
            if query.priors is None or not sources:
                continue
            asked = QueryLimits(end, query.most, lambda: self._is_stopped)
            found = self._one(archive, sources[0], query.priors, self._folder / name / query.name, asked)
            if found.outcome == "found":
                return found
            # Who reads the draft must know of the worst that came of it.
            outcome = found if found.outcome != "none" else outcome
        return outcome

    def _one(self, archive: Archive, study: Identity, plan: Priors, folder: Path, asked: QueryLimits) -> Prior:
        try:
            return find_prior(archive, study, plan, folder, asked, self._count)
        except NotAnsweredError:
            say("prior-not-found")
        except Exception as error:  # one archive that answers nonsense must not keep a study
            say_failure("prior-failed", error)
        return Prior("late" if time.monotonic() >= asked.deadline else "failed")


# From objects that came in to studies on the work list.
#
# association's or query's folder -> a folder for each study -> when nothing more came for a while: its prior is
# looked for -> submitted
#
# All of it lies on the disk, so that a server that is killed goes on where it was. Images of a study that is on the work
# list already are for ``submit`` to take or to drop.


PAUSE_S: Final = 0.5
OF_QUERY: Final = "@"
"""Stands in the name of a folder whose objects were asked for, after the name of the query."""
Submit = Callable[[Sequence[Path], str, Prior | None], bool]
"""Files that are called after their instances, the study's own name, and its prior."""
CountEvent = Callable[[str], None]
Clean = Callable[[Path], bytes]


class Arrivals(Again):
    """Looks through ``folder``; gives whole studies to ``submit``, which says whether they are done with.

    ``routes`` say what may pass: of each query by its name, and of what came unasked under "". ``clean`` gives a file's
    bytes without its patient, where the plan asks for that.
    """

    def __init__(
        self, routes: Mapping[str, Sequence[Route]], quiet_s: float, folder: Path, submit: Submit, count: CountEvent,
        seeker: Seeker | None = None, clean: Clean | None = None,
    ) -> None:  # fmt: skip
        self._routes, self._quiet_s, self._folder = routes, quiet_s, folder
        self._submit, self._count, self._seeker, self._clean = submit, count, seeker, clean
        self._studies = folder / "studies"
        self._studies.mkdir(parents=True, exist_ok=True)
        self._since: dict[str, tuple[object, float]] = {}
        super().__init__("arrivals", pause_s=PAUSE_S, failed="arrivals-failed")

    def stop(self) -> None:
        super().stop()
        if self._seeker is not None:  # what it looks for is looked for again by the next server
            self._seeker.stop()

    def look(self) -> int:
        """Sort what came, and submit the studies to which nothing came for a while; 0, for what is left must wait."""
        places = [one for one in sorted(self._folder.iterdir()) if one != self._studies and not one.name.endswith(OPEN)]
        self._each([one for one in places if one.is_dir()], self._sort)
        there = sorted(self._studies.iterdir())
        self._since = {study.name: self._since[study.name] for study in there if study.name in self._since}
        self._each(there, self._hand_on)
        return 0

    def _each(self, places: Sequence[Path], work: Callable[[Path], None]) -> None:
        """Work on each; one that fails, again and again, holds up no other."""
        failures: list[Exception] = []
        for place in places:
            if self._stopping.is_set():
                return
            try:
                work(place)
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _hand_on(self, study: Path) -> None:
        files = sorted(file for file in study.iterdir() if not file.name.startswith("."))
        seen = [(file.name, file.stat().st_mtime_ns) for file in files]
        if self._is_quiet(study.name, seen) and self._take(study.name, files):
            shutil.rmtree(study, ignore_errors=True)

    def _is_quiet(self, name: str, files: object) -> bool:
        """Whether nothing came to a study for a while, by a clock that nobody sets: since this server saw it last."""
        before, since = self._since.get(name, (None, 0.0))
        if before != files:
            since = time.monotonic()
            self._since[name] = files, since
        return time.monotonic() - since >= self._quiet_s

    def _sort(self, place: Path) -> None:
        """Lay each object that may pass into its study's folder; the same instance twice is there once."""
        query, asked, _ = place.name.rpartition(OF_QUERY)
        routes = self._routes.get(query if asked else "", (Route(),))
        for came in sorted(place.glob("*.dcm")):
            if self._stopping.is_set():  # the next server goes on with the rest
                return
            file = self._cleaned(came)
            if file is None:
                continue
            try:
                header = read_dicom(file, pixels=False).header
            except InputError:
                self._count("objects_unreadable")
                continue
            if header.study_key is None or header.sop_key is None:
                self._count("objects_unreadable")
                continue
            said = (header.modality or "", header.body_part or "", header.view or "UNKNOWN")
            if not any(route.fits(*said) for route in routes):
                self._count("objects_not_routed")
                continue
            # Of two patients with one study's UID none may get the other's images.
            name = sha256_bytes(f"{header.patient_key}/{header.study_key}".encode())[:32]
            study = self._studies / (name if self._clean is None else f"{NOBODYS}{name}")
            study.mkdir(exist_ok=True)
            file.rename(study / f"{header.sop_key}.dcm")
        shutil.rmtree(place)

    def _cleaned(self, file: Path) -> Path | None:
        """The file to go on with; None for one that stays out. What came is kept until its whole folder is sorted.

        A server that is killed in between does the same again, with the same outcome.
        """
        if self._clean is None:
            return file
        nobodys = file.with_suffix(".nobodys")
        try:
            data = self._clean(file)
        except InputError:
            self._count("objects_not_deidentified")
            return None
        with write_aside(nobodys) as partial:
            partial.write_bytes(data)
        return nobodys

    def _take(self, name: str, files: Sequence[Path]) -> bool:
        if not files:
            return True
        prior = None
        if self._seeker is not None and not name.startswith(NOBODYS):  # no archive knows a pseudonym
            prior = self._seeker.look_for(name, files)
            if prior is None:
                return False
        is_done = self._submit(files, name, prior)
        if is_done and self._seeker is not None:
            self._seeker.forget(name)
        return is_done


# Which studies an archive has named, and what became of each, in the database: no image is fetched twice in vain.
#
# seen -> came (its objects lie among the arrivals)
# |
# +--> nothing (it has no image that fits)
#
# One that has another number of objects than it had is seen again: more may have come to it. Then its series tell whether
# these are images, or reports such as ours. A study is kept by a digest of its UID. The rows of studies that no question
# finds any more stay: they are small.


FIRST_RETRY_S: Final = 2.0
LONGEST_RETRY_S: Final = 600.0


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
    is_due = not time < row.due <= time + timedelta(seconds=LONGEST_RETRY_S)
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
    pause = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2 ** min(row.tries, 20))
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


# The thread that asks an archive for new studies again and again, and lays what is new among the arrivals.
#
# The same question is asked each time, and the bookmark says what of the answer is new: a server that was killed goes
# on where it was. A study lies aside until all of it came, so that none is drafted with half of its images. One to which
# images came since is fetched again, whole; who takes it in knows what is new.


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
            new = within(connection, self._query.name, self._named())
        new.sort(key=lambda one: (one.study_date, one.study_time, one.study_instance_uid))
        with self._database.writing() as connection:
            ready = [one for one in new if seen(connection, self._query.name, one, self._poll.quiet_s)]
        for study in ready[: max(0, self._room())]:
            if self._stopping.is_set():
                return False
            try:
                self._fetch(study)
            except NotAnsweredError as error:
                # It waits longer each time, so that the others come past it; the next question tells who is away.
                with self._database.writing() as connection:
                    later(connection, self._query.name, study)
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

    def _asked(self) -> QueryLimits:
        return QueryLimits(time.monotonic() + self._query.timeout_s, self._query.most, self._stopping.is_set)

    def _fetch(self, study: FoundStudy) -> None:
        wanted = [
            series
            for series in self._archive.series(study.study_instance_uid, self._asked())
            if series.modality in self._poll.modality and may_hold(self._poll.routes, series.body_part)
        ]
        images = _digest(wanted)
        with self._database.reading() as connection:
            before = fetched(connection, self._query.name, study)
        if images is not None and images == before:  # what came is no image: a report, perhaps ours
            with self._database.writing() as connection:
                end(connection, self._query.name, study, "came", images)
            return
        place = self._aside / uuid.uuid4().hex
        place.mkdir(parents=True)
        try:
            came = sum(self._archive.fetch(study.study_instance_uid, one.uid, place, self._asked()) for one in wanted)
            if came:
                place.rename(self._folder / f"{self._query.name}{OF_QUERY}{place.name}")
            with self._database.writing() as connection:
                end(connection, self._query.name, study, "came" if came else "nothing", images)
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


# The thread that sends what waits in the outbox, one object after the other.


SENDER_PAUSE_S: Final = 0.5
CUT_S: Final = 4.0
"""How long after a stop an object may still be sent."""
_AT_ONCE: Final = 16


class Sender(Again):
    """Sends to ``targets``. Where it is stopped it ends after the object that is being sent, or cuts it."""

    def __init__(self, database: Database, targets: tuple[Target, ...], metrics: Metrics) -> None:
        self._database, self._metrics = database, metrics
        self._targets = {target.name: target for target in targets}
        self._end = math.inf
        super().__init__("sender", pause_s=SENDER_PAUSE_S, failed="sending-failed")

    def stop(self) -> None:
        self._end = time.monotonic() + CUT_S
        super().stop()

    def look(self) -> int:
        """Enqueue what is ready and try what is due; how many rows were tried."""
        targets = tuple(self._targets.values())
        with self._database.writing() as connection:
            outbox.enqueue(connection, targets)
            rows = outbox.due(connection, targets, _AT_ONCE)
        tried = 0
        for row in rows:
            if self._stopping.is_set():
                break
            self._try(row)
            tried += 1
        return tried

    def _try(self, row: sa.Row[Any]) -> None:
        if self._is_superseded(row):
            with self._database.writing() as connection:
                outbox.refused(connection, row, "the study was signed before its draft was sent")
            self._count("reports_superseded", row)
            return
        try:
            data = self._object(row)
            receipt = send(self._targets[row.target], data, lambda: time.monotonic() >= self._end)
        except ConflictError as error:  # it was rejected or reopened meanwhile, or is not what was signed
            if not isinstance(error, AlteredError):
                self._again(row, error.reason)
                return
            with self._database.writing() as connection:
                outbox.refused(connection, row, error.reason)
                note_altered(connection, row.study_id, error)
            self._count("reports_altered", row)
        except InputError as error:  # no report can be made of it, now or later
            with self._database.writing() as connection:
                outbox.refused(
                    connection, row, error.reason if error.field is None else f"{error.field}: {error.reason}"
                )
            self._count("reports_refused", row)
        except NotStoredError as error:
            self._again(row, str(error))
        except Exception as error:  # one object that cannot be made must not keep the others
            say_failure("sending-failed", error, study=row.study_id)
            self._again(row, f"it could not be made ({type(error).__name__})")
        else:
            with self._database.writing() as connection:
                outbox.sent(connection, row, receipt)
            self._count("reports_sent", row)

    def _is_superseded(self, row: sa.Row[Any]) -> bool:
        """Whether a draft would come to its target behind the report that was signed."""
        if row.event != "drafted" or "signed" not in self._targets[row.target].events:
            return False
        with self._database.reading() as connection:
            return outbox.is_signed(connection, row.study_id)

    def _again(self, row: sa.Row[Any], reason: str) -> None:
        with self._database.writing() as connection:
            outbox.later(connection, row, reason)
        self._count("sending_failures", row)

    def _object(self, row: sa.Row[Any]) -> bytes:
        with self._database.reading() as connection:
            study = connection.execute(sa.select(studies).where(studies.c.id == row.study_id)).one()
            stored = reports.to_send(connection, study, row)
        return FORMATS[row.format].bytes_of(reports.with_images(stored, maps=row.format == MAPS))

    def _count(self, what: str, row: sa.Row[Any]) -> None:
        self._metrics.count(what)
        say(what.replace("_", "-"), study=row.study_id)
