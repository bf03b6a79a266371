"""Codes, and where each is from.

SNOMED CT codes are those that the DICOM standard itself lists (PS3.16), which DICOM's users may use in DICOM without a
licence of their own; they stand in DICOM objects only. Codes of DICOM (DCM) and LOINC are free everywhere. A class
that has none of these gets a code of ours, ``99RADWEAVE``; RadLex codes are not used, since no code of a chest finding
could be held against a list of them. A test asks the standard's dictionary, as pydicom has it, for each code here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from radweave.base.study import LabelState

OURS: Final = "99RADWEAVE"
OURS_NAME: Final = "Classes of findings of Radweave's label sets"


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
"""Of HL7's fields: LOINC, as PS3.16 CID 7001 lists it for the headings of a diagnostic imaging report."""
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
IN_THE_REPORT: Final = Code("STATED", OURS, "Stated in the report")
NO_UNITS: Final = Code("1", "UCUM", "no units")

_MODALITIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "CR": "Computed Radiography",
        "DX": "Digital Radiography",
        "RG": "Radiographic imaging",
        "CT": "Computed Tomography",
        "XA": "X-Ray Angiography",
        "OT": "Other Modality",
    }
)
PRESENCE: Final[Mapping[LabelState, Code]] = MappingProxyType(
    {
        LabelState.POSITIVE: Code("52101004", "SCT", "Present"),
        LabelState.NEGATIVE: Code("272519000", "SCT", "Absent"),
        LabelState.UNCERTAIN: Code("373068000", "SCT", "Undetermined"),
        LabelState.BLANK: Code("BLANK", OURS, "Not mentioned"),
    }
)

# PS3.16 CID 6102 and its parts (chest findings), 645, 3700, 6347, 12236 and 12248, by class name in lower case.
_STANDARD: Final[Mapping[str, Code]] = MappingProxyType(
    {
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
)


def modality(name: str) -> Code:
    """The code of a value of Modality (0008,0060); of one that is not listed here, that of "other"."""
    known = name if name in _MODALITIES else "OT"
    return Code(known, "DCM", _MODALITIES[known])


def code_of(name: str) -> Code:
    """The code of a class of findings: the standard's, or one of ours that follows from the class's name."""
    return _STANDARD.get(name.lower()) or ours(name)


def free_code_of(name: str) -> Code:
    """The code of a class where SNOMED CT needs a licence: DICOM's own, or one of ours."""
    code = code_of(name)
    return ours(name) if code.scheme == "SCT" else code


def ours(name: str) -> Code:
    """A code of at most 16 characters (PS3.5: SH) that follows from the class's name alone.

    Its meaning (LO: 64 characters) has 64 bytes, since validators and archives count those.
    """
    plain = name.replace("_", " ")
    meaning = plain.encode()[:64].decode(errors="ignore").strip()
    return Code("RW" + hashlib.sha256(plain.lower().encode()).hexdigest()[:8].upper(), OURS, meaning)
