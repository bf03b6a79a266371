"""The parts list has the parts of the lock, each once, and says of none where it was installed."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

import radweave
from tests.toys import ROOT

TEXT = (ROOT / "deploy" / "sbom.cdx.json").read_text("utf-8")
LIST: dict[str, Any] = json.loads(TEXT)
PARTS: list[dict[str, Any]] = LIST["components"]


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_parts_list_is_the_lock() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    lock = dict(line.split("#")[0].strip().split("==") for line in lines if line.split("#")[0].strip())
    assert len(lock) > 100
    assert {plain(part["name"]): part["version"] for part in PARTS} == {plain(name): lock[name] for name in lock}
    assert len(PARTS) == len(lock)
    for part in PARTS:
        name, version = part["purl"].removeprefix("pkg:pypi/").split("@")
        assert (plain(name), version) == (plain(part["name"]), part["version"])


def test_the_parts_list_is_current_and_consistent() -> None:
    root = LIST["metadata"]["component"]
    assert (LIST["bomFormat"], LIST["specVersion"]) == ("CycloneDX", "1.6")
    assert (root["name"], root["version"]) == ("radweave", radweave.__version__)
    refs = [root["bom-ref"], *(part["bom-ref"] for part in PARTS)]
    assert len(set(refs)) == len(refs)
    rows = {row["ref"]: row.get("dependsOn", []) for row in LIST["dependencies"]}
    assert set(rows) == set(refs)
    assert {ref for below in rows.values() for ref in below} <= set(refs)
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    direct = {plain(re.split(r"[^\w.-]", text)[0]) for text in stated}
    names = {part["bom-ref"]: plain(part["name"]) for part in PARTS}
    assert {names[ref] for ref in rows[root["bom-ref"]]} == direct
    licensed = {plain(part["name"]) for part in PARTS if part.get("licenses")}
    assert len(licensed & direct) > len(direct) - 3


def test_the_parts_list_names_no_place_of_a_machine() -> None:
    assert not re.search(r"file:|/(home|work|root|tmp|opt)/", TEXT)
