"""Existence of modules, files, pages and headings named in pages, docstrings and comments."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import radweave
from tests.toys import ROOT

SOURCE = ROOT / "src" / "radweave"
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
CODE = [*SOURCE.rglob("*.py"), *(ROOT / "bench").glob("*.py")]
DOTTED = re.compile(r"\bradweave((?:\.[A-Za-z]\w*)+)")
FILE = re.compile(r"(?<![\w./*{<-])(?:[a-z_]\w*/)+\w+\.(?:py|toml|md)\b")
PACKAGE = re.compile(r"`([a-z_]+)/(?:NAME/)?`")
LINK = re.compile(r"\]\(([^()\s]+)\)")
ELSEWHERE = ("scripts/data.py", "modules/data_ct.py")
"""Files of other projects, from which we deviate."""
NO_MODULES = (".methods", ".losses", ".rewards", ".json")
"""Groups of entry points of other packages, and the file ``radweave.json``."""


def lines(paths: list[Path]) -> Iterator[tuple[str, str]]:
    """Each line with its place; the change log speaks of what was."""
    for path in paths:
        if path.name != "CHANGELOG.md":
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
                yield f"{path.relative_to(ROOT)}:{number}", line


def exists(dotted: str) -> bool:
    """True if ``.package.module.name`` is a module, or a word in one."""
    place = SOURCE
    names = dotted.strip(".").split(".")
    while names and (place / names[0]).is_dir():
        place /= names.pop(0)
    file = place / f"{names.pop(0)}.py" if names and (place / f"{names[0]}.py").is_file() else place / "__init__.py"
    return not names or re.search(rf"\b{names[0]}\b", file.read_text(encoding="utf-8")) is not None


def test_named_modules_exist() -> None:
    result = [(where, name) for where, line in lines([*PAGES, *CODE]) for name in DOTTED.findall(line)]
    assert len(result) > 1000
    assert [(where, name) for where, name in result if name not in NO_MODULES and not exists(name)] == []
    assert not exists(".core.storage.sha256_files")
    assert not exists(".inference.no_such_module")


def test_named_files_exist() -> None:
    tops = (ROOT, SOURCE, SOURCE.parent, ROOT / "docs")
    result = [(where, name) for where, line in lines([*PAGES, *CODE]) for name in FILE.findall(line)]
    assert len(result) > 100
    missing = [
        (where, name)
        for where, name in result
        if not any((top / name).is_file() for top in (*tops, (ROOT / where.partition(":")[0]).parent))
    ]
    assert {name for _, name in missing} == set(ELSEWHERE), missing


def test_the_architecture_page_lists_every_package() -> None:
    table = [line for line in (ROOT / "docs" / "architecture.md").read_text().splitlines() if line.startswith("|")]
    named = [room for line in table for room in PACKAGE.findall(line)]
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir() and list(path.glob("*.py"))}
    assert sorted(named) == sorted(rooms)


def anchors(page: Path) -> set[str]:
    """The headings of a page as links spell them."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_links_between_pages_resolve() -> None:
    for page in PAGES:
        for link in LINK.findall(page.read_text(encoding="utf-8")):
            if "://" in link:
                continue
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            assert target.exists(), (page.name, link)
            assert not anchor or anchor in anchors(target), (page.name, link)


def test_child_processes_import_the_package_under_test(tmp_path: Path) -> None:
    code = "import radweave, tests.toys; print(radweave.__file__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == radweave.__file__
