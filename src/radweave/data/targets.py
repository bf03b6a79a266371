"""The report to learn: which sections of a study make it, and how they are joined."""

from __future__ import annotations

from typing import Protocol

from radweave.base.errors import InputError
from radweave.base.parts import PARTS, whole, without_headings
from radweave.base.study import Study, TargetText
from radweave.data.cleaning import Cleaner, cleaner


class Sectioned(Protocol):
    """What has the sections of a report."""

    @property
    def findings(self) -> str | None: ...
    @property
    def impression(self) -> str | None: ...


def sections_for(target: TargetText) -> tuple[str, ...]:
    """The sections that a target is made of, in their order."""
    return PARTS if target == "both" else tuple(target.split("+"))


def target_of_sections(source: Sectioned, target: TargetText, clean: Cleaner) -> str | None:
    """The sections asked for, cleaned and as one text; None if one of them has no text.

    Those of ``both`` are cleaned one by one, since a cleaning may take headings out; a heading within one of them goes.
    """
    texts = {name: (getattr(source, name) or "").strip() for name in sections_for(target)}
    if not all(texts.values()):
        return None
    if target != "both":
        return cleaned(" ".join(texts.values()), clean)
    parts = {name: without_headings(cleaned(text, clean) or "") for name, text in texts.items()}
    return whole(parts) if all(parts.values()) else None


def cleaned(text: str, clean: Cleaner) -> str | None:
    """The text after a cleaning, which may leave nothing but the dot that it ends with."""
    now = clean(text)
    return now if now.strip(" .") else None


class Aim:
    """Gives each study of a data set another report to learn than the one it was imported with."""

    def __init__(self, target: TargetText, cleaning: str) -> None:
        self.target = target
        try:
            self._clean = cleaner(cleaning)
        except InputError:  # of a mixture
            raise InputError(
                "its sets were cleaned in different ways, so that another text of theirs cannot be",
                field="data.target",
                got=target,
                expected="data.target=as_imported, and sets imported with this --target",
            ) from None

    def __call__(self, study: Study) -> Study:
        """The study with that report; without one, where a section that it needs has no text."""
        return study.model_copy(update={"report": target_of_sections(study, self.target, self._clean)})
