"""HL7 FHIR R4 and R5: a bundle with report, study, patient, device, and an observation for each probability.

SNOMED CT codes stand in DICOM objects only. Ids are derived from the report: a version that is sent twice is one
resource, and its identifier is the same from draft to signed report.
"""

from __future__ import annotations

import base64
from typing import Any, Final, Literal

from radweave.core.json_files import json_text
from radweave.core.study import LabelState
from radweave.workstation.finished import (
    MAKER,
    Finding,
    FinishedReport,
    Signature,
    addendum_lines,
    caution_lines,
    device_uid,
    document_title,
    evidence_lines,
    name_parts,
    named_uuid,
    report_key,
    report_uid,
    spoken_date,
    spoken_name,
)
from radweave.workstation.hl7 import write_text
from radweave.workstation.pdf import write_pdf
from radweave.workstation.structured_reports import PRIVATE_SCHEME, Code, free_code_of

Release = Literal["R4", "R5"]
Json = dict[str, Any]
SYSTEMS: Final = {
    "LN": "http://loinc.org",
    "DCM": "http://dicom.nema.org/resources/ontology/DCM",
    PRIVATE_SCHEME: "urn:radweave:findings",
}
_INTERPRETATIONS: Final = {
    LabelState.POSITIVE: ("POS", "Positive"),
    LabelState.NEGATIVE: ("NEG", "Negative"),
    LabelState.UNCERTAIN: ("IND", "Indeterminate"),
}
_SEXES: Final = {"M": "male", "F": "female", "O": "other"}


def write_fhir(report: FinishedReport) -> bytes:
    """The bundle as JSON, release 4."""
    return json_text(bundle(report, "R4")).encode()


def write_fhir_r5(report: FinishedReport) -> bytes:
    """The bundle as JSON, release 5."""
    return json_text(bundle(report, "R5")).encode()


def bundle(report: FinishedReport, release: Release) -> Json:
    """All resources, named by UUIDs derived from the report."""
    ids = _Ids(report)
    resources = [_diagnostic_report(report, ids, release), _device(report, ids, release)]
    if report.sources:
        resources += [_patient(report, ids), _imaging_study(report, ids, release)]
    resources += [_practitioner(signature, number, ids) for number, signature in enumerate(report.signatures)]
    resources += [_observation(finding, report, ids) for finding in _probable(report)]
    return {
        "resourceType": "Bundle",
        "id": ids.id("bundle"),
        "type": "collection",
        "timestamp": _time(report),
        "entry": [{"fullUrl": f"urn:uuid:{resource['id']}", "resource": resource} for resource in resources],
    }


class _Ids:
    """Ids of the resources of one report."""

    def __init__(self, report: FinishedReport) -> None:
        self._key = report_key(report)

    def id(self, kind: str) -> str:
        return str(named_uuid("fhir", kind, *self._key))

    def to(self, kind: str) -> Json:
        return {"reference": f"urn:uuid:{self.id(kind)}"}


def _probable(report: FinishedReport) -> list[Finding]:
    return [finding for finding in report.findings if finding.probability is not None]


def _time(report: FinishedReport) -> str:
    return report.released.isoformat(timespec="seconds")


def _concept(code: Code) -> Json:
    return {
        "coding": [{"system": SYSTEMS[code.scheme], "code": code.value, "display": code.meaning}],
        "text": code.meaning,
    }


_REPORT_CODE: Final = Code("18748-4", "LN", "Diagnostic imaging study")


def _diagnostic_report(report: FinishedReport, ids: _Ids, release: Release) -> Json:
    attachments = (("application/pdf", write_pdf(report)), ("text/plain; charset=utf-8", write_text(report)))
    resource: Json = {
        "resourceType": "DiagnosticReport",
        "id": ids.id("report"),
        "identifier": [{"system": "urn:ietf:rfc:3986", "value": f"urn:oid:{report_uid(report)}"}],
        "status": ("appended" if report.addenda else "final") if report.is_final else "preliminary",
        "category": [{"coding": [_RADIOLOGY]}],
        "code": _concept(_REPORT_CODE),
        "issued": _time(report),
        "result": [ids.to(f"finding {finding.name}") for finding in _probable(report)],
        "conclusion": "\n\n".join([report.text, *("\n".join(added) for added in addendum_lines(report))]),
        "presentedForm": [
            {
                "contentType": kind,
                "language": "en",
                "data": base64.b64encode(data).decode(),
                "title": document_title(report),
            }
            for kind, data in attachments
        ],
        "note": [{"text": line} for line in (*caution_lines(report), *evidence_lines(report))],
    }
    if release == "R4":  # R4 has no notes: they stand in both presented forms
        del resource["note"]
    if report.sources:
        resource["subject"] = ids.to("patient")
        resource["study" if release == "R5" else "imagingStudy"] = [ids.to("study")]
        if date := spoken_date(report.patient.study_date):
            resource["effectiveDateTime"] = date
    resource["resultsInterpreter"] = [ids.to(_signer(number)) for number in range(len(report.signatures))]
    if report.predecessor is not None:
        before = {"system": "urn:ietf:rfc:3986", "value": f"urn:uuid:{_Ids(report.predecessor).id('report')}"}
        resource["extension"] = [
            {"url": _REPLACES, "valueReference": {"type": "DiagnosticReport", "identifier": before}}
        ]
    return {name: value for name, value in resource.items() if value != []}


_RADIOLOGY: Final = {"system": "http://terminology.hl7.org/CodeSystem/v2-0074", "code": "RAD", "display": "Radiology"}


_REPLACES: Final = "http://hl7.org/fhir/StructureDefinition/diagnosticReport-replaces"


def _signer(number: int) -> str:
    return f"practitioner {number}" if number else "practitioner"


def _device(report: FinishedReport, ids: _Ids, release: Release) -> Json:
    model = report.model
    name = f"{MAKER} {model.method}"
    named: Json = (
        {"deviceName": [{"name": name, "type": "model-name"}]}
        if release == "R4"
        else {"name": [{"value": name, "type": "registered-name"}]}
    )
    version: Json = {"value": f"{model.version}, model {model.digest}"}
    return {
        "resourceType": "Device",
        "id": ids.id("device"),
        "identifier": [{"system": "urn:dicom:uid", "value": f"urn:oid:{device_uid(model)}"}],
        "manufacturer": MAKER,
        **named,
        "version": [version],
    }


def _patient(report: FinishedReport, ids: _Ids) -> Json:
    patient = report.patient
    resource: Json = {"resourceType": "Patient", "id": ids.id("patient")}
    if patient.patient_id:
        identifier: Json = {"value": patient.patient_id}
        if patient.issuer_of_patient_id:
            identifier["assigner"] = {"display": patient.issuer_of_patient_id}
        resource["identifier"] = [identifier]
    names = [_name(group) for group in patient.patient_name.split("=") if group.strip("^ ")]
    if names:
        resource["name"] = names
    if patient.patient_sex in _SEXES:
        resource["gender"] = _SEXES[patient.patient_sex]
    if patient.patient_birth_date:
        resource["birthDate"] = spoken_date(patient.patient_birth_date)
    return resource


def _name(group: str) -> Json:
    """A DICOM name as a HumanName."""
    family, first, middle, prefix, suffix = name_parts(group)
    parts: Json = {
        "text": spoken_name(group),
        "family": family,
        "given": [*first.split(), *middle.split()],
        "prefix": prefix.split(),
        "suffix": suffix.split(),
    }
    return {key: value for key, value in parts.items() if value}


def _practitioner(signature: Signature, number: int, ids: _Ids) -> Json:
    names = [_name(group) for group in signature.name.split("=") if group.strip("^ ")]
    return {"resourceType": "Practitioner", "id": ids.id(_signer(number)), "name": names}


def _imaging_study(report: FinishedReport, ids: _Ids, release: Release) -> Json:
    """The study, and its images that have all their UIDs."""
    patient = report.patient
    identifiers: list[Json] = []
    if patient.study_instance_uid:
        identifiers.append({"system": "urn:dicom:uid", "value": f"urn:oid:{patient.study_instance_uid}"})
    if patient.accession_number:
        identifiers.append({"type": {"coding": [_ACCESSION]}, "value": patient.accession_number})
    series = _series(report, release)
    resource: Json = {
        "resourceType": "ImagingStudy",
        "id": ids.id("study"),
        "identifier": identifiers,
        "status": "available",
        "subject": ids.to("patient"),
        "started": spoken_date(patient.study_date),
        "numberOfSeries": len(series),
        "numberOfInstances": sum(len(row["instance"]) for row in series),
        "series": series,
    }
    return {name: value for name, value in resource.items() if value not in ("", [])}


def _series(report: FinishedReport, release: Release) -> list[Json]:
    series: dict[str, Json] = {}
    for source in report.sources:
        if not (source.series_instance_uid and source.sop_instance_uid and source.sop_class_uid):
            continue
        modality: Json = {"system": SYSTEMS["DCM"], "code": source.modality or "OT"}
        row = series.setdefault(
            source.series_instance_uid,
            {
                "uid": source.series_instance_uid,
                "modality": modality if release == "R4" else {"coding": [modality]},
                "instance": [],
            },
        )
        sop_class = {"system": "urn:ietf:rfc:3986", "code": f"urn:oid:{source.sop_class_uid}"}
        row["instance"].append({"uid": source.sop_instance_uid, "sopClass": sop_class})
    return list(series.values())


_ACCESSION: Final = {"system": "http://terminology.hl7.org/CodeSystem/v2-0203", "code": "ACSN"}


def _observation(finding: Finding, report: FinishedReport, ids: _Ids) -> Json:
    """A class's probability; ``interpretation`` is its state in the report."""
    assert finding.probability is not None
    resource: Json = {
        "resourceType": "Observation",
        "id": ids.id(f"finding {finding.name}"),
        "status": "final" if report.is_final else "preliminary",
        "category": [{"coding": [_IMAGING]}],
        "code": _concept(free_code_of(finding.name)),
        "valueQuantity": {
            "value": round(finding.probability, 4), "unit": "probability",
            "system": "http://unitsofmeasure.org", "code": "1",
        },
        "device": ids.to("device"),
        "referenceRange": [{
            "high": {"value": round(finding.threshold, 4)}, "text": "threshold: present from this probability on",
        }],
    }  # fmt: skip
    if finding.state in _INTERPRETATIONS:
        code, display = _INTERPRETATIONS[finding.state]
        resource["interpretation"] = [{"coding": [{"system": _INTERPRETATION, "code": code, "display": display}]}]
    if report.sources:
        resource["subject"], resource["derivedFrom"] = ids.to("patient"), [ids.to("study")]
    if finding.flag:
        resource["note"] = [{"text": finding.flag}]
    return resource


_INTERPRETATION: Final = "http://terminology.hl7.org/CodeSystem/v3-ObservationInterpretation"
_IMAGING: Final = {"system": "http://terminology.hl7.org/CodeSystem/observation-category", "code": "imaging"}
