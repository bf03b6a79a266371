"""Runs that were trained before are taken over, if they are the same in everything that decides them.

The same method, every field of the configuration, the seed, the data's fingerprint and the preparation of images; all
files as their hashes say, and a model that this version can open. Scores come along if they are of these weights, this
way of scoring and these predictions, else they are made anew. The state of the source code is not asked for: the tables
say where it differs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from radweave.ablate.one_run import Task, identity, same_scores, summary
from radweave.base.config import from_yaml
from radweave.base.errors import InputError
from radweave.base.json_files import read_json, write_json
from radweave.base.storage import write_folder
from radweave.data.dataset import Dataset
from radweave.evaluation import Options, evaluate_pairs, read_pairs
from radweave.labels import LABELER_OF, get_labeler
from radweave.runs.restore import restore

REUSED = "reused.json"
_LEFT_BEHIND = (".*", "checkpoints", "task.json", "log.txt", "failure.txt", REUSED)


@dataclass(slots=True)
class Reused:
    """How many runs were taken over, and why runs of the same method, seed and data were not."""

    taken: int = 0
    refused: list[str] = field(default_factory=list)


def take_over(tasks: Sequence[Task], dataset: Dataset, folders: Sequence[Path]) -> Reused:
    """Put finished runs found under ``folders`` where the tasks would be trained.

    Raises:
        InputError: if the run folders cannot be written.
    """
    known = _runs_under(folders)
    fingerprint = dataset.fingerprint()
    result = Reused()
    for task in tasks:
        if task.run or (task.path / "run.json").is_file() or (task.path / "checkpoints").is_dir():
            continue
        for folder in known.get((task.method, task.seed, fingerprint), ()):
            reason = _difference(folder, task)
            if reason is None:
                _copy(folder, task, dataset)
                result.taken += 1
                break
            result.refused.append(f"{task.method}, seed {task.seed}, {folder.parent.name}: {reason}")
    return result


def _runs_under(folders: Sequence[Path]) -> dict[tuple[str, int, str], list[Path]]:
    """(method, seed, data fingerprint) -> run folders."""
    found: dict[tuple[str, int, str], list[Path]] = {}
    for top in folders:
        for path in sorted(top.rglob("run.json")):
            try:
                card = read_json(path)
                key = (str(card["method"]), int(card["seed"]), str(card["dataset"]["fingerprint"]))
            except (InputError, KeyError, TypeError, ValueError):  # a file of that name that is something else
                continue
            found.setdefault(key, []).append(path.parent)
    return found


def _difference(folder: Path, task: Task) -> str | None:
    """Why a run is not the task's, or cannot be opened any more; None if it is."""
    experiment = task.experiment()
    try:
        found = from_yaml(type(experiment), folder / "config.yaml")
        if found != experiment:
            ours, theirs = experiment.model_dump(mode="json"), found.model_dump(mode="json")
            return "another configuration: " + ", ".join(_different(ours, theirs))
        run = restore(folder)
    except InputError as error:
        return error.reason
    return None if run.card.is_trained else "was not trained"


def _different(ours: object, theirs: object, place: str = "") -> list[str]:
    """The names of fields that differ."""
    if not isinstance(ours, dict) or not isinstance(theirs, dict):
        return [] if ours == theirs else [place]
    names = dict.fromkeys((*ours, *theirs))
    return [
        field for name in names for field in _different(ours.get(name), theirs.get(name), f"{place}.{name}".strip("."))
    ]


def _copy(folder: Path, task: Task, dataset: Dataset) -> None:
    with write_folder(task.path, overwrite=True) as partial:
        shutil.copytree(
            folder, partial, copy_function=_link, ignore=shutil.ignore_patterns(*_LEFT_BEHIND), dirs_exist_ok=True
        )
        write_json(partial / REUSED, {"from": folder.parent.name})
    path = task.path / "scores.json"
    if not path.is_file():
        return
    scores = read_json(path)
    ours = identity(task, task.experiment(), dataset)
    # The configuration was found equal field by field; the hash may be of a version with other fields.
    if {**scores.get("identity", {}), "config": ours["config"]} == ours and _are_of_the_predictions(
        task, dataset, scores
    ):
        write_json(path, {**scores, "identity": ours})
    else:
        path.unlink()


def _are_of_the_predictions(task: Task, dataset: Dataset, scores: dict[str, Any]) -> bool:
    labeler = get_labeler(LABELER_OF[dataset.card.modality])
    options = Options(meteor=False, floors=False, resamples=0)
    try:
        pairs = read_pairs(task.path / "predictions.jsonl", skip_invalid=True).pairs
        found = summary(evaluate_pairs(pairs, task.protocol, labeler=labeler, options=options))
    except InputError:  # no predictions, or none that can be read
        return False
    return same_scores(found, scores["metrics"])


def _link(source: str, destination: str) -> None:
    """A hard link where the file system can: files of a run are never changed in place, only replaced."""
    try:
        os.link(source, destination)
    except OSError:
        shutil.copyfile(source, destination)
