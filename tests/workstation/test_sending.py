"""An object counts as stored only with a receipt of the archive."""

from __future__ import annotations

import io
import ssl
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydicom import dcmread
from pydicom.dataset import Dataset

from radweave.workstation import sending
from radweave.workstation.archive import QueryLimits
from radweave.workstation.formats import FORMATS
from radweave.workstation.hospital_plan import Dicom, Target, Tls, Web
from radweave.workstation.sending import NotStoredError, send, session_for
from tests.workstation.reports import finished

WEB = Target(name="a", formats=("sr-basic",), web=Web(url="http://archive.example"))
PEER = Target(name="a", formats=("sr-basic",), dicom=Dicom(host="127.0.0.1", port=1, ae_title="A"))


@pytest.fixture(scope="module")
def data() -> bytes:
    return FORMATS["sr-basic"].bytes_of(finished())


def receipt_for(*stored: str) -> Dataset:
    answer = Dataset()
    answer.ReferencedSOPSequence = []
    for uid in stored:
        item = Dataset()
        item.ReferencedSOPInstanceUID = uid
        answer.ReferencedSOPSequence.append(item)
    return answer


def test_a_receipt_of_the_web_names_the_instance(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    own = str(dcmread(io.BytesIO(data)).SOPInstanceUID)

    def answering(*stored: str) -> None:
        client = SimpleNamespace(
            set_http_retry_params=lambda retry: None, store_instances=lambda objects: receipt_for(*stored)
        )
        monkeypatch.setattr(sending, "DICOMwebClient", lambda url, session: client)

    answering(own)
    assert send(WEB, data) == "STOW-RS: kept"
    for stored in ((), ("1.2.3",)):
        answering(*stored)
        with pytest.raises(NotStoredError, match="did not keep it"):
            send(WEB, data)


@pytest.mark.parametrize(("status", "is_kept"), [(0x0000, True), (0xB000, True), (0xA700, False), (None, False)])
def test_a_receipt_of_c_store_is_a_status(
    status: int | None, is_kept: bool, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = {} if status is None else {"Status": status}
    association = SimpleNamespace(is_established=True, send_c_store=lambda dataset: answer, release=lambda: None)
    monkeypatch.setattr(sending.AE, "associate", lambda *arguments, **named: association)
    if is_kept:
        assert send(PEER, data) == f"C-STORE: status 0x{status:04X}"
    else:
        with pytest.raises(NotStoredError, match="did not keep it"):
            send(PEER, data)


def test_a_session_uses_no_proxy_of_the_environment_and_the_plan_s_authority(tmp_path: Any) -> None:
    (tmp_path / "password").write_text("secret\n")
    web = Web(url="https://a", user="u", password_file=tmp_path / "password", authority=tmp_path / "ca.pem")
    limits = QueryLimits(time.monotonic() + 60, 1)
    with session_for(web, limits) as session:
        assert not session.trust_env
        assert session.verify == str(tmp_path / "ca.pem")
        assert session.auth == ("u", "secret")
    without = web.model_copy(update={"password_file": tmp_path / "none"})
    with pytest.raises(NotStoredError, match="password file"), session_for(without, limits):
        pass


def test_both_sides_of_a_connection_need_a_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with certificates and connections: `tests/workstation/test_tls.py`."""
    monkeypatch.setattr(sending, "_loaded", lambda context, tls: context)
    none = Tls(certificate=Path("a"), key=Path("b"), authority=Path("c"))
    assert sending.server_context(none).verify_mode is ssl.CERT_REQUIRED
    assert sending.client_context(none).verify_mode is ssl.CERT_REQUIRED
    assert sending.client_context(none).check_hostname
