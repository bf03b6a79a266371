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
from jaxtyping import Float, Shaped
from torch import Tensor

from radweave.base.batch import Slice

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
    """How many items the global batch has, of which this rank has ``count``."""
    number = torch.tensor(count)
    if _current is not None:
        dist.all_reduce(number)
    return int(number)


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
