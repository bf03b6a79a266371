"""The files that go with the package agree with it: citation, container, what the wheel takes along."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch

import yaml

import radweave
from tests.toys import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_version_and_licence_are_the_same_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    project = PROJECT["project"]
    assert project["version"] == radweave.__version__ == citation["version"]
    assert project["license"] == citation["license"]
    assert citation["type"] == "software"
    assert "doi" not in citation, "none was given to it"


def test_the_container_runs_as_a_user_and_copies_what_exists() -> None:
    lines = (ROOT / "Dockerfile").read_text("utf-8").splitlines()
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users
    assert users[-1] not in ("root", "0")
    assert max(place for place, line in enumerate(lines) if line.startswith("RUN")) < lines.index(f"USER {users[-1]}")
    ignored = (ROOT / ".dockerignore").read_text("utf-8")
    for line in lines:
        if line.startswith("COPY ") and "--from" not in line:
            for name in line.split()[1:-1]:
                assert (ROOT / name).exists(), name
                assert f"!{name}\n" in ignored, name


def test_every_file_of_the_package_is_python_or_goes_into_the_wheel() -> None:
    patterns = [pattern.removeprefix("**/") for pattern in PROJECT["tool"]["setuptools"]["package-data"]["radweave"]]
    left = [
        path.name
        for path in (ROOT / "src/radweave").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".py"
        and not any(fnmatch(path.name, pattern) for pattern in patterns)
    ]  # fmt: skip
    assert left == []


def test_the_sdist_holds_what_the_tests_read() -> None:
    included = {name for line in (ROOT / "MANIFEST.in").read_text("utf-8").splitlines() for name in line.split()[1:]
            if line.startswith(("graft ", "include "))}  # fmt: skip
    assert [name for name in included if not (ROOT / name).exists()] == []
    included |= {"src", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"}
    read = {
        name
        for path in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"\bROOT / f?[\"']([^\"'/{]+)", path.read_text("utf-8"))
    }
    assert {"src", "docs", "CITATION.cff"} <= read
    assert read - included == {"build"}, "which is made"


def test_the_versions_of_python_that_are_declared_begin_with_the_least() -> None:
    result = [line.rpartition(" ")[2] for line in PROJECT["project"]["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert result == ["3.11", "3.12", "3.13"]
    assert PROJECT["project"]["requires-python"] == f">={result[0]}"
