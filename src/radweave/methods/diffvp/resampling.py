"""The resampler: voxel tokens of any number to a few latent tokens, the same map for target and reference (Eq. 3)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn

from radweave.core.config import Config, Heads, Layers, Ratio, Slots, Width
from radweave.nn.connector import NUM_VIEW_KINDS, ViewTokens
from radweave.nn.query_transformer import QueryLayer, QueryOutput, QueryTransformer

AXES, OCTAVES = 3, 4
POSITION_DIM = 2 * AXES * OCTAVES
SMALLEST_SCALE = 1e-4


def cell_positions(grid: tuple[int, ...]) -> Float[Tensor, "cells features"]:
    """Positions of the cells of a grid (h, w) or (d, h, w): sines and cosines of its middle, row-major.

    A middle x has x in [-1, 1] along every axis, whatever the number of cells; features are sin and cos of pi 2^k x,
    k = 0..3. A plane lies in the middle of the first axis.
    """
    sizes = (1,) * (AXES - len(grid)) + tuple(grid)
    middles = [(torch.arange(size) + 0.5) / size * 2 - 1 for size in sizes]
    places = torch.stack(torch.meshgrid(*middles, indexing="ij"), dim=-1).flatten(0, -2)
    angles = (places[:, :, None] * torch.pi * 2.0 ** torch.arange(OCTAVES)).flatten(1)
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class Resampler(nn.Module):
    """I = Resampler(F, L): n latent queries L read the voxel tokens F by cross-attention (Eq. 3).

    Before that, tokens are standardised per channel by the mean and deviation of the training split's tokens, which
    ``calibrate`` sets, and get a learned linear map of their place and an embedding of their view's kind. One module
    reads target and reference, in two calls: nothing in it may depend on what else is in the batch.

    Deviations: the paper gives the tokens no positions and does not standardise them. The tokens of an encoder that is
    trained from nothing are nearly the same for all scans; with target and reference standardised alike, what tells
    them apart is what the queries read. Queries start far apart (deviation 1), and with ``sharpness`` above 1 they look
    at few places from the start: in a few hundred steps queries that start alike stay alike.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, transformer: QueryTransformer, source_dim: int, sharpness: float = 1.0) -> None:
        super().__init__()
        self.transformer = transformer
        nn.init.normal_(transformer.queries)
        with torch.no_grad():
            for layer in transformer.layers:
                assert isinstance(layer, QueryLayer)
                layer.cross_attention.query.weight.mul_(sharpness)
        self.dim = transformer.dim
        self.position = nn.Linear(POSITION_DIM, source_dim)
        self.view_embedding = nn.Embedding(NUM_VIEW_KINDS, source_dim)
        nn.init.normal_(self.view_embedding.weight, std=0.02)
        self.register_buffer("mean", torch.zeros(source_dim))
        self.register_buffer("scale", torch.ones(source_dim))

    def forward(self, views: ViewTokens) -> QueryOutput:
        """Latent tokens (B, n, d) of the views that are there, and what each latent reads (B, n, V * S)."""
        tokens = (views.tokens - self.mean) / self.scale
        places: Tensor = self.position(cell_positions(views.grid).to(tokens))
        tokens = tokens + places + self.view_embedding(views.view_ids)[:, :, None]
        # A copy: a mask made in inference mode could not be remembered for the gradient.
        mask = views.view_mask.clone()[:, :, None].expand(tokens.shape[:3]).flatten(1, 2)
        out: QueryOutput = self.transformer(tokens.flatten(1, 2), mask)
        return out

    @torch.no_grad()
    def calibrate(self, batches: Iterable[ViewTokens]) -> None:
        """Set mean and deviation of every channel from all tokens that are there."""
        count, total, squares = 0, self.mean.double() * 0, self.mean.double() * 0
        for views in batches:
            tokens = present(views.tokens, views.view_mask).flatten(0, 1).double()
            count += len(tokens)
            total += tokens.sum(0)
            squares += tokens.square().sum(0)
        mean = total / count
        self.mean.copy_(mean)
        self.scale.copy_((squares / count - mean.square()).clamp(min=SMALLEST_SCALE**2).sqrt())


def present(
    tokens: Float[Tensor, "batch views cells dim"], view_mask: Bool[Tensor, "batch views"]
) -> Float[Tensor, "there cells dim"]:
    """The views that are there."""
    return tokens[view_mask]


class ResamplerConfig(Config):
    """Number of latents n, their width d, and the depth of the transformer that reads for them.

    ``sharpness`` scales the query maps of the cross-attention at the start.
    """

    num_latents: Slots = 32
    dim: Width = 512
    num_layers: Layers = 2
    num_heads: Heads = 8
    dropout: float = Field(default=0.0, ge=0, lt=1)
    ffn_ratio: Ratio = 4.0
    sharpness: float = Field(default=1.0, gt=0)

    def build(self, source_dim: int) -> Resampler:
        size = self.dim, source_dim, self.num_layers, self.num_heads
        transformer = QueryTransformer(
            self.num_latents, *size, self_attention=True, dropout=self.dropout, ffn_ratio=self.ffn_ratio
        )
        return Resampler(transformer, source_dim, self.sharpness)
