"""A finished run that goes on: ``radweave train --resume RUN stages.report.epochs=20``.

One stage gets more epochs or updates, or more patience; a stage that has made no update, such as that of rewards, any
options. It goes on from the run's last checkpoint, in a folder aside that replaces the run when it is finished. The
weights are the bits of a run that was as long from the start where no update of the first run depends on the length;
else sentences on the card say what differs.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from radweave.core.errors import InputError
from radweave.core.json_files import read_json_object, write_json
from radweave.core.storage import write_folder
from radweave.engine.checkpoint import OTHER_RUN
from radweave.engine.run_folder import RunCard, StageFigures, leaves
from radweave.methods.experiment import Experiment
from radweave.methods.stage import StageConfig

LENGTHS = ("epochs", "max_steps", "patience")
"""The fields of a stage that say how long it is."""
WEIGHTS_ALONE = "'radweave train METHOD DATA --from RUN', which takes its weights"


@dataclass(frozen=True, slots=True)
class Lengthening:
    """A stage of a finished ``run`` that gets longer; ``differences`` from a run that was as long from the start."""

    run: Path
    stage: str
    differences: tuple[str, ...]

    def bring_checkpoints(self, folder: Path, before: str, now: str) -> None:
        """Put the run's checkpoints into a training folder, all or none; large files are hard links where possible.

        Args:
            folder: the training folder.
            before: fingerprint of the finished run's training, without that of its pixels.
            now: fingerprint of the longer one.

        Raises:
            InputError: if the checkpoints are of another data set or version.
        """
        source = self.run / "checkpoints"
        with write_folder(folder / "checkpoints", overwrite=True) as partial:
            for path in sorted(source.glob("[!.]*/[!.]*/[!.]*")):
                target = partial / path.relative_to(source)
                target.parent.mkdir(parents=True, exist_ok=True)
                if path.name != "state.json":
                    _link(path, target)
                    continue
                state = read_json_object(path)
                own, dash, pixels = str(state.get("fingerprint")).partition("-")
                if own != before:
                    raise InputError(OTHER_RUN, file=path.parent, expected=WEIGHTS_ALONE)
                write_json(target, {**state, "fingerprint": f"{now}{dash}{pixels}"})
        if (self.run / "metrics.jsonl").is_file():
            shutil.copyfile(self.run / "metrics.jsonl", folder / "metrics.jsonl")


def link_files(run: Path, folder: Path) -> None:
    """Put the files of a run into the folder that is to replace it, as hard links where possible; but its own stay."""
    for path in sorted(path for path in run.rglob("*") if path.is_file()):
        target = folder / path.relative_to(run)
        if not target.exists() and path.name != ".lock":
            target.parent.mkdir(parents=True, exist_ok=True)
            _link(path, target)


def _link(path: Path, target: Path) -> None:
    # Files of runs are written aside and renamed, never in place, so that both names may share the bytes.
    try:
        os.link(path, target)
    except OSError:
        shutil.copyfile(path, target)


def lengthening(run: Path, card: RunCard, before: Experiment, experiment: Experiment) -> Lengthening | None:
    """The lengthening of a finished run to another experiment; None if they differ in more than one stage's length, or
    in more than the options of one stage that has made no update.

    Raises:
        InputError: for a stage that later ones were trained on, that would end at once, or without its last checkpoint.
    """
    own, wanted = (dict(leaves(one.model_dump(mode="json"), "")) for one in (before, experiment))
    differing = {name for name in {**own, **wanted} if own.get(name) != wanted.get(name)}
    steps = {name: card.trained_steps.get(name, 0) for name in experiment.named_stages()}
    names = [
        name
        for name, done in steps.items()
        if all(one.startswith(f"stages.{name}.") and (not done or one.split(".")[2] in LENGTHS) for one in differing)
    ]
    if len(names) != 1 or not differing:
        return None
    (name,) = names
    old, new, field = before.named_stages().get(name), experiment.named_stages()[name], f"stages.{name}"
    if old is not None and (new.epochs < old.epochs or _steps(new) < _steps(old)):
        raise InputError("a finished stage cannot be shortened", file=run, field=field, expected=WEIGHTS_ALONE)
    stages = list(steps)
    later = [other for other in stages[stages.index(name) + 1 :] if steps[other]]
    if later:
        raise InputError(
            "a later stage was trained on what this one left behind",
            file=run,
            field=field,
            got=", ".join(later),
            expected=f"the last stage that was trained, or {WEIGHTS_ALONE}",
        )
    trained = [other for other in stages[: stages.index(name) + 1] if steps[other]]
    if trained:
        last, done = trained[-1], steps[trained[-1]]
        if not (run / "checkpoints" / last / f"step-{done:08d}").is_dir():
            raise InputError(
                f"has no checkpoint of update {done} of stage '{last}' to go on from", file=run, field=field,
                expected=WEIGHTS_ALONE,
            )  # fmt: skip
    if old is None or not steps[name]:
        return Lengthening(run, name, ())
    _refuse_end(run, field, old, new, steps[name], card.validation[name])
    return Lengthening(run, name, tuple(_differences(name, old, new, steps[name], card.validation[name])))


def _steps(stage: StageConfig) -> float:
    return float("inf") if stage.max_steps is None else stage.max_steps


def _refuse_end(run: Path, field: str, old: StageConfig, new: StageConfig, done: int, figures: StageFigures) -> None:
    """Refuse a stage that would end where it ended: at its most updates, or for lack of patience."""
    if done >= _steps(new):
        raise InputError(
            "the stage has made its most updates",
            file=run,
            field=f"{field}.max_steps",
            got=done,
            expected="more, or null",
        )
    settled = len(figures.after_updates()) < old.epochs and done < _steps(old)
    if settled and new.patience is not None and new.patience <= (old.patience or 0):
        raise InputError(
            f"the stage ended without a better epoch for {old.patience}, and would end again",
            file=run,
            field=f"{field}.patience",
            got=new.patience,
            expected="more, or null",
        )


def _differences(name: str, old: StageConfig, new: StageConfig, done: int, figures: StageFigures) -> list[str]:
    """Sentences on the updates that a run of the new length would have made otherwise."""
    sentences = []
    lengths = (old.epochs, old.max_steps), (new.epochs, new.max_steps)
    if old.optimizer.final_ratio != 1 and done > old.optimizer.warmup_steps and lengths[0] != lengths[1]:
        sentences.append(
            f"stage '{name}' was lengthened after update {done}: until there the learning rate fell towards the end of"
            " a shorter stage (a constant rate, optimizer.final_ratio=1, has no such difference)"
        )
    steps = [int(row["step"] or 0) for row in figures.after_updates()]
    if done == old.max_steps and (len(steps) < 2 or done % steps[0]):
        sentences.append(
            f"stage '{name}' was lengthened after update {done}: its weights were validated there, within an epoch"
        )
    return sentences
