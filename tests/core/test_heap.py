"""Freed pages stay with the process: what is asked for again is not faulted in again."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import torch
from radweave.core.devices import keep_freed_pages

def step():
    held = [torch.ones(2 << 20) for _ in range(12)]

kept = keep_freed_pages() if sys.argv[1] == "kept" else False
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(way: str) -> tuple[str, int]:
    """Of a process that starts with glibc's first threshold, above which a block is mapped and given back by itself.

    Left to itself glibc moves it, and whether the heap's end is given back hangs on what happens to lie there.
    """
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(128 << 10)}
    line = [sys.executable, "-c", FAULTS, way]
    done = subprocess.run(line, capture_output=True, text=True, check=True, env=environment)
    kept, faults = done.stdout.split()
    return kept, int(faults)


def test_what_a_step_frees_is_not_faulted_in_again_by_the_next() -> None:
    kept, faults = page_faults("kept")
    if kept == "False":
        pytest.skip("this system's libc has no mallopt")
    _, without = page_faults("given back")
    assert without >= 10 * 12 * 4, "each block of 8 MB anew, in pages of 2 MB at most"
    assert faults < without / 10
