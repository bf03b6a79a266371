"""Learned queries that read a set of tokens by cross-attention: disease tokens, Q-Formers, resamplers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn

from radweave.core.config import Config, Heads


@dataclass(frozen=True, slots=True)
class QueryOutput:
    """``tokens`` (B, Q, D), one per query; ``attention`` (B, Q, N), what each reads, mean over the heads."""

    tokens: Float[Tensor, "batch queries dim"]
    attention: Float[Tensor, "batch queries source"]


class CrossAttention(nn.Module):
    """Multi-head attention of queries over source tokens of another width, with its weights.

    softmax(Q K^T / sqrt(d_h)) V, projected; absent source tokens get weight 0.
    """

    def __init__(self, dim: int, source_dim: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        assert dim % num_heads == 0, "the width divides into the heads"
        self.num_heads = num_heads
        self.dropout = dropout
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(source_dim, dim)
        self.value = nn.Linear(source_dim, dim)
        self.out = nn.Linear(dim, dim)

    def read(
        self,
        queries: Float[Tensor, "batch queries dim"],
        source: Float[Tensor, "batch source source_dim"],
        mask: Bool[Tensor, "batch source"] | None = None,
    ) -> Float[Tensor, "batch queries dim"]:
        """Attend without returning weights, by torch's fused attention."""
        q, k, v = (self._heads(x) for x in (self.query(queries), self.key(source), self.value(source)))
        attn_mask = None if mask is None else mask[:, None, None, :]
        read = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, dropout_p=self.dropout * self.training)
        out: Tensor = self.out(read.transpose(1, 2).flatten(2))
        return out

    def forward(
        self,
        queries: Float[Tensor, "batch queries dim"],
        source: Float[Tensor, "batch source source_dim"],
        mask: Bool[Tensor, "batch source"] | None = None,
    ) -> tuple[Float[Tensor, "batch queries dim"], Float[Tensor, "batch queries source"]]:
        q, k, v = (self._heads(x) for x in (self.query(queries), self.key(source), self.value(source)))
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None, :], float("-inf"))
        weights = scores.softmax(-1)
        read = F.dropout(weights, self.dropout, self.training) @ v
        return self.out(read.transpose(1, 2).flatten(2)), weights.mean(1)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.num_heads, -1).transpose(1, 2)


class QueryLayer(nn.Module):
    """Post-norm layer: (self-attention,) cross-attention, feed-forward, each with a residual and a LayerNorm."""

    def __init__(
        self, dim: int, source_dim: int, num_heads: int, *, self_attention: bool, dropout: float, ffn_ratio: float
    ) -> None:
        super().__init__()
        self.self_attention = CrossAttention(dim, dim, num_heads, dropout) if self_attention else None
        self.self_norm = nn.LayerNorm(dim) if self_attention else None
        self.cross_attention = CrossAttention(dim, source_dim, num_heads, dropout)
        self.cross_norm = nn.LayerNorm(dim)
        hidden = int(dim * ffn_ratio)
        self.ffn = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, dim))
        self.ffn_norm = nn.LayerNorm(dim)

    def forward(self, queries: Tensor, source: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        if self.self_attention is not None and self.self_norm is not None:
            queries = self.self_norm(queries + self.self_attention.read(queries, queries))
        read, weights = self.cross_attention(queries, source, mask)
        queries = self.cross_norm(queries + read)
        return self.ffn_norm(queries + self.ffn(queries)), weights


class QueryTransformer(nn.Module):
    """Learned queries refined by ``num_layers`` layers over the same source.

    Source: Li et al., BLIP-2, ICML 2023, Sec. 3.1 (Q-Former); Alayrac et al., Flamingo, Sec. 3.1.1 (resampler).
    """

    def __init__(
        self,
        num_queries: int,
        dim: int,
        source_dim: int,
        num_layers: int = 1,
        num_heads: int = 4,
        *,
        self_attention: bool = True,
        dropout: float = 0.0,
        ffn_ratio: float = 2.0,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.queries = nn.Parameter(torch.randn(num_queries, dim) * dim**-0.5)
        self.layers = nn.ModuleList(
            QueryLayer(dim, source_dim, num_heads, self_attention=self_attention, dropout=dropout, ffn_ratio=ffn_ratio)
            for _ in range(num_layers)
        )

    def forward(
        self, source: Float[Tensor, "batch source source_dim"], mask: Bool[Tensor, "batch source"] | None = None
    ) -> QueryOutput:
        """Read the source; the attention returned is that of the last layer."""
        tokens = self.queries.expand(len(source), -1, -1)
        weights = tokens
        for layer in self.layers:
            tokens, weights = layer(tokens, source, mask)
        return QueryOutput(tokens, weights)


# Disease-aware semantic tokens: one learned query per class that reads the patches and is judged on its own.
#
# Source: the dual-stage disease-aware framework, "DAST Classification" (methods page: docs/methods/dast.md).


@dataclass(frozen=True, slots=True)
class DiseaseReading:
    """The result of the disease tokens for a study.

    ``tokens`` (B, K, D) refined tokens, ``logits`` (B, K), ``attention`` (B, K, N) over the patches, mean over heads.
    """

    tokens: Float[Tensor, "batch classes dim"]
    logits: Float[Tensor, "batch classes"]
    attention: Float[Tensor, "batch classes patches"]


class DiseaseTokens(nn.Module):
    """K learned tokens that attend to the patches, and one linear head per class.

        T' = LN(T + CrossAttention(T, V)),      logit_k = w_k . T'_k + b_k

    Deviations: the paper gives neither residual nor norm; without the residual a token could not know its own class
    after the attention.
    """

    def __init__(self, num_classes: int, dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.randn(num_classes, dim))
        self.attention = CrossAttention(dim, dim, num_heads)
        self.norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)
        self.head_weight = nn.Parameter(torch.randn(num_classes, dim) * dim**-0.5)
        self.head_bias = nn.Parameter(torch.zeros(num_classes))

    def forward(
        self, patches: Float[Tensor, "batch patches dim"], mask: Bool[Tensor, "batch patches"]
    ) -> DiseaseReading:
        """Read the patches of all views of each study; absent ones (False in ``mask``) get no attention."""
        queries = self.tokens.expand(len(patches), -1, -1)
        read, attention = self.attention(queries, patches, mask)
        tokens = self.norm(queries + read)
        logits = (self.dropout(tokens) * self.head_weight).sum(-1) + self.head_bias
        return DiseaseReading(tokens, logits, attention)


class DiseaseTokensConfig(Config):
    """One token per class, as wide as the patches."""

    num_heads: Heads = 8
    dropout: float = Field(default=0.0, ge=0, lt=1)

    def build(self, num_classes: int, dim: int) -> DiseaseTokens:
        return DiseaseTokens(num_classes, dim, self.num_heads, self.dropout)
