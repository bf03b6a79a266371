"""MS-CXR: phrases of MIMIC-CXR reports that radiologists placed on the image.

    MS_CXR_Local_Alignment_v1.1.0.csv   category_name, label_text, path, split, x, y, w, h, image_width, image_height
                                        (a row per box)
    files/p10/p10233088/s54276838/<dicom_id>.jpg   of MIMIC-CXR-JPG, below the source or ``options.images``

Ids are those of a MIMIC-CXR import. The text is the phrases, each once, and not the report they come from. The label
set ``ms-cxr`` has the categories of the phrases as positive and says nothing of others. Boxes go from pixels, by the
columns image_width and image_height, to shares of the image. Version 1.0.0 states no split.

Source: Boecking et al., "Making the Most of Text Semantics to Improve Biomedical Vision-Language Processing", ECCV
2022.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from radweave.core.errors import InputError
from radweave.core.study import FindingBox, LabelState, Split
from radweave.data.importers.mimic_cxr import mimic_image
from radweave.data.importers.source import (
    OTHER_SPLIT,
    ImportOptions,
    Problems,
    RawStudy,
    Source,
    box_of_pixels,
    split_of,
    splits_by_patient,
)
from radweave.data.tables import find_table, read_table
from radweave.data.targets import Sections

LABEL_SET = "ms-cxr"
_PATH = re.compile(r"(?:^|/)(p\d\d)/(p\d+)/(s\d+)/([\w-]+)\.\w+$")


@dataclass(slots=True)
class _StudyRows:
    """The rows of one study: its folder, rows by image, phrases and categories."""

    patient: str
    folder: str
    splits: set[Split | None] = field(default_factory=set)
    images: dict[str, list[Mapping[str, str]]] = field(default_factory=dict)
    phrases: dict[str, None] = field(default_factory=dict)
    categories: dict[str, LabelState] = field(default_factory=dict)


def open_source(source: Path, options: ImportOptions) -> Source:
    """Open the table, or the folder that holds it.

    Raises:
        InputError: if the table or one of its columns is missing.
    """
    table = source if source.is_file() else find_table(source, "MS_CXR_Local_Alignment*.csv")
    if table is None:
        raise InputError("no MS-CXR table here", file=source, expected="MS_CXR_Local_Alignment_v1.1.0.csv")
    rows, wrong, has_split = _read(table)
    patients = splits_by_patient((own.patient, split) for own in rows.values() for split in own.splits)
    root = options.images or table.parent

    def studies(problems: Problems) -> Iterator[RawStudy]:
        for line, reason in wrong:
            problems.leave_out_study(f"line {line}", reason)
        for study, own in sorted(rows.items()):
            if "train" in own.splits and len(patients[own.patient]) > 1:
                problems.leave_out_study(study, OTHER_SPLIT)
                continue
            yield RawStudy(
                study_id=study,
                patient_id=own.patient,
                split=next(iter(own.splits)) if len(own.splits) == 1 else None,
                images=tuple(
                    mimic_image(root, own.folder, name, boxes=tuple(_boxes(study, rows, problems)))
                    for name, rows in own.images.items()
                ),
                sections=Sections(findings=" ".join(map(_sentence, own.phrases))),
                labels={LABEL_SET: own.categories},
            )

    notes = ["the text is the phrases that have a box, not the report"]
    notes.append("patients are MIMIC-CXR's: a model that was trained on it may know them")
    return Source(
        "ms-cxr",
        studies,
        root,
        (table,),
        f"column 'split' of {table.name}" if has_split else "none: this version of the table states no split",
        licence="PhysioNet Credentialed Health Data License 1.5.0",
        notes=tuple(notes),
        needs_split=has_split,
    )


def _read(table: Path) -> tuple[dict[str, _StudyRows], list[tuple[int, str]], bool]:
    """Studies by id, the lines that cannot be used with the reason, and whether the table has splits."""
    rows: dict[str, _StudyRows] = {}
    wrong: list[tuple[int, str]] = []
    has_split = False
    for line, row in read_table(table, needs=("category_name", "label_text", "path")):
        has_split = "split" in row
        match = _PATH.search(row["path"].strip())
        phrase, split = row["label_text"].strip(), split_of(row.get("split"))
        if match is None:
            wrong.append((line, "not a path of MIMIC-CXR"))
        elif not phrase:
            wrong.append((line, "no phrase"))
        else:
            top, patient, study, image = match.groups()
            own = rows.setdefault(study, _StudyRows(patient, f"{top}/{patient}/{study}"))
            if own.patient != patient:
                wrong.append((line, "one study of two patients"))
                continue
            own.splits.add(split)
            own.images.setdefault(image, []).append(row)
            own.phrases[phrase] = None
            if row["category_name"].strip():
                own.categories[row["category_name"].strip()] = LabelState.POSITIVE
    return rows, wrong, has_split


def _sentence(phrase: str) -> str:
    text = phrase[0].upper() + phrase[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _boxes(study: str, rows: Sequence[Mapping[str, str]], problems: Problems) -> Iterator[FindingBox]:
    """The boxes of an image, each once."""
    known = set()
    for row in rows:
        try:
            x, y, w, h, width, height = (float(row.get(name) or "") for name in _PIXELS)
        except ValueError:
            problems.leave_out_box(study, f"no numbers in {', '.join(_PIXELS)}")
            continue
        if min(width, height) <= 0:
            problems.leave_out_box(study, "the image has no size")
            continue
        box = box_of_pixels((x, y, x + w, y + h), (width, height))
        phrase, category = row["label_text"].strip(), row["category_name"].strip() or "finding"
        if (box, phrase, category) not in known:
            known.add((box, phrase, category))
            yield from problems.checked_box(study, category, box, _sentence(phrase))


_PIXELS = ("x", "y", "w", "h", "image_width", "image_height")
