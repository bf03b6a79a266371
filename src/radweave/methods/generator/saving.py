"""A model of a run in the layouts of published ones: a whole checkpoint, or adapters for peft."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from radweave.core.errors import InputError
from radweave.core.json_files import write_json
from radweave.methods.generator.network import Network, Projector
from radweave.nn.language_model import MARK

_SHARD = "5GB"
_BEFORE = "base_model.model."
"""Prefix of every name in a file of peft."""


def save_merged(network: Network, folder: Path) -> None:
    """Write the whole model with its processor. Adapters become a part of the weights, here and in ``network``.

    W + (alpha / rank) B A, in the precision of W.
    """
    from transformers import GenerationConfig

    model, tokenizer = network.model, network.tokenizer
    network.set_singles()
    _merge(model)
    model.generation_config = GenerationConfig(
        eos_token_id=list(network.ends), bos_token_id=tokenizer.bos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    network.checkpoint.save_pretrained(str(folder))
    model.save_pretrained(str(folder), max_shard_size=_SHARD)


def save_adapters(network: Network, projector: Projector, folder: Path, *, base: str, whole: Collection[str]) -> None:
    """Write the adapters in peft's layout; a projector that trained as a whole lies among them (``modules_to_save``).

    Args:
        network: the model.
        projector: its projector.
        folder: the folder to write.
        base: name of the checkpoint that the adapters belong to.
        whole: names of the parts that trained as a whole.

    Raises:
        InputError: if there are no adapters, or another part trained as a whole.
    """
    from peft import LoraConfig
    from safetensors.torch import save_file

    for name in ("vision_encoder", "language_model"):
        if name in whole:
            raise InputError(
                "this part trained as a whole: adapters alone are not the model", field=name, expected="--as merged"
            )
    names = list(projector.names.values()) if "connector" in whole else []
    saved = tuple(_single_modules(network.model, names))
    layers = {name: layer for name, layer in _adapted(network.model) if not _is_below(name, saved)}
    if not layers:
        raise InputError("the run has no adapters", expected="--as merged")
    if any(isinstance(getattr(projector, own), nn.Parameter) for own, name in projector.names.items() if name in names):
        raise InputError(
            "it trained as a whole and has weights outside of any module, which peft does not save",
            field="connector",
            expected="--as merged",
        )
    _merge(network.model, saved)
    ranks = {name: int(layer.r["default"]) for name, layer in layers.items()}
    alphas = {name: layer.lora_alpha["default"] for name, layer in layers.items()}
    first = next(iter(layers))
    config = LoraConfig(
        r=ranks[first],
        lora_alpha=alphas[first],
        target_modules=list(layers),
        rank_pattern={name: rank for name, rank in ranks.items() if rank != ranks[first]},
        alpha_pattern={name: alpha for name, alpha in alphas.items() if alpha != alphas[first]},
        modules_to_save=list(saved) or None,
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
        inference_mode=True,
    )
    values = {name: sorted(value) if isinstance(value, set) else value for name, value in config.to_dict().items()}
    write_json(folder / "adapter_config.json", values)
    save_file(dict(_tensors(network.model, saved)), str(folder / "adapter_model.safetensors"), {"format": "pt"})


def _single_modules(model: nn.Module, names: Iterable[str]) -> Iterator[str]:
    """Names of modules, those of a list's members in place of its own: peft saves no list."""
    for name in names:
        above, _, last = name.rpartition(".")
        module = getattr(model.get_submodule(above), last)
        if isinstance(module, nn.ModuleList):
            yield from _single_modules(model, (f"{name}.{number}" for number in range(len(module))))
        else:
            yield name


def _tensors(model: nn.Module, saved: tuple[str, ...]) -> Iterator[tuple[str, Tensor]]:
    """Adapters, and the weights of modules that are saved whole, under peft's names."""
    for name, value in model.state_dict().items():
        if MARK in name or _is_below(name, saved):
            yield _BEFORE + re.sub(r"\.default(?=\.|$)", "", name), value.contiguous()


def _adapted(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Modules with adapters, by name."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, module in model.named_modules():
        if isinstance(module, BaseTunerLayer):
            yield name, module


def _is_below(name: str, modules: tuple[str, ...]) -> bool:
    """True for the name of one of the modules, or of anything in one."""
    return any(name == one or name.startswith(f"{one}.") for one in modules)


def _merge(model: nn.Module, below: tuple[str, ...] | None = None) -> None:
    """Replace modules with adapters by their own with the adapters added, everywhere or below some modules."""
    for name, layer in list(_adapted(model)):
        if below is None or _is_below(name, below):
            layer.merge()
            above, _, last = name.rpartition(".")
            setattr(model.get_submodule(above), last, layer.get_base_layer())
