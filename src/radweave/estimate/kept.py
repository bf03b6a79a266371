"""What a forward pass keeps for the backward pass, counted on tensors without numbers.

The pass runs with torch's fake tensors: shapes, types and the choice of kernels are real, memory is not. What autograd
holds is then counted and not guessed from a formula, for every architecture, mixed precision and adapters alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from radweave.contract.experiment import DataConfig
from radweave.nn.encoder_decoder import CrossAttentionLanguageModel
from radweave.nn.language_model import CausalLanguageModel

UNCOUNTABLE = (DataDependentOutputException, DynamicOutputShapeException)
"""What a pass raises whose shapes hang on numbers."""


def kept_bytes(part: nn.Module, run: Callable[[], Tensor], *, half: bool) -> int:
    """Bytes of the tensors that autograd keeps after ``run``; weights and what shares their memory are not counted.

    Args:
        part: the module on the meta device, whose weights train as they say.
        run: a forward pass through the part that makes its own inputs; it runs without numbers.
        half: whether the pass is in mixed precision, as a stage with ``precision=bfloat16``.
    """
    storages: dict[int, Any] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage
        return tensor

    with FakeTensorMode():
        _give_fake_weights(part)
        own = {tensor.untyped_storage()._cdata for tensor in (*part.parameters(), *part.buffers())}
        hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept)
        with hooks, torch.autocast("cpu", torch.bfloat16, enabled=half):
            end = run()
        total = sum(storage.nbytes() for key, storage in storages.items() if key not in own)
        del end
    return int(total)


def most_kept(part: nn.Module, run: Callable[[], Tensor], *, half: bool) -> int:
    """The same at its greatest: with gradient checkpointing the backward pass computes one layer again and keeps it."""
    kept = kept_bytes(part, run, half=half)
    models: list[Any] = [module for module in part.modules() if hasattr(module, "gradient_checkpointing_disable")]
    # Not the property that says so of a model: its name changes between versions of transformers, which warn of it.
    whole = [model for model in models if any(getattr(one, "gradient_checkpointing", False) for one in model.modules())]
    if not whole:
        return kept
    shaped: Any = part
    config = shaped.architecture
    layers = getattr(config, "num_hidden_layers", None) or getattr(config, "depth", None) or sum(config.depths)
    for model in whole:
        model.gradient_checkpointing_disable()
    return kept + (kept_bytes(part, run, half=half) - kept) // int(layers)


def vision_pass(encoder: nn.Module, data: DataConfig, batch: int) -> Callable[[], Tensor]:
    """A pass of the vision encoder over the images of a batch, each study with all the views it may have."""
    volume = data.ct.size
    shape = (batch * data.max_views, 1, data.image_size, data.image_size) if volume is None else (batch, 1, *volume)

    def run() -> Tensor:
        tokens: Tensor = encoder(torch.zeros(shape)).tokens
        return tokens

    return run


def language_pass(
    part: CausalLanguageModel | CrossAttentionLanguageModel, batch: int, prompt: int, report: int
) -> Callable[[], Tensor]:
    """The loss of reports of full length, after a prompt through which a gradient flows on."""

    def run() -> Tensor:
        ids = torch.zeros(batch, report, dtype=torch.long)
        read = torch.zeros(batch, prompt, part.width, dtype=part.dtype, requires_grad=True)
        there = torch.ones(batch, prompt, dtype=torch.bool)
        if isinstance(part, CausalLanguageModel):
            return part.loss(read, there, ids, ids)
        return part.loss(read, there, None, None, ids, ids)

    return run


def _give_fake_weights(part: nn.Module) -> None:
    """Put fake tensors in the place of weights and buffers; those that are shared stay shared."""
    made: dict[int, Tensor] = {}

    def fake(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            new = torch.empty(tensor.shape, dtype=tensor.dtype)
            made[id(tensor)] = nn.Parameter(new, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else new
        return made[id(tensor)]

    for module in part.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is not None:
                    table[name] = fake(tensor)  # type: ignore[assignment]
