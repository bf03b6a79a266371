"""What every DICOM object of a report has: patient and study as in its images, a series, equipment, UIDs, bytes.

Modules of PS3.3: Patient C.7.1.1, General Study C.7.2.1, Patient Study C.7.2.2, General Equipment C.7.5.1, SOP Common
C.12.1 with the Contributing Equipment item that IHE's AI Results profile asks for.
"""

from __future__ import annotations

import io
from typing import Final

from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import UID, ExplicitVRLittleEndian

from radweave.base.errors import InputError
from radweave.hospital.codes import OURS, OURS_NAME, PROCESSING, Code
from radweave.hospital.finished import CAUTION, MAKER, FinishedReport
from radweave.hospital.identity import KEYWORDS
from radweave.hospital.uids import device_uid, instance_uid, series_uid

IMPLEMENTATION: Final = UID("2.25.326905638510708318811312938120560737573")
_NO_TEXT: Final = ("SQ", "OB", "OW", "OF", "OD", "OL", "UN")
_TYPE_2: Final = (
    "patient_name", "patient_id", "patient_birth_date", "patient_sex",
    "study_id", "study_date", "study_time", "accession_number", "referring_physician_name",
)  # fmt: skip
"""Empty where the images say nothing."""
_TYPE_3: Final = (
    "issuer_of_patient_id", "patient_age", "study_description", "patient_identity_removed", "deidentification_method",
)  # fmt: skip
"""Absent where the images say nothing."""


def coded(code: Code) -> Dataset:
    """The item of a code sequence."""
    item = Dataset()
    item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = code
    return item


def envelope(report: FinishedReport, sop_class: str, *, kind: str, modality: str, number: int) -> Dataset:
    """A new object of the report's study, without what its class adds.

    ``kind`` goes into its UIDs; ``number`` is that of its series.

    Raises:
        InputError: if the images do not say whose they are, or of which study.
    """
    patient = report.patient
    for field in ("study_instance_uid", "series_instance_uid", "sop_instance_uid", "sop_class_uid"):
        if not all(getattr(source, field) for source in report.sources):
            raise InputError("is missing in an image; no DICOM report can refer to it", field=KEYWORDS[field])
    dataset = Dataset()
    copy_identity(dataset, report)
    dataset.StudyInstanceUID = patient.study_instance_uid
    dataset.SOPClassUID = UID(sop_class)
    dataset.SOPInstanceUID = instance_uid(report, kind)
    dataset.SeriesInstanceUID = series_uid(report, kind)
    dataset.SeriesNumber, dataset.InstanceNumber = number, _place(report)
    dataset.Modality = modality
    dataset.SeriesDescription = CAUTION
    dataset.Manufacturer, dataset.ManufacturerModelName = MAKER, report.model.method
    dataset.SoftwareVersions = report.model.version
    dataset.DeviceSerialNumber = report.model.digest[:16]
    dataset.ContributingEquipmentSequence = [_equipment(report)]
    stamp(dataset, report)
    return dataset


def _place(report: FinishedReport) -> int:
    """The place in the series, by which viewers sort: the draft, what took its place, each addendum."""
    is_draft = report.signature is None and report.rejected is None
    return 1 if is_draft else 2 + len(report.addenda)


def copy_identity(dataset: Dataset, report: FinishedReport) -> None:
    """Patient and study as the images have them: a report that says anything else is filed elsewhere."""
    for field in _TYPE_2:
        setattr(dataset, KEYWORDS[field], getattr(report.patient, field))
    for field in _TYPE_3:
        if value := getattr(report.patient, field):
            setattr(dataset, KEYWORDS[field], value)


def stamp(dataset: Dataset, report: FinishedReport) -> None:
    """When the report was written or last added to, and the names of our codes."""
    added = report.released.astimezone(report.written.tzinfo) if report.addenda else report.written
    date, time = added.strftime("%Y%m%d"), added.strftime("%H%M%S")
    dataset.ContentDate, dataset.ContentTime = date, time
    dataset.InstanceCreationDate, dataset.InstanceCreationTime = date, time
    scheme = Dataset()
    scheme.CodingSchemeDesignator, scheme.CodingSchemeName = OURS, OURS_NAME
    scheme.CodingSchemeResponsibleOrganization = MAKER
    dataset.CodingSchemeIdentificationSequence = [scheme]


def _equipment(report: FinishedReport) -> Dataset:
    item = Dataset()
    item.Manufacturer, item.ManufacturerModelName = MAKER, report.model.method
    item.SoftwareVersions = report.model.version
    item.DeviceSerialNumber = report.model.digest[:16]
    item.DeviceUID = device_uid(report.model)
    item.ContributionDescription = f"Text and findings: {report.model.method}, {report.model.preset}"[:1024]
    item.PurposeOfReferenceCodeSequence = [coded(PROCESSING)]
    return item


def evidence_of(report: FinishedReport) -> Dataset:
    """The images of the report's study, by series: an item of the Hierarchical SOP Instance Reference macro."""
    study = Dataset()
    study.StudyInstanceUID = report.patient.study_instance_uid
    study.ReferencedSeriesSequence = []
    by_series: dict[str, Dataset] = {}
    for source in report.sources:
        series = by_series.get(source.series_instance_uid)
        if series is None:
            series = by_series[source.series_instance_uid] = Dataset()
            series.SeriesInstanceUID = source.series_instance_uid
            series.ReferencedSOPSequence = []
            study.ReferencedSeriesSequence.append(series)
        series.ReferencedSOPSequence.append(reference(source.sop_class_uid, source.sop_instance_uid))
    return study


def reference(sop_class: str, sop_instance: str) -> Dataset:
    """An item that names an instance."""
    item = Dataset()
    item.ReferencedSOPClassUID, item.ReferencedSOPInstanceUID = sop_class, sop_instance
    return item


def file_bytes(dataset: Dataset) -> bytes:
    """The object as a file (PS3.10), in UTF-8 where ASCII does not hold what it says."""
    if not _is_ascii(dataset):
        dataset.SpecificCharacterSet = "ISO_IR 192"
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = dataset.SOPClassUID
    meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.ImplementationClassUID = IMPLEMENTATION
    dataset.file_meta = meta
    buffer = io.BytesIO()
    dataset.save_as(buffer, enforce_file_format=True)
    return buffer.getvalue()


def _is_ascii(dataset: Dataset) -> bool:
    return all(str(item.value).isascii() for item in dataset.iterall() if item.VR not in _NO_TEXT)
