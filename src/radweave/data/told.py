"""What a model is told of a study beside its images: sections that were known before the report was written.

It becomes text that no name, date or number of a patient may be in: what ``data.scrub`` knows is taken out, and marks
of de-identification with it, so that texts of all sources look alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal, Protocol

from radweave.base.errors import InputError
from radweave.base.study import LONGEST_TEXT
from radweave.data.cleaning import drop_deid_marks
from radweave.data.scrub import Scrubber

InputSection = Literal["indication", "technique", "findings"]


class Known(Protocol):
    """What has the sections of a study, and its ids."""

    @property
    def study_id(self) -> str: ...
    @property
    def patient_id(self) -> str: ...
    @property
    def indication(self) -> str | None: ...
    @property
    def technique(self) -> str | None: ...
    @property
    def findings(self) -> str | None: ...


NOTHING: Mapping[str, str | None] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Telling:
    """Which sections are told, in this order; none by default."""

    sections: tuple[InputSection, ...] = ()
    scrubber: Scrubber = field(default_factory=Scrubber)

    def of(self, study: Known) -> str | None:
        """What is told of a study of a data set; None where nothing ever is."""
        if not self.sections:
            return None
        given: dict[str, str | None] = {name: getattr(study, name) for name in self.sections}
        return self.text(given, (study.study_id, study.patient_id))

    def asked(self, given: Mapping[str, str | None], study_id: str, files: Iterable[Path]) -> str | None:
        """What is told of a study that is reported on by itself; None where nothing ever is.

        Raises:
            InputError: for a section that is no text, or longer than one of a manifest may be.
        """
        for name, text in given.items():
            if text is not None and (not isinstance(text, str) or len(text) > LONGEST_TEXT):
                got = f"{len(text)} characters" if isinstance(text, str) else type(text).__name__
                raise InputError("not a section", field=name, got=got, expected=f"up to {LONGEST_TEXT} characters")
        if not self.sections:
            return None
        told = any(given.get(name) for name in self.sections)
        return self.text(given, (study_id,), files if told else ())

    def text(self, given: Mapping[str, str | None], ids: Iterable[str] = (), files: Iterable[Path] = ()) -> str:
        """Each section that has a text on a line of its own, under its name; "" where none has.

        ``ids`` and the DICOM headers of ``files`` say which words name the patient.
        """
        scrub = self.scrubber.study(ids, files)
        said = {name: drop_deid_marks(scrub(given.get(name) or "")).lstrip(" -,.;:") for name in self.sections}
        return "".join(f"{name.capitalize()}: {text}\n" for name, text in said.items() if text)


def refuse_own_words(sections: Iterable[str], target: str) -> None:
    """Refuse to tell what is to be written: findings may be told for an impression, and for nothing else.

    Raises:
        InputError: naming the field.
    """
    if "findings" in sections and target != "impression":
        raise InputError(
            "findings would be told and written",
            field="data.input_sections",
            got=f"findings, for the text {target}",
            expected="data.target=impression, or other sections",
        )
