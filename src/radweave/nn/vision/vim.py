"""Vision Mamba: image patches and a class token in one sequence, mixed by selective scans in two or four directions.

Sources: Zhu et al., "Vision Mamba", ICML 2024, arXiv:2401.09417, Sec. 3 (Vim); Ren et al., "Autoregressive pretraining
with Mamba in vision", arXiv:2406.07537, Sec. 3 (ARM); Wang et al., "CXPMRG-Bench", CVPR 2025, arXiv:2410.00379, whose
MambaXray-VL trains ARM's network on chest radiographs. What the papers leave open follows the published code of each:

| ``block`` | published as | directions | E | norm | feed-forward network |
|---|---|---|---|---|---|
| ``arm`` | ARM, MambaXray-VL | 4: rows, columns, and both backwards | D | LayerNorm | SwiGLU, 8/3 D wide |
| ``vim`` | Vim (bidirectional "v2") | 2: rows, and backwards | 2 D | RMSNorm | none |

Deviations: none from those networks, except that only patch tokens are given; MambaXray-VL's decoder also reads the
class token, a 197th one.

Shape letters: N images, L tokens (patches and the class token), D width, E inner width, K directions, R rank, S states.
"""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from radweave.core.batch import VisionFeatures
from radweave.core.config import Channels, Config, Layers, Pixels, Width
from radweave.core.errors import InputError
from radweave.core.study import Modality
from radweave.nn.language_model import LoraSetting, NoLoraConfig, adapt
from radweave.nn.selective_scan import ScanBackend, selective_scan
from radweave.nn.vision.pretrained import pixel_statistics
from radweave.nn.vision.vmamba import drop_branch, start_steps
from radweave.nn.vision.weights import Shape, load_published

Block = Literal["arm", "vim"]

DIRECTIONS = ("", "_b", "_c", "_c_b")
"""Endings of the published names of each direction: along rows, backwards, along columns, backwards."""
KERNEL = 4
"""Taps of the causal convolution: a token and the three before it."""


def scan_orders(rows: int, columns: int, directions: int, device: torch.device) -> Int[Tensor, "k tokens"]:
    """Places of the tokens in the order in which each direction reads them.

    Patches lie row by row with the class token amid them, at place ``rows * columns // 2``; it stays in the middle of
    the patches read column by column too (Ren et al., Sec. 3.3).
    """
    middle = rows * columns // 2
    along_rows = torch.arange(rows * columns + 1, device=device)
    patches = torch.cat([along_rows[:middle], along_rows[middle + 1 :]])
    by_columns = patches.view(rows, columns).T.flatten()
    along_columns = torch.cat([by_columns[:middle], along_rows[middle : middle + 1], by_columns[middle:]])
    orders = [along_rows, along_rows.flip(0), along_columns, along_columns.flip(0)]
    return torch.stack(orders[:directions])


class Direction(nn.Module):
    """Weights of the scan in one direction."""

    def __init__(self, inner: int, rank: int, d_state: int) -> None:
        super().__init__()
        self.conv_weight = nn.Parameter(torch.empty(inner, 1, KERNEL))
        self.conv_bias = nn.Parameter(torch.empty(inner))
        self.token_proj = nn.Parameter(torch.empty(rank + 2 * d_state, inner))
        self.step_proj = nn.Parameter(torch.empty(inner, rank))
        self.step_bias = nn.Parameter(torch.empty(inner))
        self.A_log = nn.Parameter(torch.empty(inner, d_state))
        self.D = nn.Parameter(torch.ones(inner))
        for weight, fan_in in (
            (self.conv_weight, KERNEL), (self.conv_bias, KERNEL), (self.token_proj, inner), (self.step_proj, rank),
        ):  # fmt: skip
            nn.init.uniform_(weight, -(fan_in**-0.5), fan_in**-0.5)
        start_steps(self.step_bias)
        with torch.no_grad():
            self.A_log.copy_(torch.arange(1, d_state + 1).log().expand_as(self.A_log))


class Mixer(nn.Module):
    """Gated selective scans of one sequence in K directions.

        [x; z] = W_in h,   s_k = x in the order of direction k,   u_k = SiLU(causal_conv_k(s_k))
        [r_k; B_k; C_k] = W_k u_k,   delta_k = softplus(V_k r_k + b_k)
        y_k = selective_scan(u_k, delta_k, -exp(A_k), B_k, C_k, D_k),   out = W_out (SiLU(z) mean_k y_k)

    each y_k back in the order of the tokens. Source: Zhu et al., Alg. 1, with the mean of the published code.
    """

    def __init__(self, dim: int, inner: int, d_state: int, directions: int, scan: ScanBackend) -> None:
        super().__init__()
        self.rank, self.d_state, self.scan = math.ceil(dim / 16), d_state, scan
        self.in_proj = nn.Linear(dim, 2 * inner, bias=False)
        self.directions = nn.ModuleList(Direction(inner, self.rank, d_state) for _ in range(directions))
        self.out_proj = nn.Linear(inner, dim, bias=False)

    def forward(self, h: Float[Tensor, "n tokens d"], orders: Int[Tensor, "k tokens"]) -> Float[Tensor, "n tokens d"]:
        x, z = self.in_proj(h).chunk(2, dim=-1)
        u = F.silu(self._convolved(x[:, orders]))
        projected = torch.einsum("nkle,kpe->nklp", u, self._all("token_proj"))
        step, B, C = torch.split(projected, [self.rank, self.d_state, self.d_state], dim=-1)
        delta = F.softplus(
            torch.einsum("nklr,ker->nkle", step, self._all("step_proj")) + self._all("step_bias")[:, None]
        )
        A = -torch.exp(self._all("A_log").float())
        y = selective_scan(u, delta, A, B, C, self._all("D"), backend=self.scan)
        back = orders.argsort(dim=1)[None, :, :, None].expand_as(y)
        out: Tensor = self.out_proj(F.silu(z) * y.gather(2, back).mean(dim=1))
        return out

    def _all(self, name: str) -> Tensor:
        """A weight of every direction (K, ...)."""
        return torch.stack([getattr(direction, name) for direction in self.directions])

    def _convolved(self, sequences: Float[Tensor, "n k tokens e"]) -> Float[Tensor, "n k tokens e"]:
        num, directions, tokens, inner = sequences.shape
        rows = F.pad(sequences.transpose(2, 3).reshape(num, directions * inner, tokens), (KERNEL - 1, 0))
        weight, bias = self._all("conv_weight").flatten(0, 1), self._all("conv_bias").flatten()
        out = F.conv1d(rows, weight, bias, groups=directions * inner)
        return out.view(num, directions, inner, tokens).transpose(2, 3)


class SwiGLU(nn.Module):
    """W_3 (SiLU(W_1 h) * W_2 h), each with its bias (Shazeer, "GLU variants improve transformer", 2020)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        hidden = dim * 4 * 2 // 3
        self.w1, self.w2, self.w3 = nn.Linear(dim, hidden), nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, h: Float[Tensor, "n tokens d"]) -> Float[Tensor, "n tokens d"]:
        out: Tensor = self.w3(F.silu(self.w1(h)) * self.w2(h))
        return out


class ArmBlock(nn.Module):
    """h + Mixer(LN(h)), then h + SwiGLU(LN(h)); in training each branch is dropped per image with ``drop_path``."""

    def __init__(self, dim: int, d_state: int, drop_path: float, scan: ScanBackend) -> None:
        super().__init__()
        self.drop_path = drop_path
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mixer = Mixer(dim, dim, d_state, 4, scan)
        self.mlp = SwiGLU(dim)

    def forward(self, h: Float[Tensor, "n tokens d"], orders: Int[Tensor, "k tokens"]) -> Float[Tensor, "n tokens d"]:
        rate = self.drop_path * self.training
        h = h + drop_branch(self.mixer(self.norm1(h), orders), rate)
        return h + drop_branch(self.mlp(self.norm2(h)), rate)


class VimBlock(nn.Module):
    """h + Mixer(RMSNorm(h)). The published code carries h as a sum of two tensors, which adds up to the same."""

    def __init__(self, dim: int, d_state: int, drop_path: float, scan: ScanBackend) -> None:
        super().__init__()
        self.drop_path = drop_path
        self.norm = nn.RMSNorm(dim, eps=1e-5)
        self.mixer = Mixer(dim, 2 * dim, d_state, 2, scan)

    def forward(self, h: Float[Tensor, "n tokens d"], orders: Int[Tensor, "k tokens"]) -> Float[Tensor, "n tokens d"]:
        return h + drop_branch(self.mixer(self.norm(h), orders), self.drop_path * self.training)


class VimEncoder(nn.Module):
    """Patch embedding, a class token amid the patches, positions, the blocks, a last norm; patch tokens row by row.

    Grey images in [0, 1] are repeated to ``channels`` and standardised as for the other encoders: MambaXray-VL read its
    images with ImageNet's numbers too. ``left_aside`` names what a published checkpoint held beyond this network.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        blocks: list[ArmBlock] | list[VimBlock],
        norm: nn.Module,
        *,
        dim: int,
        channels: int,
        patch_size: int,
        image_size: int,
        architecture: Shape,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.channels = channels
        self.side = image_size // patch_size
        self.embedding = nn.Conv2d(channels, dim, patch_size, stride=patch_size)
        self.class_token = nn.Parameter(torch.empty(1, 1, dim))
        self.positions = nn.Parameter(torch.empty(1, self.side**2 + 1, dim))
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm
        self.architecture = architecture
        self.left_aside: tuple[str, ...] = ()
        mean, std = pixel_statistics(channels)
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)

    def forward(self, pixel_values: Float[Tensor, "n c *space"]) -> VisionFeatures:
        """Encode images (n, c, h, w) of the size the encoder was built for; ``c`` is 1 or ``channels``.

        Raises:
            InputError: if given volumes or images of another size.
        """
        if pixel_values.ndim != 4:
            raise InputError("takes images", field="vision_encoder", got="volumes", expected="another kind of encoder")
        pixels = pixel_values.expand(-1, self.channels, -1, -1)
        grid = self.embedding((pixels - self.mean) / self.std)
        if grid.shape[2:] != (self.side, self.side):
            raise InputError(
                "the images have another size than the encoder was built for",
                field="data.image_size",
                got=list(pixel_values.shape[2:]),
                expected=f"{self.side} x {self.side} patches",
            )
        patches, middle = grid.flatten(2).transpose(1, 2), self.side**2 // 2
        class_token = self.class_token.expand(len(patches), -1, -1)
        h = torch.cat([patches[:, :middle], class_token, patches[:, middle:]], dim=1) + self.positions
        directions = len(self.blocks[0].mixer.directions)  # type: ignore[union-attr, arg-type]
        orders = scan_orders(self.side, self.side, directions, h.device)
        for block in self.blocks:
            h = block(h, orders)
        h = self.norm(h)
        return VisionFeatures(torch.cat([h[:, :middle], h[:, middle + 1 :]], dim=1), grid=(self.side, self.side))


class VimConfig(Config):
    """Vision Mamba; defaults are MambaXray-VL's base size. ``path`` loads a published checkpoint of just these sizes.

    ``path`` is a file or a folder with one: safetensors, or a torch file. Of MambaXray-VL's files the vision encoder
    is read, and its text encoder, projections and language model are left aside. ``block`` chooses the network;
    ``scan`` the back-end of the scan, all with the same results.
    """

    reads: ClassVar[Modality] = "xray"
    own_shape: ClassVar[bool] = True
    """The configuration is the shape, wherever the weights come from."""
    kind: Literal["vim"] = "vim"
    path: str | None = None
    block: Block = "arm"
    channels: Channels = 1
    patch_size: Pixels = 16
    hidden_size: Width = 768
    num_layers: Layers = 12
    d_state: Width = 16
    drop_path: float = Field(default=0.1, ge=0, lt=1)
    scan: ScanBackend = "auto"
    lora: LoraSetting = NoLoraConfig()

    def build(self, image_size: int, *, saved: Path | None = None) -> VimEncoder:
        """Build the encoder for square images of ``image_size`` pixels, and load its weights unless a run brings them.

        Raises:
            InputError: if the images are smaller than a patch, or the weights at ``path`` cannot be read or are not of
                exactly this network: positions of another image size are refused too.
        """
        if image_size < self.patch_size:
            raise InputError(
                "smaller than a patch", field="data.image_size", got=image_size, expected=f"{self.patch_size} or more"
            )
        arguments = [(self.hidden_size, self.d_state, rate, self.scan) for rate in self._rates()]
        encoder = VimEncoder(
            [ArmBlock(*each) for each in arguments] if self.block == "arm" else [VimBlock(*each) for each in arguments],
            nn.LayerNorm(self.hidden_size) if self.block == "arm" else nn.RMSNorm(self.hidden_size, eps=1e-5),
            dim=self.hidden_size,
            channels=self.channels,
            patch_size=self.patch_size,
            image_size=image_size,
            architecture=Shape(self),
        )
        _initialise(encoder, self.num_layers)
        if self.path is not None and saved is None:
            encoder.left_aside = load_published(encoder, self.path, rename_published, ignored=NOT_THE_ENCODER)
        adapt(encoder, self.lora)
        return encoder

    def _rates(self) -> list[float]:
        """Rates of dropping, rising linearly, each a block late: the first two blocks are never dropped."""
        last = max(self.num_layers - 1, 1)
        rates = itertools.chain([0.0], (self.drop_path * index / last for index in itertools.count()))
        return list(itertools.islice(rates, self.num_layers))


@torch.no_grad()
def _initialise(encoder: VimEncoder, num_layers: int) -> None:
    """Start as published: small positions, no biases, and what is added to the residual scaled by its depth."""
    nn.init.trunc_normal_(encoder.class_token, std=0.02)
    nn.init.trunc_normal_(encoder.positions, std=0.02)
    nn.init.normal_(encoder.embedding.weight, std=encoder.embedding.weight[0].numel() ** -0.5)
    for name, module in encoder.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if name.endswith("out_proj") and isinstance(module, nn.Linear):
            module.weight /= math.sqrt(num_layers)


# The published models.
MAMBAXRAY_BASE = VimConfig(channels=3)
MAMBAXRAY_LARGE = VimConfig(channels=3, hidden_size=1024, num_layers=24)
VIM_TINY = VimConfig(block="vim", channels=3, hidden_size=192, num_layers=24)
VIM_SMALL = VimConfig(block="vim", channels=3, hidden_size=384, num_layers=24)
VIM_BASE = VimConfig(block="vim", channels=3, hidden_size=768, num_layers=24)

NOT_THE_ENCODER = (
    "head.", "text_encoder.", "vision_proj.", "text_proj.", "logit_scale", "llama_model.", "llama_proj.",
    "embed_tokens.", "layer_norm.",
)  # fmt: skip
"""Starts of names in published files that belong to other parts: ImageNet's head; the text encoder, projections and
temperature of MambaXray-VL's contrastive training; the language model and its connector of its last stage."""

_PUBLISHED = {
    "cls_token": "class_token",
    "pos_embed": "positions",
    "patch_embed.proj.weight": "embedding.weight",
    "patch_embed.proj.bias": "embedding.bias",
    "norm_f.weight": "norm.weight",
    "norm_f.bias": "norm.bias",
}
_PUBLISHED_SCAN = {
    "conv1d.weight": "conv_weight",
    "conv1d.bias": "conv_bias",
    "x_proj.weight": "token_proj",
    "dt_proj.weight": "step_proj",
    "dt_proj.bias": "step_bias",
    "A_log": "A_log",
    "D": "D",
}


def rename_published(name: str) -> str:
    """The name of a tensor in the published checkpoints, turned into ours; a name we do not know stays as it is.

    MambaXray-VL puts ``visual_encoder.`` before them.
    """
    name = name.removeprefix("visual_encoder.")
    match = re.fullmatch(r"layers\.(\d+)\.(.+)", name)
    if match is None:
        return _PUBLISHED.get(name, name)
    layer, part = match.groups()
    scan = re.fullmatch(r"mixer\.(conv1d|x_proj|dt_proj|A|D)(_b|_c_b|_c|)(_log|\.weight|\.bias|)", part)
    stored = _PUBLISHED_SCAN.get(f"{scan[1]}{scan[3]}") if scan else None
    if scan is None or stored is None:
        return f"blocks.{layer}.{part}"
    return f"blocks.{layer}.mixer.directions.{DIRECTIONS.index(scan[2])}.{stored}"
