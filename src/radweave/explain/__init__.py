"""One page that shows why a draft says what it says: pictures, maps, sentences and what supports them.

    run = restore(Path("run"))
    explain_files(run, run.predictor(), [Path("chest.png")], Path("out"))

All of it comes from ``Report.evidence``, which every method fills; where a method gives little, the page says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from radweave.data.dataset import Dataset
from radweave.data.loader import Example, ordered_views, view_id
from radweave.data.reading.images import Radiograph, read_radiograph
from radweave.data.reading.integrity import DOUBTFUL
from radweave.data.transforms import to_square
from radweave.errors import InputError
from radweave.explain.maps import RadiographSubject, Subject
from radweave.explain.page import Explained, render
from radweave.labels import get_labeler
from radweave.predict import group_images
from radweave.runs import Run
from radweave.serve.predictor import Predictor
from radweave.storage import json_text, refuse_existing, write_folder, write_text
from radweave.types import Report, Study, View

__all__ = ["explain_files", "explain_study", "write_explanation"]

PAGE = "index.html"


def explain_files(
    run: Run,
    predictor: Predictor,
    images: Sequence[Path],
    out: Path,
    *,
    threshold: float = 0.5,
    force: bool = False,
    overwrite: bool = False,
) -> Path:
    """Report on the views of one study (files, or a folder of them) and explain the draft; return the page's path.

    Raises:
        InputError: if ``out`` exists and not ``overwrite``, and as ``Predictor.report`` does.
    """
    refuse_existing(out, overwrite=overwrite)
    group = group_images(images, one_study=True)[0]
    views, _ = predictor.read_views(group.images, force=force)
    report = predictor.report(group.images, study_id=group.name, force=force)
    subjects = [
        _subject(number, radiograph, predictor.image_size) for number, (_, radiograph) in enumerate(views, start=1)
    ]
    return write_explanation(
        run, report, subjects, out, banner=predictor.warnings, threshold=threshold, overwrite=overwrite
    )


def explain_study(
    run: Run,
    predictor: Predictor,
    dataset_path: Path,
    study_id: str,
    out: Path,
    *,
    threshold: float = 0.5,
    force: bool = False,
    overwrite: bool = False,
) -> Path:
    """Report on a study of a data set, beside the report it has there, and explain the draft.

    Raises:
        InputError: if ``out`` exists and not ``overwrite``, or the study is not there or has no usable image.
    """
    refuse_existing(out, overwrite=overwrite)
    dataset = Dataset.open(dataset_path)
    study = next((study for study in dataset.studies() if study.study_id == study_id), None)
    if study is None:
        raise InputError("no such study in the data set", file=dataset_path, field="--study", got=study_id)
    refs = ordered_views([ref for ref in study.images if ref.modality == "xray"], predictor.max_views)
    if not refs:
        raise InputError("the study has no radiograph", file=dataset_path, field="--study", got=study_id)
    read = [read_radiograph(dataset.image_path(ref.path), original_size_wh=ref.original_size_wh) for ref in refs]
    radiographs = [_with_view(item, ref.view) for item, ref in zip(read, refs, strict=True)]
    warnings = [
        f"{Path(ref.path).name}: {text}" for ref, item in zip(refs, read, strict=True) for text in item.warnings
    ]
    if not force and any(text.startswith(DOUBTFUL) for item in read for text in item.warnings):
        raise InputError(f"{warnings[0]}; give --force to explain it anyway", file=dataset_path)
    report = next(iter(predictor.reports([_example(study, radiographs, predictor.image_size)])))
    subjects = [_subject(number, item, predictor.image_size) for number, item in enumerate(radiographs, start=1)]
    return write_explanation(
        run,
        Report(
            report.text, study_id, report.evidence, (*report.warnings, *warnings, *_seen_before(run, dataset, study))
        ),
        subjects,
        out,
        banner=predictor.warnings,
        reference=study.report,
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
    reference: str | None = None,
    threshold: float = 0.5,
    overwrite: bool = False,
) -> Path:
    """Write the page of a report that is there already, with its PNGs and its evidence as JSON.

    ``subjects`` are the pictures of the study, in the order of the maps' first axis; ``banner`` the warnings about the
    run itself, which stand beside the research notice.

    Raises:
        InputError: if ``out`` exists and not ``overwrite``.
    """
    explained = Explained(
        report=report,
        card=run.card,
        labeler=get_labeler(run.experiment.data.label_set),
        subjects=tuple(subjects),
        banner=tuple(banner),
        reference=reference,
        threshold=threshold,
    )
    html, files = render(explained)
    with write_folder(out, overwrite=overwrite) as folder:
        for name, png in files.items():
            (folder / name).write_bytes(png)
        content = {
            "study_id": report.study_id,
            "report": report.text,
            "evidence": dict(report.evidence),
            "warnings": list(report.warnings),
            "notice": report.notice,
        }
        write_text(folder / "evidence.json", json_text(content))
        write_text(folder / PAGE, html)
    return out / PAGE


def _subject(number: int, radiograph: Radiograph, side: int) -> RadiographSubject:
    kind = "" if radiograph.view is View.UNKNOWN else f", {radiograph.view.value}"
    return RadiographSubject(f"View {number}{kind}", radiograph.pixels, side)


def _with_view(radiograph: Radiograph, view: View) -> Radiograph:
    """The manifest knows the view where the file does not say it."""
    return Radiograph(
        radiograph.pixels, view, radiograph.spacing_mm, radiograph.source, radiograph.warnings, None, None
    )


def _example(study: Study, radiographs: Sequence[Radiograph], side: int) -> Example:
    """The study as the model sees it: without its report, with its patient, so that no memory answers with that one."""
    return Example(
        study_id=study.study_id,
        patient_id=study.patient_id,
        source=np.stack([to_square(item.pixels, side) for item in radiographs]),
        rows=tuple(range(len(radiographs))),
        view_ids=tuple(view_id(item.view) for item in radiographs),
    )


def _seen_before(run: Run, dataset: Dataset, study: Study) -> tuple[str, ...]:
    """A warning where the model has learned from this very study."""
    if dataset.fingerprint() != run.card.dataset.fingerprint or study.split != "train":
        return ()
    return ("the model was trained on this study: its draft here says nothing about unseen ones",)
