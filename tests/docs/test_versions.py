"""Versions of the documentation stand beside each other, and a page lists them."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[2] / "docs" / "site" / "versions.py"


@pytest.fixture
def versions() -> Any:
    spec = importlib.util.spec_from_file_location("versions", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def site(folder: Path, words: str) -> Path:
    (folder / "api").mkdir(parents=True)
    (folder / "index.html").write_text(words)
    (folder / "api" / "page.html").write_text(words)
    return folder


def test_versions_stand_beside_each_other_newest_first(versions: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for version in ("0.9.0", "0.10.0", "0.2.0"):
        result = versions.keep(site(tmp_path / version, version), out, version)
    assert result == ["0.10.0", "0.9.0", "0.2.0"]
    page = (out / "index.html").read_text()
    assert re.findall(r'href="([^"]*)"', page) == [f"{version}/index.html" for version in result]
    assert "not a medical device" in page
    for version in result:
        assert (out / version / "api" / "page.html").read_text() == version


def test_a_version_that_is_built_again_takes_its_place(versions: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    versions.keep(site(tmp_path / "old", "old"), out, "0.1.0")
    (out / "0.1.0" / "gone.html").write_text("of a page that is no more")
    assert versions.keep(site(tmp_path / "new", "new"), out, "0.1.0") == ["0.1.0"]
    assert (out / "0.1.0" / "index.html").read_text() == "new"
    assert not (out / "0.1.0" / "gone.html").exists()
    with pytest.raises(SystemExit, match="no site was built there"):
        versions.keep(tmp_path / "nowhere", out, "0.2.0")
    assert sorted(path.name for path in out.iterdir()) == ["0.1.0", "index.html"], "nothing half-written"
