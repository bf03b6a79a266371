"""A stage that trains a part without its adapters does not compute adapters that add nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import radweave.engine.loop as loop
from radweave.core.batch import Batch
from radweave.nn.language_model import LlamaConfig, LoraConfig, says_nothing
from tests.engine.short_stage import short_stage

STEPS = 4


class Writer(nn.Module):
    """A language model with adapters that drop out, and how often one of them was computed."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        lora = LoraConfig(rank=2, dropout=0.5, targets=("q_proj", "down_proj"))
        sizes = LlamaConfig(hidden_size=16, num_layers=1, num_heads=2, token_dropout=0.3, lora=lora)
        self.language_model = sizes.build(vocab_size=20, bos_id=1, eos_id=2, pad_id=0)
        self.computed = 0
        for name, module in self.named_modules():
            if name.endswith("lora_A.default"):
                module.register_forward_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.computed += 1

    def loss(self, batch: Batch, terms: Sequence[str]) -> dict[str, Tensor]:
        assert batch.input_ids is not None
        return {"text": self.language_model.text_loss(batch.input_ids, batch.input_ids)}


class Batches:
    steps_per_epoch = STEPS

    def epoch(self, epoch: int = 0, first_step: int = 0) -> Iterator[Batch]:
        for step in range(first_step, STEPS):
            ids = torch.randint(3, 20, (4, 6), generator=torch.Generator().manual_seed(step))
            yield Batch(list("abcd"), list("abcd"), input_ids=ids)


def trained(model: Writer, folder: Path, how: str) -> list[float]:
    folder.mkdir()
    losses: list[float] = []
    stage = {"finetune": {"language_model": how}, "losses": {"text": 1.0}, "epochs": 1, "select": "last"}
    watch = loop.Watch(step=lambda step, total, figures: losses.append(figures["loss"]))
    short_stage(model, stage, Batches(), folder, name="language", watch=watch).run()
    return losses


def test_fresh_adapters_are_left_out_and_the_losses_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without, computed = Writer(), Writer()
    skipped = trained(without, tmp_path / "without", "base")
    monkeypatch.setattr(loop, "says_nothing", lambda part: False)
    computed_losses = trained(computed, tmp_path / "computed", "base")
    assert (without.computed, computed.computed) == (0, 2 * STEPS)
    assert skipped == computed_losses
    for name, value in computed.state_dict().items():
        torch.testing.assert_close(without.state_dict()[name], value, atol=0, rtol=0)


def test_adapters_that_train_or_have_learned_are_computed(tmp_path: Path) -> None:
    model = Writer()
    trained(model, tmp_path / "lora", "lora")
    assert model.computed == 2 * STEPS
    assert not says_nothing(model)
    trained(model, tmp_path / "base", "base")
    assert model.computed == 4 * STEPS


def test_a_model_without_adapters_is_not_one_with_silent_adapters() -> None:
    assert says_nothing(Writer())
    assert not says_nothing(nn.Linear(2, 2))
