"""Identifiers that follow from what they name: the same report sent twice is one instance, never two.

    all that is written but the time of writing + kind of object  ->  SOP Instance UID

They are UUIDs of version 5 in decimal below 2.25 (PS3.5 B.2, ISO/IEC 9834-8), made from one fixed name space.
"""

from __future__ import annotations

import uuid
from typing import Final

from radweave.base.hashes import sha256_json
from radweave.hospital.finished import FinishedReport, Model, Signature

_SPACE: Final = uuid.UUID("bd7da9c8-6b8f-5187-ad9a-b550b08bf57a")
# Raised when an object of the same report gets another content: an archive keeps the first of one UID.
LAYOUT: Final = 2


def named_uuid(*parts: str) -> uuid.UUID:
    """The UUID of some parts, in their order."""
    return uuid.uuid5(_SPACE, sha256_json(parts))


def uid(*parts: str) -> str:
    """The UID of some parts."""
    return f"2.25.{named_uuid(*parts).int}"


def device_uid(model: Model) -> str:
    """Of the software with its model: it changes when a file of the run does."""
    return uid("device", model.version, model.digest)


def report_key(report: FinishedReport) -> tuple[str, ...]:
    """What makes a version of a report this one: all that it says but when it was written.

    Pictures and maps follow from the images and the model. Probabilities count as they are written.
    """
    signature = report.signature
    said: dict[str, object] = {
        "study": report.study_id if not report.sources else report.sources[0].study_instance_uid,
        "images": [source.model_dump() for source in sorted(report.sources, key=lambda one: one.sop_instance_uid)],
        "model": device_uid(report.model),
        "text": report.text,
        "sections": [(one.kind, one.text) for one in report.sections],
        "findings": [
            (one.name, _written(one.probability), _written(one.threshold), one.said.value, one.flag)
            for one in report.findings
        ],
        "flagged": [(one.text, one.why) for one in report.flagged],
        "warnings": report.warnings,
        "notice": report.notice,
        "signed": None if signature is None else _signed(signature),
        "draft": None if report.predecessor is None else report_key(report.predecessor),
    }
    if report.addenda:
        said["addenda"] = [(one.text, *_signed(one.signature)) for one in report.addenda]
    if report.rejected is not None:
        said["rejected"] = _signed(report.rejected)
    return (str(LAYOUT), sha256_json(said))


def _signed(signature: Signature) -> tuple[str, str, str]:
    return signature.name, signature.organization, signature.time.isoformat()


def _written(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def report_uid(report: FinishedReport) -> str:
    """Of the report through its versions, from draft to signed: of one model about one study."""
    study = report.sources[0].study_instance_uid if report.sources else ""
    return uid("report", device_uid(report.model), *((study,) if study else report_key(report)))


def instance_uid(report: FinishedReport, kind: str) -> str:
    """Of one object (``kind``) made from a report."""
    return uid("instance", kind, *report_key(report))


def series_uid(report: FinishedReport, kind: str) -> str:
    """Of all objects of a kind that one model makes of a study."""
    return uid("series", kind, report.patient.study_instance_uid, device_uid(report.model))
