"""Disease-aware semantic tokens: one learned query per class that reads the patches and is judged on its own.

Source: the dual-stage disease-aware framework, "DAST Classification" (methods page: docs/methods/dast.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn

from radweave.base.config import Config, Heads
from radweave.nn.query_transformer import CrossAttention


@dataclass(frozen=True, slots=True)
class DiseaseReading:
    """What the disease tokens made of a study.

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
