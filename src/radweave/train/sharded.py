"""FSDP2: parameters, gradients and optimiser state cut into one shard per rank.

A copy of the model is sharded and trains; the model it was made from holds whole weights for evaluation, memories and
checkpoints, and is brought up to date before each of them. Checkpoints are therefore those of one process, name by
name. The price is the memory of one set of weights per rank; gradients and optimiser state, the larger part, are cut.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from radweave.base.batch import Batch, Slice
from radweave.base.errors import InputError
from radweave.contract.model import ReportModel
from radweave.train.distributed import Losses, StageLoss, cut_like, scaled, whole_tensor


class ShardedReplica:
    """A sharded copy of ``whole``. Scalars are not cut: each rank holds them."""

    def __init__(self, whole: ReportModel, weights: Mapping[str, float]) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        self.whole = whole
        self.model = copy.deepcopy(whole)
        for parameter in self.model.parameters():  # weights that lie channels last cannot be cut
            parameter.data = parameter.data.contiguous()
        self.size = dist.get_world_size()
        dtypes = sorted({str(parameter.dtype) for parameter in whole.parameters() if parameter.requires_grad})
        if len(dtypes) > 1:
            reason = "weights that train together are of one dtype when they are sharded; use --parallel ddp"
            raise InputError(reason, field="--parallel", got=", ".join(dtypes), expected="one dtype")
        mesh = init_device_mesh(next(whole.parameters()).device.type, (self.size,))
        scalars = {parameter for parameter in self.model.parameters() if parameter.ndim == 0}
        for block in _blocks(self.model):
            fully_shard(block, mesh=mesh, ignored_params=scalars)
        fully_shard(self.model, mesh=mesh, ignored_params=scalars)
        # The engine calls ``loss``: parameters are gathered for it as they would be for a forward pass.
        register_fsdp_forward_method(self.model, "loss")
        self.losses: Callable[[Batch], Losses] = StageLoss(self.model, weights)

    def backward(self, loss: Tensor, part: Slice | None) -> None:
        scaled(loss, part, self.size).backward()  # type: ignore[no-untyped-call]
        self._average_scalars()

    def _average_scalars(self) -> None:
        """The backward pass has averaged what is sharded; what is not comes here. One that no rank has stays away."""
        scalars = [p for p in self.model.parameters() if p.requires_grad and not isinstance(p, DTensor)]
        if not scalars:
            return
        table = torch.zeros(len(scalars), 2, dtype=torch.float64, device=scalars[0].device)
        for row, parameter in zip(table, scalars, strict=True):
            if parameter.grad is not None:
                row[0], row[1] = parameter.grad, 1
        dist.all_reduce(table)
        for (total, number), parameter in zip(table, scalars, strict=True):
            parameter.grad = (total / self.size).to(parameter.dtype) if number > 0 else None

    def clip_gradients(self, max_norm: float) -> float:
        grads = [p.grad for p in self.model.parameters() if p.requires_grad and p.grad is not None]
        cut = [grad.to_local() for grad in grads if isinstance(grad, DTensor)]
        kept = [grad for grad in grads if not isinstance(grad, DTensor)]
        squares = torch.tensor([sum(float(shard.double().square().sum()) for shard in cut)], dtype=torch.float64)
        dist.all_reduce(squares)
        norm = math.sqrt(float(squares) + sum(float(grad.double().square().sum()) for grad in kept))
        factor = max_norm / (norm + 1e-6)
        if factor < 1:
            for grad in (*cut, *kept):
                grad.mul_(factor)
        return norm

    @torch.no_grad()
    def collect(self) -> None:
        for target, source in self._pairs():
            target.copy_(whole_tensor(source))

    @torch.no_grad()
    def spread(self) -> None:
        for source, target in self._pairs():
            target.copy_(cut_like(source.detach(), target))

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from zip(self.whole.parameters(), self.model.parameters(), strict=True)
        yield from zip(self.whole.buffers(), self.model.buffers(), strict=True)


def _blocks(model: nn.Module) -> list[nn.Module]:
    """The layers that transformers says are not to be split; each is gathered only while it computes."""
    names = {name for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    return [module for module in model.modules() if type(module).__name__ in names]
