"""One batch over several processes: what means, contrasts and batch statistics must know of the other slices.

The convention. A step's global batch of N studies is cut into one slice per process (rank), n_r studies each. The
engine adds up the ranks' gradients of (n_r / N) * term_r, so a term that is a mean over studies needs nothing from this
module. A mean over anything else (report tokens, known labels) divides by the count of the *global* batch:
``mean_over_batch``. A term that compares studies with each other sees all of them: ``gather_batch``. In one process,
and outside a training step, all of it is the identity.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from radweave.core.batch import Slice

_current: Slice | None = None


@contextmanager
def one_slice_of(part: Slice | None) -> Iterator[None]:
    """Within it the model computes a slice of a global batch; all ranks are inside together. None: a whole batch."""
    global _current
    before, _current = _current, part
    try:
        yield
    finally:
        _current = before


def current_slice() -> Slice | None:
    """The slice that is being computed; None where the batch is whole."""
    return _current


def mean_over_batch(total: Float[Tensor, ""], count: Tensor | int) -> Float[Tensor, ""]:
    """``total / count`` over the global batch, scaled so that the engine's weighted sum over ranks is that mean.

    It is 0 where nothing counts.

    Args:
        total: sum over this rank's items; the gradient flows through it.
        count: number of this rank's items.
    """
    number = torch.as_tensor(count, dtype=torch.float64, device=total.device).clone()
    share = 1.0
    if _current is not None:
        dist.all_reduce(number)
        share = _current.count / _current.total
    return total / (number.clamp(min=1) * share).to(total.dtype)


def count_over_batch(count: int) -> int:
    """The number of items of the global batch, of which this rank has ``count``."""
    number = torch.tensor(count)
    if _current is not None:
        dist.all_reduce(number)
    return int(number)


def of_first_rank(values: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
    """The first rank's values, on all ranks: random numbers that one process would have drawn."""
    if _current is not None:
        dist.broadcast(values, src=0)
    return values


def sum_over_ranks(values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Sum over the ranks; so is the gradient, because every rank's loss depends on every rank's values."""
    return values if _current is None else _SumOverRanks.apply(values)  # type: ignore[no-untyped-call]


def gather_batch(values: Shaped[Tensor, "batch ..."]) -> Shaped[Tensor, "global_batch ..."]:
    """The rows of all ranks, in the order of the global batch; ranks may hold different numbers of rows.

    The gradient of a row is the sum of what all ranks' losses say about it. Every rank that computes the same contrast
    over the gathered rows therefore ends with the gradient of one process that had the whole batch.
    """
    return values if _current is None else _GatherRows.apply(values)  # type: ignore[no-untyped-call]


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.detach().clone().contiguous()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = grads[0].clone().contiguous()
        dist.all_reduce(total)
        return total


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        is_bool = values.dtype == torch.bool  # not every backend carries it
        sent = values.detach().to(torch.uint8) if is_bool else values.detach()
        counts = torch.zeros(dist.get_world_size(), dtype=torch.long, device=values.device)
        counts[dist.get_rank()] = len(values)
        dist.all_reduce(counts)
        sizes: list[int] = counts.tolist()
        padded = sent.new_zeros(max(sizes), *sent.shape[1:])
        padded[: len(sent)] = sent
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        ctx.rows = slice(sum(sizes[: dist.get_rank()]), sum(sizes[: dist.get_rank() + 1]))
        rows = torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])
        return rows.bool() if is_bool else rows

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = grads[0].clone().contiguous()
        dist.all_reduce(total)
        return total[ctx.rows]


# Batch norm whose statistics are those of the global batch, so that many processes train as one does.
#
# torch.nn.SyncBatchNorm does the same on GPUs only, and weights every process alike; slices here may differ in size.


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


# Contrastive losses between two sets of embeddings, over the global batch when training is distributed.


def symmetric_info_nce(
    left: Float[Tensor, "batch dim"], right: Float[Tensor, "batch dim"], temperature: float | Tensor
) -> Float[Tensor, ""]:
    """Mean of the two directions of InfoNCE; row i of one side belongs to row i of the other.

        l = -1/(2B) sum_i [log softmax_j(a_i . b_j / tau)_i + log softmax_j(b_i . a_j / tau)_i]

    Both sides are brought to unit length. Over several processes the batch is the global one.
    Source: van den Oord et al., arXiv:1807.03748, Eq. 4; Radford et al., CLIP, Fig. 3.
    """
    left = gather_batch(F.normalize(left.float(), dim=-1))
    right = gather_batch(F.normalize(right.float(), dim=-1))
    logits = left @ right.T / temperature
    target = torch.arange(len(left), device=left.device)
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
