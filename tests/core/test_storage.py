"""Errors, JSON files, hashes, and atomic files and folders."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from radweave.core.errors import CannotWriteError, InputError
from radweave.core.json_files import read_json, read_jsonl, write_json, write_jsonl
from radweave.core.storage import (
    remove_leftovers,
    sha256_file,
    sha256_folder,
    sha256_json,
    temporary_folder,
    write_aside,
    write_folder,
)


def test_an_error_names_all_its_fields_and_survives_pickling() -> None:
    error = InputError("bad value", file="x.dcm", line=3, field="Rows", got=0, expected="at least 1")
    assert str(error) == "x.dcm, line 3, field 'Rows': bad value (got 0, expected at least 1)"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize("line", ["{not json", "[1, 2]", '"text"', "{" * 3000, "\udcff"])
def test_a_broken_line_is_named_by_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"a": 1}\n\n' + line.encode("utf-8", "surrogateescape") + b"\n")
    with pytest.raises(InputError, match=r"m\.jsonl, line 3"):
        list(read_jsonl(path))


def test_half_of_a_surrogate_pair_is_refused(tmp_path: Path) -> None:
    """A JSON escape can hold what no file can: whoever writes the value again would end in a traceback."""
    path = tmp_path / "a.json"
    path.write_text('{"a": "\\ud83d\\ude00"}')
    assert read_json(path) == {"a": "\N{GRINNING FACE}"}
    for half in ("\\ud83d", "\\uDE00"):
        path.write_text(f'{{"a": "{half}"}}')
        with pytest.raises(InputError, match="not valid JSON"):
            read_json(path)


def test_hash_of_json_does_not_depend_on_key_order() -> None:
    assert sha256_json({"a": 1, "b": [2]}) == sha256_json({"b": [2], "a": 1})
    assert sha256_json({"a": 1}) != sha256_json({"a": 2})


def test_hashes_cover_every_byte(tmp_path: Path) -> None:
    data = bytes(3 << 20)
    for place in (0, 1 << 20, (3 << 20) - 1):
        (tmp_path / "large").write_bytes(data[:place] + b"1" + data[place + 1 :])
        assert sha256_file(tmp_path / "large") == hashlib.sha256((tmp_path / "large").read_bytes()).hexdigest()
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "a").write_text("1")
    observed = {sha256_folder(folder)}
    (folder / "inner" / "a").write_text("2")
    observed.add(sha256_folder(folder))
    (folder / "inner" / "a").rename(folder / "a")
    observed.add(sha256_folder(folder))
    assert len(observed) == 3
    assert sha256_folder(folder) == sha256_folder(folder)
    assert sha256_folder(tmp_path / "missing") == sha256_json({})


def test_a_failed_write_leaves_only_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"old": 1})

    def rows() -> object:
        yield {"new": 1}
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        write_jsonl(path, rows())  # type: ignore[arg-type]
    assert read_json(path) == {"old": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_a_full_disk_is_a_clear_error_and_the_old_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(InputError, match=r"a\.txt: cannot write: No space left"), write_aside(path) as partial:
        partial.write_text("half")
        raise OSError(28, os.strerror(28))
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_writing_a_folder_is_atomic(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with pytest.raises(KeyError), write_folder(target) as partial:
        (partial / "file").write_text("x")
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    with write_folder(target) as partial:
        (partial / "file").write_text("x")
    assert (target / "file").read_text() == "x"


def test_an_existing_folder_is_replaced_only_when_asked(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with write_folder(target) as partial:
        (partial / "old").touch()
    with pytest.raises(InputError, match="--overwrite"), write_folder(target):
        pass
    with write_folder(target, overwrite=True) as partial:
        (partial / "new").touch()
    assert [file.name for file in target.iterdir()] == ["new"]
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


def test_leftovers_are_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / ".a.json.0123abcd.partial").write_text("half")
    (tmp_path / ".b.0123abcd.old").mkdir()
    (tmp_path / ".b.0123abcd.old" / "file").write_text("old")
    (tmp_path / "b").mkdir()
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / ".c.0123abcd.partial").symlink_to(outside)
    others = [".lock", "a.json", ".download.partial", ".c.0123abcd.partial", "b", "outside"]
    for name in others[:3]:
        (tmp_path / name).write_text("{}")
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)
    remove_leftovers(tmp_path / "no such folder")


def test_remove_leftovers_restores_a_folder_whose_writer_was_killed(tmp_path: Path) -> None:
    (tmp_path / ".b.0123abcd.old").mkdir()
    (tmp_path / ".b.0123abcd.old" / "file").write_text("old")
    (tmp_path / ".b.4567abcd.partial").mkdir()
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    assert (tmp_path / "b" / "file").read_text() == "old"


def test_a_partly_removed_folder_is_not_named_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[str] = []
    monkeypatch.setattr(shutil, "rmtree", lambda path, **more: removed.append(Path(path).name))
    for _ in range(2):
        with write_folder(tmp_path / "out", overwrite=True) as partial:
            (partial / "file").touch()
    assert len(removed) == 1
    assert removed[0].endswith(".partial")
    assert len(list(tmp_path.glob(".*.old"))) == 0


WRITE = """
import sys, time
from pathlib import Path
from radweave.core.storage import temporary_folder, write_aside, write_folder

out = Path(sys.argv[1])
with write_folder(out / "set") as folder, write_aside(out / "text") as file:
    (folder / "patient").write_text("half")
    file.write_text("half")
    (temporary_folder("cache") / "patient").write_text("pixels")
    print("written", flush=True)
    time.sleep(60)
"""


def test_leftovers_of_killed_processes_are_removed_and_locked_files_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, temporary = tmp_path / "out", tmp_path / "tmp"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITE, str(out)], stdout=subprocess.PIPE, env=environment, text=True
    )
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "written\n"
        remove_leftovers(out)
        remove_leftovers(temporary)
        assert len(list(out.iterdir())) == 2
        assert len(list(temporary.rglob("patient"))) == 1
    finally:
        writer.kill()
        writer.wait()
    assert len(list(out.iterdir())) == 2
    write_json(out / "other.json", {})
    assert [path.name for path in out.iterdir()] == ["other.json"]
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    mine = temporary_folder("cache")
    assert list(temporary.iterdir()) == [mine]


def test_a_temporary_folder_is_removed_at_exit(tmp_path: Path) -> None:
    code = "from radweave.core.storage import temporary_folder; (temporary_folder('x') / 'file').write_text('pixels')"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [write_aside, write_folder])
def test_an_unwritable_path_is_named(tmp_path: Path, kind: Any) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotWriteError, match="out: cannot write: "), kind(tmp_path / "file" / "out"):
        pass
    error = CannotWriteError("cannot write", file="x")
    assert type(pickle.loads(pickle.dumps(error))) is CannotWriteError


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), Exception("I/O error: No space (os error 28)")]
)
def test_a_full_disk_is_the_same_error_for_all_libraries(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(CannotWriteError, match=r"folder: cannot write: No space"), write_folder(tmp_path / "folder"):
        raise error
    assert list(tmp_path.iterdir()) == []


def test_read_errors_are_not_reported_as_write_errors(tmp_path: Path) -> None:
    name = "a" * 5000
    with pytest.raises(OSError, match="File name too long") as error, write_folder(tmp_path / "folder"):
        (tmp_path / "elsewhere" / name).stat()
    assert not isinstance(error.value, CannotWriteError)
    with pytest.raises(CannotWriteError), write_folder(tmp_path / "folder") as partial:
        (partial / name).touch()
    assert list(tmp_path.iterdir()) == []


FORKED = """
import os, sys
from radweave.core.storage import temporary_folder

folder = temporary_folder("cache")
(folder / "pixels").write_text("kept")
child = os.fork()
if child == 0:
    sys.exit(3)  # what is registered for the end of the process runs here too
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
print((folder / "pixels").read_text(), flush=True)
"""


def test_a_forked_child_does_not_remove_the_temporary_folder(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED], env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "kept\n"), done.stderr
    assert list(tmp_path.iterdir()) == []
