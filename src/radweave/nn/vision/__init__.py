"""Vision encoders. Each is chosen by ``kind``; the union below is the registry."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from radweave.base.study import Modality
from radweave.nn.vision.pretrained import ResNetConfig, SwinConfig, TransformersEncoder, ViTConfig
from radweave.nn.vision.resnet3d import ResNet3dConfig, ResNet3dEncoder
from radweave.nn.vision.vmamba import VMambaConfig, VMambaEncoder

VISION_RECORDS = (ResNetConfig, SwinConfig, ViTConfig, VMambaConfig, ResNet3dConfig)
VisionEncoderConfig = Annotated[
    ResNetConfig | SwinConfig | ViTConfig | VMambaConfig | ResNet3dConfig, Field(discriminator="kind")
]

VisionPart = TransformersEncoder | VMambaEncoder | ResNet3dEncoder
"""What these records build."""


def modality_of(encoder: VisionEncoderConfig) -> Modality:
    """What an encoder reads: volumes or images."""
    return "ct" if isinstance(encoder, ResNet3dConfig) else "xray"


__all__ = [
    "VISION_RECORDS",
    "ResNet3dConfig",
    "ResNetConfig",
    "SwinConfig",
    "VMambaConfig",
    "ViTConfig",
    "VisionEncoderConfig",
    "VisionPart",
    "modality_of",
]
