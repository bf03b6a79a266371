"""CSV that a spreadsheet shows as text: no cell of it is run as a formula."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence

_FORMULA = re.compile(r"\s*[=+\-@\t\r＝＋－＠]")
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")


def csv_line(cells: Sequence[str]) -> str:
    """One record. A cell that a spreadsheet would take for a formula gets an apostrophe in front; numbers stay."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow([_harmless(cell) for cell in cells])
    return buffer.getvalue()


def _harmless(cell: str) -> str:
    return f"'{cell}" if _FORMULA.match(cell) and not _NUMBER.fullmatch(cell) else cell
