"""ReXrank's JSON: one object, study id -> report sections, image paths and views.

One file per data set and split (``ReXRank_IUXray_test.json`` and the like); a folder may hold several of one set.
Source: Zhang et al., "ReXrank: A Public Leaderboard for AI-Powered Radiology Report Generation", arXiv:2411.15122.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from radweave.core.errors import InputError
from radweave.core.json_files import read_json
from radweave.core.study import View
from radweave.data.importers.iu_formats import ImageFolder, canonical_id, named_or_all
from radweave.data.importers.source import (
    ImportOptions,
    Problems,
    RawImage,
    RawStudy,
    Source,
    split_of,
    stated_or_none,
    text_or_none,
    view_of,
)
from radweave.data.targets import Sections

# Case matters: upper-case headings belong to the report's text. Some entries have no blank between headings.
_CONTEXT = re.compile(r"(Age|Gender|Sex|Indication|History|Comparison|Technique)\s*:\s*")
_PATIENT = re.compile(r"(?:^|/)(p(?:atient)?\d{4,})(?=/|$)")


def open_source(source: Path, options: ImportOptions) -> Source:
    """Open one ReXrank file, or all of a folder.

    Raises:
        InputError: if there is no such file, or it has another form.
    """
    files = [source] if source.is_file() else sorted(p for p in source.glob("*.json") if "rexrank" in p.name.lower())
    files = files or sorted(source.glob("*.json"))
    if not files:
        raise InputError("no ReXrank JSON file here", file=source)
    entries: dict[str, dict[str, Any]] = {}
    for path in files:
        for study_id, entry in _read(path).items():
            if study_id in entries:
                raise InputError("a study comes twice in the files", file=path)
            entries[study_id] = entry
    is_iu = all(study_id.startswith("CXR") for study_id in entries)
    root = options.images or (source if source.is_dir() else source.parent)
    folder = ImageFolder.scan(root) if is_iu else ImageFolder(root)

    def studies(problems: Problems) -> Iterator[RawStudy]:
        for study_id, entry in entries.items():
            try:
                yield _study(study_id, entry, folder, is_iu)
            except (KeyError, TypeError, AttributeError):
                problems.leave_out_study(study_id, "not a ReXrank entry")

    return Source(
        "iu-xray" if is_iu else "rexrank",
        studies,
        root,
        tuple(files),
        "ReXrank's split, as each entry states it",
        notes=("ReXrank publishes validation and test studies only",) if is_iu else (),
    )


def _read(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict) or not content or not all(isinstance(v, dict) for v in content.values()):
        raise InputError("not a ReXrank file", file=path, expected="one object, study id -> entry")
    return content


def _study(study_id: str, entry: dict[str, Any], folder: ImageFolder, is_iu: bool) -> RawStudy:
    paths = [str(path) for path in entry.get("image_path") or []]
    views = [view_of(view) for view in entry.get("frontal_lateral") or []]
    views = views if len(views) == len(paths) else [View.UNKNOWN] * len(paths)
    context = _context(entry.get("context") or "")
    name = study_name(study_id)
    if is_iu:
        patient, images = name, named_or_all(name, paths, views, folder, {})
    else:
        patient = _patient(study_id, paths)
        images = tuple(
            RawImage(folder.root / path, f"images/{path.lstrip('/')}", view)
            for path, view in zip(paths, views, strict=True)
        )
    return RawStudy(
        study_id=name,
        patient_id=patient,
        split=split_of(entry.get("split")),
        images=images,
        report=_section(entry.get("report")),
        sections=Sections(
            _section(entry.get("section_findings")),
            _section(entry.get("section_impression")),
            context.get("indication") or context.get("history"),
            context.get("comparison"),
            context.get("technique"),
        ),
    )


def study_name(study_id: str) -> str:
    """The id of a study in a dataset folder, from its key in ReXrank's file."""
    return canonical_id(study_id, "ReXrank") if study_id.startswith("CXR") else study_id.replace("/", "_")


def _section(value: Any) -> str | None:
    """The text of a section; a missing one is NaN in some files."""
    return text_or_none(value) if isinstance(value, str) else None


def _context(text: str) -> dict[str, str | None]:
    """Split ``Indication: ... Comparison: ...`` into sections; ReXrank writes None for a missing one."""
    parts = _CONTEXT.split(text)
    pairs = zip(parts[1::2], parts[2::2], strict=True)
    return {name.lower(): stated_or_none(value.strip()) for name, value in pairs}


def _patient(study_id: str, paths: list[str]) -> str:
    """The patient's folder in an image path (MIMIC ``p10000032``, CheXpert ``patient64541``), else the study id."""
    for text in (*paths, study_id):
        if match := _PATIENT.search(text):
            return match[1]
    return study_id.replace("/", "_")
