"""Send an object to an archive, by DICOMweb (STOW-RS) or by C-STORE, and bring back its receipt.

Both say of each object whether it was kept. Nothing is sent to a server whose certificate is not signed by the
authority that the plan names (or the system knows).
"""

from __future__ import annotations

import io
import socket
import ssl
from typing import Any, Final

import requests
from dicomweb_client.api import DICOMwebClient
from pydicom import dcmread
from pydicom.dataset import Dataset
from pynetdicom import AE

from radweave.base.errors import InputError
from radweave.hospital.plan import Dicom, Target, Tls, Web

TIMEOUT_S: Final = 60
_KEPT: Final = 0x0000
_WARNED: Final = (0xB000, 0xB006, 0xB007)
"""PS3.4 Table B.2-1: kept, with a remark."""


class NotKeptError(Exception):
    """The archive is away, or did not keep the object. ``str`` is for users and names no value of it."""


def send(target: Target, data: bytes) -> str:
    """Send an object; the receipt in words.

    Raises:
        NotKeptError: if there is no receipt for it.
    """
    dataset = dcmread(io.BytesIO(data))
    if target.web is not None:
        return _store_web(target.web, dataset)
    assert target.dicom is not None
    return _store_dicom(target.dicom, dataset)


def session_for(web: Web) -> requests.Session:
    """A session with the plan's credentials, through no proxy of the environment.

    Raises:
        NotKeptError: if the password cannot be read.
    """
    session = requests.Session()
    session.trust_env = False
    session.max_redirects = 0  # nothing goes to a place that the plan does not name
    if web.authority is not None:
        session.verify = str(web.authority)
    if web.user is not None:
        try:
            password = "" if web.password_file is None else web.password_file.read_text(encoding="utf-8").strip()
        except OSError:
            raise NotKeptError("the password file cannot be read") from None
        session.auth = (web.user, password)
    return session


def _store_web(web: Web, dataset: Dataset) -> str:
    with session_for(web) as session:
        try:
            client = DICOMwebClient(web.url, session=session)
            client.set_http_retry_params(retry=False)  # the outbox tries again, without holding up other archives
            answer = client.store_instances([dataset])
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


def _store_dicom(peer: Dicom, dataset: Dataset) -> str:
    entity = AE(ae_title=peer.calling)
    entity.acse_timeout = entity.dimse_timeout = entity.network_timeout = TIMEOUT_S
    entity.connection_timeout = TIMEOUT_S
    entity.add_requested_context(dataset.SOPClassUID, dataset.file_meta.TransferSyntaxUID)
    tls = None if peer.tls is None else (client_context(peer.tls), peer.host)
    association = entity.associate(peer.host, peer.port, ae_title=peer.ae_title, tls_args=tls)
    if not association.is_established:
        why = "refused the association" if association.is_rejected else "cannot be reached or does not take this kind"
        raise NotKeptError(f"the archive {why}")
    try:
        answer = association.send_c_store(dataset)
    except Exception as error:
        raise NotKeptError(f"the object was not sent ({type(error).__name__})") from None
    finally:
        association.release()
    status = answer.get("Status")
    if status != _KEPT and status not in _WARNED:
        shown = "no status" if status is None else f"status 0x{status:04X}"
        raise NotKeptError(f"the archive did not keep it ({shown})")
    return f"C-STORE: status 0x{status:04X}"
