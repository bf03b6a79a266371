"""A view of training studies that were made here, for what is fitted to one without any training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from radweave.core.study import Study
from radweave.data.loader import Example
from radweave.methods.model import TrainingView

SIZE = 32


def made_view(
    patients: Sequence[str], states: Sequence[Sequence[int]], *, seed: int = 0, brightness: Sequence[int] = ()
) -> TrainingView:
    """A frontal image of smooth noise for each study, and its label states; ``brightness`` is added to the images."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 120, (len(patients), 4, 4)).astype(np.uint8)
    pixels = coarse.repeat(SIZE // 4, axis=1).repeat(SIZE // 4, axis=2)
    for row, more in enumerate(brightness):
        pixels[row] += np.uint8(more)
    examples = tuple(
        Example(
            f"s{row}", patient, pixels, (row,), (1,), token_ids=(5, 6, 2), class_states=tuple(states[row]),
            report=f"Report number {row}.",
        )
        for row, patient in enumerate(patients)
    )  # fmt: skip
    studies = tuple(Study(study_id=one.study_id, patient_id=one.patient_id, split="train") for one in examples)
    classes = tuple(f"c{number}" for number in range(len(states[0])))
    return TrainingView(studies, examples, classes, pad_id=0, seed=0)
