"""Convolutions over volumes in bfloat16: where oneDNN's gradient cannot be trusted, float32 is computed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import radweave
from radweave.engine.loop import has_bfloat16
from radweave.nn.vision.resnet3d import Convolution3d

CPU = torch.device("cpu")


def weight_gradient(convolution: torch.nn.Conv3d, grid: tuple[int, int, int]) -> Tensor:
    """Of a pass in bfloat16, where whatever is not written is not a number."""
    volume = torch.randn(2, convolution.in_channels, *grid, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        out = convolution(volume)
    used = [torch.full((2**power,), float("nan")) for power in range(4, 18) for _ in range(4)]
    del used
    out.float().square().sum().backward()
    gradient = convolution.weight.grad
    assert gradient is not None
    return gradient


# As in a small volume's second stage, and as in a shallow volume's stem.
@pytest.mark.parametrize(("size", "stride", "grid"), [(3, 1, (2, 4, 4)), (7, 2, (4, 8, 8))])
def test_gradients_over_a_grid_shorter_than_the_kernel_are_those_of_float32(
    size: int, stride: int, grid: tuple[int, int, int]
) -> None:
    torch.manual_seed(0)
    own = Convolution3d(8, 16, size, stride=stride, padding=size // 2, bias=False)
    exact = torch.nn.Conv3d(8, 16, size, stride=stride, padding=size // 2, bias=False)
    exact.load_state_dict(own.state_dict())
    result = weight_gradient(own, grid)
    volume = torch.randn(2, 8, *grid, generator=torch.Generator().manual_seed(0))
    exact(volume).square().sum().backward()
    torch.testing.assert_close(result, exact.weight.grad, rtol=0, atol=0)


@pytest.mark.skipif(not has_bfloat16(CPU), reason="oneDNN computes otherwise on this processor")
def test_a_gradient_over_a_long_grid_is_a_number_and_near_that_of_float32() -> None:
    torch.manual_seed(0)
    convolution = Convolution3d(8, 16, 3, padding=1, bias=False)
    result = weight_gradient(convolution, (6, 6, 6))
    volume = torch.randn(2, 8, 6, 6, 6, generator=torch.Generator().manual_seed(0))
    exact = torch.autograd.grad(convolution(volume).square().sum(), convolution.weight)[0]
    # 8 bits of mantissa in the volume, the weights, the output and its gradient.
    assert float((result - exact).norm()) < 0.02 * float(exact.norm())


def test_a_long_grid_stays_in_half_precision_and_float32_stays_float32() -> None:
    convolution = Convolution3d(2, 4, 3, padding=1)
    volume = torch.randn(1, 2, 6, 6, 6)
    with torch.autocast("cpu", torch.bfloat16):
        assert convolution(volume).dtype is torch.bfloat16
        assert convolution(volume[:, :, :3]).dtype is torch.float32
        assert convolution(volume[:, :, :3].bfloat16()).dtype is torch.float32
    torch.testing.assert_close(
        convolution(volume), F.conv3d(volume, convolution.weight, convolution.bias, padding=1), rtol=0, atol=0
    )
    with torch.autocast("cpu", torch.bfloat16):  # shapes alone, which autocast does not know
        assert convolution.to("meta")(volume[:, :, :3].to("meta")).device.type == "meta"


def test_no_network_has_another_convolution_over_volumes() -> None:
    source = Path(radweave.__file__).parent
    others = [
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if re.search(r"nn\.Conv3d\(", path.read_text(encoding="utf-8")) and path.name != "convolution.py"
    ]
    assert others == []
