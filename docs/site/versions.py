"""Several versions of the site beside each other: ``python docs/site/versions.py build/site build/versions``.

The site that was built goes into OUT/VERSION, in place of the one that was there; OUT/index.html lists all versions,
newest first. Nothing in it needs a script or a network.
"""

from __future__ import annotations

import html
import shutil
import sys
import tomllib
from pathlib import Path

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Radweave: versions of the documentation</title></head>
<body><main><h1>Radweave: versions of the documentation</h1>
<p>Research software, not a medical device.</p>
<ul>
{rows}
</ul></main></body></html>
"""


def keep(site: Path, out: Path, version: str) -> list[str]:
    """Put ``site`` into ``out`` as ``version``; return all versions that are there, newest first."""
    if not (site / "index.html").is_file():
        raise SystemExit(f"{site}: no site was built there; run make docs")
    target, fresh = out / version, out / f".{version}.partial"
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(site, fresh)
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)
    versions = sorted(
        (path.parent.name for path in out.glob("*/index.html") if not path.parent.name.startswith(".")),
        key=numbers,
        reverse=True,
    )
    rows = "\n".join(f'<li><a href="{html.escape(name)}/index.html">{html.escape(name)}</a></li>' for name in versions)
    (out / "index.html").write_text(PAGE.format(rows=rows), encoding="utf-8")
    return versions


def numbers(version: str) -> tuple[tuple[int, int, str], ...]:
    """A version as it is ordered: 0.10 after 0.9, words before numbers."""
    return tuple((1, int(part), "") if part.isdigit() else (0, 0, part) for part in version.split("."))


if __name__ == "__main__":
    known = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    print(", ".join(keep(Path(sys.argv[1]), Path(sys.argv[2]), known)))
