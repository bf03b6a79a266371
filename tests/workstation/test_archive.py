"""The workstation between a scanner and a real archive, which is killed in the middle. ``make test-hospital``."""

from __future__ import annotations

import io
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from pydicom import dcmread

from radweave.workstation.hospital_plan import Dicom, Target, Web
from radweave.workstation.sending import NotStoredError, send
from radweave.workstation.settings import Settings
from tests.image_files import CANARY
from tests.workstation.archive import AET, PASSWORD, USER, Archive, needs, running, start
from tests.workstation.hospitals import image, plan_file
from tests.workstation.load import free_port
from tests.workstation.stations import running as working

pytestmark = pytest.mark.programs
STUDIES = 50


def target(archive: Archive, folder: Path, way: str) -> Target:
    password = folder / "password"
    password.write_text(f"{PASSWORD}\n")
    if way == "web":
        web = Web(url=f"{archive.url}/dicom-web", user=USER, password_file=password)
        return Target(name="archive", formats=("sr-basic", "pdf-dicom"), events=("drafted",), web=web)
    dicom = Dicom(host="127.0.0.1", port=archive.dicom, ae_title=AET)
    return Target(name="archive", formats=("sr-basic", "pdf-dicom"), events=("drafted",), dicom=dicom)


def under_studies(archive: Archive) -> dict[str, list[str]]:
    """Modalities of the instances of each study, as QIDO has them."""
    result: dict[str, list[str]] = {}
    for row in archive.web().search_for_series():
        result.setdefault(row["0020000D"]["Value"][0], []).append(row["00080060"]["Value"][0])
    return {study: sorted(modalities) for study, modalities in result.items()}


@pytest.mark.parametrize("way", ["web", "dicom"])
def test_fifty_studies_come_back_once_over_an_archive_that_is_killed(
    settings: Settings, tmp_path: Path, way: str
) -> None:
    needs("storescu")
    port = free_port()
    images = [image(tmp_path / f"{number:02}.dcm") for number in range(STUDIES)]
    peers = {"modalities": None, "DicomModalities": {"radweave": ["RADWEAVE", "127.0.0.1", port]}}
    archive = start(tmp_path / "orthanc", **{"DicomModalities": peers["DicomModalities"]})
    try:
        plan: dict[str, Any] = {
            "receive": {"ae_title": "RADWEAVE", "port": port, "peers": {AET: "127.0.0.1"}, "quiet_s": 0.3},
            "send": [target(archive, tmp_path, way).model_dump(mode="json", exclude_none=True)],
        }
        combined = settings.model_copy(update={"hospital": plan_file(tmp_path / "plan.yaml", **plan)})
        subprocess.run(["dcmsend", "-aec", AET, "127.0.0.1", str(archive.dicom), *map(str, images)], check=True)
        with working(combined) as (client, _):
            ids = archive.get("/instances")
            assert len(ids) == STUDIES
            answer = archive.session().post(f"{archive.url}/modalities/radweave/store", json=ids, timeout=60)
            assert answer.status_code == 200, answer.text
            end, killed = time.monotonic() + 120, False
            while True:
                figures = client.get("/metrics").text
                sent = next((int(line.split()[1]) for line in figures.splitlines()
                             if line.startswith("radweave_reports_sent_total ")), 0)  # fmt: skip
                if sent >= STUDIES and not killed:
                    archive.kill()
                    time.sleep(1)
                    archive = start(
                        tmp_path / "orthanc", http=archive.http, dicom=archive.dicom,
                        **{"DicomModalities": peers["DicomModalities"]},
                    )  # fmt: skip
                    killed = True
                if sent >= 2 * STUDIES:
                    break
                assert time.monotonic() < end, figures
                time.sleep(0.1)
            assert 'radweave_studies{state="drafted"} 50' in figures
        result = under_studies(archive)
        assert set(result) == {str(dcmread(path).StudyInstanceUID) for path in images}
        assert set(map(tuple, result.values())) == {("CR", "DOC", "SR")}
        assert len(archive.get("/instances")) == 3 * STUDIES
    finally:
        archive.kill()


def test_an_archive_that_refuses_gives_no_receipt(tmp_path: Path) -> None:
    from radweave.workstation.formats import FORMATS
    from tests.workstation.reports import finished

    data = FORMATS["sr-basic"].bytes_of(finished())
    with running(tmp_path / "orthanc") as archive:
        assert send(target(archive, tmp_path, "web"), data) == "STOW-RS: kept"
        assert send(target(archive, tmp_path, "dicom"), data) == "C-STORE: status 0x0000"
        web = target(archive, tmp_path, "web")
        (tmp_path / "password").write_text("wrong")
        with pytest.raises(NotStoredError, match="HTTP 401"):
            send(web, data)
        other = Dicom(host="127.0.0.1", port=archive.dicom, ae_title="NOBODY")
        with pytest.raises(NotStoredError, match="refused the association"):
            send(Target(name="a", formats=("sr-basic",), dicom=other), data)
    with pytest.raises(NotStoredError, match="cannot be reached"):
        send(target(archive, tmp_path, "web"), data)
    assert dcmread(io.BytesIO(data)).PatientID == CANARY
