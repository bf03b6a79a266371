"""Stage 1: a Q-Former with one query per disease and some for the image, and one binary head per disease."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn

from radweave.core.config import Config, Heads, Layers, Ratio, Width
from radweave.nn.global_batch import gather_batch
from radweave.nn.query_transformer import QueryTransformer

Orthogonal = Literal["features", "queries"]


@dataclass(frozen=True, slots=True)
class Reading:
    """``diseases`` (B, K, d), the paper's F_d, one token per disease; ``image`` (B, Q, d), its Q_f."""

    diseases: Float[Tensor, "batch classes dim"]
    image: Float[Tensor, "batch queries dim"]


class DiseaseQueryFormer(nn.Module):
    """K disease queries and the image queries read the visual tokens together.

        [F_d; Q_f] = QFormer([Q_d; Q_img], F)            (Sec. III-B)

    Deviations: the paper does not say how the two kinds of queries meet. Here they attend to each other before they
    attend to the image; through that the image queries learn too in stage 1, although only F_d is judged.
    """

    def __init__(
        self, num_classes: int, num_image_queries: int, transformer: QueryTransformer, orthogonal: Orthogonal
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.num_image_queries = num_image_queries
        self.transformer = transformer
        self.dim = transformer.dim
        self.orthogonal = orthogonal

    def forward(self, tokens: Float[Tensor, "batch source source_dim"], mask: Bool[Tensor, "batch source"]) -> Reading:
        """Read the tokens of all views of each study that are there."""
        out = self.transformer(tokens, mask).tokens
        return Reading(out[:, : self.num_classes], out[:, self.num_classes :])

    def orthogonality(self, diseases: Float[Tensor, "batch classes dim"]) -> Float[Tensor, ""]:
        """Mean squared cosine of all pairs of diseases: 0 where all are orthogonal.

        ``orthogonal="queries"`` compares the queries Q_d, which are independent of the image. ``"features"`` compares
        what each study gives them, F_d less its mean over the batch: diseases whose features vary alike are pushed
        apart. A batch of one study has no such variation and the loss 0.

        The paper names a loss "which enforces distinctiveness among queries" (Sec. III-E) and gives no formula.
        """
        if self.orthogonal == "queries":
            return overlap(self.transformer.queries[: self.num_classes])
        return overlap(diseases - gather_batch(diseases).mean(dim=0))


def overlap(vectors: Float[Tensor, "*batch classes dim"]) -> Float[Tensor, ""]:
    """Mean squared cosine of all pairs of vectors; a vector of zeros is orthogonal to all."""
    unit = F.normalize(vectors, dim=-1)
    cosines = unit @ unit.transpose(-1, -2)
    others = ~torch.eye(unit.shape[-2], dtype=torch.bool, device=unit.device)
    return cosines[..., others].square().mean()


class DiseaseHeads(nn.Module):
    """One linear head per disease, on that disease's own token: logit_k = w_k . F_d,k + b_k."""

    def __init__(self, num_classes: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num_classes, dim) * dim**-0.5)
        self.bias = nn.Parameter(torch.zeros(num_classes))

    def forward(self, diseases: Float[Tensor, "batch classes dim"]) -> Float[Tensor, "batch classes"]:
        return (diseases * self.weight).sum(-1) + self.bias


class QueryFormerConfig(Config):
    """Width and depth of the Q-Former. With two layers or more the image queries learn in stage 1.

    ``orthogonal``: vectors that the orthogonality loss compares.
    """

    dim: Width = 768
    num_layers: Layers = 6
    num_heads: Heads = 12
    ffn_ratio: Ratio = 4.0
    dropout: float = Field(default=0.1, ge=0, lt=1)
    num_image_queries: int = Field(default=14, ge=0, le=4096)
    orthogonal: Orthogonal = "features"

    def build(self, num_classes: int, source_dim: int) -> DiseaseQueryFormer:
        size = self.dim, source_dim, self.num_layers, self.num_heads
        transformer = QueryTransformer(
            num_classes + self.num_image_queries,
            *size,
            self_attention=True,
            dropout=self.dropout,
            ffn_ratio=self.ffn_ratio,
        )
        return DiseaseQueryFormer(num_classes, self.num_image_queries, transformer, self.orthogonal)
