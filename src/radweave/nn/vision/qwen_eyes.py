"""The vision tower of Qwen-VL, which takes patches in an order of its own, as a model that takes images.

Source: Wang et al., "Qwen2-VL", arXiv:2409.12191; Bai et al., "Qwen2.5-VL", arXiv:2502.13923. The order of the patches
is that of transformers' image processor: squares of patches that become one token stand together. A still image is a
video of ``temporal_patch_size`` equal frames. The tokens are those that its language model would get.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from radweave.base.errors import InputError

_CLASSES: Final = {
    "qwen2_vl_vision": ("qwen2_vl", "Qwen2VisionTransformerPretrainedModel"),
    "qwen2_5_vl_vision": ("qwen2_5_vl", "Qwen2_5_VisionTransformerPretrainedModel"),
    "qwen3_vl_vision": ("qwen3_vl", "Qwen3VLVisionModel"),
}


def tower_class(model_type: str) -> Any:
    """The class of a tower by the ``model_type`` of its configuration; None for any other model."""
    if model_type not in _CLASSES:
        return None
    family, name = _CLASSES[model_type]
    return getattr(import_module(f"transformers.models.{family}.modeling_{family}"), name)


@dataclass(frozen=True, slots=True)
class Tokens:
    """Merged tokens (n, rows * columns, dim), row by row, under the name that transformers' models give theirs."""

    last_hidden_state: Tensor


class QwenEyes(nn.Module):
    """Images (n, 3, h, w) to tokens of ``spatial_merge_size`` x ``spatial_merge_size`` patches."""

    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self.tower = tower

    @property
    def config(self) -> Any:
        """The tower's transformers configuration."""
        return self.tower.config

    def forward(self, pixel_values: Float[Tensor, "n c h w"]) -> Tokens:
        """Encode images.

        Raises:
            InputError: if a side is no multiple of a token's.
        """
        merge, patch = int(self.config.spatial_merge_size), int(self.config.patch_size)
        step = merge * patch
        count, channels, *size = pixel_values.shape
        if any(side % step for side in size):
            raise InputError(f"not a multiple of {step} pixels", field="data.image_size", got=size[0])
        rows, columns = (side // step for side in size)
        frames = pixel_values.unsqueeze(2).expand(-1, -1, int(self.config.temporal_patch_size), -1, -1)
        cells = frames.reshape(count, channels, -1, rows, merge, patch, columns, merge, patch)
        # A patch's numbers are (channel, frame, row, column); patches stand by token, then by their place in it.
        patches = cells.permute(0, 3, 6, 4, 7, 1, 2, 5, 8).flatten(5).flatten(0, 4)
        # Sizes stay on the CPU: the tower reads them as numbers, and orders its windows by them.
        with torch.device("cpu"):
            grids = torch.tensor([[1, rows * merge, columns * merge]]).expand(count, -1)
            places = _places(rows, columns, merge).repeat(count, 1).to(pixel_values.device)
            out = self.tower(patches, grid_thw=grids, position_ids=places).pooler_output
        return Tokens(out.reshape(count, rows * columns, -1))


def _places(rows: int, columns: int, merge: int) -> Tensor:
    """Row and column of every patch of an image, in the order in which they stand."""
    row, column = torch.meshgrid(torch.arange(rows * merge), torch.arange(columns * merge), indexing="ij")
    both = torch.stack([row, column], dim=-1).reshape(rows, merge, columns, merge, 2)
    return both.transpose(1, 2).reshape(-1, 2)
