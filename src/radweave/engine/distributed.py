"""Distributed training: the processes of a job, and the reduction of their gradients.

Any launcher that sets RANK and WORLD_SIZE works (torchrun, accelerate launch, Slurm). Each rank computes its slice of
the global batch, see ``radweave.nn.global_batch``. The model is replicated or sharded:

``ddp``    every rank holds all of it; torch's DistributedDataParallel averages the gradients, bucket by bucket, while
           the backward pass still runs.
``fsdp``   parameters, gradients and optimiser state are sharded (torch's FSDP2, ``fully_shard``).

Both take the mean over ranks. Slices may differ in size, so each loss is scaled first (``Slice.weight``).
"""

from __future__ import annotations

import copy
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from radweave.core.batch import Batch, Slice
from radweave.core.errors import InputError
from radweave.methods.model import ReportModel
from radweave.methods.stage import total_loss
from radweave.nn.global_batch import share_batch_statistics

Parallel = Literal["ddp", "fsdp"]
WAIT = timedelta(hours=2)
"""Time limit of waiting for other ranks: the first one may be reading the images of a large data set."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes of this job; ``Ranks()`` is a single one. All ranks call every method, in one order.

    ``gradients`` is the process group of gradients. Batch norm and contrastive losses communicate in the common group
    during the backward pass, in an order that depends on the parts that a slice uses.
    """

    rank: int = 0
    size: int = 1
    gradients: dist.ProcessGroup | None = None

    @property
    def is_first(self) -> bool:
        """True for the rank that writes."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """Sums over the ranks, the same on all of them."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return total.tolist()

    def any(self, flag: bool) -> bool:
        """True if ``flag`` is set on any rank."""
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
        """Stop if the ranks disagree on a value.

        Raises:
            InputError: naming what differs.
        """
        if len(set(self.gather(value))) > 1:
            reason = "the processes of this job do not see the same; run folder and data set lie on a shared disk"
            raise InputError(reason, field=what)

    def wait(self) -> None:
        """Wait for all ranks."""
        if self.size > 1:
            dist.barrier()

    @contextmanager
    def first_goes_first(self) -> Iterator[None]:
        """Run the block on the first rank, then on all others, which read its files.

        Raises:
            InputError: on every rank, if the first one failed.
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
    """Join the processes of this job, if a launcher has started several.

    Raises:
        InputError: if another process is lost.
    """
    if dist.is_initialized():  # by the caller
        yield _all_ranks()
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
        yield _all_ranks()
    except RuntimeError as error:
        is_lost = isinstance(error, dist.DistError) or any(name in str(error).lower() for name in ("gloo", "nccl"))
        if not is_lost:
            raise
        reason = "another process of this job is gone; what was written last is kept, go on with --resume"
        raise InputError(reason, got=str(error).strip().splitlines()[0][:200]) from None
    finally:
        dist.destroy_process_group()


def _all_ranks() -> Ranks:
    # Never destroyed: torch may wait forever for a group that is destroyed right after a backward pass.
    return Ranks(dist.get_rank(), dist.get_world_size(), dist.new_group(timeout=WAIT))


Losses = tuple[Tensor, dict[str, Tensor]]
"""The weighted loss, and its terms without a gradient."""


class Objective(Protocol):
    """A loss that is no term of a model: rewards of what it writes."""

    def begin(self, model: ReportModel) -> None:
        """Take what is needed of the model as it is before the stage; ``requires_grad`` is set."""
        ...

    def __call__(self, model: ReportModel, batch: Batch) -> Losses:
        """The loss of a batch, and figures without a gradient."""
        ...


class StageLoss(nn.Module):
    """The loss of a stage as a forward pass, which torch's data parallelism wraps: weighted terms, and an objective.

    Terms are detached: DistributedDataParallel would wait for gradients of undifferentiated outputs.
    """

    def __init__(self, model: ReportModel, weights: Mapping[str, float], objective: Objective | None = None) -> None:
        super().__init__()
        self.model = model
        self.weights = dict(weights)
        self.objective = objective

    def forward(self, batch: Batch) -> Losses:
        terms = self.model.loss(batch, tuple(self.weights)) if self.weights else {}
        detached = {name: term.detach() for name, term in sorted(terms.items())}
        if self.objective is None:
            return total_loss(terms, self.weights), detached
        loss, figures = self.objective(self.model, batch)
        return (loss + total_loss(terms, self.weights) if terms else loss), {**detached, **figures}


class Replica(Protocol):
    """The model as this rank trains it. ``model`` owns the parameters that are optimised."""

    model: ReportModel

    @property
    def losses(self) -> Callable[[Batch], Losses]:
        """The module that computes the losses of this rank's slice."""
        ...

    def backward(self, loss: Tensor, part: Slice | None) -> None:
        """Compute gradients of the global batch, whose slice on this rank is ``part``; None in a single process."""
        ...

    def clip_gradients(self, max_norm: float) -> float:
        """Scale gradients down to this norm; return their former norm."""
        ...

    def collect(self) -> None:
        """Copy the trained weights, whole, into the original model."""
        ...

    def spread(self) -> None:
        """Copy the weights of the original model into the replica."""
        ...


def make_replica(
    model: ReportModel,
    weights: Mapping[str, float],
    ranks: Ranks,
    parallel: Parallel = "ddp",
    objective: Objective | None = None,
) -> Replica:
    """The replica for this rank, these loss weights and an objective; in a single process the model itself.

    ``requires_grad`` must be set before. All ranks start from the first one's weights.
    """
    computed: nn.Module = StageLoss(model, weights, objective)
    if ranks.size > 1:
        share_batch_statistics(model)
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.detach(), src=0)
        if parallel == "fsdp":
            return ShardedReplica(model, weights)
        computed = _averaged(computed, ranks.gradients)
    return WholeReplica(model, computed, ranks.size)


def _averaged(loss: nn.Module, group: dist.ProcessGroup | None) -> nn.Module:
    """The loss, whose backward pass averages gradients over the ranks; gradients missing on all stay None."""
    with warnings.catch_warnings():
        # torch 2.13 gives ``broadcast_buffers`` a second name, which older ones do not know.
        warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated", category=FutureWarning)
        return nn.parallel.DistributedDataParallel(
            loss,
            process_group=group,
            broadcast_buffers=False,  # they are kept alike here: ``share_batch_statistics``
            init_sync=False,  # done by ``make_replica``, for what does not train as well
            find_unused_parameters=True,  # a slice without labels, or without a second view, leaves parts unused
        )


def scaled(loss: Tensor, part: Slice | None, size: int) -> Tensor:
    """The loss whose mean over the ranks has the gradient of the global batch: ``size`` times the slice's share."""
    return loss if part is None else loss * (size * part.weight(size))


def whole_tensor(tensor: Tensor) -> Tensor:
    """The whole of a tensor that may be sharded; all ranks must call it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def cut_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """The tensor, sharded like the parameter; scalars such as a step count stay whole."""
    if not hasattr(parameter, "full_tensor") or tensor.shape != parameter.shape:
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(parameter, DTensor)
    tensor = tensor.to(parameter.device)
    return distribute_tensor(tensor, parameter.device_mesh, parameter.placements, src_data_rank=None)


@dataclass(slots=True)
class WholeReplica:
    """A whole model on every rank; the backward pass of its losses averages gradients over ranks."""

    model: ReportModel
    losses: Callable[[Batch], Losses]
    size: int

    def backward(self, loss: Tensor, part: Slice | None) -> None:
        scaled(loss, part, self.size).backward()  # type: ignore[no-untyped-call]

    def clip_gradients(self, max_norm: float) -> float:
        trained = [p for p in self.model.parameters() if p.requires_grad]
        return float(torch.nn.utils.clip_grad_norm_(trained, max_norm))

    def collect(self) -> None:
        pass

    def spread(self) -> None:
        pass


# FSDP2: a sharded copy of the model trains; the original holds whole weights for evaluation, memories and checkpoints,
# and is updated before each of them. Checkpoints thus equal those of one process. The price is one set of weights per
# rank.


class ShardedReplica:
    """A sharded copy of ``whole``; scalars are replicated."""

    def __init__(self, whole: ReportModel, weights: Mapping[str, float]) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        self.whole = whole
        self.model = copy.deepcopy(whole)
        for parameter in self.model.parameters():  # channels-last weights cannot be sharded
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
        # Parameters are gathered for ``loss`` as for a forward pass.
        register_fsdp_forward_method(self.model, "loss")
        self.losses: Callable[[Batch], Losses] = StageLoss(self.model, weights)

    def backward(self, loss: Tensor, part: Slice | None) -> None:
        scaled(loss, part, self.size).backward()  # type: ignore[no-untyped-call]
        self._average_scalars()

    def _average_scalars(self) -> None:
        """Average the gradients of scalars, which the backward pass leaves; gradients missing on all stay None."""
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
        replicated = [grad for grad in grads if not isinstance(grad, DTensor)]
        squares = torch.tensor([sum(float(shard.double().square().sum()) for shard in cut)], dtype=torch.float64)
        dist.all_reduce(squares)
        norm = math.sqrt(float(squares) + sum(float(grad.double().square().sum()) for grad in replicated))
        factor = max_norm / (norm + 1e-6)
        if factor < 1:
            for grad in (*cut, *replicated):
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
    """Layers in transformers' ``_no_split_modules``; each is gathered only while it computes."""
    names = {name for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    return [module for module in model.modules() if type(module).__name__ in names]
