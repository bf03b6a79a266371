"""FlexiRoute against plain loops over Eq. 3-7."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from radweave.nn.flexiroute import (
    DynamicRoutingLayer,
    FlexiRoute,
    MaskRule,
    NoRouting,
    Projections,
    RoutedCoAttention,
    SpanRouter,
    span_masks,
)


def window(grid: tuple[int, int], cell: int, order: int) -> set[int]:
    """The cells of the square around a cell, cut at the border."""
    row, column = divmod(cell, grid[1])
    return {
        r * grid[1] + c
        for r in range(row - order, row + order + 1)
        for c in range(column - order, column + order + 1)
        if 0 <= r < grid[0] and 0 <= c < grid[1]
    }


@pytest.mark.parametrize(("grid", "queries"), [((7, 7), 5), ((3, 4), 30)])
def test_masks_equal_equation_6(grid: tuple[int, int], queries: int) -> None:
    masks = span_masks(grid, queries, 4)
    cells = grid[0] * grid[1]
    assert masks.shape == (4, queries, cells)
    assert masks[0].all()
    for order in (1, 2, 3):
        for query in range(queries):
            observed = set(masks[order, query].nonzero().flatten().tolist())
            assert observed == window(grid, query % cells, order), (order, query)


def test_windows_in_three_dimensions_and_spread_centres() -> None:
    volume = span_masks((3, 3, 3), 14, 2)
    assert volume[1, 13].all(), "the middle of a 3 x 3 x 3 grid sees all of it"
    assert int(volume[1, 0].sum()) == 8
    spread = span_masks((7, 7), 5, 2, "spread")
    for query, centre in enumerate((4, 14, 24, 34, 44)):
        assert set(spread[1, query].nonzero().flatten().tolist()) == window((7, 7), centre, 1)


def co_attention_loop(
    layer: RoutedCoAttention, queries: Tensor, image: Tensor, spans: Tensor, present: Tensor, alpha: Tensor, rule: str
) -> Tensor:
    """Eq. 4-5 for one sample, number by number."""
    count, width = queries.shape
    head_width = width // layer.num_heads
    out = torch.zeros(count, width, dtype=queries.dtype)
    for i in range(layer.num_heads):
        for j in range(len(alpha)):
            block = (j if layer.sets > 1 else 0) * width + i * head_width
            rows = slice(block, block + head_width)
            q, k, v = (
                x @ p.weight[rows].T
                for x, p in zip((queries, image, image), (layer.query, layer.key, layer.value), strict=True)
            )
            for query in range(count):
                powers = []
                for cell in range(len(image)):
                    score = float(q[query] @ k[cell]) / math.sqrt(head_width)
                    inside = bool(spans[j, query, cell])
                    if rule == "multiply":
                        score = score * inside
                    gone = not present[cell] or (rule == "minus_infinity" and not inside)
                    powers.append(0.0 if gone else math.exp(score))
                for cell, power in enumerate(powers):
                    out[query, i * head_width : (i + 1) * head_width] += alpha[j] * power / sum(powers) * v[cell]
    result: Tensor = layer.out(out)
    return result


@pytest.mark.parametrize("rule", get_args(MaskRule))
@pytest.mark.parametrize("projections", get_args(Projections))
def test_co_attention_equals_equations_4_and_5(rule: MaskRule, projections: Projections) -> None:
    torch.manual_seed(0)
    layer = RoutedCoAttention(8, 2, 3, projections=projections, mask=rule).double().requires_grad_(False)
    queries, image = torch.randn(2, 4, 8).double(), torch.randn(2, 12, 8).double()
    present = torch.ones(2, 12, dtype=torch.bool)
    present[1, 6:] = False
    spans = span_masks((2, 3), 4, 3).repeat(1, 1, 2)
    alpha = torch.rand(2, 3).softmax(-1).double()
    out, observed = layer(queries, image, spans, present, alpha)
    for row in range(2):
        wanted = co_attention_loop(layer, queries[row], image[row], spans, present[row], alpha[row], rule)
        # Float64: only the order of additions differs.
        assert torch.allclose(out[row], wanted, atol=1e-10)
    assert torch.allclose(observed.sum(-1), torch.ones(2, 4).double())
    assert (observed[1, :, 6:] == 0).all()


def test_alpha_one_hot_on_mask_0_is_plain_co_attention() -> None:
    torch.manual_seed(0)
    routed = RoutedCoAttention(8, 2, 3, projections="per_mask", mask="minus_infinity")
    plain = RoutedCoAttention(8, 2, 1, projections="per_mask", mask="minus_infinity")
    with torch.no_grad():
        for name in ("query", "key", "value"):
            getattr(plain, name).weight.copy_(getattr(routed, name).weight[:8])
        plain.out.load_state_dict(routed.out.state_dict())
    queries, image, present = torch.randn(2, 5, 8), torch.randn(2, 9, 8), torch.ones(2, 9, dtype=torch.bool)
    masks = span_masks((3, 3), 5, 3)
    one_hot = torch.tensor([[1.0, 0.0, 0.0]] * 2)
    left = routed(queries, image, masks, present, one_hot)[0]
    right = plain(queries, image, masks[:1], present, torch.ones(2, 1))[0]
    assert torch.allclose(left, right, atol=1e-6)
    other = routed(queries, image, masks, present, one_hot.flip(1))[0]
    assert not torch.allclose(left, other, atol=1e-2), "the route reaches the output"


def norm(x: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(((x - mean) ** 2).mean(-1, keepdim=True) + 1e-5)


def test_a_layer_is_post_norm_as_equation_3_has_it() -> None:
    torch.manual_seed(0)
    co_attention = RoutedCoAttention(8, 2, 1, projections="per_mask", mask="minus_infinity")
    layer = DynamicRoutingLayer(8, 2, None, co_attention, dropout=0.0).double().eval()
    z, image = torch.randn(1, 3, 8).double(), torch.randn(1, 4, 8).double()
    is_present, present = torch.ones(1, 3, dtype=torch.bool), torch.ones(1, 4, dtype=torch.bool)
    spans = span_masks((2, 2), 3, 1)
    out, _, _ = layer(z, is_present, image, present, spans)
    routed = norm(co_attention(z, image, spans, present, torch.ones(1, 1).double())[0] + z)
    attended = norm(layer.self_attention(routed, routed)[0] + routed)
    assert torch.allclose(out, norm(layer.ffn(attended) + attended), atol=1e-10)


def test_the_router_equals_equation_7() -> None:
    torch.manual_seed(0)
    router = SpanRouter(4, 3, 5, temperature=0.5, hard=False).eval()
    image, present = torch.randn(1, 6, 4), torch.tensor([[True, True, False, True, False, False]])
    pooled = (image[0, 0] + image[0, 1] + image[0, 3]) / 3
    first, _, second = router.mlp
    hidden = [max(0.0, float(first.weight[unit] @ pooled + first.bias[unit])) for unit in range(5)]
    logits = [float(second.weight[mask] @ torch.tensor(hidden) + second.bias[mask]) for mask in range(3)]
    powers = [math.exp(logit / 0.5) for logit in logits]
    alpha = router(image, present)
    assert torch.allclose(alpha[0], torch.tensor([power / sum(powers) for power in powers]), atol=1e-6)
    assert torch.equal(alpha, router(image, present)), "no noise after training"
    router.hard = True
    assert router(image, present).tolist() == [[float(logit == max(logits)) for logit in logits]]


def test_gumbel_noise_draws_masks_as_often_as_their_weight() -> None:
    """Gumbel-max: the hard draw is a sample of softmax(logits)."""
    torch.manual_seed(0)
    router = SpanRouter(2, 2, 3, temperature=1.0, hard=True).train()
    with torch.no_grad():
        router.mlp[2].weight.zero_()
        router.mlp[2].bias.copy_(torch.tensor([1.0, 0.0]))
    draws = router(torch.zeros(4000, 1, 2), torch.ones(4000, 1, dtype=torch.bool))
    assert set(draws.detach().flatten().tolist()) <= {0.0, 1.0}
    # Binomial with p = e / (1 + e) = 0.731; five standard errors of 4000 draws are 0.035.
    assert abs(float(draws[:, 0].mean()) - math.e / (1 + math.e)) < 0.035


def routed(**options: Any) -> FlexiRoute:
    torch.manual_seed(1)
    return FlexiRoute(8, 2, (2, 3), **options).eval()


def test_padding_changes_nothing() -> None:
    module = routed()
    queries, image = torch.randn(1, 3, 8), torch.randn(1, 9, 8)
    three, nine = torch.ones(1, 3, dtype=torch.bool), torch.ones(1, 9, dtype=torch.bool)
    plain = module(queries, three, image, nine, (3, 3))
    wide = module(
        torch.cat([queries, torch.randn(1, 2, 8)], 1),
        torch.tensor([[True] * 3 + [False] * 2]),
        torch.cat([image, torch.randn(1, 9, 8)], 1),
        torch.tensor([[True] * 9 + [False] * 9]),
        (3, 3),
    )
    assert torch.allclose(plain.tokens, wide.tokens[:, :3], atol=1e-6)
    assert [route.shape for route in plain.routes] == [(1, 2), (1, 3)]
    for left, right in zip(plain.routes, wide.routes, strict=True):
        assert torch.allclose(left, right, atol=1e-6)
    nothing = module(queries, ~three, image, nine, (3, 3))
    assert torch.isfinite(nothing.tokens).all()


def test_all_parameters_get_a_gradient_and_concat_has_none() -> None:
    module = routed(projections="shared").train()
    ones, cells = torch.ones(2, 4, dtype=torch.bool), torch.ones(2, 9, dtype=torch.bool)
    out = module(torch.randn(2, 4, 8), ones, torch.randn(2, 9, 8), cells, (3, 3))
    (out.tokens**3).sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        # A key's bias moves all scores of a query alike, so softmax undoes it.
        assert parameter.grad.abs().sum() > 0 or name.endswith("self_attention.key.bias"), name
    queries = torch.randn(2, 4, 8)
    assert torch.equal(NoRouting()(queries, ones, queries, ones, (2, 2)).tokens, queries)
