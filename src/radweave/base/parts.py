"""Reports of two parts, findings and impression, each under its heading: put together, and taken apart again.

whole({"findings": "The lungs are clear.", "impression": "Normal."})
# "FINDINGS: The lungs are clear. IMPRESSION: Normal."
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

PARTS: Final = ("findings", "impression")
NO_PART: Final = ""
"""The part of a report that has no headings."""

# In capitals anywhere; a tokenizer may make them small, and then only where a sentence begins.
_HEADING = re.compile(r"\b(FINDINGS|IMPRESSION)\s*:\s*|(?:\A\s*|(?<=[.!?]\s))(?i:(findings|impression))\s*:\s*")


def whole(parts: Mapping[str, str]) -> str:
    """One text of those parts that say something, findings first, each under its heading; ``NO_PART`` has none."""
    said = [parts.get(NO_PART, ""), *(f"{name.upper()}: {parts[name]}" for name in PARTS if parts.get(name))]
    return " ".join(text for text in said if text)


def parts_of(text: str) -> dict[str, str]:
    """The parts of a text by its headings; none of a text without any.

    No word but headings is lost: what stands before the first is findings, and a part that comes again goes on.
    """
    said: dict[str, list[str]] = {}
    for name, piece in _pieces(text):
        if piece:
            said.setdefault(name, []).append(piece)
    return {name: " ".join(said[name]) for name in PARTS if name in said}


def without_headings(text: str) -> str:
    """The text without headings, findings first; one without any as it is."""
    return " ".join(parts_of(text).values()) or text


def is_parted(text: str) -> bool:
    """Whether a text is as ``whole`` writes both parts."""
    parts = parts_of(text) if text.startswith("FINDINGS: ") else {}
    return len(parts) == len(PARTS) and whole(parts) == text


def _pieces(text: str, first: str = NO_PART) -> list[tuple[str, str]]:
    """Part and text from one heading to the next, without headings; nothing where there is none and no ``first`` part.

    ``first`` is the part that what stands before any heading goes on with.
    """
    headings = list(_HEADING.finditer(text))
    if not headings and not first:
        return []
    ends = [*(heading.start() for heading in headings), len(text)]
    named = [
        ((heading[1] or heading[2]).lower(), text[heading.end() : end].strip())
        for heading, end in zip(headings, ends[1:], strict=True)
    ]
    return [(first or PARTS[0], text[: ends[0]].strip()), *named]


def joined(sentences: Iterable[tuple[str, str]]) -> str:
    """One text of sentences, each with its part, in the order in which they stand within it."""
    said: dict[str, list[str]] = {}
    for part, text in sentences:
        said.setdefault(part, []).append(text)
    return whole({part: " ".join(texts) for part, texts in said.items()})


def rows_by_part(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows about sentences of a report of two parts, by their ``text``: without headings, with their ``section``."""
    found: list[dict[str, Any]] = []
    last = PARTS[0]
    for row in rows:
        said = _pieces(str(row.get("text", "")), row.get("section", last))
        found += [{**row, "section": part, "text": text} for part, text in said if text]
        last = said[-1][0]
    return found


def sections_of(text: str, target: str) -> dict[str, str]:
    """What a draft says by section, of a run that learned ``target``: one section, unless the draft has headings."""
    parts = parts_of(text) if target == "both" else {}
    if parts or not text.strip():
        return parts
    return {"impression" if target == "impression" else "findings": text}
