"""Training past one machine: who the processes are, and how their gradients become one.

Any launcher that sets RANK and WORLD_SIZE will do (torchrun, accelerate launch, Slurm). Each rank computes its slice of
the global batch, see ``radweave.nn.global_batch``. Two ways to hold the model:

``ddp``    every rank holds all of it; gradients are added up after the backward pass. Done here rather than by torch's
           DistributedDataParallel: the engine calls ``model.loss``, which is no forward pass, stages leave parts
           without a gradient, and slices may differ in size. What it gives up is overlap of communication with the
           backward pass; where gradients are so large that this matters, use
``fsdp``   parameters, gradients and optimiser state are sharded (torch's FSDP2, ``fully_shard``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from radweave.base.batch import Slice
from radweave.base.errors import InputError
from radweave.contract.model import ReportModel
from radweave.nn.batch_norm import share_batch_statistics

Parallel = Literal["ddp", "fsdp"]
BUCKET_NUMBERS = 16 << 20
"""Gradients are added up in pieces of about this many numbers."""
WAIT = timedelta(hours=2)
"""How long a rank waits for the others: the first one may be reading the images of a large data set."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes of this job; ``Ranks()`` is a single one. Every method is called by all of them, in one order."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that writes."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """Sums over the ranks, the same on all of them."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return total.tolist()

    def any(self, flag: bool) -> bool:
        """Whether it is so on any rank."""
        return self.sum([float(flag)])[0] > 0

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order, on all ranks."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def from_first(self, value: Any) -> Any:
        """The first rank's value, on all ranks."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def refuse_difference(self, what: str, value: Any) -> None:
        """Stop when the ranks do not agree on a value they must share.

        Raises:
            InputError: naming what differs.
        """
        if len(set(self.gather(value))) > 1:
            reason = "the processes of this job do not see the same; run folder and data set lie on a shared disk"
            raise InputError(reason, field=what)

    def wait(self) -> None:
        """Go on when all are here."""
        if self.size > 1:
            dist.barrier()

    @contextmanager
    def first_goes_first(self) -> Iterator[None]:
        """The first rank runs the block, then all the others: they find what it has written.

        Raises:
            InputError: on every rank, if the first one could not do it.
        """
        failure: InputError | None = None
        if self.is_first:
            try:
                yield
            except InputError as error:
                failure = error
        failure = self.from_first(failure)
        if failure is not None:
            raise failure
        if not self.is_first:
            yield


@contextmanager
def joined_ranks() -> Iterator[Ranks]:
    """Join the other processes of this job, if a launcher has started several.

    Raises:
        InputError: when another process of the job is lost.
    """
    if dist.is_initialized():  # by whoever called us
        yield Ranks(dist.get_rank(), dist.get_world_size())
        return
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Ranks()
        return
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, timeout=WAIT)
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size())
    except RuntimeError as error:
        if not _is_lost_connection(error):
            raise
        reason = "another process of this job is gone; what was written last is kept, go on with --resume"
        raise InputError(reason, got=str(error).strip().splitlines()[0][:200]) from None
    finally:
        dist.destroy_process_group()


def _is_lost_connection(error: RuntimeError) -> bool:
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower() or "nccl" in str(error).lower()


class Replica(Protocol):
    """The model as this rank trains it. ``model`` computes the loss and owns the parameters that are optimised."""

    model: ReportModel

    def scale(self, part: Slice | None) -> float:
        """What the loss of a slice is multiplied with before the backward pass."""
        ...

    def add_up_gradients(self) -> None:
        """Make the gradients those of the global batch."""
        ...

    def clip_gradients(self, max_norm: float) -> float:
        """Scale them down to this norm; return the norm they had."""
        ...

    def collect(self) -> None:
        """Bring the trained weights, whole, into the model the replica was made from."""
        ...

    def spread(self) -> None:
        """Take over the weights of that model."""
        ...


def make_replica(model: ReportModel, ranks: Ranks, parallel: Parallel) -> Replica:
    """The replica for this rank; in a single process the model itself. All start from the first rank's weights."""
    if ranks.size > 1:
        share_batch_statistics(model)
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.detach(), src=0)
        if parallel == "fsdp":
            from radweave.train.sharded import ShardedReplica

            return ShardedReplica(model)
    return WholeReplica(model, ranks)


def whole_tensor(tensor: Tensor) -> Tensor:
    """All of a tensor that may be sharded. Every rank must ask for it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def cut_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """The tensor, sharded as the parameter is; scalars such as a step count stay whole."""
    if not hasattr(parameter, "full_tensor") or tensor.shape != parameter.shape:
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(parameter, DTensor)
    tensor = tensor.to(parameter.device)
    return distribute_tensor(tensor, parameter.device_mesh, parameter.placements, src_data_rank=None)


@dataclass(slots=True)
class WholeReplica:
    """Every rank holds the whole model."""

    model: ReportModel
    ranks: Ranks

    def scale(self, part: Slice | None) -> float:
        return 1.0 if part is None else part.weight(self.ranks.size)

    def add_up_gradients(self) -> None:
        if self.ranks.size > 1:
            add_up([p for p in self.model.parameters() if p.requires_grad])

    def clip_gradients(self, max_norm: float) -> float:
        trained = [p for p in self.model.parameters() if p.requires_grad]
        return float(torch.nn.utils.clip_grad_norm_(trained, max_norm))

    def collect(self) -> None:
        pass

    def spread(self) -> None:
        pass


@torch.no_grad()
def add_up(parameters: Sequence[nn.Parameter]) -> None:
    """Sum the gradients over the ranks. One that no rank has stays away: the optimiser passes it over."""
    if not parameters:
        return
    there = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.int32)
    dist.all_reduce(there, op=dist.ReduceOp.MAX)
    bucket: list[Tensor] = []
    for parameter, is_there in zip(parameters, there.tolist(), strict=True):
        if not is_there:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if bucket and (bucket[0].dtype != parameter.dtype or sum(g.numel() for g in bucket) > BUCKET_NUMBERS):
            _add_up_bucket(bucket)
            bucket = []
        bucket.append(parameter.grad)
    if bucket:
        _add_up_bucket(bucket)


def _add_up_bucket(grads: Sequence[Tensor]) -> None:
    flat = torch.cat([grad.reshape(-1) for grad in grads])
    dist.all_reduce(flat)
    for grad, total in zip(grads, torch.split(flat, [grad.numel() for grad in grads]), strict=True):
        grad.copy_(total.view_as(grad))
