"""The fitted test in a run folder: ``familiarity.json`` and, where it judges, ``familiarity.safetensors``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from radweave.base.errors import InputError
from radweave.base.json_files import read_json, write_json
from radweave.base.storage import write_folder
from radweave.data.familiarity.descriptor import VERSION
from radweave.data.familiarity.model import Familiarity

FACTS, ARRAYS = "familiarity.json", "familiarity.safetensors"
_SHAPES = {
    "shift": "D", "scale": "D", "axes": "DK", "spread": "K", "rest": "2", "groups": "GK", "whitening": "KK",
    "weights": "W", "bias": "1", "middles": "2", "units": "2",
}  # fmt: skip


def save_familiarity(test: Familiarity, folder: Path) -> None:
    """Write the folder anew, whole or not at all."""
    with write_folder(folder, overwrite=True) as partial:
        write_json(partial / FACTS, {**test.facts, "reason": test.reason})
        if test.reason is None:
            save_file(dict(sorted(test.arrays.items())), partial / ARRAYS)


def load_familiarity(folder: Path) -> Familiarity | None:
    """Read what ``save_familiarity`` wrote; None where a run has no such test (it is older than the test).

    Raises:
        InputError: if a file is damaged, or was made by another version.
    """
    if not (folder / FACTS).is_file():
        return None
    facts = read_json(folder / FACTS)
    reason = facts.pop("reason", None) if isinstance(facts, dict) else None
    if isinstance(facts, dict) and isinstance(reason, str):
        return Familiarity({}, facts, reason)
    try:
        arrays = load_file(folder / ARRAYS)
        _check(arrays)
        float(facts["doubt_below"]), float(facts["refuse_below"])
    except Exception as error:
        raise InputError("cannot be read", file=folder / ARRAYS, got=type(error).__name__) from None
    if facts.get("descriptor") != VERSION:
        raise InputError("was fitted by another version", file=folder / FACTS, field="descriptor", expected=VERSION)
    return Familiarity(arrays, facts)


def _check(arrays: dict[str, np.ndarray]) -> None:
    """Refuse arrays that are missing, do not fit together or are not finite, before anything is computed with them."""
    sizes = {"1": 1, "2": 2, "W": 2 * arrays["axes"].shape[1] + 2}
    for name, letters in _SHAPES.items():
        shape = arrays[name].shape
        if len(shape) != len(letters) or not np.isfinite(arrays[name]).all():
            raise ValueError(name)
        for letter, size in zip(letters, shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                raise ValueError(name)
