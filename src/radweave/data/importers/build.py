"""From the studies of a source to a dataset folder: target texts, splits, priors, what is left out and why."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
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
from radweave.data.targets import Cleaner, cleaned, cleaner, sections_for, target_of_sections

# Which split a study gets: the source's own, one for all, or parts of the patients by seed.


SOURCE_SPLIT = ("source", "official", "r2gen")
"""Words for the split that the source states."""

_RATIO = re.compile(r"\d+(?:\.\d+)?(?::\d+(?:\.\d+)?){2}")
_VALIDATION_SHARE = 5.0

Assign = Callable[[RawStudy], Split | None]


def splitter(kept: Callable[[], Iterator[RawStudy]], provenance: str, options: ImportOptions) -> tuple[Assign, str]:
    """How a study gets its split, and the words for the card.

    Args:
        kept: gives the studies that will be taken over; called once more where patients must be counted.
        provenance: where the source's own split comes from.

    Raises:
        InputError: for a split that is neither a word we know nor a ratio.
    """
    split = options.split
    if split in SOURCE_SPLIT:
        return (lambda raw: raw.split), provenance
    if split in SPLITS:
        name: Split = split
        return (lambda raw: name), f"every study is {name}, by option"
    if split == "none":
        return (lambda raw: None), "none"
    if split == "valid-as-test":
        return _valid_as_test(kept, provenance, options.seed)
    if not _RATIO.fullmatch(split) or sum(parts := [float(part) for part in split.split(":")]) <= 0:
        raise InputError(
            "no such split",
            field="split",
            got=split,
            expected="source, test, train, val, none, valid-as-test, or a ratio such as 7:1:2",
        )
    by_patient = cut_patients({raw.patient_id for raw in kept()}, parts, options.seed)
    return (lambda raw: by_patient[raw.patient_id]), f"{split} by patient, seed {options.seed}"


def cut_patients(patients: set[str], parts: list[float], seed: int) -> dict[str, Split]:
    """Patients to train, val and test in the given parts: sorted ids are shuffled by the seed and cut."""
    order = sorted(patients)
    random.Random(seed).shuffle(order)
    ends = [round(len(order) * sum(parts[: n + 1]) / sum(parts)) for n in range(3)]
    starts = [0, *ends[:2]]
    return {p: s for s, a, b in zip(SPLITS, starts, ends, strict=True) for p in order[a:b]}


def _valid_as_test(kept: Callable[[], Iterator[RawStudy]], provenance: str, seed: int) -> tuple[Assign, str]:
    """For sets with two parts only: choosing a model on the split it is then scored on flatters it."""
    trained = {raw.patient_id for raw in kept() if raw.split == "train"}
    carved = cut_patients(trained, [100 - _VALIDATION_SHARE, _VALIDATION_SHARE, 0], seed)

    def assign(raw: RawStudy) -> Split | None:
        if raw.split == "val":
            return "test"
        return carved[raw.patient_id] if raw.split == "train" else raw.split

    share = f"{_VALIDATION_SHARE:g} % of the training patients, seed {seed}"
    return assign, f"{provenance}; test is its validation part, val {share}"


LONGEST_TEXT = 100_000
"""Characters; the longest reports of the public sets have about a tenth of it."""

STUDIES_AT_ONCE = 64
"""Studies whose image files are read side by side."""

Progress = Callable[[int, int], None]
"""Told of the studies gone through, and how many there are."""
Verdict = tuple[str | None, View]
Tell = Callable[[Iterator[RawStudy]], Iterator[RawStudy]]
_SECTIONS = ("findings", "impression", "indication", "comparison", "technique")


def build_dataset(
    source: Source, out: Path, options: ImportOptions, *, overwrite: bool = False, progress: Progress | None = None
) -> Dataset:
    """Write the dataset folder of a source.

    Args:
        progress: told of the studies gone through and of all; from 1 again where a split needs two rounds.

    Raises:
        InputError: if the output exists, the split is not known, or no study at all could be taken over.
    """
    tell = _teller(source, progress)
    verdicts: dict[Path, Verdict] = {}
    assign, provenance = splitter(
        lambda: _kept(source, options, Problems(), verdicts, tell), source.split_provenance, options
    )
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
        written = 0
        for raw in _kept(source, options, problems, verdicts, tell):
            raw = replace(raw, split=assign(raw))
            study = _study(raw if scrubber is None else _scrubbed(raw, scrubber), options, hashes, problems)
            if study is None:
                continue
            if source.has_priors:
                study = _with_prior(study, latest)
            writer.add(study, _files(raw))
            written += 1
        if scrubber is not None:
            writer.count("scrubbed", scrubber.count)
        if not written:
            reasons = "; ".join(f"{count} x {reason}" for reason, count in sorted(problems.studies.items()))
            raise InputError(f"no study could be taken over ({reasons or 'the source holds none'})", file=out.name)
        for reason, count in problems.studies.items():
            writer.leave_out(reason, count)
        for reason, count in problems.images.items():
            writer.leave_out(f"image: {reason}", count)
        if problems.rows:
            write_jsonl(writer.folder / "left_out.jsonl", problems.rows)
    return Dataset.open(out)


def _teller(source: Source, progress: Progress | None) -> Tell:
    """What passes studies on and tells ``progress`` of each. Texts alone are read to count them."""
    if progress is None:
        return lambda studies: studies
    total = sum(1 for _ in source.studies(Problems()))

    def tell(studies: Iterator[RawStudy]) -> Iterator[RawStudy]:
        for done, raw in enumerate(studies, start=1):
            yield raw
            progress(done, total)

    return tell


def _stored(options: ImportOptions) -> dict[str, Any]:
    """Options as the card keeps them: no path of somebody's machine, so that the bytes do not depend on it."""
    stored = options.model_dump(mode="json", exclude={"images", "annotation", "link", "scrub_names"})
    if options.annotation is not None:
        stored["annotation"] = options.annotation.name
    return stored


def target_text(raw: RawStudy, target: TargetText, clean: Cleaner) -> str | None:
    """The report to learn: the sections asked for, as one text, and cleaned; None if one has no text.

    A source without sections has one text, which is taken for any target but ``both``.
    """
    if raw.report is not None and not any((raw.findings, raw.impression)) and target != "both":
        return cleaned(raw.report.strip(), clean) if raw.report.strip() else None
    return target_of_sections(raw, target, clean)


def _kept(
    source: Source, options: ImportOptions, problems: Problems, verdicts: dict[Path, Verdict], tell: Tell
) -> Iterator[RawStudy]:
    """Studies with what ``options.keep`` asks for, image files checked; the others are counted.

    ``verdicts`` keeps what was found of an image file, since studies may be gone through twice.
    """
    clean = cleaner(options.cleaning)
    verify = options.verify if options.verify is not None else not source.is_known_set
    for raw in tell(_judged(source, verify, problems, verdicts)):
        if problem := _text_problem(raw):
            problems.leave_out_study(raw.study_id, problem)
            continue
        images = []
        for image in raw.images:
            reason, seen = verdicts[image.file]
            if image.view is View.UNKNOWN and seen is not View.UNKNOWN:
                image = replace(image, view=seen)
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
        if source.needs_split and options.split in SOURCE_SPLIT and raw.split is None and options.keep != "all":
            problems.leave_out_study(raw.study_id, "not in the source's split")
            continue
        yield replace(raw, images=tuple(images))


def _judged(source: Source, verify: bool, problems: Problems, verdicts: dict[Path, Verdict]) -> Iterator[RawStudy]:
    """The source's studies; by then ``verdicts`` holds what was found of their image files.

    The files of some studies are read side by side. How many does not hang on the machine: what is left out is then
    told in the same order everywhere.
    """
    root, studies = source.root.resolve(), source.studies(problems)
    at_once = in_order if verify else one_by_one

    def judge(raw: RawStudy) -> dict[Path, Verdict]:
        files = {image.file: image for image in raw.images if image.file not in verdicts}
        return {file: _judge(image, root, verify) for file, image in files.items()}

    while some := list(islice(studies, STUDIES_AT_ONCE)):
        for raw, found in at_once(judge, some):
            verdicts.update(found)
            yield raw


def _scrubbed(raw: RawStudy, scrubber: Scrubber) -> RawStudy:
    """The study with its texts scrubbed."""
    scrub = scrubber.study((raw.study_id, raw.patient_id), (image.file for image in raw.images))
    texts = {name: getattr(raw, name) for name in ("report", *_SECTIONS)}
    changed: dict[str, Any] = {name: None if text is None else scrub(text) for name, text in texts.items()}
    changed["regions"] = {name: scrub(text) for name, text in raw.regions.items()}
    return replace(raw, **changed)


def _text_problem(raw: RawStudy) -> str | None:
    texts = [getattr(raw, name) or "" for name in (*_SECTIONS, "report", "study_time")]
    texts += [*raw.regions, *raw.regions.values(), *(name for states in raw.labels.values() for name in states)]
    if any(len(text) > LONGEST_TEXT for text in texts):
        return f"text longer than {LONGEST_TEXT} characters"
    try:
        # Half of a surrogate pair can stand in a JSON escape but in no file.
        "".join([raw.study_id, raw.patient_id, *texts, *(image.inside for image in raw.images)]).encode()
    except UnicodeEncodeError:
        return "text is not valid Unicode"
    return None


def _judge(image: RawImage, root: Path, verify: bool) -> Verdict:
    """Why an image file cannot be used, or None; and the view its header states, where it was read."""
    view = View.UNKNOWN
    reason = None
    try:
        if not image.file.resolve().is_relative_to(root):
            reason = "path leads outside the source folder"
        elif not image.file.exists():
            reason = "file is missing"
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
    """Decode an image for the view its header states.

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
    """The checked study, or None (counted) where an id or an image name cannot be used."""
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
            **{name: getattr(raw, name) for name in _SECTIONS},
        )
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in problem["loc"] if isinstance(part, str))
        problems.leave_out_study(raw.study_id, f"{place}: {problem['msg'].removeprefix('Value error, ')}")
    except InputError as error:
        problems.leave_out_study(raw.study_id, error.reason)
    except OSError as error:
        problems.leave_out_study(raw.study_id, f"image cannot be read: {error.strerror}")
    return None


@dataclass(slots=True)
class _Latest:
    """A patient's latest study so far, and the one before it: studies of one moment share their prior."""

    study_id: str
    time: str
    prior: str | None


def _with_prior(study: Study, latest: dict[str, _Latest]) -> Study:
    """Link the patient's previous study that was taken over, by time alone."""
    time = study.study_time
    if time is None:
        return study
    before = latest.get(study.patient_id)
    prior = None if before is None else before.study_id if before.time < time else before.prior
    latest[study.patient_id] = _Latest(study.study_id, time, prior)
    return study.model_copy(update={"prior": prior})
