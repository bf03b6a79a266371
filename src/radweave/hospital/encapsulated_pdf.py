"""DICOM Encapsulated PDF (PS3.3 A.45.1): the PDF as an object of the study, for viewers that show no SR."""

from __future__ import annotations

from typing import Final

from pydicom.uid import EncapsulatedPDFStorage

from radweave.hospital import codes
from radweave.hospital.envelope import coded, envelope, file_bytes, reference
from radweave.hospital.finished import FinishedReport
from radweave.hospital.pdf import write_pdf
from radweave.hospital.words import document_title

KIND: Final = "pdf-dicom"
SERIES_NUMBER: Final = 9903


def write_encapsulated_pdf(report: FinishedReport) -> bytes:
    """The report as a file.

    Raises:
        InputError: if its images do not say whose they are, or of which study.
    """
    dataset = envelope(report, EncapsulatedPDFStorage, kind=KIND, modality="DOC", number=SERIES_NUMBER)
    dataset.ConversionType = "WSD"
    dataset.AcquisitionDateTime = ""
    dataset.BurnedInAnnotation = "YES"  # the page names the patient
    dataset.RecognizableVisualFeatures = "NO"
    dataset.VerificationFlag = "VERIFIED" if report.is_final else "UNVERIFIED"
    dataset.DocumentTitle = document_title(report)
    dataset.ConceptNameCodeSequence = [coded(codes.REPORT)]
    dataset.MIMETypeOfEncapsulatedDocument = "application/pdf"
    dataset.SourceInstanceSequence = [
        reference(source.sop_class_uid, source.sop_instance_uid) for source in report.sources
    ]
    page = write_pdf(report)
    dataset.EncapsulatedDocumentLength = len(page)
    dataset.EncapsulatedDocument = page + b"\0" * (len(page) % 2)
    return file_bytes(dataset)
