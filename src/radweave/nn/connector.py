"""From visual tokens to the language model's width."""

from __future__ import annotations

from typing import Annotated, Literal

from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from radweave.base.config import Config, Ratio

NUM_VIEW_KINDS = 3
"""0 unknown, 1 frontal, 2 lateral; see ``Batch.view_ids``."""


class TokenNorm(nn.Module):
    """Batch normalisation of every channel over images and positions.

    The tokens of an encoder trained from nothing are nearly the same for all chest images (mean cosine 0.97 measured),
    and a language model learns to ignore them. Taking out what all images share leaves what tells them apart.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(dim)

    def forward(self, tokens: Float[Tensor, "n tokens dim"]) -> Float[Tensor, "n tokens dim"]:
        out: Tensor = self.norm(tokens.transpose(1, 2)).transpose(1, 2)
        return out


class Connector(nn.Module):
    """Project visual tokens and say which view they come from.

        h = LN(P N(x) + e_view)

    P is linear, or linear - GELU - linear; N is nothing, or ``TokenNorm``. The LayerNorm comes after the projection, as
    in R2GenGPT.
    """

    def __init__(self, input_norm: nn.Module, projection: nn.Module, dim: int) -> None:
        super().__init__()
        self.input_norm = input_norm
        self.projection = projection
        self.view_embedding = nn.Embedding(NUM_VIEW_KINDS, dim)
        self.norm = nn.LayerNorm(dim)
        nn.init.normal_(self.view_embedding.weight, std=0.02)

    def forward(
        self, tokens: Float[Tensor, "n tokens dim"], view_ids: Int[Tensor, " n"]
    ) -> Float[Tensor, "n tokens width"]:
        """Project the tokens of ``n`` views; ``view_ids`` are their kinds."""
        projected = self.projection(self.input_norm(tokens))
        out: Tensor = self.norm(projected + self.view_embedding(view_ids)[:, None])
        return out


InputNorm = Literal["none", "batch"]


def _input_norm(kind: InputNorm, dim: int) -> nn.Module:
    return TokenNorm(dim) if kind == "batch" else nn.Identity()


class LinearConnectorConfig(Config):
    """One linear map."""

    kind: Literal["linear"] = "linear"
    input_norm: InputNorm = "none"

    def build(self, dim: int, width: int) -> Connector:
        return Connector(_input_norm(self.input_norm, dim), nn.Linear(dim, width), width)


class MlpConnectorConfig(Config):
    """Two linear maps with a GELU between, as in LLaVA-1.5."""

    kind: Literal["mlp"] = "mlp"
    input_norm: InputNorm = "none"
    expansion: Ratio = 1.0

    def build(self, dim: int, width: int) -> Connector:
        hidden = int(width * self.expansion)
        projection = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, width))
        return Connector(_input_norm(self.input_norm, dim), projection, width)


ConnectorConfig = Annotated[LinearConnectorConfig | MlpConnectorConfig, Field(discriminator="kind")]
