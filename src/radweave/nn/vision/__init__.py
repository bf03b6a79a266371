"""Vision encoders. Each is chosen by ``kind``; the union below is the registry."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from radweave.nn.vision.pretrained import ResNetConfig, SwinConfig, ViTConfig

VisionEncoderConfig = Annotated[ResNetConfig | SwinConfig | ViTConfig, Field(discriminator="kind")]

__all__ = ["ResNetConfig", "SwinConfig", "ViTConfig", "VisionEncoderConfig"]
