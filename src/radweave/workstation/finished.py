"""The record that every writer writes from: what was said of a study, by which model, on what evidence, signed or not.

A report is preliminary until a reader signs it. Nothing here depends on a format, and no writer reads anything else.
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
from radweave.workstation.identity import Identity

if TYPE_CHECKING:
    from radweave.inference.explain.maps import Panel

# Texts in signs that every format can hold and every viewer shows in the order in which they stand.
#
# What a model writes is cleaned (``writable``); what a person signs is never changed, but refused where an export would
# lose a sign of it (``refuse_unsignable``).
#
# DICOM's long texts take line breaks and no tabs (PS3.5 Sec. 6.2, UT), XML and JSON readers refuse control characters and
# what Unicode will never assign, HL7 drops what it cannot show. What separates words in a draft must do so
# in all of them.


_BREAKS: Final = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_UNSEEN: Final = frozenset(
    map(chr, (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, 0xFFFC, 0xFFFD, 0x16FE4, 0x1D159,
              *range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0x13441, 0x13443), *range(0xE0100, 0xE01F0)))
)  # fmt: skip
"""Printable by their category, and blank by their shape or a mark of a lost sign: fillers, selectors of variants.

Other signs that are not seen, or change the order of those that are, are of the categories Cc, Cf, Cn, Co and Cs.
"""
LONGEST_NAME: Final = 64
"""Characters of one group of a name (PS3.5 Table 6.2-1)."""


def writable(text: str) -> str:
    """A text with spaces for tabs and other gaps, line feeds for breaks, and without signs that cannot be written."""
    lines = _BREAKS.sub("\n", text).split("\n")
    return "\n".join("".join(map(_sign, line)).rstrip() for line in lines).strip()


def _sign(sign: str) -> str:
    if sign.isspace():
        return " "
    return sign if sign.isprintable() and sign not in _UNSEEN else ""


def refuse_unsignable(text: str, *, field: str) -> None:
    """Refuse a text of which an export would lose a sign, or that says nothing.

    Raises:
        InputError: naming the first sign that is not seen, turns the order of others or cannot be written, by its code
            point; or if there is no letter and no digit.
    """
    for place, sign in enumerate(text, start=1):
        if not sign.isspace() and not _sign(sign):
            name = unicodedata.name(sign, "a control or unassigned sign")
            got = f"U+{ord(sign):04X} {name}, character {place}"
            raise InputError("holds a sign that is not seen or cannot be written", field=field, got=got)
    if not any(unicodedata.category(sign)[0] in "LN" for sign in text):
        raise InputError("is empty: it holds no letter and no digit", field=field)


def person_name(text: str) -> str:
    """A name as somebody wrote it, as a name of DICOM: no sign of it begins another part, another group or a value."""
    return " ".join(re.sub(r"[\\^=]", " ", writable(text)).split())[:LONGEST_NAME].rstrip()


CAUTION = "CAUTION: Not for Diagnostic Use, for research use only."
"""The series description of everything that goes into an archive."""
MAKER = "Radweave"
SectionKind = Literal["indication", "technique", "comparison", "findings", "impression"]
"""In the order in which a report has them."""


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the report and its text, which is never empty."""

    kind: SectionKind
    text: str

    @property
    def title(self) -> str:
        return self.kind.capitalize()


@dataclass(frozen=True, slots=True)
class Finding:
    """A class of the label set: its probability, if the method gives one, and what the report says of it.

    ``threshold`` is the probability from which on it is taken to be there; ``flag`` says in words where probability and
    report do not go together.
    """

    name: str
    probability: float | None
    threshold: float
    said: LabelState
    flag: str | None = None


@dataclass(frozen=True, slots=True)
class Flagged:
    """A sentence that a reader must look at, and why in words."""

    text: str
    why: str


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture for people to look at: grey values (H, W), 0 black."""

    title: str
    grey: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class PlacedMap:
    """A map (z, y, x) of a scan, from 0 to 1, and where it is: from a voxel's place (x, y, z, 1) to mm, LPS (4 x 4)."""

    values: NDArray[np.float32]
    affine_lps: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class HeatMap:
    """The map of ``name``: over each radiograph, with ``peak`` as the brightest, or over the scan. ``note`` says
    what it shows.
    """

    name: str
    peak: float
    panels: tuple[Panel, ...] = ()
    placed: PlacedMap | None = None
    note: str = UNKNOWN.note


@dataclass(frozen=True, slots=True)
class Model:
    """What wrote the report. ``digest`` is a SHA-256 over every file of the run: it changes when the model does."""

    method: str
    preset: str
    version: str
    digest: str


@dataclass(frozen=True, slots=True)
class Signature:
    """Who took responsibility for the text, and when. ``name`` is in DICOM's form, as a patient's is."""

    name: str
    organization: str
    time: datetime


@dataclass(frozen=True, slots=True)
class Addendum:
    """What a reader added to a signed report, whose own text stays as it was signed."""

    text: str
    signature: Signature


@dataclass(frozen=True, slots=True)
class FinishedReport:
    """See above. Texts hold only signs that every format can hold: see ``signs``.

    Attributes:
        study_id: what the study is called outside of any archive: the name of its files.
        text: the whole report.
        sections: the same text by section.
        findings: what is known of each class, the probable first.
        flagged: sentences that the evidence speaks against, or that nothing supports.
        warnings: what readers must know of this report.
        model: what wrote it.
        written: when, with its zone.
        sources: the images it is about; () where they were no DICOM files, and so nobody's.
        pictures: the images, for people.
        maps: where the model looked for the classes that matter, if its method says so.
        signature: None for a draft.
        addenda: what was added after the signature, in order.
        rejected: who rejected the draft: this is the notice of it, in place of the draft's text.
        predecessor: the version before this one, where an archive has it: a draft, or a report with fewer addenda.
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
    signature: Signature | None = None
    addenda: tuple[Addendum, ...] = ()
    rejected: Signature | None = None
    predecessor: FinishedReport | None = None
    notice: str = RESEARCH_ONLY

    def __post_init__(self) -> None:
        sections = (replace(one, text=writable(one.text)) for one in self.sections)
        findings = (
            replace(one, name=writable(one.name), flag=None if one.flag is None else writable(one.flag))
            for one in self.findings
        )
        cleaned = {
            "text": writable(self.text),
            "sections": tuple(one for one in sections if one.text),
            "findings": tuple(findings),
            "flagged": tuple(Flagged(writable(one.text), writable(one.why)) for one in self.flagged),
            "warnings": tuple(map(writable, self.warnings)),
            "addenda": tuple(replace(one, text=writable(one.text)) for one in self.addenda),
        }
        for name, value in cleaned.items():
            object.__setattr__(self, name, value)

    @property
    def released(self) -> datetime:
        """When this version began to be one: written, signed, added to, or rejected."""
        last = self.addenda[-1].signature if self.addenda else self.signature or self.rejected
        return self.written if last is None else last.time

    @property
    def signatures(self) -> tuple[Signature, ...]:
        """Of the report and of its addenda, in order; none of a draft."""
        return () if self.signature is None else (self.signature, *(one.signature for one in self.addenda))

    @property
    def is_final(self) -> bool:
        return self.signature is not None

    @property
    def patient(self) -> Identity:
        """Whose report it is.

        Raises:
            InputError: if the images did not say.
        """
        if not self.sources:
            raise InputError(
                "the images are no DICOM files, so the report would be nobody's",
                field="--format",
                expected="DICOM images, or pdf, fhir or text",
            )
        return self.sources[0]

    @property
    def modality(self) -> Literal["xray", "ct"]:
        return "ct" if self.sources and self.sources[0].modality == "CT" else "xray"


# What wrote a draft, as every record of the draft has it.


def model_facts(card: RunCard) -> dict[str, Any]:
    """As JSON values. ``bank`` is one hash over all files with training reports, ``files`` one over all of the run."""
    banks = {name: kept for name, kept in card.files.items() if name.startswith(("memories/", "drafting/"))}
    return {
        "method": card.method, "preset": card.preset, "weights": card.files.get("weights.safetensors"),
        "bank": sha256_json(banks) if banks else None, "radweave": card.versions["radweave"],
        "files": sha256_json(dict(card.files)),
    }  # fmt: skip


def model_from(facts: Mapping[str, Any]) -> Model:
    """From what a draft's record has; of one that has no hash over all files, a hash of what it has."""
    return Model(
        str(facts.get("method", "unknown")),
        str(facts.get("preset", "unknown")),
        str(facts.get("radweave", "unknown")),
        str(facts.get("files") or sha256_json(dict(facts))),
    )


# A report's status and evidence in plain sentences, the same in every format.


PRELIMINARY = "Preliminary: an unverified draft by software, not signed by a radiologist."
SAID = {
    LabelState.POSITIVE: "stated",
    LabelState.NEGATIVE: "denied",
    LabelState.UNCERTAIN: "left open",
    LabelState.BLANK: "not mentioned",
}


def status_line(report: FinishedReport) -> str:
    """That it is a draft, or who signed it and when, and how many addenda follow; or who rejected it."""
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
    """Each addendum: its heading with who signed it and when, and its text."""
    return [
        (f"Addendum {number}, signed by {_whose(one.signature)}", one.text)
        for number, one in enumerate(report.addenda, start=1)
    ]


def document_title(report: FinishedReport) -> str:
    """What the report is called as a document."""
    if report.rejected is not None:
        return "Chest imaging, notice of a rejected draft"
    return "Chest imaging report" + ("" if report.is_final else ", unverified draft")


def _whose(signature: Signature) -> str:
    time = signature.time.strftime("%Y-%m-%d %H:%M %z")
    return f"{spoken_name(signature.name)}, {signature.organization}, {time}"


def model_line(report: FinishedReport) -> str:
    """Which software and model wrote the draft."""
    model = report.model
    return f"{MAKER} {model.version}, method {model.method} ({model.preset}), model {model.digest[:12]}"


def caution_lines(report: FinishedReport) -> list[str]:
    """What stands before the text: its status, the notice, warnings; one line each."""
    return [status_line(report), report.notice, *(f"Warning: {warning}" for warning in report.warnings)]


def evidence_lines(report: FinishedReport) -> list[str]:
    """What stands after the text: what must be looked at, probabilities, the model; one line each."""
    return [
        *(f"To be looked at: {finding.name}: {finding.flag}" for finding in report.findings if finding.flag),
        *(f'To be looked at: "{sentence.text}" ({sentence.why})' for sentence in report.flagged),
        *(finding_line(finding) for finding in report.findings if finding.probability is not None),
        f"Written by {model_line(report)}",
    ]


def finding_line(finding: Finding) -> str:
    """A class with its probability and what the report says of it."""
    if finding.probability is None:
        return f"{finding.name}: {SAID[finding.said]} in the report"
    return (
        f"{finding.name}: probability {finding.probability:.2f} (taken to be there from {finding.threshold:.2f}),"
        f" {SAID[finding.said]} in the report"
    )


def spoken_name(name: str) -> str:
    """A name in DICOM's form as people read it: "Prefix Given Middle Family, Suffix", further scripts in brackets."""
    groups = [_one_name(group) for group in name.split("=")]
    named = [group for group in groups if group]
    return named[0] + "".join(f" ({group})" for group in named[1:]) if named else ""


def _one_name(group: str) -> str:
    family, given, middle, prefix, suffix = (part.strip() for part in [*group.split("^"), *[""] * 4][:5])
    spoken = " ".join(part for part in (prefix, given, middle, family) if part)
    return f"{spoken}, {suffix}" if suffix else spoken


def spoken_date(date: str) -> str:
    """A date of DICOM (YYYYMMDD) as ISO 8601 has it; "" stays."""
    return f"{date[:4]}-{date[4:6]}-{date[6:8]}" if len(date) == 8 else date


# Identifiers that follow from what they name: the same report sent twice is one instance, never two.
#
# all that is written but the time of writing + kind of object  ->  SOP Instance UID
#
# They are UUIDs of version 5 in decimal below 2.25 (PS3.5 B.2, ISO/IEC 9834-8), made from one fixed name space.


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
