"""What the model writes of a few validation studies after each epoch, for those who watch a training."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from radweave.train.loop import Watch

if TYPE_CHECKING:
    from radweave.runs.stages import Training

NUM_SAMPLES = 4
"""Validation studies whose drafts are shown after each epoch."""


def with_samples(training: Training, name: str, watch: Watch) -> Watch:
    """After each epoch of the stage that writes reports, show some to those who watch."""
    show = training.watch.samples
    if show is None or not training.ranks.is_first or name != list(training.experiment.named_stages())[-1]:
        return watch
    examples = training.splits["val"].of(training.last_stage.mixture).examples[:NUM_SAMPLES]

    def epoch(number: int, figures: dict[str, float | None]) -> None:
        watch.epoch(number, figures)
        drafts = [draft.text for draft in training.drafter.drafts(examples)]
        show(name, number + 1, [(draft, example.report or "") for draft, example in zip(drafts, examples, strict=True)])

    return replace(watch, epoch=epoch)
