"""Room on the disk: what the folder may hold, what stays free, and what is said where there is none."""

from __future__ import annotations

import errno
import io
import zipfile
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from radweave.workstation.disk import DiskSpace, NoRoomError
from radweave.workstation.hospital_plan import Receive
from radweave.workstation.receiver import Receiver
from radweave.workstation.settings import Limits, Settings
from radweave.workstation.uploads import from_stream
from tests.workstation.fake_workers import IMAGE
from tests.workstation.hospitals import image, push
from tests.workstation.stations import left_behind, one_draft, running, upload

MIB = 1 << 20


def limited(settings: Settings, **limits: Any) -> Settings:
    return settings.model_copy(update={"limits": settings.limits.model_copy(update=limits)})


def with_free(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("radweave.workstation.disk.shutil.disk_usage", lambda path: usage(1 << 40, 0, free))


def test_free_space_excludes_used_and_reserved_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radweave.workstation.disk._LOOK_S", 0.0)
    monkeypatch.setattr("radweave.workstation.disk._SHARE", 0)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"x" * 300)
    (tmp_path / "link").symlink_to("/")  # of what lies elsewhere nothing counts
    room = DiskSpace(tmp_path, Limits(state_bytes=1_000, free_bytes=0))
    used = room.figures()["storage_bytes"]
    assert 300 <= used < 320
    room.refuse(1_000 - used)
    with pytest.raises(NoRoomError):
        room.refuse(1_001 - used)
    with room.reserve() as take, room.reserve() as other:
        take(500)
        with pytest.raises(NoRoomError):
            other(300)
        other(100)
    (tmp_path / "a" / "b").write_bytes(b"x" * 990)
    with pytest.raises(NoRoomError), room.reserve() as take:
        take(20)
    with room.reserve(is_counted=False) as take:
        take(20)
    with pytest.raises(OSError, match="no room") as refused, room.reserve_or_oserror() as take:
        take(20)
    assert refused.value.errno == errno.ENOSPC


def test_a_nearly_full_disk_accepts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = DiskSpace(tmp_path, Limits(free_bytes=1_000))
    with_free(monkeypatch, 1_500)
    room.refuse(500)
    for is_counted in (True, False):
        with pytest.raises(NoRoomError):
            room.refuse(501, is_counted=is_counted)
    with room.reserve() as take, pytest.raises(NoRoomError):
        take(400)
        take(200)


def zipped(size: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.png", IMAGE + b"\0" * size)
    return file.getvalue()


def test_an_upload_above_the_limit_is_refused_and_leaves_nothing(settings: Settings) -> None:
    with running(limited(settings, state_bytes=3 * MIB)) as (client, _):
        one_draft(client)
        before = left_behind(settings)
        for data in (b"x" * 4 * MIB, zipped(4 * MIB)):  # the second is small as it comes
            answer = upload(client, ("a.png", data))
            assert (answer.status_code, "room" in answer.json()["error"]["reason"]) == (507, True)
        assert left_behind(settings) == before
        assert client.get("/api/v1/studies").json()["total"] == 1
        assert upload(client, ("b.png", IMAGE)).status_code == 202
        text = client.get("/metrics").text
        assert f"radweave_storage_limit_bytes {3 * MIB}" in text
        status = client.get("/api/v1/status").json()["storage"]
        assert 0 < status["storage_bytes"] <= 3 * MIB
        assert f"radweave_storage_bytes {status['storage_bytes']}" in text


def test_a_watched_folder_waits_for_free_space(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(settings) as (client, station):
        with_free(monkeypatch, 0)
        incoming = [from_stream("a.png", io.BytesIO(IMAGE))]
        assert station._take_watched(incoming, "key") is False
        assert client.get("/api/v1/studies").json()["total"] == 0
        with_free(monkeypatch, 1 << 40)
        assert station._take_watched(incoming, "key") is True
        assert client.get("/api/v1/studies").json()["total"] == 1


def test_a_scanner_gets_the_status_of_a_full_disk(tmp_path: Path) -> None:
    from tests.workstation.load import free_port

    counted: list[str] = []
    room = DiskSpace(tmp_path, Limits(state_bytes=60_000, free_bytes=0))
    plan = Receive(ae_title="RADWEAVE", port=free_port(), peers={"SCANNER": "127.0.0.1"})
    receiver = Receiver(plan, tmp_path / "incoming", counted.append, room.reserve_or_oserror)
    receiver.start()
    path = image(tmp_path / "a.dcm")
    try:
        assert push(plan.port, path) == [0x0000]
        (tmp_path / "full").write_bytes(b"x" * 60_000)
        room._counted = float("-inf")
        assert push(plan.port, path) == [0xA700]
        (tmp_path / "full").unlink()
        room._counted = float("-inf")
        assert push(plan.port, path) == [0x0000]
    finally:
        receiver.stop()
    assert (counted.count("objects_received"), counted.count("objects_refused")) == (2, 1)
    assert len(list((tmp_path / "incoming").rglob("*.dcm"))) == 2
