"""Convolutions over volumes that can be trusted in bfloat16 on a CPU."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Convolution3d(nn.Conv3d):
    """``nn.Conv3d``, which leaves autocast on a CPU where the grid is no longer than the kernel along some axis.

    There oneDNN (in torch 2.13, on processors with AVX512_BF16) computes the gradient of the weights from memory that
    it has not written, so that anything comes out, and at some sizes it writes past its buffer. Seen with a kernel of 3
    over 2 voxels and of 7 over 4 with a stride of 2; float32 and longer grids are right.
    """

    def forward(self, input: Float[Tensor, "n c d h w"]) -> Float[Tensor, "n c2 d2 h2 w2"]:
        if not (self._is_longer_than(input) and _is_cast(input)):
            return super().forward(input)
        with torch.autocast(input.device.type, enabled=False):
            return super().forward(input.float())

    def _is_longer_than(self, grid: Tensor) -> bool:
        return any(edge <= side for edge, side in zip(grid.shape[2:], self.kernel_size, strict=True))


def _is_cast(tensor: Tensor) -> bool:
    """Whether autocast would compute with it in half precision, and not on CUDA."""
    kind = tensor.device.type
    return kind != "cuda" and torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
