"""Vision encoders. Each is chosen by ``kind``; the union below is the registry."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from radweave.nn.vision.pretrained import ResNetConfig, SwinConfig, ViTConfig
from radweave.nn.vision.resnet3d import ResNet3dConfig
from radweave.nn.vision.vmamba import VMambaConfig
from radweave.types import Modality

VisionEncoderConfig = Annotated[
    ResNetConfig | SwinConfig | ViTConfig | VMambaConfig | ResNet3dConfig, Field(discriminator="kind")
]


def modality_of(encoder: VisionEncoderConfig) -> Modality:
    """What an encoder reads: volumes or images."""
    return "ct" if isinstance(encoder, ResNet3dConfig) else "xray"


__all__ = [
    "ResNet3dConfig",
    "ResNetConfig",
    "SwinConfig",
    "VMambaConfig",
    "ViTConfig",
    "VisionEncoderConfig",
    "modality_of",
]
