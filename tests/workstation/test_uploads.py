"""Hostile uploads: refused with the limit named, the server lives, nothing is left behind."""

from __future__ import annotations

import io
import os
import shutil
import stat
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from radweave.workstation.settings import Limits, Settings
from radweave.workstation.station import Station, Watcher
from tests.workstation.fake_workers import IMAGE, REFUSE
from tests.workstation.load import until
from tests.workstation.stations import left_behind, running, upload, wait_for

LIMITS = Limits(body_bytes=400_000, files=20, archive_bytes=1 << 20, archive_ratio=50)


@pytest.fixture
def started(settings: Settings) -> Iterator[tuple[TestClient, Station]]:
    with running(settings.model_copy(update={"limits": LIMITS})) as both:
        yield both


def zipped(*members: tuple[str, bytes], packed: bool = True) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return buffer.getvalue()


def _link() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        member = zipfile.ZipInfo("link.png")
        member.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(member, "/etc/passwd")
    return buffer.getvalue()


def _understated() -> bytes:
    """A member that unpacks to more than the archive says."""
    data = bytearray(zipped(("a.png", b"x" * 5_000)))
    at = data.rfind(b"PK\x01\x02")
    data[at + 24 : at + 28] = (10).to_bytes(4, "little")
    return bytes(data)


def _end(data: bytes, *, entries: int, length: int, start: int, large: bool, comment: bytes = b"") -> bytes:
    """``data`` behind which an end record states this; a ``large`` one states it in ZIP64, and 1 file in the other."""
    if not large:
        return data + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, entries, entries, length, start, len(comment)) + comment
    record = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, entries, entries, length, start)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, len(data), 1)
    return _end(data + record + locator, entries=1, length=60, start=start, large=False, comment=comment)


def _split(data: bytes) -> tuple[bytes, bytes]:
    """The members of an archive and its list of them."""
    at = data.rfind(b"PK\5\6")
    start = int.from_bytes(data[at + 16 : at + 20], "little")
    return data[:start], data[start:at]


def _same_bytes(count: int, *, shifted: bool = False) -> bytes:
    """One packed member that is listed as ``count`` files; ``shifted``: each member holds the next as its content."""
    if not shifted:
        members, listed = _split(zipped(("00000.png", bytes(60_000))))
        lists = b"".join(listed.replace(b"00000", b"%05d" % number) for number in range(count))
        return _end(members + lists, entries=count, length=len(lists), start=len(members), large=False)
    inner = zipped(("b.png", IMAGE), packed=False)
    members, listed = _split(zipped(("a.png", _split(inner)[0]), packed=False))
    at = members.find(b"PK\3\4", 4)
    lists = listed + _split(inner)[1][:42] + at.to_bytes(4, "little") + _split(inner)[1][46:]
    return _end(members + lists, entries=2, length=len(lists), start=len(members), large=False)


def _many_in_zip64(count: int) -> bytes:
    members, listed = _split(zipped(*[(f"{number:05}.png", b"") for number in range(count)]))
    return _end(members + listed, entries=count, length=len(listed), start=len(members), large=True)


def _two_ends() -> bytes:
    """A whole archive, and behind it another list of the same files."""
    first = zipped(("a.png", IMAGE))
    listed = _split(first)[1]
    return _end(first + listed, entries=1, length=len(listed), start=len(first) - 1, large=False)


def _in_its_list() -> bytes:
    """A stored member whose content goes on into the list of members."""
    data = bytearray(zipped(("a.png", IMAGE), packed=False))
    at = data.rfind(b"PK\1\2")
    data[at + 20 : at + 28] = 2 * (len(IMAGE) + 30).to_bytes(4, "little")
    return bytes(data)


def _flagged(flag: int) -> bytes:
    data = bytearray(zipped(("a.png", IMAGE)))
    data[data.rfind(b"PK\1\2") + 8] |= flag
    return bytes(data)


def _of_mode(mode: int, name: str = "a.png") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        member = zipfile.ZipInfo(name)
        member.external_attr = (mode | 0o644) << 16
        archive.writestr(member, IMAGE)
    return buffer.getvalue()


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "slip": (lambda: zipped(("../../evil.png", b"x")), "leads out of it"),
    "absolute": (lambda: zipped(("/etc/evil.png", b"x")), "leads out of it"),
    "backslash": (lambda: zipped(("..\\evil.png", b"x")), "leads out of it"),
    "link": (_link, "a link"),
    "bomb": (lambda: zipped(("a.png", bytes(10 << 20))), "1048576"),
    "dense": (lambda: zipped(("a.png", b"\0" * (1 << 20) * 4), packed=True), "too large when unpacked"),
    "many": (lambda: zipped(*[(f"{number}.png", b"x") for number in range(21)]), "at most 20"),
    "very many": (lambda: zipped(*[(f"{number}.png", b"") for number in range(300)]), "at most 20"),
    "understated": (_understated, "another size|damaged"),
    "cut": (lambda: zipped(("a.png", b"x"))[:-30], "damaged"),
    "one part, many files": (lambda: _same_bytes(15), "overlap"),
    "one member in another": (lambda: _same_bytes(2, shifted=True), "overlap"),
    "many in ZIP64": (lambda: _many_in_zip64(300), "at most 20"),
    "two ends": (_two_ends, "damaged"),
    "behind its end": (lambda: zipped(("a.png", IMAGE)) + b"x" * 9, "damaged"),
    "in its list": (_in_its_list, "overlap"),
    "encrypted": (lambda: _flagged(1), "encrypted"),
    "encrypted strongly": (lambda: _flagged(0x40), "encrypted"),
    "patched": (lambda: _flagged(0x20), "encrypted"),
    "device": (lambda: _of_mode(stat.S_IFCHR), "a link"),
    "folder as a link": (lambda: _of_mode(stat.S_IFLNK, "a.png/"), "a link"),
    "one name twice": (lambda: zipped(("a.png", IMAGE), ("b.png", IMAGE)).replace(b"b.png", b"a.png"), "twice"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_archive(kind: str, started: tuple[TestClient, Station]) -> None:
    client, station = started
    make, reason = HOSTILE[kind]
    answer = upload(client, ("studies.zip", make()), ("good.png", IMAGE))
    assert answer.status_code == 400
    assert any(word in answer.json()["error"].__str__() for word in reason.split("|")), answer.text
    assert left_behind(station.settings) == []
    assert client.get("/api/v1/studies").json()["total"] == 0


def test_the_limits_of_an_upload_cover_all_archives(started: tuple[TestClient, Station]) -> None:
    client, station = started
    for count, size, reason in ((7, 4, "at most 20"), (1, 400_000, "at most 1048576")):
        data = zipped(*[(f"{number}.png", IMAGE + bytes(size)) for number in range(count)])
        assert upload(client, ("a.zip", data)).status_code == 202
        answer = upload(client, ("a.zip", data), ("b.zip", data), ("c.zip", data))
        assert (answer.status_code, reason in answer.text) == (400, True), answer.text
    before = left_behind(station.settings)
    assert upload(client, ("a.zip", zipped(("a.png", IMAGE))), ("b.zip", _same_bytes(3))).status_code == 400
    assert left_behind(station.settings) == before


@pytest.mark.parametrize("large", [False, True])
def test_too_many_archive_members_are_refused_before_listing(
    large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from radweave.core.errors import InputError
    from radweave.workstation.archive_parse import list_members

    members, listed = _split(zipped(*[(f"{number:05}.png", b"") for number in range(300)]))
    data = _end(members + listed, entries=300, length=len(listed), start=len(members), large=large)
    (tmp_path / "a.zip").write_bytes(data)
    monkeypatch.setattr(zipfile, "ZipFile", lambda *_: pytest.fail("listed"))
    with pytest.raises(InputError, match="at most 20"):
        list_members({"path": str(tmp_path / "a.zip"), **LIMITS.model_dump()})


def test_unusual_but_valid_archives_are_accepted(started: tuple[TestClient, Station]) -> None:
    client, _ = started
    streamed = io.BytesIO()
    with zipfile.ZipFile(Unseekable(streamed), "w", zipfile.ZIP_DEFLATED) as archive:  # sizes stand behind the members
        archive.writestr("a/a.png", IMAGE)
        archive.comment = b"made by a stream"
    members, listed = _split(zipped(("a.png", IMAGE), ("b.png", IMAGE)))
    of_zip64 = _end(members + listed, entries=2, length=len(listed), start=len(members), large=True, comment=b"x")
    folders = io.BytesIO()
    with zipfile.ZipFile(folders, "w") as archive:
        archive.mkdir("a")
        archive.writestr("a/a.png", IMAGE)
    nested = zipped(("inner.zip", zipped(("b.png", IMAGE))), ("a.png", IMAGE), ("z.zip", zipped(("b.png", IMAGE))))
    for data, count in ((streamed.getvalue(), 1), (of_zip64, 2), (folders.getvalue(), 1), (nested, 3)):
        answer = upload(client, ("a.zip", data))
        assert (answer.status_code, len(answer.json().get("studies", ()))) == (202, count), answer.text


class Unseekable(io.RawIOBase):
    """A stream that only goes on."""

    def __init__(self, below: io.BytesIO) -> None:
        self._below = below

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        return self._below.write(data)


def test_an_upload_of_refused_files_only_is_refused(started: tuple[TestClient, Station]) -> None:
    client, station = started
    junk = [(f"{number}.png", b"junk") for number in range(17)]
    answer = upload(client, ("all.zip", zipped(*junk)))
    assert (answer.status_code, "17 files cannot be taken, the first of them: 0.png" in answer.text) == (400, True)
    assert left_behind(station.settings) == []
    assert len(upload(client, ("few.zip", zipped(*junk[:16]))).json()["studies"]) == 16


@pytest.mark.parametrize("packed", [True, False])
def test_many_refused_files_become_one_study(packed: bool, started: tuple[TestClient, Station]) -> None:
    client, station = started
    files = [(f"{number}.txt", b"junk") for number in range(18)]
    one = [("all.zip", zipped(("good.png", IMAGE), *files))] if packed else [("good.png", IMAGE), *files]
    answer = upload(client, *one)
    assert answer.status_code == 202, answer.text
    states = {
        row["state"]: row for row in (wait_for(client, name, "drafted", "refused") for name in answer.json()["studies"])
    }
    assert len(answer.json()["studies"]) == 2
    assert states["refused"]["name"] == one[0][0]
    assert "18 files cannot be taken" in states["refused"]["reason"]
    assert [path.stem for path in left_behind(station.settings) if path.is_file()] in (["file00000"], ["file00001"])


def test_limits_of_a_request_are_named(started: tuple[TestClient, Station]) -> None:
    client, station = started
    large = upload(client, ("a.png", bytes(500_000)))
    assert (large.status_code, "at most 400000 bytes" in large.text) == (413, True)

    def unsized() -> Iterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
        yield from (bytes(10_000) for _ in range(60))

    head = {"Content-Type": "multipart/form-data; boundary=x"}
    counted = client.post("/api/v1/studies", content=unsized(), headers=head)
    assert (counted.status_code, "at most 400000 bytes" in counted.text) == (413, True)
    many = upload(client, *[(f"{number}.png", b"x") for number in range(21)])
    assert (many.status_code, "20" in many.text) == (400, True)
    assert upload(client).status_code == 400
    assert upload(client, ("empty.zip", zipped())).status_code == 400
    assert upload(client, ("n" * 100_000, IMAGE)).status_code == 400
    assert client.post("/api/v1/session", content=b" " * (2 << 20)).status_code == 413
    assert left_behind(station.settings) == []


def test_an_archive_is_unpacked_into_its_files(started: tuple[TestClient, Station]) -> None:
    client, _ = started
    data = zipped(("a/1.png", IMAGE), ("b/2.png", REFUSE), ("__MACOSX/1.png", b"x"), ("a/.DS_Store", b"x"))
    ids = upload(client, ("studies.zip", data)).json()["studies"]
    result = [wait_for(client, study, "drafted", "refused") for study in ids]
    assert sorted((row["name"], row["state"]) for row in result) == [("1.png", "drafted"), ("2.png", "refused")]


def test_names_are_text_and_never_paths(started: tuple[TestClient, Station]) -> None:
    client, station = started
    names = ["<script>alert(1)</script>.png", "../../x.png", "/etc/passwd", "a\u202egnp.exe", "n" * 1_000]
    ids = upload(client, *[(name, IMAGE) for name in names]).json()["studies"]
    assert len(ids) == len(names)
    result = [wait_for(client, study, "drafted") for study in ids]
    assert any(row["name"] == "script>.png" for row in result)  # the folder "<" + "script>alert(1)<" is left off
    assert all(row["name"].isprintable() for row in result)
    files = [path for path in left_behind(station.settings) if path.is_file()]
    assert {path.stem[:4] for path in files} == {"file"}
    assert client.get("/api/v1/studies").headers["content-type"] == "application/json"


def named(name: bytes, *, utf8: bool) -> bytes:
    """An archive of one image whose name is these bytes, with the flag that says that they are UTF-8 or without."""
    data = bytearray(zipped(("n" * len(name), IMAGE)).replace(b"n" * len(name), name))
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.find(mark) + place
        data[at : at + 2] = (0x800 if utf8 else 0).to_bytes(2, "little")
    return bytes(data)


LEADS_OUT = {
    "NUL": b"a.png\0.exe", "drive": b"C:\\Windows\\a.png", "drive, slashes": b"c:/a.png", "stream": b"a.png:b",
    "share": b"\\\\server\\share\\a.png", "root": b"/a.png", "up": b"a/../../a.png", "up, mixed": b"a\\..\\../a.png",
}  # fmt: skip
IS_TEXT = {
    "turned": "\u202egnp.exe.png".encode(), "long": b"n" * 9_000, "backslash": b"folder\\a.png", "dot": b"./a.png",
    "terminal": b"\x1b[2J\r\n.png", "device": b"CON", "blank": b" ", "deep": b"d/" * 500 + b"a.png",
}  # fmt: skip


@pytest.mark.parametrize("utf8", [True, False])
def test_a_path_in_an_archive_cannot_escape(utf8: bool, started: tuple[TestClient, Station]) -> None:
    client, station = started
    for kind, name in LEADS_OUT.items():
        answer = upload(client, ("a.zip", named(name, utf8=utf8)))
        assert (answer.status_code, "leads out of it" in answer.text) == (400, True), (kind, answer.text)
    assert left_behind(station.settings) == []
    for kind, name in IS_TEXT.items():
        answer = upload(client, ("a.zip", named(name, utf8=utf8)))
        assert answer.status_code == 202, (kind, answer.text)
        (study,) = answer.json()["studies"]
        result = wait_for(client, study, "drafted")
        assert all(text.isprintable() for text in (result["name"], *result["files"])), kind
        assert len(result["name"]) <= 200
    assert {path.stem[:4] for path in left_behind(station.settings) if path.is_file()} == {"file"}


def test_an_undecodable_name_in_an_archive_is_refused(started: tuple[TestClient, Station]) -> None:
    client, station = started
    wrong = upload(client, ("a.zip", named(b"\xff\xfe\xc3(.png", utf8=True)))
    assert (wrong.status_code, "name" in wrong.json()["error"]["reason"]) == (400, True), wrong.text
    assert left_behind(station.settings) == []
    (study,) = upload(client, ("a.zip", named(b"\xff\xfe\xc3(.png", utf8=False))).json()["studies"]
    assert wait_for(client, study, "drafted")["name"].endswith("(.png")


def test_the_number_of_views_of_a_study_is_limited(settings: Settings) -> None:
    """Their pixels would all be in memory at once."""
    with running(settings.model_copy(update={"limits": Limits(views=2)})) as (client, _):
        files = [(f"{number}.png", IMAGE) for number in range(3)]
        (study,) = upload(client, *files, data={"one_study": "true"}).json()["studies"]
        assert wait_for(client, study, "refused")["reason"].endswith("3, at most 2")
        (study,) = upload(client, *files[:2], data={"one_study": "true"}).json()["studies"]
        wait_for(client, study, "drafted")


def test_a_refused_study_keeps_its_reason_and_no_file(started: tuple[TestClient, Station]) -> None:
    client, station = started
    (study,) = upload(client, ("a.png", REFUSE)).json()["studies"]
    assert wait_for(client, study, "refused")["reason"] == "a.png: is no image"
    until(lambda: not left_behind(station.settings))  # they go after the state is written


def test_files_of_a_watched_folder_are_taken_once(started: tuple[TestClient, Station], tmp_path: Path) -> None:
    client, station = started
    folder = tmp_path / "watched"
    folder.mkdir()
    (folder / "a.png").write_bytes(IMAGE)
    (folder / "bad.zip").write_bytes(zipped(("../x.png", b"x")))

    def look(times: int) -> int:
        watcher = Watcher(folder, station._take_watched)
        for _ in range(times):
            watcher.run_once()
        return int(client.get("/api/v1/studies").json()["total"])

    # A file that was just seen may still be being written.
    assert [look(1), look(2), look(3)] == [0, 2, 2]
    states = {row["name"]: row["state"] for row in client.get("/api/v1/studies").json()["studies"]}
    assert states["bad.zip"] == "refused"
    assert sorted(path.name for path in folder.iterdir()) == ["a.png", "bad.zip"]


def test_bad_names_and_unreadable_files_do_not_hold_up_a_watched_folder(
    started: tuple[TestClient, Station],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    client, station = started
    folder = tmp_path / "watched"
    (folder / "d").mkdir(parents=True)
    for name in (b"a.png", b"b\xff.png", b"c.png", b"d/e\xfe.png", b"f.png", b"g\xfd.zip", b"h.png"):
        content = zipped(("../x.png", b"x")) if name.endswith(b"zip") else IMAGE
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_bytes(content)
    honest = shutil.copyfile

    def copyfile(source: Path, target: Path) -> Path:
        if Path(source).name == "c.png":
            raise PermissionError(13, "Permission denied", "Doe^Jane")
        return honest(source, target)

    monkeypatch.setattr(shutil, "copyfile", copyfile)
    watcher = Watcher(folder, station._take_watched, station.metrics.count)
    for _ in range(4):
        assert watcher.run_once() == 0
    result = {row["name"]: row["state"] for row in client.get("/api/v1/studies").json()["studies"]}
    assert result.keys() == {"a.png", "b�.png", "e�.png", "f.png", "g�.zip", "h.png"}
    assert result["g�.zip"] == "refused"
    figures = client.get("/metrics").text
    assert "radweave_watched_names_not_utf8_total 3" in figures
    assert "radweave_watched_failures_total 1" in figures
    output = capfd.readouterr().err
    assert output.count("watched-failed") == 1
    assert "Jane" not in output
