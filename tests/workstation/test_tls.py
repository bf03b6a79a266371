"""Encrypted ways in and out: who bears no certificate of the plan's authority neither sends nor receives."""

from __future__ import annotations

import socket
import ssl
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from radweave.core.errors import InputError
from radweave.workstation.archive import NotAnsweredError, QueryLimits
from radweave.workstation.archive_clients import DicomArchive
from radweave.workstation.formats import FORMATS
from radweave.workstation.hospital_plan import Dicom, QueriedDicom, Receive, Target, Tls
from radweave.workstation.receiver import Receiver
from radweave.workstation.sending import NotStoredError, client_context, send, server_context
from tests.image_files import CANARY
from tests.workstation.archive import needs
from tests.workstation.hospitals import Archive, image, listening, push
from tests.workstation.load import free_port
from tests.workstation.query_archive import QueryArchive, dicom
from tests.workstation.reports import finished

pytestmark = pytest.mark.programs


def certificates(folder: Path, name: str) -> Tls:
    """An authority of its own, and a certificate of 127.0.0.1 that it has signed."""
    needs("openssl")
    folder.mkdir(exist_ok=True)
    ca, key, pem, ask = (folder / f"{name}{end}" for end in (".ca.pem", ".key", ".pem", ".csr"))
    ca_key, names = folder / f"{name}.ca.key", folder / f"{name}.ext"
    names.write_text("subjectAltName=IP:127.0.0.1")
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for words in (
        ["req", "-x509", *curve, "-keyout", ca_key, "-out", ca, "-days", "2", "-subj", f"/CN={name} authority"],
        ["req", *curve, "-keyout", key, "-out", ask, "-subj", f"/CN={name}"],
        ["x509", "-req", "-in", ask, "-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-out", pem, "-days", "2",
         "-extfile", names],
    ):  # fmt: skip
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)
    return Tls(certificate=pem, key=key, authority=ca)


def test_only_peers_with_a_certificate_of_the_authority_may_send(tmp_path: Path) -> None:
    own, foreign = certificates(tmp_path, "ours"), certificates(tmp_path, "foreign")
    counted: list[str] = []
    plan = Receive(ae_title="RADWEAVE", port=free_port(), peers={"SCANNER": "127.0.0.1"}, tls=own)
    receiver = Receiver(plan, tmp_path / "incoming", counted.append)
    receiver.start()
    path = image(tmp_path / "a.dcm")
    try:
        assert push(plan.port, path, tls=(client_context(own), "127.0.0.1")) == [0x0000]
        assert push(plan.port, path) == ["refused"]  # not encrypted
        liar = client_context(foreign.model_copy(update={"authority": own.authority}))
        assert push(plan.port, path, tls=(liar, "127.0.0.1")) == ["refused"]
        assert push(plan.port, path, tls=(client_context(foreign), "127.0.0.1")) == ["refused"]
        anonymous = ssl.create_default_context(cafile=str(own.authority))
        assert push(plan.port, path, tls=(anonymous, "127.0.0.1")) == ["refused"]
        with ExitStack() as silent:  # who connects and says nothing keeps nobody waiting
            for _ in range(4):
                silent.enter_context(socket.create_connection(("127.0.0.1", plan.port)))
            assert push(plan.port, path, tls=(client_context(own), "127.0.0.1")) == [0x0000]
    finally:
        receiver.stop()
    assert counted.count("objects_received") == 2
    assert len(list((tmp_path / "incoming").rglob("*.dcm"))) == 2


def test_nothing_is_sent_to_an_archive_with_a_foreign_certificate(tmp_path: Path) -> None:
    own, foreign = certificates(tmp_path, "ours"), certificates(tmp_path, "foreign")
    data = FORMATS["sr-basic"].bytes_of(finished())

    def target(port: int) -> Target:
        dicom = Dicom(host="127.0.0.1", port=port, ae_title="ARCHIVE", tls=own)
        return Target(name="archive", formats=("sr-basic",), dicom=dicom)

    with listening(Archive(), ssl_context=server_context(own)) as archive:
        assert send(target(archive.port), data) == "C-STORE: status 0x0000"
        assert len(archive.came) == 1
    for context in (server_context(foreign), None):
        with listening(Archive(), **({} if context is None else {"ssl_context": context})) as archive:
            with pytest.raises(NotStoredError):
                send(target(archive.port), data)
            assert archive.came == {}


def test_an_invalid_certificate_is_refused_before_listening(tmp_path: Path) -> None:
    (tmp_path / "no.pem").write_text("no certificate")
    none = Tls(certificate=tmp_path / "no.pem", key=tmp_path / "no.pem", authority=tmp_path / "no.pem")
    with pytest.raises(InputError, match="cannot be used"):
        server_context(none)


def test_an_archive_with_tls_is_never_queried_in_plain_text(tmp_path: Path) -> None:
    own, foreign = certificates(tmp_path, "ours"), certificates(tmp_path, "foreign")
    counts: dict[str, int] = {}
    with dicom(QueryArchive(image(tmp_path / "a.dcm")), ssl_context=server_context(own)) as archive:
        for name, tls in {"ours": own, "foreign": foreign, "none": None}.items():
            peer = QueriedDicom(host="127.0.0.1", port=archive.port, ae_title="ARCHIVE", tls=tls)
            try:
                limits = QueryLimits(time.monotonic() + 20, 10)
                counts[name] = len(DicomArchive(peer, lambda *_: None).studies({"PatientID": CANARY}, limits))
            except NotAnsweredError:
                counts[name] = -1
    assert counts == {"ours": 1, "foreign": -1, "none": -1}
