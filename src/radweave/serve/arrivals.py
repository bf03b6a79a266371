"""From objects that came in to studies on the work list.

    association's folder -> a folder for each study -> when nothing more came for a while: routed, submitted

All of it lies on the disk, so that a server that is killed goes on where it was. A study that was on the work list is
not taken again: images that come later, or twice, are dropped and counted.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from radweave.base.errors import InputError
from radweave.base.hashes import sha256_bytes
from radweave.data.reading.dicom import read_dicom
from radweave.hospital.plan import Receive
from radweave.hospital.receiver import OPEN
from radweave.serve.events import say_failure
from radweave.serve.uploads import Incoming, from_path

PAUSE_S: Final = 0.5
Submit = Callable[[Sequence[Incoming], str], bool]
Count = Callable[[str], None]


class Arrivals:
    """Looks through ``folder``; gives whole studies to ``submit``, which says whether they are done with."""

    def __init__(self, plan: Receive, folder: Path, submit: Submit, count: Count) -> None:
        self._plan, self._folder, self._submit, self._count = plan, folder, submit, count
        self._studies = folder / "studies"
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="arrivals", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.ident:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(PAUSE_S):
            try:
                self.look()
            except Exception as error:  # a disk that is full for a moment must not end it
                say_failure("arrivals-failed", error)

    def look(self) -> None:
        """Sort what came, and submit the studies to which nothing came for a while."""
        self._studies.mkdir(parents=True, exist_ok=True)
        for place in sorted(self._folder.iterdir()):
            if place.is_dir() and place != self._studies and not place.name.endswith(OPEN):
                self._sort(place)
        for study in sorted(self._studies.iterdir()):
            files = sorted(file for file in study.iterdir() if not file.name.startswith("."))
            newest = max((file.stat().st_mtime for file in (study, *files)), default=0.0)
            if time.time() - newest >= self._plan.quiet_s and self._take(study.name, files):
                shutil.rmtree(study, ignore_errors=True)

    def _sort(self, place: Path) -> None:
        """Lay each object that may pass into its study's folder; the same instance twice is there once."""
        for file in sorted(place.glob("*.dcm")):
            try:
                header = read_dicom(file, pixels=False).header
            except InputError:
                self._count("objects_unreadable")
                continue
            if header.study_key is None or header.sop_key is None:
                self._count("objects_unreadable")
                continue
            asked = (header.modality or "", header.body_part or "", header.view or "UNKNOWN")
            if not any(route.fits(*asked) for route in self._plan.routes):
                self._count("objects_not_routed")
                continue
            # Of two patients with one study's UID none may get the other's images.
            study = self._studies / sha256_bytes(f"{header.patient_key}/{header.study_key}".encode())[:32]
            study.mkdir(exist_ok=True)
            file.rename(study / f"{header.sop_key}.dcm")
        shutil.rmtree(place)

    def _take(self, name: str, files: Sequence[Path]) -> bool:
        incoming = [from_path(file, f"study/{number:05}.dcm") for number, file in enumerate(files)]
        return not incoming or self._submit(incoming, name)
