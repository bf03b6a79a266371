"""The parts list of the lock, as CycloneDX: names and versions from constraints.txt, licences from what is installed.

    make sbom

Both lists that it joins are written by CycloneDX's own tool, and what comes out is held against CycloneDX's schema.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "deploy" / "sbom.cdx.json"


def plain(name: str) -> str:
    """A name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def joined(lock: dict[str, Any], installed: dict[str, Any]) -> dict[str, Any]:
    """The parts of the lock, each with the licences that its installed version states, and what needs what.

    Nothing of it says where something is installed.
    """
    there = {(plain(part["name"]), part["version"].partition("+")[0]): part for part in installed["components"]}
    names = {part["bom-ref"]: plain(part["name"]) for part in installed["components"]}
    needs = {names.get(row["ref"], ""): row.get("dependsOn", ()) for row in installed["dependencies"]}
    refs = {plain(part["name"]): part["purl"] for part in lock["components"]}
    parts, rows = [], []
    for part in sorted(lock["components"], key=lambda one: one["purl"]):
        found = there.get((plain(part["name"]), part["version"]), {})
        kept = {name: part[name] for name in ("type", "name", "version", "purl")}
        licences = {"licenses": found["licenses"]} if "licenses" in found else {}
        parts.append({"bom-ref": part["purl"], **kept, **licences})
        below = {refs[names[ref]] for ref in needs.get(plain(part["name"]), ()) if names.get(ref) in refs}
        rows.append({"ref": part["purl"], **({"dependsOn": sorted(below)} if below else {})})
    root = lock["metadata"]["component"]
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    direct = sorted(refs[plain(re.split(r"[^\w.-]", text)[0])] for text in stated)
    return {
        "$schema": lock["$schema"], "bomFormat": "CycloneDX", "specVersion": lock["specVersion"], "version": 1,
        "metadata": {"component": root},
        "components": parts,
        "dependencies": [{"ref": root["bom-ref"], "dependsOn": direct}, *rows],
    }  # fmt: skip


def main() -> None:
    """Join the two lists that are named, hold the outcome against the schema, and write it."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    lock, installed = (json.loads(Path(name).read_text("utf-8")) for name in sys.argv[1:3])
    text = json.dumps(joined(lock, installed), indent=1, ensure_ascii=False) + "\n"
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if problem is not None:
        raise SystemExit(f"not as CycloneDX has it: {problem}")
    OUT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
