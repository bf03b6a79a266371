"""HL7 version 2.5.1: an unsolicited observation result, ORU^R01, of one report.

    MSH  PID  ORC  OBR  OBX ...

Text goes in FT fields, whose lines may be broken by ``\\.br\\`` (in TX that means nothing: HL7 2.5.1 Sec. 2.7.6),
probabilities in NM fields. Delimiters in texts are escaped (Sec. 2.7), so that no text can begin a field or a segment.
A signed report has the order number of its draft and replaces it. With an addendum the whole report is sent as a
correction (C), which replaces a final result (tables 0085 and 0123).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from radweave.core.errors import InputError
from radweave.core.study import LabelState
from radweave.workstation import structured_reports
from radweave.workstation.finished import (
    MAKER,
    FinishedReport,
    Signature,
    addendum_lines,
    caution_lines,
    evidence_lines,
    name_parts,
    named_uuid,
    report_key,
    report_uid,
)
from radweave.workstation.identity import Identity
from radweave.workstation.structured_reports import Code, free_code_of

_ESCAPES: Final = str.maketrans({"\\": "\\E\\", "|": "\\F\\", "^": "\\S\\", "&": "\\T\\", "~": "\\R\\"})
_LINE_BREAK: Final = "\\.br\\"
_SECTION_CODES: Final = {
    "indication": structured_reports.INDICATION_TEXT, "technique": structured_reports.TECHNIQUE_TEXT,
    "comparison": structured_reports.COMPARISON_TEXT, "findings": structured_reports.FINDINGS_TEXT,
    "impression": structured_reports.IMPRESSION_TEXT,
}  # fmt: skip
_NOTE_CODE: Final = Code("NOTE", "L", "Note")
# HL7 table 0465: the groups of a DICOM name (PS3.5 Sec. 6.2.1.1) are alphabetic, ideographic and phonetic.
_WRITINGS: Final = ("A", "I", "P")
# HL7 table 0078: the state of a class.
_FLAGS: Final = {LabelState.POSITIVE: "POS", LabelState.NEGATIVE: "NEG", LabelState.UNCERTAIN: "IND"}


def write_hl7(report: FinishedReport) -> bytes:
    """The message in UTF-8; segments end with a carriage return.

    Raises:
        InputError: if the images do not state a patient id.
    """
    patient = report.patient
    if not patient.patient_id:
        raise InputError("is missing in the images, so the message names no patient", field="PatientID")
    order = ["ORC", "RE", escaped(patient.accession_number), _filler(report)]
    segments = [_header(report), _patient(patient), order, _request(report), *_observations(report)]
    return "".join("|".join(fields).rstrip("|") + "\r" for fields in segments).encode()


def escaped(text: str) -> str:
    """A text as the value of a field: delimiters escaped, lines broken by ``\\.br\\``."""
    lines = text.translate(_ESCAPES).splitlines()
    return _LINE_BREAK.join("".join(sign for sign in line if sign.isprintable()) for line in lines)


def _component(*values: str) -> str:
    return "^".join(escaped(value) for value in values).rstrip("^")


def _coded(code: Code) -> str:
    """A code as CE: identifier, text, name of the system."""
    return _component(code.value, code.meaning, code.scheme)


def _time(report: FinishedReport) -> str:
    return report.released.strftime("%Y%m%d%H%M%S%z")


def _status(report: FinishedReport) -> str:
    """Tables 0085 and 0123: preliminary, final, or a correction of a final report."""
    if report.addenda:
        return "C"
    return "F" if report.is_final else "P"


def _header(report: FinishedReport) -> list[str]:
    # MSH-10 has at most twenty characters.
    control = named_uuid("message", *report_key(report)).hex[:20].upper()
    return [
        "MSH", "^~\\&", MAKER.upper(), "", "", "", _time(report), "", "ORU^R01^ORU_R01", control, "P", "2.5.1",
        "", "", "", "", "", "UNICODE UTF-8",
    ]  # fmt: skip


def _patient(patient: Identity) -> list[str]:
    issuer = _component("", "", "", patient.issuer_of_patient_id, "PI")
    identifier = escaped(patient.patient_id) + issuer
    groups = zip(patient.patient_name.split("="), _WRITINGS, strict=False)
    names = "~".join(_name(group, writing) for group, writing in groups)
    sex = {"M": "M", "F": "F", "O": "O"}.get(patient.patient_sex, "U")
    return ["PID", "1", "", identifier, "", names, "", patient.patient_birth_date, sex]


def _name(group: str, writing: str) -> str:
    """A group of a DICOM name as XPN: family, given, middle, suffix, prefix, representation."""
    if not group:
        return ""
    family, first, middle, prefix, suffix = name_parts(group)
    return _component(family, first, middle, suffix, prefix, "", "", writing)


def _filler(report: FinishedReport) -> str:
    return _component(report_uid(report), MAKER)


def _request(report: FinishedReport) -> list[str]:
    """OBR-25 is the status; OBR-32 the reader who signed."""
    patient, signature = report.patient, report.signature
    fields = [""] * 33
    fields[:5] = ["OBR", "1", escaped(patient.accession_number), _filler(report), _coded(structured_reports.REPORT)]
    fields[7] = patient.study_date + patient.study_time.split(".")[0] if patient.study_date else ""
    fields[22] = _time(report)
    fields[25] = _status(report)
    if signature is not None:
        fields[32] = "&".join(_person(signature)).rstrip("&")
    return fields


def _person(signature: Signature) -> list[str]:
    """Number (none), family, given, middle, suffix and prefix of the signer."""
    family, first, middle, prefix, suffix = name_parts(signature.name.split("=")[0])
    return [escaped(part) for part in ("", family, first, middle, suffix, prefix)]


def _observations(report: FinishedReport) -> Iterator[list[str]]:
    rows: list[tuple[str, Code, str, str]] = []
    signers: dict[int, str] = {}
    rows += [("FT", _NOTE_CODE, line, "") for line in caution_lines(report)]
    rows += [("FT", _SECTION_CODES[section.kind], section.text, "") for section in report.sections]
    for (heading, text), addendum in zip(addendum_lines(report), report.addenda, strict=True):
        rows.append(("FT", structured_reports.ADDENDUM, f"{heading}\n{text}", ""))
        signers[len(rows)] = "^".join(_person(addendum.signature)).rstrip("^")
    rows += [("FT", _NOTE_CODE, line, "") for line in evidence_lines(report)]
    for finding in report.findings:
        if finding.probability is not None:
            free = free_code_of(finding.name)
            rows.append(("NM", free, f"{finding.probability:.4f}", _FLAGS.get(finding.state, "")))
    if study := report.patient.study_instance_uid:
        rows.append(("ST", Code("113014", "DCM", "Study"), study, ""))
    repeats: Counter[Code] = Counter()
    for number, (kind, code, value, flag) in enumerate(rows, start=1):
        repeats[code] += 1
        unit = "1^no units^UCUM" if kind == "NM" else ""
        yield [
            "OBX", str(number), kind, _coded(code), str(repeats[code]), escaped(value), unit, "", flag, "", "",
            _status(report), "", "", _time(report), "", signers.get(number, ""), "",
            _component(MAKER, report.model.method),
        ]  # fmt: skip


def write_text(report: FinishedReport) -> bytes:
    """The report as plain UTF-8 text, which names no patient."""
    sections = [f"{section.title.upper()}\n{section.text}" for section in report.sections]
    sections += [f"{heading.upper()}\n{text}" for heading, text in addendum_lines(report)]
    before, after = "\n".join(caution_lines(report)), "\n".join(evidence_lines(report))
    return ("\n\n".join([report.study_id, before, *sections, after]) + "\n").encode()
