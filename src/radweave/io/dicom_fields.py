"""Header values of a DICOM data set as plain numbers and known codes, never as free text.

Runs in the reading process. A value leaves it only as a number, a listed code, or (identifiers) the beginning of a
SHA-256 digest, so that free text of a site cannot reach a message or a log.
"""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections.abc import Iterable
from itertools import permutations
from typing import Any, Final

from pydicom.dataset import Dataset

from radweave.core.same_patient import plain_spellings

# DICOM codes that may be shown to a user; other values of these fields stay in the file.
_MODALITIES = """CR DX DR XR RG XA RF MG IO PX CT MR US PT NM OT SC SR SEG RTSTRUCT RTDOSE RTPLAN RTIMAGE PR KO OP SM
    ES XC GM DOC IVUS OCT OPT REG ECG HD AU KER BI BMD RWV PLAN"""
_PHOTOMETRIC = """MONOCHROME1,MONOCHROME2,PALETTE COLOR,RGB,YBR_FULL,YBR_FULL_422,YBR_PARTIAL_422,YBR_PARTIAL_420,
    YBR_ICT,YBR_RCT,HSV,ARGB,CMYK"""
# Defined terms of (0018,0015), PS3.16 Annex L, as far as they turn up on radiographs and CT.
_CHEST_PARTS = """CHEST,THORAX,LUNG,LUNGS,RIB,RIBS,RIBCAGE,STERNUM,HEART,CHESTABDOMEN,CHESTABDPELVIS,MEDIASTINUM,
    THORACICAORTA,NECKCHEST,NECKCHESTABDOMEN,NECKCHESTABDPELV,PORT CHEST,CHEST_TO_PELVIS,WHOLEBODY,TRUNK,BRONCHUS"""
# Parts whose images show some or most of a chest.
_PARTLY_CHEST = "CLAVICLE,TSPINE,CTSPINE,TLSPINE,SPINE,AORTA,ESOPHAGUS"
_OTHER_PARTS = """SKULL HEAD HEADNECK BRAIN NECK CSPINE LSPINE LSSPINE SSPINE ABDOMEN ABDOMENPELVIS PELVIS HIP EXTREMITY
    LEG ARM HAND FOOT KNEE ELBOW SHOULDER ANKLE WRIST FEMUR HUMERUS TIBIA FIBULA FOREARM FINGER TOE THUMB JAW TEETH
    BREAST LIVER PANCREAS KIDNEY BLADDER PROSTATE UTERUS COLON COCCYX SCAPULA HEEL ORBIT SELLA TMJ LOWERLEG UPPERARM
    UPPERLEG LOWEREXTREMITY UPPEREXTREMITY PATELLA CALCANEUS SACRUM SIJOINT ACJOINT MAXILLA MANDIBLE NOSE SINUS ZYGOMA
    RADIUS ULNA THIGH CALF EYE EAR IAC FACE FACIALBONES GALLBLADDER STOMACH INTESTINE RECTUM SCROTUM SPLEEN
    UPEXM LOWEXM LOEXM"""
_IMAGE_TYPES = "ORIGINAL DERIVED PRIMARY SECONDARY AXIAL LOCALIZER REFORMATTED MPR"


def _listed(text: str) -> frozenset[str]:
    separated = text.split(",") if "," in text else text.split()
    return frozenset(word.strip() for word in separated)


MODALITIES: Final = _listed(_MODALITIES)
PHOTOMETRIC: Final = _listed(_PHOTOMETRIC)
CHEST_PARTS: Final = _listed(_CHEST_PARTS)
PARTLY_CHEST: Final = _listed(_PARTLY_CHEST)
OTHER_PARTS: Final = _listed(_OTHER_PARTS)
BODY_PARTS: Final = CHEST_PARTS | PARTLY_CHEST | OTHER_PARTS
IMAGE_TYPES: Final = _listed(_IMAGE_TYPES)
VOI_FUNCTIONS: Final = frozenset({"LINEAR", "LINEAR_EXACT", "SIGMOID"})
LUT_SHAPES: Final = frozenset({"IDENTITY", "INVERSE"})
PRESENTATION_INTENTS: Final = frozenset({"FOR PRESENTATION", "FOR PROCESSING"})
RESCALE_TYPES: Final = frozenset({"HU", "US", "OD"})

# View Position (0018,5101) is enumerated for DX and free for CR.
VIEW_POSITIONS: Final = {
    "PA": "PA",
    "AP": "AP",
    **dict.fromkeys(("LL", "RL", "LLD", "RLD", "LLO", "RLO", "LAT", "LATERAL"), "LATERAL"),
}
# View codes of CID 4010, as SNOMED CT and as the older SRT.
VIEW_CODES: Final = {
    **dict.fromkeys(("272479007", "R-10214", "R-40888"), "PA"),
    **dict.fromkeys(("399348003", "R-10206"), "AP"),
    **dict.fromkeys(("399033003", "R-10202"), "FRONTAL"),
    **dict.fromkeys(("399067008", "399173006", "399198007", "R-102CD", "R-10232", "R-10236"), "LATERAL"),
}

# Anatomic regions (CID 4 and 4031), as SNOMED CT and as the older SRT.
CHEST_REGIONS: Final = _listed("""51185008 T-D3000 39607008 T-28000 80891009 T-32000 113197003 T-11300 56873002 T-11210
    72410000 T-D3300 416550000 R-FAB55 416775004 R-FAB56 417437006 R-FAB53 416152001 R-FAB54 416319003 R-FAB52
    416949008 R-FAB57 38266002 22943007 T-D2000 43799004 T-D3050 955009 T-26000""")
OTHER_REGIONS: Final = _listed("""818981001 818982008 818983003 113345001 T-D4000 12921003 816092008 T-D6000 89546000
    T-11100 69536005 T-D1100 45048000 T-D1600 774007 T-D1000 85562004 T-D8700 56459004 T-D9700 72696002 T-D9200
    70258002 344001 T-15750 T-D9500 127949000 76248009 T-D8300 8205005 74670003 T-15460 T-D8600 29836001 24136001
    T-D2500 T-15710 71341001 T-12710 68367000 T-D9100 12611008 T-12740 87342007 T-12750 85050009 T-12410 40983000
    T-D8200 14975008 T-D8500 30021000 T-D9400 7569003 T-D8800 29707007 T-D9800 76505004 T-D8810 122494005 T-11501
    122496007 T-11503 66019005 T-D0300 53120007 T-D8000 61685007 T-D9000 12738006 T-A0100 76752008 T-04000 64234005
    T-12730 80144004 T-12770 79601000 T-12280 661005 T-D1213 91609006 T-11180 64688005 T-11BF0 54735007 T-11AD0
    39723000 T-15680 16982005 T-D2220 23416004 T-12403 62413002 T-12402 363654007 T-D1480 2095001 T-22000""")

# Words of descriptions in the languages of common devices, without accents. A word that also says how a patient lies
# or is named ("head first", "arms up", a street) is left to the coded fields.
CHEST_WORDS: Final = _listed("""CHEST THORAX THORACIC THORACIQUE TORAX TORACE TORACICO TORACICA KLATKA RIB RIBS RIPPEN
    COSTILLAS COSTE CXR CHESTXRAY LUNG LUNGS LUNGE LUNGEN PULMO PULMON PULMONES PULMONAR PULMONARY POUMON POUMONS
    PULMONAIRE POLMONE POLMONI PULMAO PULMOES BRUSTKORB RXTHORAX RXTORAX STERNUM STERNAL ГРУДНОЙ ГРУДНАЯ ЛЕГКИХ GOGUS
    LONGEN BORSTKAS LUNGOR BRYSTKASSE KEUHKOT""")
OTHER_WORDS: Final = _listed("""KNEE KNEES KNIE GENOU GENOUX RODILLA RODILLAS GINOCCHIO JOELHO KOLANO DIZ КОЛЕНО
    КОЛЕННЫЙ FOOT FUSS FUß PIED PIEDS PIEDE HAND HANDS HAENDE MANO MANOS MAO ANKLE ANKLES SPRUNGGELENK CHEVILLE TOBILLO
    CAVIGLIA TORNOZELO ENKEL WRIST WRISTS HANDGELENK POIGNET MUNECA POLSO PUNHO ELBOW ELBOWS ELLBOGEN ELLENBOGEN COUDE
    CODO GOMITO COTOVELO HIP HIPS HUEFTE HUFTE HUFTGELENK HANCHE CADERA ANCA QUADRIL HEUP PELVIS BECKEN BASSIN PELVICO
    BACINO PELVE BEKKEN SKULL SCHADEL SCHAEDEL CRANE CRANEO CRANIO CRANIUM SCHEDEL ABDOMEN ABDOMINAL BAUCH VENTRE ADDOME
    BRZUCH BUIK KUB FEMUR OBERSCHENKEL TIBIA FIBULA UNTERSCHENKEL LEG LEGS JAMBE PIERNA GAMBA PERNA BEIN BEINE HUMERUS
    OBERARM HUMERO FOREARM UNTERARM ANTEBRAZO AVAMBRACCIO FINGER FINGERS DOIGT DOIGTS DEDO DITO TOE TOES ZEHE ZEHEN
    ORTEIL THUMB DAUMEN POUCE PULGAR SHOULDER SHOULDERS SCHULTER EPAULE HOMBRO SPALLA OMBRO SCHOUDER EXTREMITY
    EXTREMITIES EXTREMITAET EXTREMITAT EXTREMIDAD PATELLA CALCANEUS FERSE JAW KIEFER MANDIBLE MANDIBULE MANDIBULA TEETH
    DENTAL ZAHN ZAHNE MAMMO MAMMOGRAPHY MAMMOGRAFIE MAMMOGRAPHIE MAMMOGRAFIA LUMBAR LENDENWIRBELSAULE LWS HWS CSPINE
    LSPINE LOMBAIRE LUMBARE SACRUM COCCYX STEISSBEIN SCAPULA""")
CHEST_SIGNS: Final = ("胸", "肺", "흉부", "폐", "صدر")
OTHER_SIGNS: Final = _listed("膝 足 手 腕 腹 頭 头 骨盤 骨盆 肘 股関節 무릎 발목 손목 복부")
"""Terms of scripts without blanks between words."""

DIGEST_CHARS = 16


class Fields:
    """Safe access to one data set; ``invalid`` collects the names of unreadable fields."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self.invalid: list[str] = []

    def raw(self, keyword: str) -> Any:
        try:
            return self._dataset.get(keyword)
        except Exception:  # pydicom converts on access, and a damaged value may raise nearly anything
            self.invalid.append(keyword)
            return None

    def numbers(self, keyword: str) -> list[float] | None:
        """All values as finite floats; None if absent or any of them is not a finite number."""
        value = self.raw(keyword)
        if value is None or value == "":
            return None
        values = list(value) if hasattr(value, "__iter__") and not isinstance(value, (str, bytes)) else [value]
        try:
            floats = [float(v) for v in values]
        except (TypeError, ValueError, OverflowError):
            floats = [math.nan]
        if not floats:
            return None
        if not all(math.isfinite(v) for v in floats):
            self.invalid.append(keyword)
            return None
        return floats

    def number(self, keyword: str) -> float | None:
        values = self.numbers(keyword)
        return None if values is None else values[0]

    def integer(self, keyword: str) -> int | None:
        value = self.number(keyword)
        if value is not None and value != int(value):
            self.invalid.append(keyword)
            return None
        return None if value is None else int(value)

    def code(self, keyword: str, known: frozenset[str]) -> str | None:
        """The first value if it is a known code, "?" if it is another one, None if there is none."""
        words = self.words(keyword)
        if not words:
            return None
        return words[0] if words[0] in known else "?"

    def words(self, keyword: str) -> list[str]:
        value = self.raw(keyword)
        if value is None:
            return []
        values = [value] if isinstance(value, str) else value if hasattr(value, "__iter__") else [value]
        return [text for text in (str(v).strip().upper() for v in values) if text]

    def digest(self, *keywords: str) -> str | None:
        """A short digest that groups files of one study or patient without identifying them."""
        values = ["".join(self.words(keyword)) for keyword in keywords]
        if not values[0]:
            return None
        return hashlib.sha256("\0".join(values).encode("utf-8", "replace")).hexdigest()[:DIGEST_CHARS]


def view_of(fields: Fields) -> str | None:
    """PA, AP, FRONTAL or LATERAL, from the view's code, the view position or the patient's orientation."""
    sequence = fields.raw("ViewCodeSequence")
    if sequence:
        try:
            code = str(sequence[0].get("CodeValue", "")).strip()
        except (AttributeError, IndexError, TypeError):
            code = ""
        if code in VIEW_CODES:
            return VIEW_CODES[code]
    position = " ".join(fields.words("ViewPosition"))
    if position in VIEW_POSITIONS:
        return VIEW_POSITIONS[position]
    for word in position.replace("_", " ").split():
        if word in VIEW_POSITIONS:
            return VIEW_POSITIONS[word]
    for keyword in ("ProtocolName", "SeriesDescription", "AcquisitionDeviceProcessingDescription"):
        words = " ".join(fields.words(keyword)).replace("_", " ").replace(",", " ").replace(".", " ").split()
        named = {VIEW_POSITIONS[word] for word in words if word in ("PA", "AP", "LAT", "LATERAL")}
        if len(named) == 1:
            return named.pop()
    return _view_from_orientation(fields.words("PatientOrientation"))


def _view_from_orientation(orientation: list[str]) -> str | None:
    """PS3.3 C.7.6.1.1.1: the first value is the direction of the rows, across a frontal view or along a lateral one."""
    if not orientation or len(orientation) != 2:
        return None
    return {"L": "FRONTAL", "R": "FRONTAL", "A": "LATERAL", "P": "LATERAL"}.get(orientation[0][:1])


def laterality_of(fields: Fields) -> str | None:
    """L, R, B (both) or U (unpaired) of the image, else of the series (PS3.3 C.7.3.1 and C.8.11.7)."""
    known = frozenset({"L", "R", "B", "U"})
    codes = (fields.code(keyword, known) for keyword in ("ImageLaterality", "Laterality"))
    return next((code for code in codes if code in known), None)


def orientation_of(fields: Fields) -> list[str]:
    """Directions of rows and columns (PS3.3 C.7.6.1.1.1), as ["L", "F"]; empty if not stated."""
    words = fields.words("PatientOrientation")
    fits = len(words) == 2 and all(len(word) <= 3 and set(word) <= set("APRLHF") for word in words)
    return words if fits else []


CHEST, PARTLY, OTHER, CONFLICT = "chest", "partly", "other", "conflict"
_OF_THE_IMAGE: Final = ("SeriesDescription", "ProtocolName", "AcquisitionDeviceProcessingDescription", "ViewPosition")
_OF_THE_STUDY: Final = (
    "StudyDescription", "PerformedProcedureStepDescription", "RequestedProcedureDescription",
)  # fmt: skip
_REGIONS: Final = ("AnatomicRegionSequence", "PrimaryAnatomicStructureSequence")
_WORD: Final = re.compile(r"[^\W\d_]+")


def anatomy_of(fields: Fields) -> str | None:
    """``CHEST``, ``PARTLY``, ``OTHER`` or ``CONFLICT``, by all fields that name a part of the body; None if none does.

    Body part, coded regions and the series' descriptions describe the image and must agree. Descriptions of the study
    cover all of its images (an abdominal series includes a chest) and count only without the others.
    """
    named = {_of_part(value) for value in fields.words("BodyPartExamined")} - {None}
    about_image = [_combined(named), _combined(_of_regions(fields)), _of_texts(fields, _OF_THE_IMAGE)]
    stated = {kind for kind in about_image if kind is not None}
    if CONFLICT in stated or (OTHER in stated and len(stated) > 1):
        return CONFLICT
    return _combined(stated) or _of_texts(fields, _OF_THE_STUDY)


def _combined(kinds: Iterable[str | None]) -> str | None:
    """One kind for the values of a field; chest and abdomen together count as chest."""
    present = set(kinds)
    return next((kind for kind in (CONFLICT, CHEST, PARTLY, OTHER) if kind in present), None)


def _of_part(value: str) -> str | None:
    """The kind of a body part, also in a site's own words or spelled as ``UP_EXM`` and ``T SPINE``."""
    plain = _plain(value)
    for term in (plain, re.sub(r"[\W_]+", "", plain)):
        for kind, parts in ((CHEST, CHEST_PARTS), (PARTLY, PARTLY_CHEST), (OTHER, OTHER_PARTS)):
            if term in parts:
                return kind
    return _of_words(plain, others=OTHER_WORDS | OTHER_PARTS)


def _of_regions(fields: Fields) -> set[str | None]:
    kinds: set[str | None] = set()
    for keyword in _REGIONS:
        for item in fields.raw(keyword) or ():
            try:
                code, meaning = (str(item.get(name, "") or "").strip() for name in ("CodeValue", "CodeMeaning"))
            except Exception:  # pydicom converts on access, and a damaged value may raise nearly anything
                fields.invalid.append(keyword)
                continue
            if code in CHEST_REGIONS or code in OTHER_REGIONS:
                kinds.add(CHEST if code in CHEST_REGIONS else OTHER)
            else:
                kinds.add(_of_part(meaning))
    return kinds


def _of_texts(fields: Fields, keywords: Iterable[str]) -> str | None:
    return _of_words(" ".join(_plain(text) for keyword in keywords for text in fields.words(keyword)))


def _of_words(plain: str, others: frozenset[str] = OTHER_WORDS) -> str | None:
    words = set(_WORD.findall(plain))
    if words & CHEST_WORDS or any(sign in plain for sign in CHEST_SIGNS):
        return CHEST
    return OTHER if words & others or any(sign in plain for sign in OTHER_SIGNS) else None


def _plain(text: str) -> str:
    """Upper case, without accents."""
    letters = unicodedata.normalize("NFKD", text.upper())
    return unicodedata.normalize("NFC", "".join(sign for sign in letters if not unicodedata.combining(sign)))


# Words of names and ids in a header as salted digests, to find them in texts.

NAMING: Final = (
    "PatientName", "OtherPatientNames", "PatientBirthName", "PatientMotherBirthName", "PatientID", "OtherPatientIDs",
    "AccessionNumber", "StudyID", "ReferringPhysicianName", "PerformingPhysicianName", "NameOfPhysiciansReadingStudy",
    "RequestingPhysician", "PhysiciansOfRecord", "OperatorsName",
)  # fmt: skip
"""Attributes of PS3.15 Table E.1-1 that name a person or a record in few words."""

PERSONS: Final = frozenset(name for name in NAMING if "ID" not in name and "Number" not in name)

_WORD_OR_NUMBER: Final = re.compile(r"[^\W_]+")
SHORTEST_NAME: Final = 2
SHORTEST_NUMBER: Final = 3
SHORTEST_JOINED: Final = 4
SHORTEST_BARE: Final = 4
"""Digits of an id without its leading zeros."""
MOST_NAMES: Final = 6
"""Limit of the names of a person that are concatenated."""


def word_key(word: str, salt: str) -> str:
    """A salted digest of a word, independent of case."""
    return hashlib.sha256(f"{salt}\0{word.casefold()}".encode("utf-8", "replace")).hexdigest()[:16]


def word_keys(fields: Fields, salt: str) -> list[str]:
    """Digests of all words in the naming attributes and of their concatenations."""
    words: set[str] = set()
    for name in NAMING:
        # Lists of several names print with all their parts, too.
        text = str(fields.raw(name) or "")
        words |= spellings(text) if name in PERSONS else number_spellings(text)
    return sorted(word_key(word, salt) for word in words)


def spellings(name: str) -> set[str]:
    """Words of a person's name in lower case and their concatenations: two or three, or one with an initial.

    Each occurs with and without the marks on its letters.
    """
    words = [word.casefold() for word in _WORD_OR_NUMBER.findall(name)]
    spelled = {word for word in words if len(word) >= SHORTEST_NAME}
    for count in (2, 3):
        spelled |= {"".join(order) for order in permutations(words[:MOST_NAMES], count)}
    for word, other in permutations(words[:MOST_NAMES], 2):
        spelled |= {word + other[0], other[0] + word} if len(word) >= SHORTEST_JOINED else set()
    spelled = {word for word in spelled if word in words or len(word) >= SHORTEST_JOINED or not word.isascii()}
    return spelled | {plain for word in spelled for plain in plain_spellings(word) if len(plain) >= SHORTEST_NAME}


def number_spellings(text: str) -> set[str]:
    """Words of an id in lower case, all of them without separators, and without leading zeros."""
    words = [word.casefold() for word in _WORD_OR_NUMBER.findall(text)]
    spelled = {word for word in (*words, "".join(words)) if len(word) >= SHORTEST_NUMBER}
    bare = (word.lstrip("0") for word in spelled if word.isdigit())
    return spelled | {word for word in bare if len(word) >= SHORTEST_BARE}
