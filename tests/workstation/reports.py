"""Finished reports made by hand, without a model: what the tests of the writers share."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from radweave.core.study import LabelState
from radweave.inference.explain.maps import Panel
from radweave.workstation.finished import (
    Addendum,
    Finding,
    FinishedReport,
    Flagged,
    HeatMap,
    MarkedBox,
    Model,
    Picture,
    PlacedMap,
    Section,
    Signature,
    StatedPlace,
)
from radweave.workstation.identity import Identity
from tests.image_files import CANARY, chest, write_dicom

IMPRESSION = "Small left effusion."
FINDINGS = "The heart is enlarged. No pneumothorax | 5 cm ^ line & <b>tube</b> ~ path \\ end."
WRITTEN = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
SIGNED = Signature("Weber^Jana^^Dr.", "Institute of Radiology", datetime(2026, 3, 5, 8, 9, 10, tzinfo=UTC))
ADDED = (
    Addendum(
        "Small nodule in the left upper lobe.", Signature("Ahn^Min", "Radiology", datetime(2026, 3, 6, tzinfo=UTC))
    ),
    Addendum(
        "Not seen in the CT | of today.",
        Signature("Okoro^Ada^^Dr.", "Institute of Radiology", datetime(2026, 3, 7, 1, tzinfo=UTC)),
    ),
)
BOX = MarkedBox(0, (0.5, 0.25, 0.75, 0.5), source=0)
PLACE = StatedPlace(IMPRESSION, "Pleural Effusion", "left pleura", ("left",), ("pleura",), 0.8, (BOX,))
STUDY = "1.2.826.0.1.3680043.8.498.1"


def identity(**changes: Any) -> Identity:
    """A frontal radiograph of a patient whose every name and id is the canary."""
    values: dict[str, Any] = {
        "patient_name": f"{CANARY}^Ann", "patient_id": CANARY, "issuer_of_patient_id": "",
        "patient_birth_date": "19010203", "patient_sex": "F", "patient_age": "098Y",
        "patient_identity_removed": "", "deidentification_method": "",
        "study_instance_uid": STUDY, "study_id": "S1", "study_date": "19991231", "study_time": "101112.5",
        "study_description": "Chest", "accession_number": "A1", "referring_physician_name": "Ray^X",
        "series_instance_uid": f"{STUDY}.1", "modality": "CR", "body_part_examined": "CHEST",
        "sop_class_uid": "1.2.840.10008.5.1.4.1.1.1", "sop_instance_uid": f"{STUDY}.1.1", "rows": 96, "columns": 80,
    }  # fmt: skip
    return Identity(**{**values, **changes})


def finished(**changes: Any) -> FinishedReport:
    """A draft of two sections, three classes and one picture."""
    grey = np.rint(chest(96, 80) * 255).astype(np.uint8)
    report = FinishedReport(
        study_id="chest",
        text=f"{FINDINGS} {IMPRESSION}",
        sections=(Section("findings", FINDINGS), Section("impression", IMPRESSION)),
        findings=(
            Finding("Cardiomegaly", 0.91, 0.4, LabelState.POSITIVE),
            Finding("Pneumothorax", 0.62, 0.5, LabelState.NEGATIVE, "probable, but the draft denies it"),
            Finding("Enlarged Cardiomediastinum", None, 0.5, LabelState.BLANK),
        ),
        flagged=(Flagged("No pneumothorax.", "contradicted"),),
        warnings=("UNTRAINED WEIGHTS: this text is noise",),
        model=Model("baseline", "tiny", "0.1.0", "ab" * 32),
        written=WRITTEN,
        sources=(identity(),),
        pictures=(Picture("View 1, PA", grey),),
        maps=(HeatMap("Cardiomegaly", 0.5, (Panel("View 1, PA", grey, np.tile(np.linspace(0, 0.5, 80), (96, 1))),)),),
    )
    return replace(report, **{"places": (PLACE,), **changes})


def placed(name: str) -> HeatMap:
    """The map of a scan, 5 x 5 x 6 mm each voxel, with one bright place: (z, y, x) = (2, 5, 7)."""
    values = np.zeros((4, 6, 8), np.float32)
    values[2, 5, 7] = 1
    affine = np.diag([5.0, 5.0, 6.0, 1.0])
    affine[:3, 3] = (-150, -160, -200)
    return HeatMap(name, 0.5, placed=PlacedMap(values, affine))


def dicom_image(path: Path, **tags: Any) -> Path:
    """A radiograph as a file, with all that an archive and a validator ask of one."""
    return write_dicom(path, chest(96, 80), **tags)


def added(number: int, **changes: Any) -> FinishedReport:
    """The signed report with its first ``number`` addenda."""
    return finished(signature=SIGNED, addenda=ADDED[:number], **changes)
