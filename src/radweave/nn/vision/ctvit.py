"""CT-ViT, the encoder of CT-CLIP and GenerateCT: patches of a scan, attention within slices, then along them.

Source: Hamamci et al., "GenerateCT", arXiv:2305.16037, and "CT-CLIP", arXiv:2403.17834; the published code settles what
the papers leave open. It is kept as published, for its weights' sake: keys and values are read from tokens before the
norm, and the second position generator takes tokens in the order (row, column, slab) for (slab, row, column).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import model_validator
from torch import Tensor, nn

from radweave.core.batch import VisionFeatures
from radweave.core.config import Config, Count, Heads, Layers, Pixels, Width
from radweave.core.errors import InputError
from radweave.core.study import Modality
from radweave.nn.language_model import LoraSetting, NoLoraConfig, adapt
from radweave.nn.vision.resnet3d import Convolution3d
from radweave.nn.vision.weights import Shape, find_weights, load_named, read_weights

Grid = tuple[int, int, int, int]
"""Scans, slabs, rows, columns."""
_SHARPNESS: Final = 8.0
"""Factor of the cosines of queries and keys."""
_LEAK: Final = 0.1


class PositionGenerator(nn.Module):
    """A depthwise convolution over the grid; along the slabs it sees what lies before a token only."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv = Convolution3d(dim, dim, 3, groups=dim)

    def forward(self, x: Float[Tensor, "rows tokens dim"], grid: Grid) -> Float[Tensor, "rows tokens dim"]:
        volume = x.reshape(*grid, x.shape[-1]).permute(0, 4, 1, 2, 3)
        out: Tensor = self.conv(F.pad(volume, (1, 1, 1, 1, 2, 0)))
        return out.permute(0, 2, 3, 4, 1).reshape(x.shape)


class CosineAttention(nn.Module):
    """softmax(8 (s_q q / |q|) . (s_k k / |k|) + bias) v, with q of the normalised tokens, k and v of the tokens."""

    def __init__(self, dim: int, *, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm = nn.LayerNorm(dim, bias=False)
        self.queries = nn.Linear(dim, num_heads * head_dim, bias=False)
        self.keys_values = nn.Linear(dim, 2 * num_heads * head_dim, bias=False)
        self.query_scale = nn.Parameter(torch.ones(head_dim))
        self.key_scale = nn.Parameter(torch.ones(head_dim))
        self.output = nn.Linear(num_heads * head_dim, dim, bias=False)

    def forward(
        self, x: Float[Tensor, "rows tokens dim"], bias: Float[Tensor, "heads tokens tokens"] | None
    ) -> Float[Tensor, "rows tokens dim"]:
        keys, values = self.keys_values(x).chunk(2, dim=-1)
        queries, keys, values = (
            part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for part in (self.queries(self.norm(x)), keys, values)
        )
        queries = F.normalize(queries, dim=-1) * self.query_scale
        keys = F.normalize(keys, dim=-1) * self.key_scale
        mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias, scale=_SHARPNESS)
        out: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return out


class GatedGelu(nn.Module):
    """The first half of the channels, weighted by GELU of the second."""

    def forward(self, x: Float[Tensor, "*batch both"]) -> Float[Tensor, "*batch half"]:
        value, gate = x.chunk(2, dim=-1)
        return F.gelu(gate) * value


class CtVitLayer(nn.Module):
    """Positions, attention, feed-forward, each added to what it reads."""

    def __init__(self, dim: int, *, num_heads: int, head_dim: int) -> None:
        super().__init__()
        hidden = int(4 * (2 / 3) * dim)
        self.positions = PositionGenerator(dim)
        self.attention = CosineAttention(dim, num_heads=num_heads, head_dim=head_dim)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, 2 * hidden, bias=False), GatedGelu(), nn.Linear(hidden, dim, bias=False)
        )

    def forward(
        self, x: Float[Tensor, "rows tokens dim"], grid: Grid, bias: Float[Tensor, "heads tokens tokens"] | None
    ) -> Float[Tensor, "rows tokens dim"]:
        x = x + self.positions(x, grid)
        x = x + self.attention(x, bias)
        moved: Tensor = self.feed_forward(x)
        return x + moved


class CtVitEncoder(nn.Module):
    """A scan (N, 1, D, H, W) to tokens in (d, h, w) row-major order of the grid of patches.

    Grey values in [0, 1] become [-1, 1]. With ``codes`` a token is replaced by the vector of the codebook that lies in
    its direction, as CT-CLIP does; gradients pass as if it were not.
    """

    codebook: Tensor

    def __init__(self, config: CtVitConfig) -> None:
        super().__init__()
        dim, depth, side = config.width, config.slab, config.patch_size
        self.architecture = Shape(config)
        self.dim = dim
        self.channels = 1
        self.patch = (depth, side, side)
        self.codes = config.codes
        self.left_aside: tuple[str, ...] = ()
        voxels = depth * side * side
        self.patches = nn.Sequential(nn.LayerNorm(voxels), nn.Linear(voxels, dim), nn.LayerNorm(dim))
        self.distances = nn.Sequential(
            nn.Linear(2, dim), nn.LeakyReLU(_LEAK), nn.Linear(dim, dim), nn.LeakyReLU(_LEAK),
            nn.Linear(dim, config.num_heads),
        )  # fmt: skip
        sizes = {"num_heads": config.num_heads, "head_dim": config.head_dim}
        self.within = nn.ModuleList(CtVitLayer(dim, **sizes) for _ in range(config.spatial_layers))
        self.within_norm = nn.LayerNorm(dim, bias=False)
        self.along = nn.ModuleList(CtVitLayer(dim, **sizes) for _ in range(config.temporal_layers))
        self.along_norm = nn.LayerNorm(dim, bias=False)
        self.register_buffer("codebook", torch.zeros(config.codebook_size, dim), persistent=config.codes)

    def forward(self, pixel_values: Float[Tensor, "n c *space"]) -> VisionFeatures:
        """Encode scans (n, 1, d, h, w).

        Raises:
            InputError: if given images, or scans that are no whole number of patches.
        """
        if pixel_values.ndim != 5:
            raise InputError("takes volumes", field="vision_encoder", got="images", expected="another kind of encoder")
        size = tuple(pixel_values.shape[2:])
        if any(edge % patch for edge, patch in zip(size, self.patch, strict=True)):
            raise InputError(
                "not a whole number of patches",
                field="data.ct.size",
                got=list(size),
                expected=f"multiples of {self.patch}",
            )
        slabs, rows, columns = (edge // patch for edge, patch in zip(size, self.patch, strict=True))
        grid = (len(pixel_values), slabs, rows, columns)
        x = self.patches(self._cut(2 * pixel_values - 1, grid)).flatten(0, 1)
        bias = self._bias(rows, columns)
        for layer in self.within:
            x = layer(x, grid, bias)
        x = self.within_norm(x).unflatten(0, grid[:2]).transpose(1, 2).flatten(0, 1)
        for layer in self.along:
            x = layer(x, grid, None)
        x = self.along_norm(x).unflatten(0, (grid[0], rows * columns)).transpose(1, 2).flatten(1, 2)
        return VisionFeatures(tokens=self._coded(x) if self.codes else x, grid=(slabs, rows, columns))

    def _cut(self, scans: Float[Tensor, "n 1 d h w"], grid: Grid) -> Float[Tensor, "n slabs cells voxels"]:
        (depth, side, _), (count, slabs, rows, columns) = self.patch, grid
        cut = scans.reshape(count, slabs, depth, rows, side, columns, side)
        return cut.permute(0, 1, 3, 5, 2, 4, 6).reshape(count, slabs, rows * columns, depth * side * side)

    def _bias(self, rows: int, columns: int) -> Float[Tensor, "heads cells cells"]:
        """Bias of a small network by the distance of two patches of a slab, on a logarithmic scale."""
        device = self.codebook.device
        places = torch.cartesian_prod(torch.arange(rows, device=device), torch.arange(columns, device=device))
        apart = (places[:, None] - places[None]).to(self.codebook.dtype)
        bias: Tensor = self.distances(apart.sign() * apart.abs().log1p())
        return bias.permute(2, 0, 1)

    def _coded(self, x: Float[Tensor, "n tokens dim"]) -> Float[Tensor, "n tokens dim"]:
        nearest = (x @ self.codebook.T).argmax(-1)  # its vectors have length 1
        return x + (self.codebook[nearest] - x).detach()


class CtVitConfig(Config):
    """CT-ViT of CT-CLIP; the defaults are those of its published weights, for scans of 240 x 480 x 480 voxels.

    ``path`` loads CT-CLIP's file, or one of its encoder alone. ``slab`` and ``patch_size`` are the voxels of a patch
    along and within slices. ``spatial_layers`` attend within a slab, ``temporal_layers`` along the scan. ``codes``
    gives the vectors of its codebook for the tokens, which is what CT-CLIP compares with texts; it needs ``path``.
    """

    reads: ClassVar[Modality] = "ct"
    own_shape: ClassVar[bool] = True
    """The configuration is the shape, wherever the weights come from."""
    kind: Literal["ctvit"] = "ctvit"
    path: str | None = None
    width: Width = 512
    slab: Pixels = 15
    patch_size: Pixels = 30
    spatial_layers: Layers = 4
    temporal_layers: Layers = 4
    num_heads: Heads = 8
    head_dim: Width = 32
    codebook_size: Count = 8192
    codes: bool = False
    lora: LoraSetting = NoLoraConfig()

    @model_validator(mode="after")
    def _codes_come_from_weights(self) -> CtVitConfig:
        if self.codes and self.path is None:
            raise ValueError("codes are those of a checkpoint: give its path, or codes=false")
        return self

    def build(self, image_size: int, *, saved: Path | None = None) -> CtVitEncoder:
        """Build the encoder, and load its weights unless a run brings them (``saved``).

        Raises:
            InputError: if the weights at ``path`` cannot be read, or are not of exactly this network.
        """
        encoder = CtVitEncoder(self)
        if self.path is not None and saved is None:
            file = find_weights(Path(self.path))
            published = read_weights(file)
            names = _renamed(published, codes=self.codes)
            tensors = {own: published[name] for name, own in names.items()}
            if "codebook" in tensors:  # one of several books in general, here of one
                tensors["codebook"] = tensors["codebook"].flatten(0, -2)
            load_named(encoder, tensors, file)
            encoder.left_aside = tuple(sorted(published.keys() - names.keys()))
        adapt(encoder, self.lora)
        return encoder


_NAMES: Final = {
    "to_patch_emb.1.": "patches.0.",
    "to_patch_emb.2.": "patches.1.",
    "to_patch_emb.3.": "patches.2.",
    "spatial_rel_pos_bias.net.0.0.": "distances.0.",
    "spatial_rel_pos_bias.net.1.0.": "distances.2.",
    "spatial_rel_pos_bias.net.2.": "distances.4.",
    "enc_spatial_transformer.norm_out.gamma": "within_norm.weight",
    "enc_temporal_transformer.norm_out.gamma": "along_norm.weight",
    "enc_spatial_transformer.layers.": "within.",
    "enc_temporal_transformer.layers.": "along.",
}
_INSIDE: Final = (
    ("0.dsconv.", "positions.conv."), ("1.norm.gamma", "attention.norm.weight"), ("1.to_q.", "attention.queries."),
    ("1.to_kv.", "attention.keys_values."), ("1.q_scale", "attention.query_scale"),
    ("1.k_scale", "attention.key_scale"), ("1.to_out.", "attention.output."), ("3.0.", "feed_forward.0."),
    ("3.1.", "feed_forward.1."), ("3.4.", "feed_forward.3."),
)  # fmt: skip
_IDLE: Final = re.compile(r"\.(beta|null_kv)$|\.context_norm\.")
"""Zeros that are added, keys and values of which there are none, and a norm that attention to itself never uses."""


def _renamed(published: Mapping[str, Tensor], *, codes: bool) -> dict[str, str]:
    """Published name -> ours, for what this network has."""
    names: dict[str, str] = {}
    for name in published:
        inner = name.removeprefix("visual_transformer.")
        if codes and inner == "vq._codebook.embed":
            names[name] = "codebook"
        start = next((start for start in _NAMES if inner.startswith(start)), None)
        if start is None or _IDLE.search(inner):
            continue
        rest = inner.removeprefix(start)
        if start.endswith("layers."):
            number, _, rest = rest.partition(".")
            rest = next((f"{number}.{own}{rest[len(old) :]}" for old, own in _INSIDE if rest.startswith(old)), rest)
        names[name] = _NAMES[start] + rest
    return names
