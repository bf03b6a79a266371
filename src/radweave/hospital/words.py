"""A report's status and evidence in plain sentences, the same in every format."""

from __future__ import annotations

from radweave.base.study import LabelState
from radweave.hospital.finished import MAKER, Finding, FinishedReport, Signature

PRELIMINARY = "Preliminary: an unverified draft by software, not signed by a radiologist."
SAID = {
    LabelState.POSITIVE: "stated",
    LabelState.NEGATIVE: "denied",
    LabelState.UNCERTAIN: "left open",
    LabelState.BLANK: "not mentioned",
}


def status_line(report: FinishedReport) -> str:
    """That it is a draft, or who signed it and when, and how many addenda follow; or who rejected it."""
    if report.rejected is not None:
        return f"Rejected by {_whose(report.rejected)}. This is no report."
    signature = report.signature
    if signature is None:
        return PRELIMINARY
    more = (
        f" With {len(report.addenda)} {'addendum' if len(report.addenda) == 1 else 'addenda'}."
        if report.addenda
        else ""
    )
    return f"Signed by {_whose(signature)}. Drafted by software.{more}"


def addendum_lines(report: FinishedReport) -> list[tuple[str, str]]:
    """Each addendum: its heading with who signed it and when, and its text."""
    return [
        (f"Addendum {number}, signed by {_whose(one.signature)}", one.text)
        for number, one in enumerate(report.addenda, start=1)
    ]


def document_title(report: FinishedReport) -> str:
    """What the report is called as a document."""
    if report.rejected is not None:
        return "Chest imaging, notice of a rejected draft"
    return "Chest imaging report" + ("" if report.is_final else ", unverified draft")


def _whose(signature: Signature) -> str:
    time = signature.time.strftime("%Y-%m-%d %H:%M %z")
    return f"{spoken_name(signature.name)}, {signature.organization}, {time}"


def model_line(report: FinishedReport) -> str:
    """Which software and model wrote the draft."""
    model = report.model
    return f"{MAKER} {model.version}, method {model.method} ({model.preset}), model {model.digest[:12]}"


def caution_lines(report: FinishedReport) -> list[str]:
    """What stands before the text: its status, the notice, warnings; one line each."""
    return [status_line(report), report.notice, *(f"Warning: {warning}" for warning in report.warnings)]


def evidence_lines(report: FinishedReport) -> list[str]:
    """What stands after the text: what must be looked at, probabilities, the model; one line each."""
    return [
        *(f"To be looked at: {finding.name}: {finding.flag}" for finding in report.findings if finding.flag),
        *(f'To be looked at: "{sentence.text}" ({sentence.why})' for sentence in report.flagged),
        *(finding_line(finding) for finding in report.findings if finding.probability is not None),
        f"Written by {model_line(report)}",
    ]


def finding_line(finding: Finding) -> str:
    """A class with its probability and what the report says of it."""
    if finding.probability is None:
        return f"{finding.name}: {SAID[finding.said]} in the report"
    return (
        f"{finding.name}: probability {finding.probability:.2f} (taken to be there from {finding.threshold:.2f}),"
        f" {SAID[finding.said]} in the report"
    )


def spoken_name(name: str) -> str:
    """A name in DICOM's form as people read it: "Prefix Given Middle Family, Suffix", further scripts in brackets."""
    groups = [_one_name(group) for group in name.split("=")]
    named = [group for group in groups if group]
    return named[0] + "".join(f" ({group})" for group in named[1:]) if named else ""


def _one_name(group: str) -> str:
    family, given, middle, prefix, suffix = (part.strip() for part in [*group.split("^"), *[""] * 4][:5])
    spoken = " ".join(part for part in (prefix, given, middle, family) if part)
    return f"{spoken}, {suffix}" if suffix else spoken


def spoken_date(date: str) -> str:
    """A date of DICOM (YYYYMMDD) as ISO 8601 has it; "" stays."""
    return f"{date[:4]}-{date[4:6]}-{date[6:8]}" if len(date) == 8 else date
