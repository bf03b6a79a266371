"""From objects that came in to studies on the work list.

    association's folder -> a folder for each study -> when nothing more came for a while: routed, submitted

All of it lies on the disk, so that a server that is killed goes on where it was. A study that was on the work list is
not taken again: images that come later, or twice, are dropped and counted.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from radweave.base.errors import InputError
from radweave.base.hashes import sha256_bytes
from radweave.base.storage import write_aside
from radweave.data.reading.dicom import read_dicom
from radweave.hospital.plan import Receive
from radweave.hospital.receiver import OPEN
from radweave.serve.again import Again
from radweave.serve.outbox import NOBODYS
from radweave.serve.uploads import Incoming, from_path

PAUSE_S: Final = 0.5
Submit = Callable[[Sequence[Incoming], str], bool]
Count = Callable[[str], None]
Clean = Callable[[Path], bytes]


class Arrivals(Again):
    """Looks through ``folder``; gives whole studies to ``submit``, which says whether they are done with.

    ``clean`` gives a file's bytes without its patient, where the plan asks for that.
    """

    def __init__(self, plan: Receive, folder: Path, submit: Submit, count: Count, clean: Clean | None = None) -> None:
        self._plan, self._folder, self._submit, self._count = plan, folder, submit, count
        self._clean = clean
        self._studies = folder / "studies"
        super().__init__("arrivals", pause_s=PAUSE_S, failed="arrivals-failed")

    def look(self) -> int:
        """Sort what came, and submit the studies to which nothing came for a while; 0, for what is left must wait."""
        self._studies.mkdir(parents=True, exist_ok=True)
        for place in sorted(self._folder.iterdir()):
            if place.is_dir() and place != self._studies and not place.name.endswith(OPEN):
                self._sort(place)
        for study in sorted(self._studies.iterdir()):
            files = sorted(file for file in study.iterdir() if not file.name.startswith("."))
            newest = max((file.stat().st_mtime for file in (study, *files)), default=0.0)
            if time.time() - newest >= self._plan.quiet_s and self._take(study.name, files):
                shutil.rmtree(study, ignore_errors=True)
        return 0

    def _sort(self, place: Path) -> None:
        """Lay each object that may pass into its study's folder; the same instance twice is there once."""
        for came in sorted(place.glob("*.dcm")):
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
            asked = (header.modality or "", header.body_part or "", header.view or "UNKNOWN")
            if not any(route.fits(*asked) for route in self._plan.routes):
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
        incoming = [from_path(file, f"study/{number:05}.dcm") for number, file in enumerate(files)]
        return not incoming or self._submit(incoming, name)
