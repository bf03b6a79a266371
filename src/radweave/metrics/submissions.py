"""Files of drafts in the form that a leaderboard reads.

    radweave submission rexrank drafts.jsonl --studies ReXRank_IUXray_test.json --out prediction.json
    radweave submission vlm3d drafts.jsonl --studies INPUT_FOLDER --out predictions.json

ReXrank reads its own file of studies with a ``model_prediction`` for each (``example_files/prediction.json`` and
``evaluation_script.md`` of rajpurkarlab/ReXrank). VLM3D reads the output of a Grand Challenge job with a list of
``generated_reports`` (``reportgen_evaluation`` of forithmus/VLM3D-Dockers). What is written is read back by the rules
that their evaluation follows, so that a file that it would misread is not written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from radweave.core.errors import InputError
from radweave.core.json_files import read_json, read_json_object, write_json
from radweave.core.replacing import FileKind
from radweave.core.storage import refuse_existing
from radweave.metrics.commands import read_texts
from radweave.metrics.pairs import HYP_FIELDS, TEXT_FIELDS

VOLUME_SUFFIXES = (".nii.gz", ".nii", ".mha")


@dataclass(frozen=True, slots=True)
class SubmissionRequest:
    """The options of ``radweave submission``. ``studies``: what is to be reported on, as the leaderboard gives it."""

    leaderboard: str
    predictions: Path
    out: Path
    studies: Path | None = None
    overwrite: bool = False


def run_submission(request: SubmissionRequest) -> dict[str, str]:
    """Write the file of a leaderboard; returns its reports by study.

    Raises:
        InputError: for a leaderboard that is not known, studies without a draft, drafts of other studies, or ids that
            the leaderboard would confuse; nothing is written then.
    """
    if request.leaderboard not in _WRITERS:
        expected = ", ".join(_WRITERS)
        raise InputError("no such leaderboard", field="leaderboard", got=request.leaderboard, expected=expected)
    refuse_existing(request.out, overwrite=request.overwrite, kind=_SUBMISSION)
    drafts = dict(read_texts(request.predictions, known=(*HYP_FIELDS, *TEXT_FIELDS)))
    content, wanted = _WRITERS[request.leaderboard](drafts, request.studies)
    if (read := submitted_reports(content, request.out)) != wanted:
        raise InputError("the leaderboard would read other reports than these", got=len(read), expected=len(wanted))
    write_json(request.out, content)
    return wanted


def submitted_reports(content: Any, file: Path) -> dict[str, str]:
    """Study -> report, as the evaluation of either leaderboard reads its file.

    Raises:
        InputError: if it has the form of neither.
    """
    if isinstance(content, dict):
        return {study: _report(entry, "model_prediction", file) for study, entry in content.items()}
    try:
        entries = content[0]["outputs"][0]["value"]["generated_reports"]
    except (KeyError, IndexError, TypeError):
        expected = "ReXrank's object of studies, or VLM3D's list of jobs with outputs"
        raise InputError(
            "not a file of a leaderboard", file=file, got=type(content).__name__, expected=expected
        ) from None
    if not isinstance(entries, list):
        raise InputError("not a list", file=file, field="generated_reports", got=type(entries).__name__)
    # VLM3D's evaluation cuts a name at its last point, so that "1.2.3" and "1.2.4" would be one study.
    cut = [_report(entry, "input_image_name", file).rsplit(".", 1)[0] for entry in entries]
    if len(set(cut)) < len(cut):
        twice = next(name for name in cut if cut.count(name) > 1)
        raise InputError(
            "names that the evaluation takes for one study", file=file, field="input_image_name", got=twice
        )
    return {entry["input_image_name"]: _report(entry, "report", file) for entry in entries}


def _report(entry: Any, field: str, file: Path) -> str:
    text = entry.get(field) if isinstance(entry, dict) else None
    if not isinstance(text, str):
        raise InputError("no text", file=file, field=field, got=type(text).__name__, expected="a text")
    return text


def _rexrank(drafts: Mapping[str, str], studies: Path | None) -> tuple[dict[str, Any], dict[str, str]]:
    """ReXrank's file with a prediction for each study; drafts may have the ids of an import of it."""
    from radweave.data.importers.rexrank import study_name

    if studies is None:
        raise InputError(
            "ReXrank reads its own file with predictions", field="studies", got="none", expected="ReXRank_*.json"
        )
    content = read_json_object(studies)
    if not content or not all(isinstance(entry, dict) for entry in content.values()):
        raise InputError("not a ReXrank file", file=studies, expected="one object, study id -> entry")
    names = {study: study if study in drafts else study_name(study) for study in content}
    _same_studies(names.values(), drafts, studies)
    reports = {study: drafts[name] for study, name in names.items()}
    # A missing section is NaN in some of ReXrank's files, which is no JSON.
    entries = {study: _none_for_nan(entry) for study, entry in content.items()}
    return {study: {**entry, "model_prediction": reports[study]} for study, entry in entries.items()}, reports


def _none_for_nan(value: Any) -> Any:
    """The value with None for every number that JSON does not have."""
    if isinstance(value, dict):
        return {key: _none_for_nan(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_none_for_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _vlm3d(drafts: Mapping[str, str], studies: Path | None) -> tuple[list[Any], dict[str, str]]:
    """VLM3D's list; names are those of the volumes without suffix."""
    reports: dict[str, str] = {}
    for study, text in drafts.items():
        name = _volume_name(study)
        if name in reports:
            raise InputError("two drafts of one volume", field="study_id", got=name)
        reports[name] = text
    if studies is not None:
        if not studies.is_dir():
            raise InputError("not a folder of volumes", file=studies)
        volumes = [path.name for path in sorted(studies.rglob("*")) if path.name.endswith(VOLUME_SUFFIXES)]
        _same_studies(map(_volume_name, volumes), reports, studies)
    value = {
        "name": "Generated reports",
        "type": "Report generation",
        "version": "1.0",
        "generated_reports": [{"input_image_name": name, "report": text} for name, text in reports.items()],
    }
    return [{"outputs": [{"value": value}]}], reports


def _volume_name(study: str) -> str:
    return next((study.removesuffix(suffix) for suffix in VOLUME_SUFFIXES if study.endswith(suffix)), study)


def _same_studies(wanted: Iterable[str], drafts: Mapping[str, str], file: Path) -> None:
    names = list(wanted)
    if len(set(names)) < len(names):
        raise InputError("two studies of one name", file=file, got=next(n for n in names if names.count(n) > 1))
    missing, further = [name for name in names if name not in drafts], sorted(set(drafts) - set(names))
    if missing or further:
        raise InputError(
            "the drafts are not of these studies",
            file=file,
            field="study_id",
            got=f"{len(missing)} studies without a draft, {len(further)} drafts of other studies"
            f" (first: {(missing or further)[0]})",
            expected=f"one draft for each of {len(names)} studies",
        )


_WRITERS: Mapping[str, Callable[[Mapping[str, str], Path | None], tuple[Any, dict[str, str]]]] = MappingProxyType(
    {"rexrank": _rexrank, "vlm3d": _vlm3d}
)


def _is_submission(path: Path) -> bool:
    try:
        submitted_reports(read_json(path), path)
    except InputError:
        return False
    return True


_SUBMISSION = FileKind("a file of a leaderboard", _is_submission)
