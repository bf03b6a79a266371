"""torch.compile for the networks of a stage: in updates alone, the same losses, a plain word where it cannot be."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from radweave.core.batch import Batch
from radweave.core.errors import InputError
from radweave.engine.distributed import Ranks
from radweave.engine.loop import CompiledNetworks, Watch, refuse_no_compiler
from radweave.nn.language_model import LlamaConfig
from tests.engine.short_stage import short_stage

WIDTH = 16


class Model(nn.Module):
    """An encoder and a language model that writes what three numbers say."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Linear(3, WIDTH)
        sizes = LlamaConfig(hidden_size=WIDTH, num_layers=1, num_heads=2)
        self.language_model = sizes.build(vocab_size=20, bos_id=1, eos_id=2, pad_id=0)

    def loss(self, batch: Batch, terms: Sequence[str]) -> dict[str, Tensor]:
        assert batch.pixel_values is not None
        assert batch.input_ids is not None
        mask = torch.ones(batch.pixel_values.shape[:2], dtype=torch.bool)
        prefix = self.encoder(batch.pixel_values)
        return {"report": self.language_model.loss(prefix, mask, batch.input_ids, batch.input_ids)}


def batch_of(step: int) -> Batch:
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(3, 20, (4, 5), generator=generator)
    names = list("abcd")
    return Batch(names, names, pixel_values=torch.randn(4, 2, 3, generator=generator), input_ids=ids)


class Batches:
    steps_per_epoch = 3

    def epoch(self, epoch: int = 0, first_step: int = 0) -> Iterator[Batch]:
        yield from map(batch_of, range(first_step, self.steps_per_epoch))


def trained(folder: Path, which: str, validate: Callable[[Model], None] = lambda model: None) -> list[float]:
    """The losses of three updates, and then one validation."""
    folder.mkdir()
    model, losses = Model(), list[float]()
    stage = {"finetune": {"encoder": "full", "language_model": "full"}, "losses": {"report": 1.0}, "epochs": 1}

    def figures() -> dict[str, float]:
        validate(model)
        return {"loss": float(model.loss(batch_of(9), ("report",))["report"].detach())}

    watch = Watch(step=lambda step, total, figures: losses.append(figures["loss"]))
    config = {**stage, "select": "last", "compiled": which}
    short_stage(model, config, Batches(), folder, validate=figures, watch=watch).run()
    return losses


@pytest.mark.parametrize(("which", "parts"), [("nothing", 0), ("encoder", 1), ("networks", 2)])
def test_networks_are_compiled_in_updates_alone(
    which: str, parts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(1)
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(torch, "compile", compiled)
    before: list[int] = []
    losses = trained(tmp_path / which, which, lambda model: before.append(len(calls)))
    assert len(calls) == 3 * parts
    assert before == [3 * parts]
    assert losses == trained(tmp_path / "plain", "nothing")


def test_compiling_keeps_the_names_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function: function)
    model = Model()
    names = list(model.state_dict())
    with CompiledNetworks.of(model, "networks").in_use():  # type: ignore[arg-type]
        assert list(model.state_dict()) == names


def test_a_machine_without_a_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(function: Any) -> Any:
        raise RuntimeError("No working C++ compiler found in\n('g++',)")

    monkeypatch.setattr(torch, "compile", fails)
    with pytest.raises(InputError, match="cannot compile on this machine") as caught:
        refuse_no_compiler(torch.device("cpu"))
    assert caught.value.field == "compiled"
    assert caught.value.got == "No working C++ compiler found in ('g++',)"


def test_sharded_networks_are_not_compiled(tmp_path: Path) -> None:
    stage = {"finetune": {"encoder": "full"}, "losses": {"report": 1.0}, "compiled": "encoder"}
    trainer = short_stage(Model(), stage, Batches(), tmp_path, ranks=Ranks(0, 2), parallel="fsdp")
    with pytest.raises(InputError, match=r"stages\.report\.compiled"):
        trainer._refuse_sharded()


@pytest.mark.slow
def test_compiled_networks_learn_like_uncompiled_ones(tmp_path: Path) -> None:
    """By torch's own compiler, where there is one."""
    try:
        refuse_no_compiler(torch.device("cpu"))
    except InputError as error:
        pytest.skip(str(error))
    plain = trained(tmp_path / "plain", "nothing")
    compiled = trained(tmp_path / "compiled", "networks")
    assert all(map(math.isfinite, compiled))
    # Fused kernels round otherwise; AdamW's first steps magnify that.
    assert compiled == pytest.approx(plain, rel=1e-4)
