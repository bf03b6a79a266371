"""One page that shows why a draft says what it says: pictures, maps, sentences and what supports them.

    run = restore(Path("run"))
    explain_files(run, Predictor.of(run), [Path("chest.png")], Path("out"))

All of it comes from ``Report.evidence``, which every method fills; where a method gives little, the page says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from radweave.core.errors import InputError
from radweave.core.evidence import ViewEvidence
from radweave.core.json_files import json_text
from radweave.core.replacing import record_kind
from radweave.core.storage import refuse_existing, write_folder, write_text
from radweave.core.study import MOST_VIEWS, ImageRef, Report, Study, View
from radweave.data.cache.images import PixelCache, refuse_modality
from radweave.data.ct import CtPreprocessing, covered, preprocess_spaced, to_bytes
from radweave.data.dataset import Dataset
from radweave.data.loader import Example
from radweave.engine.prepare import prepare
from radweave.engine.restore import Run
from radweave.inference.bulk import draft_row, group_images
from radweave.inference.explain.maps import RadiographSubject, ScanSubject, Subject
from radweave.inference.explain.page import Explained, render
from radweave.inference.pictures import Picture, model_input, read_scan, refuse_doubtful, view_of, without_advice
from radweave.inference.predictor import Predictor
from radweave.io.images import read_radiograph
from radweave.io.volumes import Volume
from radweave.labels import get_labeler
from radweave.nn.decoding import DecodingConfig

PAGE = "index.html"
_FIELDS = ("study_id", "report", "evidence", "warnings", "notice")
_OUTPUT = record_kind("an explanation", "evidence.json", _FIELDS, (PAGE, "*.png"))


def explain_files(
    run: Run,
    predictor: Predictor,
    images: Sequence[Path],
    out: Path,
    *,
    threshold: float | None = None,
    force: bool = False,
    overwrite: bool = False,
) -> Path:
    """Report on one study (its views or its scan, or a folder of them) and explain the draft; return the page's path.

    Raises:
        InputError: if ``out`` exists and not ``overwrite``, and as ``Predictor.report`` does.
    """
    refuse_existing(out, overwrite=overwrite, kind=_OUTPUT)
    group = group_images(images, one_study=True, modality=predictor.modality)[0]
    if predictor.modality == "xray" and len(group.images) > MOST_VIEWS:
        raise InputError(
            "more images than a study has: they are taken as views of one", got=len(group.images),
            expected=f"at most {MOST_VIEWS}; 'radweave generate' drafts each file of a folder",
        )  # fmt: skip
    views, warnings = predictor.read_views(group.images, force=force)
    report = predictor.report_on(views, study_id=group.name, warnings=without_advice(warnings), force=force)
    subjects = [
        subject_of(number, picture, view_of(picture), predictor) for number, (_, picture) in enumerate(views, start=1)
    ]
    return write_explanation(
        run, report, subjects, out, banner=predictor.warnings, has_prior=False, threshold=threshold, overwrite=overwrite
    )


def explain_study(
    run: Run,
    predictor: Predictor,
    dataset_path: Path,
    study_id: str,
    out: Path,
    *,
    threshold: float | None = None,
    force: bool = False,
    overwrite: bool = False,
) -> Path:
    """Report on a study of a data set, beside the report it has there, and explain the draft.

    Raises:
        InputError: if ``out`` exists and not ``overwrite``, or the study is not there or has no usable image.
    """
    refuse_existing(out, overwrite=overwrite, kind=_OUTPUT)
    dataset = Dataset.open(dataset_path).aimed(run.experiment.data.target)
    rows = read_dataset_study(run, dataset, study_id, predictor.decoding, force=force)
    files = [dataset.path / ref.path for ref, _ in rows.views]
    if not force:
        predictor.refuse_outliers(rows.example, files)
    report = next(iter(predictor.reports([rows.example], names={study_id: [file.name for file in files]})))
    views: list[ViewEvidence] = [{"file": Path(ref.path).name, "view": ref.view.value} for ref, _ in rows.views]
    warnings = (*report.warnings, *rows.warnings, *_training_warning(run, dataset, rows.study))
    return write_explanation(
        run,
        replace(report, evidence={**report.evidence, "views": views}, warnings=warnings),
        [subject_of(number, picture, ref.view, predictor) for number, (ref, picture) in enumerate(rows.views, start=1)],
        out,
        banner=predictor.warnings,
        has_prior=rows.example.prior is not None,
        reference=rows.study.report,
        threshold=threshold,
        overwrite=overwrite,
    )


def write_explanation(
    run: Run,
    report: Report,
    subjects: Sequence[Subject],
    out: Path,
    *,
    banner: Sequence[str] = (),
    has_prior: bool | None = None,
    reference: str | None = None,
    threshold: float | None = None,
    overwrite: bool = False,
) -> Path:
    """Write the page of a report that is there already, with its PNGs and its evidence as JSON.

    ``subjects`` are the pictures of the study, in the order of the maps' first axis; ``banner`` the warnings about the
    run itself, which stand beside the research notice. ``has_prior`` says whether the study before was given; where it
    was not, what compares with one is marked as invented. None: it is not known.

    Raises:
        InputError: if ``out`` exists and not ``overwrite``.
    """
    explained = Explained(
        report=report,
        card=run.card,
        labeler=get_labeler(run.experiment.data.label_set),
        subjects=tuple(subjects),
        banner=tuple(banner),
        has_prior=has_prior,
        reference=reference,
        threshold=threshold,
    )
    html, files = render(explained)
    with write_folder(out, overwrite=overwrite, kind=_OUTPUT) as folder:
        for name, png in files.items():
            (folder / name).write_bytes(png)
        write_text(folder / "evidence.json", json_text(draft_row(report)))
        write_text(folder / PAGE, html)
    return out / PAGE


def subject_of(number: int, picture: Picture, view: View, predictor: Predictor) -> Subject:
    """A radiograph as it was read, or a scan as the model saw it."""
    if isinstance(picture, Volume):
        return scan_subject(picture, predictor.ct)
    kind = "" if view is View.UNKNOWN else f", {view.value}"
    return RadiographSubject(f"View {number}{kind}", picture.pixels, predictor.image_size)


def scan_subject(volume: Volume, options: CtPreprocessing) -> ScanSubject:
    """A scan as a model with these options sees it."""
    hu, spacing_mm = preprocess_spaced(volume, options)
    voxels = to_bytes(hu, options).astype(np.float32) / np.float32(255)
    return ScanSubject("CT", voxels, spacing_mm, covered(volume, options))


def _training_warning(run: Run, dataset: Dataset, study: Study) -> tuple[str, ...]:
    """A warning where the model has learned from this very study."""
    if dataset.fingerprint() != run.card.dataset.fingerprint or study.split != "train":
        return ()
    return ("the model was trained on this study: its draft here says nothing about unseen ones",)


# One study of a data set, read as in training and in bulk, without reading the others' images.


@dataclass(frozen=True, slots=True)
class DatasetStudy:
    """A study, the views that the model sees in its order, what the model gets, and the readers' warnings."""

    study: Study
    views: tuple[tuple[ImageRef, Picture], ...]
    example: Example
    warnings: tuple[str, ...]


def read_dataset_study(
    run: Run, dataset: Dataset, study_id: str, decoding: DecodingConfig, *, force: bool = False
) -> DatasetStudy:
    """Find a study and read its images, and those of the study before it where a draft reads it.

    Raises:
        InputError: if it is not there, the run reads another modality, none of its images can be read, or one is
            doubtful and not ``force``.
    """
    modality = run.experiment.data.modality
    refuse_modality(dataset, modality)
    study = next((study for study in dataset.studies() if study.study_id == study_id), None)
    if study is None:
        raise InputError("no such study in the data set", file=dataset.path, field="--study", got=study_id)
    wanted = [study]
    reads_priors = run.experiment.reads_priors(decoding)
    if reads_priors and study.prior is not None:
        wanted += [other for other in dataset.studies(study.split) if other.study_id == study.prior]
    read, unreadable = _read(dataset, (ref for one in wanted for ref in one.images if ref.modality == modality))
    warnings = [(ref, text) for ref in study.images if ref.path in read for text in read[ref.path].warnings]
    if not force:
        own = [ref.path for ref in study.images if ref.path in read]
        refuse_doubtful([read[path] for path in own], [dataset.path / path for path in own])
    lost = [(ref, f"left out, {unreadable[ref.path]}") for ref in study.images if ref.path in unreadable]
    example = _example(run, dataset, study, read, unreadable, reads_priors=reads_priors)
    by_row = dict(enumerate(read))
    refs = {ref.path: ref for ref in study.images}
    return DatasetStudy(
        study=study,
        views=tuple((refs[by_row[row]], read[by_row[row]]) for row in example.rows),
        example=example,
        warnings=tuple(f"{Path(ref.path).name}: {text}" for ref, text in (*warnings, *lost)),
    )


def _read(dataset: Dataset, refs: Iterable[ImageRef]) -> tuple[dict[str, Picture], dict[str, str]]:
    """Path -> radiograph or scan, and path -> the reason why it cannot be read."""
    read: dict[str, Picture] = {}
    unreadable: dict[str, str] = {}
    for ref in refs:
        try:
            path = dataset.image_path(ref.path)
            if ref.modality == "ct":
                read[ref.path] = read_scan(path)
            else:
                read[ref.path] = read_radiograph(path, original_size_wh=ref.original_size_wh)
        except InputError as error:
            unreadable[ref.path] = error.reason
    return read, unreadable


def _example(
    run: Run,
    dataset: Dataset,
    study: Study,
    read: dict[str, Picture],
    unreadable: dict[str, str],
    *,
    reads_priors: bool,
) -> Example:
    """Input of the model: the study with its patient, so that no memory returns that one, and without its report.

    Raises:
        InputError: if no image can be read.
    """
    data = run.experiment.data
    none = np.zeros((0, data.image_size, data.image_size), np.uint8)
    cache = PixelCache(
        pixels=model_input(list(read.values()), image_size=data.image_size, ct=data.ct) if read else none,
        rows={path: row for row, path in enumerate(read)},
        unreadable=unreadable,
    )
    prepared = prepare(dataset, study.split, run.experiment, run.tokenizer, cache, need_text=False)
    examples = prepared.examples_with_priors if reads_priors else prepared.examples
    example = next((example for example in examples if example.study_id == study.study_id), None)
    if example is None:
        raise InputError(
            f"the study cannot be used: {prepared.left_out.get(study.study_id, 'no image')}",
            file=dataset.path,
            field="--study",
            got=study.study_id,
        )
    return replace(example, token_ids=None, class_states=None, report=None)
