"""VMamba: a vision encoder whose tokens are mixed by selective scans in four directions, linear in their number.

Source: Liu et al., "VMamba: Visual state space model", NeurIPS 2024, arXiv:2401.10166, Sec. 4 and Fig. 3-5. The network
is the one of its published classification models with state size 1 (there called ``v05_noz``): overlapping patch
embedding, no gating branch in SS2D, a feed-forward network in every block, convolutions between the stages.
Deviations: none from those models. The tokens are the last stage's, after the norm that precedes the classifier.

Shape letters: N images, H and W the patch grid, D width, E = ssm_ratio D inner width, K = 4 directions, R rank.
"""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from radweave.core.batch import VisionFeatures
from radweave.core.config import Channels, Config, Depths, Ratio, Width, Widths
from radweave.core.errors import InputError
from radweave.core.study import Modality
from radweave.nn.language_model import LoraSetting, NoLoraConfig, adapt
from radweave.nn.selective_scan import ScanBackend, selective_scan
from radweave.nn.vision.pretrained import pixel_statistics
from radweave.nn.vision.weights import Shape, load_published

NUM_DIRECTIONS = 4
# Step sizes that the softplus of the step bias gives before training (Gu and Dao, Sec. 3.6).
SMALLEST_STEP, LARGEST_STEP = 1e-3, 1e-1


@torch.no_grad()
def start_steps(bias: Tensor) -> None:
    """Fill the bias of steps so that they start log-uniform between their bounds (Gu and Dao, Sec. 3.6)."""
    low, high = math.log(SMALLEST_STEP), math.log(LARGEST_STEP)
    steps = torch.exp(low + torch.rand_like(bias) * (high - low))
    bias.copy_(steps + torch.log(-torch.expm1(-steps)))  # the inverse of softplus


def drop_branch(branch: Tensor, rate: float) -> Tensor:
    """Drop a branch of each image with this rate and scale the rest, so that the mean stays; (n, ...).

    Source: Huang et al., "Deep networks with stochastic depth", 2016.
    """
    if rate == 0:
        return branch
    shape = (branch.shape[0], *[1] * (branch.ndim - 1))
    return branch * torch.empty(shape, device=branch.device).bernoulli_(1 - rate) / (1 - rate)


def cross_scan(x: Float[Tensor, "n h w e"]) -> Float[Tensor, "n 4 tokens e"]:
    """The grid as four sequences: along rows, along columns, and both from the end (Liu et al., Fig. 4)."""
    rows, columns = x.flatten(1, 2), x.transpose(1, 2).flatten(1, 2)
    return torch.stack([rows, columns, rows.flip(1), columns.flip(1)], dim=1)


def cross_merge(y: Float[Tensor, "n 4 tokens e"], height: int, width: int) -> Float[Tensor, "n h w e"]:
    """Sum the four sequences, each token back at its place in the grid; the transpose of ``cross_scan``."""
    rows, columns = y[:, 0] + y[:, 2].flip(1), y[:, 1] + y[:, 3].flip(1)
    num, _, channels = rows.shape
    return rows.view(num, height, width, channels) + columns.view(num, width, height, channels).transpose(1, 2)


class SS2D(nn.Module):
    """Selective scan over a patch grid in four directions.

        x = SiLU(depthwise3x3(W_in z)),   s_k = scan_k(x),   [r_k; B_k; C_k] = W_k s_k
        delta_k = softplus(V_k r_k + b_k),   y_k = selective_scan(s_k, delta_k, -exp(A_k), B_k, C_k, D_k)
        out = W_out LN(sum_k merge_k(y_k))

    Source: Liu et al., Sec. 4.2-4.3.
    """

    def __init__(self, dim: int, d_state: int, ssm_ratio: float, scan: ScanBackend) -> None:
        super().__init__()
        inner, self.rank, self.d_state, self.scan = int(ssm_ratio * dim), math.ceil(dim / 16), d_state, scan
        self.in_proj = nn.Linear(dim, inner, bias=False)
        self.conv = nn.Conv2d(inner, inner, 3, padding=1, groups=inner, bias=False)
        self.token_proj = nn.Parameter(torch.empty(NUM_DIRECTIONS, self.rank + 2 * d_state, inner))
        self.step_proj = nn.Parameter(torch.empty(NUM_DIRECTIONS, inner, self.rank))
        self.step_bias = nn.Parameter(torch.empty(NUM_DIRECTIONS, inner))
        self.A_log = nn.Parameter(torch.empty(NUM_DIRECTIONS * inner, d_state))
        self.D = nn.Parameter(torch.ones(NUM_DIRECTIONS * inner))
        self.out_norm = nn.LayerNorm(inner)
        self.out_proj = nn.Linear(inner, dim, bias=False)
        self._initialise(inner)

    @torch.no_grad()
    def _initialise(self, inner: int) -> None:
        """Mamba's start: A = -(1, ..., N) per channel, steps log-uniform between their bounds."""
        self.token_proj.uniform_(-(inner**-0.5), inner**-0.5)
        self.step_proj.uniform_(-(self.rank**-0.5), self.rank**-0.5)
        start_steps(self.step_bias)
        self.A_log.copy_(torch.arange(1, self.d_state + 1).log().expand_as(self.A_log))

    def forward(self, z: Float[Tensor, "n h w d"]) -> Float[Tensor, "n h w d"]:
        height, width = z.shape[1:3]
        x = F.silu(self.conv(self.in_proj(z).permute(0, 3, 1, 2))).permute(0, 2, 3, 1)
        sequences = cross_scan(x)
        projected = torch.einsum("nkle,kpe->nklp", sequences, self.token_proj)
        step, B, C = torch.split(projected, [self.rank, self.d_state, self.d_state], dim=-1)
        delta = F.softplus(torch.einsum("nklr,ker->nkle", step, self.step_proj) + self.step_bias[:, None])
        A = -torch.exp(self.A_log.float()).view(NUM_DIRECTIONS, -1, self.d_state)
        D = self.D.view(NUM_DIRECTIONS, -1)
        scanned = selective_scan(sequences, delta, A, B, C, D, backend=self.scan)
        return self.out_proj(self.out_norm(cross_merge(scanned, height, width)))  # type: ignore[no-any-return]


class VSSBlock(nn.Module):
    """z + SS2D(LN(z)), then z + FFN(LN(z)); in training each branch is dropped per image with ``drop_path``.

    Source: Liu et al., Sec. 4.1.
    """

    def __init__(
        self, dim: int, d_state: int, ssm_ratio: float, mlp_ratio: float, drop_path: float, scan: ScanBackend
    ) -> None:
        super().__init__()
        self.drop_path = drop_path
        self.scan_norm = nn.LayerNorm(dim)
        self.scan = SS2D(dim, d_state, ssm_ratio, scan)
        self.mlp_norm = nn.LayerNorm(dim)
        hidden = int(mlp_ratio * dim)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))

    def forward(self, z: Float[Tensor, "n h w d"]) -> Float[Tensor, "n h w d"]:
        rate = self.drop_path * self.training
        z = z + drop_branch(self.scan(self.scan_norm(z)), rate)
        return z + drop_branch(self.mlp(self.mlp_norm(z)), rate)


class GridConv(nn.Module):
    """A 3 x 3 convolution with stride 2 and a LayerNorm over channels; channels last."""

    def __init__(self, channels: int, dim: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, dim, 3, stride=2, padding=1)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Float[Tensor, "n h w c"]) -> Float[Tensor, "n h2 w2 d"]:
        return self.norm(self.conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1))  # type: ignore[no-any-return]


class Stage(nn.Module):
    """Blocks at one resolution, after the convolution that halves the grid (none before the first)."""

    def __init__(self, downsample: nn.Module, blocks: list[VSSBlock]) -> None:
        super().__init__()
        self.downsample = downsample
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x: Float[Tensor, "n h w c"]) -> Float[Tensor, "n h2 w2 d"]:
        return self.blocks(self.downsample(x))  # type: ignore[no-any-return]


class VMambaEncoder(nn.Module):
    """Patch embedding (4 x 4 pixels per token), the stages, a last norm; tokens in row-major grid order.

    Grey images in [0, 1] are repeated to ``channels`` and standardised as for the other encoders.
    ``left_aside`` names what a published checkpoint held beyond this network: its classifier.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, embedding: nn.Module, stages: list[Stage], dim: int, channels: int, architecture: Shape) -> None:
        super().__init__()
        self.embedding = embedding
        self.stages = nn.ModuleList(stages)
        self.norm = nn.LayerNorm(dim)
        self.dim = dim
        self.channels = channels
        self.architecture = architecture
        self.left_aside: tuple[str, ...] = ()
        mean, std = pixel_statistics(channels)
        self.register_buffer("mean", torch.tensor(mean), persistent=False)
        self.register_buffer("std", torch.tensor(std), persistent=False)

    def forward(self, pixel_values: Float[Tensor, "n c *space"]) -> VisionFeatures:
        """Encode images (n, c, h, w); ``c`` is 1 or ``channels``. The grid is image / 2^(stages + 1), rounded up.

        Raises:
            InputError: if given volumes.
        """
        if pixel_values.ndim != 4:
            raise InputError("takes images", field="vision_encoder", got="volumes", expected="another kind of encoder")
        pixels = pixel_values.expand(-1, self.channels, -1, -1).permute(0, 2, 3, 1)
        x = self.embedding((pixels - self.mean) / self.std)
        for stage in self.stages:
            x = stage(x)
        return VisionFeatures(tokens=self.norm(x).flatten(1, 2), grid=(x.shape[1], x.shape[2]))


class VMambaConfig(Config):
    """VMamba (Liu et al., 2024); defaults are VMamba-B. ``path`` loads a published checkpoint of just these sizes.

    ``path`` is a file or a folder with one: safetensors, or a torch file. ``scan`` chooses the back-end of the scan;
    all give the same results.
    """

    reads: ClassVar[Modality] = "xray"
    own_shape: ClassVar[bool] = True
    """The configuration is the shape, wherever the weights come from."""
    kind: Literal["vmamba"] = "vmamba"
    path: str | None = None
    channels: Channels = 1
    depths: Depths = (2, 2, 15, 2)
    dims: Widths = (128, 256, 512, 1024)
    d_state: Width = 1
    ssm_ratio: Ratio = 2.0
    mlp_ratio: Ratio = 4.0
    drop_path: float = Field(default=0.6, ge=0, lt=1)
    scan: ScanBackend = "auto"
    lora: LoraSetting = NoLoraConfig()

    @model_validator(mode="after")
    def _one_width_per_stage(self) -> VMambaConfig:
        if len(self.depths) != len(self.dims) or not self.dims:
            raise ValueError(f"depths and dims need one value per stage, got {len(self.depths)} and {len(self.dims)}")
        return self

    def build(self, image_size: int, *, saved: Path | None = None) -> VMambaEncoder:
        """Build the encoder, and load its weights unless a run brings them (``saved``); any image size will do.

        Raises:
            InputError: if the weights at ``path`` cannot be read, or are not of exactly this network.
        """
        encoder = VMambaEncoder(
            nn.Sequential(
                GridConv(self.channels, self.dims[0] // 2), nn.GELU(), GridConv(self.dims[0] // 2, self.dims[0])
            ),
            self._stages(),
            dim=self.dims[-1],
            channels=self.channels,
            architecture=Shape(self),
        )
        encoder.apply(_initialise_linear)
        if self.path is not None and saved is None:
            encoder.left_aside = load_published(encoder, self.path, rename_published, ignored=("classifier.head.",))
        adapt(encoder, self.lora)
        return encoder

    def _stages(self) -> list[Stage]:
        last = max(sum(self.depths) - 1, 1)
        rates = (self.drop_path * index / last for index in itertools.count())
        stages = []
        for index, (depth, dim) in enumerate(zip(self.depths, self.dims, strict=True)):
            blocks = [
                VSSBlock(dim, self.d_state, self.ssm_ratio, self.mlp_ratio, next(rates), self.scan)
                for _ in range(depth)
            ]
            stages.append(Stage(GridConv(self.dims[index - 1], dim) if index else nn.Identity(), blocks))
        return stages


def _initialise_linear(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


# The published models, by the names of their paper's table; ImageNet checkpoints have three channels.
VMAMBA_BASE = VMambaConfig(channels=3)
VMAMBA_SMALL = VMambaConfig(channels=3, dims=(96, 192, 384, 768), drop_path=0.3)
VMAMBA_TINY = VMambaConfig(channels=3, dims=(96, 192, 384, 768), depths=(2, 2, 8, 2), ssm_ratio=1.0, drop_path=0.2)

_PUBLISHED = {
    "patch_embed.0": "embedding.0.conv",
    "patch_embed.2": "embedding.0.norm",
    "patch_embed.5": "embedding.2.conv",
    "patch_embed.7": "embedding.2.norm",
    "classifier.norm": "norm",
}
_PUBLISHED_BLOCK = {
    "norm": "scan_norm",
    "norm2": "mlp_norm",
    "mlp.fc1": "mlp.0",
    "mlp.fc2": "mlp.2",
    "op.x_proj_weight": "scan.token_proj",
    "op.dt_projs_weight": "scan.step_proj",
    "op.dt_projs_bias": "scan.step_bias",
    "op.A_logs": "scan.A_log",
    "op.Ds": "scan.D",
    "op.conv2d": "scan.conv",
    "op.in_proj": "scan.in_proj",
    "op.out_proj": "scan.out_proj",
    "op.out_norm": "scan.out_norm",
}


def rename_published(name: str) -> str:
    """The name of a tensor in the published checkpoints, turned into ours; a name we do not know stays as it is.

    There a stage ends with the convolution to the next one, here it begins with it.
    """
    if block := re.fullmatch(r"layers\.(\d+)\.blocks\.(\d+)\.(.+?)(\.weight|\.bias|)", name):
        stage, index, part, kind = block.groups()
        return f"stages.{stage}.blocks.{index}.{_PUBLISHED_BLOCK.get(part, part)}{kind}"
    if downsample := re.fullmatch(r"layers\.(\d+)\.downsample\.([13])\.(weight|bias)", name):
        stage, part, kind = downsample.groups()
        return f"stages.{int(stage) + 1}.downsample.{'conv' if part == '1' else 'norm'}.{kind}"
    part, _, kind = name.rpartition(".")
    return f"{_PUBLISHED.get(part, part)}.{kind}"
