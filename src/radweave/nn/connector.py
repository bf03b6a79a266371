"""From visual tokens to the language model's width."""

from __future__ import annotations

from typing import Annotated, Literal

from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from radweave.config import Config

NUM_VIEW_KINDS = 3
"""0 unknown, 1 frontal, 2 lateral; see ``Batch.view_ids``."""


class Connector(nn.Module):
    """Project visual tokens and say which view they come from.

        h = LN(P x + e_view)

    P is linear, or linear - GELU - linear. The LayerNorm comes after the projection, as in R2GenGPT.
    """

    def __init__(self, projection: nn.Module, dim: int) -> None:
        super().__init__()
        self.projection = projection
        self.view_embedding = nn.Embedding(NUM_VIEW_KINDS, dim)
        self.norm = nn.LayerNorm(dim)
        nn.init.normal_(self.view_embedding.weight, std=0.02)

    def forward(
        self, tokens: Float[Tensor, "batch views tokens dim"], view_ids: Int[Tensor, "batch views"]
    ) -> Float[Tensor, "batch views tokens width"]:
        out: Tensor = self.norm(self.projection(tokens) + self.view_embedding(view_ids)[:, :, None])
        return out


class LinearConnectorConfig(Config):
    """One linear map."""

    kind: Literal["linear"] = "linear"

    def build(self, dim: int, width: int) -> Connector:
        return Connector(nn.Linear(dim, width), width)


class MlpConnectorConfig(Config):
    """Two linear maps with a GELU between, as in LLaVA-1.5."""

    kind: Literal["mlp"] = "mlp"
    expansion: float = 1.0

    def build(self, dim: int, width: int) -> Connector:
        hidden = int(width * self.expansion)
        return Connector(nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, width)), width)


ConnectorConfig = Annotated[LinearConnectorConfig | MlpConnectorConfig, Field(discriminator="kind")]
