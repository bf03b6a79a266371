"""DICOM Comprehensive 3D SR by TID 1500: findings as codes that programs read, with the images they are about.

Of each class one group (TID 1501): whether the report states it, and its probability. IHE's AI Results profile calls
these qualitative findings. Names and ids never pass through highdicom, which may quote them in its log: it builds the
tree, and what surrounds it is ours.
"""

from __future__ import annotations

from typing import Final

from highdicom.sr import (
    AlgorithmIdentification,
    CodedConcept,
    DeviceObserverIdentifyingAttributes,
    LanguageOfContentItemAndDescendants,
    Measurement,
    MeasurementReport,
    MeasurementsAndQualitativeEvaluations,
    ObservationContext,
    ObserverContext,
    QualitativeEvaluation,
    SourceImageForMeasurementGroup,
    TrackingIdentifier,
)
from pydicom.dataset import Dataset
from pydicom.uid import Comprehensive3DSRStorage

from radweave.base.errors import InputError
from radweave.hospital import basic_sr, codes, document
from radweave.hospital.basic_sr import SECTION_CODES, SHOWN_IMAGES
from radweave.hospital.codes import Code, code_of
from radweave.hospital.envelope import file_bytes
from radweave.hospital.finished import MAKER, Finding, FinishedReport
from radweave.hospital.uids import device_uid, report_key, uid
from radweave.hospital.words import caution_lines, evidence_lines

KIND: Final = "sr-tid1500"
SERIES_NUMBER: Final = 9902


def write_tid1500(report: FinishedReport) -> bytes:
    """The report as a file.

    Raises:
        InputError: if its images do not say whose they are, or of which study, or no class of findings is known.
    """
    if report.rejected is not None:  # a notice in words takes the place of the codes
        return basic_sr.write_basic_sr(
            report, kind=KIND, number=SERIES_NUMBER, predecessor_class=Comprehensive3DSRStorage
        )
    if not report.findings:
        raise InputError("there is no class of findings to code; sr-basic holds the text", field="--format", got=KIND)
    dataset = document.document(report, Comprehensive3DSRStorage, kind=KIND, number=SERIES_NUMBER)
    key = report_key(report)
    device = ObserverContext(_concept(codes.DEVICE), _device(report))
    (content,) = MeasurementReport(
        observation_context=ObservationContext(observer_device_context=device),
        procedure_reported=_concept(codes.CHEST_IMAGING),
        imaging_measurements=[_group(finding, report, key) for finding in report.findings],
        title=_concept(codes.MEASUREMENT_REPORT),
        language_of_content_item_and_descendants=LanguageOfContentItemAndDescendants(_concept(codes.ENGLISH)),
    )
    for element in content:
        dataset.add(element)
    *context, measurements = content.ContentSequence
    dataset.ContentSequence = [*context, _narrative(report), _image_library(report), measurements]
    _separate(dataset)
    return file_bytes(dataset)


def _separate(item: Dataset) -> None:
    """Let viewers show each item with its heading: run together, a probability and a word read as one statement."""
    if "ContinuityOfContent" in item:
        item.ContinuityOfContent = document.SEPARATE
    for inside in item.get("ContentSequence", ()):
        _separate(inside)


def _concept(code: Code) -> CodedConcept:
    return CodedConcept(value=code.value, scheme_designator=code.scheme, meaning=code.meaning)


def _device(report: FinishedReport) -> DeviceObserverIdentifyingAttributes:
    model = report.model
    return DeviceObserverIdentifyingAttributes(
        uid=device_uid(model),
        name=f"{MAKER} {model.version}",
        manufacturer_name=MAKER,
        model_name=model.method,
        serial_number=model.digest[:16],
    )


def _group(finding: Finding, report: FinishedReport, key: tuple[str, ...]) -> MeasurementsAndQualitativeEvaluations:
    """A class: what the report says of it, its probability, the radiographs. Of a scan the library has the images."""
    name = finding.name
    evaluation = QualitativeEvaluation(_concept(codes.IN_THE_REPORT), _concept(codes.PRESENCE[finding.said]))
    measurements = []
    if finding.probability is not None:
        probability = Measurement(
            name=_concept(codes.PROBABILITY), value=round(finding.probability, 4), unit=_concept(codes.NO_UNITS)
        )
        measurements.append(probability)
    return MeasurementsAndQualitativeEvaluations(
        tracking_identifier=TrackingIdentifier(uid=uid("finding", name, *key), identifier=name),
        finding_type=_concept(code_of(name)),
        algorithm_id=AlgorithmIdentification(f"{MAKER} {report.model.method}", report.model.version),
        measurements=measurements,
        qualitative_evaluations=[evaluation],
        source_images=_images(report),
    )


def _images(report: FinishedReport) -> list[SourceImageForMeasurementGroup] | None:
    if len(report.sources) > SHOWN_IMAGES:
        return None
    return [SourceImageForMeasurementGroup(one.sop_class_uid, one.sop_instance_uid) for one in report.sources]


def _image_library(report: FinishedReport) -> Dataset:
    """The images that the report is about (TID 1600), by modality."""
    groups: dict[str, list[Dataset]] = {}
    for source in report.sources:
        groups.setdefault(source.modality or "OT", []).append(document.image(source))
    return document.container(
        codes.IMAGE_LIBRARY,
        [
            document.container(
                codes.IMAGE_LIBRARY_GROUP,
                [document.code(codes.MODALITY, codes.modality(name), "HAS ACQ CONTEXT"), *images],
            )
            for name, images in groups.items()
        ],
    )


def _narrative(report: FinishedReport) -> Dataset:
    """The text, and what a reader must know of it (TID 1500, rows 12 to 14)."""
    sections = [document.text(SECTION_CODES[section.kind][0], section.text) for section in report.sections]
    before = [document.text(codes.COMMENT, line) for line in caution_lines(report)]
    after = [document.text(codes.COMMENT, line) for line in evidence_lines(report)]
    return document.container(codes.EVALUATIONS, [*before, *sections, *basic_sr.addenda(report), *after])
