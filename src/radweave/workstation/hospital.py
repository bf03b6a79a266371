"""Background services between a workstation and a hospital: receiver, prior search, sorter, poller and sender."""

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
from typing import TYPE_CHECKING, Any, Final, Literal

import sqlalchemy as sa

from radweave.core.errors import InputError
from radweave.core.extras import refuse_without
from radweave.core.storage import sha256_bytes, write_aside
from radweave.io.dicom import read_header
from radweave.workstation import outbox, reports, store
from radweave.workstation.archive import Archive, Count, FoundSeries, FoundStudy, NotAnsweredError, QueryLimits
from radweave.workstation.database import Database, listed_studies, now, studies
from radweave.workstation.disk import DiskSpace, NoRoomError
from radweave.workstation.drafts import AlteredError, ConflictError, note_altered
from radweave.workstation.events import Metrics, PeriodicThread, log_event, log_failure, silence_loggers
from radweave.workstation.find_prior import Prior, find_prior
from radweave.workstation.formats import FORMATS, MAPS
from radweave.workstation.hospital_plan import Dicom, Plan, Priors, Query, Receive, Route, Target, Web, may_hold
from radweave.workstation.identity import Identity, read_identities
from radweave.workstation.outbox import DEIDENTIFIED
from radweave.workstation.receiver import OPEN
from radweave.workstation.sending import NotStoredError, send
from radweave.workstation.settings import Settings

if TYPE_CHECKING:
    from radweave.workstation.archive import Archive
    from radweave.workstation.receiver import Receiver

_QUOTING: Final = ("pynetdicom", "dicomweb_client", "pydicom", "highdicom", "urllib3", "radweave.workstation",
                   "radweave.workstation.events")  # fmt: skip
"""Loggers of libraries that may quote a header or an address with a patient's id."""


class HospitalServices:
    """The services of a plan; none for an empty plan."""

    def __init__(
        self, plan: Plan, settings: Settings, database: Database, metrics: Metrics, submit: Submit, disk: DiskSpace
    ) -> None:
        """Make the services of a plan checked by ``refuse_unusable``; ``start`` runs them."""
        self._parts: list[PeriodicThread | Receiver] = []
        if plan.is_empty:
            return
        silence_loggers(*_QUOTING)
        from radweave.workstation.receiver import Receiver

        receiver = None
        if plan.receive is not None:
            receiver = Receiver(plan.receive, settings.incoming, metrics.count, disk.reserve_or_oserror)
            self._parts.append(receiver)
        archives = [(query, _archive(query, plan, receiver, metrics)) for query in plan.query]
        if plan.receive is not None or plan.query:
            routes = {query.name: query.poll.routes for query in plan.query if query.poll is not None}
            quiet_s, clean = 0.0, None
            if plan.receive is not None:
                routes[""], quiet_s, clean = plan.receive.routes, plan.receive.quiet_s, _cleaner(plan.receive)
            with_priors = [one for one in archives if one[0].priors is not None]
            seeker = PriorSearch(with_priors, settings.retrieved / "priors", metrics.count) if with_priors else None
            self._parts.append(Arrivals(routes, quiet_s, settings.incoming, submit, metrics.count, seeker, clean))

        def free_slots() -> int:
            try:
                disk.refuse(1)
            except NoRoomError:
                return 0
            with database.reading() as connection:
                return settings.limits.waiting - store.queued(connection) - sum(1 for _ in settings.incoming.iterdir())

        for query, archive in archives:
            if query.poll is not None:
                aside = settings.retrieved / "polls"
                self._parts.append(
                    Poller(query, archive, database, settings.incoming, aside, free_slots, metrics.count)
                )
        if plan.send:
            self._parts.append(Sender(database, plan.send, metrics))

    def start(self) -> None:
        """Start all services.

        Raises:
            InputError: if the port is taken, or a certificate cannot be used.
        """
        for part in self._parts:
            part.start()

    def stop(self) -> None:
        """Stop all services in parallel, since each may wait for its peer."""
        if self._parts:
            with ThreadPoolExecutor(len(self._parts)) as at_once:
                for stopped in [at_once.submit(part.stop) for part in self._parts]:
                    stopped.result()


def _archive(query: Query, plan: Plan, receiver: Receiver | None, metrics: Metrics) -> Archive:
    from radweave.workstation.archive_clients import DicomArchive, WebArchive

    if query.web is not None:
        return WebArchive(query.web, metrics.count)
    assert query.dicom is not None
    return DicomArchive(query.dicom, metrics.count, receiver, "" if plan.receive is None else plan.receive.ae_title)


def refuse_unusable(plan: Plan) -> None:
    """Refuse a plan that would fail after the start of the server.

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
    """De-identification of a file, if the plan asks for it.

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


# Search for the priors of received studies, in threads of its own and with a time limit.

AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class _Search:
    end: float
    answer: Future[Prior]
    prior: Prior | None = None


class PriorSearch:
    """Searches archives one after the other; a retrieved prior lies below ``folder`` until ``forget``."""

    def __init__(self, archives: Sequence[tuple[Query, Archive]], folder: Path, count: Count) -> None:
        self._archives, self._folder, self._count = archives, folder, count
        self._looking: dict[str, _Search] = {}
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="priors")
        self._is_stopped = False
        shutil.rmtree(folder, ignore_errors=True)

    def look_for(self, name: str, files: Sequence[Path]) -> Prior | None:
        """Result of the search for the prior of a study; None while it runs. ``name`` is the key of the study."""
        if name not in self._looking:
            wait = max(query.priors.wait_s for query, _ in self._archives if query.priors is not None)
            end = time.monotonic() + wait
            self._looking[name] = _Search(end, self._threads.submit(self._ask, name, tuple(files), end))
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
        """Remove the files of a search, or remove them when it ends."""
        looking = self._looking.pop(name, None)
        if looking is not None:
            looking.answer.add_done_callback(lambda _: shutil.rmtree(self._folder / name, ignore_errors=True))

    def stop(self) -> None:
        self._is_stopped = True
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _ask(self, name: str, files: Sequence[Path], end: float) -> Prior:
        try:
            sources, _ = read_identities(list(files))
        except InputError:  # without an identity there is no prior
            return Prior("none")
        outcome = Prior("none")
        for query, archive in self._archives:
            if query.priors is None or not sources:
                continue
            limits = QueryLimits(end, query.most, lambda: self._is_stopped)
            prior = self._one(archive, sources[0], query.priors, self._folder / name / query.name, limits)
            if prior.outcome == "found":
                return prior
            # The reader is told the worst outcome.
            outcome = prior if prior.outcome != "none" else outcome
        return outcome

    def _one(self, archive: Archive, study: Identity, plan: Priors, folder: Path, limits: QueryLimits) -> Prior:
        try:
            return find_prior(archive, study, plan, folder, limits, self._count)
        except NotAnsweredError:
            log_event("prior-not-found")
        except Exception as error:  # a faulty archive must not hold up a study
            log_failure("prior-failed", error)
        return Prior("late" if time.monotonic() >= limits.deadline else "failed")


# From received objects to studies on the work list.
#
# folder of an association or query -> folder per study -> unchanged for a while: search of the prior -> submitted
#
# All state is on the disk, so that a restarted server continues. ``submit`` decides on images of studies that are on
# the work list already.

PAUSE_S: Final = 0.5
QUERY_MARK: Final = "@"
"""Follows the name of the query in the names of folders of retrieved objects."""
Submit = Callable[[Sequence[Path], str, Prior | None], bool]
"""(Files named after their instances, key of the study, its prior) -> True if they are done with."""
CountEvent = Callable[[str], None]
Clean = Callable[[Path], bytes]


class Arrivals(PeriodicThread):
    """Sorts objects in ``folder`` into studies and gives complete ones to ``submit``.

    ``routes`` are the accepted routes by name of the query, and under "" those of received objects. ``clean``
    de-identifies a file, if the plan asks for that.
    """

    def __init__(
        self, routes: Mapping[str, Sequence[Route]], quiet_s: float, folder: Path, submit: Submit, count: CountEvent,
        seeker: PriorSearch | None = None, clean: Clean | None = None,
    ) -> None:  # fmt: skip
        self._routes, self._quiet_s, self._folder = routes, quiet_s, folder
        self._submit, self._count, self._seeker, self._clean = submit, count, seeker, clean
        self._studies = folder / "studies"
        self._studies.mkdir(parents=True, exist_ok=True)
        self._since: dict[str, tuple[object, float]] = {}
        super().__init__("arrivals", pause_s=PAUSE_S, failed="arrivals-failed")

    def stop(self) -> None:
        super().stop()
        if self._seeker is not None:  # the next server repeats its searches
            self._seeker.stop()

    def run_once(self) -> int:
        """Sort received objects, and submit studies unchanged for a while; 0, since the rest must wait."""
        places = [one for one in sorted(self._folder.iterdir()) if one != self._studies and not one.name.endswith(OPEN)]
        self._each([one for one in places if one.is_dir()], self._sort)
        studies = sorted(self._studies.iterdir())
        self._since = {study.name: self._since[study.name] for study in studies if study.name in self._since}
        self._each(studies, self._hand_on)
        return 0

    def _each(self, places: Sequence[Path], work: Callable[[Path], None]) -> None:
        """Work on each path; a failing one does not hold up the others."""
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
        versions = [(file.name, file.stat().st_mtime_ns) for file in files]
        if self._is_quiet(study.name, versions) and self._take(study.name, files):
            shutil.rmtree(study, ignore_errors=True)

    def _is_quiet(self, name: str, files: object) -> bool:
        """True if a study is unchanged for ``quiet_s`` by the monotonic clock of this server."""
        before, since = self._since.get(name, (None, 0.0))
        if before != files:
            since = time.monotonic()
            self._since[name] = files, since
        return time.monotonic() - since >= self._quiet_s

    def _sort(self, place: Path) -> None:
        """Move each accepted object into the folder of its study; duplicates of an instance replace it."""
        query, is_queried, _ = place.name.rpartition(QUERY_MARK)
        routes = self._routes.get(query if is_queried else "", (Route(),))
        for came in sorted(place.glob("*.dcm")):
            if self._stopping.is_set():  # the next server goes on with the rest
                return
            file = self._cleaned(came)
            if file is None:
                continue
            try:
                header = read_header(file)
            except InputError:
                self._count("objects_unreadable")
                continue
            if header.study_key is None or header.sop_key is None:
                self._count("objects_unreadable")
                continue
            values = (header.modality or "", header.body_part or "", header.view or "UNKNOWN")
            if not any(route.fits(*values) for route in routes):
                self._count("objects_not_routed")
                continue
            # Two patients may share a StudyInstanceUID: both keys name the folder.
            name = sha256_bytes(f"{header.patient_key}/{header.study_key}".encode())[:32]
            study = self._studies / (name if self._clean is None else f"{DEIDENTIFIED}{name}")
            study.mkdir(exist_ok=True)
            file.rename(study / f"{header.sop_key}.dcm")
        shutil.rmtree(place)

    def _cleaned(self, file: Path) -> Path | None:
        """The de-identified file, or None if it is refused.

        The original stays until its whole folder is sorted, so that a restarted server repeats the same work.
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
        if self._seeker is not None and not name.startswith(DEIDENTIFIED):  # archives know no pseudonyms
            prior = self._seeker.look_for(name, files)
            if prior is None:
                return False
        is_done = self._submit(files, name, prior)
        if is_done and self._seeker is not None:
            self._seeker.forget(name)
        return is_done


# Studies listed by polled archives, with their state in the database, so that no image is fetched twice in vain.
#
# seen -> came (its objects are among the arrivals)
# |
# +--> nothing (no matching image)
#
# A study with another number of objects returns to ``seen``; its series then tell new images from reports. Rows are
# keyed by a digest of the UID, and stay when a study is no longer listed.

FIRST_RETRY_S: Final = 2.0
LONGEST_RETRY_S: Final = 600.0


def digest(study: FoundStudy) -> str:
    """Key of a listed study."""
    return sha256_bytes(study.study_instance_uid.encode())


def note_listed(connection: sa.Connection, query: str, study: FoundStudy, quiet_s: float) -> bool:
    """Record a listed study; True if it is unchanged for ``quiet_s`` and due to be fetched."""
    name, time = digest(study), now()
    row = _listed_row(connection, query, name)
    if row is None:
        values = {"state": "seen", "instances": study.instances, "since": time, "tries": 0, "due": time}
        connection.execute(listed_studies.insert().values(query=query, study=name, **values))
        return quiet_s <= 0
    # No wait is longer than this unless the clock was set back.
    is_due = not time < row.due <= time + timedelta(seconds=LONGEST_RETRY_S)
    if row.instances != study.instances or row.since > time:
        _update_listed(connection, query, name, state="seen", instances=study.instances, since=time)
        return quiet_s <= 0 and is_due
    return bool(row.since + timedelta(seconds=quiet_s) <= time and is_due)


def finish_listed(
    connection: sa.Connection, query: str, study: FoundStudy, state: Literal["came", "nothing"], images: str | None
) -> None:
    """Record that a study is done until it changes; ``images`` is the digest of its fetched series."""
    _update_listed(connection, query, digest(study), state=state, images=images, tries=0)


def retry_later(connection: sa.Connection, query: str, study: FoundStudy) -> None:
    """Delay the next attempt to fetch a study, longer after each attempt."""
    name = digest(study)
    row = _listed_row(connection, query, name)
    assert row is not None, "it was seen"
    pause = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2 ** min(row.tries, 20))
    _update_listed(connection, query, name, tries=row.tries + 1, due=now() + timedelta(seconds=pause))


def unfetched(connection: sa.Connection, query: str, studies: Collection[FoundStudy]) -> list[FoundStudy]:
    """Studies that are not done, or whose number of objects changed."""
    rows = sa.select(listed_studies.c.study, listed_studies.c.instances).where(
        listed_studies.c.query == query, listed_studies.c.state != "seen"
    )
    known = {row.study: row.instances for row in connection.execute(rows)}
    nothing = object()
    return [study for study in studies if known.get(digest(study), nothing) != study.instances]


def _listed_row(connection: sa.Connection, query: str, name: str) -> sa.Row[Any] | None:
    return connection.execute(
        sa.select(listed_studies).where(listed_studies.c.query == query, listed_studies.c.study == name)
    ).first()


def _update_listed(connection: sa.Connection, query: str, name: str, **values: Any) -> None:
    connection.execute(
        listed_studies.update().where(listed_studies.c.query == query, listed_studies.c.study == name).values(**values)
    )


# Polling of archives. The same query is repeated, and the table of listed studies tells new ones. A study is complete
# before it moves to the arrivals. A study with later images is fetched again as a whole.

LONGEST_PAUSE_S: Final = 600.0


class Poller(PeriodicThread):
    """Polls ``archive``; moves studies into ``folder`` by way of ``aside``, at most ``free_slots()`` at a time."""

    def __init__(
        self, query: Query, archive: Archive, database: Database, folder: Path, aside: Path,
        free_slots: Callable[[], int], count: Count,
    ) -> None:  # fmt: skip
        assert query.poll is not None
        self._query, self._poll, self._archive, self._database = query, query.poll, archive, database
        self._folder, self._aside, self._free_slots, self._count = folder, aside / query.name, free_slots, count
        self._next, self._failures = 0.0, 0
        shutil.rmtree(self._aside, ignore_errors=True)
        super().__init__(f"poll-{query.name}", pause_s=PAUSE_S, failed="poll-failed")

    def run_once(self) -> int:
        """Query the archive if it is time, and fetch new studies; 0, since the next query must wait."""
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
                log_event("archive-not-answered", place=str(error), count=self._failures)
            return 0
        self._failures = 0
        if waits:
            self._next = min(self._next, time.monotonic() + max(self._poll.quiet_s, PAUSE_S))
        return 0

    def _look(self) -> bool:
        """Query and fetch; True if a study waits until it is unchanged for a while."""
        with self._database.reading() as connection:
            new = unfetched(connection, self._query.name, self._named())
        new.sort(key=lambda one: (one.study_date, one.study_time, one.study_instance_uid))
        with self._database.writing() as connection:
            ready = [one for one in new if note_listed(connection, self._query.name, one, self._poll.quiet_s)]
        for study in ready[: max(0, self._free_slots())]:
            if self._stopping.is_set():
                return False
            try:
                self._fetch(study)
            except NotAnsweredError as error:
                # It waits longer each time, so that others are fetched first.
                with self._database.writing() as connection:
                    retry_later(connection, self._query.name, study)
                log_event("study-not-fetched", place=str(error))
                return True
        return len(ready) < len(new)

    def _named(self) -> list[FoundStudy]:
        """Listed studies that match the plan, each once."""
        since = datetime.now() - timedelta(hours=self._poll.last_h)
        days = f"{since:%Y%m%d}-{datetime.now() + timedelta(days=1):%Y%m%d}"
        studies: dict[str, FoundStudy] = {}
        for modality in self._poll.modality:
            keys = {"StudyDate": days, "ModalitiesInStudy": modality}
            for study in self._archive.studies(keys, self._limits()):
                studies.setdefault(study.study_instance_uid, study)
        return [study for study in studies.values() if _is_since(study, since)]

    def _limits(self) -> QueryLimits:
        return QueryLimits(time.monotonic() + self._query.timeout_s, self._query.most, self._stopping.is_set)

    def _fetch(self, study: FoundStudy) -> None:
        wanted = [
            series
            for series in self._archive.series(study.study_instance_uid, self._limits())
            if series.modality in self._poll.modality and may_hold(self._poll.routes, series.body_part)
        ]
        images = _digest(wanted)
        with self._database.reading() as connection:
            row = _listed_row(connection, self._query.name, digest(study))
        before = None if row is None else row.images
        if images is not None and images == before:  # the new objects are no images but reports
            with self._database.writing() as connection:
                finish_listed(connection, self._query.name, study, "came", images)
            return
        place = self._aside / uuid.uuid4().hex
        place.mkdir(parents=True)
        try:
            came = sum(self._archive.fetch(study.study_instance_uid, one.uid, place, self._limits()) for one in wanted)
            if came:
                place.rename(self._folder / f"{self._query.name}{QUERY_MARK}{place.name}")
            with self._database.writing() as connection:
                finish_listed(connection, self._query.name, study, "came" if came else "nothing", images)
            self._count("studies_fetched" if came else "studies_without_images", 1)
        finally:
            shutil.rmtree(place, ignore_errors=True)


def _digest(series: Sequence[FoundSeries]) -> str | None:
    """Digest of the series and their sizes; None if the archive does not state the sizes."""
    if any(one.instances is None for one in series):
        return None
    return sha256_bytes("/".join(sorted(f"{one.uid}:{one.instances}" for one in series)).encode())


def _is_since(study: FoundStudy, since: datetime) -> bool:
    """True for a study made after ``since``, or without a date."""
    clock = f"{study.study_time[:6]:0<6}" if study.study_time else "235959"
    return not study.study_date or f"{study.study_date}{clock}" >= f"{since:%Y%m%d%H%M%S}"


# Sending of the outbox, one object after the other.

SENDER_PAUSE_S: Final = 0.5
CUT_S: Final = 4.0
"""Time after a stop in which an object may still be sent."""
_AT_ONCE: Final = 16


class Sender(PeriodicThread):
    """Sends reports to ``targets``. A stop lets the object in progress end, or cuts it after ``CUT_S``."""

    def __init__(self, database: Database, targets: tuple[Target, ...], metrics: Metrics) -> None:
        self._database, self._metrics = database, metrics
        self._targets = {target.name: target for target in targets}
        self._end = math.inf
        super().__init__("sender", pause_s=SENDER_PAUSE_S, failed="sending-failed")

    def stop(self) -> None:
        self._end = time.monotonic() + CUT_S
        super().stop()

    def run_once(self) -> int:
        """Enqueue new reports and try due ones; return the number tried."""
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
            self._refuse(row, "the study was signed before its draft was sent", "reports_superseded")
            return
        try:
            data = self._object(row)
            receipt = send(self._targets[row.target], data, lambda: time.monotonic() >= self._end)
        except ConflictError as error:  # rejected or reopened meanwhile, or altered
            if not isinstance(error, AlteredError):
                self._retry(row, error.reason)
                return
            with self._database.writing() as connection:
                outbox.refused(connection, row, error.reason)
                note_altered(connection, row.study_id, error)
            self._count("reports_altered", row)
        except InputError as error:  # permanent: no report can be made of it
            reason = error.reason if error.field is None else f"{error.field}: {error.reason}"
            self._refuse(row, reason, "reports_refused")
        except NotStoredError as error:
            self._retry(row, str(error))
        except Exception as error:  # one failing object must not hold up the others
            log_failure("sending-failed", error, study=row.study_id)
            self._retry(row, f"it could not be made ({type(error).__name__})")
        else:
            with self._database.writing() as connection:
                outbox.sent(connection, row, receipt)
            self._count("reports_sent", row)

    def _is_superseded(self, row: sa.Row[Any]) -> bool:
        """True for a draft whose target gets the signed report instead."""
        if row.event != "drafted" or "signed" not in self._targets[row.target].events:
            return False
        with self._database.reading() as connection:
            return outbox.is_signed(connection, row.study_id)

    def _refuse(self, row: sa.Row[Any], reason: str, metric: str) -> None:
        with self._database.writing() as connection:
            outbox.refused(connection, row, reason)
        self._count(metric, row)

    def _retry(self, row: sa.Row[Any], reason: str) -> None:
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
        log_event(what.replace("_", "-"), study=row.study_id)
