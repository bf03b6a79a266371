"""Send an object to an archive, by DICOMweb (STOW-RS) or C-STORE, and return its receipt.

Nothing is sent to a server whose certificate is not signed by the authority of the plan (or one of the system).
"""

from __future__ import annotations

import io
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import requests
from dicomweb_client.api import DICOMwebClient
from pydicom import dcmread
from pydicom.dataset import Dataset
from pynetdicom import AE, evt
from pynetdicom.association import Association
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool

from radweave.core.errors import InputError
from radweave.workstation.archive import (
    CONNECT_S,
    MOST_BYTES,
    ROW_BYTES,
    NotAnsweredError,
    QueryLimits,
    close_at_deadline,
)
from radweave.workstation.associations import LONGEST_MESSAGE, bound
from radweave.workstation.hospital_plan import Dicom, Target, Tls, Web

TIMEOUT_S: Final = 60
"""Seconds that an archive may be silent."""
LONGEST_S: Final = 300.0
"""Seconds for sending an object."""
_RECEIPT_ROWS: Final = 64
"""Length limit of a receipt, in rows of an answer."""
_OBJECTS: Final = 'multipart/related; type="application/dicom"; transfer-syntax=*'
_STORED: Final = 0x0000
_STORED_WITH_WARNING: Final = (0xB000, 0xB006, 0xB007)
"""PS3.4 Table B.2-1: stored with a warning."""


class NotStoredError(Exception):
    """The archive is unreachable, or did not store the object. ``str`` is for users and quotes no value."""


def send(target: Target, data: bytes, is_stopped: Callable[[], bool] = bool) -> str:
    """Send an object and return the receipt in words. The connection is closed when late, or once ``is_stopped``.

    Raises:
        NotStoredError: if the archive sends no receipt.
    """
    dataset = dcmread(io.BytesIO(data))
    limits = QueryLimits(time.monotonic() + LONGEST_S, _RECEIPT_ROWS, is_stopped)
    try:
        if target.web is not None:
            return _store_web(target.web, dataset, limits)
        assert target.dicom is not None
        return _store_dicom(target.dicom, dataset, limits)
    except (NotAnsweredError, NotStoredError) as error:
        raise NotStoredError(limits.over or str(error)) from None


@contextmanager
def session_for(web: Web, limits: QueryLimits) -> Iterator[requests.Session]:
    """A session with the plan's credentials, without a proxy of the environment.

    It follows no redirection, accepts any transfer syntax, and bounds the bytes and seconds of each answer.

    Raises:
        NotStoredError: if the password cannot be read.
    """
    with close_at_deadline(limits) as take, _Session(limits) as session:
        session.trust_env = False
        for scheme in ("http://", "https://"):
            session.mount(scheme, _Adapter(limits, take))
        if web.authority is not None:
            session.verify = str(web.authority)
        if web.user is not None:
            try:
                password = "" if web.password_file is None else web.password_file.read_text(encoding="utf-8").strip()
            except OSError:
                raise NotStoredError("the password file cannot be read") from None
            session.auth = (web.user, password)
        yield session


class _Adapter(HTTPAdapter):
    """Registers each connection with the query's deadline."""

    def __init__(self, limits: QueryLimits, take: Callable[[socket.socket], None]) -> None:
        self._asked, self._take = limits, take
        super().__init__()

    def get_connection_with_tls_context(self, *args: Any, **more: Any) -> HTTPConnectionPool:
        pool = super().get_connection_with_tls_context(*args, **more)
        limits, take = self._asked, self._take

        class Taken(pool.ConnectionCls):  # type: ignore[misc,name-defined]
            def connect(self) -> None:
                super().connect()
                take(self.sock)
                self.sock.settimeout(limits.left_s)  # until here: the limit of connecting

        pool.ConnectionCls = Taken
        return pool


class _Session(requests.Session):
    """The session of ``session_for``."""

    def __init__(self, limits: QueryLimits) -> None:
        super().__init__()
        self._asked_for = limits

    def request(self, method: str, url: str, **more: Any) -> requests.Response:  # type: ignore[override]
        headers = dict(more.pop("headers", None) or {})
        most = self._asked_for.most * ROW_BYTES
        if headers.get("Accept", "").startswith("multipart/related"):
            headers["Accept"], most = _OBJECTS, MOST_BYTES
        left = self._asked_for.left_s
        more |= {"headers": headers, "stream": True, "timeout": (min(CONNECT_S, left), left), "allow_redirects": False}
        answer = super().request(method, url, **more)
        if answer.is_redirect:  # the plan names the only server
            raise requests.TooManyRedirects
        whole = answer.iter_content

        def bounded(chunk_size: int | None = 1, decode_unicode: bool = False) -> Iterator[bytes]:
            total = 0
            for chunk in whole(chunk_size):
                total += len(chunk)
                if total > most:
                    raise NotAnsweredError("the archive's answer is too long")
                self._asked_for.refuse_late()
                yield chunk

        answer.iter_content = bounded  # type: ignore[method-assign]
        return answer


def failure_words(error: Exception) -> str:
    """The failure of a request to an archive, without a word of its answer."""
    if isinstance(error, requests.HTTPError):
        status = error.response.status_code if error.response is not None else "no status"
        return f"the archive answers with HTTP {status}"
    if isinstance(error, requests.RequestException):
        return f"the archive cannot be reached ({type(error).__name__})"
    return f"the archive's answer cannot be read ({type(error).__name__})"


def _store_web(web: Web, dataset: Dataset, limits: QueryLimits) -> str:
    with session_for(web, limits) as session:
        try:
            client = DICOMwebClient(web.url, session=session)
            client.set_http_retry_params(retry=False)  # the outbox retries without delaying other archives
            answer = client.store_instances([dataset])
        except NotAnsweredError:
            raise
        except Exception as error:  # an invalid answer may fail in any way
            raise NotStoredError(failure_words(error)) from None
    stored = {str(item.get("ReferencedSOPInstanceUID", "")) for item in answer.get("ReferencedSOPSequence", ())}
    if str(dataset.SOPInstanceUID) not in stored:
        failed = [item.get("FailureReason") for item in answer.get("FailedSOPSequence", ())]
        raise NotStoredError(f"the archive did not keep it (reason {failed[0] if failed else 'not stated'})")
    return "STOW-RS: kept"


class _LateHandshake(ssl.SSLContext):
    """Delays the handshake to the first read, in the connection's own thread.

    pynetdicom would shake hands in the accepting thread, where a silent client would block all others.
    """

    def wrap_socket(self, sock: socket.socket, server_side: bool = False, **more: Any) -> ssl.SSLSocket:  # type: ignore[override]
        sock.settimeout(TIMEOUT_S)
        return super().wrap_socket(sock, server_side=server_side, **{**more, "do_handshake_on_connect": False})


def client_context(tls: Tls) -> ssl.SSLContext:
    """The TLS context of outgoing connections, with the authority of the other side.

    Raises:
        InputError: if a file is missing or no PEM.
    """
    return _loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), tls)


def server_context(tls: Tls) -> ssl.SSLContext:
    """The TLS context of incoming connections; clients must present a certificate.

    Raises:
        InputError: if a file is missing or no PEM.
    """
    context = _loaded(_LateHandshake(ssl.PROTOCOL_TLS_SERVER), tls)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _loaded(context: ssl.SSLContext, tls: Tls) -> ssl.SSLContext:
    try:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_verify_locations(cafile=tls.authority)
        context.load_cert_chain(tls.certificate, tls.key)
    except (OSError, ssl.SSLError):
        raise InputError("the certificate, its key or the authority cannot be used", field="tls") from None
    return context


@contextmanager
def associated(
    entity: AE,
    peer: Dicom,
    limits: QueryLimits,
    most: float,
    *,
    silent_s: float,
    handlers: Sequence[Any] = (),
    roles: Any = None,
) -> Iterator[Association]:
    """Request an association of ``peer``, which may refuse; release it afterwards, or close it at the deadline.

    At most ``most`` bytes are read from it.
    """
    with close_at_deadline(limits) as take:

        def connected(event: evt.Event) -> None:
            connection = event.assoc.dul.socket
            assert connection is not None
            assert connection.socket is not None
            take(connection.socket)
            bound(event.assoc, most + LONGEST_MESSAGE)

        left = min(silent_s, limits.left_s)
        entity.acse_timeout = entity.dimse_timeout = entity.network_timeout = left
        entity.connection_timeout = min(left, CONNECT_S)
        association = entity.associate(
            peer.host, peer.port, ae_title=peer.ae_title, ext_neg=roles,
            tls_args=None if peer.tls is None else (client_context(peer.tls), peer.host),
            evt_handlers=[(evt.EVT_CONN_OPEN, connected), *handlers],
        )  # fmt: skip
        try:
            yield association
        finally:
            association.acse_timeout = CONNECT_S
            if association.is_established:
                association.release()


def _store_dicom(peer: Dicom, dataset: Dataset, limits: QueryLimits) -> str:
    entity = AE(ae_title=peer.calling)
    entity.add_requested_context(dataset.SOPClassUID, dataset.file_meta.TransferSyntaxUID)
    with associated(entity, peer, limits, _RECEIPT_ROWS * ROW_BYTES, silent_s=TIMEOUT_S) as association:
        if not association.is_established:
            why = "refused the association" if association.is_rejected else "cannot be reached or takes no such kind"
            raise NotStoredError(f"the archive {why}")
        try:
            status = association.send_c_store(dataset).get("Status")
        except Exception as error:
            raise NotStoredError(f"the object was not sent ({type(error).__name__})") from None
    if status != _STORED and status not in _STORED_WITH_WARNING:
        shown = "no status" if status is None else f"status 0x{status:04X}"
        raise NotStoredError(f"the archive did not keep it ({shown})")
    return f"C-STORE: status 0x{status:04X}"
