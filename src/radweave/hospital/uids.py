"""Identifiers that follow from what they name: the same report sent twice is one instance, never two.

    study + images + model + text + signature + kind of object  ->  SOP Instance UID

They are UUIDs of version 5 in decimal below 2.25 (PS3.5 B.2, ISO/IEC 9834-8), made from one fixed name space.
"""

from __future__ import annotations

import uuid
from typing import Final

from radweave.base.hashes import sha256_json
from radweave.hospital.finished import FinishedReport, Model

_SPACE: Final = uuid.UUID("bd7da9c8-6b8f-5187-ad9a-b550b08bf57a")
# Raised when an object of the same report gets another content: an archive keeps the first of one UID.
LAYOUT: Final = 1


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
    """What makes a report this one."""
    signature = report.signature
    signed = () if signature is None else (signature.name, signature.organization, signature.time.isoformat())
    images = sorted(source.sop_instance_uid for source in report.sources)
    study = report.sources[0].study_instance_uid if report.sources else report.study_id
    return (str(LAYOUT), study, *images, device_uid(report.model), report.text, *signed)


def instance_uid(report: FinishedReport, kind: str) -> str:
    """Of one object (``kind``) made from a report."""
    return uid("instance", kind, *report_key(report))


def series_uid(report: FinishedReport, kind: str) -> str:
    """Of all objects of a kind that one model makes of a study."""
    return uid("series", kind, report.patient.study_instance_uid, device_uid(report.model))
