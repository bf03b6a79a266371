"""Clients of archives: C-FIND with C-GET or C-MOVE (study root, PS3.4 C), and QIDO-RS with WADO-RS (PS3.18)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import requests
from dicomweb_client.api import DICOMwebClient
from pydicom.datadict import tag_for_keyword
from pydicom.dataset import Dataset
from pynetdicom import AE, build_role, evt
from pynetdicom.association import Association
from pynetdicom.sop_class import (  # type: ignore[attr-defined]
    StudyRootQueryRetrieveInformationModelFind,
    StudyRootQueryRetrieveInformationModelGet,
    StudyRootQueryRetrieveInformationModelMove,
)

from radweave.workstation.archive import (
    CONNECT_S,
    MOST_BYTES,
    ROW_BYTES,
    SERIES_KEYS,
    STUDY_KEYS,
    Count,
    FoundSeries,
    FoundStudy,
    NotAnsweredError,
    QueryLimits,
    Row,
    found_series,
    found_study,
    is_uid,
    readable,
    refuse_full,
)
from radweave.workstation.hospital_plan import QueriedDicom, Web
from radweave.workstation.receiver import SYNTAXES, Receiver
from radweave.workstation.sending import NotStoredError, associated, failure_words, session_for

_SUCCESS, _WARNING, _CANCELLED = 0x0000, 0xB000, 0xFE00
_PENDING: Final = (0xFF00, 0xFF01)
"""The second status reports an unsupported key, which counts as a warning."""
_NOT_STORED: Final = 0xA700
_MESSAGE: Final = 1
_CANCEL_S: Final = 2.0
"""Time limit for the rest of a cancelled answer."""
_STORED: Final = (
    "1.2.840.10008.5.1.4.1.1.1", "1.2.840.10008.5.1.4.1.1.1.1", "1.2.840.10008.5.1.4.1.1.1.1.1",
    "1.2.840.10008.5.1.4.1.1.2", "1.2.840.10008.5.1.4.1.1.2.1", "1.2.840.10008.5.1.4.1.1.7",
    "1.2.840.10008.5.1.4.1.1.88.11", "1.2.840.10008.5.1.4.1.1.88.22", "1.2.840.10008.5.1.4.1.1.88.33",
    "1.2.840.10008.5.1.4.1.1.88.34",
)  # fmt: skip
"""CR, DX for presentation and processing, CT, secondary capture, and text in structured reports."""
_COUNTED_SUBOPERATIONS: Final = (("NumberOfWarningSuboperations", "archive_warnings"),
                   ("NumberOfFailedSuboperations", "archive_failures"))  # fmt: skip


class DicomArchive:
    """Queries ``peer``. C-MOVE sends objects to ``receiver`` under the AE title ``called``."""

    def __init__(self, peer: QueriedDicom, count: Count, receiver: Receiver | None = None, called: str = "") -> None:
        self._peer, self._count, self._receiver, self._called = peer, count, receiver, called

    def studies(self, keys: Mapping[str, str], limits: QueryLimits) -> list[FoundStudy]:
        wanted = {**dict.fromkeys(STUDY_KEYS, ""), **keys}
        return readable(self._find("STUDY", wanted, limits), found_study, self._count)

    def series(self, study: str, limits: QueryLimits) -> list[FoundSeries]:
        wanted = {**dict.fromkeys(SERIES_KEYS, ""), "StudyInstanceUID": study}
        return readable(self._find("SERIES", wanted, limits), found_series, self._count)

    def fetch(self, study: str, series: str, folder: Path, limits: QueryLimits) -> int:
        keys = {"StudyInstanceUID": study, "SeriesInstanceUID": series}
        before = sum(1 for _ in folder.glob("*.dcm"))
        if self._peer.retrieve == "get":
            self._get(keys, folder, limits)
        else:
            assert self._receiver is not None, "a plan with C-MOVE has a receiver"
            rows = self._find("IMAGE", {**keys, "SOPInstanceUID": ""}, limits)
            instances = [uid for row in rows if is_uid(uid := row.get("SOPInstanceUID", "").strip())]
            with self._receiver.expecting(instances, folder):
                self._move(keys, limits)
        came = sum(1 for _ in folder.glob("*.dcm")) - before
        self._count("objects_retrieved", came)
        return came

    def _find(self, level: str, keys: Mapping[str, str], limits: QueryLimits) -> list[dict[str, str]]:
        model = StudyRootQueryRetrieveInformationModelFind
        rows: list[dict[str, str]] = []
        before, more, more_until = None, 0, 0.0
        with self._association(model, limits, 2 * limits.most * ROW_BYTES) as association:
            for status, answer in association.send_c_find(_identifier(level, keys), model, msg_id=_MESSAGE):
                if len(rows) == limits.most:  # rows after the cancellation are skipped, for a while
                    more += 1
                    if status.get("Status") not in _PENDING:
                        break
                    if more > limits.most or time.monotonic() > more_until:
                        association.acse_timeout = CONNECT_S
                        association.abort()
                        break
                    continue
                if not self._goes_on(status):
                    break
                limits.refuse_late()
                if answer is None:
                    # pynetdicom yields an undecodable answer twice, with the same status.
                    self._count("archive_rows_unreadable", int(status is not before))
                    before = status
                    continue
                rows.append({keyword: _text(answer, keyword) for keyword in keys})
                if len(rows) == limits.most:
                    self._count("archive_answers_cut", 1)
                    more_until = time.monotonic() + _CANCEL_S
                    association.send_c_cancel(_MESSAGE, query_model=model)
        return rows

    def _move(self, keys: Mapping[str, str], limits: QueryLimits) -> None:
        model = StudyRootQueryRetrieveInformationModelMove
        with self._association(model, limits, MOST_BYTES) as association:
            responses = association.send_c_move(_identifier("SERIES", keys), self._called, model, msg_id=_MESSAGE)
            self._retrieved(responses, limits)

    def _get(self, keys: Mapping[str, str], folder: Path, limits: QueryLimits) -> None:
        def store(event: evt.Event) -> int:
            try:
                refuse_full(folder)
                (folder / f"{uuid.uuid4().hex}.dcm").write_bytes(event.encoded_dataset())
            except OSError:
                return _NOT_STORED
            return _SUCCESS

        model = StudyRootQueryRetrieveInformationModelGet
        with self._association(model, limits, MOST_BYTES, [(evt.EVT_C_STORE, store)]) as association:
            responses = association.send_c_get(_identifier("SERIES", keys), model, msg_id=_MESSAGE)
            self._retrieved(responses, limits)

    def _retrieved(self, responses: Iterator[tuple[Dataset, Dataset | None]], limits: QueryLimits) -> None:
        """Wait for the end of a retrieval; count failed suboperations and warnings.

        Raises:
            NotAnsweredError: if the retrieval was ended, or some objects could not be sent.
        """
        failed = 0
        for status, _ in responses:
            if self._goes_on(status, parts=True):
                limits.refuse_late()
                continue
            for keyword, name in _COUNTED_SUBOPERATIONS:
                self._count(name, int(status.get(keyword) or 0))
            failed = int(status.get("NumberOfFailedSuboperations") or 0)
        if failed:
            raise NotAnsweredError(f"the archive could not send {failed} of the objects")

    def _goes_on(self, status: Dataset, *, parts: bool = False) -> bool:
        """True if more answers follow.

        Raises:
            NotAnsweredError: for a failure, or a missing status after a lost or late connection.
        """
        code = status.get("Status")
        if code in _PENDING:
            self._count("archive_warnings", int(code == _PENDING[1]))
            return True
        if code in (_SUCCESS, _CANCELLED) or (parts and code == _WARNING):
            return False
        shown = "gives no status" if code is None else f"answers with status 0x{code:04X}"
        raise NotAnsweredError(f"the archive {shown}")

    @contextmanager
    def _association(
        self, model: str, limits: QueryLimits, most: int, handlers: Sequence[Any] = ()
    ) -> Iterator[Association]:
        entity = AE(ae_title=self._peer.calling)
        entity.add_requested_context(model)
        for stored in _STORED if handlers else ():
            entity.add_requested_context(stored, list(SYNTAXES))
        roles = [build_role(stored, scp_role=True) for stored in _STORED] if handlers else None
        limits.refuse_late()
        self._count("archive_questions", 1)
        reason = ""
        try:
            with associated(
                entity, self._peer, limits, most, silent_s=limits.left_s, handlers=handlers, roles=roles
            ) as association:
                if not association.is_established:
                    why = (
                        "refused the association" if association.is_rejected else "cannot be reached or does not answer"
                    )
                    raise NotAnsweredError(f"the archive {why}")
                try:
                    yield association
                except BaseException:
                    association.acse_timeout = CONNECT_S
                    association.abort()
                    raise
            return
        except OSError:
            raise
        except NotAnsweredError as error:
            reason = str(error)
        except Exception as error:  # a violation of the protocol may fail in any way
            reason = f"the archive's answer cannot be read ({type(error).__name__})"
        self._count("archive_failures", 1)
        raise NotAnsweredError(limits.over or reason)


def _identifier(level: str, keys: Mapping[str, str]) -> Dataset:
    made = Dataset()
    made.QueryRetrieveLevel = level
    if not all(value.isascii() for value in keys.values()):
        made.SpecificCharacterSet = "ISO_IR 192"
    for keyword, value in keys.items():
        setattr(made, keyword, value or None)
    return made


def _text(answer: Dataset, keyword: str) -> str:
    """A value as text; "" if it is missing or damaged."""
    try:
        value = answer.get(keyword)
        return "" if value is None else str(value)
    except Exception:  # pydicom converts on access, and a damaged value may raise nearly anything
        return ""


# DICOMweb: QIDO-RS and WADO-RS.

_CHUNK: Final = 1 << 18
Answer = list[dict[str, Any]]
T = TypeVar("T")


class WebArchive:
    """Queries the service of ``web``; ``count`` counts queries, objects and failures by name."""

    def __init__(self, web: Web, count: Count) -> None:
        self._web, self._count = web, count

    def studies(self, keys: Mapping[str, str], limits: QueryLimits) -> list[FoundStudy]:
        def query(client: DICOMwebClient) -> Answer:
            return client.search_for_studies(search_filters=dict(keys), fields=list(STUDY_KEYS), limit=limits.most)

        return self._rows(query, lambda row: found_study(_first_values(row, STUDY_KEYS)), limits)

    def series(self, study: str, limits: QueryLimits) -> list[FoundSeries]:
        def query(client: DICOMwebClient) -> Answer:
            return client.search_for_series(study, fields=list(SERIES_KEYS), limit=limits.most)

        return self._rows(query, lambda row: found_series(_first_values(row, SERIES_KEYS)), limits)

    def fetch(self, study: str, series: str, folder: Path, limits: QueryLimits) -> int:
        def query(client: DICOMwebClient) -> int:
            came = 0
            # The client's own ``retrieve_series`` would parse the answer in this process, without limits.
            for data in client.iter_bulkdata(f"{self._web.url.rstrip('/')}/studies/{study}/series/{series}"):
                refuse_full(folder)
                (folder / f"{uuid.uuid4().hex}.dcm").write_bytes(data)
                self._count("objects_retrieved", 1)
                came += 1
            return came

        return self._run(query, limits)

    def _rows(
        self, query: Callable[[DICOMwebClient], Answer], read: Callable[[Any], Row | None], limits: QueryLimits
    ) -> list[Row]:
        rows = self._run(query, limits)
        if len(rows) > limits.most:  # not every archive knows the limit of a query
            self._count("archive_answers_cut", 1)
        return readable(rows[: limits.most], read, self._count)

    def _run(self, query: Callable[[DICOMwebClient], T], limits: QueryLimits) -> T:
        self._count("archive_questions", 1)
        try:
            with session_for(self._web, limits) as session:
                client = DICOMwebClient(self._web.url, session=session, chunk_size=_CHUNK)
                client.set_http_retry_params(retry=False)  # callers retry later
                answer = query(client)
                limits.refuse_late()  # a truncated answer may look whole
                return answer
        except (NotAnsweredError, NotStoredError) as error:
            reason = str(error)
        except Exception as error:  # an invalid answer may fail in any way
            is_of_disk = isinstance(error, OSError) and not isinstance(error, requests.RequestException)
            reason = f"the answer cannot be kept ({type(error).__name__})" if is_of_disk else failure_words(error)
        self._count("archive_failures", 1)
        raise NotAnsweredError(limits.over or reason)


def _first_values(row: Any, keywords: Sequence[str]) -> dict[str, str]:
    """The first value of each keyword in a DICOM JSON answer (PS3.18 F), names in DICOM's form."""
    texts: dict[str, str] = {}
    for keyword in keywords:
        tag = tag_for_keyword(keyword)
        values = row.get(f"{tag:08X}", {}).get("Value") or [""]
        first = values[0]
        if isinstance(first, dict):
            groups = [str(first.get(group, "")) for group in ("Alphabetic", "Ideographic", "Phonetic")]
            first = "=".join(groups).rstrip("=")
        texts[keyword] = "" if first is None else str(first)
    return texts
