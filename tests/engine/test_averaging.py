"""The running average of weights against its formula."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from radweave.engine.checkpoint import load_average, save_checkpoint
from radweave.engine.loop import AveragedWeights


def test_the_average_follows_its_formula_and_swaps_with_the_weights() -> None:
    model = nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(1.0)
    average = AveragedWeights(model, 0.5)
    expected = 1.0
    for number, value in enumerate((3.0, -2.0, 7.0, 4.0, 9.0, 6.0, 5.0, 5.5, 0.0, 1.0)):
        model.weight.data.fill_(value)
        average.update(number)
        decay = min(0.5, (1 + number) / (10 + number))
        expected = decay * expected + (1 - decay) * value
    with average.in_place():
        torch.testing.assert_close(model.weight.item(), expected, atol=1e-6, rtol=0)
    assert model.weight.item() == 1.0
    restored = AveragedWeights(model, 0.5)
    restored.restore(average.tensors)
    restored.leave()
    torch.testing.assert_close(model.weight.item(), expected, atol=1e-6, rtol=0)


def test_frozen_weights_have_no_average() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    assert set(AveragedWeights(model, 0.9).tensors) == {"1.weight", "1.bias"}


def test_an_average_of_channels_last_weights_is_saved(tmp_path: Path) -> None:
    model = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    average = AveragedWeights(model, 0.9)
    save_checkpoint(tmp_path / "step", model, None, {}, average=average.tensors)
    assert torch.equal(load_average(tmp_path / "step")["weight"], model.weight)
