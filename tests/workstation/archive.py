"""An Orthanc of our own: in a temporary folder, on ports that were free, with a password, ended by its process id."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
from dicomweb_client.api import DICOMwebClient

from tests.workstation.load import free_port

PLUGINS = ("/usr/share/orthanc/plugins/libOrthancDicomWeb.so", "/usr/lib/orthanc/libOrthancDicomWeb.so")
USER, PASSWORD = "tester", "only-for-this-test"
AET = "ARCHIVE"
START_S = 60


def needs(*programs: str) -> None:
    """Skip the test where a program is not there."""
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (make test-hospital installs them)")


@dataclass(frozen=True)
class Archive:
    """A running archive."""

    http: int
    dicom: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http}"

    def session(self) -> requests.Session:
        session = requests.Session()
        session.auth = (USER, PASSWORD)
        session.trust_env = False
        return session

    def web(self) -> DICOMwebClient:
        return DICOMwebClient(f"{self.url}/dicom-web", session=self.session())

    def get(self, path: str) -> Any:
        answer = self.session().get(f"{self.url}{path}", timeout=10)
        answer.raise_for_status()
        return answer.json()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def start(folder: Path, *, http: int | None = None, dicom: int | None = None, **more: Any) -> Archive:
    """Start an archive whose data lie in ``folder``; on the same ports again, where it is started again."""
    needs("Orthanc")
    folder.mkdir(parents=True, exist_ok=True)
    http, dicom = http or free_port(), dicom or free_port()
    config = {
        "Name": "test", "StorageDirectory": str(folder / "data"), "IndexDirectory": str(folder / "data"),
        "HttpPort": http, "DicomPort": dicom, "DicomAet": AET, "RemoteAccessAllowed": False,
        "AuthenticationEnabled": True, "RegisteredUsers": {USER: PASSWORD}, "DicomCheckCalledAet": True,
        "DicomAlwaysAllowFind": True, "DicomAlwaysAllowMove": True, "OverwriteInstances": False,
        "Plugins": [path for path in PLUGINS if Path(path).is_file()][:1],
        "DicomWeb": {"Enable": True, "Root": "/dicom-web/"},
        **more,
    }  # fmt: skip
    (folder / "orthanc.json").write_text(json.dumps(config))
    with (folder / "orthanc.log").open("ab") as log:
        process = subprocess.Popen(["Orthanc", str(folder / "orthanc.json")], stdout=log, stderr=log)
    archive = Archive(http, dicom, process)
    end = time.monotonic() + START_S
    while True:
        try:
            archive.get("/system")
            return archive
        except requests.RequestException:
            if process.poll() is not None or time.monotonic() > end:
                archive.kill()
                pytest.fail(f"Orthanc does not start: {(folder / 'orthanc.log').read_text()[-2000:]}")
            time.sleep(0.1)


@contextmanager
def running(folder: Path, **more: Any) -> Iterator[Archive]:
    """A started archive, which is ended after the block."""
    archive = start(folder, **more)
    try:
        yield archive
    finally:
        archive.process.terminate()
        try:
            archive.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            archive.kill()
