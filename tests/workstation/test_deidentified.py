"""Images that are de-identified on the way in: nothing of the patient is kept, and no report of them goes anywhere."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
from pydicom import dcmread

from radweave.data.deidentify.key import read_key, write_key
from radweave.workstation.settings import Settings
from tests.image_files import CANARY
from tests.workstation.hospitals import Archive, figure, image, listening, plan_file, push, studies
from tests.workstation.load import until
from tests.workstation.stations import running, wait_for
from tests.workstation.test_hospital import with_hospital

pytestmark = pytest.mark.usefixtures("short_pauses")


def test_no_patient_data_is_stored_and_no_report_is_sent(
    settings: Settings, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_key(tmp_path / "key")
    settings, port = with_hospital(settings, tmp_path, None, deidentify={"key_file": str(tmp_path / "key")})
    same = {"StudyInstanceUID": "1.2.3.4", "AccessionNumber": CANARY}
    paths = [image(tmp_path / f"{n}.dcm", **same) for n in range(2)]
    with running(settings) as (client, station):
        assert push(port, *paths, image(tmp_path / "t.dcm", BurnedInAnnotation="YES", **same)) == [0x0000] * 3
        (study,) = until(lambda: studies(client))
        wait_for(client, study["id"], "drafted")
        assert figure(client, "objects_not_deidentified") == 1
        assert len(client.get(f"/api/v1/studies/{study['id']}").json()["files"]) == 2
        report = dcmread(io.BytesIO(client.get(f"/api/v1/studies/{study['id']}/report?format=sr-basic").content))
        key = read_key(tmp_path / "key")
        assert (report.PatientID, report.StudyInstanceUID) == (key.pseudonym(CANARY, ""), key.uid("1.2.3.4"))
        assert report.PatientIdentityRemoved == "YES"
        token = station.token
    stored = [path for path in settings.state.rglob("*") if path.is_file()]
    assert [path for path in stored if CANARY.encode() in path.read_bytes() or CANARY in str(path)] == []
    assert CANARY not in "".join(capfd.readouterr())
    with listening(Archive()) as archive:
        settings, _ = with_hospital(settings, tmp_path, archive)  # another plan later: what is nobody's stays nobody's
        with running(settings) as (client, _):
            client.headers["Authorization"] = f"Bearer {token}"
            time.sleep(0.2)  # some looks of the sender
            assert client.get(f"/api/v1/studies/{study['id']}/sent").json() == []
        assert archive.came == {}


def test_a_plan_file_that_de_identifies_and_sends_is_refused(tmp_path: Path) -> None:
    from radweave.core.errors import InputError
    from radweave.workstation.hospital_plan import read_plan

    receive = {"ae_title": "A", "port": 11112, "peers": {"A": "b"}, "deidentify": {"key_file": "k"}}
    assert read_plan(plan_file(tmp_path / "plan.yaml", receive=receive)).receive is not None
    send = [{"name": "a", "formats": ["sr-basic"], "web": {"url": "http://x"}}]
    with pytest.raises(InputError, match="no report of a de-identified study is sent"):
        read_plan(plan_file(tmp_path / "plan.yaml", receive=receive, send=send))
