"""Vision encoders. Each is chosen by ``kind``; the union below is the registry."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from radweave.nn.vision.pretrained import ResNetConfig, SwinConfig, ViTConfig
from radweave.nn.vision.resnet3d import ResNet3dConfig
from radweave.nn.vision.vmamba import VMambaConfig

VisionEncoderConfig = Annotated[
    ResNetConfig | SwinConfig | ViTConfig | VMambaConfig | ResNet3dConfig, Field(discriminator="kind")
]

__all__ = ["ResNet3dConfig", "ResNetConfig", "SwinConfig", "VMambaConfig", "ViTConfig", "VisionEncoderConfig"]
