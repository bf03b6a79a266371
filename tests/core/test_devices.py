"""Devices of models, and freed pages of the heap."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from radweave.core.devices import VARIABLE, default_device, use_device
from radweave.core.errors import InputError
from radweave.core.provenance import arithmetic
from tests.fake_device import crossings, standing_in


def test_use_device_sets_the_default_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    use_device("cpu")
    assert default_device() == torch.device("cpu")


@pytest.mark.parametrize("name", ["cuda:99", "gpu", "xpu", "cuda:", "meta", "cpu:1"])
def test_an_unknown_device_is_refused_with_the_available_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    with pytest.raises(InputError, match=r"--device.*no such device.*cpu"):
        use_device(name)
    monkeypatch.setenv(VARIABLE, name)
    with pytest.raises(InputError, match="no such device"):
        default_device()


def test_a_device_of_another_package_has_its_own_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen to share kept stages with the CPU before: ``--device cpu`` and ``cuda`` on one machine had one key."""
    monkeypatch.setenv(VARIABLE, "cpu")
    before = arithmetic()
    with standing_in() as device:
        use_device("standin")
        assert default_device().type == device.type
        assert arithmetic() != before
        with pytest.raises(InputError, match=r"standin, standin:0|standin"):
            use_device("standin:1")


@torch.inference_mode()
def doubled(value: torch.Tensor) -> torch.Tensor:
    return value * 2


def test_what_a_function_decorated_before_computes_on_the_stand_in_can_be_trained_on() -> None:
    """Modules that were imported earlier keep torch's own ``inference_mode`` in their decorators."""
    with standing_in() as device:
        weight = torch.ones(3, device=device, requires_grad=True)
        result = doubled(torch.ones(3, device=device))
        assert not result.is_inference()
        (weight * result).sum().backward()
        assert weight.grad is not None
        assert weight.grad.tolist() == [2, 2, 2]
    assert doubled(torch.ones(3)).is_inference()


def test_the_stand_in_device_refuses_mixed_devices_like_cuda() -> None:
    """Else what passes on it would say nothing."""
    with standing_in() as device:
        present, here = torch.arange(4.0, device=device), torch.ones(4)
        for wrong in (
            lambda: present + here,
            lambda: here.add_(present),
            lambda: here[present.long()],
            lambda: present.index_put_((torch.tensor([1]),), torch.ones(1)),
            lambda: torch.stack([present.sum(), here.sum()]),
            lambda: torch.cat([present, here]),
            lambda: torch.rand(2, device=device, generator=torch.Generator()),
            lambda: present.index_select(0, torch.tensor([1])),
        ):
            with pytest.raises(RuntimeError, match=r"device"):
                wrong()
        with pytest.raises(TypeError, match="numpy"):
            present.numpy()
        crossings.clear()
        assert (present * torch.tensor(2.0))[torch.tensor([0, 3])].tolist() == [0.0, 6.0]
        assert present[[1, 2]].cpu().equal(torch.tensor([1.0, 2.0]))
        assert float(present.sum()) == 6
        assert crossings["aten::_local_scalar_dense"] == 1


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
    retained, faults = done.stdout.split()
    return retained, int(faults)


@pytest.mark.long
def test_keep_freed_pages_avoids_page_faults() -> None:
    retained, faults = page_faults("kept")
    if retained == "False":
        pytest.skip("this system's libc has no mallopt")
    _, without = page_faults("given back")
    assert without >= 10 * 12 * 4, "each block of 8 MB anew, in pages of 2 MB at most"
    assert faults < without / 10
