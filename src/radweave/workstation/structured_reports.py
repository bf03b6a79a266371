"""DICOM structured reports: Basic Text SR (PS3.3 A.35.1, TID 2000) and Comprehensive 3D SR (TID 1500)."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from highdicom.sr import (
    AlgorithmIdentification,
    CodedConcept,
    DeviceObserverIdentifyingAttributes,
    FindingSite,
    ImageRegion,
    LanguageOfContentItemAndDescendants,
    Measurement,
    MeasurementReport,
    MeasurementsAndQualitativeEvaluations,
    ObservationContext,
    ObserverContext,
    PlanarROIMeasurementsAndQualitativeEvaluations,
    QualitativeEvaluation,
    SourceImageForMeasurementGroup,
    SourceImageForRegion,
    SourceSeriesForSegmentation,
    TrackingIdentifier,
    VolumeSurface,
    VolumetricROIMeasurementsAndQualitativeEvaluations,
)
from numpy.typing import NDArray
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import UID, BasicTextSRStorage, Comprehensive3DSRStorage, ExplicitVRLittleEndian

from radweave.core.errors import InputError
from radweave.core.study import LabelState
from radweave.labels.places import LUNG_ZONES
from radweave.workstation.finished import (
    CAUTION,
    MAKER,
    Finding,
    FinishedReport,
    MarkedBox,
    Signature,
    StatedPlace,
    addendum_lines,
    caution_lines,
    device_uid,
    evidence_lines,
    instance_uid,
    report_key,
    series_uid,
    uid,
)
from radweave.workstation.identity import KEYWORDS, Identity

# Codes. SNOMED CT codes are those of the DICOM standard (PS3.16), free within DICOM objects and used only there. Codes
# of DICOM (DCM) and LOINC are free everywhere. Other classes get a private code (99RADWEAVE). RadLex is not used: its
# codes could not be verified. A test looks up each code in pydicom's dictionary of the standard.

PRIVATE_SCHEME: Final = "99RADWEAVE"
PRIVATE_SCHEME_NAME: Final = "Classes of findings of Radweave's label sets"


class Code(NamedTuple):
    """A coded concept: PS3.3 Sec. 8.8."""

    value: str
    scheme: str
    meaning: str


REPORT: Final = Code("18748-4", "LN", "Diagnostic Imaging Report")
INDICATION_TEXT: Final = Code("18785-6", "LN", "Indications for Procedure")
TECHNIQUE_TEXT: Final = Code("55111-9", "LN", "Current Procedure Descriptions")
COMPARISON_TEXT: Final = Code("18834-2", "LN", "Previous Findings")
FINDINGS_TEXT: Final = Code("59776-5", "LN", "Findings")
IMPRESSION_TEXT: Final = Code("19005-8", "LN", "Impressions")
ADDENDUM: Final = Code("55107-7", "LN", "Addendum")
"""Headings in HL7: LOINC codes of PS3.16 CID 7001."""
INDICATIONS: Final = Code("121109", "DCM", "Indications for Procedure")
HISTORY: Final = Code("121060", "DCM", "History")
PROCEDURES: Final = Code("121064", "DCM", "Current Procedure Descriptions")
PROCEDURE: Final = Code("121065", "DCM", "Procedure Description")
PREVIOUS_PROCEDURES: Final = Code("121066", "DCM", "Prior Procedure Descriptions")
FINDINGS: Final = Code("121070", "DCM", "Findings")
FINDING: Final = Code("121071", "DCM", "Finding")
IMPRESSIONS: Final = Code("121072", "DCM", "Impressions")
IMPRESSION: Final = Code("121073", "DCM", "Impression")
ADDENDUM_TEXT: Final = Code("121078", "DCM", "Addendum")
SUMMARY: Final = Code("121111", "DCM", "Summary")
COMMENT: Final = Code("121106", "DCM", "Comment")
KEY_IMAGES: Final = Code("121180", "DCM", "Key Images")
MEASUREMENT_REPORT: Final = Code("126000", "DCM", "Imaging Measurement Report")
EVALUATIONS: Final = Code("C0034375", "UMLS", "Qualitative Evaluations")
IMAGE_LIBRARY: Final = Code("111028", "DCM", "Image Library")
IMAGE_LIBRARY_GROUP: Final = Code("126200", "DCM", "Image Library Group")
MODALITY: Final = Code("121139", "DCM", "Modality")
LANGUAGE: Final = Code("121049", "DCM", "Language of Content Item and Descendants")
ENGLISH: Final = Code("en-US", "RFC5646", "English (United States)")
OBSERVER_TYPE: Final = Code("121005", "DCM", "Observer Type")
DEVICE: Final = Code("121007", "DCM", "Device")
DEVICE_UID: Final = Code("121012", "DCM", "Device Observer UID")
DEVICE_NAME: Final = Code("121013", "DCM", "Device Observer Name")
DEVICE_MAKER: Final = Code("121014", "DCM", "Device Observer Manufacturer")
DEVICE_MODEL: Final = Code("121015", "DCM", "Device Observer Model Name")
DEVICE_SERIAL: Final = Code("121016", "DCM", "Device Observer Serial Number")
PROCESSED_SOURCE: Final = Code("121322", "DCM", "Source image for image processing operation")
PROCESSING: Final = Code("109102", "DCM", "Processing Equipment")
CHEST_IMAGING: Final = Code("413815006", "SCT", "Chest imaging")
PROBABILITY: Final = Code("122157", "DCM", "Probability")
IN_THE_REPORT: Final = Code("STATED", PRIVATE_SCHEME, "Stated in the report")
OF_THE_PLACE: Final = Code("PLACE", PRIVATE_SCHEME, "Probability of the stated place")
LUNG: Final = Code("39607008", "SCT", "Lung")
THORAX: Final = Code("43799004", "SCT", "Thoracic cavity")
NO_UNITS: Final = Code("1", "UCUM", "no units")
LATERALITY: Final[Mapping[str, Code]] = {
    "left": Code("7771000", "SCT", "Left"),
    "right": Code("24028007", "SCT", "Right"),
}

_MODALITIES: Final[Mapping[str, str]] = {
    "CR": "Computed Radiography",
    "DX": "Digital Radiography",
    "RG": "Radiographic imaging",
    "CT": "Computed Tomography",
    "XA": "X-Ray Angiography",
    "OT": "Other Modality",
}
PRESENCE: Final[Mapping[LabelState, Code]] = {
    LabelState.POSITIVE: Code("52101004", "SCT", "Present"),
    LabelState.NEGATIVE: Code("272519000", "SCT", "Absent"),
    LabelState.UNCERTAIN: Code("373068000", "SCT", "Undetermined"),
    LabelState.BLANK: Code("BLANK", PRIVATE_SCHEME, "Not mentioned"),
}

# PS3.16 CID 6102 and its parts (chest findings), 645, 3700, 6347, 12236 and 12248, by class name in lower case.
_STANDARD: Final[Mapping[str, Code]] = {
    "cardiomegaly": Code("287272002", "SCT", "Cardiomegaly"),
    "edema": Code("19242006", "SCT", "Pulmonary edema"),
    "pneumothorax": Code("36118008", "SCT", "Pneumothorax"),
    "pleural effusion": Code("60046008", "SCT", "Pleural effusion"),
    "effusion": Code("60046008", "SCT", "Pleural effusion"),
    "pericardial effusion": Code("373945007", "SCT", "Pericardial effusion"),
    "lymphadenopathy": Code("30746006", "SCT", "Lymphadenopathy"),
    "lung opacity": Code("112001", "DCM", "Opacity"),
    "lung nodule": Code("27925004", "SCT", "Nodule"),
    "nodule": Code("27925004", "SCT", "Nodule"),
    "mass": Code("4147007", "SCT", "Mass"),
    "lung lesion": Code("52988006", "SCT", "Lesion"),
    "infiltration": Code("112121", "DCM", "Infiltrate"),
    "mosaic attenuation pattern": Code("112130", "DCM", "Mosaic pattern"),
    "interlobular septal thickening": Code("112114", "DCM", "Septal line(s)"),
}


def modality(name: str) -> Code:
    """The code of a value of Modality (0008,0060); unlisted ones are "other"."""
    known = name if name in _MODALITIES else "OT"
    return Code(known, "DCM", _MODALITIES[known])


def code_of(name: str) -> Code:
    """The code of a class of findings: the standard's, or a private one."""
    return _STANDARD.get(name.lower()) or private_code(name)


def free_code_of(name: str) -> Code:
    """The code of a class without SNOMED CT, which needs a licence: DICOM's own, or a private one."""
    code = code_of(name)
    return private_code(name) if code.scheme == "SCT" else code


def private_code(name: str) -> Code:
    """A private code of at most 16 characters (PS3.5: SH), derived from the class's name.

    Its meaning (LO: 64 characters) has at most 64 bytes, since validators and archives count bytes.
    """
    plain = name.replace("_", " ")
    meaning = plain.encode()[:64].decode(errors="ignore").strip()
    return Code("RW" + hashlib.sha256(plain.lower().encode()).hexdigest()[:8].upper(), PRIVATE_SCHEME, meaning)


# Modules of every DICOM object of a report (PS3.3): Patient C.7.1.1, General Study C.7.2.1, Patient Study C.7.2.2,
# General Equipment C.7.5.1, SOP Common C.12.1 with the Contributing Equipment item of IHE's AI Results profile.

IMPLEMENTATION: Final = UID("2.25.326905638510708318811312938120560737573")
_NO_TEXT: Final = ("SQ", "OB", "OW", "OF", "OD", "OL", "UN")
_TYPE_2: Final = (
    "patient_name", "patient_id", "patient_birth_date", "patient_sex",
    "study_id", "study_date", "study_time", "accession_number", "referring_physician_name",
)  # fmt: skip
"""Empty if the images do not state it."""
_TYPE_3: Final = (
    "issuer_of_patient_id", "patient_age", "study_description", "patient_identity_removed", "deidentification_method",
)  # fmt: skip
"""Absent if the images do not state it."""


def coded(code: Code) -> Dataset:
    """The item of a code sequence."""
    item = Dataset()
    item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = code
    return item


def envelope(report: FinishedReport, sop_class: str, *, kind: str, modality: str, number: int) -> Dataset:
    """A new object of the report's study with the common modules; ``kind`` goes into its UIDs.

    Raises:
        InputError: if the images do not state patient, study and UIDs.
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
    _set_equipment(dataset, report)
    dataset.ContributingEquipmentSequence = [_equipment(report)]
    stamp(dataset, report)
    return dataset


def _place(report: FinishedReport) -> int:
    """The instance number, by which viewers sort: the draft, its replacement, each addendum."""
    is_draft = report.signature is None and report.rejected is None
    return 1 if is_draft else 2 + len(report.addenda)


def copy_identity(dataset: Dataset, report: FinishedReport) -> None:
    """Copy patient and study from the images: archives file reports by them."""
    for field in _TYPE_2:
        setattr(dataset, KEYWORDS[field], getattr(report.patient, field))
    for field in _TYPE_3:
        if value := getattr(report.patient, field):
            setattr(dataset, KEYWORDS[field], value)


def stamp(dataset: Dataset, report: FinishedReport) -> None:
    """Set the time of the report or its last addendum, and the private coding scheme."""
    added = report.released.astimezone(report.written.tzinfo) if report.addenda else report.written
    date, time = added.strftime("%Y%m%d"), added.strftime("%H%M%S")
    dataset.ContentDate, dataset.ContentTime = date, time
    dataset.InstanceCreationDate, dataset.InstanceCreationTime = date, time
    scheme = Dataset()
    scheme.CodingSchemeDesignator, scheme.CodingSchemeName = PRIVATE_SCHEME, PRIVATE_SCHEME_NAME
    scheme.CodingSchemeResponsibleOrganization = MAKER
    dataset.CodingSchemeIdentificationSequence = [scheme]


def _set_equipment(item: Dataset, report: FinishedReport) -> None:
    item.Manufacturer, item.ManufacturerModelName = MAKER, report.model.method
    item.SoftwareVersions = report.model.version
    item.DeviceSerialNumber = report.model.digest[:16]


def _equipment(report: FinishedReport) -> Dataset:
    item = Dataset()
    _set_equipment(item, report)
    item.DeviceUID = device_uid(report.model)
    item.ContributionDescription = f"Text and findings: {report.model.method}, {report.model.preset}"[:1024]
    item.PurposeOfReferenceCodeSequence = [coded(PROCESSING)]
    return item


def evidence_of(report: FinishedReport) -> Dataset:
    """The report's images by series: an item of the Hierarchical SOP Instance Reference macro."""
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
    """A reference to an instance."""
    item = Dataset()
    item.ReferencedSOPClassUID, item.ReferencedSOPInstanceUID = sop_class, sop_instance
    return item


def file_bytes(dataset: Dataset) -> bytes:
    """The object as a file (PS3.10), in UTF-8 unless ASCII suffices."""
    if not all(str(item.value).isascii() for item in dataset.iterall() if item.VR not in _NO_TEXT):
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


# Modules of structured reports (PS3.3 C.17.1 to C.17.3), and items of their content trees.

_Region = PlanarROIMeasurementsAndQualitativeEvaluations | VolumetricROIMeasurementsAndQualitativeEvaluations
Relation = Literal["CONTAINS", "HAS CONCEPT MOD", "HAS OBS CONTEXT", "HAS ACQ CONTEXT"]
SEPARATE: Final = "SEPARATE"


def document(
    report: FinishedReport, sop_class: str, *, kind: str, number: int, predecessor_class: str | None = None
) -> Dataset:
    """A structured report without its content tree: unverified and preliminary until it is signed.

    ``predecessor_class`` is the SOP class of the predecessor, if it differs.

    Raises:
        InputError: as ``envelope`` does.
    """
    dataset = envelope(report, sop_class, kind=kind, modality="SR", number=number)
    dataset.ReferencedPerformedProcedureStepSequence = []
    dataset.PerformedProcedureCodeSequence = []
    dataset.CompletionFlag = "COMPLETE" if report.is_final else "PARTIAL"
    dataset.PreliminaryFlag = "FINAL" if report.is_final else "PRELIMINARY"
    dataset.VerificationFlag = "VERIFIED" if report.is_final else "UNVERIFIED"
    if report.signatures:
        dataset.VerifyingObserverSequence = [_verifier(signature) for signature in reversed(report.signatures)]
    if report.predecessor is not None:
        dataset.PredecessorDocumentsSequence = [_predecessor(report.predecessor, predecessor_class or sop_class, kind)]
    dataset.CurrentRequestedProcedureEvidenceSequence = [evidence_of(report)]
    return dataset


def _predecessor(before: FinishedReport, sop_class: str, kind: str) -> Dataset:
    """The replaced document (PS3.3 C.17.2.2), which viewers may hide."""
    series, study = Dataset(), Dataset()
    series.SeriesInstanceUID = series_uid(before, kind)
    series.ReferencedSOPSequence = [reference(sop_class, instance_uid(before, kind))]
    study.StudyInstanceUID = before.patient.study_instance_uid
    study.ReferencedSeriesSequence = [series]
    return study


def _verifier(signature: Signature) -> Dataset:
    item = Dataset()
    item.VerifyingObserverName, item.VerifyingOrganization = signature.name, signature.organization
    item.VerificationDateTime = signature.time.strftime("%Y%m%d%H%M%S%z")
    item.VerifyingObserverIdentificationCodeSequence = []
    return item


def _item(relation: Relation, kind: str, name: Code | None) -> Dataset:
    item = Dataset()
    item.RelationshipType, item.ValueType = relation, kind
    if name is not None:
        item.ConceptNameCodeSequence = [coded(name)]
    return item


def container(name: Code, inside: Sequence[Dataset]) -> Dataset:
    item = _item("CONTAINS", "CONTAINER", name)
    item.ContinuityOfContent = SEPARATE
    item.ContentSequence = list(inside)
    return item


def text_item(name: Code, value: str, relation: Relation = "CONTAINS") -> Dataset:
    item = _item(relation, "TEXT", name)
    item.TextValue = value
    return item


def code(name: Code, value: Code, relation: Relation) -> Dataset:
    item = _item(relation, "CODE", name)
    item.ConceptCodeSequence = [coded(value)]
    return item


def uid_reference(name: Code, value: str, relation: Relation) -> Dataset:
    item = _item(relation, "UIDREF", name)
    item.UID = value
    return item


def image(source: Identity) -> Dataset:
    """A reference to an image of the study."""
    item = _item("CONTAINS", "IMAGE", None)
    item.ReferencedSOPSequence = [reference(source.sop_class_uid, source.sop_instance_uid)]
    return item


BASIC_SR: Final = "sr-basic"
BASIC_SR_SERIES: Final = 9901
SHOWN_IMAGES: Final = 8
"""References in the content tree; the evidence names all images, hundreds of a scan."""
SECTION_CODES: Final[dict[str, tuple[Code, Code]]] = {
    "indication": (INDICATIONS, HISTORY),
    "technique": (PROCEDURES, PROCEDURE),
    "comparison": (PREVIOUS_PROCEDURES, PROCEDURE),
    "findings": (FINDINGS, FINDING),
    "impression": (IMPRESSIONS, IMPRESSION),
}
"""Section -> the codes of its heading and of its text."""


def write_basic_sr(
    report: FinishedReport, *, kind: str = BASIC_SR, number: int = BASIC_SR_SERIES, predecessor_class: str | None = None
) -> bytes:
    """The report as a file; ``kind``, ``number`` and predecessor may be those of another format.

    Raises:
        InputError: as ``envelope`` does.
    """
    dataset = document(report, BasicTextSRStorage, kind=kind, number=number, predecessor_class=predecessor_class)
    dataset.ValueType, dataset.ContinuityOfContent = "CONTAINER", SEPARATE
    dataset.ConceptNameCodeSequence = [coded(REPORT)]
    template = Dataset()
    template.MappingResource, template.TemplateIdentifier = "DCMR", "2000"
    dataset.ContentTemplateSequence = [template]
    dataset.ContentSequence = [*_context(report), *_sections(report)]
    return file_bytes(dataset)


def _context(report: FinishedReport) -> list[Dataset]:
    """The language, and the device as observer (TID 1001 and 1004)."""
    model = report.model
    facts = (
        (DEVICE_NAME, f"{MAKER} {model.version}"),
        (DEVICE_MAKER, MAKER),
        (DEVICE_MODEL, model.method),
        (DEVICE_SERIAL, model.digest[:16]),
    )
    return [
        code(LANGUAGE, ENGLISH, "HAS CONCEPT MOD"),
        code(OBSERVER_TYPE, DEVICE, "HAS OBS CONTEXT"),
        uid_reference(DEVICE_UID, device_uid(model), "HAS OBS CONTEXT"),
        *(text_item(name, value, "HAS OBS CONTEXT") for name, value in facts),
    ]


def _sections(report: FinishedReport) -> list[Dataset]:
    texts = [
        container(SECTION_CODES[section.kind][0], [text_item(SECTION_CODES[section.kind][1], section.text)])
        for section in report.sections
    ]
    caution = [text_item(COMMENT, line) for line in caution_lines(report)]
    notes = [text_item(COMMENT, line) for line in evidence_lines(report)]
    images = [image(source) for source in report.sources[:SHOWN_IMAGES]]
    texts += addenda(report)
    return [*caution, *texts, container(SUMMARY, notes), container(KEY_IMAGES, images)]


def addenda(report: FinishedReport) -> list[Dataset]:
    """A container for each addendum: signer, time and text."""
    return [
        container(ADDENDUM, [text_item(COMMENT, heading), text_item(ADDENDUM_TEXT, text)])
        for heading, text in addendum_lines(report)
    ]


# Comprehensive 3D SR by TID 1500: one group (TID 1501) for each class with its state in the report and its probability,
# the qualitative findings of IHE's AI Results profile. highdicom builds the content tree only, since its log may quote
# names and ids.

TID1500: Final = "sr-tid1500"
TID1500_SERIES: Final = 9902


def write_tid1500(report: FinishedReport) -> bytes:
    """The report as a file.

    Raises:
        InputError: as ``envelope`` does, or without any class of findings.
    """
    if report.rejected is not None:  # a notice in words instead of codes
        return write_basic_sr(report, kind=TID1500, number=TID1500_SERIES, predecessor_class=Comprehensive3DSRStorage)
    if not report.findings:
        raise InputError(
            "there is no class of findings to code; sr-basic holds the text", field="--format", got=TID1500
        )
    dataset = document(report, Comprehensive3DSRStorage, kind=TID1500, number=TID1500_SERIES)
    key = report_key(report)
    device = ObserverContext(_concept(DEVICE), _device(report))
    (content,) = MeasurementReport(
        observation_context=ObservationContext(observer_device_context=device),
        procedure_reported=_concept(CHEST_IMAGING),
        imaging_measurements=[*(_group(finding, report, key) for finding in report.findings), *_regions(report, key)],
        title=_concept(MEASUREMENT_REPORT),
        language_of_content_item_and_descendants=LanguageOfContentItemAndDescendants(_concept(ENGLISH)),
    )
    for element in content:
        dataset.add(element)
    *context, measurements = content.ContentSequence
    dataset.ContentSequence = [*context, _narrative(report), _image_library(report), measurements]
    _separate(dataset)
    return file_bytes(dataset)


def _separate(item: Dataset) -> None:
    """Make viewers show each item with its heading, else a probability and a word read as one statement."""
    if "ContinuityOfContent" in item:
        item.ContinuityOfContent = SEPARATE
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
    """A class: its state in the report, its probability, the radiographs. Images of a scan stand in the library."""
    name = finding.name
    evaluation = QualitativeEvaluation(_concept(IN_THE_REPORT), _concept(PRESENCE[finding.state]))
    measurements = []
    if finding.probability is not None:
        probability = Measurement(
            name=_concept(PROBABILITY), value=round(finding.probability, 4), unit=_concept(NO_UNITS)
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


def _regions(report: FinishedReport, key: tuple[str, ...]) -> Iterator[_Region]:
    """A group for each box of a finding of a sentence: a line on a radiograph, or the surface of a box of a scan.

    Boxes on images that are no DICOM, and of scans without a frame of reference, are left out.
    """
    for number, place in enumerate(report.places):
        for rank, box in enumerate(place.boxes):
            region = _region(place, box, report, uid("box", str(number), str(rank), *key))
            if region is not None:
                yield region


def _region(place: StatedPlace, box: MarkedBox, report: FinishedReport, tracking_uid: str) -> _Region | None:
    state = LabelState.UNCERTAIN if place.is_uncertain else LabelState.POSITIVE
    evaluation = QualitativeEvaluation(_concept(IN_THE_REPORT), _concept(PRESENCE[state]))
    measurements = []
    if place.probability is not None:
        value = round(place.probability, 4)
        measurements.append(Measurement(name=_concept(OF_THE_PLACE), value=value, unit=_concept(NO_UNITS)))
    stated: dict[str, Any] = {
        "tracking_identifier": TrackingIdentifier(uid=tracking_uid, identifier=place.sentence),
        "finding_type": _concept(code_of(place.finding)),
        "algorithm_id": AlgorithmIdentification(f"{MAKER} {report.model.method}", report.model.version),
        "finding_sites": _sites(place),
        "measurements": measurements,
        "qualitative_evaluations": [evaluation],
    }
    image = None if box.source is None else report.sources[box.source]
    if image is None:
        return None
    if box.corners_lps:
        if not image.frame_of_reference_uid:
            return None
        faces = [np.array([box.corners_lps[corner] for corner in face]) for face in FACES]
        series = SourceSeriesForSegmentation(image.series_instance_uid)
        surface = VolumeSurface("POLYGON", faces, image.frame_of_reference_uid, source_series=series)
        return VolumetricROIMeasurementsAndQualitativeEvaluations(referenced_volume_surface=surface, **stated)
    outline = outline_px(box, image)
    if outline is None:
        return None
    source = SourceImageForRegion(image.sop_class_uid, image.sop_instance_uid)
    region = ImageRegion("POLYLINE", outline, source)
    return PlanarROIMeasurementsAndQualitativeEvaluations(referenced_region=region, **stated)


def _sites(place: StatedPlace) -> list[FindingSite]:
    """The stated place: lung or thorax, side, and the zone in words."""
    if not place.named:
        return []
    location = _concept(LUNG if place.zones and {*place.zones} <= {*LUNG_ZONES} else THORAX)
    modifier = _concept(private_code(place.named)) if place.zones else None
    return [
        FindingSite(location, None if side is None else _concept(LATERALITY[side]), modifier)
        for side in place.sides or (None,)
    ]


FACES: Final = ((0, 2, 6, 4, 0), (1, 3, 7, 5, 1), (0, 1, 3, 2, 0), (4, 5, 7, 6, 4), (0, 1, 5, 4, 0), (2, 3, 7, 6, 2))
"""Corners of a box of a scan (``MarkedBox``) along each of its faces."""


def outline_px(box: MarkedBox, source: Identity) -> NDArray[np.float64] | None:
    """A box of a radiograph as a closed line of (column, row) pixels from the upper left corner of the first one."""
    if source.rows is None or source.columns is None or len(box.box) != 4:
        return None
    left, top, right, bottom = np.array(box.box) * [source.columns, source.rows, source.columns, source.rows]
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom), (left, top)])


def _images(report: FinishedReport) -> list[SourceImageForMeasurementGroup] | None:
    if len(report.sources) > SHOWN_IMAGES:
        return None
    return [SourceImageForMeasurementGroup(source.sop_class_uid, source.sop_instance_uid) for source in report.sources]


def _image_library(report: FinishedReport) -> Dataset:
    """The report's images (TID 1600), by modality."""
    groups: dict[str, list[Dataset]] = {}
    for source in report.sources:
        groups.setdefault(source.modality or "OT", []).append(image(source))
    return container(
        IMAGE_LIBRARY,
        [
            container(IMAGE_LIBRARY_GROUP, [code(MODALITY, modality(name), "HAS ACQ CONTEXT"), *images])
            for name, images in groups.items()
        ],
    )


def _narrative(report: FinishedReport) -> Dataset:
    """The text with cautions and evidence (TID 1500, rows 12 to 14)."""
    sections = [text_item(SECTION_CODES[section.kind][0], section.text) for section in report.sections]
    before = [text_item(COMMENT, line) for line in caution_lines(report)]
    after = [text_item(COMMENT, line) for line in evidence_lines(report)]
    return container(EVALUATIONS, [*before, *sections, *addenda(report), *after])
