"""An archive in this process that can be asked: QIDO-RS and WADO-RS by HTTP; C-FIND, C-MOVE, C-GET by DICOM."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
from pydicom import dcmread
from pydicom.dataset import Dataset
from pynetdicom import AE, AllStoragePresentationContexts, evt
from pynetdicom.sop_class import (
    StudyRootQueryRetrieveInformationModelFind,
    StudyRootQueryRetrieveInformationModelGet,
    StudyRootQueryRetrieveInformationModelMove,
)

from tests.image_files import write_dicom

PATIENT = ("PatientID", "IssuerOfPatientID", "PatientName", "PatientBirthDate", "PatientSex")
LEVELS = {
    "STUDY": ("StudyInstanceUID", (*PATIENT, "StudyDate", "StudyTime")),
    "SERIES": ("SeriesInstanceUID", ("Modality", "BodyPartExamined")),
    "IMAGE": ("SOPInstanceUID", ()),
}


COUNTS = {"STUDY": "NumberOfStudyRelatedInstances", "SERIES": "NumberOfSeriesRelatedInstances"}
"""Of all kinds of objects, whichever were asked for."""


class QueryArchive:
    """Holds files. ``requests`` counts the queries of each kind; ``fails`` makes some of them fail."""

    def __init__(self, *files: Path) -> None:
        self.files: list[Path] = list(files)
        self.requests: dict[str, int] = {}
        self.fails: set[str] = set()
        self.wait_s = 0.0
        self.pending = 0xFF00
        self.cancelled = 0
        self.url, self.port = "", 0
        self.moves_to: dict[str, int] = {}

    def note(self, kind: str) -> bool:
        """Count a question; whether it may be answered."""
        self.requests[kind] = self.requests.get(kind, 0) + 1
        if self.wait_s:
            time.sleep(self.wait_s)
        return kind not in self.fails

    def held(self) -> list[Dataset]:
        return [dcmread(file) for file in self.files]

    def matches(self, level: str, keys: dict[str, str]) -> list[Dataset]:
        """One answer for each study, series or instance that fits the keys."""
        unique, more = LEVELS[level]
        answers: dict[str, Dataset] = {}
        for held in self.held():
            if all(_fits(held, keyword, value) for keyword, value in keys.items() if value):
                answer = answers.setdefault(str(held[unique].value), Dataset())
                for keyword in (unique, *more):
                    setattr(answer, keyword, held.get(keyword))
                if level in COUNTS:
                    same = [one for one in self.held() if one[unique].value == held[unique].value]
                    setattr(answer, COUNTS[level], len(same))
        return list(answers.values())


def _fits(held: Dataset, keyword: str, value: str) -> bool:
    if keyword == "StudyDate" and "-" in value:
        first, last = value.split("-")
        return bool(first <= held.StudyDate <= last)
    if keyword == "ModalitiesInStudy":
        return str(held.Modality) == value
    return str(held.get(keyword, "")) == value


@contextmanager
def web(archive: QueryArchive) -> Iterator[QueryArchive]:
    """The archive as a DICOMweb service."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

        def do_GET(self) -> None:
            place, query = urlsplit(self.path).path.strip("/").split("/")[1:], parse_qs(urlsplit(self.path).query)
            keys = {name: values[0] for name, values in query.items()
                    if name not in ("includefield", "limit", "offset", "fuzzymatching")}  # fmt: skip
            if place == ["studies"]:
                self._search("STUDY", keys)
            elif place[2:] == ["series"]:
                self._search("SERIES", {**keys, "StudyInstanceUID": place[1]})
            else:
                self._objects({"StudyInstanceUID": place[1], "SeriesInstanceUID": place[3]})

        def _search(self, level: str, keys: dict[str, str]) -> None:
            if not archive.note(level):
                self.send_error(503)
                return
            rows = [answer.to_json_dict() for answer in archive.matches(level, keys)]
            self._answer("application/dicom+json", json.dumps(rows).encode())

        def _objects(self, keys: dict[str, str]) -> None:
            if not archive.note("WADO"):
                self.send_error(500)
                return
            parts = []
            for file in archive.files:
                if all(_fits(dcmread(file), keyword, value) for keyword, value in keys.items()):
                    parts.append(b"--line\r\nContent-Type: application/dicom\r\n\r\n" + file.read_bytes() + b"\r\n")
            kind = 'multipart/related; type="application/dicom"; boundary=line'
            self._answer(kind, b"".join(parts) + b"--line--\r\n")

        def _answer(self, kind: str, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    archive.url = f"http://127.0.0.1:{server.server_address[1]}/dicom-web"
    try:
        yield archive
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def dicom(archive: QueryArchive, *, heeds_cancel: bool = True, **more: Any) -> Iterator[QueryArchive]:
    """The archive as a DICOM node called ARCHIVE."""

    def keys_of(event: evt.Event) -> tuple[str, dict[str, str]]:
        query_keys = event.identifier
        names = ("StudyInstanceUID", "SeriesInstanceUID", "PatientID", "StudyDate", "ModalitiesInStudy")
        return query_keys.QueryRetrieveLevel, {name: str(query_keys.get(name) or "") for name in names}

    def find(event: evt.Event) -> Iterator[Any]:
        level, keys = keys_of(event)
        if not archive.note(level):
            yield 0xA700, None
            return
        for answer in archive.matches(level, keys):
            if heeds_cancel and event.is_cancelled:
                archive.cancelled += 1
                yield 0xFE00, None
                return
            yield archive.pending, answer

    def wanted(event: evt.Event) -> Sequence[Dataset]:
        _, keys = keys_of(event)
        return [one for one in archive.held() if all(_fits(one, k, v) for k, v in keys.items() if v)]

    def move(event: evt.Event) -> Iterator[Any]:
        if not archive.note("MOVE"):
            yield None, None
            return
        yield "127.0.0.1", archive.moves_to[event.move_destination.strip()], {"contexts": _contexts(wanted(event))}
        yield from _sent(wanted(event))

    def get(event: evt.Event) -> Iterator[Any]:
        archive.note("GET")
        yield from _sent(wanted(event))

    entity = AE(ae_title="ARCHIVE")
    for model in (
        StudyRootQueryRetrieveInformationModelFind, StudyRootQueryRetrieveInformationModelMove,
        StudyRootQueryRetrieveInformationModelGet,
    ):  # fmt: skip
        entity.add_supported_context(model)
    for context in AllStoragePresentationContexts:
        entity.add_supported_context(str(context.abstract_syntax), scu_role=True, scp_role=True)
    handlers = [(evt.EVT_C_FIND, find), (evt.EVT_C_MOVE, move), (evt.EVT_C_GET, get)]
    server = entity.start_server(("127.0.0.1", 0), block=False, evt_handlers=handlers, **more)
    archive.port = server.server_address[1]
    try:
        yield archive
    finally:
        server.shutdown()


def _contexts(datasets: Sequence[Dataset]) -> list[Any]:
    from pynetdicom.presentation import build_context

    return [build_context(uid, "1.2.840.10008.1.2.1") for uid in {str(one.SOPClassUID) for one in datasets}]


def _sent(datasets: Sequence[Dataset]) -> Iterator[Any]:
    yield len(datasets)
    for one in datasets:
        yield 0xFF00, one


NOW = datetime.now()
TODAY = {"StudyDate": f"{NOW:%Y%m%d}", "StudyTime": f"{NOW:%H%M%S}"}


def days_ago(days: int) -> dict[str, str]:
    return {"StudyDate": f"{NOW - timedelta(days=days):%Y%m%d}", "StudyTime": "1200"}


def flat(path: Path, grey: float, **tags: Any) -> Path:
    return write_dicom(path, np.full((32, 24), grey), **tags)


def text_of(result: dict[str, Any]) -> str:
    return str(result["draft"]["text"])


OTHER_PATIENTS: dict[str, dict[str, str]] = {
    "an equal name with another id": {"PatientID": "OTHER"},
    "swapped ids": {"PatientName": "Other^Eve", "PatientBirthDate": "19550505"},
    "an id that was given again": {"PatientBirthDate": "19550505"},
}
