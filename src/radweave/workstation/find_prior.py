"""Find the prior study of the same patient in an archive, and accept it only beyond doubt.

The archive's index selects candidates; the headers of the objects decide, since an index may be wrong.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final, Literal

from pydicom.dataset import Dataset

from radweave.core.errors import InputError
from radweave.core.same_patient import Reason, newest_first, why_no_prior
from radweave.core.storage import write_folder
from radweave.core.study import View
from radweave.io import worker
from radweave.io.dicom import read_header
from radweave.io.dicom_parse import dataset_of
from radweave.io.sandbox import lasting_child
from radweave.io.worker import Task
from radweave.workstation.archive import CT, WILDCARDS, Archive, Count, FoundSeries, FoundStudy, QueryLimits, scan_of
from radweave.workstation.hospital_plan import Priors, Route, may_hold
from radweave.workstation.identity import READ_TIMEOUT_S, Identity, read_identities

Outcome = Literal["found", "none", "late", "failed", "refused"]
_WARNINGS = {
    "late": "no prior was looked at: the archive did not answer in time",
    "failed": "no prior was looked at: the archive could not be asked",
    "refused": "no prior was looked at: an earlier study under this id may be another patient's",
}


@dataclass(frozen=True, slots=True)
class Prior:
    """The outcome of a search for a prior: ``days`` between the studies, ``reason`` of a refused candidate.

    A scan is one folder in ``files``.
    """

    outcome: Outcome
    files: tuple[str, ...] = ()
    report: str | None = None
    days: int | None = None
    reason: str | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for readers of the draft."""
        if self.outcome not in _WARNINGS:
            return ()
        return (_WARNINGS[self.outcome] + (f" ({self.reason.replace('_', ' ')})" if self.reason else ""),)

    def as_json(self) -> dict[str, Any] | None:
        """The message to the inference process; None without a prior."""
        return {"files": list(self.files), "report": self.report, "days": self.days} if self.files else None


def copied(prior: Prior, folder: Path) -> Prior:
    """The prior with its files copied into ``folder``, under neutral names."""
    with write_folder(folder) as partial:
        names = [f"prior{number:05}{'' if Path(file).is_dir() else '.dcm'}" for number, file in enumerate(prior.files)]
        for file, name in zip(prior.files, names, strict=True):
            if Path(file).is_dir():
                shutil.copytree(file, partial / name)
            else:
                shutil.copyfile(file, partial / name)
    return replace(prior, files=tuple(str(folder / name) for name in names))


SERIES: Final = 4
STUDIES: Final = 5
"""Limits of a search: series of reports and of images, and studies."""
_REPORT: Final = "SR"
_TOO_LITTLE: Final = "too_little_identity"
_TIMES: Final[tuple[Reason, ...]] = ("same_study", "no_date", "not_earlier", "too_old")


@dataclass(frozen=True, slots=True)
class _Object:
    """A file of an earlier study, and its identity."""

    path: Path
    identity: Identity


class _OtherPatientError(Exception):
    """An object does not belong to an earlier study of the same patient."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


def find_prior(
    archive: Archive, study: Identity, plan: Priors, folder: Path, limits: QueryLimits, count: Count
) -> Prior:
    """The newest earlier study of the same patient with a fitting image, stored in ``folder``.

    ``count`` counts refused studies by reason, and unreadable objects.

    Raises:
        NotAnsweredError: if the archive does not answer.
    """
    keys = _keys(study, plan)
    if keys is None:
        return Prior("none")
    refused: list[Reason] = []
    candidates: list[FoundStudy] = []
    for candidate in newest_first(archive.studies(keys, limits)):
        why = why_no_prior(study, candidate, most_years=plan.most_years)
        # Headers may state what the index does not.
        if why is None or why == _TOO_LITTLE:
            candidates.append(candidate)
        elif why not in _TIMES:
            refused.append(why)
    prior = None
    for number, candidate in enumerate(candidates[:STUDIES]):
        try:
            prior = _taken(archive, study, candidate, plan, folder / str(number), limits, count)
        except _OtherPatientError as error:
            refused.append(error.reason)
        if prior is not None:
            break
    for reason in refused:
        count(f"priors_refused_{reason}", 1)
    if prior is not None:
        return prior
    return Prior("refused", reason=refused[0]) if refused else Prior("none")


def _keys(study: Identity, plan: Priors) -> dict[str, str] | None:
    """Keys of the query; None if the study states too little, or its id would match other patients too."""
    wanted = study.patient_id.strip()
    if WILDCARDS.intersection(wanted) or why_no_prior(study, study.model_copy(update={"study_instance_uid": ""})) in (
        "no_patient_id", "no_date", _TOO_LITTLE,
    ):  # fmt: skip
        return None
    today = date.fromisoformat(study.study_date)
    first = today - timedelta(days=min(366 * plan.most_years, (today - date.min).days))
    return {"PatientID": wanted, "StudyDate": f"{first:%Y%m%d}-{today:%Y%m%d}"}


def _taken(
    archive: Archive,
    study: Identity,
    candidate: FoundStudy,
    plan: Priors,
    folder: Path,
    limits: QueryLimits,
    count: Count,
) -> Prior | None:
    """The candidate's fitting images and its signed report; None without such an image."""
    series = list(dict.fromkeys(archive.series(candidate.study_instance_uid, limits)))
    wanted = [row for row in series if row.modality in plan.modality and may_hold(plan.routes, row.body_part)]
    if not wanted:
        return None
    folder.mkdir(parents=True)
    for row in _first(wanted):
        archive.fetch(candidate.study_instance_uid, row.uid, folder, limits)
    images = _objects(folder, study, candidate, plan, limits, count)
    views = [(view, image) for image in images if (view := _view(image, plan.routes)) is not None]
    if not views:
        return None
    is_scan = any(image.identity.modality == CT for _, image in views)
    reports = folder / "reports"
    reports.mkdir()
    for row in [row for row in series if row.modality == _REPORT][:SERIES]:
        archive.fetch(candidate.study_instance_uid, row.uid, reports, limits)
    report = _signed(_objects(reports, study, candidate, plan, limits, count))
    views.sort(key=lambda pair: (not pair[0].is_frontal, pair[1].path.name))
    this, then = (date.fromisoformat(day) for day in (study.study_date, views[0][1].identity.study_date))
    files = [image.path for _, image in views]
    if is_scan:
        files = [_laid(scan_of(files), folder / "scan")]
    return Prior("found", files=tuple(map(str, files)), report=report, days=(this - then).days)


def _first(series: Sequence[FoundSeries]) -> Sequence[FoundSeries]:
    """The series to fetch: the largest of CT, if the archive states their numbers of slices."""
    if any(row.modality == CT for row in series) and all(row.instances is not None for row in series):
        return sorted(series, key=lambda row: (row.modality == CT, row.instances or 0, row.uid))[-1:]
    return series[:SERIES]


def _laid(files: Sequence[Path], folder: Path) -> Path:
    """Move the slices of a series into ``folder``."""
    folder.mkdir()
    for file in files:
        file.rename(folder / file.name)
    return folder


def _objects(
    folder: Path, study: Identity, candidate: FoundStudy, plan: Priors, limits: QueryLimits, count: Count
) -> list[_Object]:
    """The readable files of a folder.

    Raises:
        _OtherPatientError: if one belongs to another patient, or is not earlier.
        NotAnsweredError: if the time does not suffice.
    """
    objects = []
    for file in sorted(folder.glob("*.dcm")):
        limits.refuse_late()
        try:
            (identity,), _ = read_identities([file])
        except (InputError, ValueError):
            count("objects_unreadable", 1)
            continue
        why = why_no_prior(study, identity, most_years=plan.most_years)
        if why is not None:
            raise _OtherPatientError(why)
        if identity.study_instance_uid != candidate.study_instance_uid:
            count("objects_unreadable", 1)  # of a study that was not requested
            continue
        objects.append(_Object(file, identity))
    return objects


def _view(image: _Object, routes: Iterable[Route]) -> View | None:
    """The view of an image; None if it does not fit the routes."""
    try:
        header = read_header(image.path)
    except InputError:
        return None
    view = header.view or "UNKNOWN"
    fits = any(route.fits(header.modality or "", header.body_part or "", view) for route in routes)
    return View(view) if fits else None


def _signed(reports: Sequence[_Object]) -> str | None:
    """The text of the newest signed report."""
    signed: list[tuple[str, str]] = []
    for report in reports:
        try:
            answer, _ = lasting_child(__name__).call(
                "signed", {"path": str(report.path.absolute())}, timeout_s=READ_TIMEOUT_S
            )
        except InputError:
            continue
        if answer.get("text"):
            signed.append((str(answer.get("time", "")), str(answer["text"])))
    return max(signed)[1] if signed else None


# The text of a signed structured report, parsed in the sandbox. Unverified ones are skipped: a model that reads its own
# drafts as priors would confirm itself.

LONGEST: Final = 20_000
"""Characters of a report."""
_DEEPEST: Final = 12
_SECTIONS: Final[dict[str, str]] = {
    "121070": "findings", "121071": "findings", "59776-5": "findings", "18782-3": "findings",
    "121072": "impression", "121073": "impression", "19005-8": "impression",
    "55107-7": "addendum", "121078": "addendum",
}  # fmt: skip
"""Codes of PS3.16 and LOINC for headings and items of findings, impressions and addenda."""
_COMMENT: Final = "121106"
"""In an addendum: its signer, not part of the text."""


def parse_signed(request: dict[str, Any]) -> worker.Message:
    """Findings, impression and addenda of the report in ``path``: ``text`` ("" if unsigned) and ``time``.

    Raises:
        InputError: if the file is no DICOM file or damaged.
    """
    dataset = dataset_of(Path(request["path"]))
    sections: dict[str, list[str]] = {"findings": [], "impression": [], "addendum": []}
    if str(dataset.get("Modality", "")) == "SR" and str(dataset.get("VerificationFlag", "")) == "VERIFIED":
        for section, text in _texts(dataset, None, 0):
            sections[section].append(text)
    whole = " ".join(" ".join(dict.fromkeys(each)) for each in sections.values() if each)
    when = f"{dataset.get('ContentDate', '')}{dataset.get('ContentTime', '')}"
    return {"text": " ".join(whole.split())[:LONGEST], "time": when}, {}


def _texts(item: Dataset, section: str | None, depth: int) -> Iterator[tuple[str, str]]:
    """Text items below findings, impressions and addenda, with their section."""
    if depth > _DEEPEST:
        return
    for child in item.get("ContentSequence") or ():
        names = child.get("ConceptNameCodeSequence") or ()
        code = str(names[0].get("CodeValue", "")) if names else ""
        here = None if (section, code) == ("addendum", _COMMENT) else _SECTIONS.get(code, section)
        if child.get("ValueType") == "TEXT" and here is not None and child.get("RelationshipType") == "CONTAINS":
            text = str(child.get("TextValue", ""))
            if text.strip() and "\ufffd" not in text:
                yield here, text
        if child.get("ValueType") == "CONTAINER":
            yield from _texts(child, here, depth + 1)


TASKS: Final[dict[str, Task]] = {"signed": parse_signed}
