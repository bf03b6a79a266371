"""Sections of a free-text radiology report, by its headings.

Rules, in our own words; they were written for reports like those of MIMIC-CXR and hold for any report with headings:

1. A heading stands at the start of a line, or after a sentence, and ends with a colon. It is one of the names below
   in any case (``Findings:``), or a line start in capitals (``PORTABLE CHEST:``).
2. What stands before the line FINAL REPORT is a preliminary reading and is dropped; so is a section WET READ.
3. Where no section is called findings, the text under a heading that names the images ("PA AND LATERAL VIEWS OF THE
   CHEST:") counts as findings; else the paragraphs that follow an indication, comparison or technique.
4. Of two sections of one name the last with text counts; an addendum is a section of its own and counts for none.
5. "FINDINGS AND IMPRESSION" counts as findings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_FINDINGS = ("findings", "finding", "findings and impression", "findings/impression", "findings / impression")
_IMPRESSION = ("impression", "impressions", "conclusion", "conclusions", "summary", "opinion")
_INDICATION = (
    "indication",
    "indications",
    "history",
    "clinical history",
    "clinical indication",
    "clinical information",
    "reason for exam",
    "reason for examination",
    "reason for study",
    "reason",
)
_COMPARISON = ("comparison", "comparisons", "comparison exam", "comparison study")
_TECHNIQUE = ("technique", "procedure", "method")
_OTHER = (
    "examination",
    "exam",
    "study",
    "wet read",
    "preliminary report",
    "addendum",
    "recommendation",
    "recommendations",
    "recommendation(s)",
    "notification",
    "notifications",
    "note",
    "final report",
)
_SECTION_OF = {
    **dict.fromkeys(_FINDINGS, "findings"),
    **dict.fromkeys(_IMPRESSION, "impression"),
    **dict.fromkeys(_INDICATION, "indication"),
    **dict.fromkeys(_COMPARISON, "comparison"),
    **dict.fromkeys(_TECHNIQUE, "technique"),
    **dict.fromkeys(_OTHER, "other"),
}
_KNOWN = "|".join(re.escape(name) for name in sorted(_SECTION_OF, key=len, reverse=True))
_HEADING = re.compile(
    rf"""(?:^[ \t]*|(?<=[.!?;])[ \t]+(?=[A-Z]))(?P<known>(?i:{_KNOWN}))[ \t]*:
       | ^[ \t]*(?P<capitals>[A-Z][A-Z0-9 ,/&()'-]{{2,79}}):""",
    re.MULTILINE | re.VERBOSE,
)
_FINAL_REPORT = re.compile(r"^[ \t]*FINAL (?:REPORT|ADDENDUM)[ \t]*:?[ \t]*$", re.MULTILINE)
_NAMES_IMAGES = re.compile(
    r"\b(?:CHEST|THORAX|RADIOGRAPHS?|VIEWS?|X-?RAYS?|PORTABLE|PA|AP|LATERAL|FRONTAL|LUNGS?|HEART)\b"
)
_RULE = re.compile(r"[_=*-]{4,}")
_PARAGRAPH = re.compile(r"\n[ \t]*\n")
_BLANKS = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Sections:
    """The sections of one report; None where it has no such section, or an empty one."""

    findings: str | None = None
    impression: str | None = None
    indication: str | None = None
    comparison: str | None = None
    technique: str | None = None


def has_headings(text: str) -> bool:
    """Whether a text tells its findings or its impression apart."""
    return any(
        _SECTION_OF.get((m["known"] or "").lower()) in ("findings", "impression") for m in _HEADING.finditer(text)
    )


def parse_sections(text: str) -> Sections:
    """Find the sections of a report; blanks are squeezed, nothing else is changed."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    finals = list(_FINAL_REPORT.finditer(text))
    if finals:
        text = text[finals[-1].end() :]
    found: dict[str, str] = {}
    untitled: list[str] = []
    about_images: list[str] = []
    for heading, body in _split(text):
        name = _SECTION_OF.get(heading.lower())
        if name in ("indication", "comparison", "technique"):
            first, rest = _first_paragraph(body)
            found[name] = first or found.get(name, "")
            untitled += rest
        elif name in ("findings", "impression"):
            found[name] = _squeeze(body) or found.get(name, "")
        elif name is None and heading and _NAMES_IMAGES.search(heading):
            about_images.append(_squeeze(body))
    if not found.get("findings"):
        found["findings"] = " ".join(part for part in about_images if part) or " ".join(untitled)
    elif untitled:
        # With titled findings, a later paragraph belongs to the section it stands in; we only keep its first.
        untitled.clear()
    return Sections(**{name: value or None for name, value in found.items()})


def _split(text: str) -> Iterator[tuple[str, str]]:
    """Yield ``(heading, body)``; the text before the first heading is left out."""
    headings = list(_HEADING.finditer(text))
    for index, match in enumerate(headings):
        end = headings[index + 1].start() if index + 1 < len(headings) else len(text)
        yield (match["known"] or match["capitals"]).strip(), text[match.end() : end]


def _first_paragraph(body: str) -> tuple[str, list[str]]:
    paragraphs = [_squeeze(part) for part in _PARAGRAPH.split(body)]
    paragraphs = [part for part in paragraphs if part]
    return (paragraphs[0], paragraphs[1:]) if paragraphs else ("", [])


def _squeeze(text: str) -> str:
    """One line of text; drawn rules go, the three underscores of a de-identified word stay."""
    return _BLANKS.sub(" ", _RULE.sub(" ", text)).strip()
