"""Send an object to an archive, by DICOMweb (STOW-RS) or by C-STORE, and bring back its receipt.

Both say of each object whether it was kept. Nothing is sent to a server whose certificate is not signed by the
authority that the plan names (or the system knows).
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
from radweave.workstation.archive import CONNECT_S, MOST_BYTES, ROW_BYTES, Asked, NotAnsweredError, cut_late
from radweave.workstation.associations import LONGEST_MESSAGE, bound
from radweave.workstation.hospital_plan import Dicom, Target, Tls, Web

TIMEOUT_S: Final = 60
"""How long an archive may say nothing."""
LONGEST_S: Final = 300.0
"""How long it may take to send an object."""
_RECEIPT_ROWS: Final = 64
"""A receipt may be as long as an answer with so many rows."""
_OBJECTS: Final = 'multipart/related; type="application/dicom"; transfer-syntax=*'
_KEPT: Final = 0x0000
_WARNED: Final = (0xB000, 0xB006, 0xB007)
"""PS3.4 Table B.2-1: kept, with a remark."""


class NotKeptError(Exception):
    """The archive is away, or did not keep the object. ``str`` is for users and names no value of it."""


def send(target: Target, data: bytes, is_stopped: Callable[[], bool] = bool) -> str:
    """Send an object; the receipt in words. The connection is cut where it takes too long, or once ``is_stopped``.

    Raises:
        NotKeptError: if there is no receipt for it.
    """
    dataset = dcmread(io.BytesIO(data))
    asked = Asked(time.monotonic() + LONGEST_S, _RECEIPT_ROWS, is_stopped)
    try:
        if target.web is not None:
            return _store_web(target.web, dataset, asked)
        assert target.dicom is not None
        return _store_dicom(target.dicom, dataset, asked)
    except (NotAnsweredError, NotKeptError) as error:
        raise NotKeptError(asked.over or str(error)) from None


@contextmanager
def session_for(web: Web, asked: Asked) -> Iterator[requests.Session]:
    """A session with the plan's credentials, through no proxy of the environment.

    It follows no redirection, asks for objects as they are kept, and reads no answer longer than may be: neither in
    bytes nor in seconds.

    Raises:
        NotKeptError: if the password cannot be read.
    """
    with cut_late(asked) as take, _Session(asked) as session:
        session.trust_env = False
        for scheme in ("http://", "https://"):
            session.mount(scheme, _Adapter(asked, take))
        if web.authority is not None:
            session.verify = str(web.authority)
        if web.user is not None:
            try:
                password = "" if web.password_file is None else web.password_file.read_text(encoding="utf-8").strip()
            except OSError:
                raise NotKeptError("the password file cannot be read") from None
            session.auth = (web.user, password)
        yield session


class _Adapter(HTTPAdapter):
    """Hands on each connection as soon as it stands."""

    def __init__(self, asked: Asked, take: Callable[[socket.socket], None]) -> None:
        self._asked, self._take = asked, take
        super().__init__()

    def get_connection_with_tls_context(self, *args: Any, **more: Any) -> HTTPConnectionPool:
        pool = super().get_connection_with_tls_context(*args, **more)
        asked, take = self._asked, self._take

        class Taken(pool.ConnectionCls):  # type: ignore[misc,name-defined]
            def connect(self) -> None:
                super().connect()
                take(self.sock)
                self.sock.settimeout(asked.left_s)  # the limit until now was that of connecting

        pool.ConnectionCls = Taken
        return pool


class _Session(requests.Session):
    """See ``session_for``."""

    def __init__(self, asked: Asked) -> None:
        super().__init__()
        self._asked_for = asked

    def request(self, method: str, url: str, **more: Any) -> requests.Response:  # type: ignore[override]
        headers = dict(more.pop("headers", None) or {})
        most = self._asked_for.most * ROW_BYTES
        if headers.get("Accept", "").startswith("multipart/related"):
            headers["Accept"], most = _OBJECTS, MOST_BYTES
        left = self._asked_for.left_s
        more |= {"headers": headers, "stream": True, "timeout": (min(CONNECT_S, left), left), "allow_redirects": False}
        answer = super().request(method, url, **more)
        if answer.is_redirect:  # nothing goes to a place that the plan does not name
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


def _store_web(web: Web, dataset: Dataset, asked: Asked) -> str:
    with session_for(web, asked) as session:
        try:
            client = DICOMwebClient(web.url, session=session)
            client.set_http_retry_params(retry=False)  # the outbox tries again, without holding up other archives
            answer = client.store_instances([dataset])
        except NotAnsweredError:
            raise
        except requests.HTTPError as error:
            status = error.response.status_code if error.response is not None else "no status"
            raise NotKeptError(f"the archive answers with HTTP {status}") from None
        except requests.RequestException as error:
            raise NotKeptError(f"the archive cannot be reached ({type(error).__name__})") from None
        except Exception as error:  # an answer that is no DICOM may fail in any way
            raise NotKeptError(f"the archive's answer cannot be read ({type(error).__name__})") from None
    kept = {str(item.get("ReferencedSOPInstanceUID", "")) for item in answer.get("ReferencedSOPSequence", ())}
    if str(dataset.SOPInstanceUID) not in kept:
        failed = [item.get("FailureReason") for item in answer.get("FailedSOPSequence", ())]
        raise NotKeptError(f"the archive did not keep it (reason {failed[0] if failed else 'not stated'})")
    return "STOW-RS: kept"


class _LateHandshake(ssl.SSLContext):
    """Shakes hands when a connection is read first, by the thread that serves it.

    pynetdicom would do so in the one that accepts connections, so that who connects and says nothing keeps all others
    waiting.
    """

    def wrap_socket(self, sock: socket.socket, server_side: bool = False, **more: Any) -> ssl.SSLSocket:  # type: ignore[override]
        sock.settimeout(TIMEOUT_S)
        return super().wrap_socket(sock, server_side=server_side, **{**more, "do_handshake_on_connect": False})


def client_context(tls: Tls) -> ssl.SSLContext:
    """What a connection of ours is encrypted with, and who may answer it.

    Raises:
        InputError: if a file is missing or no PEM.
    """
    return _loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), tls)


def server_context(tls: Tls) -> ssl.SSLContext:
    """What connections to us are encrypted with; the other side must bear a certificate too.

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
    asked: Asked,
    most: float,
    *,
    silent_s: float,
    handlers: Sequence[Any] = (),
    roles: Any = None,
) -> Iterator[Association]:
    """What comes of asking ``peer`` for an association, which may be none; it is released, or cut with ``asked``.

    Not more than ``most`` bytes are read of it.
    """
    with cut_late(asked) as take:

        def connected(event: evt.Event) -> None:
            connection = event.assoc.dul.socket
            assert connection is not None
            assert connection.socket is not None
            take(connection.socket)
            bound(event.assoc, most + LONGEST_MESSAGE)

        left = min(silent_s, asked.left_s)
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


def _store_dicom(peer: Dicom, dataset: Dataset, asked: Asked) -> str:
    entity = AE(ae_title=peer.calling)
    entity.add_requested_context(dataset.SOPClassUID, dataset.file_meta.TransferSyntaxUID)
    with associated(entity, peer, asked, _RECEIPT_ROWS * ROW_BYTES, silent_s=TIMEOUT_S) as association:
        if not association.is_established:
            why = "refused the association" if association.is_rejected else "cannot be reached or takes no such kind"
            raise NotKeptError(f"the archive {why}")
        try:
            status = association.send_c_store(dataset).get("Status")
        except Exception as error:
            raise NotKeptError(f"the object was not sent ({type(error).__name__})") from None
    if status != _KEPT and status not in _WARNED:
        shown = "no status" if status is None else f"status 0x{status:04X}"
        raise NotKeptError(f"the archive did not keep it ({shown})")
    return f"C-STORE: status 0x{status:04X}"
