"""Fixtures for all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder with the real test data: ``RADWEAVE_TEST_DATA``, or ``shared/data`` beside the checkout; else skip."""
    given = os.environ.get("RADWEAVE_TEST_DATA")
    folder = Path(given) if given else ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("real test data is not here (set RADWEAVE_TEST_DATA to its folder)")
    return folder
