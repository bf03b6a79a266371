"""The tutorials: cells that parse, modules and names that are there, no output kept. ``make notebooks`` runs them."""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from docs.site.notebooks import as_markdown
from tests.docs.page_commands import NOTEBOOKS, commands

MOST_BYTES = 30_000
LINES_OF_A_METHOD = 60
MAGIC = re.compile(r"%%(bash -e|writefile [\w./]+)\n")


def cells(notebook: Path) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return result


def python(notebook: Path) -> Iterator[str]:
    """The code of its cells, without those for a shell."""
    for cell in cells(notebook):
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and not source.startswith("%%bash"):
            yield MAGIC.sub("", source)


def unknown(code: str) -> list[str]:
    """Modules that are imported and not there, and such names of this package's modules."""
    missing = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            missing += [name.name for name in node.names if find_spec(name.name) is None]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if find_spec(module) is None:
                missing.append(module)
            elif module.startswith("radweave"):
                present = importlib.import_module(module)
                missing += [name.name for name in node.names if not hasattr(present, name.name)]
    return missing


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_parse_and_their_imports_exist(notebook: Path) -> None:
    code = list(python(notebook))
    assert code or commands(notebook)
    assert [name for part in code for name in unknown(part)] == []
    for cell in cells(notebook):
        source = "".join(cell["source"])
        # Without -e a command that fails in the middle of a cell is not noticed.
        assert not source.startswith("%%") or MAGIC.match(source), source


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_have_no_output_and_a_title(notebook: Path) -> None:
    retained = [cell for cell in cells(notebook) if cell.get("outputs") or cell.get("execution_count")]
    assert retained == []
    assert notebook.stat().st_size < MOST_BYTES
    assert "Research software, not a medical device" in as_markdown(notebook)


def test_a_missing_name_is_detected() -> None:
    assert unknown("from radweave.engine.train import train, trian") == ["trian"]
    assert unknown("import json, no_such_module") == ["no_such_module"]


def test_all_kinds_of_cells_become_a_page(tmp_path: Path) -> None:
    sources = [
        ("markdown", "# Title\n\nText."),
        ("code", "%%bash -e\nradweave methods"),
        ("code", "%%writefile mine/a.py\nx = 1"),
        ("code", "x + 1"),
    ]
    book = tmp_path / "some.ipynb"
    rows = [{"cell_type": kind, "source": text.splitlines(keepends=True)} for kind, text in sources]
    book.write_text(json.dumps({"cells": rows}))
    page = as_markdown(book)
    assert page.startswith('# Title\n\n<a href="some.ipynb" download>')
    assert "```bash\nradweave methods\n```" in page
    assert '```python title="mine/a.py"\nx = 1\n```' in page
    assert page.endswith("```python\nx + 1\n```\n")
    assert [command.words for command in commands(book)] == [("methods",)]


def test_the_method_of_ones_own_is_short() -> None:
    (code,) = (
        part for part in python(NOTEBOOKS[0].with_name("new_method.ipynb")) if "PRESETS" in part and "class" in part
    )
    assert 30 < len([line for line in code.splitlines() if line.strip()]) <= LINES_OF_A_METHOD
