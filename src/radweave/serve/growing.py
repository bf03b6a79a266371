"""Images that come to a study which is on the work list already: it is drafted again with all of them.

The new draft is a new version; older ones stay. What is signed stays as it is, and that images came is logged and
counted. Instances that are here already are nothing new.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import sqlalchemy as sa

from radweave.base.errors import InputError
from radweave.base.study import Modality
from radweave.data.reading.dicom import read_dicom
from radweave.data.reading.series import series_files
from radweave.hospital.scans import scan_of
from radweave.serve import log, store
from radweave.serve.database import Database
from radweave.serve.metrics import Metrics
from radweave.serve.schema import studies
from radweave.serve.settings import Settings
from radweave.serve.uploads import Incoming, from_path, take_in


def as_incoming(files: Sequence[Path]) -> list[Incoming]:
    """Files of one study, which have no names of their own."""
    return [from_path(file, f"study/{number:05}.dcm") for number, file in enumerate(files)]


def chosen(files: Sequence[Path], modality: Modality) -> list[Path]:
    """Those of a study's images that are drafted: of CT one series, for a scan is one draft."""
    return scan_of(files) if modality == "ct" else list(files)


class Growing:
    """Takes images that came later; ``wake`` is called where a study waits again."""

    def __init__(
        self, settings: Settings, database: Database, metrics: Metrics, modality: Modality, wake: Callable[[], None]
    ) -> None:
        self._settings, self._database, self._metrics = settings, database, metrics
        self._modality, self._wake = modality, wake

    def take(self, source: str, files: Sequence[Path]) -> bool:
        """Take what is new of ``files``, each called after its instance; whether they are done with.

        ``source`` is what is unique for the study.
        """
        with self._database.reading() as connection:
            study = connection.execute(sa.select(studies).where(studies.c.source == source)).first()
            held = [] if study is None else _flat(store.uploaded(connection, study.id))
        if study is None or study.state == "refused":
            self._metrics.count("studies_again")
            return True
        known = {_instance(file) for file in held}
        new = [file for file in files if file.stem not in known]
        whole = chosen([*held, *new], self._modality)
        new = [file for file in new if file in whole]
        if not new:
            self._metrics.count("studies_again")
            return True
        if study.state == "signed":
            with self._database.writing() as connection:
                log.append(connection, "images came after it was signed", study=study.id, details={"files": len(new)})
            self._metrics.count("images_after_signing", len(new))
            return True
        if study.state == "rejected":
            with self._database.writing() as connection:
                log.append(connection, "images came after it was rejected", study=study.id, details={"files": len(new)})
            self._metrics.count("studies_again")
            return True
        return study.state in store.GROWING and self._grow(study.id, whole, len(new))

    def _grow(self, study: str, whole: Sequence[Path], new: int) -> bool:
        place = self._settings.files.absolute()
        try:
            folder, found = take_in(
                as_incoming(whole), place, self._settings.limits, modality=self._modality, one_study=False
            )
        except InputError:
            self._metrics.count("studies_refused")
            return True
        if len(found) != 1 or found[0].refused is not None:
            shutil.rmtree(folder, ignore_errors=True)
            self._metrics.count("studies_refused")
            return True
        with self._database.writing() as connection:
            done = store.grow(connection, study, found[0].files, new)
        if not done:  # signed, or being drafted, since it was looked at: it is looked at again
            shutil.rmtree(folder, ignore_errors=True)
            return False
        # The older files stay until the next start: another study may be compared with them just now.
        self._metrics.count("studies_grew")
        self._wake()
        return True


def _flat(paths: Sequence[str]) -> list[Path]:
    return [file for path in map(Path, paths) for file in (series_files(path) if path.is_dir() else [path])]


def _instance(file: Path) -> str | None:
    try:
        return read_dicom(file, pixels=False).header.sop_key
    except InputError:
        return None
