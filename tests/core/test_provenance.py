"""The hash of the code: what it covers, and that nothing left out of it can reach training."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

import radweave
from radweave.core.provenance import DENIED, arithmetic, code_hash, library_versions

ENTRIES = ("radweave.engine.train", "radweave.methods", "radweave.engine.stages", "radweave.io", "radweave.core.study")
"""Where training begins; methods are found by name, and files are parsed in a process of its own."""
HASH = "from radweave.core.provenance import code_hash; print(code_hash())"


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("radweave", cache_dir=None)


def reached(graph: grimp.ImportGraph, entries: tuple[str, ...]) -> set[str]:
    """Modules that are imported when these, and all below them, are; packages run when a module in them is."""
    todo = [name for entry in entries for name in (entry, *graph.find_descendants(entry))]
    result: set[str] = set()
    while todo:
        name = todo.pop()
        if name not in result:
            result.add(name)
            todo += graph.find_modules_directly_imported_by(name)
            # Not the package itself: what it imports, it imports inside of functions.
            todo += [name.rpartition(".")[0]] if name.count(".") > 1 else []
    return result


def rooms_of(name: str) -> set[str]:
    parts = name.split(".")
    return {".".join(parts[:depth]) for depth in range(1, len(parts) + 1)}


def test_training_imports_no_denied_package(graph: grimp.ImportGraph) -> None:
    wrong = {name for name in reached(graph, ENTRIES) if rooms_of(name) & set(DENIED)}
    assert wrong == set()
    # The same search finds what a denied room holds, or it would find nothing anywhere.
    assert {"radweave.cli", "radweave.engine.train"} <= reached(graph, ("radweave.cli.train",))


def test_every_denied_package_exists_and_has_a_reason(graph: grimp.ImportGraph) -> None:
    root = Path(radweave.__file__).parent
    page = (Path(__file__).parents[2] / "docs" / "engine.md").read_text(encoding="utf-8")
    for room, reason in DENIED.items():
        assert f"`{room}`" in page or f"`{room.removeprefix('radweave.')}`" in page, room
        assert room in graph.modules or root.joinpath(*room.split(".")[1:]).is_dir(), room
        assert len(reason) > 15, room


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("copy")
    shutil.copytree(Path(radweave.__file__).parent, place / "radweave", ignore=shutil.ignore_patterns("__pycache__"))
    return place


def hash_in_a_child(place: Path) -> str:
    """The hash that another process comes to which imports the package from ``place``."""
    done = subprocess.run(
        [sys.executable, "-B", "-c", HASH], env={"PYTHONPATH": str(place)}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    "name", ["labels/rules.py", "core/ontology.py", "data/loader.py", "engine/stages.py", "new/room.py"]
)
def test_an_edit_of_training_code_changes_the_hash(copied: Path, name: str) -> None:
    file = copied / "radweave" / name
    before = file.read_bytes() if file.exists() else None
    file.parent.mkdir(exist_ok=True)
    file.write_bytes((before or b"") + b"\nCHANGED = True\n")
    try:
        assert hash_in_a_child(copied) != code_hash()
    finally:
        file.unlink() if before is None else file.write_bytes(before)


def test_an_edit_of_equal_size_changes_the_hash(copied: Path) -> None:
    file = copied / "radweave" / "labels" / "rules.py"
    before = file.read_bytes()
    file.write_bytes(before.replace(b"12", b"13", 1))
    try:
        assert file.stat().st_size == len(before)
        assert hash_in_a_child(copied) != code_hash()
    finally:
        file.write_bytes(before)


def test_edits_of_denied_and_compiled_files_keep_the_hash(copied: Path) -> None:
    for name in (
        "cli/train.py",
        "templates/explain.html.j2",
        "inference/export.py",
        "__pycache__/runs.cpython-311.pyc",
    ):
        file = copied / "radweave" / name
        file.parent.mkdir(exist_ok=True)
        with file.open("ab") as edited:
            edited.write(b"\n")
    assert hash_in_a_child(copied) == code_hash()


def test_single_packages_have_their_own_hash() -> None:
    reading = code_hash("radweave.io")
    assert reading != code_hash()
    assert reading != code_hash("radweave.io", "radweave.data.square")
    assert reading == code_hash("radweave.io", "radweave.data.no_such_module")


def test_versions_cover_all_libraries_that_compute() -> None:
    versions = library_versions()
    assert {"python", "radweave", "torch", "numpy", "scipy", "nibabel", "pillow"} <= set(versions)
    assert not {"rich", "typer", "pytest"} & set(versions)


def test_arithmetic_includes_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    before = arithmetic()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 17)
    assert arithmetic() != before
