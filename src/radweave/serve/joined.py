"""All that joins a workstation to a hospital's systems: the receiver, what sorts its objects, the sender."""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING, Final

from radweave.base.errors import InputError
from radweave.base.extras import refuse_without
from radweave.hospital.plan import Plan, Receive
from radweave.serve.database import Database
from radweave.serve.events import JsonHandler
from radweave.serve.metrics import Metrics
from radweave.serve.settings import Settings

if TYPE_CHECKING:
    from radweave.hospital.receiver import Receiver
    from radweave.serve.arrivals import Arrivals, Clean, Submit
    from radweave.serve.sender import Sender

_QUOTING: Final = ("pynetdicom", "dicomweb_client", "pydicom", "highdicom", "urllib3")
"""Libraries whose log may quote a header or an address with a patient's id."""


class Joined:
    """What a plan asks for, and nothing where it asks for nothing."""

    def __init__(self, plan: Plan, settings: Settings, database: Database, metrics: Metrics, submit: Submit) -> None:
        """Nothing runs before ``start``; ``refuse_unusable`` has seen the plan."""
        self._receiver: Receiver | None = None
        self._arrivals: Arrivals | None = None
        self._sender: Sender | None = None
        if plan.receive is None and not plan.send:
            return
        _quiet()
        from radweave.hospital.receiver import Receiver
        from radweave.serve.arrivals import Arrivals
        from radweave.serve.sender import Sender

        if plan.receive is not None:
            self._receiver = Receiver(plan.receive, settings.incoming, metrics.count)
            self._arrivals = Arrivals(plan.receive, settings.incoming, submit, metrics.count, _cleaner(plan.receive))
        if plan.send:
            self._sender = Sender(database, plan.send, metrics)

    def start(self) -> None:
        """Begin to listen, to sort and to send.

        Raises:
            InputError: if the port is taken, or a certificate cannot be used.
        """
        for part in (self._receiver, self._arrivals, self._sender):
            if part is not None:
                part.start()

    def stop(self) -> None:
        for part in (self._receiver, self._arrivals, self._sender):
            if part is not None:
                part.stop()


def refuse_unusable(plan: Plan) -> None:
    """Look at all that would stop a server after it has begun.

    Raises:
        InputError: if the extra is not installed, the port is taken, or a certificate, key or password cannot be used.
    """
    if plan.receive is None and not plan.send:
        return
    refuse_without("hospital", "this plan", field="--hospital")
    from radweave.hospital.sending import client_context, server_context

    if plan.receive is not None:
        if plan.receive.tls is not None:
            server_context(plan.receive.tls)
        _cleaner(plan.receive)
        _refuse_taken(plan.receive.host, plan.receive.port)
    for target in plan.send:
        if target.dicom is not None and target.dicom.tls is not None:
            client_context(target.dicom.tls)
        for file in (target.web.password_file, target.web.authority) if target.web is not None else ():
            if file is not None and not file.is_file():
                raise InputError("no such file", file=file, field=f"send.{target.name}")


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


def _quiet() -> None:
    for name in _QUOTING:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [JsonHandler(logging.ERROR)], False
