"""A training step of two ranks: DistributedDataParallel beside summing by hand after the backward pass. Run by hand.

    OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 bench/bench_data_parallel.py [--layers 8] [--width 1024] [--steps 20]

Both ways take turns in one run, over the same stack of residual layers, and start from the same weights; a step is
forward, backward and the exchange of gradients. Printed are the medians, their ratio, and how far the gradients differ.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from radweave.core.batch import Batch, Slice
from radweave.engine.distributed import Ranks, joined_ranks, make_replica

BUCKET_NUMBERS = 16 << 20
WARM_UP = 3


class Stack(nn.Module):
    """Residual layers; the last one trains, and no term reads it."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers + 1))

    def loss(self, batch: Batch, terms: Sequence[str]) -> dict[str, Tensor]:
        assert batch.pixel_values is not None
        values = batch.pixel_values
        for layer in self.layers[:-1]:
            values = values + torch.tanh(layer(values))
        return dict.fromkeys(terms, values.square().mean())


@torch.no_grad()
def add_up(parameters: Sequence[nn.Parameter]) -> None:
    """Sum the gradients over the ranks in flat pieces, when all are there."""
    there = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.int32)
    dist.all_reduce(there, op=dist.ReduceOp.MAX)
    bucket: list[Tensor] = []
    for parameter, is_there in zip(parameters, there.tolist(), strict=True):
        if not is_there:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if bucket and sum(grad.numel() for grad in bucket) > BUCKET_NUMBERS:
            add_up_bucket(bucket)
            bucket = []
        bucket.append(parameter.grad)
    if bucket:
        add_up_bucket(bucket)


def add_up_bucket(grads: Sequence[Tensor]) -> None:
    flat = torch.cat([grad.reshape(-1) for grad in grads])
    dist.all_reduce(flat)
    for grad, total in zip(grads, torch.split(flat, [grad.numel() for grad in grads]), strict=True):
        grad.copy_(total.view_as(grad))


def seconds(step: Callable[[], None], model: nn.Module) -> float:
    """One step, from when all ranks are here until this one has its gradients."""
    model.zero_grad(set_to_none=True)
    dist.barrier()
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--studies", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    with joined_ranks() as ranks:
        part = Slice.of(options.studies, ranks.rank, ranks.size)
        values = torch.randn(options.studies, options.width, generator=torch.Generator().manual_seed(1))
        values = values[part.first : part.first + part.count]
        names = [str(number) for number in range(part.count)]
        batch = Batch(names, names, pixel_values=values)
        by_torch, by_hand = Stack(options.layers, options.width), Stack(options.layers, options.width)
        overlapping = make_replica(by_torch, {"sum": 1.0}, ranks)  # type: ignore[arg-type]
        alone = make_replica(by_hand, {"sum": 1.0}, Ranks())  # type: ignore[arg-type]

        def with_torch() -> None:
            overlapping.backward(overlapping.losses(batch)[0], part)

        def with_hands() -> None:
            (alone.losses(batch)[0] * part.weight(ranks.size)).backward()
            add_up(list(by_hand.parameters()))

        times: dict[str, list[float]] = {"torch": [], "hand": []}
        for step in range(WARM_UP + options.steps):
            taken = {"torch": seconds(with_torch, by_torch), "hand": seconds(with_hands, by_hand)}
            if step >= WARM_UP:
                for name, value in taken.items():
                    times[name].append(max(ranks.gather(value)))
        pairs = zip(by_torch.parameters(), by_hand.parameters(), strict=True)
        far = max(float((one.grad - other.grad).abs().max()) for one, other in pairs if one.grad is not None)
        if ranks.is_first:
            numbers = sum(parameter.numel() for parameter in by_torch.parameters())
            torch_s, hand_s = (statistics.median(times[name]) for name in ("torch", "hand"))
            print(f"{ranks.size} ranks, {numbers / 1e6:.1f} million weights, median of {options.steps} steps")
            print(f"DistributedDataParallel {torch_s * 1e3:.0f} ms, by hand {hand_s * 1e3:.0f} ms")
            print(f"ratio {torch_s / hand_s:.2f}, gradients differ by {far:.1e}")


if __name__ == "__main__":
    main()
