"""Vision encoders. Each is chosen by ``kind``; the union ``VisionRecord`` is the registry."""

from __future__ import annotations

from typing import Annotated, get_args

from pydantic import Field

from radweave.base.study import Modality
from radweave.nn.vision.any_encoder import AnyVisionConfig, AnyVisionEncoder
from radweave.nn.vision.pretrained import ResNetConfig, SwinConfig, TransformersEncoder, ViTConfig
from radweave.nn.vision.resnet3d import ResNet3dConfig, ResNet3dEncoder
from radweave.nn.vision.vmamba import VMambaConfig, VMambaEncoder

VisionRecord = ResNetConfig | SwinConfig | ViTConfig | AnyVisionConfig | VMambaConfig | ResNet3dConfig
VisionEncoderConfig = Annotated[VisionRecord, Field(discriminator="kind")]
VISION_RECORDS: tuple[type[VisionRecord], ...] = get_args(VisionRecord)

VisionPart = TransformersEncoder | AnyVisionEncoder | VMambaEncoder | ResNet3dEncoder
"""What these records build."""


def encoders_for(modality: Modality) -> list[str]:
    """The kinds of encoder that read volumes or images."""
    return sorted(str(record.model_fields["kind"].default) for record in VISION_RECORDS if record.reads == modality)


__all__ = [
    "VISION_RECORDS",
    "AnyVisionConfig",
    "ResNet3dConfig",
    "ResNetConfig",
    "SwinConfig",
    "VMambaConfig",
    "ViTConfig",
    "VisionEncoderConfig",
    "VisionPart",
    "encoders_for",
]
