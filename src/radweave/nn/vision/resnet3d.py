"""3D ResNet: a residual network whose convolutions run over depth, height and width of a volume.

Source: Hara, Kataoka and Satoh, "Can spatiotemporal 3D CNNs retrace the history of 2D CNNs and ImageNet?", CVPR 2018,
Sec. 3 and Table 1; residual blocks: He et al., "Deep residual learning for image recognition", CVPR 2016, Fig. 5.

Three published layouts differ in where they reduce resolution:

- ``hara``: 7 x 7 x 7 stem with stride (1, 2, 2), max pooling, strides 1, 2, 2, 2.
- ``medicalnet`` (Chen, Ma and Zheng, "Med3D", arXiv:1904.00625): 7 x 7 x 7 stem with stride 2, max pooling, strides
  1, 2, 1, 1; the last two stages are dilated by 2 and 4 instead.
- ``r3d`` (Tran et al., "A closer look at spatiotemporal convolutions", CVPR 2018, as torchvision publishes it):
  3 x 7 x 7 stem with stride (1, 2, 2), no pooling, strides 1, 2, 2, 2.

Deviations: MedicalNet standardises every volume by its own mean and deviation; here all volumes in [0, 1] are
standardised by the same numbers, so that density keeps its meaning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import model_validator
from torch import Tensor, nn

from radweave.core.batch import VisionFeatures
from radweave.core.config import Channels, Config, Width
from radweave.core.errors import InputError
from radweave.core.study import Modality
from radweave.nn.language_model import LoraSetting, NoLoraConfig, adapt
from radweave.nn.vision.pretrained import SCANS, Start, Triple, is_empty, pixel_statistics
from radweave.nn.vision.weights import Shape, load_published

# Convolutions over volumes that can be trusted in bfloat16 on a CPU.


class Convolution3d(nn.Conv3d):
    """``nn.Conv3d``, which leaves autocast on a CPU where the grid is no longer than the kernel along some axis.

    There oneDNN (in torch 2.13, on processors with AVX512_BF16) computes the gradient of the weights from memory that
    it has not written, so that anything comes out, and at some sizes it writes past its buffer. Seen with a kernel of 3
    over 2 voxels and of 7 over 4 with a stride of 2; float32 and longer grids are right.
    """

    def forward(self, input: Float[Tensor, "n c d h w"]) -> Float[Tensor, "n c2 d2 h2 w2"]:
        is_longer = any(edge <= side for edge, side in zip(input.shape[2:], self.kernel_size, strict=True))
        if not (is_longer and _is_cast(input)):
            return super().forward(input)
        with torch.autocast(input.device.type, enabled=False):
            return super().forward(input.float())


def _is_cast(tensor: Tensor) -> bool:
    """Tell if autocast would compute with it in half precision, and not on CUDA."""
    kind = tensor.device.type
    return kind != "cuda" and torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


Layout = Literal["hara", "medicalnet", "r3d"]
Shortcut = Literal["projection", "zeros"]

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}
BOTTLENECK_DEPTHS = (50,)
BOTTLENECK_EXPANSION = 4
# Statistics of the videos the published three-channel r3d weights were trained on (torchvision's weights entry).
KINETICS_MEAN: Triple = (0.43216, 0.394666, 0.37645)
KINETICS_STD: Triple = (0.22803, 0.22145, 0.216989)


@dataclass(frozen=True, slots=True)
class _Geometry:
    kernel: tuple[int, int, int]
    stem_stride: tuple[int, int, int]
    pooled: bool
    strides: tuple[int, int, int, int]
    dilations: tuple[int, int, int, int]


_GEOMETRY: dict[Layout, _Geometry] = {
    "hara": _Geometry((7, 7, 7), (1, 2, 2), True, (1, 2, 2, 2), (1, 1, 1, 1)),
    "medicalnet": _Geometry((7, 7, 7), (2, 2, 2), True, (1, 2, 1, 1), (1, 1, 2, 4)),
    "r3d": _Geometry((3, 7, 7), (1, 2, 2), False, (1, 2, 2, 2), (1, 1, 1, 1)),
}


def _conv(channels: int, width: int, size: int, stride: int = 1, dilation: int = 1) -> Convolution3d:
    padding = dilation * (size // 2)
    return Convolution3d(channels, width, size, stride=stride, padding=padding, dilation=dilation, bias=False)


class ZeroShortcut(nn.Module):
    """Every ``stride``-th voxel, and zeros for the channels that are new: a shortcut without weights (He, option A)."""

    def __init__(self, stride: int, new_channels: int) -> None:
        super().__init__()
        self.stride = stride
        self.new_channels = new_channels

    def forward(self, x: Float[Tensor, "n c d h w"]) -> Float[Tensor, "n c2 d2 h2 w2"]:
        thinned = x[:, :, :: self.stride, :: self.stride, :: self.stride]
        return F.pad(thinned, (0, 0, 0, 0, 0, 0, 0, self.new_channels))


class ResidualBlock(nn.Module):
    """relu(x' + BN(conv(... relu(BN(conv(x)))))), where x' is x, or its shortcut to the new shape."""

    def __init__(self, convolutions: list[Convolution3d], shortcut: nn.Module) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(convolutions)
        self.norms = nn.ModuleList(nn.BatchNorm3d(conv.out_channels) for conv in convolutions)
        self.shortcut = shortcut

    def forward(self, x: Float[Tensor, "n c d h w"]) -> Float[Tensor, "n c2 d2 h2 w2"]:
        out, last = x, len(self.convolutions) - 1
        for index, (conv, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            out = norm(conv(out))
            if index < last:
                out = F.relu(out)
        return F.relu(out + self.shortcut(x))


class ResNet3dEncoder(nn.Module):
    """A volume (N, C, D, H, W) to tokens in (d, h, w) row-major order of the last stage's grid.

    Grey volumes in [0, 1] are repeated to ``channels`` and standardised. ``left_aside`` names what a published
    checkpoint held beyond this network: its head.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        stem: nn.Sequential,
        stages: list[nn.Sequential],
        dim: int,
        statistics: tuple[list[float], list[float]],
        architecture: Shape,
    ) -> None:
        super().__init__()
        self.stem = stem
        self.stages = nn.ModuleList(stages)
        self.dim = dim
        self.channels = len(statistics[0])
        self.architecture = architecture
        self.left_aside: tuple[str, ...] = ()
        self.register_buffer("mean", torch.tensor(statistics[0]).view(1, -1, 1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(statistics[1]).view(1, -1, 1, 1, 1), persistent=False)

    def forward(self, pixel_values: Float[Tensor, "n c *space"]) -> VisionFeatures:
        """Encode volumes (n, c, d, h, w); ``c`` is 1 or ``channels``.

        Raises:
            InputError: if given images.
        """
        if pixel_values.ndim != 5:
            raise InputError("takes volumes", field="vision_encoder", got="images", expected="another kind of encoder")
        voxels = pixel_values.expand(-1, self.channels, -1, -1, -1)
        x = self.stem((voxels - self.mean) / self.std)
        for stage in self.stages:
            x = stage(x)
        return VisionFeatures(tokens=x.flatten(2).transpose(1, 2), grid=(x.shape[2], x.shape[3], x.shape[4]))


class ResNet3dConfig(Config):
    """3D ResNet of 18, 34 or 50 layers; defaults are the 18 layers of Hara et al.

    ``path`` loads published weights of just these sizes: MedicalNet's (one channel, ``layout`` "medicalnet",
    ``shortcut`` "zeros" for 18 and 34 layers) or torchvision's r3d_18 (three channels, ``layout`` "r3d"). It is a
    file or a folder with one: safetensors, or a torch file. Without it ``start=phantom`` loads weights of
    synthetic phantoms that the package brings, which fit the sizes of ``PHANTOM_ENCODER_3D`` alone. ``widths`` are the
    widths of the stages' 3 x 3 x 3 convolutions; 50 layers put out four times as many channels.
    """

    reads: ClassVar[Modality] = "ct"
    own_shape: ClassVar[bool] = True
    """The configuration is the shape, wherever the weights come from."""
    kind: Literal["resnet3d"] = "resnet3d"
    path: str | None = None
    channels: Channels = 1
    depth: Literal[18, 34, 50] = 18
    widths: tuple[Width, Width, Width, Width] = (64, 128, 256, 512)
    layout: Layout = "hara"
    shortcut: Shortcut = "projection"
    start: Start = "nothing"
    lora: LoraSetting = NoLoraConfig()

    @model_validator(mode="after")
    def _shortcut_can_pad(self) -> ResNet3dConfig:
        if self.shortcut == "zeros" and list(self.widths) != sorted(self.widths):
            raise ValueError("shortcut 'zeros' adds channels, it cannot take any away: widths must not shrink")
        return self

    def build(self, image_size: int, *, saved: Path | None = None) -> ResNet3dEncoder:
        """Build the encoder, and load its weights unless a run brings them (``saved``); any volume size will do.

        Raises:
            InputError: if the weights at ``path`` cannot be read, or are not of exactly this network.
        """
        geometry, widths = _GEOMETRY[self.layout], self.widths
        first = Convolution3d(
            self.channels,
            widths[0],
            geometry.kernel,
            stride=geometry.stem_stride,
            padding=tuple(size // 2 for size in geometry.kernel),  # type: ignore[arg-type]
            bias=False,
        )
        pooling = nn.MaxPool3d(3, stride=2, padding=1) if geometry.pooled else nn.Identity()
        stem = nn.Sequential(first, nn.BatchNorm3d(widths[0]), nn.ReLU(), pooling)
        stages, channels = [], widths[0]
        for width, blocks, stride, dilation in zip(
            widths, BLOCKS[self.depth], geometry.strides, geometry.dilations, strict=True
        ):
            stage = []
            for index in range(blocks):
                stage.append(self._block(channels, width, 1 if index else stride, dilation))
                channels = self._put_out(width)
            stages.append(nn.Sequential(*stage))
        encoder = ResNet3dEncoder(stem, stages, channels, self._statistics(), Shape(self))
        encoder.apply(_initialise_convolution)
        if self.path is not None and saved is None:
            ignored = ("fc.", "conv_seg.")
            encoder.left_aside = load_published(encoder, self.path, rename_published, ignored)
        if self.path is None and self.start == "phantom" and saved is None and not is_empty(encoder):
            SCANS.load_into(encoder)
        # Convolutions run 1.5 times as fast on a CPU where channels lie last in memory.
        encoder.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
        adapt(encoder, self.lora)
        return encoder

    def _put_out(self, width: int) -> int:
        return width * BOTTLENECK_EXPANSION if self.depth in BOTTLENECK_DEPTHS else width

    def _block(self, channels: int, width: int, stride: int, dilation: int) -> ResidualBlock:
        out = self._put_out(width)
        if self.depth in BOTTLENECK_DEPTHS:
            # The stride stands at the 3 x 3 x 3 convolution, as in all three layouts.
            middle = _conv(width, width, 3, stride, dilation)
            convolutions = [_conv(channels, width, 1), middle, _conv(width, out, 1)]
        else:
            convolutions = [_conv(channels, width, 3, stride, dilation), _conv(width, out, 3, 1, dilation)]
        if stride == 1 and channels == out:
            return ResidualBlock(convolutions, nn.Identity())
        if self.shortcut == "zeros":
            return ResidualBlock(convolutions, ZeroShortcut(stride, out - channels))
        return ResidualBlock(convolutions, nn.Sequential(_conv(channels, out, 1, stride), nn.BatchNorm3d(out)))

    def _statistics(self) -> tuple[list[float], list[float]]:
        if self.layout == "r3d" and self.channels == 3:
            return list(KINETICS_MEAN), list(KINETICS_STD)
        return pixel_statistics(self.channels)


def _initialise_convolution(module: nn.Module) -> None:
    """He et al., 2015: fan-out mode."""
    if isinstance(module, nn.Conv3d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


# Published sets of weights, and a size for two CPU cores.
MEDICALNET_18 = ResNet3dConfig(layout="medicalnet", shortcut="zeros")
MEDICALNET_34 = ResNet3dConfig(layout="medicalnet", shortcut="zeros", depth=34)
R3D_18 = ResNet3dConfig(layout="r3d", channels=3)
PHANTOM_ENCODER_3D = ResNet3dConfig(layout="medicalnet", widths=(16, 32, 48, 64), start="phantom")
"""The encoder of the tiny presets for CT: a stride of 8 along every axis, 4 x 8 x 8 tokens of 32 x 64 x 64 voxels."""


def rename_published(name: str) -> str:
    """The name of a tensor in MedicalNet's or torchvision's files, turned into ours; an unknown one stays as it is.

    MedicalNet has ``conv1``, ``bn1`` and ``layer1.0.conv2``, ``layer1.0.bn2``; torchvision has ``stem.0``, ``stem.1``
    and ``layer1.0.conv2.0``, ``layer1.0.conv2.1``. Both have ``layer2.0.downsample.0`` and ``.1``.
    """
    if stem := re.fullmatch(r"(conv1|bn1|stem\.[01])\.(\w+)", name):
        part, kind = stem.groups()
        return f"stem.{0 if part in ('conv1', 'stem.0') else 1}.{kind}"
    if block := re.fullmatch(r"layer(\d)\.(\d+)\.(conv|bn)(\d)(?:\.([01]))?\.(\w+)", name):
        stage, index, part, number, inner, kind = block.groups()
        group = "norms" if part == "bn" or inner == "1" else "convolutions"
        return f"stages.{int(stage) - 1}.{index}.{group}.{int(number) - 1}.{kind}"
    if shortcut := re.fullmatch(r"layer(\d)\.(\d+)\.downsample\.([01])\.(\w+)", name):
        stage, index, part, kind = shortcut.groups()
        return f"stages.{int(stage) - 1}.{index}.shortcut.{part}.{kind}"
    return name
