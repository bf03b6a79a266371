"""All that joins a workstation to a hospital's systems: receiver, who asks, what sorts their objects, sender."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, Protocol

from radweave.base.errors import InputError
from radweave.base.extras import refuse_without
from radweave.hospital.plan import Dicom, Plan, Query, Receive, Web
from radweave.serve import store
from radweave.serve.database import Database
from radweave.serve.events import quiet
from radweave.serve.metrics import Metrics
from radweave.serve.room import NoRoomError, Room
from radweave.serve.settings import Settings

if TYPE_CHECKING:
    from radweave.hospital.asking import Archive
    from radweave.hospital.receiver import Receiver
    from radweave.serve.arrivals import Clean, Submit

_QUOTING: Final = ("pynetdicom", "dicomweb_client", "pydicom", "highdicom", "urllib3", "radweave.hospital",
                   "radweave.serve.events")  # fmt: skip
"""What logs by the standard library. A log of the others may quote a header or an address with a patient's id."""


class Joined:
    """What a plan asks for, and nothing where it asks for nothing."""

    def __init__(
        self, plan: Plan, settings: Settings, database: Database, metrics: Metrics, submit: Submit, disk: Room
    ) -> None:
        """Nothing runs before ``start``; ``refuse_unusable`` has seen the plan."""
        self._parts: list[_Part] = []
        if plan.is_empty:
            return
        quiet(*_QUOTING)
        from radweave.hospital.receiver import Receiver
        from radweave.serve.arrivals import Arrivals
        from radweave.serve.poller import Poller
        from radweave.serve.seeker import Seeker
        from radweave.serve.sender import Sender

        receiver = None
        if plan.receive is not None:
            receiver = Receiver(plan.receive, settings.incoming, metrics.count, disk.of_device)
            self._parts.append(receiver)
        asked = [(query, _archive(query, plan, receiver, metrics)) for query in plan.query]
        if plan.receive is not None or plan.query:
            routes = {query.name: query.poll.routes for query in plan.query if query.poll is not None}
            quiet_s, clean = 0.0, None
            if plan.receive is not None:
                routes[""], quiet_s, clean = plan.receive.routes, plan.receive.quiet_s, _cleaner(plan.receive)
            seeking = [one for one in asked if one[0].priors is not None]
            seeker = Seeker(seeking, settings.asked / "priors", metrics.count) if seeking else None
            self._parts.append(Arrivals(routes, quiet_s, settings.incoming, submit, metrics.count, seeker, clean))

        def room() -> int:
            try:
                disk.refuse(1)
            except NoRoomError:
                return 0
            with database.reading() as connection:
                return settings.limits.waiting - store.queued(connection) - sum(1 for _ in settings.incoming.iterdir())

        for query, archive in asked:
            if query.poll is not None:
                aside = settings.asked / "polls"
                self._parts.append(Poller(query, archive, database, settings.incoming, aside, room, metrics.count))
        if plan.send:
            self._parts.append(Sender(database, plan.send, metrics))

    def start(self) -> None:
        """Begin to listen, to ask, to sort and to send.

        Raises:
            InputError: if the port is taken, or a certificate cannot be used.
        """
        for part in self._parts:
            part.start()

    def stop(self) -> None:
        """Stop all at once: each may wait a while for its peer."""
        if self._parts:
            with ThreadPoolExecutor(len(self._parts)) as at_once:
                for stopped in [at_once.submit(part.stop) for part in self._parts]:
                    stopped.result()


class _Part(Protocol):
    def start(self) -> None: ...
    def stop(self) -> None: ...


def _archive(query: Query, plan: Plan, receiver: Receiver | None, metrics: Metrics) -> Archive:
    from radweave.hospital.asking_dicom import DicomArchive
    from radweave.hospital.asking_web import WebArchive

    if query.web is not None:
        return WebArchive(query.web, metrics.count)
    assert query.dicom is not None
    return DicomArchive(query.dicom, metrics.count, receiver, "" if plan.receive is None else plan.receive.ae_title)


def refuse_unusable(plan: Plan) -> None:
    """Look at all that would stop a server after it has begun.

    Raises:
        InputError: if the extra is not installed, the port is taken, or a certificate, key or password cannot be used.
    """
    if plan.is_empty:
        return
    refuse_without("hospital", "this plan", field="--hospital")
    from radweave.hospital.sending import server_context

    if plan.receive is not None:
        if plan.receive.tls is not None:
            server_context(plan.receive.tls)
        _cleaner(plan.receive)
        _refuse_taken(plan.receive.host, plan.receive.port)
    for target in plan.send:
        _refuse_unusable(target.web, target.dicom, f"send.{target.name}")
    for query in plan.query:
        _refuse_unusable(query.web, query.dicom, f"query.{query.name}")


def _refuse_unusable(web: Web | None, dicom: Dicom | None, field: str) -> None:
    from radweave.hospital.sending import client_context

    if dicom is not None and dicom.tls is not None:
        client_context(dicom.tls)
    for file in (web.password_file, web.authority) if web is not None else ():
        if file is not None and not file.is_file():
            raise InputError("no such file", file=file, field=field)


def _cleaner(plan: Receive) -> Clean | None:
    """What takes the patient out of a file, where the plan asks for it.

    Raises:
        InputError: if the key cannot be used.
    """
    if plan.deidentify is None:
        return None
    from radweave.data.deidentify.folder import deidentify_file
    from radweave.data.deidentify.key import read_key

    key, burned_in = read_key(plan.deidentify.key_file), plan.deidentify.burned_in
    return lambda file: deidentify_file(file, key, burned_in=burned_in).data


def _refuse_taken(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise InputError(f"cannot listen: {error.strerror}", field="receive.port", got=port) from None
