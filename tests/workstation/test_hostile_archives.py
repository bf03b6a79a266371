"""Archives that drip, never end, say nothing or name too much: limits hold, and a server that stops waits for none."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from pydicom.dataset import Dataset

from radweave.workstation.archive import NotAnsweredError, QueryLimits
from radweave.workstation.archive_clients import DicomArchive, WebArchive
from radweave.workstation.formats import FORMATS
from radweave.workstation.hospital_plan import Dicom, QueriedDicom, Target, Web
from radweave.workstation.sending import NotStoredError, send
from tests.workstation.query_archive import QueryArchive, dicom
from tests.workstation.reports import finished

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/dicom+json\r\n"
AC = b"\2\0\0\0\1\0"
"""The beginning of an acceptance of an association."""
Say = Callable[[socket.socket], None]


def drip(start: bytes, then: bytes) -> Say:
    """Say ``start``, then a little, again and again."""

    def say(connection: socket.socket) -> None:
        connection.sendall(start)
        while True:
            connection.sendall(then)
            time.sleep(0.02)

    return say


def half(connection: socket.socket) -> None:
    """Close one direction, and wait."""
    connection.sendall(HEAD)
    connection.shutdown(socket.SHUT_RD)
    time.sleep(60)


PEERS: dict[str, Say] = {
    "silent": lambda connection: time.sleep(60),
    "dripping head": drip(b"HTTP/1.1 200 OK\r\nX: ", b"x"),
    "endless continue": drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "dripping body": drip(HEAD + b"Content-Length: 9000000\r\n\r\n[", b" "),
    "dripping chunks": drip(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n[\r\n", b"1\r\n \r\n"),
    "dripping redirection": drip(b"HTTP/1.1 307 X\r\nLocation: /a\r\nContent-Length: 900000\r\n\r\n", b"x"),
    "half closed": half,
    "dripping acceptance": drip(AC, b"\0"),
    "unread": lambda connection: time.sleep(60),
}


@contextmanager
def peer(say: Say) -> Iterator[int]:
    """A port at which everybody is answered in this way."""
    listening = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def answer(connection: socket.socket) -> None:
        with suppress(OSError):
            say(connection)

    def serve() -> None:
        with suppress(OSError):
            while True:
                held.append(listening.accept()[0])
                threading.Thread(target=answer, args=(held[-1],), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listening.getsockname()[1]
    finally:
        for one in (listening, *held):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


def asks(kind: str, port: int, counted: Counter[str]) -> Any:
    def count(name: str, by: int = 1) -> None:
        counted[name] += by

    if kind == "web":
        return WebArchive(Web(url=f"http://127.0.0.1:{port}/dicom-web"), count)
    return DicomArchive(QueriedDicom(host="127.0.0.1", port=port, ae_title="ARCHIVE"), count)


def ended(work: Callable[[], Any]) -> tuple[BaseException | None, bool]:
    """The error of some work, and True if it ends within 10 seconds."""
    outcome: list[BaseException | None] = []

    def run() -> None:
        try:
            work()
            outcome.append(None)
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(10)
    return (outcome or [None])[0], not thread.is_alive()


@pytest.mark.parametrize("why", ["late", "stopped"])
@pytest.mark.parametrize("kind", ["web", "dicom"])
@pytest.mark.parametrize("say", PEERS)
def test_a_query_ends_in_time_and_with_the_server_despite_its_peer(say: str, kind: str, why: str) -> None:
    begun = time.monotonic()
    deadline = begun + (0.5 if why == "late" else 600)
    limits = QueryLimits(deadline, 500, lambda: why == "stopped" and time.monotonic() > begun + 0.5)
    with peer(PEERS[say]) as port:
        counted = Counter[str]()
        error, is_done = ended(lambda: asks(kind, port, counted).studies({"PatientID": "1"}, limits))
    assert is_done
    assert isinstance(error, NotAnsweredError)
    assert counted["archive_failures"] == 1


@pytest.mark.parametrize("kind", ["web", "dicom"])
@pytest.mark.parametrize("say", ["silent", "dripping head", "dripping body", "dripping acceptance"])
def test_sending_ends_with_the_server_despite_its_peer(say: str, kind: str) -> None:
    data, begun = FORMATS["sr-basic"].bytes_of(finished()), time.monotonic()
    with peer(PEERS[say]) as port:
        way: dict[str, Any] = (
            {"web": Web(url=f"http://127.0.0.1:{port}/dicom-web")}
            if kind == "web"
            else {"dicom": Dicom(host="127.0.0.1", port=port, ae_title="ARCHIVE")}
        )
        target = Target(name="a", formats=("sr-basic",), **way)
        error, is_done = ended(lambda: send(target, data, lambda: time.monotonic() > begun + 0.5))
    assert is_done
    assert isinstance(error, NotStoredError)


def rows(*studies: Any) -> Say:
    def say(connection: socket.socket) -> None:
        body = json.dumps(studies).encode()
        connection.recv(1 << 16)
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    return say


def study(uid: str) -> dict[str, Any]:
    return {"0020000D": {"vr": "UI", "Value": [uid]}}


MALFORMED: tuple[Any, ...] = (
    "x", 5, None, [], {"0020000D": None}, {"0020000D": {"Value": 5}}, {"0020000D": {"Value": {}}}, {"0020000D": []},
    {**study("1.2.9"), "00100010": {"Value": {"a": 1}}}, study("1.2/3"),
)  # fmt: skip


def soon(most: int) -> QueryLimits:
    return QueryLimits(time.monotonic() + 60, most)


def test_a_malformed_row_is_skipped() -> None:
    counted = Counter[str]()
    with peer(rows(study("1.2.1"), *MALFORMED, study("1.2.2"))) as port:
        studies = asks("web", port, counted).studies({}, soon(500))
    assert [one.study_instance_uid for one in studies] == ["1.2.1", "1.2.2"]
    assert counted["archive_rows_unreadable"] == len(MALFORMED)


@pytest.mark.parametrize(("number", "taken", "cut"), [(3, 3, 0), (4, 3, 1)])
def test_rows_over_the_limit_are_dropped(number: int, taken: int, cut: int) -> None:
    counted = Counter[str]()
    with peer(rows(*(study(f"1.2.{n}") for n in range(number)))) as port:
        assert len(asks("web", port, counted).studies({}, soon(3))) == taken
    assert counted["archive_answers_cut"] == cut


def test_an_endless_list_is_abandoned_at_the_limit_of_rows() -> None:
    """It goes on whatever is cancelled."""
    counted, sent = Counter[str](), [0]
    studies: list[Any] = []

    class Endless(QueryArchive):
        def matches(self, level: str, keys: dict[str, str]) -> Any:
            while sent[0] < 20_000:
                sent[0] += 1
                one = Dataset()
                one.StudyInstanceUID, one.PatientName = f"1.2.{sent[0]}", "x" * 60
                yield one

    archive = Endless()
    with dicom(archive, heeds_cancel=False):
        error, is_done = ended(lambda: studies.extend(asks("dicom", archive.port, counted).studies({}, soon(20))))
    assert is_done
    assert error is None
    assert len(studies) == 20
    assert counted["archive_answers_cut"] == 1
    assert sent[0] < 20_000


def test_an_unreadable_row_of_c_find_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    from pynetdicom import association

    counted, number = Counter[str](), [0]
    honest = association.decode

    def decode(*arguments: Any, **named: Any) -> Dataset:
        number[0] += 1
        if number[0] == 2:
            raise ValueError("damaged")
        return honest(*arguments, **named)

    class Three(QueryArchive):
        def matches(self, level: str, keys: dict[str, str]) -> Any:
            for last in (1, 2, 3):
                one = Dataset()
                one.StudyInstanceUID = f"1.2.{last}"
                yield one

    archive = Three()
    with dicom(archive):
        monkeypatch.setattr(association, "decode", decode)
        got = asks("dicom", archive.port, counted).studies({}, soon(20))
    assert [one.study_instance_uid for one in got] == ["1.2.1", "1.2.3"]
    assert counted["archive_rows_unreadable"] == 1
