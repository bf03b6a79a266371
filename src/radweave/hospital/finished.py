"""The record that every writer writes from: what was said of a study, by which model, on what evidence, signed or not.

A report is preliminary until a reader signs it. Nothing here depends on a format, and no writer reads anything else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from radweave.base.errors import InputError
from radweave.base.map_kinds import UNKNOWN
from radweave.base.study import RESEARCH_ONLY, LabelState
from radweave.hospital.identity import Identity
from radweave.hospital.signs import writable

if TYPE_CHECKING:
    from radweave.explain.maps import Panel

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
