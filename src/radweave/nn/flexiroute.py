"""Co-attention whose span is routed per sample: FlexiRoute, and the plainer layers that it is compared with.

Source: Bian et al., "DiffRGenNet", MIDL 2025, Sec. 2.2; the routing of spans is TRAR's (Zhou et al., ICCV 2021).
Shape letters: B batch, n queries, m image tokens (V views of S cells each), P span masks, h heads, d width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from radweave.nn.query_transformer import CrossAttention

MaskRule = Literal["minus_infinity", "multiply"]
Centers = Literal["cyclic", "spread"]
Projections = Literal["per_mask", "shared"]


@lru_cache(maxsize=64)
def span_masks(
    grid: tuple[int, ...], num_queries: int, num_masks: int, centers: Centers = "cyclic"
) -> Bool[Tensor, "masks queries cells"]:
    """Masks of the grid's cells that each query may attend to (Eq. 6).

    A^0 is all ones. Under A^s query l sees the cells at most s steps along every axis from its centre: a window of
    (2s+1) x (2s+1) that the border cuts. Its centre is cell l mod S, "cyclically stacked", so few queries all look at
    the first row; ``spread`` puts the centres evenly over the row-major cells instead.
    """
    cells = torch.cartesian_prod(*(torch.arange(side) for side in grid)).reshape(-1, len(grid))
    distance = (cells[:, None] - cells[None]).abs().amax(-1)
    number = torch.arange(num_queries)
    if centers == "cyclic":
        rows = number % len(cells)
    else:
        rows = (2 * number + 1) * len(cells) // (2 * max(1, num_queries))
    spans = [torch.ones(num_queries, len(cells), dtype=torch.bool)]
    spans += [distance[rows] <= order for order in range(1, num_masks)]
    return torch.stack(spans)


class SpanRouter(nn.Module):
    """One weight per mask and sample from the mean image token (Eq. 7).

        alpha = softmax((MLP(mean F) + g) / t),   g ~ Gumbel(0, 1) while training, 0 after

    ``hard`` takes the largest alone: straight-through while training, arg max after. One mask needs no router.
    """

    def __init__(self, dim: int, num_masks: int, hidden: int, *, temperature: float, hard: bool) -> None:
        super().__init__()
        self.num_masks = num_masks
        self.temperature = temperature
        self.hard = hard
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, num_masks))

    def forward(
        self, image: Float[Tensor, "batch cells dim"], present: Bool[Tensor, "batch cells"]
    ) -> Float[Tensor, "batch masks"]:
        """Weights that sum to 1."""
        weight = present[:, :, None].to(image.dtype)
        logits: Tensor = self.mlp((image * weight).sum(1) / weight.sum(1))
        if self.training:
            return F.gumbel_softmax(logits, tau=self.temperature, hard=self.hard)
        if self.hard:
            return F.one_hot(logits.argmax(-1), self.num_masks).to(logits.dtype)
        return (logits / self.temperature).softmax(-1)


class RoutedCoAttention(nn.Module):
    """Multi-head co-attention routing, all heads and masks in one attention call (Eq. 4-5).

        head_i = sum_j alpha_j softmax(Q_ij K_ij^T / sqrt(d_h), A^j) V_ij,      out = [head_1; ...; head_h] O

    With projections ``per_mask`` every mask j has its own Q, K and V, as Eq. 5 has; ``shared`` is TRAR's: one set, so
    one grid of scores under all masks. The mask rule ``minus_infinity`` takes cells out of sight; ``multiply`` is Eq. 5
    as printed: scores times A^j, which leaves a weight of e^0 to cells that are masked. Absent cells never count.

    The queries are few and the cells many, so K and V are never formed: (Q W_K) F^T = Q (F W_K)^T, and likewise for V.
    That costs n * d instead of m * d_h for every head, mask and channel, and makes one product of all of them.
    """

    def __init__(self, dim: int, num_heads: int, num_masks: int, *, projections: Projections, mask: MaskRule) -> None:
        super().__init__()
        assert dim % num_heads == 0, "the width divides into the heads"
        self.num_heads = num_heads
        self.sets = num_masks if projections == "per_mask" else 1
        self.mask = mask
        self.query = nn.Linear(dim, self.sets * dim, bias=False)
        self.key = nn.Linear(dim, self.sets * dim, bias=False)
        self.value = nn.Linear(dim, self.sets * dim, bias=False)
        self.out = nn.Linear(dim, dim)

    def forward(
        self,
        queries: Float[Tensor, "batch queries dim"],
        image: Float[Tensor, "batch cells dim"],
        spans: Bool[Tensor, "masks queries cells"],
        present: Bool[Tensor, "batch cells"],
        alpha: Float[Tensor, "batch masks"],
    ) -> tuple[Float[Tensor, "batch queries dim"], Float[Tensor, "batch queries cells"]]:
        """Read the image; also returns the routed attention, mean over the heads."""
        shape = (self.sets, self.num_heads, -1, image.shape[-1])
        projected = self.query(queries).unflatten(-1, (self.sets, self.num_heads, -1))
        absorbed = torch.einsum("bnghe,ghed->bghnd", projected, self.key.weight.view(shape))
        scores = absorbed.flatten(1, 3) @ image.transpose(1, 2) * projected.shape[-1] ** -0.5
        scores = scores.unflatten(1, absorbed.shape[1:4])
        visible = spans[None, :, None]
        if self.mask == "multiply":
            scores = scores * visible.to(scores.dtype)
            visible = torch.ones_like(visible)
        allowed = visible & present[:, None, None, None]
        weights = scores.masked_fill(~allowed, float("-inf")).softmax(-1) * alpha[:, :, None, None, None]
        if self.sets == 1:
            weights = weights.sum(1, keepdim=True)
        read = (weights.flatten(1, 3) @ image).unflatten(1, weights.shape[1:4])
        heads = torch.einsum("bghnd,ghed->bnhe", read, self.value.weight.view(shape))
        return self.out(heads.flatten(2)), weights.sum(1).mean(1)


@dataclass(frozen=True, slots=True)
class Routed:
    """Refined queries (B, n, d); per layer the routing weights (B, p_k); the last layer's attention (B, n, m)."""

    tokens: Float[Tensor, "batch queries dim"]
    routes: tuple[Float[Tensor, "batch _"], ...] = ()
    attention: Float[Tensor, "batch queries cells"] | None = None


class DynamicRoutingLayer(nn.Module):
    """One DRA layer: routed co-attention, self-attention, feed-forward, each with a residual, then a norm (Eq. 3)."""

    def __init__(
        self, dim: int, num_heads: int, router: SpanRouter | None, co_attention: RoutedCoAttention, dropout: float
    ) -> None:
        super().__init__()
        self.router = router
        self.co_attention = co_attention
        self.co_norm = nn.LayerNorm(dim)
        self.self_attention = CrossAttention(dim, dim, num_heads, dropout)
        self.self_norm = nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(4 * dim, dim))
        self.ffn_norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, queries: Tensor, query_mask: Tensor, image: Tensor, present: Tensor, spans: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the queries, alpha, and the attention over the image."""
        alpha = image.new_ones(len(image), 1) if self.router is None else self.router(image, present)
        read, visible = self.co_attention(queries, image, spans, present, alpha)
        queries = self.co_norm(queries + self.dropout(read))
        queries = self.self_norm(queries + self.dropout(self.self_attention.read(queries, queries, query_mask)))
        return self.ffn_norm(queries + self.dropout(self.ffn(queries))), alpha, visible


class FlexiRoute(nn.Module):
    """K dynamic routing layers; layer k chooses among ``masks_per_layer[k]`` spans (Eq. 2).

    One mask per layer is plain co-attention ("transformer" of Table 3), ``shared`` projections are TRAR's.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        masks_per_layer: tuple[int, ...],
        *,
        projections: Projections = "per_mask",
        mask: MaskRule = "minus_infinity",
        centers: Centers = "cyclic",
        router_hidden: int | None = None,
        temperature: float = 1.0,
        hard: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.masks_per_layer = masks_per_layer
        self.centers = centers
        hidden = router_hidden or dim // 2

        def layer(num_masks: int) -> DynamicRoutingLayer:
            router = SpanRouter(dim, num_masks, hidden, temperature=temperature, hard=hard) if num_masks > 1 else None
            reader = RoutedCoAttention(dim, num_heads, num_masks, projections=projections, mask=mask)
            return DynamicRoutingLayer(dim, num_heads, router, reader, dropout)

        self.layers = nn.ModuleList(layer(num_masks) for num_masks in masks_per_layer)

    def forward(
        self,
        queries: Float[Tensor, "batch queries dim"],
        query_mask: Bool[Tensor, "batch queries"],
        image: Float[Tensor, "batch cells dim"],
        present: Bool[Tensor, "batch cells"],
        grid: tuple[int, ...],
    ) -> Routed:
        """Refine the queries by the image.

        Args:
            queries: what reads.
            query_mask: False for a query that is padding; the others do not see it, and its own output means nothing.
            image: the cells of all views, one view's after the other's.
            present: False for the cells of a view that is absent; each row needs one.
            grid: the grid of one view. A window is the same in every view.
        """
        # A row without any query would attend to nothing, which is not a number.
        query_mask = query_mask | ~query_mask.any(1, keepdim=True)
        routes, attention = [], None
        for num_masks, layer in zip(self.masks_per_layer, self.layers, strict=True):
            spans = span_masks(grid, queries.shape[1], num_masks, self.centers).to(image.device)
            spans = spans.repeat(1, 1, image.shape[1] // spans.shape[2])
            queries, alpha, attention = layer(queries, query_mask, image, present, spans)
            routes.append(alpha)
        return Routed(queries, tuple(routes), attention)


class NoRouting(nn.Module):
    """The queries as they are, to stand beside the image ("concat" of Table 3)."""

    def forward(
        self, queries: Tensor, query_mask: Tensor, image: Tensor, present: Tensor, grid: tuple[int, ...]
    ) -> Routed:
        return Routed(queries)
