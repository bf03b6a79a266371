"""From the studies of a source to a dataset folder: target texts, splits, priors, and excluded studies with reasons."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from radweave.core.errors import InputError
from radweave.core.json_files import write_jsonl
from radweave.core.storage import sha256_file
from radweave.core.study import SPLITS, ImageRef, Split, Study, TargetText, View
from radweave.data.cache.arrays import in_order, one_by_one
from radweave.data.dataset import DETACHED_HEADER, Dataset, DatasetCard, DatasetWriter, SourceFile
from radweave.data.deidentify.texts import Scrubber, read_names
from radweave.data.importers.source import ImportOptions, Problems, RawImage, RawStudy, Source
from radweave.data.leaks.identity import content_hash
from radweave.data.targets import (
    Cleaner,
    Sections,
    cleaned,
    cleaner,
    sections_for,
    target_of_regions,
    target_of_sections,
)

# Splits: the source's own, one for all studies, or parts of the patients by seed.

SOURCE_SPLIT = ("source", "official", "r2gen")
"""Words for the split that the source states."""

VALID_AS_TEST = "valid-as-test"

_RATIO = re.compile(r"\d+(?:\.\d+)?(?::\d+(?:\.\d+)?){2}")
_VALIDATION_SHARE = 5.0

Assign = Callable[[RawStudy], Split | None]


def splitter(
    included: Callable[[], Iterator[RawStudy]], provenance: str, options: ImportOptions, named: Sequence[str] = ()
) -> tuple[Assign, str]:
    """The function that assigns splits, and its description for the card.

    Args:
        included: yields the included studies; called once more if patients must be counted.
        provenance: origin of the source's own split.
        named: words for splits that the source has besides; its studies carry the one that the options name.

    Raises:
        InputError: for a split that is neither a known word nor a ratio.
    """
    split = options.split
    if split in (*SOURCE_SPLIT, *named):
        return (lambda raw: raw.split), provenance
    if split in SPLITS:
        name: Split = split
        return (lambda raw: name), f"every study is {name}, by option"
    if split == "none":
        return (lambda raw: None), "none"
    if split == VALID_AS_TEST:
        return _valid_as_test(included, provenance, options.seed)
    if not _RATIO.fullmatch(split) or sum(parts := [float(part) for part in split.split(":")]) <= 0:
        raise InputError(
            "no such split",
            field="split",
            got=split,
            expected=", ".join(
                ("source, test, train, val, none, valid-as-test", *named, "or three shares such as 7:1:2")
            ),
        )
    by_patient = cut_patients({raw.patient_id for raw in included()}, parts, options.seed)
    return (lambda raw: by_patient[raw.patient_id]), f"{split} by patient, seed {options.seed}"


def cut_patients(patients: set[str], parts: list[float], seed: int) -> dict[str, Split]:
    """Patients to train, val and test in the given parts: sorted ids are shuffled by the seed and cut."""
    order = sorted(patients)
    random.Random(seed).shuffle(order)
    ends = [round(len(order) * sum(parts[: n + 1]) / sum(parts)) for n in range(3)]
    starts = [0, *ends[:2]]
    return {p: s for s, a, b in zip(SPLITS, starts, ends, strict=True) for p in order[a:b]}


def _valid_as_test(included: Callable[[], Iterator[RawStudy]], provenance: str, seed: int) -> tuple[Assign, str]:
    """Splits for sets with two parts: a model must not be selected on the split that scores it."""
    trained = {raw.patient_id for raw in included() if raw.split == "train"}
    carved = cut_patients(trained, [100 - _VALIDATION_SHARE, _VALIDATION_SHARE, 0], seed)

    def assign(raw: RawStudy) -> Split | None:
        if raw.split == "val":
            return "test"
        return carved[raw.patient_id] if raw.split == "train" else raw.split

    share = f"{_VALIDATION_SHARE:g} % of the training patients, seed {seed}"
    return assign, f"{provenance}; test is its validation part, val {share}"


MISSING = "file is missing"
LONGEST_TEXT = 100_000
"""Characters; the longest reports of the public sets have about a tenth of it."""

STUDIES_AT_ONCE = 64
"""Studies whose image files are read in parallel."""

Progress = Callable[[int, int], None]
"""Called with the number of processed studies and of all."""
Verdict = tuple[str | None, View]
PassThrough = Callable[[Iterator[RawStudy]], Iterator[RawStudy]]


def build_dataset(
    source: Source, out: Path, options: ImportOptions, *, overwrite: bool = False, progress: Progress | None = None
) -> Dataset:
    """Write the dataset folder of a source.

    Args:
        progress: called with the number of processed studies and of all; restarts if a split needs two passes.

    Raises:
        InputError: if the output exists, the split is not known, or no study at all could be taken over.
    """
    with_progress = _progress_reporter(source, progress)
    verdicts: dict[Path, Verdict] = {}
    assign, provenance = splitter(
        lambda: _included(source, options, Problems(), verdicts, with_progress),
        source.split_provenance,
        options,
        source.named_splits,
    )
    if options.extra_train:
        provenance = f"{provenance}; studies outside of it join train"
    problems = Problems()
    scrubber = Scrubber(read_names(options.scrub_names) if options.scrub_names else ()) if options.scrub else None
    card = DatasetCard(
        name=source.name,
        modality=source.modality,
        target=options.target,
        cleaning=options.cleaning,
        split_provenance=provenance,
        sources=tuple(SourceFile(file=path.name, sha256=sha256_file(path)) for path in source.files),
        options=_stored(options),
        notes=source.notes,
        licence=source.licence,
    )
    with DatasetWriter(out, card, overwrite=overwrite, link=options.link) as writer:
        hashes: dict[Path, str] = {}
        latest: dict[str, _Latest] = {}
        written: set[str] = set()
        for raw in _included(source, options, problems, verdicts, with_progress):
            raw = replace(raw, split=assign(raw))
            study = _study(raw if scrubber is None else _scrubbed(raw, scrubber), options, hashes, problems)
            if study is None:
                continue
            if source.has_priors:
                study = _with_prior(study, latest)
            writer.add(study, _files(raw))
            written.add(study.study_id)
        if scrubber is not None:
            writer.count("scrubbed", scrubber.count)
        if not written:
            counts = (
                *sorted(problems.studies.items()),
                *((f"image: {reason}", count) for reason, count in sorted(problems.images.items())),
            )
            reasons = "; ".join(f"{count} x {reason}" for reason, count in counts)
            elsewhere = "--images FOLDER, if the images lie elsewhere" if problems.images[MISSING] else None
            reason = f"no study could be taken over ({reasons or 'the source holds none'})"
            raise InputError(reason, file=out.name, expected=elsewhere)
        for reason, count in problems.studies.items():
            writer.leave_out(reason, count)
        for reason, count in problems.images.items():
            writer.leave_out(f"image: {reason}", count)
        for name, rows in source.tables.items():
            write_jsonl(writer.folder / name, [row for row in rows() if row["study_id"] in written])
        for reason, count in problems.boxes.items():
            writer.leave_out(f"box: {reason}", count)
        if problems.rows:
            write_jsonl(writer.folder / "left_out.jsonl", problems.rows)
    return Dataset.open(out)


def _progress_reporter(source: Source, progress: Progress | None) -> PassThrough:
    """A pass-through that reports each study to ``progress``; counting them reads texts only."""
    if progress is None:
        return lambda studies: studies
    total = sum(1 for _ in source.studies(Problems()))

    def with_progress(studies: Iterator[RawStudy]) -> Iterator[RawStudy]:
        for done, raw in enumerate(studies, start=1):
            yield raw
            progress(done, total)

    return with_progress


NEWER: Mapping[str, object] = {"extra_train": False, "labels": "given"}
"""Option -> its default."""


def _stored(options: ImportOptions) -> dict[str, Any]:
    """Options for the card, without paths, so that its bytes do not depend on the machine."""
    stored = options.model_dump(mode="json", exclude={"images", "annotation", "link", "scrub_names"})
    # Options that are newer than cards: one with their defaults is the same as before there were any.
    stored = {name: value for name, value in stored.items() if name not in NEWER or value != NEWER[name]}
    if options.annotation is not None:
        stored["annotation"] = options.annotation.name
    return stored


def target_text(raw: RawStudy, target: TargetText, clean: Cleaner) -> str | None:
    """The cleaned target text; None if a section has no text.

    The text of a source without sections serves any target but ``both`` and ``regions``.
    """
    if target == "regions":
        return target_of_regions(raw.regions, clean)
    if raw.report is not None and not any((raw.sections.findings, raw.sections.impression)) and target != "both":
        return cleaned(raw.report.strip(), clean) if raw.report.strip() else None
    return target_of_sections(raw.sections, target, clean)


def _included(
    source: Source,
    options: ImportOptions,
    problems: Problems,
    verdicts: dict[Path, Verdict],
    with_progress: PassThrough,
) -> Iterator[RawStudy]:
    """Studies that satisfy ``options.keep``, with checked image files; the others are counted.

    ``verdicts`` caches the result for each image file, since there may be two passes.
    """
    clean = cleaner(options.cleaning)
    verify = options.verify if options.verify is not None else not source.is_known_set
    own_split = options.split in (*SOURCE_SPLIT, *source.named_splits)
    if options.extra_train and not (source.needs_split and own_split):
        raise InputError(
            "adds studies to a published split, which lists the others",
            field="extra_train",
            got=f"split={options.split}",
            expected="split=source, and a source whose split has lists",
        )
    evaluated = Evaluated.of(source) if options.extra_train else None
    for raw in with_progress(_with_verdicts(source, verify, problems, verdicts)):
        if problem := _text_problem(raw):
            problems.leave_out_study(raw.study_id, problem)
            continue
        images = []
        for image in raw.images:
            reason, stated_view = verdicts[image.file]
            if image.view is View.UNKNOWN and stated_view is not View.UNKNOWN:
                image = replace(image, view=stated_view)
            if reason is None and options.views and image.view not in options.views:
                reason = "view not asked for"
            if reason is None:
                images.append(image)
            else:
                problems.leave_out_image(raw.study_id, image.inside, reason)
        if not images and not options.keeps_without_image:
            problems.leave_out_study(raw.study_id, "no image")
            continue
        if not options.keeps_without_text and target_text(raw, options.target, clean) is None:
            problems.leave_out_study(raw.study_id, f"no {'+'.join(sections_for(options.target))} text")
            continue
        if evaluated is not None and raw.split is None:
            if (reason := evaluated.shares_with(raw)) is not None:
                problems.leave_out_study(raw.study_id, reason)
                continue
            raw = replace(raw, split="train")
        if source.needs_split and own_split and raw.split is None and options.keep != "all":
            problems.leave_out_study(raw.study_id, "not in the source's split")
            continue
        labels = raw.labels if options.labels == "given" else {}
        yield replace(raw, images=tuple(images), labels=labels)


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Patients, and hashes of the image files, of a source's validation and test studies."""

    patients: frozenset[str]
    images: frozenset[str]

    @classmethod
    def of(cls, source: Source) -> Evaluated:
        """Read them from the source; its texts are read once more for that."""
        studies = [raw for raw in source.studies(Problems()) if raw.split in ("val", "test")]
        hashes = (_hash(image) for raw in studies for image in raw.images)
        return cls(frozenset(raw.patient_id for raw in studies), frozenset(filter(None, hashes)))

    def shares_with(self, raw: RawStudy) -> str | None:
        """Reason why a study may not be trained on; None if it shares nothing with theirs."""
        if raw.patient_id in self.patients:
            return "not in the source's split, and of a patient of validation or test"
        if any(_hash(image) in self.images for image in raw.images):
            return "not in the source's split, and has an image of validation or test"
        return None


def _hash(image: RawImage) -> str | None:
    """Hash of an image file; None for one that cannot be read, which no study keeps."""
    try:
        return content_hash(image.file)
    except (InputError, OSError, ValueError):
        return None


def _with_verdicts(
    source: Source, verify: bool, problems: Problems, verdicts: dict[Path, Verdict]
) -> Iterator[RawStudy]:
    """The source's studies, after their image files were checked into ``verdicts``.

    Files are checked in parallel for a fixed number of studies, so that exclusions have the same order on every
    machine.
    """
    root, studies = source.root.resolve(), source.studies(problems)
    at_once = in_order if verify else one_by_one

    def judge(raw: RawStudy) -> dict[Path, Verdict]:
        files = {image.file: image for image in raw.images if image.file not in verdicts}
        return {file: _verdict(image, root, verify) for file, image in files.items()}

    while some := list(islice(studies, STUDIES_AT_ONCE)):
        for raw, of_study in at_once(judge, some):
            verdicts.update(of_study)
            yield raw


def _scrubbed(raw: RawStudy, scrubber: Scrubber) -> RawStudy:
    """The study with its texts scrubbed."""
    scrub = scrubber.study((raw.study_id, raw.patient_id), (image.file for image in raw.images))
    sections = {name: None if text is None else scrub(text) for name, text in asdict(raw.sections).items()}

    def scrubbed(image: RawImage) -> RawImage:
        boxes = (
            each.model_copy(update={"sentence": None if each.sentence is None else scrub(each.sentence)})
            for each in image.boxes
        )
        return replace(image, boxes=tuple(boxes))

    return replace(
        raw,
        images=tuple(map(scrubbed, raw.images)),
        report=None if raw.report is None else scrub(raw.report),
        sections=Sections(**sections),
        regions={name: scrub(text) for name, text in raw.regions.items()},
    )


def _text_problem(raw: RawStudy) -> str | None:
    texts = [text or "" for text in (*asdict(raw.sections).values(), raw.report, raw.study_time)]
    texts += [*raw.regions, *raw.regions.values(), *(name for states in raw.labels.values() for name in states)]
    if any(len(text) > LONGEST_TEXT for text in texts):
        return f"text longer than {LONGEST_TEXT} characters"
    try:
        # A lone surrogate is valid in a JSON escape but not in a file.
        "".join([raw.study_id, raw.patient_id, *texts, *(image.inside for image in raw.images)]).encode()
    except UnicodeEncodeError:
        return "text is not valid Unicode"
    return None


def _verdict(image: RawImage, root: Path, verify: bool) -> Verdict:
    """The reason why an image file cannot be used, or None, and the view of its header if it was read."""
    view = View.UNKNOWN
    reason = None
    try:
        if not image.file.resolve().is_relative_to(root):
            reason = "path leads outside the source folder"
        elif not image.file.exists():
            reason = MISSING
        elif image.file.is_dir() and image.modality == "xray":
            reason = "path is a folder"
        elif not image.file.is_dir() and not image.file.is_file():
            reason = "is no plain file"
        elif image.file.is_file() and image.file.stat().st_size == 0:
            reason = "file is empty"
        elif image.file.suffix.lower() == DETACHED_HEADER:
            reason = "has its voxels in another file; convert it to one .mha file"
        elif verify:
            view = _read(image)
    except InputError as error:
        reason = f"cannot be read: {error.reason}"
    except (OSError, ValueError, RuntimeError):
        # A name too long, with a NUL byte, or a link that leads to itself.
        reason = "path cannot be used"
    return reason, view


def _read(image: RawImage) -> View:
    """Decode an image and return the view of its header.

    Raises:
        InputError: if it cannot be read.
    """
    if image.modality == "xray":
        from radweave.io.images import read_radiograph

        return read_radiograph(image.file, doubts=False).view
    from radweave.io.volumes import read_volume

    read_volume(image.file)
    return View.AXIAL


def _files(raw: RawStudy) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for image in raw.images:
        if image.file.is_dir():
            members = sorted(path for path in image.file.iterdir() if path.is_file())
            files.update({f"{image.inside}/{path.name}": path for path in members})
        else:
            files[image.inside] = image.file
    return files


def _study(raw: RawStudy, options: ImportOptions, hashes: dict[Path, str], problems: Problems) -> Study | None:
    """The checked study, or None (counted) for an unusable id or image name."""
    try:
        images = []
        for image in raw.images:
            if image.file not in hashes:
                hashes[image.file] = content_hash(image.file)
            images.append(
                ImageRef(
                    path=image.inside,
                    modality=image.modality,
                    view=image.view,
                    original_size_wh=image.original_size_wh,
                    spacing_mm=image.spacing_mm,
                    sha256=hashes[image.file],
                    boxes=image.boxes,
                )
            )
        return Study(
            study_id=raw.study_id,
            patient_id=raw.patient_id,
            split=raw.split,
            images=tuple(images),
            report=target_text(raw, options.target, cleaner(options.cleaning)),
            study_time=raw.study_time,
            labels=raw.labels,
            regions=raw.regions,
            **asdict(raw.sections),
        )
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in problem["loc"] if isinstance(part, str))
        problems.leave_out_study(raw.study_id, f"{field}: {problem['msg'].removeprefix('Value error, ')}")
    except InputError as error:
        problems.leave_out_study(raw.study_id, error.reason)
    except OSError as error:
        problems.leave_out_study(raw.study_id, f"image cannot be read: {error.strerror}")
    return None


@dataclass(slots=True)
class _Latest:
    """A patient's latest study so far, and its prior, which simultaneous studies share."""

    study_id: str
    time: str
    prior: str | None


def _with_prior(study: Study, latest: dict[str, _Latest]) -> Study:
    """Link the patient's previous included study by time."""
    time = study.study_time
    if time is None:
        return study
    before = latest.get(study.patient_id)
    prior = None if before is None else before.study_id if before.time < time else before.prior
    latest[study.patient_id] = _Latest(study.study_id, time, prior)
    return study.model_copy(update={"prior": prior})
