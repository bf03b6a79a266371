"""What the page's buttons copy: plain text that says of itself that it is a draft of research software."""

from __future__ import annotations

from collections.abc import Sequence

from radweave.base.study import LabelState, Report
from radweave.explain.support import SAID, Finding, Support


def draft_text(report: Report, banner: Sequence[str]) -> str:
    """The draft, with the notice below it: a text on a clipboard has lost its page."""
    return f"{report.text}\n\n{_below(report, banner)}"


def finding_text(finding: Finding, support: Support, report: Report, banner: Sequence[str]) -> str:
    """What is known of a class, and the sentences that speak of it."""
    lines = {line.number: "".join(text for text, _ in line.parts) for line in support.sentences}
    known = [] if finding.probability is None else [
        f"probability {finding.probability:.2f}, taken as there from {finding.threshold:.2f} on"
    ]  # fmt: skip
    known += [finding.experience] if finding.experience else []
    said = "not mentioned in the draft" if finding.said is LabelState.BLANK else f"{SAID[finding.said]} in the draft"
    known += [said, *([finding.flag] if finding.flag else [])]
    quoted = [f'"{lines[number]}"' for number in (*finding.sentences, *finding.otherwise)]
    return "\n".join([f"{finding.name}: {'; '.join(known)}.", *quoted, "", _below(report, banner)])


def _below(report: Report, banner: Sequence[str]) -> str:
    warnings = "".join(f" {warning[0].upper()}{warning[1:]}." for warning in banner)
    return f"Draft by Radweave, study {report.study_id}. {report.notice}{warnings}"
