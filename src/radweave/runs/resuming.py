"""What ``--resume`` finds in a run's folder, and whether that was started with the same options and data."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from radweave.base.config import from_yaml
from radweave.base.errors import InputError
from radweave.contract.experiment import Experiment
from radweave.data.dataset import Dataset
from radweave.runs.folder import read_card
from radweave.runs.place import is_finished, training_folder

Found = Literal["finished", "other", "unfinished"]
"""The finished run that is asked for; a finished one of other options, to be replaced; one to go on with, or none."""


def found_by_resume(out: Path, experiment: Experiment, dataset: Dataset, *, overwrite: bool) -> Found:
    """What a training that resumes finds in ``out``; a dry run asks the same.

    Raises:
        InputError: if what is there has other options or data, and is not to be replaced.
    """
    if not is_finished(out):
        started = training_folder(out) / "config.yaml"
        if started.is_file():
            refuse_other_options(experiment, started)
        return "unfinished"
    if _is_of(out, experiment, dataset):
        return "finished"
    if not overwrite:
        raise InputError(
            "--resume: holds a finished run of other options or data; give --overwrite to replace it", file=out
        )
    return "other"


def refuse_other_options(experiment: Experiment, started: Path) -> None:
    """Refuse to go on with a training whose ``config.yaml`` (``started``) says something else.

    Raises:
        InputError: naming that file.
    """
    if from_yaml(type(experiment), started) != experiment:
        raise InputError("--resume needs the options the run was started with", file=started)


def _is_of(run: Path, experiment: Experiment, dataset: Dataset) -> bool:
    """Whether a finished run has this configuration and data."""
    card = read_card(run)
    same = from_yaml(type(experiment), run / "config.yaml") == experiment if card.method == experiment.method else False
    return same and card.dataset.fingerprint == dataset.fingerprint()
