"""From objects that came in to studies on the work list.

    association's or query's folder -> a folder for each study -> when nothing more came for a while: its prior is
    looked for -> submitted

All of it lies on the disk, so that a server that is killed goes on where it was. Images of a study that is on the work
list already are for ``submit`` to take or to drop.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from radweave.base.errors import InputError
from radweave.base.hashes import sha256_bytes
from radweave.base.storage import write_aside
from radweave.data.reading.dicom import read_dicom
from radweave.hospital.plan import Route
from radweave.hospital.prior import Prior
from radweave.hospital.receiver import OPEN
from radweave.serve.again import Again
from radweave.serve.outbox import NOBODYS
from radweave.serve.seeker import Seeker

PAUSE_S: Final = 0.5
OF_QUERY: Final = "@"
"""Stands in the name of a folder whose objects were asked for, after the name of the query."""
Submit = Callable[[Sequence[Path], str, Prior | None], bool]
"""Files that are called after their instances, the study's own name, and its prior."""
Count = Callable[[str], None]
Clean = Callable[[Path], bytes]


class Arrivals(Again):
    """Looks through ``folder``; gives whole studies to ``submit``, which says whether they are done with.

    ``routes`` say what may pass: of each query by its name, and of what came unasked under "". ``clean`` gives a file's
    bytes without its patient, where the plan asks for that.
    """

    def __init__(
        self, routes: Mapping[str, Sequence[Route]], quiet_s: float, folder: Path, submit: Submit, count: Count,
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
