"""The Triton kernels of the selective scan, through Triton's interpreter or on a GPU, against the equation in float64.

Without a GPU they are interpreted: the arithmetic and the addresses are those of the kernels, what the compiler makes
of them is not tested. Small chunks let a few tokens cross several of them, since the interpreter scans value by value.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from radweave.core.errors import InputError
from radweave.nn.selective_scan import _loop_scan, selective_scan

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The bound set for the scan: relative to the largest value of each result, since sums over tokens grow with them.
TOLERANCE = 1e-5


def arguments(batch: int, groups: int, tokens: int, channels: int, states: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    u, step = draw(batch, groups, tokens, channels), draw(batch, groups, tokens, channels)
    rates = -0.1 - torch.rand(groups, channels, states, generator=generator, dtype=torch.float64) * states
    B, C = draw(batch, groups, tokens, states), draw(batch, groups, tokens, states)
    return [u, torch.sigmoid(step), rates, B, C, draw(groups, channels)]


@pytest.fixture
def scan_kernels(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module with small blocks."""
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed; it comes with torch for CUDA")
    from radweave.nn import scan_kernels as module

    assert torch.cuda.is_available() or module.INTERPRETED, "conftest asks for the interpreter where there is no GPU"
    monkeypatch.setattr(module, "CHUNK", 4)
    monkeypatch.setattr(module, "CHANNELS", 2)
    return module


# Two chunks and two blocks of channels, and one more begun; states that are no power of two; one token.
@pytest.mark.parametrize("shape", [(2, 2, 9, 3, 1), (1, 2, 5, 2, 3), (1, 1, 1, 1, 2)])
def test_outputs_and_gradients_equal_the_equation(shape: tuple[int, int, int, int, int], scan_kernels: Any) -> None:
    values = arguments(*shape)
    weights = torch.randn(shape[:4], generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    results = []
    for dtype, device in ((torch.float64, "cpu"), (torch.float32, DEVICE)):
        leaves = [value.to(device, dtype).requires_grad_() for value in values]
        backend = _loop_scan if dtype is torch.float64 else scan_kernels.scan
        output = backend(*leaves)
        gradients = torch.autograd.grad((output * weights.to(output)).sum(), leaves)
        results.append([output.detach().cpu(), *(gradient.cpu() for gradient in gradients)])
    for name, expected, own in zip(("y", "u", "delta", "A", "B", "C", "D"), *results, strict=True):
        worst = float((own.double() - expected).abs().max()) / max(1.0, float(expected.abs().max()))
        assert worst <= TOLERANCE, f"{name}: {worst}"


def test_the_scan_backend_is_configurable(scan_kernels: Any) -> None:
    values = [value.float().to(DEVICE) for value in arguments(1, 1, 3, 2, 1)]
    torch.testing.assert_close(
        selective_scan(*values, backend="triton"), selective_scan(*values, backend="chunked"), atol=1e-5, rtol=1e-5
    )


def test_without_triton_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "radweave.nn.scan_kernels", None)
    with pytest.raises(InputError, match="Triton is not installed"):
        selective_scan(*(value.float() for value in arguments(1, 1, 3, 2, 1)), backend="triton")


def test_nothing_else_imports_the_kernels() -> None:
    """An installation for the CPU has no Triton."""
    source = Path(__file__).parents[2] / "src" / "radweave"
    result = {path.name for path in source.rglob("*.py") if "scan_kernels" in path.read_text(encoding="utf-8")}
    assert result == {"selective_scan.py"}
