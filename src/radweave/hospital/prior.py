"""The patient's study before one, as it was found: its files and its signed report, or why there is none."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from radweave.base.storage import write_folder

Outcome = Literal["found", "none", "late", "failed", "refused"]
_SAID = {
    "late": "no prior was looked at: the archive did not answer in time",
    "failed": "no prior was looked at: the archive could not be asked",
    "refused": "no prior was looked at: an earlier study under this id may be another patient's",
}


@dataclass(frozen=True, slots=True)
class Prior:
    """What came of looking for a prior: ``days`` is how much earlier it is, ``reason`` why another one was refused.

    Of ``files`` a folder stands for a scan.
    """

    outcome: Outcome
    files: tuple[str, ...] = ()
    report: str | None = None
    days: int | None = None
    reason: str | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What readers of the draft must know of it."""
        if self.outcome not in _SAID:
            return ()
        return (_SAID[self.outcome] + (f" ({self.reason.replace('_', ' ')})" if self.reason else ""),)

    def as_json(self) -> dict[str, Any] | None:
        """What the inference process gets of it; None where there is none."""
        return {"files": list(self.files), "report": self.report, "days": self.days} if self.files else None


def copied(prior: Prior, folder: Path) -> Prior:
    """The prior with its files in ``folder``, under names of ours."""
    with write_folder(folder) as partial:
        names = [f"prior{number:05}{'' if Path(file).is_dir() else '.dcm'}" for number, file in enumerate(prior.files)]
        for file, name in zip(prior.files, names, strict=True):
            if Path(file).is_dir():
                shutil.copytree(file, partial / name)
            else:
                shutil.copyfile(file, partial / name)
    return replace(prior, files=tuple(str(folder / name) for name in names))
