"""Time and memory of the selective scan's back-ends, forward and backward. Run by hand.

    OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive python bench/bench_selective_scan.py [ROUNDS]

Back-ends take turns in every round; the best of the rounds counts, since other work on the machine only ever adds time
(where threads wait actively, far more to operations on two of them than to the loop's small ones). "indexed loop" is
the equation as one writes it down first, ``u[:, :, t]`` in a loop: the gradient of every index is as large as the
sequence, so it is quadratic. "loop" is the tests' reference, which takes the sequence apart once.
Peak memory is that of a process of its own for every length, less what it holds before the scan.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from radweave.nn.selective_scan import selective_scan

# (batch, directions, tokens, channels, states): VMamba's first stage at 224 pixels, and a Mamba of 16 states.
SHAPES = {
    "VMamba-T, stage 1": (1, 4, 3136, 96, 1),
    "VMamba-B, stage 1": (1, 4, 3136, 256, 1),
    "16 states": (1, 1, 3136, 192, 16),
}
INDEXED_SHAPE = "VMamba-T, stage 1"
LENGTHS = (784, 1568, 3136)


def arguments(batch: int, groups: int, tokens: int, channels: int, states: int) -> list[Tensor]:
    torch.manual_seed(0)
    u = torch.randn(batch, groups, tokens, channels)
    A = -0.1 - torch.rand(groups, channels, states) * states
    B, C = torch.randn(2, batch, groups, tokens, states)
    return [value.requires_grad_() for value in (u, torch.rand_like(u), A, B, C, torch.randn(groups, channels))]


def indexed_loop(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    decay = torch.exp(delta[..., None] * A[:, None])
    inputs = (delta * u)[..., None] * B[:, :, :, None]
    state, outputs = torch.zeros_like(inputs[:, :, 0]), []
    for t in range(u.shape[2]):
        state = decay[:, :, t] * state + inputs[:, :, t]
        outputs.append((state * C[:, :, t, None]).sum(-1))
    return torch.stack(outputs, dim=2) + u * D[:, None]


BACKENDS: dict[str, Callable[..., Tensor]] = {
    "chunked": lambda *values: selective_scan(*values, backend="chunked"),
    "associative": lambda *values: selective_scan(*values, backend="associative"),
    "loop": lambda *values: selective_scan(*values, backend="loop"),
    "indexed loop": indexed_loop,
}


def seconds(scan: Callable[..., Tensor], shape: tuple[int, int, int, int, int]) -> tuple[float, float]:
    """Wall time of the forward pass, and of both passes."""
    values = arguments(*shape)
    start = time.perf_counter()
    output = scan(*values)
    middle = time.perf_counter()
    output.sum().backward()
    return middle - start, time.perf_counter() - start


def compare(name: str, shape: tuple[int, int, int, int, int], rounds: int) -> None:
    times: dict[str, list[tuple[float, float]]] = {backend: [] for backend in BACKENDS}
    for _ in range(rounds):
        for backend, scan in BACKENDS.items():
            if backend != "indexed loop":
                times[backend].append(seconds(scan, shape))
    if name == INDEXED_SHAPE:  # it takes most of a minute
        times["indexed loop"].append(seconds(indexed_loop, shape))
    print(f"{name} {shape}, {torch.get_num_threads()} threads; x is the time of both passes over that of chunked")
    ours = min(both for _, both in times["chunked"])
    for backend, rows in times.items():
        if rows:
            forward, both = (min(column) for column in zip(*rows, strict=True))
            print(f"  {backend:13} forward {forward * 1e3:6.0f} ms, both {both * 1e3:6.0f} ms, {both / ours:.1f} x")


def peak_megabytes() -> float:
    """Peak resident memory of this process alone; what ``resource`` counts is inherited from its parent."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def memory(backend: str, shape: tuple[int, int, int, int, int]) -> None:
    """Print by how much one scan and its gradient raise the peak of this process."""
    seconds(BACKENDS[backend], (*shape[:2], 64, *shape[3:]))  # libraries are loaded and threads started
    values = arguments(*shape)
    before = peak_megabytes()
    BACKENDS[backend](*values).sum().backward()
    print(f"{peak_megabytes() - before:.1f}")


def compare_memory(name: str, shape: tuple[int, int, int, int, int]) -> None:
    print(f"{name}: MB above the arguments, at {', '.join(map(str, LENGTHS))} tokens")
    for backend in ("chunked", "associative", "loop"):
        peaks = []
        for length in LENGTHS:
            part = [str(value) for value in (*shape[:2], length, *shape[3:])]
            command = [sys.executable, __file__, "--memory", backend, *part]
            peaks.append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        growth = f"{peaks[-1] / peaks[0]:.1f} x for {LENGTHS[-1] // LENGTHS[0]} x the tokens" if peaks[0] else ""
        print(f"  {backend:13} {', '.join(f'{peak:.0f}' for peak in peaks)}  {growth}")


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    for name, shape in SHAPES.items():
        compare(name, shape, rounds)
    for name, shape in SHAPES.items():
        compare_memory(name, shape)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--memory"]:
        batch, groups, tokens, channels, states = map(int, sys.argv[3:])
        memory(sys.argv[2], (batch, groups, tokens, channels, states))
    else:
        main()
