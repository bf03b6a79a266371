"""The vision tower of an open_clip folder, put into a ViT of transformers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from torch import Tensor, nn

from radweave.nn.vision.weights import load_named, read_weights

TRUNK: Final = "visual.trunk."
_BLOCKS: Final = {
    "norm1": "layernorm_before",
    "norm2": "layernorm_after",
    "attn.proj": "attention.o_proj",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}
_ENDS: Final = {
    "cls_token": "embeddings.cls_token",
    "pos_embed": "embeddings.position_embeddings",
    "patch_embed.proj.weight": "embeddings.patch_embeddings.projection.weight",
    "patch_embed.proj.bias": "embeddings.patch_embeddings.projection.bias",
    "norm.weight": "layernorm.weight",
    "norm.bias": "layernorm.bias",
}


def load_trunk(shape: Any, file: Path) -> nn.Module:
    """A ViT with the weights that ``file`` has for its vision tower; the text tower and the projection are left aside.

    Raises:
        InputError: if the file is damaged, or its tower is not of this shape.
    """
    from transformers import ViTModel

    backbone: nn.Module = ViTModel(shape, add_pooling_layer=False)
    trunk = {name.removeprefix(TRUNK): tensor for name, tensor in read_weights(file).items() if name.startswith(TRUNK)}
    load_named(backbone, _renamed(trunk), file)
    return backbone


def _renamed(trunk: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by the names of transformers; timm keeps queries, keys and values of a block in one tensor."""
    named: dict[str, Tensor] = {}
    for name, tensor in trunk.items():
        match = re.fullmatch(r"blocks\.(\d+)\.(.+)\.(weight|bias)", name)
        if match is None:
            named[_ENDS.get(name, name)] = tensor
        elif match[2] == "attn.qkv" and len(tensor) % 3 == 0:
            for part, third in zip("qkv", tensor.chunk(3), strict=True):
                named[f"layers.{match[1]}.attention.{part}_proj.{match[3]}"] = third
        else:
            named[f"layers.{match[1]}.{_BLOCKS.get(match[2], match[2])}.{match[3]}"] = tensor
    return named
