"""The thread that sends what waits in the outbox, one object after the other."""

from __future__ import annotations

import math
import time
from typing import Any, Final

import sqlalchemy as sa

from radweave.base.errors import InputError
from radweave.hospital.formats import FORMATS, MAPS
from radweave.hospital.plan import Target
from radweave.hospital.sending import NotKeptError, send
from radweave.serve import outbox, reports
from radweave.serve.again import Again
from radweave.serve.database import Database
from radweave.serve.events import say, say_failure
from radweave.serve.metrics import Metrics
from radweave.serve.schema import studies
from radweave.serve.signed import AlteredError, ConflictError, note_altered

PAUSE_S: Final = 0.5
CUT_S: Final = 4.0
"""How long after a stop an object may still be sent."""
_AT_ONCE: Final = 16


class Sender(Again):
    """Sends to ``targets``. Where it is stopped it ends after the object that is being sent, or cuts it."""

    def __init__(self, database: Database, targets: tuple[Target, ...], metrics: Metrics) -> None:
        self._database, self._metrics = database, metrics
        self._targets = {target.name: target for target in targets}
        self._end = math.inf
        super().__init__("sender", pause_s=PAUSE_S, failed="sending-failed")

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
        except NotKeptError as error:
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
