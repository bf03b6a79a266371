"""The C-STORE receiver: what an allowed peer sends is laid into a folder for each association, unread.

An object is answered with success only when it lies on the disk, so that the sender may forget it. Its bytes are
parsed later, in the limited process that reads all files. Peers are known by AE title and address, with TLS by
certificate too.
"""

from __future__ import annotations

import ipaddress
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pynetdicom import AE, AllStoragePresentationContexts, evt
from pynetdicom.sop_class import Verification  # type: ignore[attr-defined]
from pynetdicom.transport import ThreadedAssociationServer

from radweave.base.errors import InputError
from radweave.base.storage import write_aside
from radweave.hospital.plan import Receive
from radweave.hospital.sending import server_context

OPEN: Final = ".open"
"""Ends the name of a folder whose association still lives."""
TIMEOUT_S: Final = 30
FREE_BYTES: Final = 1 << 30
LATE_S: Final = 600.0
"""How long after a C-MOVE what it asked for is still known, and refused."""
_SUCCESS, _FULL, _NOT_ALLOWED, _FAILED = 0x0000, 0xA700, 0x0124, 0x0110
# Compressed images come as they are: nothing is decoded here.
SYNTAXES: Final = (
    "1.2.840.10008.1.2.1", "1.2.840.10008.1.2", "1.2.840.10008.1.2.4.50", "1.2.840.10008.1.2.4.51",
    "1.2.840.10008.1.2.4.57", "1.2.840.10008.1.2.4.70", "1.2.840.10008.1.2.4.80", "1.2.840.10008.1.2.4.81",
    "1.2.840.10008.1.2.4.90", "1.2.840.10008.1.2.4.91", "1.2.840.10008.1.2.5",
)  # fmt: skip

Count = Callable[[str], None]


class Receiver:
    """Listens once it is started; ``count`` is told of objects and of refusals by name."""

    def __init__(self, plan: Receive, folder: Path, count: Count) -> None:
        self._plan, self._folder, self._count = plan, folder, count
        self._places: dict[Any, Path] = {}
        self._server: ThreadedAssociationServer | None = None
        self._lock = threading.Lock()
        self._expected: dict[str, Path] = {}
        self._late: dict[str, float] = {}

    @contextmanager
    def expecting(self, instances: Sequence[str], folder: Path) -> Iterator[None]:
        """Lay these instances into ``folder``: a C-MOVE of ours asked for them, and nobody sends them to be drafted.

        What comes after the block is refused, for a while.
        """
        now = time.monotonic()
        with self._lock:
            self._late = {uid: end for uid, end in self._late.items() if end > now}
            self._expected |= dict.fromkeys(instances, folder)
        try:
            yield
        finally:
            with self._lock:
                for uid in instances:
                    self._expected.pop(uid, None)
                self._late |= dict.fromkeys(instances, time.monotonic() + LATE_S)

    def _place(self, event: evt.Event) -> Path | None:
        """The folder of an object; None where it comes too late."""
        name = str(getattr(event.request, "AffectedSOPInstanceUID", ""))
        with self._lock:
            if name in self._expected:
                return self._expected[name]
            if self._late.get(name, 0.0) > time.monotonic():
                return None
        place = self._places.get(event.assoc)
        if place is None:
            place = self._places[event.assoc] = self._folder / f"{uuid.uuid4().hex}{OPEN}"
            place.mkdir()
        return place

    def start(self) -> None:
        """Listen.

        Raises:
            InputError: if the port is taken, or a certificate cannot be used.
        """
        plan = self._plan
        self._folder.mkdir(parents=True, exist_ok=True)
        for left in self._folder.glob(f"*{OPEN}"):  # a server that was killed: what came is whole
            left.rename(left.with_suffix(""))
        entity = AE(ae_title=plan.ae_title)
        entity.require_called_aet = True
        entity.require_calling_aet = list(plan.peers)
        entity.maximum_associations = plan.associations
        entity.acse_timeout = entity.dimse_timeout = entity.network_timeout = TIMEOUT_S
        entity.add_supported_context(Verification)
        for context in AllStoragePresentationContexts:
            assert context.abstract_syntax is not None
            entity.add_supported_context(context.abstract_syntax, list(SYNTAXES))
        tls = None if plan.tls is None else server_context(plan.tls)
        handlers: list[Any] = [
            (evt.EVT_ACCEPTED, self._accepted), (evt.EVT_C_STORE, self._store), (evt.EVT_REJECTED, self._rejected),
            (evt.EVT_CONN_CLOSE, self._closed),
        ]  # fmt: skip
        try:
            server = entity.start_server((plan.host, plan.port), block=False, evt_handlers=handlers, ssl_context=tls)
        except OSError as error:
            raise InputError(f"cannot listen: {error.strerror}", field="receive.port", got=plan.port) from None
        self._server = server

    def stop(self) -> None:
        """Cut what is open and listen no more."""
        if self._server is not None:
            self._server.shutdown()
            self._server = None

    def _is_allowed(self, event: evt.Event) -> bool:
        requestor = event.assoc.requestor
        stated = self._plan.peers.get(requestor.ae_title.strip())
        return stated is not None and _same_address(stated, requestor.address)

    def _accepted(self, event: evt.Event) -> None:
        if not self._is_allowed(event):
            self._count("peers_refused")
            event.assoc.abort()

    def _rejected(self, event: evt.Event) -> None:
        self._count("peers_refused")

    def _store(self, event: evt.Event) -> int:
        if not self._is_allowed(event):
            return _NOT_ALLOWED
        try:
            if shutil.disk_usage(self._folder).free < FREE_BYTES:
                self._count("objects_refused")
                return _FULL
            place = self._place(event)
            if place is None:
                self._count("objects_late")
                return _NOT_ALLOWED
            with write_aside(place / f"{uuid.uuid4().hex}.dcm") as partial:
                partial.write_bytes(event.encoded_dataset())
        except (OSError, InputError):
            self._count("objects_refused")
            return _FAILED
        self._count("objects_received")
        return _SUCCESS

    def _closed(self, event: evt.Event) -> None:
        place = self._places.pop(event.assoc, None)
        if place is not None:
            place.rename(place.with_suffix(""))


def _same_address(stated: str, found: str | None) -> bool:
    """Whether an address is the one that a plan states, as a number or a name."""
    try:
        known = {row[4][0] for row in socket.getaddrinfo(stated, None)}
        return ipaddress.ip_address(str(found)) in {ipaddress.ip_address(address) for address in known}
    except (OSError, ValueError):
        return False
