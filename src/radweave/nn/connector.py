"""From visual tokens to the language model's width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from radweave.core.batch import Batch
from radweave.core.config import Config, Ratio

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


# The patch tokens of all views of a study, padded and masked: what every method starts from.


@dataclass(frozen=True, slots=True)
class ViewTokens:
    """Patch tokens ``tokens`` (B, V, S, D), zero where a view is absent; S runs row-major over ``grid``.

    Where images are compared as they are, pixels stand in the place of tokens, and the grid is empty.

    ``view_mask`` (B, V) is True for a view that is there, ``view_ids`` (B, V) says of which kind it is.
    """

    tokens: Float[Tensor, "batch views *values"]
    view_mask: Bool[Tensor, "batch views"]
    view_ids: Int[Tensor, "batch views"]
    grid: tuple[int, ...]

    def flat(self) -> tuple[Float[Tensor, "batch all dim"], Bool[Tensor, "batch all"]]:
        """The tokens of all views in one row (B, V * S, D), and which of them are there (B, V * S)."""
        mask = self.view_mask[:, :, None].expand(self.tokens.shape[:3])
        return self.tokens.flatten(1, 2), mask.flatten(1, 2)

    def mean(self) -> Float[Tensor, "batch dim"]:
        """Mean over the tokens that are there."""
        weight = self.view_mask[:, :, None].to(self.tokens.dtype)
        return (self.tokens.mean(2) * weight).sum(1) / weight.sum(1)


def mean_and_largest(
    tokens: Float[Tensor, "batch views tokens dim"], view_mask: Bool[Tensor, "batch views"]
) -> Float[Tensor, "batch twice"]:
    """Mean and largest value of every channel over the tokens of a view, averaged over the views that are there."""
    weight = view_mask[:, :, None].to(tokens.dtype)
    by_view = torch.cat([tokens.mean(2), tokens.amax(2)], dim=-1)
    return (by_view * weight).sum(1) / weight.sum(1)


def encode_views(encoder: nn.Module, batch: Batch) -> ViewTokens:
    """Encode every view of every study; a CT volume counts as one view.

    Only the views that are there are encoded, so that padding reaches no batch statistics. Tokens that were computed
    before (``batch.vision_tokens``, for a frozen encoder) are taken as they are.
    """
    if batch.volume is not None and batch.vision_tokens is None:
        encoded = encoder(batch.volume)
        ones = batch.volume.new_ones(len(batch), 1)
        return ViewTokens(encoded.tokens[:, None], ones.bool(), ones.long() * 0, encoded.grid)
    assert batch.view_mask is not None
    assert batch.view_ids is not None
    if batch.vision_tokens is not None:
        assert batch.vision_grid is not None
        return ViewTokens(batch.vision_tokens, batch.view_mask, batch.view_ids, batch.vision_grid)
    assert batch.pixel_values is not None
    encoded = encoder(batch.pixel_values[batch.view_mask])
    tokens = encoded.tokens.new_zeros(*batch.view_mask.shape, *encoded.tokens.shape[1:])
    tokens[batch.view_mask] = encoded.tokens
    return ViewTokens(tokens, batch.view_mask, batch.view_ids, encoded.grid)


def connect_views(
    connector: Connector, views: ViewTokens
) -> tuple[Float[Tensor, "batch all width"], Bool[Tensor, "batch all"]]:
    """Project the tokens of the views that are there to the language model's width: (B, V * S, H) and their mask."""
    present = views.view_mask
    projected = connector(views.tokens[present], views.view_ids[present])
    hidden = projected.new_zeros(*present.shape, *projected.shape[1:])
    hidden[present] = projected
    mask = present[:, :, None].expand(hidden.shape[:3])
    return hidden.flatten(1, 2), mask.flatten(1, 2)
