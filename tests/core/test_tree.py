"""Which package the tests test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import radweave


def test_processes_that_tests_start_import_the_package_under_test(tmp_path: Path) -> None:
    code = "import radweave, toys; print(radweave.__file__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == radweave.__file__
