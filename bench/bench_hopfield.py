"""Memory and time of a Hopfield network over a million patterns, against the plain formula. Run by hand.

    OMP_NUM_THREADS=2 python bench/bench_hopfield.py [--patterns 1000000] [--dim 768] [--plain 20000]

The patterns lie in a file that is mapped, not read; the network is the paper's (6 heads of width 1024) and associates
the 14 disease tokens of one study, forward and backward. Counted is memory of the process's own (RssAnon), which pages
of the mapped file are not: the largest value seen while it ran, less what it held before. The plain formula projects
every pattern to keys and values and holds all scores; it is run over ``--plain`` patterns, to
compare.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from radweave.nn.hopfield import AttentionRuleConfig, Hopfield, Patterns

NUM_STATES, STATE_DIM, OUT_DIM = 14, 768, 4096
ROWS_AT_ONCE = 16_384
MIB = 1 << 20


def own_bytes() -> int:
    """Memory of this process that belongs to no file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no RssAnon: this bench needs Linux")


@contextmanager
def peak(seen: list[int]) -> Iterator[None]:
    """Append the largest growth of the process's own memory inside the block."""
    start, largest, done = own_bytes(), [0], threading.Event()

    def watch() -> None:
        while not done.is_set():
            largest[0] = max(largest[0], own_bytes() - start)
            time.sleep(0.01)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        seen.append(largest[0])


def write_patterns(path: Path, count: int, dim: int) -> None:
    generator = np.random.default_rng(0)
    mapped = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(count, dim))
    for start in range(0, count, ROWS_AT_ONCE):
        stop = min(start + ROWS_AT_ONCE, count)
        mapped[start:stop] = generator.standard_normal((stop - start, dim), dtype=np.float32)
    mapped.flush()


def network(dim: int) -> Hopfield:
    torch.manual_seed(0)
    rule, schedule = AttentionRuleConfig(beta=0.05).build()  # flat enough for many patterns to weigh in
    return Hopfield(STATE_DIM, dim, OUT_DIM, num_heads=6, head_dim=1024, rule=rule, schedule=schedule)


def fused(net: Hopfield, states: Tensor, values: Tensor) -> Tensor:
    return net(states, Patterns(values)).output


def plain(net: Hopfield, states: Tensor, values: Tensor) -> Tensor:
    query = net.query(net.state_norm(states)).view(-1, 6, 1024)
    keys, read = net.key(values).view(-1, 6, 1024), net.value(values).view(-1, 6, 1024)
    weights = torch.softmax(net.rule.inverse_temperature(1024) * torch.einsum("rhd,nhd->rhn", query, keys), dim=-1)
    return net.output_norm(net.output(torch.einsum("rhn,nhd->rhd", weights, read).flatten(1)))


def measure(name: str, run: Callable[..., Tensor], net: Hopfield, states: Tensor, values: Tensor) -> Tensor:
    seen: list[int] = []
    net.zero_grad(set_to_none=True)
    with peak(seen):
        begin = time.perf_counter()
        output = run(net, states, values)
        middle = time.perf_counter()
        output.square().sum().backward()
        end = time.perf_counter()
    forward, both = middle - begin, end - begin
    figures = f"forward {forward:6.1f} s, both {both:6.1f} s, peak {seen[0] / MIB:7.0f} MiB"
    print(f"{name:8} {len(values):>9} patterns: {figures}")
    return output.detach()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--patterns", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=768)
    parser.add_argument("--plain", type=int, default=20_000)
    options = parser.parse_args()
    net = network(options.dim)
    states = torch.randn(NUM_STATES, STATE_DIM)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "patterns.npy"
        write_patterns(path, options.patterns, options.dim)
        values = torch.from_numpy(np.load(path, mmap_mode="c"))
        print(f"{options.patterns} x {options.dim} float32 is {values.nbytes / MIB:.0f} MiB on disk; 6 heads of 1024")
        few = values[: options.plain].clone()
        left, right = measure("plain", plain, net, states, few), measure("fused", fused, net, states, few)
        print(f"largest difference {float((left - right).abs().max()):.2e}")
        measure("fused", fused, net, states, values)


if __name__ == "__main__":
    main()
