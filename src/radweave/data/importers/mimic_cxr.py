"""MIMIC-CXR in the layout of MIMIC-CXR-JPG, with the report files of MIMIC-CXR.

    mimic-cxr-2.0.0-split.csv[.gz]      dicom_id, study_id, subject_id, split
    mimic-cxr-2.0.0-metadata.csv[.gz]   dicom_id, subject_id, study_id, ViewPosition, StudyDate, StudyTime, ...
    mimic-cxr-2.0.0-chexpert.csv[.gz]   subject_id, study_id and the 14 observations; -negbio and -chexbert alike
    files/p10/p10000032/s50414267/<dicom_id>.jpg
    files/p10/p10000032/s50414267.txt   or below mimic-cxr-reports/, or in mimic-cxr-reports.zip

The prior of a study is the patient's previous study by StudyDate and StudyTime; study ids are random.

Sources: Johnson et al., "MIMIC-CXR", Sci Data 6:317, 2019; Johnson et al., "MIMIC-CXR-JPG", arXiv:1901.07042.
"""

from __future__ import annotations

import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from radweave.core.errors import InputError
from radweave.core.study import FindingBox, LabelState, Split, View
from radweave.data.importers.source import (
    ImportOptions,
    Problems,
    RawImage,
    RawStudy,
    Source,
    split_of,
    states_of,
    view_of,
)
from radweave.data.tables import find_table, read_table
from radweave.data.targets import parse_sections

IMAGE_SUFFIXES = (".jpg", ".png", ".jpeg", ".dcm")
LARGEST_REPORT_BYTES = 1 << 20
_UNREADABLE = (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)
"""Errors of members that are damaged, no text, encrypted (RuntimeError), or of an unknown compression."""
_NO_LABEL = frozenset({"subject_id", "study_id"})
ReadReport = Callable[[str], str | None]


@dataclass(slots=True)
class _StudyRows:
    """The table rows of one study: images with views, splits and time."""

    patient: str
    images: list[tuple[str, View]] = field(default_factory=list)
    splits: set[Split | None] = field(default_factory=set)
    time: str | None = None


def open_source(source: Path, options: ImportOptions) -> Source:
    """Open the folder that holds the tables.

    Raises:
        InputError: if the split or metadata table or the reports are missing, or a column is.
    """
    split_table = find_table(source, "*split.csv")
    metadata = find_table(source, "*metadata.csv")
    if split_table is None or metadata is None:
        raise InputError("no MIMIC-CXR-JPG here: the split or the metadata table is missing", file=source)
    rows = _read_rows(split_table, metadata)
    labels, label_files = _read_labels(source, options.labeler)
    read_report, report_file = _report_reader(source)
    images = options.images or source
    order = sorted(rows, key=lambda study: (rows[study].patient, rows[study].time or "", study))

    def studies(problems: Problems) -> Iterator[RawStudy]:
        for study in order:
            try:
                text = read_report(f"files/{mimic_folder(rows[study].patient, study)}.txt")
            except _UNREADABLE as error:
                problems.leave_out_study(f"s{study}", f"report cannot be read ({type(error).__name__})")
                continue
            yield _raw_study(study, rows[study], text, labels.get(study, {}), images)

    files = (split_table, metadata, *label_files, *([report_file] if report_file else []))
    return Source(
        "mimic-cxr",
        studies,
        images,
        files,
        f"the official split ({split_table.name})",
        licence="PhysioNet Credentialed Health Data License 1.5.0",
        needs_split=True,
        has_priors=True,
    )


def _read_rows(split_table: Path, metadata: Path) -> dict[str, _StudyRows]:
    """Study id -> rows; the metadata table decides which images there are."""
    split_by_image: dict[str, Split | None] = {}
    for _, row in read_table(split_table, needs=("dicom_id", "study_id", "subject_id", "split")):
        split_by_image[row["dicom_id"]] = split_of(row["split"])
    rows: dict[str, _StudyRows] = {}
    needs = ("dicom_id", "subject_id", "study_id", "ViewPosition", "StudyDate", "StudyTime")
    for line, row in read_table(metadata, needs=needs):
        study = rows.setdefault(row["study_id"], _StudyRows(row["subject_id"]))
        if study.patient != row["subject_id"]:
            raise InputError("one study of two patients", file=metadata, line=line, field="subject_id")
        study.images.append((row["dicom_id"], view_of(row["ViewPosition"])))
        study.splits.add(split_by_image.get(row["dicom_id"]))
        time = study_moment(row["StudyDate"], row["StudyTime"])
        if time is not None:
            study.time = min(time, study.time or time)
    return rows


def study_moment(date: str, time: str) -> str | None:
    """``YYYYMMDDhhmmss.ffffff`` from DICOM's StudyDate (DA) and StudyTime (TM); None without a usable date.

    Tables keep the time as a number, so leading zeros are lost: "84556.875" is a quarter to nine in the morning.
    """
    date = date.strip().split(".", 1)[0]
    if len(date) != 8 or not date.isdigit():
        return None
    whole, _, fraction = time.strip().partition(".")
    if not whole.isdigit() or len(whole) > 6 or (fraction and not fraction.isdigit()):
        whole, fraction = "0", ""
    return f"{date}{whole.zfill(6)}.{fraction[:6].ljust(6, '0')}"


def _read_labels(folder: Path, first: str) -> tuple[dict[str, dict[str, dict[str, LabelState]]], list[Path]]:
    """Study id -> label set -> class -> state. The chosen labeler's set is ``chexpert14``, others carry its name."""
    labels: dict[str, dict[str, dict[str, LabelState]]] = {}
    files = []
    for labeler in ("chexpert", "chexbert", "negbio"):
        table = find_table(folder, f"*{labeler}.csv")
        if table is None:
            continue
        files.append(table)
        name = "chexpert14" if labeler == first else f"chexpert14-{labeler}"
        for line, row in read_table(table, needs=("study_id",)):
            labels.setdefault(row["study_id"], {})[name] = states_of(row, _NO_LABEL, table, line)
    return labels, files


def mimic_folder(patient: str, study: str) -> str:
    """The folder of a study's images below ``files``."""
    return f"p{patient[:2]}/p{patient}/s{study}"


def _report_reader(folder: Path) -> tuple[ReadReport, Path | None]:
    """A reader of reports by published name, from files or from the archive, and the archive.

    Raises:
        InputError: if there are no reports at all.
    """
    for root in (folder, folder / "mimic-cxr-reports", folder / "reports"):
        if next((root / "files").glob("p*/p*/s*.txt"), None) is not None:
            return partial(_read_text, root), None
    archive = next(iter(sorted(folder.glob("*reports.zip"))), None)
    if archive is None:
        raise InputError("no report files here", file=folder, expected="files/p10/.../s*.txt or mimic-cxr-reports.zip")
    try:
        reports = zipfile.ZipFile(archive)
    except (zipfile.BadZipFile, OSError) as error:
        raise InputError(f"not a readable archive: {error}", file=archive) from None
    except (ValueError, RuntimeError) as error:  # a name that is no UTF-8, or a version that is yet to come
        raise InputError(f"not a readable archive: {type(error).__name__} in its list", file=archive) from None
    return partial(_read_member, reports), archive


def _read_text(root: Path, name: str) -> str | None:
    path = root / name
    if not path.is_file():
        return None
    if path.stat().st_size > LARGEST_REPORT_BYTES:
        raise ValueError("report is too large")
    return path.read_text(encoding="utf-8")


def _read_member(reports: zipfile.ZipFile, name: str) -> str | None:
    """Read one member, unpacked in memory; the size is capped whatever the archive's directory says."""
    try:
        with reports.open(name) as member:
            data = member.read(LARGEST_REPORT_BYTES + 1)
    except KeyError:
        return None
    if len(data) > LARGEST_REPORT_BYTES:
        raise ValueError("report is too large")
    return data.decode("utf-8")


def _raw_study(
    study: str, rows: _StudyRows, text: str | None, labels: dict[str, dict[str, LabelState]], images: Path
) -> RawStudy:
    folder = mimic_folder(rows.patient, study)
    return RawStudy(
        study_id=f"s{study}",
        patient_id=f"p{rows.patient}",
        split=next(iter(rows.splits)) if len(rows.splits) == 1 else None,
        images=tuple(mimic_image(images, folder, dicom_id, view) for dicom_id, view in rows.images),
        sections=parse_sections(text or ""),
        study_time=rows.time,
        labels=labels,
    )


def mimic_image(
    root: Path, folder: str, name: str, view: View = View.UNKNOWN, boxes: tuple[FindingBox, ...] = ()
) -> RawImage:
    """An image of MIMIC-CXR-JPG in ``root/files`` or ``root``, with the name that an import gives it."""
    names = [f"{top}{folder}/{name}{suffix}" for top in ("files/", "") for suffix in IMAGE_SUFFIXES]
    path = next((each for each in names if (root / each).is_file()), names[0])
    return RawImage(root / path, f"images/{path.removeprefix('files/')}", view, boxes=boxes)
