"""Batch norm whose statistics are those of the global batch, so that many processes train as one does.

torch.nn.SyncBatchNorm does the same on GPUs only, and weights every process alike; slices here may differ in size.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from radweave.nn.global_batch import current_slice, sum_over_ranks


class GlobalBatchNorm(_BatchNorm):
    """Batch norm over all ranks' slices; the usual one in evaluation and outside a slice.

        mean = sum x / n,   var = sum (x - mean)^2 / n     over the n = B * H * W places of all ranks

    The running variance is the unbiased one, as torch has it. Parameters, buffers and their names are those of the
    layer it stands for.
    """

    @classmethod
    def standing_for(cls, layer: _BatchNorm) -> GlobalBatchNorm:
        """A layer with the very parameters and buffers of ``layer``."""
        new = cls(layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats)
        new._parameters = layer._parameters
        new._buffers = layer._buffers
        new.train(layer.training)
        return new

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError(f"expected at least 2 axes, got {input.ndim}")

    def forward(self, input: Float[Tensor, "batch channels *places"]) -> Float[Tensor, "batch channels *places"]:
        """Normalise each channel."""
        if not self.training or current_slice() is None:
            return super().forward(input)
        self._check_input_dim(input)
        axes = [axis for axis in range(input.ndim) if axis != 1]
        shape = [1, -1] + [1] * (input.ndim - 2)
        values = input.float()
        number = values.new_tensor([values.numel() / values.shape[1]])
        sums = sum_over_ranks(torch.cat([values.sum(axes), number]))
        total = sums[-1].detach()
        mean = sums[:-1] / total
        centred = values - mean.view(shape)
        # A second pass for the squares: a difference of two large sums would lose digits.
        variance = sum_over_ranks(centred.square().sum(axes)) / total
        self._remember(mean.detach(), variance.detach() * total / (total - 1).clamp(min=1))
        out = centred * torch.rsqrt(variance.view(shape) + self.eps)
        if self.weight is not None:
            out = out * self.weight.view(shape) + self.bias.view(shape)
        return out.to(input.dtype)

    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        rate = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), rate)
        self.running_var.lerp_(variance.to(self.running_var.dtype), rate)


def share_batch_statistics(model: nn.Module) -> None:
    """Put a ``GlobalBatchNorm`` where the model has a batch norm; weights and their names stay."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, _BatchNorm) and not isinstance(child, GlobalBatchNorm):
                setattr(module, name, GlobalBatchNorm.standing_for(child))
