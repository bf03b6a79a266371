"""Hopfield networks against the equations written out, and what theory says of them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from radweave.nn import hopfield
from radweave.nn.hopfield import (
    AttentionRule,
    AttentionRuleConfig,
    EnergyRule,
    EnergyRuleConfig,
    Hopfield,
    Patterns,
    Schedule,
    recall,
    strongest,
)
from tests.fake_device import standing_in

# Sums in float64: what is left is the order of additions.
CLOSE = {"rtol": 1e-9, "atol": 1e-10}


def draw(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def plain_average(queries: Tensor, values: Tensor) -> Tensor:
    return torch.softmax(queries @ values.T, dim=-1) @ values


def average_of(patterns: Tensor):
    return lambda scaled: plain_average(scaled, patterns)


def test_chunks_give_the_plain_softmax_average(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, values = draw(6, 5, scale=3), draw(101, 5, seed=1)
    monkeypatch.setattr(hopfield, "MAX_SCORES", 6 * 7)
    assert len(Patterns(values).chunks(6)) == 15
    torch.testing.assert_close(recall(queries, Patterns(values)), plain_average(queries, values), **CLOSE)
    single = recall(queries.float(), Patterns(values.float()))
    # The tolerance, in the precision that training uses.
    torch.testing.assert_close(single, plain_average(queries, values).float(), rtol=1e-5, atol=1e-5)


def test_the_gradient_of_the_chunks_is_that_of_the_plain_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopfield, "MAX_SCORES", 12)
    queries, values = draw(4, 3).requires_grad_(), draw(11, 3, seed=1).requires_grad_()
    weight = draw(4, 3, seed=2)
    own = torch.autograd.grad((recall(queries, Patterns(values)) * weight).sum(), (queries, values))
    plain = torch.autograd.grad((plain_average(queries, values) * weight).sum(), (queries, values))
    for left, right in zip(own, plain, strict=True):
        torch.testing.assert_close(left, right, **CLOSE)
    owners, askers = torch.arange(11) % 4, torch.tensor([0, 1, -1, 3])
    assert torch.autograd.gradcheck(lambda q, v: recall(q, Patterns(v, owners), askers), (queries, values))


def test_half_precision_input_is_recalled_in_float32_with_gradients() -> None:
    """Autocast on a GPU takes exponentials in float32, and the backward pass met both kinds and failed."""
    with standing_in() as device:
        states, patterns = (draw(rows, 3, seed=rows).float().to(device).requires_grad_() for rows in (4, 11))
        weight = torch.eye(3, device=device)
        with torch.autocast(device.type, torch.bfloat16):
            read = recall(states @ weight, Patterns(patterns @ weight))
        assert read.dtype is torch.bfloat16
        result = torch.autograd.grad(read.float().sum(), (states, patterns))
        exact = torch.autograd.grad(recall(states, Patterns(patterns)).sum(), (states, patterns))
    for own, reference in zip(result, exact, strict=True):
        torch.testing.assert_close(
            own.cpu(), reference.cpu(), rtol=0.05, atol=0.05
        )  # 8 bits of mantissa, three products


def test_the_gradient_sees_the_patterns_normalised_as_the_average_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopfield, "MAX_SCORES", 12)
    queries, values, weight = draw(4, 3).requires_grad_(), draw(11, 3, seed=1, scale=3) + 1, draw(4, 3, seed=2)
    own = torch.autograd.grad((recall(queries, Patterns(values, normalised=True)) * weight).sum(), queries)
    plain = torch.autograd.grad((plain_average(queries, F.layer_norm(values, (3,))) * weight).sum(), queries)
    torch.testing.assert_close(own[0], plain[0], **CLOSE)


def test_scores_beyond_a_chunk_are_never_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopfield, "MAX_SCORES", 64)
    observed: list[int] = []
    scores = Patterns.scores

    def watched(self: Patterns, queries: Tensor, askers: Tensor | None, rows: slice) -> tuple[Tensor, Tensor]:
        out = scores(self, queries, askers, rows)
        observed.append(out[0].numel())
        return out

    monkeypatch.setattr(Patterns, "scores", watched)
    queries = draw(4, 3).requires_grad_()
    recall(queries, Patterns(draw(200, 3, seed=1))).sum().backward()
    strongest(draw(2, 2, 3), Patterns(draw(200, 3, seed=1)), k=3)
    assert max(observed) <= 64


def test_a_query_never_recalls_its_own_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopfield, "MAX_SCORES", 9)
    queries, values = draw(3, 4), draw(8, 4, seed=1)
    owners = torch.tensor([0, 0, 1, 1, 2, 2, -1, -1])
    observed = recall(queries, Patterns(values, owners), torch.tensor([1, 2, -1]))
    for row, owner in enumerate((1, 2, None)):
        others = values if owner is None else values[owners != owner]
        torch.testing.assert_close(observed[row], plain_average(queries[row : row + 1], others)[0], **CLOSE)
    mine = recall(queries.requires_grad_(), Patterns(values, torch.zeros(8, dtype=torch.long)), torch.zeros(3).long())
    mine.sum().backward()
    assert (mine == 0).all()
    assert queries.grad is not None
    assert torch.isfinite(queries.grad).all()


def test_the_strongest_patterns_are_those_with_the_largest_mean_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopfield, "MAX_SCORES", 40)
    queries, values = draw(5, 2, 4, scale=2), draw(33, 4, seed=1)
    weights, rows = strongest(queries, Patterns(values), k=4)
    plain = torch.softmax(queries @ values.T, dim=-1).mean(dim=1)
    expected, order = plain.topk(4, dim=1)
    torch.testing.assert_close(weights, expected, **CLOSE)
    assert torch.equal(rows, order)
    few, _ = strongest(queries, Patterns(values[:2]), k=4)
    assert few.shape == (5, 2)


def test_the_attention_rule_is_softmax_attention() -> None:
    torch.manual_seed(0)
    rule, schedule = AttentionRuleConfig(beta=2.0).build()
    network = Hopfield(6, 8, 10, num_heads=3, head_dim=4, rule=rule, schedule=schedule).double()
    states, values = draw(5, 6), draw(20, 8, seed=1)
    query = network.query(network.state_norm(states)).view(5, 3, 4).transpose(0, 1)
    keys = (values @ network.key.weight.T).view(20, 3, 4).transpose(0, 1)
    read = network.value(values).view(20, 3, 4).transpose(0, 1)
    attended = F.scaled_dot_product_attention(query, keys, read, scale=2.0).transpose(0, 1).flatten(1)
    expected = network.output_norm(network.output(attended))
    torch.testing.assert_close(network(states, Patterns(values)).output, expected, **CLOSE)


def test_two_steps_attend_among_the_keys_first() -> None:
    torch.manual_seed(0)
    rule, schedule = AttentionRuleConfig(beta=1.5, steps=2).build()
    network = Hopfield(6, 8, 10, num_heads=1, head_dim=4, rule=rule, schedule=schedule).double()
    states, values = draw(5, 6), draw(20, 8, seed=1)
    query, keys = network.query(network.state_norm(states)), values @ network.key.weight.T
    query = torch.softmax(1.5 * query @ keys.T, dim=-1) @ keys
    read = torch.softmax(1.5 * query @ keys.T, dim=-1) @ network.value(values)
    expected = network.output_norm(network.output(read))
    torch.testing.assert_close(network(states, Patterns(values)).output, expected, **CLOSE)


def test_the_energy_network_is_the_loop_of_equations_2_to_5() -> None:
    torch.manual_seed(0)
    rule, schedule = EnergyRuleConfig(beta=3.0, step_size=0.3, steps=4).build()
    network = Hopfield(6, 8, 10, num_heads=2, head_dim=4, rule=rule, schedule=schedule).double()
    states, values = draw(5, 6), draw(20, 8, seed=1)
    start = network.query(network.state_norm(states)).view(5, 2, 4)
    keys = (values @ network.key.weight.T).view(20, 2, 4)
    settled = start.clone()
    for row in range(5):
        for head in range(2):
            f = start[row, head].clone()
            for _ in range(4):
                scores = torch.stack([f @ m / 2 for m in keys[:, head]])
                alpha = scores.exp() / scores.exp().sum()
                pull = sum(a * m for a, m in zip(alpha, keys[:, head], strict=True))
                f = f - 0.3 * (2 * (f - start[row, head]) - 3.0 / 2 * pull)
            settled[row, head] = f
    expected = network.output_norm(network.output(settled.flatten(1)))
    torch.testing.assert_close(network(states, Patterns(values)).output, expected, **CLOSE)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    dim=st.integers(1, 12),
    count=st.integers(1, 30),
    beta=st.floats(0.05, 20.0),
    step_size=st.floats(0.01, 0.99),
    scale=st.floats(0.1, 4.0),
)
def test_every_step_lowers_the_energy(
    seed: int, dim: int, count: int, beta: float, step_size: float, scale: float
) -> None:
    patterns, start = draw(count, dim, seed=seed, scale=scale), draw(3, dim, seed=seed + 1, scale=2.0)
    for rule in (AttentionRule(beta), EnergyRule(beta, step_size)):
        state = start
        for _ in range(6):
            new = rule.step(state, start, average_of(patterns))
            before, after = (rule.energy(value, start, patterns) for value in (state, new))
            slack = 1e-9 * (1 + before.abs())  # rounding at a fixed point
            assert (after <= before + slack).all()
            moved = (new - state).norm(dim=-1) > 1e-4 * (1 + state.norm(dim=-1))
            assert (after < before)[moved].all(), "where the state moves the energy truly falls"
            state = new


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), dim=st.integers(1, 10), beta=st.floats(0.1, 10.0))
def test_the_written_gradient_equals_autograd(seed: int, dim: int, beta: float) -> None:
    rule = EnergyRule(beta, 0.25)
    patterns, start = draw(9, dim, seed=seed), draw(4, dim, seed=seed + 1)
    state = draw(4, dim, seed=seed + 2).requires_grad_()
    (expected,) = torch.autograd.grad(rule.energy(state, start, patterns).sum(), state)
    torch.testing.assert_close(rule.gradient(state.detach(), start, average_of(patterns)), expected, **CLOSE)


def test_stored_patterns_are_retrieved_at_high_beta_and_blurred_at_low() -> None:
    patterns = F.normalize(draw(40, 32), dim=-1)
    noisy = patterns + draw(40, 32, seed=1, scale=0.05)
    sharp = Schedule(3).settle(AttentionRule(50.0), noisy, average_of(patterns))
    # exp(-50 (1 - the largest cosine of two patterns)) is what the others still weigh.
    torch.testing.assert_close(sharp, patterns, rtol=0, atol=1e-3)
    blurred = Schedule(3).settle(AttentionRule(0.1), noisy, average_of(patterns))
    assert (blurred - patterns.mean(0)).norm(dim=-1).max() < 0.1


@pytest.mark.parametrize("rule", [AttentionRule(3.0), EnergyRule(2.0, 0.4)])
def test_until_convergence_each_state_stops_by_itself(rule: AttentionRule | EnergyRule) -> None:
    patterns, start = draw(12, 5), draw(7, 5, seed=1, scale=2.0)
    schedule = Schedule(200, tolerance=1e-4)
    together = schedule.settle(rule, start, average_of(patterns))
    for row in range(7):
        alone = schedule.settle(rule, start[row : row + 1], average_of(patterns))
        torch.testing.assert_close(alone[0], together[row], **CLOSE)
    step = rule.step(together, start, average_of(patterns)) - together
    assert (step.norm(dim=-1) <= 1e-4).all(), "a fixed point"
    once = Schedule(1).settle(rule, start, average_of(patterns))
    assert not torch.allclose(once, together)


def test_the_order_of_the_memory_does_not_matter() -> None:
    torch.manual_seed(0)
    rule, schedule = EnergyRuleConfig().build()
    network = Hopfield(6, 8, 10, num_heads=2, head_dim=4, rule=rule, schedule=schedule).double()
    states, values = draw(5, 6), draw(20, 8, seed=1)
    shuffled = values[torch.randperm(20, generator=torch.Generator().manual_seed(3))]
    left, right = network(states, Patterns(values)).output, network(states, Patterns(shuffled)).output
    torch.testing.assert_close(left, right, **CLOSE)


@pytest.mark.parametrize("rule", [AttentionRuleConfig(steps=2), EnergyRuleConfig()])
def test_gradients_reach_every_weight(rule: AttentionRuleConfig | EnergyRuleConfig) -> None:
    torch.manual_seed(0)
    built, schedule = rule.build()
    network = Hopfield(6, 8, 10, num_heads=2, head_dim=4, rule=built, schedule=schedule)
    weight = torch.randn(5, 10)
    (network(torch.randn(5, 6), Patterns(torch.randn(20, 8))).output * weight).sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
