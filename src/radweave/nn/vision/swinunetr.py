"""The Swin transformer of Swin UNETR, with which VoCo, SuPreM and MONAI's own self-supervised CT weights were trained.

Source: Hatamizadeh et al., "Swin UNETR", arXiv:2201.01266; with a residual convolution before every stage He et al.,
"SwinUNETR-V2", MICCAI 2023; the layers: Liu et al., "Swin Transformer", ICCV 2021. MONAI's code settles what the papers
leave open, and two quirks of it are kept, because the weights grew up with them: where a grid is smaller than a window,
the biases of the window's first positions are taken; and before MONAI 1.5 merging took two of eight neighbours twice.

VoCo: Wu et al., "VoCo", CVPR 2024, arXiv:2402.17300, github.com/Luffy03/Large-Scale-Medical.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Final, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn

from radweave.core.batch import VisionFeatures
from radweave.core.config import Config, Depths, Pixels, Width
from radweave.core.errors import InputError
from radweave.core.study import Modality
from radweave.nn.language_model import LoraSetting, NoLoraConfig, adapt
from radweave.nn.vision.resnet3d import Convolution3d
from radweave.nn.vision.weights import FIELD, Shape, find_weights, load_named, read_weights

Space = tuple[int, int, int]
Merging = Literal["repeated", "each"]

MAX_STAGES: Final = 4
FORBIDDEN: Final = -100.0
"""Added to the score of two voxels that share a window only because one of them was rolled around the edge."""
_NEIGHBOURS: Final[dict[Merging, tuple[Space, ...]]] = {
    "repeated": ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1), (0, 1, 0), (0, 0, 1), (1, 1, 1)),
    "each": ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (1, 0, 1), (0, 1, 1), (1, 1, 1)),
}
"""Order in which merging takes the 2 x 2 x 2 neighbours: as in MONAI before 1.5, and since (its issue 8284)."""


class WindowAttention(nn.Module):
    """softmax(q k / sqrt(d) + bias of how far apart two voxels lie) v, within windows."""

    index: Tensor

    def __init__(self, dim: int, *, num_heads: int, window: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.bias_table = nn.Parameter(torch.zeros((2 * window - 1) ** 3, num_heads))
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        nn.init.trunc_normal_(self.bias_table, std=0.02)
        self.register_buffer("index", _bias_index(window), persistent=False)

    def forward(
        self, x: Float[Tensor, "n windows voxels dim"], apart: Float[Tensor, "windows voxels voxels"] | None
    ) -> Float[Tensor, "n windows voxels dim"]:
        voxels = x.shape[2]
        bias = self.bias_table[self.index[:voxels, :voxels]].permute(2, 0, 1)
        mask = bias if apart is None else bias + apart[:, None]
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(3, 0, 1, 4, 2, 5)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        out: Tensor = self.proj(mixed.transpose(2, 3).flatten(3))
        return out


class SwinBlock(nn.Module):
    """Attention within windows, then a feed-forward, each added to what it reads; every other block shifts windows."""

    def __init__(self, dim: int, *, num_heads: int, window: int, shifted: bool) -> None:
        super().__init__()
        self.window = window
        self.shifted = shifted
        self.norm1 = nn.LayerNorm(dim)
        self.attention = WindowAttention(dim, num_heads=num_heads, window=window)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Float[Tensor, "n x y z dim"]) -> Float[Tensor, "n x y z dim"]:
        x = x + self._attended(self.norm1(x))
        moved: Tensor = self.mlp(self.norm2(x))
        return x + moved

    def _attended(self, x: Float[Tensor, "n x y z dim"]) -> Float[Tensor, "n x y z dim"]:
        grid = _space(x)
        window = _each(grid, lambda edge: min(edge, self.window))
        # A window that spans an axis has nothing to shift to on it.
        shift = _each(grid, lambda edge: self.window // 2 if self.shifted and edge > self.window else 0)
        missing = [-edge % side for edge, side in zip(grid, window, strict=True)]
        padded = F.pad(x, (0, 0, 0, missing[2], 0, missing[1], 0, missing[0]))
        whole, axes = _space(padded), (1, 2, 3)
        rolled = padded.roll([-step for step in shift], axes) if any(shift) else padded
        apart = _apart(whole, window, shift, x) if any(shift) else None
        attended = _joined(self.attention(_cut(rolled, window), apart), whole, window)
        back = attended.roll(shift, axes) if any(shift) else attended
        return back[:, : grid[0], : grid[1], : grid[2]]


class ResidualConvolutions(nn.Module):
    """Two 3 x 3 x 3 convolutions added to what they read; every channel of every scan is standardised after each."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv1 = Convolution3d(dim, dim, 3, padding=1, bias=False)
        self.conv2 = Convolution3d(dim, dim, 3, padding=1, bias=False)

    def forward(self, x: Float[Tensor, "n dim x y z"]) -> Float[Tensor, "n dim x y z"]:
        out = F.leaky_relu(F.instance_norm(self.conv1(x)), 0.01)
        return F.leaky_relu(F.instance_norm(self.conv2(out)) + x, 0.01)


class Stage(nn.Module):
    """Blocks on one grid, then 2 x 2 x 2 neighbours merged into one of twice the width."""

    def __init__(
        self, dim: int, *, depth: int, num_heads: int, window: int, residual: bool, neighbours: tuple[Space, ...]
    ) -> None:
        super().__init__()
        self.neighbours = neighbours
        self.residual = ResidualConvolutions(dim) if residual else nn.Identity()
        self.blocks = nn.ModuleList(
            SwinBlock(dim, num_heads=num_heads, window=window, shifted=bool(number % 2)) for number in range(depth)
        )
        self.norm = nn.LayerNorm(8 * dim)
        self.reduction = nn.Linear(8 * dim, 2 * dim, bias=False)

    def forward(self, x: Float[Tensor, "n dim x y z"]) -> Float[Tensor, "n dim2 x2 y2 z2"]:
        tokens = self.residual(x).permute(0, 2, 3, 4, 1)
        for block in self.blocks:
            tokens = block(tokens)
        merged = torch.cat([tokens[:, i::2, j::2, k::2] for i, j, k in self.neighbours], dim=-1)
        out: Tensor = self.reduction(self.norm(merged))
        return out.permute(0, 4, 1, 2, 3)


class SwinUnetrEncoder(nn.Module):
    """A scan (N, 1, D, H, W) to tokens in (d, h, w) row-major order of the last stage's grid.

    The weights saw scans as (x, y, z) to the patient's right, front and head; here they are (z, y, x) to head, back and
    left. A scan is turned, and its tokens are turned back.
    Grey values stay in [0, 1], as published. ``left_aside`` names what a checkpoint held beyond this network.
    """

    def __init__(self, config: SwinUnetrConfig) -> None:
        super().__init__()
        self.architecture = Shape(config)
        self.dim = config.width * 2 ** len(config.depths)
        self.channels = 1
        self.left_aside: tuple[str, ...] = ()
        self.patches = Convolution3d(1, config.width, config.patch_size, stride=config.patch_size)
        self.stages = nn.ModuleList(
            Stage(
                config.width * 2**number,
                depth=depth,
                num_heads=heads,
                window=config.window,
                residual=config.residual,
                neighbours=_NEIGHBOURS[config.merging],
            )
            for number, (depth, heads) in enumerate(zip(config.depths, config.num_heads, strict=True))
        )
        self.step = config.patch_size * 2 ** len(config.depths)

    def forward(self, pixel_values: Float[Tensor, "n c *space"]) -> VisionFeatures:
        """Encode scans (n, 1, d, h, w).

        Raises:
            InputError: if given images, or scans that the stages cannot halve.
        """
        if pixel_values.ndim != 5:
            raise InputError("takes volumes", field="vision_encoder", got="images", expected="another kind of encoder")
        size = tuple(pixel_values.shape[2:])
        if any(edge % self.step for edge in size):
            raise InputError(
                "the stages cannot halve it", field="data.ct.size", got=list(size), expected=f"multiples of {self.step}"
            )
        x = self.patches(pixel_values.transpose(2, 4).flip(2, 3))
        for stage in self.stages:
            x = stage(x)
        x = x.flip(2, 3).transpose(2, 4)
        tokens = x.flatten(2).transpose(1, 2)
        return VisionFeatures(tokens=F.layer_norm(tokens, (self.dim,)), grid=(x.shape[2], x.shape[3], x.shape[4]))


class SwinUnetrConfig(Config):
    """The Swin transformer of MONAI's SwinUNETR; the defaults are those of VoCo's weights of size B.

    ``path`` loads VoCo's, SuPreM's or MONAI's file; ``width`` is 48 for B, 96 for L, 192 for H. ``residual`` is false
    for weights of Swin UNETR before its second version. ``merging`` "repeated" is that of weights trained with MONAI
    before 1.5, VoCo's among them; "each" takes every neighbour once. With fewer ``depths`` the last stages are left
    out: three give tokens of 16 voxels a side, four of 32.
    """

    reads: ClassVar[Modality] = "ct"
    own_shape: ClassVar[bool] = True
    """The configuration is the shape, wherever the weights come from."""
    kind: Literal["swinunetr"] = "swinunetr"
    path: str | None = None
    width: Width = 48
    patch_size: Pixels = 2
    depths: Depths = (2, 2, 2, 2)
    num_heads: Depths = (3, 6, 12, 24)
    window: int = Field(default=7, ge=2, le=16)
    residual: bool = True
    merging: Merging = "repeated"
    lora: LoraSetting = NoLoraConfig()

    @model_validator(mode="after")
    def _stages_fit(self) -> SwinUnetrConfig:
        if not len(self.depths) == len(self.num_heads) <= MAX_STAGES:
            raise ValueError(f"depths and num_heads need one value per stage, of at most {MAX_STAGES}")
        for number, heads in enumerate(self.num_heads):
            if self.width * 2**number % heads:
                raise ValueError(f"{heads} heads do not divide the width {self.width * 2**number} of their stage")
        return self

    def build(self, image_size: int, *, saved: Path | None = None) -> SwinUnetrEncoder:
        """Build the encoder, and load its weights unless a run brings them (``saved``).

        Raises:
            InputError: if the weights at ``path`` cannot be read, or are not of exactly this network.
        """
        encoder = SwinUnetrEncoder(self)
        if self.path is not None and saved is None:
            file = find_weights(Path(self.path))
            published = read_weights(file)
            names = _renamed(published, len(self.depths))
            self._refuse_other(published, names, file)
            load_named(encoder, {own: published[name] for name, own in names.items()}, file)
            encoder.left_aside = tuple(sorted(published.keys() - names.keys()))
        adapt(encoder, self.lora)
        return encoder

    def _refuse_other(self, published: Mapping[str, Tensor], names: Mapping[str, str], file: Path) -> None:
        own = {renamed: published[name] for name, renamed in names.items()}
        if "patches.weight" not in own:
            raise InputError(
                "no Swin transformer in MONAI's layout",
                file=file,
                field=FIELD,
                expected="swinViT.patch_embed.proj.weight",
            )
        width, residual = own["patches.weight"].shape[0], any(".residual." in name for name in own)
        for name, got, wanted in (("width", width, self.width), ("residual", residual, self.residual)):
            if got != wanted:
                raise InputError(
                    "the weights are of another size",
                    file=file,
                    field=f"vision_encoder.{name}",
                    got=str(wanted).lower(),
                    expected=str(got).lower(),
                )


def _each(space: Space, rule: Callable[[int], int]) -> Space:
    return rule(space[0]), rule(space[1]), rule(space[2])


def _space(x: Tensor) -> Space:
    return x.shape[1], x.shape[2], x.shape[3]


def _cut(x: Float[Tensor, "n x y z dim"], window: Space) -> Float[Tensor, "n windows voxels dim"]:
    counts = [edge // side for edge, side in zip(_space(x), window, strict=True)]
    cells = x.reshape(len(x), counts[0], window[0], counts[1], window[1], counts[2], window[2], -1)
    return cells.permute(0, 1, 3, 5, 2, 4, 6, 7).flatten(4, 6).flatten(1, 3)


def _joined(x: Float[Tensor, "n windows voxels dim"], grid: Space, window: Space) -> Float[Tensor, "n x y z dim"]:
    counts = [edge // side for edge, side in zip(grid, window, strict=True)]
    cells = x.reshape(len(x), *counts, *window, -1).permute(0, 1, 4, 2, 5, 3, 6, 7)
    return cells.reshape(len(x), *grid, -1)


def _apart(grid: Space, window: Space, shift: Space, like: Tensor) -> Float[Tensor, "windows voxels voxels"]:
    """The mask between voxels and those that were rolled in from the other side."""
    place = torch.zeros(1, *grid, 1, device=like.device)
    for axis, (edge, side, step) in enumerate(zip(grid, window, shift, strict=True)):
        if step:
            along = torch.arange(edge, device=like.device)
            region = (along >= edge - side).float() + (along >= edge - step).float()
            place = 3 * place + region.view([-1 if other == axis + 1 else 1 for other in range(5)])
    regions = _cut(place, window)[0, :, :, 0]
    return (regions[:, :, None] != regions[:, None]).to(like.dtype) * FORBIDDEN


def _bias_index(window: int) -> Int[Tensor, "voxels voxels"]:
    """For two voxels of a window the row of the table that holds their bias."""
    axis = torch.arange(window)
    places = torch.cartesian_prod(axis, axis, axis)
    apart = places[:, None] - places[None] + window - 1
    side = 2 * window - 1
    return (apart[..., 0] * side + apart[..., 1]) * side + apart[..., 2]


_START: Final = re.compile(r"^(?:module\.)?(?:backbone\.)?(?:swinViT\.|encoder\.)?(?=patch_embed\.|layers\d)")
_STAGE: Final = re.compile(r"layers(\d)c?\.0\.(?:0\.)?(.+)")
_INSIDE: Final = (
    (r"^layer\.(conv[12])\.conv\.", r"residual.\1."),
    (r"^downsample\.", ""),
    (r"\.attn\.relative_position_bias_table$", ".attention.bias_table"),
    (r"\.attn\.", ".attention."),
    (r"\.mlp\.(?:fc|linear)1\.", ".mlp.0."),
    (r"\.mlp\.(?:fc|linear)2\.", ".mlp.2."),
)


def _renamed(published: Mapping[str, Tensor], stages: int) -> dict[str, str]:
    """Published name -> ours, for the patches and the stages that this network has."""
    names: dict[str, str] = {}
    for name in published:
        if not (start := _START.match(name)) or name.endswith("relative_position_index"):
            continue
        inner = name[start.end() :]
        if inner.startswith("patch_embed.proj."):
            names[name] = f"patches.{inner.removeprefix('patch_embed.proj.')}"
        elif (stage := _STAGE.fullmatch(inner)) and int(stage[1]) <= stages:
            rest = stage[2]
            for pattern, own in _INSIDE:
                rest = re.sub(pattern, own, rest)
            names[name] = f"stages.{int(stage[1]) - 1}.{rest}"
    return names
