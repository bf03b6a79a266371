"""torch.compile for the networks of a stage, in its updates alone.

Validation, memories and reports compute as they do without, so that the option changes no figure but the losses of the
updates, by the rounding of kernels that were fused otherwise. Names of weights stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from radweave.base.errors import InputError
from radweave.contract.model import ReportModel, parts_of
from radweave.contract.stage import Compiled
from radweave.nn.encoder_decoder import CrossAttentionLanguageModel
from radweave.nn.language_model import CausalLanguageModel

Writers = CausalLanguageModel | CrossAttentionLanguageModel


def networks(model: ReportModel, which: Compiled) -> list[nn.Module]:
    """What is compiled: the vision encoder, or that and the language models; the Python between them is not."""
    if which == "nothing":
        return []
    writers = [part for part in parts_of(model).values() if isinstance(part, Writers)]
    return [model.encoder, *(writer.model for writer in writers if which == "networks")]


def refuse_no_compiler(device: torch.device) -> None:
    """Find out on the smallest of functions whether torch can compile here: a CPU needs a C++ compiler, CUDA Triton.

    Raises:
        InputError: with what torch says, for the field ``compiled`` of a stage.
    """
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.zeros(2, device=device))
    except Exception as error:  # whatever is missing, it is of this machine and not of this code
        said = " ".join(str(error).split())[:200]
        reason, needed = "torch cannot compile on this machine", "a C++ compiler, on a GPU Triton; or nothing"
        raise InputError(reason, field="compiled", got=said, expected=needed) from None


@dataclass(frozen=True, slots=True)
class CompiledNetworks:
    """Networks and what torch makes of them; the first pass through each takes as long as the compiler does."""

    calls: tuple[tuple[nn.Module, Callable[..., Any]], ...] = ()

    @classmethod
    def of(cls, model: ReportModel, which: Compiled) -> CompiledNetworks:
        """Those of a model."""
        return cls(tuple((network, torch.compile(network._call_impl)) for network in networks(model, which)))

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Within the block the networks compute as compiled."""
        for network, call in self.calls:
            network._compiled_call_impl = call
        try:
            yield
        finally:
            for network, _ in self.calls:
                network._compiled_call_impl = None
