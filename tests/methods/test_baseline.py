"""The baseline's own choices: views one after the other, or averaged."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from radweave.core.batch import Batch
from radweave.core.ontology import CHEXPERT14
from radweave.methods import resolve
from radweave.methods.baseline.model import BaselineModel, Forward
from radweave.methods.experiment import BuildContext
from radweave.nn.connector import connect_views
from tests.toys import TOY_OVERRIDES, TOY_REPORTS, TOY_SIZES


@pytest.fixture(scope="module")
def model() -> BaselineModel:
    experiment = resolve("baseline", "tiny", [*TOY_OVERRIDES, *TOY_SIZES["baseline"], "model.views=average"])
    tokenizer = experiment.data.tokenizer.build(list(TOY_REPORTS.values()) * 4)
    built: BaselineModel = experiment.model.build(BuildContext(tokenizer, experiment.data.image_size, CHEXPERT14))
    return built.eval()


@torch.no_grad()
def test_the_average_is_over_present_views(model: BaselineModel) -> None:
    """A study of one view beside one of two is what it is alone; that of two is the mean of its projected views."""
    pixels = torch.rand(2, 2, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    mask, ids = torch.tensor([[True, False], [True, True]]), torch.tensor([[1, 0], [1, 2]])
    pixels[0, 1] = 0.0
    both = Batch(["a", "b"], ["p", "q"], pixel_values=pixels, view_mask=mask, view_ids=ids)
    alone = replace(
        both,
        study_ids=["a"],
        patient_ids=["p"],
        pixel_values=pixels[:1, :1],
        view_mask=mask[:1, :1],
        view_ids=ids[:1, :1],
    )
    together, present = Forward(model, both).prefix
    by_itself, all_there = Forward(model, alone).prefix
    torch.testing.assert_close(together[:1], by_itself)
    assert bool(present.all())
    assert present.shape[1] == all_there.shape[1]
    hidden, _ = connect_views(model.connector, Forward(model, both).views)
    mean = hidden[1].unflatten(0, (2, -1)).mean(0)
    gap = torch.cdist(mean, together[1]).amin(1)
    torch.testing.assert_close(gap, torch.zeros_like(gap), atol=1e-4, rtol=0)
