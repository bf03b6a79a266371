"""Pictures that stand in two splits in changed form, told before a training: a warning, for a person to judge.

DATASET/.cache/copies.json    what was found of these pixels and splits
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import numpy as np

from radweave.base.errors import InputError
from radweave.base.hashes import sha256_json
from radweave.base.json_files import read_json, write_json
from radweave.base.provenance import code_hash
from radweave.data.cache.images import PixelCache
from radweave.data.dataset import Dataset
from radweave.data.leaks.pictures import PictureIndex, flat_scan
from radweave.data.leaks.registration import SIDE

PAIRS: Final = (("val", "train"), ("test", "train"), ("test", "val"))
_COMPARING: Final = (
    "radweave.data.leaks.pictures",
    "radweave.data.leaks.registration",
    "radweave.data.leaks.near_copies",
)


def near_copies(dataset: Dataset, cache: PixelCache) -> list[str]:
    """One line for each two splits that share pictures; none where prepared images are smaller than ``SIDE``.

    What was found is kept beside the cache, so that only the first training on a data set compares.
    """
    rows = next(iter(cache.rows.values()), None)
    if rows is None or min(cache.pixels[rows].shape[-2:]) < SIDE:
        return []
    key = sha256_json([dataset.fingerprint(), cache.digest, code_hash(*_COMPARING)])
    place = dataset.path / ".cache" / "copies.json"
    with suppress(InputError, OSError, RecursionError):
        kept = read_json(place)
        if isinstance(kept, dict) and kept.get("key") == key and isinstance(kept.get("found"), list):
            return [str(line) for line in kept["found"]]
    found = _found(dataset, cache)
    with suppress(InputError, OSError):
        write_json(place, {"key": key, "found": found})
    return found


def _found(dataset: Dataset, cache: PixelCache) -> list[str]:
    index, patients = PictureIndex(), list[str]()
    for study in dataset.studies():
        for ref in study.images:
            if study.split is not None and ref.path in cache.rows:
                pixels = np.asarray(cache.pixels[cache.rows[ref.path]])
                flat = pixels.astype(np.float32) if pixels.ndim == 2 else flat_scan(pixels)
                index.add(len(patients), study.split, flat)
                patients.append(study.patient_id)
    weakest = index.least_likeness(lambda item: patients[item])
    lines = []
    for split, other in PAIRS:
        count = sum(1 for _ in index.pairs_across(split, other, weakest=weakest))
        if count:
            lines.append(
                f"{count} images of '{split}' seem to be changed copies of images of '{other}'; scores on them would be"
                " worthless: 'radweave data check' lists them"
            )
    return lines
