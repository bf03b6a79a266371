"""The selective scan of state-space models, linear in the number of tokens, in plain PyTorch and as Triton kernels.

    h_t = exp(delta_t A) h_{t-1} + delta_t B_t u_t,      y_t = C_t h_t + D u_t,      h_0 = 0

Source: Gu and Dao, "Mamba: Linear-time sequence modeling with selective state spaces", 2023, Eq. 2 and Alg. 2 (with
the first-order step delta B for the input, as its code and VMamba's have it).

Back-ends, all with the same results:
- ``loop``: one token after the other. The reference of the tests; slow.
- ``chunked``: the tokens in chunks that advance side by side, then the chunks' ends in sequence. Keeps no states for
  the backward pass but recomputes them, segment by segment. The choice of ``auto`` on a CPU.
- ``triton``: two kernels (``radweave.nn.scan_kernels``). The choice of ``auto`` on a CUDA device
  with Triton.
- ``associative``: torch's own associative scan. A private function of torch, which may be missing.

Shape letters: B batch, G groups (scan directions), L tokens, C channels, N states per channel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from radweave.core.errors import InputError

ScanBackend = Literal["auto", "loop", "chunked", "associative", "triton"]

# States held at once by the chunked scan: half a million float32 are 2 MB for each of the few tensors of a segment. The
# time is flat from an eighth to four times of this; far below, the steps are too small, far above, caches overflow.
SEGMENT_STATES = 1 << 19


def selective_scan(
    u: Float[Tensor, "batch groups tokens channels"],
    delta: Float[Tensor, "batch groups tokens channels"],
    A: Float[Tensor, "groups channels states"],
    B: Float[Tensor, "batch groups tokens states"],
    C: Float[Tensor, "batch groups tokens states"],
    D: Float[Tensor, "groups channels"],
    *,
    backend: ScanBackend = "auto",
) -> Float[Tensor, "batch groups tokens channels"]:
    """Scan the tokens; ``delta`` is positive (after its softplus), ``A`` negative.

    Half-precision input is scanned in float32 and the result returned in the precision of ``u``.

    Raises:
        InputError: if ``backend`` is not available.
        ValueError: if the shapes do not match.
    """
    _check(u, delta, A, B, C, D)
    if u.device.type == "meta":
        return torch.empty_like(u)
    precision = torch.promote_types(u.dtype, torch.float32)
    values = [tensor.to(precision) for tensor in (u, delta, A, B, C, D)]
    with torch.autocast(u.device.type, enabled=False):
        return _scan_of(backend, u.device)(*values).to(u.dtype)


def _scan_of(backend: ScanBackend, device: torch.device) -> Callable[..., Tensor]:
    if backend == "loop":
        return _loop_scan
    if backend == "associative":
        return _associative_scan
    if backend == "triton" or (backend == "auto" and device.type == "cuda" and find_spec("triton") is not None):
        return _triton_scan
    return _chunked_scan


def _triton_scan(*arguments: Tensor) -> Tensor:
    try:
        from radweave.nn.scan_kernels import INTERPRETED, scan
    except ImportError:
        raise InputError(
            "Triton is not installed here; it comes with torch for CUDA", field="backend", got="triton",
            expected="chunked or loop",
        ) from None  # fmt: skip
    if arguments[0].device.type != "cuda" and not INTERPRETED:
        raise InputError("Triton needs a CUDA device", field="backend", got="triton", expected="chunked or loop")
    return scan(*arguments)


def _check(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> None:
    batch, groups, tokens, channels = u.shape
    states = A.shape[-1]
    expected = {
        "delta": (delta, (batch, groups, tokens, channels)),
        "A": (A, (groups, channels, states)),
        "B": (B, (batch, groups, tokens, states)),
        "C": (C, (batch, groups, tokens, states)),
        "D": (D, (groups, channels)),
    }
    for name, (tensor, shape) in expected.items():
        if tuple(tensor.shape) != shape:
            raise ValueError(f"selective_scan: {name} has shape {tuple(tensor.shape)}, expected {shape}")


def _loop_scan(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """One token after the other."""
    state = u.new_zeros(*u.shape[:2], u.shape[3], A.shape[-1])
    outputs = []
    # unbind, not indexing: the gradient of an index is as large as the whole sequence, the loop would be quadratic.
    for u_t, delta_t, B_t, C_t in zip(u.unbind(2), delta.unbind(2), B.unbind(2), C.unbind(2), strict=True):
        state = torch.exp(delta_t[..., None] * A) * state + (delta_t * u_t)[..., None] * B_t[:, :, None]
        outputs.append((state * C_t[:, :, None]).sum(-1))
    return torch.stack(outputs, dim=2) + u * D[:, None]


def _associative_scan(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """Torch's scan over pairs (decay, input): (a, x) then (b, y) is (a b, b x + y)."""
    try:
        from torch._higher_order_ops.associative_scan import associative_scan
    except ImportError:
        raise InputError(
            "this torch has no associative scan", field="backend", got="associative", expected="chunked or loop"
        ) from None

    def then(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return first[0] * second[0], second[0] * first[1] + second[1]

    decay = torch.exp(delta[..., None, :] * A.transpose(1, 2)[:, None])
    inputs = (delta * u)[..., None, :] * B[..., None]
    states: Tensor = associative_scan(then, (decay, inputs), dim=2, combine_mode="generic")[1]
    return (states * C[..., None]).sum(-2) + u * D[:, None]


def _chunked_scan(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    return _ChunkedScan.apply(u, delta, A, B, C, D)  # type: ignore[no-any-return, no-untyped-call]


class _Segment:
    """Decays and inputs of ``num_chunks`` chunks of ``length`` tokens, shaped (B, G, chunk, token, N, C).

    Channels come last, so that every step is a few large element-wise operations on contiguous rows.
    """

    def __init__(self, start: int, num_chunks: int, length: int) -> None:
        self.tokens = slice(start, start + num_chunks * length)
        self.chunks = (num_chunks, length)

    def split(self, tensor: Tensor) -> Tensor:
        """(B, G, tokens, ...) to (B, G, chunk, token, ...)."""
        return tensor[:, :, self.tokens].reshape(*tensor.shape[:2], *self.chunks, *tensor.shape[3:])

    def terms(self, u: Tensor, delta: Tensor, A: Tensor, B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """exp(delta A) per token and over each whole chunk, and delta B u."""
        step, rate = self.split(delta), A.transpose(1, 2)[:, None]
        decay = torch.exp_(step[..., None, :] * rate[:, None])
        total = torch.exp_(step.sum(3)[..., None, :] * rate)
        return decay, total, (step * self.split(u))[..., None, :] * self.split(B)[..., None]


def _segments(tokens: int, states_per_token: int) -> list[_Segment]:
    """Cut the sequence into segments, each a whole number of chunks, so that nothing needs padding.

    A segment of S tokens takes two sweeps through a chunk and one over the chunks: 2 T + S / T operations, fewest at
    T = sqrt(S / 2).
    """
    limit = max(1, SEGMENT_STATES // states_per_token)
    segments, start = [], 0
    while start < tokens:
        size = min(limit, tokens - start)
        length = max(1, math.isqrt(size // 2))
        segments.append(_Segment(start, size // length, length))
        start = segments[-1].tokens.stop
    return segments


def _states(decay: Tensor, total: Tensor, inputs: Tensor, state: Tensor) -> Tensor:
    """h_t = decay_t h_{t-1} + inputs_t from ``state`` on, in place of ``inputs``; (B, G, chunk, token, N, C).

    ``total`` (B, G, chunk, N, C) is the product of a chunk's decays.
    """
    num_chunks, length = inputs.shape[2:4]
    ends = inputs[:, :, :, 0].clone()
    for t in range(1, length):
        torch.addcmul(inputs[:, :, :, t], decay[:, :, :, t], ends, out=ends)
    starts = torch.empty_like(ends)
    starts[:, :, 0] = state
    for chunk in range(1, num_chunks):
        before = chunk - 1
        torch.addcmul(ends[:, :, before], total[:, :, before], starts[:, :, before], out=starts[:, :, chunk])
    previous = starts
    for t in range(length):
        previous = inputs[:, :, :, t].addcmul_(decay[:, :, :, t], previous)
    return inputs


def _state_gradients(decay: Tensor, total: Tensor, outer: Tensor, carried: Tensor) -> tuple[Tensor, Tensor]:
    """g_t = outer_t + decay_{t+1} g_{t+1}, in place of ``outer``, and decay_1 g_1 for the previous segment.

    ``carried`` is decay_{t+1} g_{t+1} at the last token of the segment.
    """
    num_chunks, length = outer.shape[2:4]
    ends = outer[:, :, :, -1].clone()
    for t in range(length - 2, -1, -1):
        torch.addcmul(outer[:, :, :, t], decay[:, :, :, t + 1], ends, out=ends)
    ends *= decay[:, :, :, 0]
    starts = torch.empty_like(ends)
    starts[:, :, -1] = carried
    for chunk in range(num_chunks - 1, 0, -1):
        torch.addcmul(ends[:, :, chunk], total[:, :, chunk], starts[:, :, chunk], out=starts[:, :, chunk - 1])
    g = outer[:, :, :, -1].add_(starts)
    for t in range(length - 2, -1, -1):
        g = outer[:, :, :, t].addcmul_(decay[:, :, :, t + 1], g)
    return outer, decay[:, :, 0, 0] * outer[:, :, 0, 0]


def _over_states(values: Tensor, weights: Tensor) -> Tensor:
    """sum_n values[..., n, c] weights[..., n]."""
    if values.shape[-2] == 1:
        return (values * weights[..., None]).squeeze(-2)
    return (weights[..., None, :] @ values).squeeze(-2)


def _over_channels(values: Tensor, weights: Tensor) -> Tensor:
    """sum_c values[..., n, c] weights[..., c]."""
    return (values @ weights[..., None]).squeeze(-1)


class _ChunkedScan(torch.autograd.Function):
    """The scan. Saves its arguments and the state at the start of each segment, nothing else."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
        segments = _segments(u.shape[2], u.shape[0] * u.shape[1] * u.shape[3] * A.shape[-1])
        state = u.new_zeros(*u.shape[:2], A.shape[-1], u.shape[3])
        output, starts = torch.empty_like(u), []
        for segment in segments:
            starts.append(state)
            states = _states(*segment.terms(u, delta, A, B), state)
            state = states[:, :, -1, -1].clone()
            scanned = _over_states(states, segment.split(C)).flatten(2, 3)
            torch.addcmul(scanned, u[:, :, segment.tokens], D[:, None], out=output[:, :, segment.tokens])
        ctx.segments = segments
        ctx.save_for_backward(u, delta, A, B, C, D, *starts)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        """With g_t = dL/dh_t and w_t = exp(delta_t A) g_t h_{t-1}:

        du = delta (g B) + D dy, ddelta = u (g B) + w A, dA = w delta, dB = g (delta u), dC = h dy, dD = u dy.
        """
        u, delta, A, B, C, D, *starts = ctx.saved_tensors
        grads = [torch.empty_like(u), torch.empty_like(delta), torch.zeros_like(A)]
        grads += [torch.empty_like(B), torch.empty_like(C), torch.zeros_like(D)]
        carried = torch.zeros_like(starts[0])
        for segment, start in zip(reversed(ctx.segments), reversed(starts), strict=True):
            carried = _segment_gradients(segment, (u, delta, A, B, C, D), grad, start, carried, grads)
        return tuple(grads)


def _segment_gradients(
    segment: _Segment,
    arguments: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor],
    grad: Tensor,
    start: Tensor,
    carried: Tensor,
    grads: list[Tensor],
) -> Tensor:
    """Fill the segment's part of the gradients; return the gradient carried to the previous segment."""
    u, delta, A, B, C, D = arguments
    du, ddelta, dA, dB, dC, dD = grads
    tokens, dy = segment.tokens, segment.split(grad)
    decay, total, inputs = segment.terms(u, delta, A, B)
    states = _states(decay, total, inputs, start)
    dC[:, :, tokens] = _over_channels(states, dy).flatten(2, 3)
    outer = dy[..., None, :] * segment.split(C)[..., None]
    g, carried = _state_gradients(decay, total, outer, carried)
    g, w, h = g.flatten(2, 3), decay.flatten(2, 3), states.flatten(2, 3)
    w *= g
    w[:, :, 1:] *= h[:, :, :-1]
    w[:, :, 0] *= start
    u_part, delta_part = u[:, :, tokens], delta[:, :, tokens]
    inner = _over_states(g, B[:, :, tokens])
    dy = grad[:, :, tokens]
    torch.addcmul(delta_part * inner, dy, D[:, None], out=du[:, :, tokens])
    dB[:, :, tokens] = _over_channels(g, delta_part * u_part)
    dA += (w * delta_part[..., None, :]).sum((0, 2)).transpose(1, 2)
    dD += (dy * u_part).sum((0, 2))
    rates = w.mul_(A.transpose(1, 2)[:, None]).sum(-2)
    torch.addcmul(rates, u_part, inner, out=ddelta[:, :, tokens])
    return carried
