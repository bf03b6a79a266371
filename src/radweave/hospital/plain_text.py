"""The report as text: sections, what must be looked at, probabilities, who wrote it. It names no patient."""

from __future__ import annotations

from radweave.hospital.finished import FinishedReport
from radweave.hospital.words import addendum_lines, caution_lines, evidence_lines


def write_text(report: FinishedReport) -> bytes:
    """The report as UTF-8, lines end with a line feed."""
    sections = [f"{section.title.upper()}\n{section.text}" for section in report.sections]
    sections += [f"{heading.upper()}\n{text}" for heading, text in addendum_lines(report)]
    before, after = "\n".join(caution_lines(report)), "\n".join(evidence_lines(report))
    return ("\n\n".join([report.study_id, before, *sections, after]) + "\n").encode()
