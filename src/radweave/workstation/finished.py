"""The finished report, independent of formats: text, findings, model, identity, signature. All writers read it alone.

A report is preliminary until a reader signs it.
"""

from __future__ import annotations

import re
import unicodedata
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from radweave.core.errors import InputError
from radweave.core.map_kinds import UNKNOWN
from radweave.core.storage import sha256_json
from radweave.core.study import RESEARCH_ONLY, LabelState
from radweave.engine.run_folder import RunCard
from radweave.inference.explain.support import too_large_words
from radweave.workstation.identity import Identity

if TYPE_CHECKING:
    from radweave.inference.explain.maps import Panel

# Characters that every format can hold. A model's text is cleaned (``writable``); a signed text is never changed, but
# refused if an export would lose a character (``refuse_unsignable``). DICOM's long texts have no tabs (PS3.5 Sec. 6.2,
# UT), XML and JSON readers refuse control and unassigned characters, HL7 drops those it cannot show.

_BREAKS: Final = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_UNSEEN: Final = frozenset(
    map(chr, (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, 0xFFFC, 0xFFFD, 0x16FE4, 0x1D159,
              *range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0x13441, 0x13443), *range(0xE0100, 0xE01F0)))
)  # fmt: skip
"""Printable by category but invisible: fillers, variation selectors, replacement characters.

Other invisible or reordering characters have the categories Cc, Cf, Cn, Co and Cs.
"""
LONGEST_NAME: Final = 64
"""Characters in one group of a name (PS3.5 Table 6.2-1)."""


def writable(text: str) -> str:
    """The text with spaces for other white space, line feeds for breaks, and without unwritable characters."""
    lines = _BREAKS.sub("\n", text).split("\n")
    return "\n".join("".join(map(_sign, line)).rstrip() for line in lines).strip()


def _sign(sign: str) -> str:
    if sign.isspace():
        return " "
    return sign if sign.isprintable() and sign not in _UNSEEN else ""


def refuse_unsignable(text: str, *, field: str) -> None:
    """Refuse a text that an export would change, or that is empty.

    Raises:
        InputError: naming the first invisible, reordering or unwritable character by its code point; or if there is no
            letter and no digit.
    """
    for place, sign in enumerate(text, start=1):
        if not sign.isspace() and not _sign(sign):
            name = unicodedata.name(sign, "a control or unassigned sign")
            got = f"U+{ord(sign):04X} {name}, character {place}"
            raise InputError("holds a sign that is not seen or cannot be written", field=field, got=got)
    if not any(unicodedata.category(sign)[0] in "LN" for sign in text):
        raise InputError("is empty: it holds no letter and no digit", field=field)


def person_name(text: str) -> str:
    """A typed name as one component of a DICOM name, without delimiters."""
    return " ".join(re.sub(r"[\\^=]", " ", writable(text)).split())[:LONGEST_NAME].rstrip()


CAUTION = "CAUTION: Not for Diagnostic Use, for research use only."
"""The series description of every DICOM object."""
MAKER = "Radweave"
SectionKind = Literal["indication", "technique", "comparison", "findings", "impression"]
"""In the order of a report."""


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the report with its text, never empty."""

    kind: SectionKind
    text: str

    @property
    def title(self) -> str:
        return self.kind.capitalize()


@dataclass(frozen=True, slots=True)
class Finding:
    """A class of the label set: its probability, if the method gives one, and its ``state`` in the report.

    A probability from ``threshold`` on counts as present; ``flag`` describes a conflict of probability and report.
    """

    name: str
    probability: float | None
    threshold: float
    state: LabelState
    flag: str | None = None


@dataclass(frozen=True, slots=True)
class Flagged:
    """A sentence for readers to check, and the reason."""

    text: str
    why: str


@dataclass(frozen=True, slots=True)
class MarkedBox:
    """A box of a finding, in shares of its image as ``core.study.FindingBox`` has it.

    ``image`` is the index of the image among those of the study, and ``source`` that of a radiograph, or of the first
    slice of a scan, among the ``sources``. A box of a scan has eight corners in mm: of x, y and z the lower before the
    upper end, z changing first.
    """

    image: int
    box: tuple[float, ...]
    source: int | None = None
    corners_lps: tuple[tuple[float, float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class StatedPlace:
    """Place of a finding that a sentence states, by the sentence and by the images, as ``core.evidence`` has it.

    ``named`` is the place in words, "" where the sentence names none. ``probability`` is None where it is not checked.
    ``boxes`` are those that mark the finding, the likeliest first, ``too_large`` the number of those that are left out.
    ``is_uncertain`` tells that the sentence leaves the finding open.
    """

    sentence: str
    finding: str
    named: str
    sides: tuple[str, ...]
    zones: tuple[str, ...]
    probability: float | None
    boxes: tuple[MarkedBox, ...] = ()
    is_uncertain: bool = False
    too_large: int = 0

    @classmethod
    def of(cls, sentence: str, row: Mapping[str, Any]) -> StatedPlace:
        """From the details of a stored sentence, as ``result_of`` gives them."""
        return cls(
            sentence, row["finding"], row["named"], tuple(row["sides"]), tuple(row["zones"]), row["probability"],
            tuple(MarkedBox(one["image"], tuple(one["box"])) for one in row["boxes"]), row.get("uncertain", False),
            row.get("too_large", 0),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Picture:
    """An image to show: grey values (H, W), 0 is black."""

    title: str
    grey: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class PlacedMap:
    """A map (z, y, x) of a scan, from 0 to 1, and its affine (4 x 4) from voxels (x, y, z, 1) to mm, LPS."""

    values: NDArray[np.float32]
    affine_lps: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class HeatMap:
    """The map of ``name`` over each radiograph (brightest at ``peak``) or over the scan; ``note`` is its meaning."""

    name: str
    peak: float
    panels: tuple[Panel, ...] = ()
    placed: PlacedMap | None = None
    note: str = UNKNOWN.note


@dataclass(frozen=True, slots=True)
class Model:
    """The model of the report; ``digest`` is a SHA-256 over all files of its run."""

    method: str
    preset: str
    version: str
    digest: str


@dataclass(frozen=True, slots=True)
class Signature:
    """Signer and time; ``name`` is in DICOM's form."""

    name: str
    organization: str
    time: datetime


@dataclass(frozen=True, slots=True)
class Addendum:
    """A text added to a signed report, whose own text stays unchanged."""

    text: str
    signature: Signature


@dataclass(frozen=True, slots=True)
class FinishedReport:
    """A report for all writers; its texts hold only characters of every format.

    Attributes:
        study_id: name of the study outside archives: that of its files.
        text: the whole report.
        sections: the same text by section.
        findings: classes, the most probable first.
        flagged: sentences that the evidence contradicts or does not support.
        warnings: warnings for readers.
        model: the model of the draft.
        written: time of writing, with its zone.
        sources: identities of the images; () unless they are DICOM files.
        pictures: the images to show.
        maps: attention maps of the relevant classes, if the method gives them.
        places: places of the findings of each sentence, if the run checks them; none of a sentence by a reader.
        signature: None for a draft.
        addenda: later additions, in order.
        rejected: the person who rejected the draft; the report is then the notice of it.
        predecessor: the version before this one in an archive: a draft, or a report with fewer addenda.
    """

    study_id: str
    text: str
    sections: tuple[Section, ...]
    findings: tuple[Finding, ...]
    flagged: tuple[Flagged, ...]
    warnings: tuple[str, ...]
    model: Model
    written: datetime
    sources: tuple[Identity, ...] = ()
    pictures: tuple[Picture, ...] = ()
    maps: tuple[HeatMap, ...] = ()
    places: tuple[StatedPlace, ...] = ()
    signature: Signature | None = None
    addenda: tuple[Addendum, ...] = ()
    rejected: Signature | None = None
    predecessor: FinishedReport | None = None
    notice: str = RESEARCH_ONLY

    def __post_init__(self) -> None:
        sections = (replace(section, text=writable(section.text)) for section in self.sections)
        findings = (
            replace(finding, name=writable(finding.name), flag=None if finding.flag is None else writable(finding.flag))
            for finding in self.findings
        )
        cleaned = {
            "text": writable(self.text),
            "sections": tuple(section for section in sections if section.text),
            "findings": tuple(findings),
            "flagged": tuple(Flagged(writable(item.text), writable(item.why)) for item in self.flagged),
            "warnings": tuple(map(writable, self.warnings)),
            "addenda": tuple(replace(item, text=writable(item.text)) for item in self.addenda),
            "places": tuple(
                replace(item, sentence=writable(item.sentence), finding=writable(item.finding)) for item in self.places
            ),
        }
        for name, value in cleaned.items():
            object.__setattr__(self, name, value)

    @property
    def released(self) -> datetime:
        """The time of this version: of its writing, signature, last addendum, or rejection."""
        last = self.addenda[-1].signature if self.addenda else self.signature or self.rejected
        return self.written if last is None else last.time

    @property
    def signatures(self) -> tuple[Signature, ...]:
        """Signatures of the report and its addenda, in order; none of a draft."""
        return () if self.signature is None else (self.signature, *(addendum.signature for addendum in self.addenda))

    @property
    def is_final(self) -> bool:
        return self.signature is not None

    @property
    def patient(self) -> Identity:
        """The patient of the report.

        Raises:
            InputError: without DICOM images.
        """
        if not self.sources:
            raise InputError(
                "the images are no DICOM files, so the report names no patient",
                field="--format",
                expected="DICOM images, or pdf, fhir or text",
            )
        return self.sources[0]

    @property
    def modality(self) -> Literal["xray", "ct"]:
        return "ct" if self.sources and self.sources[0].modality == "CT" else "xray"


def model_facts(card: RunCard) -> dict[str, Any]:
    """The model as JSON values; ``bank`` is a hash over files with training reports, ``files`` over all files."""
    banks = {name: digest for name, digest in card.files.items() if name.startswith(("memories/", "drafting/"))}
    return {
        "method": card.method, "preset": card.preset, "weights": card.files.get("weights.safetensors"),
        "bank": sha256_json(banks) if banks else None, "radweave": card.versions["radweave"],
        "files": sha256_json(dict(card.files)),
    }  # fmt: skip


def model_from(facts: Mapping[str, Any]) -> Model:
    """The model of a draft's record; older records without ``files`` get a hash of their content."""
    return Model(
        str(facts.get("method", "unknown")),
        str(facts.get("preset", "unknown")),
        str(facts.get("radweave", "unknown")),
        str(facts.get("files") or sha256_json(dict(facts))),
    )


# Status and evidence in sentences, the same in every format.

PRELIMINARY = "Preliminary: an unverified draft by software, not signed by a radiologist."
STATE_WORDS = {
    LabelState.POSITIVE: "stated",
    LabelState.NEGATIVE: "denied",
    LabelState.UNCERTAIN: "left open",
    LabelState.BLANK: "not mentioned",
}


def status_line(report: FinishedReport) -> str:
    """The status: draft, signed by whom and when with how many addenda, or rejected by whom."""
    if report.rejected is not None:
        return f"Rejected by {_whose(report.rejected)}. This is no report."
    signature = report.signature
    if signature is None:
        return PRELIMINARY
    more = (
        f" With {len(report.addenda)} {'addendum' if len(report.addenda) == 1 else 'addenda'}."
        if report.addenda
        else ""
    )
    return f"Signed by {_whose(signature)}. Drafted by software.{more}"


def addendum_lines(report: FinishedReport) -> list[tuple[str, str]]:
    """Heading (with signer and time) and text of each addendum."""
    return [
        (f"Addendum {number}, signed by {_whose(addendum.signature)}", addendum.text)
        for number, addendum in enumerate(report.addenda, start=1)
    ]


def document_title(report: FinishedReport) -> str:
    """The title of the document."""
    if report.rejected is not None:
        return "Chest imaging, notice of a rejected draft"
    return "Chest imaging report" + ("" if report.is_final else ", unverified draft")


def _whose(signature: Signature) -> str:
    time = signature.time.strftime("%Y-%m-%d %H:%M %z")
    return f"{spoken_name(signature.name)}, {signature.organization}, {time}"


def model_line(report: FinishedReport) -> str:
    """Software and model of the draft."""
    model = report.model
    return f"{MAKER} {model.version}, method {model.method} ({model.preset}), model {model.digest[:12]}"


def caution_lines(report: FinishedReport) -> list[str]:
    """Lines before the text: status, notice, warnings."""
    return [status_line(report), report.notice, *(f"Warning: {warning}" for warning in report.warnings)]


def evidence_lines(report: FinishedReport) -> list[str]:
    """Lines after the text: flagged findings and sentences, probabilities, the model."""
    return [
        *(f"To be looked at: {finding.name}: {finding.flag}" for finding in report.findings if finding.flag),
        *(f'To be looked at: "{sentence.text}" ({sentence.why})' for sentence in report.flagged),
        *(finding_line(finding) for finding in report.findings if finding.probability is not None),
        *(place_line(place) for place in report.places if place.named or place.too_large),
        f"Written by {model_line(report)}",
    ]


def finding_line(finding: Finding) -> str:
    """A class with its probability and its state in the report."""
    if finding.probability is None:
        return f"{finding.name}: {STATE_WORDS[finding.state]} in the report"
    return (
        f"{finding.name}: probability {finding.probability:.2f} (threshold {finding.threshold:.2f}),"
        f" {STATE_WORDS[finding.state]} in the report"
    )


def place_line(place: StatedPlace) -> str:
    """The place that a sentence names of a finding, with its probability, and the boxes that are left out."""
    checked = "place not checked" if place.probability is None else f"probability {place.probability:.2f}"
    parts = (place.named, checked if place.named else "", too_large_words(place.too_large))
    return f"Place of {place.finding}: {', '.join(part for part in parts if part)}"


def spoken_name(name: str) -> str:
    """A DICOM name in reading order: "Prefix Given Middle Family, Suffix", other scripts in brackets."""
    groups = [_one_name(group) for group in name.split("=")]
    named = [group for group in groups if group]
    return named[0] + "".join(f" ({group})" for group in named[1:]) if named else ""


def name_parts(group: str) -> tuple[str, str, str, str, str]:
    """Family, given, middle name, prefix and suffix of one group of a DICOM name."""
    family, first, middle, prefix, suffix = [*group.split("^"), *[""] * 4][:5]
    return family, first, middle, prefix, suffix


def _one_name(group: str) -> str:
    family, first, middle, prefix, suffix = (part.strip() for part in name_parts(group))
    spoken = " ".join(part for part in (prefix, first, middle, family) if part)
    return f"{spoken}, {suffix}" if suffix else spoken


def spoken_date(date: str) -> str:
    """A DICOM date (YYYYMMDD) in ISO 8601; "" stays."""
    return f"{date[:4]}-{date[4:6]}-{date[6:8]}" if len(date) == 8 else date


# Identifiers derived from content (all but the time of writing, and the kind of object): a report that is sent twice is
# one instance. They are UUIDs of version 5 in decimal below 2.25 (PS3.5 B.2, ISO/IEC 9834-8), in one fixed name space.

_SPACE: Final = uuid.UUID("bd7da9c8-6b8f-5187-ad9a-b550b08bf57a")
# Raised when the content of an object changes for the same report: archives keep the first object of a UID.
LAYOUT: Final = 2
_NO_CONTENT: Final = {"requested_procedure_priority", "display"}
"""Headers that are no part of a report: of a study that a reader makes urgent the report is the same."""


def named_uuid(*parts: str) -> uuid.UUID:
    """The UUID of these parts, in order."""
    return uuid.uuid5(_SPACE, sha256_json(parts))


def uid(*parts: str) -> str:
    """The UID of these parts, in order."""
    return f"2.25.{named_uuid(*parts).int}"


def device_uid(model: Model) -> str:
    """The UID of the software with its model, which changes with any file of the run."""
    return uid("device", model.version, model.digest)


def report_key(report: FinishedReport) -> tuple[str, ...]:
    """The key of a report's version: its whole content but the time of writing.

    Pictures and maps are determined by images and model. Probabilities count as they are printed.
    """
    signature = report.signature
    sources = sorted(report.sources, key=lambda source: source.sop_instance_uid)
    content: dict[str, object] = {
        "study": report.study_id if not report.sources else report.sources[0].study_instance_uid,
        "images": [source.model_dump(exclude=_NO_CONTENT) for source in sources],
        "model": device_uid(report.model),
        "text": report.text,
        "sections": [(section.kind, section.text) for section in report.sections],
        "findings": [
            (item.name, _written(item.probability), _written(item.threshold), item.state.value, item.flag)
            for item in report.findings
        ],
        "flagged": [(item.text, item.why) for item in report.flagged],
        "warnings": report.warnings,
        "notice": report.notice,
        "signed": None if signature is None else _signed(signature),
        "draft": None if report.predecessor is None else report_key(report.predecessor),
    }
    if report.places:
        content["places"] = [
            (
                item.sentence, item.finding, item.named, _written(item.probability),
                [(one.image, *map(_written, one.box)) for one in item.boxes],
                *([item.too_large] if item.too_large else []),
            )
            for item in report.places
        ]  # fmt: skip
    if report.addenda:
        content["addenda"] = [(item.text, *_signed(item.signature)) for item in report.addenda]
    if report.rejected is not None:
        content["rejected"] = _signed(report.rejected)
    return (str(LAYOUT), sha256_json(content))


def _signed(signature: Signature) -> tuple[str, str, str]:
    return signature.name, signature.organization, signature.time.isoformat()


def _written(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def report_uid(report: FinishedReport) -> str:
    """The UID of a report through all its versions: of one model and one study."""
    study = report.sources[0].study_instance_uid if report.sources else ""
    return uid("report", device_uid(report.model), *((study,) if study else report_key(report)))


def instance_uid(report: FinishedReport, kind: str) -> str:
    """The UID of one object (``kind``) of a report."""
    return uid("instance", kind, *report_key(report))


def series_uid(report: FinishedReport, kind: str) -> str:
    """The UID of all objects of a kind of one model and one study."""
    return uid("series", kind, report.patient.study_instance_uid, device_uid(report.model))
