"""CTRG-Chest-548K: ``annotation.json`` with findings and impression, volumes ``<id>.nii.gz``.

The annotation has lists under train, val and perhaps test; an entry has ``id``, ``finding`` (or ``findings``,
``report``), perhaps ``impression``, and ``image_path``. The first release holds folders of JPEG slices, which have no
HU and no spacing; what is read here is the converted release with one NIfTI volume per study.

Texts by region, which DiffVP had a language model write from the reports (Appendix A.1: Qwen-14B, ten regions), are not
published; they come in ``options.annotation``: JSON, study id -> region -> text, or a table with a row for each
sentence (``id``, ``Anatomy``, ``Sentence``), as RadGenome-ChestCT has. ``target=regions`` makes them the text to learn,
and ``radweave.data.regions`` writes such a file by a chat model.

Source: Tang et al., "Work like a doctor: unifying scan localizer and dynamic generator for automated CT report
generation", Expert Systems with Applications, 2024.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from radweave.core.errors import InputError
from radweave.core.json_files import read_json
from radweave.core.study import Split, View
from radweave.data.importers.source import ImportOptions, Problems, RawImage, RawStudy, Source, split_of, text_or_none
from radweave.data.tables import read_table
from radweave.data.targets import Sections

_SUFFIXES = (".nii.gz", ".nii", ".nrrd")


def open_source(source: Path, options: ImportOptions) -> Source:
    """Open the annotation file, or the folder that holds it.

    Raises:
        InputError: if it is missing or not of that form.
    """
    annotation = source if source.is_file() else next(iter(sorted(source.glob("*annotation*.json"))), None)
    if annotation is None:
        raise InputError("no annotation file here", file=source, expected="annotation.json")
    content = read_json(annotation)
    if not isinstance(content, dict) or not all(isinstance(entries, list) for entries in content.values()):
        raise InputError("not a CTRG annotation file", file=annotation, expected="lists under train and val")
    root = options.images or annotation.parent
    volumes = _find_volumes(root)
    regions = {} if options.annotation is None else read_regions(options.annotation)
    if options.target == "regions" and not regions:
        expected = "--annotation FILE, JSON of study id -> region -> text or a table of id, Anatomy, Sentence"
        raise InputError(
            "texts by region are not part of the data set", field="annotation", got="none", expected=expected
        )

    def studies(problems: Problems) -> Iterator[RawStudy]:
        for part, entries in content.items():
            for entry in entries:
                yield from _raw_study(entry, split_of(part), volumes, regions, problems)

    notes = ["every study counts as a patient of its own: the set names no patients"]
    if "test" not in content:
        notes.append("the annotation has no test part; 'valid-as-test' makes its validation part the test split")
    if regions and options.annotation is not None:
        notes.append(f"texts by region are of {options.annotation.name}, which is not of the data set")
    return Source(
        "ctrg-chest",
        studies,
        root,
        (annotation, *([options.annotation] if options.annotation is not None else [])),
        f"the parts of {annotation.name}",
        modality="ct",
        notes=tuple(notes),
    )


def _find_volumes(root: Path) -> dict[str, Path]:
    """Name without suffix -> volume file; names that come twice are taken from the first folder."""
    volumes: dict[str, Path] = {}
    for folder, subfolders, names in os.walk(root):
        subfolders.sort()
        for name in sorted(names):
            suffix = next((suffix for suffix in _SUFFIXES if name.lower().endswith(suffix)), None)
            if suffix is not None:
                volumes.setdefault(name[: -len(suffix)], Path(folder, name))
    return volumes


def _stem(number: str) -> str:
    return next((number[: -len(suffix)] for suffix in _SUFFIXES if number.endswith(suffix)), number)


def read_regions(path: Path) -> dict[str, dict[str, str]]:
    """Study -> region -> text; a study is named as in the annotation, or as imported (``ctrg_12``).

    Raises:
        InputError: for a file of another form.
    """
    texts: dict[str, dict[str, list[str]]] = {}
    if path.suffix.lower() == ".json":
        content = read_json(path)
        if not isinstance(content, dict):
            got = type(content).__name__
            raise InputError("not texts by region", file=path, got=got, expected="study id -> region -> text")
        for study, regions in content.items():
            if not isinstance(regions, dict):
                got = type(regions).__name__
                raise InputError("not texts by region", file=path, field="regions", got=got, expected="region -> text")
            for region, text in regions.items():
                if not isinstance(text, str):
                    got = type(text).__name__
                    raise InputError("not a text", file=path, field=f"regions.{region}", got=got, expected="a string")
                texts.setdefault(_stem(study), {}).setdefault(region, []).append(text)
    else:
        for _, row in read_table(path, needs=("id", "Anatomy", "Sentence")):
            texts.setdefault(_stem(row["id"]), {}).setdefault(row["Anatomy"], []).append(row["Sentence"])
    texts_of = {
        study: {region.strip(): " ".join(map(str.strip, parts)).strip() for region, parts in regions.items()}
        for study, regions in texts.items()
    }
    return {
        study: {name: text for name, text in regions.items() if name and text} for study, regions in texts_of.items()
    }


def _raw_study(
    entry: Any,
    split: Split | None,
    volumes: dict[str, Path],
    regions: Mapping[str, dict[str, str]],
    problems: Problems,
) -> Iterator[RawStudy]:
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), (str, int)):
        problems.leave_out_study("unknown", "an entry without id")
        return
    stem = _stem(str(entry["id"]))
    texts = [entry.get(name) for name in ("finding", "findings", "report")]
    findings = next((text for text in texts if isinstance(text, str)), None)
    impression = entry.get("impression")
    file = volumes.get(stem)
    suffix = "" if file is None else next(s for s in _SUFFIXES if file.name.lower().endswith(s))
    study_id = f"ctrg_{stem}"
    yield RawStudy(
        study_id=study_id,
        patient_id=study_id,
        split=split,
        images=(RawImage(file, f"images/{stem}{suffix}", View.AXIAL, "ct"),) if file else (),
        sections=Sections(text_or_none(findings), text_or_none(impression) if isinstance(impression, str) else None),
        regions=regions.get(stem) or regions.get(study_id, {}),
    )
