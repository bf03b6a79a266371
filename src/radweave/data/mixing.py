"""Merge data sets into one folder that records the origin of every study: ``radweave data mix A B --out AB``.

Training stages choose from it: ``stages.disease.mixture={a: 1, b: 2} stages.report.mixture={a: 1}``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from radweave.core.errors import InputError
from radweave.core.study import Study
from radweave.data.dataset import Dataset, DatasetCard, DatasetWriter
from radweave.data.examples import refuse_leaks
from radweave.data.leaks.identity import comparable_id

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_AGREE = ("modality", "target")


def mix_datasets(
    paths: Sequence[Path], out: Path, *, same_patients: bool = False, link: bool = False, overwrite: bool = False
) -> Dataset:
    """Write the studies of all data sets into one folder, each in its own split.

    A data set is named by its folder. The name becomes a prefix of study, prior and patient ids, so that two sets may
    use equal ids; with ``same_patients``, patient ids mean the same people in all sets and stay.

    Args:
        link: hard links instead of copies of the image files.

    Raises:
        InputError: for fewer than two sets, names that are the same or cannot be one, sets of other modalities or
            target texts, and an image or patient in different splits of two sets.
    """
    sets = _named(paths)
    cards = {name: dataset.card for name, dataset in sets.items()}
    first = next(iter(cards.values()))
    for name, card in cards.items():
        for field in _AGREE:
            if getattr(card, field) != getattr(first, field):
                raise InputError(
                    "the data sets do not agree",
                    file=sets[name].path,
                    field=field,
                    got=getattr(card, field),
                    expected=getattr(first, field),
                )
    refuse_leaks(*sets.values(), same_patients=same_patients)
    mixed = DatasetCard(
        name="+".join(sets),
        modality=first.modality,
        target=first.target,
        cleaning=_each({name: card.cleaning for name, card in cards.items()}),
        split_provenance=_each({name: card.split_provenance for name, card in cards.items()}),
        sources=tuple(source for card in cards.values() for source in card.sources),
        options={"mixed": {name: dataset.fingerprint() for name, dataset in sets.items()}},
        licence=_each({name: card.licence or "none given" for name, card in cards.items()}),
    )
    with DatasetWriter(out, mixed, overwrite=overwrite, link=link) as writer:
        for name, dataset in sets.items():
            for study, files in _renamed(name, dataset, same_patients=same_patients):
                writer.add(study, files)
                writer.count(f"studies_of_{name}", 1)
                writer.count(f"training_studies_of_{name}", int(study.split == "train"))
    return Dataset.open(out)


def shares_of(mixed: Dataset) -> dict[str, float]:
    """Each data set's share of a mixture's training studies: its share of an epoch, unless a stage has other shares.

    Zero for all where no study is for training.
    """
    counts = {name: mixed.card.counts.get(f"training_studies_of_{name}", 0) for name in mixed.card.options["mixed"]}
    total = sum(counts.values())
    return {name: count / total if total else 0.0 for name, count in counts.items()}


def _named(paths: Sequence[Path]) -> dict[str, Dataset]:
    if len(paths) < 2:
        raise InputError("a mixture is of two data sets or more", field="datasets", got=len(paths))
    sets: dict[str, Dataset] = {}
    for path in paths:
        name = path.resolve().name
        if name in sets or not _NAME.fullmatch(name):
            raise InputError(
                "data sets are named by their folders: distinct names of letters, digits, '.', '_' and '-'",
                file=path,
                got=name,
            )
        if other := next((taken for taken in sets if _are_ambiguous(taken, name)), None):
            raise InputError(
                "ids under these names could not be told apart; rename one of the folders",
                file=path,
                got=f"{other} and {name}",
            )
        sets[name] = Dataset.open(path)
    return sets


def _are_ambiguous(one: str, other: str) -> bool:
    """True if an id prefixed by one name may equal an id prefixed by the other."""
    first, second = (f"{comparable_id(name)}." for name in (one, other))
    return first.startswith(second) or second.startswith(first)


def _each(values: dict[str, str]) -> str:
    """The common value, or the value of each data set."""
    return (
        next(iter(values.values()))
        if len(set(values.values())) == 1
        else "; ".join(f"{name}: {value}" for name, value in values.items())
    )


def _renamed(name: str, dataset: Dataset, *, same_patients: bool) -> Iterator[tuple[Study, dict[str, Path]]]:
    """The studies with their new ids, and their files by new path."""
    for study in dataset.studies():
        files: dict[str, Path] = {}

        def moved(path: str, files: dict[str, Path] = files) -> str:
            folder, _, rest = path.partition("/")
            inside = f"{folder}/{name}/{rest}" if folder in ("images", "masks") and rest else f"images/{name}/{path}"
            files[inside] = dataset.image_path(path)
            return inside

        changes: dict[str, Any] = {
            "study_id": f"{name}.{study.study_id}",
            "patient_id": study.patient_id if same_patients else f"{name}.{study.patient_id}",
            "prior": None if study.prior is None else f"{name}.{study.prior}",
            "origin": name if study.origin is None else f"{name}.{study.origin}",
            "images": tuple(ref.model_copy(update={"path": moved(ref.path)}) for ref in study.images),
            "truth": tuple(
                {**finding, "masks": [moved(path) for path in finding["masks"]]} if finding.get("masks") else finding
                for finding in study.truth
            ),
        }
        yield Study.model_validate({**study.model_dump(), **changes}), files
