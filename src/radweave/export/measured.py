"""The test scores of a model card: what ``radweave evaluate --out`` wrote, with intervals and floors, or none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from radweave.base.errors import InputError
from radweave.base.json_files import read_json_object
from radweave.evaluation.result import FORMAT
from radweave.evaluation.tables.formats import TextTable, markdown_tables
from radweave.evaluation.tables.report import floor_table, language_table


def scores_page(path: Path) -> str:
    """Scores with intervals, the floors beside them, and what a reader must not overlook, as Markdown.

    Raises:
        InputError: if the file is not one evaluation's.
    """
    result: Mapping[str, Any] = read_json_object(path)
    if result.get("format") != FORMAT:
        expected = "evaluation.json of 'radweave evaluate PREDICTIONS --out DIR', for one run"
        raise InputError("not the scores of a run", file=path, got=result.get("format"), expected=expected)
    try:
        tables = [language_table({"": result}), *([floor_table(result)] if result["floors"] else [])]
        if result["warnings"]:
            tables.append(TextTable("Mind", notes=tuple(str(sentence) for sentence in result["warnings"])))
        return markdown_tables(tables)
    except (KeyError, TypeError, AttributeError, ValueError):
        raise InputError("not the scores of a run: parts of it are missing or changed", file=path) from None
