"""LoRA adapters through peft.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Literal

from pydantic import Field
from torch import nn

from radweave.base.config import Config, Width
from radweave.base.errors import InputError

MARK = "lora_"
"""Adapter parameters, and no others, have this in their name."""


class NoLoraConfig(Config):
    """No adapters."""

    kind: Literal["none"] = "none"

    def apply(self, model: nn.Module) -> nn.Module:
        return model


class LoraConfig(Config):
    """W + (alpha / rank) B A on the linear maps named ``targets``; None takes peft's choice for the architecture."""

    kind: Literal["lora"] = "lora"
    rank: Width = 16
    alpha: float = Field(default=16, gt=0)
    dropout: float = Field(default=0.1, ge=0, lt=1)
    targets: tuple[str, ...] | None = None

    def apply(self, model: nn.Module) -> nn.Module:
        """Put adapters into ``model``, in place; B starts at zero, so the output does not change.

        Adapters are float32 whatever the model is: steps of a small learning rate get lost in half precision.

        Raises:
            InputError: if no module has a target's name.
        """
        from peft import LoraConfig as PeftConfig
        from peft import inject_adapter_in_model

        config = PeftConfig(
            r=self.rank,
            lora_alpha=self.alpha,
            lora_dropout=self.dropout,
            target_modules=None if self.targets is None else list(self.targets),
        )
        try:
            adapted: nn.Module = inject_adapter_in_model(config, model)
        except ValueError as error:
            raise InputError(f"LoRA cannot be applied: {error}", field="lora.targets", got=self.targets) from None
        for name, parameter in adapted.named_parameters():
            if MARK in name and not parameter.is_meta:
                parameter.data = parameter.data.float()
        return adapted


LoraSetting = Annotated[NoLoraConfig | LoraConfig, Field(discriminator="kind")]


def adapt(network: nn.Module, lora: NoLoraConfig | LoraConfig) -> nn.Module:
    """Put adapters onto all linear maps of a network, or all convolutions where it has none, unless targets are named.

    Raises:
        InputError: if no module has a target's name.
    """
    if not isinstance(lora, LoraConfig) or lora.targets is not None:
        return lora.apply(network)
    maps = _named(network, nn.Linear) or _named(network, nn.Conv2d, nn.Conv3d)
    return lora.model_copy(update={"targets": maps}).apply(network)


def _named(network: nn.Module, *kinds: type[nn.Module]) -> tuple[str, ...]:
    return tuple(name for name, part in network.named_modules() if isinstance(part, kinds))


def has_lora(model: nn.Module) -> bool:
    """Whether a module holds adapters."""
    return any(MARK in name for name, _ in model.named_parameters())


def says_nothing(model: nn.Module) -> bool:
    """Whether a module has adapters and all add exactly 0, as fresh ones do: what computes without them is the same."""
    adapters = {name: value for name, value in model.named_parameters() if MARK in name}
    last = [value for name, value in adapters.items() if "lora_B" in name]
    # Adapters of another kind than a product B A begin otherwise.
    return 0 < len(last) == len(adapters) - len(last) and not any(bool(value.detach().any()) for value in last)


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """The model as it was before it got adapters; what trains, and how, is not touched."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    before = [layer.disable_adapters for layer in layers]
    # Not peft's enable_adapters: that freezes adapters and thaws all of them, and FSDP remembers who was frozen when it
    # first gathered them.
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer, was_off in zip(layers, before, strict=True):
            layer._disable_adapters = was_off
