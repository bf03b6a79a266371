"""The licences of the checkpoints that a run started from, kept in the run folder when it is trained.

RUN/licences/PART/LICENSE.txt

An export takes them from there: it reads no folder that a configuration names, since the configuration of a run may
come from somebody else.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from radweave.base.storage import write_folder
from radweave.contract.experiment import Experiment

FOLDER = "licences"
PATTERNS = ("LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*")
MOST_BYTES = 1 << 20
"""A larger file of such a name is something else."""


def weight_sources(experiment: Experiment) -> dict[str, str]:
    """Part of the experiment -> folder or name of the checkpoint that its weights or its tokenizer came from."""
    values = leaves(experiment.model_dump(mode="json"), "")
    return {
        path.removesuffix(".path"): value
        for path, value in values
        if path.endswith(".path") and isinstance(value, str) and value
    }


def keep_licences(experiment: Experiment, folder: Path) -> None:
    """Copy the licence files that lie in the local checkpoints of an experiment; no folder where there are none."""
    found = {part: _files(Path(source)) for part, source in weight_sources(experiment).items()}
    if not any(found.values()):
        return
    with write_folder(folder, overwrite=True) as partial:
        for part, paths in found.items():
            for path in paths:
                target = partial / _plain(part) / _plain(path.name)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)


def licences_of(names: Iterable[str]) -> dict[str, list[str]]:
    """Part -> its licence files, of the names of a run's files."""
    found: dict[str, list[str]] = {}
    for name in names:
        if name.startswith(f"{FOLDER}/") and name.count("/") == 2:
            found.setdefault(name.split("/")[1], []).append(name)
    return found


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every plain value of a record, with its path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}" if path else key)
    else:
        yield path, value


def _files(source: Path) -> list[Path]:
    places = {path for pattern in PATTERNS for path in source.glob(pattern) if _is_of(source, path)}
    return sorted(places)


def _is_of(source: Path, path: Path) -> bool:
    """Whether it is a small file of this checkpoint; the hub's cache links its files to its own ``blobs``."""
    real, folder = path.resolve(), source.resolve()
    inside = real.is_relative_to(folder)
    if folder.parent.name == "snapshots":
        inside = inside or real.is_relative_to(folder.parent.parent / "blobs")
    return inside and real.is_file() and real.stat().st_size <= MOST_BYTES


def _plain(name: str) -> str:
    return re.sub(r"[^\w.+-]", "_", name, flags=re.ASCII)
