"""An archive that is asked by C-FIND and gives objects by C-GET, or by C-MOVE to our receiver (study root, PS3.4 C)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

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
    Asked,
    Count,
    FoundSeries,
    FoundStudy,
    NotAnsweredError,
    Row,
    found_series,
    found_study,
    is_uid,
    readable,
    refuse_full,
)
from radweave.workstation.hospital_plan import AskedDicom, Web
from radweave.workstation.receiver import SYNTAXES
from radweave.workstation.sending import NotKeptError, associated, session_for

_SUCCESS, _WARNING, _CANCELLED = 0x0000, 0xB000, 0xFE00
_PENDING: Final = (0xFF00, 0xFF01)
"""The second one says that a key was passed over, which counts as a warning."""
_NOT_KEPT: Final = 0xA700
_MESSAGE: Final = 1
_MORE_S: Final = 2.0
"""How long an archive may go on with an answer that was cancelled."""
_STORED: Final = (
    "1.2.840.10008.5.1.4.1.1.1", "1.2.840.10008.5.1.4.1.1.1.1", "1.2.840.10008.5.1.4.1.1.1.1.1",
    "1.2.840.10008.5.1.4.1.1.2", "1.2.840.10008.5.1.4.1.1.2.1", "1.2.840.10008.5.1.4.1.1.7",
    "1.2.840.10008.5.1.4.1.1.88.11", "1.2.840.10008.5.1.4.1.1.88.22", "1.2.840.10008.5.1.4.1.1.88.33",
    "1.2.840.10008.5.1.4.1.1.88.34",
)  # fmt: skip
"""CR, DX for presentation and processing, CT, secondary capture, and text in structured reports."""
_COUNTED: Final = (("NumberOfWarningSuboperations", "archive_warnings"),
                   ("NumberOfFailedSuboperations", "archive_failures"))  # fmt: skip


class Expects(Protocol):
    """A receiver that lays objects which were asked for where who asked wants them."""

    def expecting(self, instances: Sequence[str], folder: Path) -> AbstractContextManager[None]: ...


class DicomArchive:
    """Asks ``peer``. C-MOVE sends to ``receiver``, which is called ``called``; without one, C-GET is used."""

    def __init__(self, peer: AskedDicom, count: Count, receiver: Expects | None = None, called: str = "") -> None:
        self._peer, self._count, self._receiver, self._called = peer, count, receiver, called

    def studies(self, keys: Mapping[str, str], asked: Asked) -> list[FoundStudy]:
        wanted = {**dict.fromkeys(STUDY_KEYS, ""), **keys}
        return readable(self._find("STUDY", wanted, asked), found_study, self._count)

    def series(self, study: str, asked: Asked) -> list[FoundSeries]:
        wanted = {**dict.fromkeys(SERIES_KEYS, ""), "StudyInstanceUID": study}
        return readable(self._find("SERIES", wanted, asked), found_series, self._count)

    def fetch(self, study: str, series: str, folder: Path, asked: Asked) -> int:
        keys = {"StudyInstanceUID": study, "SeriesInstanceUID": series}
        before = sum(1 for _ in folder.glob("*.dcm"))
        if self._peer.retrieve == "get":
            self._get(keys, folder, asked)
        else:
            assert self._receiver is not None, "a plan with C-MOVE has a receiver"
            found = self._find("IMAGE", {**keys, "SOPInstanceUID": ""}, asked)
            instances = [uid for said in found if is_uid(uid := said.get("SOPInstanceUID", "").strip())]
            with self._receiver.expecting(instances, folder):
                self._move(keys, asked)
        came = sum(1 for _ in folder.glob("*.dcm")) - before
        self._count("objects_retrieved", came)
        return came

    def _find(self, level: str, keys: Mapping[str, str], asked: Asked) -> list[dict[str, str]]:
        model = StudyRootQueryRetrieveInformationModelFind
        found: list[dict[str, str]] = []
        before, more, more_until = None, 0, 0.0
        with self._association([model], asked, 2 * asked.most * ROW_BYTES) as association:
            for status, answer in association.send_c_find(_identifier(level, keys), model, msg_id=_MESSAGE):
                if len(found) == asked.most:  # what is on its way still comes, a while, and is passed over
                    more += 1
                    if status.get("Status") not in _PENDING:
                        break
                    if more > asked.most or time.monotonic() > more_until:
                        association.acse_timeout = CONNECT_S
                        association.abort()
                        break
                    continue
                if not self._goes_on(status):
                    break
                asked.refuse_late()
                if answer is None:
                    # One that cannot be decoded comes twice, with the same status.
                    self._count("archive_rows_unreadable", int(status is not before))
                    before = status
                    continue
                found.append({keyword: _text(answer, keyword) for keyword in keys})
                if len(found) == asked.most:
                    self._count("archive_answers_cut", 1)
                    more_until = time.monotonic() + _MORE_S
                    association.send_c_cancel(_MESSAGE, query_model=model)
        return found

    def _move(self, keys: Mapping[str, str], asked: Asked) -> None:
        model = StudyRootQueryRetrieveInformationModelMove
        with self._association([model], asked, MOST_BYTES) as association:
            said = association.send_c_move(_identifier("SERIES", keys), self._called, model, msg_id=_MESSAGE)
            self._retrieved(said, asked)

    def _get(self, keys: Mapping[str, str], folder: Path, asked: Asked) -> None:
        def store(event: evt.Event) -> int:
            try:
                refuse_full(folder)
                (folder / f"{uuid.uuid4().hex}.dcm").write_bytes(event.encoded_dataset())
            except OSError:
                return _NOT_KEPT
            return _SUCCESS

        model = StudyRootQueryRetrieveInformationModelGet
        with self._association([model], asked, MOST_BYTES, [(evt.EVT_C_STORE, store)]) as association:
            said = association.send_c_get(_identifier("SERIES", keys), model, msg_id=_MESSAGE)
            self._retrieved(said, asked)

    def _retrieved(self, said: Iterator[tuple[Dataset, Dataset | None]], asked: Asked) -> None:
        """Wait for the end of a retrieval, and count its parts that failed or were kept with a remark.

        Raises:
            NotAnsweredError: if it was ended, or the archive could not send what it has.
        """
        failed = 0
        for status, _ in said:
            if self._goes_on(status, parts=True):
                asked.refuse_late()
                continue
            for keyword, name in _COUNTED:
                self._count(name, int(status.get(keyword) or 0))
            failed = int(status.get("NumberOfFailedSuboperations") or 0)
        if failed:
            raise NotAnsweredError(f"the archive could not send {failed} of the objects")

    def _goes_on(self, status: Dataset, *, parts: bool = False) -> bool:
        """Whether more answers follow.

        Raises:
            NotAnsweredError: for a failure, or no status at all: the archive went away, or took too long.
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
        self, models: Sequence[str], asked: Asked, most: int, handlers: Sequence[Any] = ()
    ) -> Iterator[Association]:
        entity = AE(ae_title=self._peer.calling)
        for model in models:
            entity.add_requested_context(model)
        for stored in _STORED if handlers else ():
            entity.add_requested_context(stored, list(SYNTAXES))
        roles = [build_role(stored, scp_role=True) for stored in _STORED] if handlers else None
        asked.refuse_late()
        self._count("archive_questions", 1)
        reason = ""
        try:
            with associated(
                entity, self._peer, asked, most, silent_s=asked.left_s, handlers=handlers, roles=roles
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
        except Exception as error:  # what does not fit the protocol may fail in any way
            reason = f"the archive's answer cannot be read ({type(error).__name__})"
        self._count("archive_failures", 1)
        raise NotAnsweredError(asked.over or reason)


def _identifier(level: str, keys: Mapping[str, str]) -> Dataset:
    made = Dataset()
    made.QueryRetrieveLevel = level
    if not all(value.isascii() for value in keys.values()):
        made.SpecificCharacterSet = "ISO_IR 192"
    for keyword, value in keys.items():
        setattr(made, keyword, value or None)
    return made


def _text(answer: Dataset, keyword: str) -> str:
    """A value as text; "" where it cannot be had."""
    try:
        value = answer.get(keyword)
        return "" if value is None else str(value)
    except Exception:  # pydicom converts on access, and a damaged value may raise nearly anything
        return ""


# An archive that is asked by QIDO-RS and answers with objects by WADO-RS (PS3.18).


_CHUNK: Final = 1 << 18
T = TypeVar("T")


class WebArchive:
    """Asks the service of ``web``; ``count`` is told of questions, objects and failures by name."""

    def __init__(self, web: Web, count: Count) -> None:
        self._web, self._count = web, count

    def studies(self, keys: Mapping[str, str], asked: Asked) -> list[FoundStudy]:
        def ask(client: DICOMwebClient) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = client.search_for_studies(
                search_filters=dict(keys), fields=list(STUDY_KEYS), limit=asked.most
            )
            return found

        return self._rows(ask, lambda row: found_study(_words(row, STUDY_KEYS)), asked)

    def series(self, study: str, asked: Asked) -> list[FoundSeries]:
        def ask(client: DICOMwebClient) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = client.search_for_series(study, fields=list(SERIES_KEYS), limit=asked.most)
            return found

        return self._rows(ask, lambda row: found_series(_words(row, SERIES_KEYS)), asked)

    def fetch(self, study: str, series: str, folder: Path, asked: Asked) -> int:
        def ask(client: DICOMwebClient) -> int:
            came = 0
            # The client's own ``retrieve_series`` would parse what comes, here and without limits.
            for data in client.iter_bulkdata(f"{self._web.url.rstrip('/')}/studies/{study}/series/{series}"):
                refuse_full(folder)
                (folder / f"{uuid.uuid4().hex}.dcm").write_bytes(data)
                self._count("objects_retrieved", 1)
                came += 1
            return came

        return self._asked(ask, asked)

    def _rows(
        self, ask: Callable[[DICOMwebClient], list[dict[str, Any]]], read: Callable[[Any], Row | None], asked: Asked
    ) -> list[Row]:
        rows = self._asked(ask, asked)
        if len(rows) > asked.most:  # what was asked for is a limit that not every archive knows
            self._count("archive_answers_cut", 1)
        return readable(rows[: asked.most], read, self._count)

    def _asked(self, ask: Callable[[DICOMwebClient], T], asked: Asked) -> T:
        self._count("archive_questions", 1)
        try:
            with session_for(self._web, asked) as session:
                client = DICOMwebClient(self._web.url, session=session, chunk_size=_CHUNK)
                client.set_http_retry_params(retry=False)  # who asks does so again later
                answer = ask(client)
                asked.refuse_late()  # what was cut may look like an answer
                return answer
        except (NotAnsweredError, NotKeptError) as error:
            reason = str(error)
        except requests.HTTPError as error:
            status = error.response.status_code if error.response is not None else "no status"
            reason = f"the archive answers with HTTP {status}"
        except requests.RequestException as error:
            reason = f"the archive cannot be reached ({type(error).__name__})"
        except OSError as error:
            reason = f"the answer cannot be kept ({type(error).__name__})"
        except Exception as error:  # an answer that is none may fail in any way
            reason = f"the archive's answer cannot be read ({type(error).__name__})"
        self._count("archive_failures", 1)
        raise NotAnsweredError(asked.over or reason)


def _words(row: Any, keywords: Sequence[str]) -> dict[str, str]:
    """The values of an answer in DICOM's JSON (PS3.18 F), the first of each, names in DICOM's form."""
    said: dict[str, str] = {}
    for keyword in keywords:
        tag = tag_for_keyword(keyword)
        values = row.get(f"{tag:08X}", {}).get("Value") or [""]
        first = values[0]
        if isinstance(first, dict):
            groups = [str(first.get(group, "")) for group in ("Alphabetic", "Ideographic", "Phonetic")]
            first = "=".join(groups).rstrip("=")
        said[keyword] = "" if first is None else str(first)
    return said
