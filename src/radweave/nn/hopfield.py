"""Modern Hopfield networks over a fixed memory, with two update rules and memory of any size.

Sources: Ramsauer et al., "Hopfield networks is all you need", ICLR 2021 (the ``attention`` rule, Eq. 3); Wang et al.,
AM-MRG, Sec. III-C, Eq. 2-7 (the ``energy`` rule). The running softmax over chunks: Milakov and Gimelshein, "Online
normalizer calculation for softmax", 2018; Dao et al., FlashAttention, 2022 (the gradient that computes scores anew).

Shape letters: R states, N patterns, P width of a pattern, h heads, d width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from radweave.core.config import Config

MAX_SCORES = 1 << 22
"""Scores held at once: 16 MB in float32. A chunk of the memory has this many over the number of states."""
NO_OWNER = -1
# A weight of exp(-60) of the largest one, or of their sum, is taken for zero: float32 adds nothing below 6e-8 of a sum.
# Left alone, such weights come out denormal, and a CPU is slow to take their exponential.
NEGLIGIBLE = -60.0

Average = Callable[[Tensor], Tensor]
"""From scaled states to the average of the patterns, weighted by the softmax of their inner products."""


@dataclass(frozen=True, slots=True)
class Patterns:
    """A memory: ``values`` (N, P), and who owns each pattern (N), as numbers; ``NO_OWNER`` where that does not matter.

    A state never sees the patterns of its own owner, so that a study does not recall itself while it is learned.
    ``values`` may be mapped from a file: it is read in chunks. ``normalised`` patterns go through LayerNorm (without
    weights) as they are read.
    """

    values: Float[Tensor, "n p"]
    owners: Int[Tensor, " n"] | None = None
    normalised: bool = False

    def scores(
        self, queries: Float[Tensor, "r p"], askers: Int[Tensor, " r"] | None, rows: slice
    ) -> tuple[Float[Tensor, "r c"], Float[Tensor, "c p"]]:
        """Inner products with the patterns of ``rows``, minus infinity for the asker's own; and those patterns."""
        chunk = self.values[rows].to(queries.device)
        if self.normalised:
            chunk = F.layer_norm(chunk, chunk.shape[1:])
        chunk = chunk.to(queries.dtype)
        scores = queries @ chunk.T
        if askers is not None and self.owners is not None:
            owners = self.owners[rows].to(queries.device)
            own = (owners[None] == askers[:, None]) & (askers[:, None] != NO_OWNER)
            scores = scores.masked_fill(own, -torch.inf)
        return scores, chunk

    def chunks(self, num_states: int) -> list[slice]:
        """Rows of the memory in pieces that keep the scores below ``MAX_SCORES``."""
        size = max(1, MAX_SCORES // max(1, num_states))
        return [slice(start, min(start + size, len(self.values))) for start in range(0, len(self.values), size)]


def _weights(scores: Tensor) -> Tensor:
    """exp(scores), and exactly zero where that is negligible."""
    return F.threshold(torch.exp(scores.clamp(min=NEGLIGIBLE)), math.exp(NEGLIGIBLE + 1), 0.0)


class _Recall(torch.autograd.Function):
    """softmax(queries values^T) values in chunks; the backward pass computes the scores again, chunk by chunk.

    With p = softmax(s), o = p V and the incoming gradient g:  ds_j = p_j (g . v_j - g . o),  dq = sum_j ds_j v_j,
    dv_j = p_j g + ds_j q.
    """

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, values: Tensor, askers: Tensor | None, owners: Tensor | None, normalised: bool
    ) -> Any:
        assert not (normalised and ctx.needs_input_grad[1]), "patterns that learn are not normalised on the way"
        memory = Patterns(values, owners, normalised)
        top = queries.new_full((len(queries), 1), -torch.inf)
        total = torch.zeros_like(top)
        summed = queries.new_zeros(len(queries), values.shape[1])
        for rows in memory.chunks(len(queries)):
            scores, chunk = memory.scores(queries, askers, rows)
            new_top = torch.maximum(top, scores.max(dim=1, keepdim=True).values)
            # A state that owns all it has seen has no top yet: its weights are zero, not 0 / 0.
            reference = new_top.masked_fill(new_top == -torch.inf, 0.0)
            weights = _weights(scores - reference)
            shrink = torch.exp(top - reference)
            total = total * shrink + weights.sum(dim=1, keepdim=True)
            summed = summed * shrink + weights @ chunk
            top = new_top
        tiny = torch.finfo(queries.dtype).tiny
        averages = summed / total.clamp(min=tiny)
        reached = total > 0
        log_total = torch.where(reached, top + torch.log(total.clamp(min=tiny)), torch.zeros_like(total))
        ctx.save_for_backward(queries, values, averages, log_total, askers, owners)
        ctx.normalised = normalised
        ctx.mark_non_differentiable(log_total)
        return averages, log_total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        queries, values, averages, log_total, askers, owners = ctx.saved_tensors
        gradient = gradients[0]
        memory = Patterns(values, owners, ctx.normalised)
        shared = (gradient * averages).sum(dim=1, keepdim=True)
        d_queries = torch.zeros_like(queries)
        d_values = torch.zeros_like(values) if ctx.needs_input_grad[1] else None
        for rows in memory.chunks(len(queries)):
            scores, chunk = memory.scores(queries, askers, rows)
            weights = _weights(scores - log_total)
            d_scores = weights * (gradient @ chunk.T - shared)
            d_queries += d_scores @ chunk
            if d_values is not None:
                d_values[rows] = weights.T @ gradient + d_scores.T @ queries
        return d_queries, d_values, None, None, None


def recall(
    queries: Float[Tensor, "r p"], memory: Patterns, askers: Int[Tensor, " r"] | None = None
) -> Float[Tensor, "r p"]:
    """Softmax average of the patterns for each query; zero for a query that owns all of them.

    The scores of all queries with all patterns are never held at once, neither here nor for the gradient.
    """
    averages: Tensor = _recall(queries, memory, askers)[0]
    return averages


def _recall(queries: Tensor, memory: Patterns, askers: Tensor | None) -> tuple[Tensor, Tensor]:
    """Averages, and per query the logarithm of the sum of its exponentials. Half precision is recalled in float32."""
    precision = torch.promote_types(queries.dtype, torch.float32)
    # Patterns that learn may come in half precision out of autocast; a bank, which may be large, is cast as it is read.
    values = memory.values.to(precision) if memory.values.requires_grad else memory.values
    with torch.autocast(queries.device.type, enabled=False):
        averages, log_total = _Recall.apply(  # type: ignore[no-untyped-call]
            queries.to(precision), values, askers, memory.owners, memory.normalised
        )
    return averages.to(queries.dtype), log_total


@torch.no_grad()
def strongest(
    queries: Float[Tensor, "r h p"], memory: Patterns, k: int, askers: Int[Tensor, " r"] | None = None
) -> tuple[Float[Tensor, "r k"], Int[Tensor, "r k"]]:
    """Weights and rows of the ``k`` patterns with the largest softmax weight, averaged over heads; largest first."""
    states, heads, _ = queries.shape
    flat = queries.flatten(0, 1)
    per_head = None if askers is None else askers.repeat_interleave(heads)
    log_total = _recall(flat, memory, per_head)[1]
    best = flat.new_full((states, 0), 0.0)
    rows = torch.zeros(states, 0, dtype=torch.long, device=flat.device)
    for part in memory.chunks(len(flat)):
        scores, _ = memory.scores(flat, per_head, part)
        weights = torch.exp(scores - log_total).view(states, heads, -1).mean(dim=1)
        numbers = torch.arange(part.start, part.stop, device=flat.device).expand(states, -1)
        best, rows = torch.cat([best, weights], dim=1), torch.cat([rows, numbers], dim=1)
        best, chosen = best.topk(min(k, best.shape[1]), dim=1)
        rows = rows.gather(1, chosen)
    return best, rows


@dataclass(frozen=True, slots=True)
class AttentionRule:
    """f <- sum_j softmax_j(beta f . m_j) m_j.  It lowers E(f) = |f|^2 / 2 - log(sum_j exp(beta f . m_j)) / beta.

    Source: Ramsauer et al., Eq. 2-3 and Theorem 1.
    """

    beta: float

    def inverse_temperature(self, dim: int) -> float:
        return self.beta

    def step(self, state: Tensor, start: Tensor, average: Average) -> Tensor:
        return average(state * self.beta)

    def energy(
        self, state: Float[Tensor, "r d"], start: Float[Tensor, "r d"], patterns: Float[Tensor, "n d"]
    ) -> Float[Tensor, " r"]:
        return state.square().sum(-1) / 2 - torch.logsumexp(self.beta * state @ patterns.T, dim=-1) / self.beta


@dataclass(frozen=True, slots=True)
class EnergyRule:
    """f <- f - eta dE/df with the energy of AM-MRG.

        E(f) = |f - f_0|^2 - beta log sum_j exp(f . m_j / sqrt(d))                        (Eq. 2)
        dE/df = 2 (f - f_0) - beta / sqrt(d) sum_j alpha_j m_j                            (Eq. 4)
        alpha = softmax(f . m_j / sqrt(d))                                                (Eq. 5)

    The second term of E is concave, so that the curvature of E is at most 2, and every step with 0 < eta < 1 lowers E.
    Deviations: Eq. 4 is printed without the 1 / sqrt(d) that differentiating Eq. 2 gives; this is the true gradient.
    """

    beta: float
    step_size: float

    def inverse_temperature(self, dim: int) -> float:
        return float(dim**-0.5)

    def gradient(self, state: Tensor, start: Tensor, average: Average) -> Tensor:
        scale = self.inverse_temperature(state.shape[-1])
        return 2 * (state - start) - self.beta * scale * average(state * scale)

    def step(self, state: Tensor, start: Tensor, average: Average) -> Tensor:
        return state - self.step_size * self.gradient(state, start, average)

    def energy(
        self, state: Float[Tensor, "r d"], start: Float[Tensor, "r d"], patterns: Float[Tensor, "n d"]
    ) -> Float[Tensor, " r"]:
        scores = state @ patterns.T * self.inverse_temperature(state.shape[-1])
        return (state - start).square().sum(-1) - self.beta * torch.logsumexp(scores, dim=-1)


@dataclass(frozen=True, slots=True)
class Schedule:
    """``steps`` updates; with a ``tolerance`` a state stops once an update moves it by no more than that."""

    steps: int
    tolerance: float | None = None

    def settle(self, rule: AttentionRule | EnergyRule, start: Float[Tensor, "*r d"], average: Average) -> Tensor:
        """The state after the updates. Each state stops by itself and does not depend on the others."""
        state = start
        moving = torch.ones_like(start[..., :1], dtype=torch.bool)
        for _ in range(self.steps):
            new = rule.step(state, start, average)
            if self.tolerance is None:
                state = new
                continue
            moved = (new - state).norm(dim=-1, keepdim=True) > self.tolerance
            state = torch.where(moving, new, state)
            moving = moving & moved
            if not bool(moving.any()):
                break
        return state


@dataclass(slots=True)
class Association:
    """The result of a network: ``output`` (R, out), and the ``queries`` (R, h, P) that weigh the patterns."""

    output: Tensor
    queries: Tensor


class Hopfield(nn.Module):
    """States, projected into h heads, settle among the patterns of a memory; the result is projected out.

        q = W_q LN(f),  k_j = W_k m_j;  q settles among the k_j
        attention:  out = LN(W_o [W_v sum_j softmax_j(beta q . k_j) m_j])     energy:  out = LN(W_o q)

    Keys and values are linear in the pattern, so W_k is folded into the query and W_v comes after the average: no
    projected copy of the memory is ever made.

    Notation: ``states`` are the paper's f_i, ``memory`` their X (V or R), settled q their f_i^*.
    Deviations: the paper's f^* and m_j have the language model's width while f and X have 768; we settle in ``h``
    heads of width ``d`` and project to the language model's width at the end, as its code does.
    """

    def __init__(
        self,
        state_dim: int,
        pattern_dim: int,
        out_dim: int,
        *,
        num_heads: int,
        head_dim: int,
        rule: AttentionRule | EnergyRule,
        schedule: Schedule,
    ) -> None:
        super().__init__()
        inner = num_heads * head_dim
        self.num_heads, self.head_dim = num_heads, head_dim
        self.rule, self.schedule = rule, schedule
        self.state_norm = nn.LayerNorm(state_dim)
        self.query = nn.Linear(state_dim, inner)
        # A bias of the keys would add the same to all scores of a state.
        self.key = nn.Linear(pattern_dim, inner, bias=False)
        self.value = nn.Linear(pattern_dim, inner) if isinstance(rule, AttentionRule) else nn.Identity()
        self.output = nn.Linear(inner, out_dim)
        self.output_norm = nn.LayerNorm(out_dim)

    def forward(
        self, states: Float[Tensor, "r s"], memory: Patterns, askers: Int[Tensor, " r"] | None = None
    ) -> Association:
        """Associate ``states`` with the patterns that are not their owner's (``askers``, see ``Patterns``)."""
        per_head = None if askers is None else askers.repeat_interleave(self.num_heads)
        keys = self._per_head(self.key.weight)

        def folded(state: Tensor) -> Tensor:
            return torch.einsum("rhd,hdp->rhp", state, keys)

        def average_pattern(scaled: Tensor) -> Tensor:
            return recall(folded(scaled).flatten(0, 1), memory, per_head).view(*scaled.shape[:2], -1)

        def average_key(scaled: Tensor) -> Tensor:
            return torch.einsum("rhp,hdp->rhd", average_pattern(scaled), keys)

        start = self.query(self.state_norm(states)).view(-1, self.num_heads, self.head_dim)
        state = self.schedule.settle(self.rule, start, average_key)
        scaled = state * self.rule.inverse_temperature(self.head_dim)
        read = state if isinstance(self.value, nn.Identity) else self._values(self.value, average_pattern(scaled))
        output = self.output_norm(self.output(read.flatten(1)))
        return Association(output=output, queries=folded(scaled).detach())

    def _per_head(self, weight: Tensor) -> Tensor:
        return weight.view(self.num_heads, self.head_dim, -1)

    def _values(self, value: nn.Module, averages: Tensor) -> Tensor:
        assert isinstance(value, nn.Linear)
        bias = value.bias.view(self.num_heads, self.head_dim)
        return torch.einsum("rhp,hdp->rhd", averages, self._per_head(value.weight)) + bias


class AttentionRuleConfig(Config):
    """Softmax attention, once (``steps=1``) or iterated; ``tolerance`` stops a state that no longer moves."""

    kind: Literal["attention"] = "attention"
    beta: float = Field(default=4.0, gt=0)
    steps: int = Field(default=1, ge=1, le=1000)
    tolerance: float | None = Field(default=None, gt=0)

    def build(self) -> tuple[AttentionRule, Schedule]:
        # The last of the updates is the one that reads values.
        return AttentionRule(self.beta), Schedule(self.steps - 1, self.tolerance)


class EnergyRuleConfig(Config):
    """Gradient descent on the paper's energy; steps below 1 lower it every time."""

    kind: Literal["energy"] = "energy"
    beta: float = Field(default=4.0, gt=0)
    step_size: float = Field(default=0.25, gt=0, lt=1)
    steps: int = Field(default=5, ge=1, le=1000)
    tolerance: float | None = Field(default=None, gt=0)

    def build(self) -> tuple[EnergyRule, Schedule]:
        return EnergyRule(self.beta, self.step_size), Schedule(self.steps, self.tolerance)


UpdateRuleConfig = Annotated[AttentionRuleConfig | EnergyRuleConfig, Field(discriminator="kind")]
