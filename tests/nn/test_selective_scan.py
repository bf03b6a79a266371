"""The selective scan: every back-end against the equation, one token after the other, in float64."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from radweave.core.errors import InputError
from radweave.nn import selective_scan as module
from radweave.nn.selective_scan import ScanBackend, selective_scan

# The bound set for the scan: relative to the largest value of each result, since sums over tokens grow with them.
TOLERANCE = 1e-5
# In float64 only the order of summation differs: some hundred roundings of 1e-16.
EXACT = 1e-11


def random_arguments(
    batch: int, groups: int, tokens: int, channels: int, states: int, *, seed: int = 0, dtype: torch.dtype
) -> list[Tensor]:
    """Values of the size they have in a network: steps up to 1, decay rates from -0.1 to about -states."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    u, step = draw(batch, groups, tokens, channels), draw(batch, groups, tokens, channels)
    delta, A = torch.sigmoid(step), -0.1 - torch.rand(groups, channels, states, generator=generator) * states
    B, C = draw(batch, groups, tokens, states), draw(batch, groups, tokens, states)
    return [value.to(dtype) for value in (u, delta, A, B, C, draw(groups, channels))]


def outputs_and_gradients(arguments: list[Tensor], backend: ScanBackend) -> list[Tensor]:
    """The output, and the gradient of a weighted sum of it with respect to every argument."""
    leaves = [value.clone().requires_grad_() for value in arguments]
    output = selective_scan(*leaves, backend=backend)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gradients = torch.autograd.grad((output * weights.to(output)).sum(), leaves, materialize_grads=True)
    return [output.detach(), *gradients]


def assert_equal(own: list[Tensor], reference: list[Tensor], tolerance: float) -> None:
    for name, got, expected in zip(("y", "u", "delta", "A", "B", "C", "D"), own, reference, strict=True):
        scale = max(1.0, float(expected.abs().max()))
        worst = float((got.double() - expected).abs().max()) / scale
        assert worst <= tolerance, f"{name}: {worst}"


def test_the_loop_is_the_equation_number_by_number() -> None:
    u, delta, A, B, C, D = (
        value.tolist() for value in random_arguments(2, 3, 5, 2, 4, dtype=torch.float64)
    )  # plain Python numbers
    y = selective_scan(*random_arguments(2, 3, 5, 2, 4, dtype=torch.float64), backend="loop")
    for i in range(2):
        for k in range(3):
            for c in range(2):
                h = [0.0] * 4
                for t in range(5):
                    d = delta[i][k][t][c]
                    h = [math.exp(d * A[k][c][n]) * h[n] + d * B[i][k][t][n] * u[i][k][t][c] for n in range(4)]
                    expected = sum(C[i][k][t][n] * h[n] for n in range(4)) + D[k][c] * u[i][k][t][c]
                    assert float(y[i, k, t, c]) == pytest.approx(expected, abs=EXACT)


@settings(max_examples=40, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 130), st.integers(1, 6), st.integers(1, 16)),
    backend=st.sampled_from(["chunked", "associative"]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    segment_states=st.sampled_from([1, 100, 3000, module.SEGMENT_STATES]),
    seed=st.integers(0, 2**20),
)
def test_outputs_and_gradients_equal_the_sequential_reference(
    shape: tuple[int, int, int, int, int], backend: ScanBackend, dtype: torch.dtype, segment_states: int, seed: int
) -> None:
    arguments = random_arguments(*shape, seed=seed, dtype=dtype)
    reference = outputs_and_gradients([value.double() for value in arguments], "loop")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SEGMENT_STATES", segment_states)
        own = outputs_and_gradients(arguments, backend)
    assert_equal(own, reference, TOLERANCE if dtype is torch.float32 else EXACT)


@pytest.mark.parametrize("states", [1, 16])
def test_long_sequences_stay_within_the_bound(states: int) -> None:
    arguments = random_arguments(1, 2, 3136, 3, states, dtype=torch.float32)
    reference = outputs_and_gradients([value.double() for value in arguments], "loop")
    assert_equal(outputs_and_gradients(arguments, "auto"), reference, TOLERANCE)


def test_the_written_gradient_is_the_numerical_one() -> None:
    arguments = [value.requires_grad_() for value in random_arguments(1, 2, 11, 2, 3, dtype=torch.float64)]
    assert torch.autograd.gradcheck(lambda *values: selective_scan(*values, backend="chunked"), arguments)


def test_segments_cover_every_token_once() -> None:
    for tokens in (1, 2, 3, 49, 50, 1000, 3136, 3137):
        for states_per_token in (1, 100, 10**9):
            covered = [
                t
                for segment in module._segments(tokens, states_per_token)
                for t in range(segment.tokens.start, segment.tokens.stop)
            ]
            assert covered == list(range(tokens))


@pytest.mark.parametrize("backend", ["loop", "chunked", "associative"])
def test_no_token_sees_a_later_one(backend: ScanBackend) -> None:
    arguments = random_arguments(1, 1, 60, 2, 3, dtype=torch.float64)
    changed = [value.clone() for value in arguments]
    for index in (0, 1, 3, 4):
        changed[index][:, :, 40:] += 1.0
    before, after = selective_scan(*arguments, backend=backend), selective_scan(*changed, backend=backend)
    # The same numbers in the same order before the change; none is equal after it.
    torch.testing.assert_close(after[:, :, :40], before[:, :, :40], atol=0, rtol=0)
    assert (after[:, :, 40:] != before[:, :, 40:]).all()


def test_saved_tensors_are_linear_in_tokens_without_states() -> None:
    def retained(tokens: int, states: int) -> int:
        arguments = [value.requires_grad_() for value in random_arguments(1, 2, tokens, 8, states, dtype=torch.float32)]
        sizes: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            sizes[tensor.data_ptr()] = tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            selective_scan(*arguments, backend="chunked")
        return sum(sizes.values())

    short, long = retained(784, 16), retained(3136, 16)
    assert 3.9 <= long / short <= 4.1
    # u, delta, B, C and little more; the states alone would be 16 times u.
    u, b = 2 * 3136 * 8, 2 * 3136 * 16
    assert long <= 1.05 * (2 * u + 2 * b)


def test_half_precision_is_scanned_in_float32() -> None:
    arguments = random_arguments(1, 2, 300, 4, 2, dtype=torch.bfloat16)
    own = selective_scan(*arguments)
    assert own.dtype is torch.bfloat16
    exact = selective_scan(*[value.float() for value in arguments])
    torch.testing.assert_close(own, exact.bfloat16(), atol=0, rtol=0)


def test_autocast_does_not_reach_the_scan() -> None:
    arguments = random_arguments(1, 2, 50, 4, 3, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = selective_scan(*arguments)
    torch.testing.assert_close(inside, selective_scan(*arguments), atol=0, rtol=0)


def test_mismatched_shapes_are_named(unchecked_shapes: None) -> None:
    arguments = random_arguments(1, 2, 5, 4, 3, dtype=torch.float32)
    arguments[3] = arguments[3][..., :2]
    with pytest.raises(ValueError, match=r"B has shape \(1, 2, 5, 2\), expected \(1, 2, 5, 3\)"):
        selective_scan(*arguments)


def test_a_torch_without_associative_scan_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch._higher_order_ops.associative_scan", None)
    with pytest.raises(InputError, match="no associative scan"):
        selective_scan(*random_arguments(1, 1, 3, 1, 1, dtype=torch.float32), backend="associative")
