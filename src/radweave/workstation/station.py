"""The workstation: database, inference process, watched folder, hospital services and metrics.

Browsers, programs, folders and archives add studies through ``submit``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sqlalchemy.exc import IntegrityError

from radweave.core.errors import InputError, printable
from radweave.core.storage import exclusive, remove_leftovers, sha256_bytes, sha256_json
from radweave.core.study import Modality, Split, Study
from radweave.data.dataset import Dataset
from radweave.engine.run_folder import read_card
from radweave.inference.predictor import UNTRAINED
from radweave.workstation import outbox, related, store, users
from radweave.workstation.database import PRIORITIES, ROUTINE, Database
from radweave.workstation.disk import ConcurrencyLimit, DiskSpace, ImageCache, NoRoomError
from radweave.workstation.events import Metrics, PeriodicThread, log_event, log_failure
from radweave.workstation.find_prior import Prior, copied
from radweave.workstation.finished import model_facts
from radweave.workstation.hospital import HospitalServices, refuse_unusable
from radweave.workstation.hospital_plan import Plan, read_plan
from radweave.workstation.identity import Identity
from radweave.workstation.inference import InferenceQueue, Target, main, refuse_unusable_options
from radweave.workstation.learning import SignedPairs
from radweave.workstation.openid import provider_of
from radweave.workstation.settings import Settings
from radweave.workstation.store import NewStudy
from radweave.workstation.uploads import Incoming, LateImages, as_incoming, chosen, from_path, take_in

# Watched folder. A file or folder that is unchanged between two polls becomes a study, once, over restarts too. It is
# copied; the folder is never written to. A failing file does not hold up others, and invalid UTF-8 in a name is
# replaced.

INTERVAL_S = 2.0

Take = Callable[[Sequence[Incoming], str], bool]


class Watcher(PeriodicThread):
    """Thread that gives new files to ``take``, with a key that is stable over restarts."""

    def __init__(self, folder: Path, take: Take, count: Callable[[str], None] = lambda _: None) -> None:
        self._folder, self._take, self._count = folder, take, count
        self._seen: dict[str, str] = {}
        self._done: dict[str, str] = {}
        self._failures: dict[str, str] = {}
        super().__init__("watch", pause_s=INTERVAL_S, failed="watch-failed")

    def run_once(self) -> int:
        """Take entries unchanged since the last poll; 0, since new ones must wait for the next."""
        paths = {path.name: path for path in sorted(self._folder.iterdir()) if not path.name.startswith(".")}
        for known in (self._seen, self._done, self._failures):
            for name in known.keys() - paths.keys():
                del known[name]
        for name, path in paths.items():
            if self._stopping.is_set():
                break
            try:
                self._look_at(name, path)
            except Exception as error:  # it may disappear, or be unreadable
                kind = type(error).__name__
                if self._failures.get(name) != kind:  # log it once
                    self._failures[name] = kind
                    self._count("watched_failures")
                    log_failure("watched-failed", error)
        return 0

    def _look_at(self, name: str, path: Path) -> None:
        files = _files(path)
        key = sha256_json(
            [_as_text(name, printable), [[_as_text(str(file), printable), *_version(file)] for file in files]]
        )
        if self._done.get(name) == key or not files:
            return
        if self._seen.get(name) != key:
            self._seen[name] = key
            return
        places = [file.relative_to(self._folder).as_posix() for file in files]
        if self._take([from_path(file, _as_text(place)) for file, place in zip(files, places, strict=True)], key):
            self._done[name] = key
            renamed = sum(_as_text(place) != place for place in places)
            if renamed:
                self._count("watched_names_not_utf8")
                log_event("watched-names-not-utf8", count=renamed)


def _as_text(name: str, write: Callable[[str], str] | None = None) -> str:
    """A name as text; if its bytes are not UTF-8, by ``write``, or with marks in their place."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return write(name) if write is not None else os.fsencode(name).decode(errors="replace")
    return name


def _files(path: Path) -> list[Path]:
    """A file, or the files in a folder; links are not followed."""
    if path.is_symlink():
        return []
    if path.is_file():
        return [path]
    return sorted(file for file in path.rglob("*") if file.is_file() and not file.is_symlink())


def _version(file: Path) -> tuple[int, int]:
    stat = file.stat()
    return stat.st_size, stat.st_mtime_ns


_KNOWN = ("was submitted already",)
_MOST_READ = 1_000
_MOST_HEADERS = 4_000
"""Studies whose headers are kept in memory: more than the work list sorts, or each look would read all of them."""
_REPORTS_AT_ONCE = 2
"""An exported report decodes all images of its study."""


def _source(owner: int | None, number: int, key: str) -> str:
    """Unique key of a study within an upload with a key."""
    return sha256_bytes(f"{owner}/{number}/{key}".encode())


def stated_priority(identity: Identity | None) -> str:
    """The priority that the headers state: MEDIUM, unknown and unstated ones are routine."""
    stated = "" if identity is None else identity.requested_procedure_priority.strip().lower()
    return stated if stated in PRIORITIES else ROUTINE


class QueueFullError(Exception):
    """The limit of waiting studies is reached."""


class KnownError(InputError):
    """The same request was submitted before."""


class Station:
    """The workstation behind the pages and the JSON interface. ``token`` is set at the first start."""

    def __init__(self, settings: Settings, *, target: Target = main) -> None:
        """Open all parts; ``start`` runs them.

        Raises:
            InputError: if the run, the data set or the database cannot be used, or another server works on it.
        """
        card = read_card(settings.run)
        if not (card.is_trained or settings.untrained):
            raise InputError(UNTRAINED, file=settings.run)
        if settings.decoding:
            refuse_unusable_options(settings.run, settings.decoding)
        self.settings = settings
        self.model = model_facts(card)
        self.is_synthetic = card.dataset.is_synthetic
        self.modality: Modality = "ct" if card.dataset.modality == "ct" else "xray"
        if settings.watch is not None and not settings.watch.is_dir():
            raise InputError("no such folder", file=settings.watch, field="--watch")
        plan = Plan() if settings.hospital is None else read_plan(settings.hospital)
        refuse_unusable(plan)
        self.dataset = None if settings.data is None else Dataset.open(settings.data)
        self.database = Database(settings.url)
        self.database.server_lock.acquire()
        with self.database.writing() as connection:
            self.token = users.first_token(connection)
        self.signed_pairs = SignedPairs(self.modality)
        self._secret = store.read_secret(settings.state)
        self._headers: dict[str, Identity | None] = {}
        self._dataset_read: dict[str, Study | None] = {}
        self.metrics = Metrics()
        self.provider = provider_of(settings)
        self.disk = DiskSpace(settings.state, settings.limits)
        self.image_cache = ImageCache(settings.pixels, settings.limits.most_kept)
        self.report_slots = ConcurrencyLimit(_REPORTS_AT_ONCE)
        arms_secret = self._secret if settings.reader_study else None
        self.inference = InferenceQueue(settings, self.database, self.metrics, target=target, arms_secret=arms_secret)
        self._late_images = LateImages(settings, self.database, self.metrics, self.modality, self.inference.wake)
        self._hospital = HospitalServices(plan, settings, self.database, self.metrics, self._take_arrived, self.disk)
        self._watcher: Watcher | None = None
        if settings.watch is not None:
            self._watcher = Watcher(settings.watch, self._take_watched, self.metrics.count)

    def start(self) -> None:
        """Remove partial uploads, add the studies of the data set to the work list, and start all threads."""
        self._sweep()
        if self.dataset is not None:
            self._add_dataset(self.dataset)
        self.inference.start()
        self._hospital.start()
        if self._watcher is not None:
            self._watcher.start()

    def stop(self) -> None:
        """Finish drafts in progress; other studies wait in the database."""
        if self._watcher is not None:
            self._watcher.stop()
        self._hospital.stop()
        self.inference.stop()
        self.database.close()

    def _sweep(self) -> None:
        place = self.settings.files.absolute()
        place.mkdir(parents=True, exist_ok=True)
        remove_leftovers(place)
        with self.database.reading() as connection:
            folders = {Path(path).relative_to(place).parts[0] for path in store.stored_paths(connection)
                    if Path(path).is_relative_to(place)}  # fmt: skip
        for folder in place.iterdir():
            if folder.name not in folders:
                shutil.rmtree(folder, ignore_errors=True)
        with self.database.reading() as connection:
            self.image_cache.sweep(store.readable(connection))

    def refuse_where_full(self) -> None:
        """Refuse an upload before its body is read.

        Raises:
            QueueFullError: if no more studies may wait.
            NoRoomError: if the disk is full.
        """
        self.disk.refuse(1)
        with self.database.reading() as connection:
            if store.queued(connection) >= self.settings.limits.waiting:
                raise QueueFullError

    def submit(
        self,
        incoming: Sequence[Incoming],
        *,
        owner: int | None,
        one_study: bool = False,
        key: str | None = None,
        arrived: bool = False,
        prior: Prior | None = None,
        is_counted: bool = True,
        priority: str | None = None,
    ) -> list[str]:
        """Add files as studies and return their numbers. A second call with the same ``key`` is refused.

        Reports of studies that ``arrived`` from an archive are sent back. ``prior`` is the result of the search for the
        prior; its files are copied. ``is_counted`` is false for files that the state folder holds already.
        ``priority`` is that of the headers if not given.

        Raises:
            InputError: for refused files, naming the limit; KnownError for a known key.
            QueueFullError: if too many studies would wait.
            NoRoomError: if the files do not fit. Nothing is left in any of these cases.
        """
        limits, place = self.settings.limits, self.settings.files.absolute()
        if key is not None:
            with self.database.reading() as connection:
                if store.is_known(connection, _source(owner, 0, key)):
                    raise KnownError(*_KNOWN)
        with self.disk.reserve(is_counted=is_counted) as take:
            folder, studies = take_in(incoming, place, limits, take, modality=self.modality, one_study=one_study)
        before: Path | None = None
        try:
            people = [None if study.refused else self.whose([path for path, _ in study.files]) for study in studies]
            if prior is not None and prior.files:
                before = place / uuid.uuid4().hex
                prior = copied(prior, before)
            with self.database.writing() as connection:
                new = sum(study.refused is None for study in studies)
                if store.queued(connection) + new > limits.waiting:
                    raise QueueFullError
                ids = []
                for number, (study, person) in enumerate(zip(studies, people, strict=True)):
                    source = None if key is None else _source(owner, number, key)
                    made = NewStudy(
                        study.name, study.files, source=source, refused=study.refused, prior=prior,
                        priority=priority or stated_priority(person),
                    )  # fmt: skip
                    ids.append(store.add(connection, made, owner=owner))
                    if person is not None:
                        for later in store.record_patient(connection, ids[-1], person, self._secret, self.whose):
                            related.find(connection, later)
                    if arrived:
                        outbox.arrived(connection, ids[-1])
        except BaseException as error:
            for laid in (folder, before):
                if laid is not None:
                    shutil.rmtree(laid, ignore_errors=True)
            if isinstance(error, IntegrityError):  # two requests with one key at once
                raise KnownError(*_KNOWN) from None
            raise
        for name, study in zip(ids, studies, strict=True):
            if study.refused is not None:
                self.inference.forget_files(name)
        self.inference.wake()
        log_event("submitted", studies=len(ids))
        return ids

    def whose(self, files: Sequence[Path]) -> Identity | None:
        """Identity of a study's patient, cached in memory only."""
        key = str(files[0]) if files else ""
        if key not in self._headers:
            if len(self._headers) >= _MOST_HEADERS:
                self._headers.clear()
            self._headers[key] = store.read_patient(files)
        return self._headers[key]

    def cancel(self, study: str, user: users.User) -> bool:
        """Remove a study from the queue; False if it was not queued."""
        with self.database.writing() as connection:
            done = store.refuse(connection, study, store.CANCELLED, user=user.id)
        if done:
            self.inference.forget_files(study)
        return done

    def _add_dataset(self, dataset: Dataset) -> None:
        """Add the studies of the split to the work list, each once. The limit of waiting studies does not apply."""
        fingerprint = dataset.fingerprint()
        for study in dataset.studies(self.settings.split):
            source = sha256_bytes(f"{fingerprint}/{study.study_id}".encode())
            with self.database.writing() as connection:
                if not store.is_known(connection, source):
                    new = NewStudy(study.study_id, dataset_study=study.study_id, source=source)
                    store.add(connection, new, owner=None)

    def dataset_studies(self, name: str) -> tuple[Study | None, Study | None]:
        """A study of the data set and its prior; None if absent."""
        if self.dataset is None:
            return None, None
        study = self._dataset_study(name, self.settings.split)
        prior = None if study is None or study.prior is None else self._dataset_study(study.prior, self.settings.split)
        return study, prior

    def _dataset_study(self, name: str, split: Split) -> Study | None:
        assert self.dataset is not None
        if name not in self._dataset_read:
            if len(self._dataset_read) >= _MOST_READ:
                self._dataset_read.clear()
            matching = (study for study in self.dataset.studies(split) if study.study_id == name)
            self._dataset_read[name] = next(matching, None)
        return self._dataset_read[name]

    def reference(self, name: str | None) -> str | None:
        """The report of a study of the data set; None without one."""
        study = None if name is None else self.dataset_studies(name)[0]
        return None if study is None else study.report

    def _take_watched(self, incoming: Sequence[Incoming], key: str) -> bool:
        """Submit files of the watched folder; False to retry later."""
        try:
            self.submit(incoming, owner=None, one_study=False, key=key)
        except KnownError:
            return True
        except (QueueFullError, NoRoomError):
            return False
        except InputError as error:
            with self.database.writing() as connection:
                refused = NewStudy(incoming[0].name, source=_source(None, 0, key), refused=error.reason)
                store.add(connection, refused, owner=None)
        return True

    def _take_arrived(self, files: Sequence[Path], key: str, prior: Prior | None) -> bool:
        """Submit a received study, or later images of one; False to retry later."""
        name = f"arrived/{key}"
        try:
            arrived = not key.startswith(outbox.DEIDENTIFIED)
            incoming = as_incoming(chosen(files, self.modality))
            self.submit(incoming, owner=None, key=name, arrived=arrived, prior=prior, is_counted=False)
        except KnownError:
            return self._late_images.take(_source(None, 0, name), files)
        except (QueueFullError, NoRoomError):
            return False
        except InputError:
            self.metrics.count("studies_refused")
        return True


@contextlib.contextmanager
def alone(settings: Settings) -> Iterator[None]:
    """Lock the state folder, on which two servers would draft every study twice.

    Raises:
        InputError: if another server holds it.
    """
    settings.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with exclusive(settings.state / "server.lock", wait=False):
            yield
    except BlockingIOError:
        raise InputError("another server works on it", file=settings.state) from None
