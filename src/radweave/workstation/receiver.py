"""The C-STORE receiver: objects of allowed peers are stored unread, in one folder for each association.

Success is answered only after an object lies on the disk. Its bytes are parsed later, in the sandboxed process that
reads all files. Peers are known by AE title and address, with TLS by certificate too. Limits of connections stand in
``associations``.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

from pynetdicom import AE, AllStoragePresentationContexts, evt
from pynetdicom.association import Association
from pynetdicom.sop_class import Verification  # type: ignore[attr-defined]

from radweave.core.errors import InputError
from radweave.core.storage import write_aside
from radweave.workstation.archive import refuse_full
from radweave.workstation.associations import PENDING_S, SILENT_S, AssociationServer, Connections, Count
from radweave.workstation.hospital_plan import Receive
from radweave.workstation.sending import server_context

OPEN: Final = ".open"
"""Suffix of the folder of an open association."""
LATE_S: Final = 600.0
"""Seconds after a C-MOVE in which its late objects are known, and refused."""
NAME_S: Final = 60.0
"""Seconds for which the resolved addresses of a host name are cached."""
_SUCCESS, _FULL, _NOT_ALLOWED, _FAILED = 0x0000, 0xA700, 0x0124, 0x0110
# Compressed images come as they are: nothing is decoded here.
SYNTAXES: Final = (
    "1.2.840.10008.1.2.1", "1.2.840.10008.1.2", "1.2.840.10008.1.2.4.50", "1.2.840.10008.1.2.4.51",
    "1.2.840.10008.1.2.4.57", "1.2.840.10008.1.2.4.70", "1.2.840.10008.1.2.4.80", "1.2.840.10008.1.2.4.81",
    "1.2.840.10008.1.2.4.90", "1.2.840.10008.1.2.4.91", "1.2.840.10008.1.2.5",
)  # fmt: skip


Reserve = Callable[[], AbstractContextManager[Callable[[int], None]]]


class Receiver:
    """Listens from ``start`` to ``stop``; ``count`` counts objects and refusals by name.

    ``reserve`` reserves disk space for an object before it is written, and raises ENOSPC if there is none.
    """

    def __init__(
        self, plan: Receive, folder: Path, count: Count, reserve: Reserve = lambda: nullcontext(lambda size: None)
    ) -> None:
        self._plan, self._folder, self._count, self._reserve = plan, folder, count, reserve
        self._places: dict[Any, Path] = {}
        self._door: AssociationServer | None = None
        self._connections = Connections(plan.associations, len(plan.peers), count)
        self._addresses: dict[str, tuple[float, frozenset[str]]] = {}
        self._lock = threading.Lock()
        self._expected: dict[str, Path] = {}
        self._late: dict[str, float] = {}

    @contextmanager
    def expecting(self, instances: Sequence[str], folder: Path) -> Iterator[None]:
        """Store these instances of a C-MOVE in ``folder``; after the block late ones are refused for a while."""
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
        """The folder of an object; None for a late one."""
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
        for left in self._folder.glob(f"*{OPEN}"):  # of a killed server; its files are whole
            left.rename(left.with_suffix(""))
        entity = AE(ae_title=plan.ae_title)
        entity.require_called_aet = True
        entity.require_calling_aet = list(plan.peers)
        entity.maximum_associations = 1 << 16  # limited by ``Connections`` instead
        entity.acse_timeout = PENDING_S
        entity.dimse_timeout = entity.network_timeout = SILENT_S
        entity.add_supported_context(Verification)
        for context in AllStoragePresentationContexts:
            assert context.abstract_syntax is not None
            entity.add_supported_context(context.abstract_syntax, list(SYNTAXES))
        tls = None if plan.tls is None else server_context(plan.tls)
        handlers = [
            (evt.EVT_REQUESTED, self._requested), (evt.EVT_DATA_RECV, self._heard), (evt.EVT_C_STORE, self._store),
            (evt.EVT_CONN_CLOSE, lambda event: self._connections.closed(event.assoc)),
        ]  # fmt: skip
        place = (plan.host, plan.port)
        try:
            self._door = AssociationServer(entity, place, self._connections, handlers, tls, self._done, self._count)
        except OSError as error:
            raise InputError(f"cannot listen: {error.strerror}", field="receive.port", got=plan.port) from None
        self._door.start()

    def stop(self) -> None:
        """Close all connections and stop listening."""
        if self._door is not None:
            self._door.shutdown()
            self._door = None

    def _requested(self, event: evt.Event) -> None:
        """Reject unknown peers, and known ones without a free slot, each with its reason (PS3.8 Table 9-21)."""
        association, request = event.assoc, event.assoc.requestor.primitive
        assert request is not None, "it is what was requested"
        caller = str(request.calling_ae_title).strip()
        if str(request.called_ae_title).strip() != self._plan.ae_title:
            self._reject(association, "peers_refused", (0x01, 0x01, 0x07))
        elif not self._is_peer(caller, association.requestor.address):
            self._reject(association, "peers_refused", (0x01, 0x01, 0x03))
        elif self._connections.accept(association, caller) == "full":
            self._reject(association, "associations_full", (0x02, 0x03, 0x02))  # "try again later"

    def _reject(self, association: Association, why: str, reason: tuple[int, int, int]) -> None:
        self._count(why)
        association.acse.send_reject(*reason)
        association.kill()

    def _is_peer(self, caller: str, address: str | None) -> bool:
        stated = self._plan.peers.get(caller)
        return stated is not None and address is not None and _plain(address) in self._addresses_of(stated)

    def _addresses_of(self, stated: str) -> frozenset[str]:
        """The addresses of a peer that is given by address or host name."""
        until, known = self._addresses.get(stated, (0.0, frozenset()))
        if until < time.monotonic():
            try:
                known = frozenset(_plain(str(row[4][0])) for row in socket.getaddrinfo(stated, None))
            except OSError:
                return frozenset()
            self._addresses[stated] = (time.monotonic() + NAME_S, known)
        return known

    def _heard(self, event: evt.Event) -> None:
        if not self._connections.hear(event.assoc, len(event.data)):
            self._connections.cut(event.assoc, "objects_too_large")

    def _store(self, event: evt.Event) -> int:
        self._connections.object_done(event.assoc)
        if not self._is_peer(event.assoc.requestor.ae_title.strip(), event.assoc.requestor.address):
            return _NOT_ALLOWED
        try:
            refuse_full(self._folder)
            place = self._place(event)
            if place is None:
                self._count("objects_late")
                return _NOT_ALLOWED
            data = event.encoded_dataset()
            with self._reserve() as take, write_aside(place / f"{uuid.uuid4().hex}.dcm") as partial:
                take(len(data))
                partial.write_bytes(data)
        except (OSError, InputError) as error:
            self._count("objects_refused")
            return _FULL if getattr(error, "errno", None) == errno.ENOSPC else _FAILED
        self._count("objects_received")
        return _SUCCESS

    def _done(self, association: Association) -> None:
        """Release the folder of an ended association; when its connection closes, files may still be written."""
        place = self._places.pop(association, None)
        if place is not None:
            place.rename(place.with_suffix(""))


def _plain(address: str) -> str:
    """The normal form of an address: IPv4 may be written as IPv6 (RFC 4291, 2.5.5.2)."""
    try:
        number = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(getattr(number, "ipv4_mapped", None) or number)
