"""The selective scan as two Triton kernels, forward and backward; see ``radweave.nn.selective_scan`` for the equation.

One program takes a block of channels of one sequence and walks over the tokens in chunks. Inside a chunk the recurrence
is an associative scan over pairs (decay, input), so that a chunk is a few operations on whole tiles; between chunks the
state stays in registers. The forward pass keeps the state at the start of each chunk, and the backward pass computes a
chunk's states again from it. No state per token reaches memory, and nothing is added up atomically: the same values
give the same bits.

Triton comes with torch's CUDA wheels. Nothing imports this file but ``selective_scan``, when it takes this back-end.

Shape letters: B batch, G groups, L tokens, C channels, N states per channel, K chunks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 64
"""Tokens that are scanned at once."""
CHANNELS = 32
"""Channels of one program."""
_WARPS = 4
INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Triton runs its kernels in Python, for tests without a GPU: TRITON_INTERPRET=1, set before it is imported."""


def _kernel(function: Callable[..., Any]) -> Any:
    """Of the function as it was written: what wraps it where shapes are checked hides its names from Triton."""
    return triton.jit(inspect.unwrap(function))


@_kernel
def _then(first_decay, first, second_decay, second):  # type: ignore[no-untyped-def]
    return first_decay * second_decay, second_decay * first + second


@_kernel
def _weights(a_at, d_at, group, c, n, channels, states):  # type: ignore[no-untyped-def]
    """Masks of a block's channels (C,) and states (C, N); A (C, N) and D (C,) of a group for them."""
    channel_mask = c < channels
    state_mask = channel_mask[:, None] & (n < states)[None, :]
    rates = tl.load(a_at + (group * channels + c)[:, None] * states + n[None, :], mask=state_mask, other=0.0)
    through = tl.load(d_at + group * channels + c, mask=channel_mask, other=0.0)
    return channel_mask, state_mask, rates, through


@_kernel
def _shifted(u_at, delta_at, offset, row, mask, after, channels):  # type: ignore[no-untyped-def]
    """Delta and delta u (T, C) of the token before each one, 0 before the chunk's first; delta of the one after it."""
    before = mask & (row > 0)[:, None]
    delta_before = tl.load(delta_at + offset - channels, mask=before, other=0.0)
    step_before = delta_before * tl.load(u_at + offset - channels, mask=before, other=0.0)
    return delta_before, step_before, tl.load(delta_at + offset + channels, mask=after, other=0.0)


@_kernel
def _around(  # type: ignore[no-untyped-def]
    rate, start, later, delta, step, b, delta_before, step_before, b_before, delta_after, driven
):
    """h_t, g_t and w_t (T, C) of one state over the tokens of a chunk.

    rate, start and later (C,): A, the state before the chunk, and g at the token behind it. delta, step and driven
    (T, C): delta, delta u and dy C_t; b (T,): B. ``_before`` and ``_after`` are those of the tokens beside.
    """
    # h_{t-1}: the scan of the tokens before each one, from the chunk's start on.
    decay_before, scanned = tl.associative_scan(
        (tl.exp(delta_before * rate[None, :]), step_before * b_before[:, None]), 0, _then
    )
    h_before = scanned + decay_before * start[None, :]
    decay = tl.exp(delta * rate[None, :])
    # g_t = dy_t C_t + exp(delta_{t+1} A) g_{t+1}, from the chunk's end on.
    decay_after, gathered = tl.associative_scan((tl.exp(delta_after * rate[None, :]), driven), 0, _then, reverse=True)
    g = gathered + decay_after * later[None, :]
    return decay * h_before + step * b[:, None], g, decay * g * h_before


@_kernel
def _forward(  # type: ignore[no-untyped-def]
    u_at, delta_at, a_at, b_at, c_at, d_at, y_at, starts_at, groups, tokens, channels, states,
    CHUNK: tl.constexpr, CHANNELS: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0).to(tl.int64)
    group = sequence % groups
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    n = tl.arange(0, STATES)
    row = tl.arange(0, CHUNK)
    channel_mask, state_mask, rates, through = _weights(a_at, d_at, group, c, n, channels, states)
    state = tl.zeros([CHANNELS, STATES], dtype=rates.dtype)
    chunks = tl.cdiv(tokens, CHUNK)
    for chunk in range(0, chunks):
        t = chunk * CHUNK + row
        mask = (t < tokens)[:, None] & channel_mask[None, :]
        offset = (sequence * tokens + t)[:, None] * channels + c[None, :]
        u = tl.load(u_at + offset, mask=mask, other=0.0)
        delta = tl.load(delta_at + offset, mask=mask, other=0.0)
        start_offset = (sequence * chunks + chunk) * channels * states + c[:, None] * states + n[None, :]
        tl.store(starts_at + start_offset, state, mask=state_mask)
        y = u * through[None, :]
        step = delta * u
        for k in range(0, states):
            chosen = (n == k)[None, :]
            rate = tl.sum(tl.where(chosen, rates, 0.0), axis=1)
            start = tl.sum(tl.where(chosen, state, 0.0), axis=1)
            token = (sequence * tokens + t) * states + k
            b = tl.load(b_at + token, mask=t < tokens, other=0.0)
            read = tl.load(c_at + token, mask=t < tokens, other=0.0)
            # Past the last token delta is 0: decay 1, input 0, and the state stays.
            decay, inner = tl.associative_scan((tl.exp(delta * rate[None, :]), step * b[:, None]), 0, _then)
            h = inner + decay * start[None, :]
            y += h * read[:, None]
            last = tl.sum(tl.where((row == CHUNK - 1)[:, None], h, 0.0), axis=0)
            state = tl.where(chosen, last[:, None], state)
        tl.store(y_at + offset, y, mask=mask)


@_kernel
def _backward(  # type: ignore[no-untyped-def]
    u_at, delta_at, a_at, b_at, c_at, d_at, dy_at, starts_at, du_at, ddelta_at, da_at, db_at, dc_at, dd_at,
    sequences, groups, tokens, channels, states,
    CHUNK: tl.constexpr, CHANNELS: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    """With g_t = dL/dh_t and w_t = exp(delta_t A) g_t h_{t-1}:

    du = delta (g B) + D dy, ddelta = u (g B) + w A, dA = w delta, dB = g (delta u), dC = h dy, dD = u dy.
    """
    sequence = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1).to(tl.int64)
    group = sequence % groups
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    n = tl.arange(0, STATES)
    row = tl.arange(0, CHUNK)
    channel_mask, state_mask, rates, through = _weights(a_at, d_at, group, c, n, channels, states)
    carried = tl.zeros([CHANNELS, STATES], dtype=rates.dtype)
    da = tl.zeros([CHANNELS, STATES], dtype=rates.dtype)
    dd = tl.zeros([CHANNELS], dtype=rates.dtype)
    chunks = tl.cdiv(tokens, CHUNK)
    for back in range(0, chunks):
        chunk = chunks - 1 - back
        t = chunk * CHUNK + row
        mask = (t < tokens)[:, None] & channel_mask[None, :]
        offset = (sequence * tokens + t)[:, None] * channels + c[None, :]
        u = tl.load(u_at + offset, mask=mask, other=0.0)
        delta = tl.load(delta_at + offset, mask=mask, other=0.0)
        dy = tl.load(dy_at + offset, mask=mask, other=0.0)
        after = (t + 1 < tokens)[:, None] & channel_mask[None, :]
        delta_before, step_before, delta_after = _shifted(u_at, delta_at, offset, row, mask, after, channels)
        start_offset = (sequence * chunks + chunk) * channels * states + c[:, None] * states + n[None, :]
        starts = tl.load(starts_at + start_offset, mask=state_mask, other=0.0)
        dd += tl.sum(dy * u, axis=0)
        step = delta * u
        inner = tl.zeros([CHUNK, CHANNELS], dtype=rates.dtype)
        turned = tl.zeros([CHUNK, CHANNELS], dtype=rates.dtype)
        for k in range(0, states):
            chosen = (n == k)[None, :]
            rate = tl.sum(tl.where(chosen, rates, 0.0), axis=1)
            start = tl.sum(tl.where(chosen, starts, 0.0), axis=1)
            later = tl.sum(tl.where(chosen, carried, 0.0), axis=1)
            token = (sequence * tokens + t) * states + k
            b = tl.load(b_at + token, mask=t < tokens, other=0.0)
            read = tl.load(c_at + token, mask=t < tokens, other=0.0)
            b_before = tl.load(b_at + token - states, mask=(t < tokens) & (row > 0), other=0.0)
            h, g, w = _around(
                rate, start, later, delta, step, b, delta_before, step_before, b_before, delta_after, dy * read[:, None]
            )
            inner += g * b[:, None]
            turned += w * rate[None, :]
            part = ((block * sequences + sequence) * tokens + t) * states + k
            tl.store(db_at + part, tl.sum(g * step, axis=1), mask=t < tokens)
            tl.store(dc_at + part, tl.sum(h * dy, axis=1), mask=t < tokens)
            da += tl.where(chosen, tl.sum(w * delta, axis=0)[:, None], 0.0)
            first = tl.sum(tl.where((row == 0)[:, None], g, 0.0), axis=0)
            carried = tl.where(chosen, first[:, None], carried)
        tl.store(du_at + offset, delta * inner + dy * through[None, :], mask=mask)
        tl.store(ddelta_at + offset, u * inner + turned, mask=mask)
    tl.store(da_at + (sequence * channels + c)[:, None] * states + n[None, :], da, mask=state_mask)
    tl.store(dd_at + sequence * channels + c, dd, mask=channel_mask)


class _Scan(torch.autograd.Function):
    """Saves its arguments and the state at the start of each chunk."""

    @staticmethod
    def forward(ctx: Any, *arguments: Tensor) -> Tensor:
        u, delta, A, B, C, D = (tensor.contiguous() for tensor in arguments)
        batch, groups, tokens, channels = u.shape
        states = A.shape[-1]
        starts = u.new_empty(batch * groups, triton.cdiv(tokens, CHUNK), channels, states)
        y = torch.empty_like(u)
        _forward[(batch * groups, triton.cdiv(channels, CHANNELS))](
            u, delta, A, B, C, D, y, starts, groups, tokens, channels, states,
            CHUNK=CHUNK, CHANNELS=CHANNELS, STATES=triton.next_power_of_2(states), num_warps=_WARPS,
        )  # fmt: skip
        ctx.save_for_backward(u, delta, A, B, C, D, starts)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        u, delta, A, B, C, D, starts = ctx.saved_tensors
        batch, groups, tokens, channels = u.shape
        states, blocks = A.shape[-1], triton.cdiv(channels, CHANNELS)
        du, ddelta = torch.empty_like(u), torch.empty_like(u)
        # Sums over the batch and over blocks of channels are torch's: programs that add into one place have no order.
        da, dd = u.new_empty(batch, groups, channels, states), u.new_empty(batch, groups, channels)
        db, dc = u.new_empty(2, blocks, batch, groups, tokens, states)
        _backward[(batch * groups, blocks)](
            u, delta, A, B, C, D, grad.contiguous(), starts, du, ddelta, da, db, dc, dd,
            batch * groups, groups, tokens, channels, states,
            CHUNK=CHUNK, CHANNELS=CHANNELS, STATES=triton.next_power_of_2(states), num_warps=_WARPS,
        )  # fmt: skip
        return du, ddelta, da.sum(0), db.sum(0), dc.sum(0), dd.sum(0)


def scan(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """The scan of float32 or float64 arguments on a CUDA device, or through Triton's interpreter."""
    return _Scan.apply(u, delta, A, B, C, D)  # type: ignore[no-any-return, no-untyped-call]
