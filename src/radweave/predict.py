"""Reports in bulk: over a split of a dataset folder, and over image files grouped into studies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radweave.data.cache import build_cache
from radweave.data.dataset import Dataset
from radweave.data.reading.images import read_radiograph
from radweave.errors import InputError
from radweave.runs import Run, prepare
from radweave.serve.predictor import Predictor
from radweave.storage import refuse_existing, write_jsonl
from radweave.training_floors import floor_reports
from radweave.types import Report, Split

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".dcm", ".dicom")


@dataclass(frozen=True, slots=True)
class BulkResult:
    """How many reports were written, and the studies left out with the reason."""

    written: int
    left_out: dict[str, str]


def generate_split(
    run: Run,
    predictor: Predictor,
    dataset_path: Path,
    split: Split,
    out: Path,
    *,
    batch_size: int = 16,
    overwrite: bool = False,
    images: Callable[[int, int], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> BulkResult:
    """Write ``predictions.jsonl``: per study its id, ``hyp``, ``ref`` (null where there is none), evidence and floors.

    ``floors`` holds what systems that look at nothing, or only at pixels, would have said (training split only).

    Raises:
        InputError: if ``out`` exists, or the split holds no study that can be used.
    """
    refuse_existing(out, overwrite=overwrite)
    if predictor.refusal is not None:
        raise InputError(predictor.refusal, file=run.folder)
    dataset = Dataset.open(dataset_path)
    cache = build_cache(dataset, size=run.experiment.data.image_size, progress=images)
    prepared = prepare(dataset, split, run.experiment, run.tokenizer, cache, need_text=False)
    if not prepared.examples:
        raise InputError(f"the data set has no usable study in split '{split}'", file=dataset_path)
    floors = floor_reports(dataset, cache, prepared.examples)
    total = len(prepared.examples)

    def rows() -> Iterator[dict[str, Any]]:
        reports = predictor.reports(
            prepared.examples,
            batch_size=batch_size,
            progress=None if progress is None else lambda n: progress(n, total),
        )
        for report in reports:
            yield {
                "study_id": report.study_id,
                "hyp": report.text,
                "ref": prepared.references.get(report.study_id),
                "floors": floors.get(report.study_id, {}),
                "evidence": dict(report.evidence),
                "warnings": list(report.warnings),
            }

    write_jsonl(out, rows())
    return BulkResult(written=total, left_out=prepared.left_out)


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Images that make one study, or one file that was refused."""

    name: str
    images: tuple[Path, ...] = ()
    refused: str | None = None


def group_images(paths: Sequence[Path], *, one_study: bool) -> list[FileGroup]:
    """Group files into studies: DICOM files by patient and study, every other file by itself.

    A folder stands for the images in it. With ``one_study`` all files are views of one study. A file that cannot be
    read becomes a group of its own with the reason; the others go on.
    """
    files = [file for path in paths for file in _files(path)]
    if one_study:
        return [FileGroup(name=files[0].stem, images=tuple(files))]
    groups: dict[str, list[Path]] = {}
    refused: list[FileGroup] = []
    for index, file in enumerate(files):
        try:
            radiograph = read_radiograph(file)
        except InputError as error:
            refused.append(FileGroup(name=file.name, refused=str(error)))
            continue
        key = f"{radiograph.patient_key}/{radiograph.study_key}" if radiograph.study_key else str(index)
        groups.setdefault(key, []).append(file)
    return [FileGroup(name=files[0].stem, images=tuple(files)) for files in groups.values()] + refused


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.suffix.lower() in IMAGE_SUFFIXES)
    if not found:
        raise InputError("no image in this folder", file=path, expected=", ".join(IMAGE_SUFFIXES))
    return found


def generate_files(
    predictor: Predictor, groups: Sequence[FileGroup], *, force: bool = False
) -> Iterator[Report | FileGroup]:
    """Write one report per group; a group that fails comes back with its reason."""
    if predictor.refusal is not None:
        raise InputError(predictor.refusal)
    for group in groups:
        if group.refused is not None:
            yield group
            continue
        try:
            yield predictor.report(group.images, study_id=group.name, force=force)
        except InputError as error:
            yield FileGroup(name=group.name, images=group.images, refused=str(error))
