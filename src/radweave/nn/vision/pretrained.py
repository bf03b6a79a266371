"""ResNet, Swin and ViT of transformers as vision encoders: loaded from a folder or hub name, or built from sizes.

``saved`` is a folder with the checkpoint's ``config.json`` inside a run folder: a restored run takes its shape from
there and its weights from the run, and needs the original checkpoint no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from radweave.core.batch import VisionFeatures
from radweave.core.config import Channels, Config, Depths, Heads, Layers, Pixels, Width, Widths
from radweave.core.errors import InputError
from radweave.core.foreign_models import read_model, read_shape
from radweave.core.storage import sha256_file
from radweave.core.study import Modality
from radweave.nn.language_model import LoraConfig, LoraSetting, NoLoraConfig, adapt

# Start weights that the package brings: encoders trained on phantoms, without any patient. ``make encoder`` makes the
# files again (bench/make_encoder.py); docs/phantom_encoder.md has their training and their gain.


Start = Literal["nothing", "phantom"]
FIELD: Final = "vision_encoder.start"
STATED: Final = "encoder starts from weights trained on synthetic phantoms (shipped with the package; no patient data)"
"""Statement of such a start in the card and the log of a run."""


@dataclass(frozen=True, slots=True)
class StartWeights:
    """A file of start weights beside this one, and the hash that it must have."""

    name: str
    sha256: str

    @property
    def path(self) -> Path:
        """The file."""
        return Path(__file__).with_name(self.name)

    def load_into(self, network: nn.Module) -> None:
        """Fill a network with the start weights.

        Raises:
            InputError: if the file is not the one that belongs to this version, or the network is of another shape.
        """
        from safetensors.torch import load_file

        if not self.path.is_file() or sha256_file(self.path) != self.sha256:
            raise InputError(
                "the start weights are not those of this version",
                file=self.path,
                field=FIELD,
                got="phantom",
                expected="nothing",
            )
        saved, wanted = load_file(str(self.path)), network.state_dict()
        if {name: value.shape for name, value in saved.items()} != {
            name: value.shape for name, value in wanted.items()
        }:
            raise InputError(
                "the start weights are of another shape",
                field=FIELD,
                got="phantom",
                expected="nothing, for other sizes",
            )
        network.load_state_dict({name: value.to(wanted[name].dtype) for name, value in saved.items()})


RADIOGRAPHS: Final = StartWeights(
    "phantom_encoder.safetensors", "db50d84dbedcf6845b83e38ff81696547e036de12839369bb67de9588ba5aeaf"
)
SCANS: Final = StartWeights(
    "phantom_encoder_3d.safetensors", "27488c1ca9058b16129812ad3f9cd32495ef4fe0b2c5b40b5cb10d3880a7eb51"
)


def is_empty(network: nn.Module) -> bool:
    """Tell if the network is on the meta device, for measurement."""
    return next(network.parameters()).device == torch.device("meta")


WHAT = "a vision encoder"
Triple = tuple[float, float, float]
IMAGENET_MEAN: Triple = (0.485, 0.456, 0.406)
IMAGENET_STD: Triple = (0.229, 0.224, 0.225)


class TransformersEncoder(nn.Module):
    """A transformers vision backbone that returns patch tokens in row-major grid order.

    Grey images in [0, 1] are repeated to the backbone's channels and standardised with ``mean`` and ``std``.
    A class token, where the backbone has one, is dropped.
    """

    mean: Tensor
    std: Tensor

    @property
    def architecture(self) -> Any:
        """The backbone's transformers configuration."""
        return self.backbone.config

    def __init__(self, backbone: nn.Module, *, dim: int, channels: int, mean: list[float], std: list[float]) -> None:
        super().__init__()
        self.backbone = backbone
        self.dim = dim
        self.channels = channels
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)

    def forward(self, pixel_values: Float[Tensor, "n c h w"]) -> VisionFeatures:
        """Encode images; ``c`` is 1 or the backbone's channels."""
        pixels = pixel_values.expand(-1, self.channels, -1, -1)
        states = self.backbone(pixel_values=(pixels - self.mean) / self.std).last_hidden_state
        if states.ndim == 4:
            grid = (states.shape[2], states.shape[3])
            return VisionFeatures(tokens=states.flatten(2).transpose(1, 2), grid=grid)
        side = int(states.shape[1] ** 0.5)
        return VisionFeatures(tokens=states[:, states.shape[1] - side * side :], grid=(side, side))


def pixel_statistics(channels: int) -> tuple[list[float], list[float]]:
    """Mean and standard deviation per channel for images in [0, 1]: ImageNet's for three channels."""
    if channels == 3:
        return list(IMAGENET_MEAN), list(IMAGENET_STD)
    return [0.5] * channels, [0.25] * channels


def _wrap(backbone: Any, dim: int, lora: NoLoraConfig | LoraConfig) -> TransformersEncoder:
    channels = backbone.config.num_channels
    mean, std = pixel_statistics(channels)
    return TransformersEncoder(adapt(backbone, lora), dim=dim, channels=channels, mean=mean, std=std)


def _backbone(
    model: Any, shape: Any, path: str | None, saved: Path | None, sizes: dict[str, Any], **options: Any
) -> Any:
    """A backbone of ``sizes``, or of the checkpoint at ``path``; of the shape in ``saved``, where that was kept of one.

    Raises:
        InputError: if the checkpoint is missing, damaged or of another architecture.
    """
    if path is None:
        return model(shape(**sizes), **options)
    config = read_shape(saved or path, what=WHAT)
    if not isinstance(config, shape):
        raise InputError(
            "the checkpoint is of another architecture",
            file=path,
            field="vision_encoder.path",
            got=config.model_type,
            expected=f"{shape.model_type}, or model.vision_encoder=transformers",
        )
    return model(config, **options) if saved else read_model(path, model, what=WHAT, **options)[0]


class ResNetConfig(Config):
    """ResNet (He et al., 2016). ``path`` loads a checkpoint; without it the sizes build one, which ``start`` fills with
    what the package brings for ``PHANTOM_ENCODER``: weights of synthetic phantoms.
    """

    reads: ClassVar[Modality] = "xray"
    kind: Literal["resnet"] = "resnet"
    path: str | None = None
    channels: Channels = 1
    embedding_size: Width = 64
    hidden_sizes: Widths = (256, 512, 1024, 2048)
    depths: Depths = (3, 4, 23, 3)
    layer_type: Literal["basic", "bottleneck"] = "bottleneck"
    start: Start = "nothing"
    lora: LoraSetting = NoLoraConfig()

    def build(self, image_size: int, *, saved: Path | None = None) -> TransformersEncoder:
        """Build or load the encoder; ``image_size`` does not matter to a ResNet."""
        from transformers import ResNetConfig as HFConfig
        from transformers import ResNetModel

        sizes = {
            "num_channels": self.channels,
            "embedding_size": self.embedding_size,
            "hidden_sizes": list(self.hidden_sizes),
            "depths": list(self.depths),
            "layer_type": self.layer_type,
        }
        backbone = _backbone(ResNetModel, HFConfig, self.path, saved, sizes)
        if self.path is None and self.start == "phantom" and saved is None and not is_empty(backbone):
            RADIOGRAPHS.load_into(backbone)
        # Convolutions run 1.4 times as fast on a CPU where channels lie last in memory.
        backbone.to(memory_format=torch.channels_last)
        return _wrap(backbone, backbone.config.hidden_sizes[-1], self.lora)


PHANTOM_ENCODER = ResNetConfig(
    embedding_size=32, hidden_sizes=(32, 64, 128, 256), depths=(1, 1, 1, 1), layer_type="basic", start="phantom"
)
"""The encoder of the tiny presets for radiographs: 5 x 5 tokens of a 144 px image, 1.2 million weights.

From nothing and some 1,500 images, convolutions learn what Swin and VMamba shapes of the same size do not: see
docs/results/README.md.
"""


class SwinConfig(Config):
    """Swin Transformer (Liu et al., 2021); defaults are Swin-B at 224 pixels."""

    reads: ClassVar[Modality] = "xray"
    kind: Literal["swin"] = "swin"
    path: str | None = None
    channels: Channels = 1
    patch_size: Pixels = 4
    embed_dim: Width = 128
    depths: Depths = (2, 2, 18, 2)
    num_heads: Depths = (4, 8, 16, 32)
    window_size: Pixels = 7
    lora: LoraSetting = NoLoraConfig()

    def build(self, image_size: int, *, saved: Path | None = None) -> TransformersEncoder:
        """Build or load the encoder for square images of ``image_size`` pixels."""
        from transformers import SwinConfig as HFConfig
        from transformers import SwinModel

        sizes = {
            "image_size": image_size,
            "num_channels": self.channels,
            "patch_size": self.patch_size,
            "embed_dim": self.embed_dim,
            "depths": list(self.depths),
            "num_heads": list(self.num_heads),
            "window_size": self.window_size,
        }
        backbone = _backbone(SwinModel, HFConfig, self.path, saved, sizes, add_pooling_layer=False)
        width = backbone.config.embed_dim * 2 ** (len(backbone.config.depths) - 1)
        return _wrap(backbone, width, self.lora)


class ViTConfig(Config):
    """Vision Transformer (Dosovitskiy et al., 2021); defaults are ViT-B/16."""

    reads: ClassVar[Modality] = "xray"
    kind: Literal["vit"] = "vit"
    path: str | None = None
    channels: Channels = 1
    patch_size: Pixels = 16
    hidden_size: Width = 768
    num_layers: Layers = 12
    num_heads: Heads = 12
    lora: LoraSetting = NoLoraConfig()

    def build(self, image_size: int, *, saved: Path | None = None) -> TransformersEncoder:
        """Build or load the encoder for square images of ``image_size`` pixels."""
        from transformers import ViTConfig as HFConfig
        from transformers import ViTModel

        sizes = {
            "image_size": image_size,
            "num_channels": self.channels,
            "patch_size": self.patch_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "intermediate_size": 4 * self.hidden_size,
        }
        backbone = _backbone(ViTModel, HFConfig, self.path, saved, sizes, add_pooling_layer=False)
        return _wrap(backbone, backbone.config.hidden_size, self.lora)
