"""Files are whole or absent."""

from __future__ import annotations

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
from radweave.core.json_files import read_json, write_json, write_jsonl
from radweave.core.storage import remove_leftovers, temporary_folder, write_aside, write_folder


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
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


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
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


def test_a_folder_moved_away_by_a_killed_writer_gets_its_name_back(tmp_path: Path) -> None:
    (tmp_path / ".b.0123abcd.old").mkdir()
    (tmp_path / ".b.0123abcd.old" / "file").write_text("old")
    (tmp_path / ".b.4567abcd.partial").mkdir()
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    assert (tmp_path / "b" / "file").read_text() == "old"


def test_a_folder_that_is_removed_in_part_has_not_the_name_of_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_what_a_living_process_writes_stays_and_what_a_killed_one_left_goes(
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


def test_a_temporary_folder_goes_with_its_process(tmp_path: Path) -> None:
    code = "from radweave.core.storage import temporary_folder; (temporary_folder('x') / 'file').write_text('pixels')"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [write_aside, write_folder])
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, kind: Any) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotWriteError, match="out: cannot write: "), kind(tmp_path / "file" / "out"):
        pass
    error = CannotWriteError("cannot write", file="x")
    assert type(pickle.loads(pickle.dumps(error))) is CannotWriteError


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), Exception("I/O error: No space (os error 28)")]
)
def test_a_full_disk_is_one_error_whichever_library_writes(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(CannotWriteError, match=r"folder: cannot write: No space"), write_folder(tmp_path / "folder"):
        raise error
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_read_is_not_called_one_that_cannot_be_written(tmp_path: Path) -> None:
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


def test_a_temporary_folder_goes_with_the_process_that_made_it_and_with_no_child(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED], env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "kept\n"), done.stderr
    assert list(tmp_path.iterdir()) == []
