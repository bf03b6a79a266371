"""Which package the tests test."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import radweave
from conftest import ROOT


def test_processes_that_tests_start_import_the_package_under_test(tmp_path: Path) -> None:
    code = "import radweave, conftest; print(radweave.__file__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == radweave.__file__


def test_test_modules_have_names_of_their_own() -> None:
    """Two of one name in different folders cannot be collected in one run."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("*.py"))
    assert [name for name, count in names.items() if count > 1] == []
