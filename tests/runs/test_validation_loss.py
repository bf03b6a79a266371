"""The loss over the validation split is a mean over studies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from radweave.base.batch import Batch
from radweave.data.cache.images import PixelCache
from radweave.data.dataset import Dataset
from radweave.data.examples import PreparedSplit
from radweave.data.loader import Example
from radweave.data.tokenizer import BpeTokenizerConfig
from radweave.methods import resolve
from radweave.runs.stages import Training, TrainingWatch, validate


class ByNumber(nn.Module):
    """The loss of study ``s7`` is 7."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def loss(self, batch: Batch, terms: Sequence[str]) -> dict[str, Tensor]:
        return {term: torch.tensor([float(name[1:]) for name in batch.study_ids]).mean() for term in terms}


@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 5, 7])
def test_a_last_batch_that_is_not_full_weighs_as_its_studies_do(
    toy_dataset: Dataset, tmp_path: Path, batch_size: int
) -> None:
    experiment = resolve("baseline", "tiny", [])
    tokenizer = BpeTokenizerConfig(vocab_size=300).build(["There is an opacity."] * 4)
    pixels = np.zeros((7, 8, 8), np.uint8)
    examples = [Example(f"s{number**2}", "p", pixels, (number,), (1,), (5,)) for number in range(7)]
    cache = PixelCache(pixels, {}, {})
    training = Training(
        experiment, toy_dataset, tmp_path, cache, tokenizer, (), ByNumber(), "f", TrainingWatch()
    )  # fmt: skip
    training.splits["val"] = PreparedSplit(examples)
    stage = experiment.named_stages()["report"]
    stage = stage.model_copy(update={"batch_size": batch_size, "losses": {"report": 2.0}, "select": "loss"})
    assert validate(training, stage)["loss"] == pytest.approx(2 * sum(number**2 for number in range(7)) / 7)
