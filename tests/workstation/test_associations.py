"""Connections of the receiver: pending, silent, partial, oversized and too many ones."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from pydicom import dcmread
from pynetdicom import AE
from pynetdicom.dul import DULServiceProvider

from radweave.workstation import associations
from radweave.workstation import associations as connections
from radweave.workstation.hospital_plan import Receive
from radweave.workstation.receiver import OPEN, Receiver
from tests.workstation.hospitals import push
from tests.workstation.load import free_port, until
from tests.workstation.reports import dicom_image

HEAD = b"\x01\x00\x00\x00\x00\xcd"
"""The beginning of a request for an association, of which no more comes."""


class Listening:
    """A receiver for SCANNER and OTHER, of this address."""

    def __init__(self, folder: Path, associations: int) -> None:
        self.counted, self.folder = Counter[str](), folder
        peers = {"SCANNER": "127.0.0.1", "OTHER": "127.0.0.1"}
        plan = Receive(ae_title="RADWEAVE", port=free_port(), peers=peers, associations=associations)
        self.port = plan.port
        self.receiver = Receiver(plan, folder, lambda name: self.counted.update([name]))
        self.receiver.start()
        self.open = ExitStack()

    def cut(self, *data: bytes) -> socket.socket:
        """A connection that says this and stays."""
        made = self.open.enter_context(socket.create_connection(("127.0.0.1", self.port)))
        for part in data:
            made.sendall(part)
        return made

    def ask(self, calling: str = "SCANNER") -> Any:
        """An association for verification that stays open, or is refused."""
        entity = AE(calling)
        entity.add_requested_context("1.2.840.10008.1.1")
        made = entity.associate("127.0.0.1", self.port, ae_title="RADWEAVE")
        self.open.callback(made.abort)
        return made


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[int], Listening]]:
    started: list[Listening] = []

    def make(associations: int = 2) -> Listening:
        started.append(Listening(tmp_path / "incoming", associations))
        return started[-1]

    yield make
    for one in started:
        one.open.close()
        one.receiver.stop()


def test_half_a_request_takes_no_slot(start: Callable[..., Listening]) -> None:
    one = start(2)
    for data in (HEAD, b"", HEAD[:3], HEAD):
        one.cut(data)
    time.sleep(0.1)
    assert one.ask().is_established
    assert one.ask("OTHER").is_established


def test_half_a_request_times_out(start: Callable[..., Listening], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (connections, associations):
        monkeypatch.setattr(module, "PENDING_S", 0.3)
    one = start()
    held = [one.cut(HEAD), one.cut(b"")]
    for connection in held:
        connection.settimeout(20)
        assert connection.recv(1) == b""
    until(lambda: one.counted.total() == 2)  # whoever looked first
    assert not one.counted.keys() - {"connections_without_request", "connections_late"}


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\x01\0\x7f\xff\xff\xff", b"\x04\0\0\0\0\x04abcd"])
def test_an_invalid_request_is_closed_at_once(start: Callable[..., Listening], data: bytes) -> None:
    one = start()
    connection = one.cut(data)
    connection.settimeout(5)
    with suppress(ConnectionResetError):  # closed with some of it unread
        assert connection.recv(1) == b""
    assert one.counted == {"connections_without_request": 1}


def test_the_oldest_pending_connection_is_closed_at_the_limit(
    start: Callable[..., Listening], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MOST_PENDING", 3)
    one = start()
    held = [one.cut(HEAD) for _ in range(5)]
    assert one.ask().is_established
    for connection in held[:2]:
        connection.settimeout(5)
        assert connection.recv(1) == b""
    held[4].settimeout(0.05)
    with pytest.raises(TimeoutError):
        held[4].recv(1)
    assert one.counted["connections_crowded_out"] in (2, 3)
    assert set(one.counted) == {"connections_crowded_out"}  # and not once more for another reason


def test_the_busiest_address_loses_a_pending_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_PENDING", 3)
    counted: list[str] = []
    held = connections.Connections(1, 1, counted.append)
    pairs = [socket.socketpair() for _ in range(4)]
    with ExitStack() as stack:
        for pair, address in zip(pairs, ("good", "bad", "bad", "bad"), strict=True):
            for end in pair:
                stack.enter_context(end)
            held.enter(pair[0], address)
        pairs[1][1].settimeout(5)
        assert pairs[1][1].recv(1) == b""
        for _, other in (pairs[0], *pairs[2:]):
            other.setblocking(False)
            with pytest.raises(BlockingIOError):
                other.recv(1)
    assert counted == ["connections_crowded_out"]


def test_overload_is_counted_apart_from_unknown_peers(start: Callable[..., Listening]) -> None:
    one = start(1)
    assert one.ask("STRANGER").is_rejected
    assert one.counted == {"peers_refused": 1}
    first = one.ask()
    assert first.is_established
    full = one.ask("OTHER")
    assert full.is_rejected
    data = full.acceptor.primitive
    assert (data.result, data.result_source, data.diagnostic) == (0x02, 0x03, 0x02)  # transient: try again
    assert one.counted == {"peers_refused": 1, "associations_full": 1}
    first.release()
    until(lambda: one.ask("OTHER").is_established)


def test_messages_out_of_turn_are_counted_and_print_nothing(
    start: Callable[..., Listening], capfd: pytest.CaptureFixture[str]
) -> None:
    one = start(3)
    request = b"\x01\0\0\0\0\x44\0\1\0\0" + b"RADWEAVE        SCANNER         " + b"\0" * 32
    held = [one.cut(request + request), one.cut(request, b"\4\0\0\0\0\0"), one.cut(request + b"\7\0\0\0\0\4\0\0\0\0")]
    for connection in held:
        connection.settimeout(20)
        with suppress(ConnectionResetError):
            while connection.recv(100):
                pass
    assert one.ask().is_established
    assert "Traceback" not in "".join(capfd.readouterr())


def test_no_peer_takes_the_reserved_slot_of_another(start: Callable[..., Listening]) -> None:
    one = start(3)
    assert [one.ask().is_established for _ in range(3)] == [True, True, False]
    assert one.ask("OTHER").is_established
    assert one.ask("OTHER").is_rejected


def test_a_peer_that_stops_within_a_message_is_cut_and_its_objects_are_kept(
    start: Callable[..., Listening], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = start(3)
    held = one.ask()
    assert push(one.port, dicom_image(tmp_path / "a.dcm")) == [0x0000]
    raw = held.dul.socket.socket
    raw.sendall(b"\x04\x00\x00\x00\x40\x00half")
    monkeypatch.setattr(connections, "SILENT_S", 0.1)
    until(lambda: one.counted["connections_late"] == 1)
    until(lambda: not list(one.folder.glob(f"*{OPEN}")))
    assert len(list(one.folder.rglob("*.dcm"))) == 1


def test_an_endless_object_is_cut(
    start: Callable[..., Listening], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = start(3)
    image = dicom_image(tmp_path / "a.dcm")
    monkeypatch.setattr(connections, "LARGEST_OBJECT", image.stat().st_size * 3 // 2)
    assert push(one.port, image, image) == [0x0000, 0x0000]  # each is smaller
    monkeypatch.setattr(connections, "LARGEST_OBJECT", 600)
    assert push(one.port, image) == ["cut"]
    assert one.counted["objects_too_large"] == 1
    held = one.ask()
    held.dul.socket.socket.sendall(b"\x04\x00\x7f\xff\xff\xff")
    until(lambda: held.is_aborted)


def test_an_object_whose_sender_leaves_at_once_is_kept(
    start: Callable[..., Listening], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection ends while the last object is on its way to the disk."""
    one = start()
    slow = one.receiver._place

    def place(event: Any) -> Path | None:
        time.sleep(0.3)
        return slow(event)

    monkeypatch.setattr(one.receiver, "_place", place)
    entity, sent = AE("SCANNER"), dicom_image(tmp_path / "a.dcm")
    entity.dimse_timeout = 0.1  # it does not wait for the answer
    dataset = dcmread(sent)
    entity.add_requested_context(dataset.SOPClassUID, dataset.file_meta.TransferSyntaxUID)
    association = entity.associate("127.0.0.1", one.port, ae_title="RADWEAVE")
    association.send_c_store(dataset)
    until(lambda: list(one.folder.rglob("*.dcm")))
    until(lambda: not list(one.folder.glob(f"*{OPEN}")))
    assert len(list(one.folder.rglob("*.dcm"))) == 1


def test_errors_of_the_library_are_counted_and_named_without_their_text(
    start: Callable[..., Listening],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    one, honest = start(), DULServiceProvider.run

    def run(self: DULServiceProvider) -> None:
        if self.assoc.is_acceptor:
            raise LookupError("Doe^Jane")
        honest(self)

    monkeypatch.setattr(DULServiceProvider, "run", run)
    entity = AE("SCANNER")
    entity.acse_timeout = 1
    entity.add_requested_context("1.2.840.10008.1.1")
    assert not entity.associate("127.0.0.1", one.port, ae_title="RADWEAVE").is_established
    until(lambda: one.counted["connections_failed"] == 1)
    assert [vars(record)["kind"] for record in caplog.records if record.name == associations.__name__] == [
        "LookupError"
    ]
    assert "Jane" not in caplog.text + "".join(capfd.readouterr())
