"""Which split a study gets: the source's own, one for all, or parts of the patients by seed."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator

from radweave.base.errors import InputError
from radweave.base.study import SPLITS, Split
from radweave.data.importers.source import ImportOptions, RawStudy

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
