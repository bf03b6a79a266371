"""Vision encoders. Each is chosen by ``kind``; the union ``VisionRecord`` is the registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Protocol, get_args, runtime_checkable

import torch
from pydantic import Field
from torch import nn

from radweave.core.study import Modality
from radweave.nn.vision.any_encoder import AnyVisionConfig, AnyVisionEncoder
from radweave.nn.vision.ctvit import CtVitConfig, CtVitEncoder
from radweave.nn.vision.pretrained import ResNetConfig, SwinConfig, TransformersEncoder, ViTConfig
from radweave.nn.vision.resnet3d import ResNet3dConfig, ResNet3dEncoder
from radweave.nn.vision.swinunetr import SwinUnetrConfig, SwinUnetrEncoder
from radweave.nn.vision.vim import VimConfig, VimEncoder
from radweave.nn.vision.vmamba import VMambaConfig, VMambaEncoder

VisionRecord = (
    ResNetConfig
    | SwinConfig
    | ViTConfig
    | AnyVisionConfig
    | VMambaConfig
    | VimConfig
    | ResNet3dConfig
    | CtVitConfig
    | SwinUnetrConfig
)
VisionEncoderConfig = Annotated[VisionRecord, Field(discriminator="kind")]
VISION_RECORDS: tuple[type[VisionRecord], ...] = get_args(VisionRecord)

VisionPart = (
    TransformersEncoder
    | AnyVisionEncoder
    | VMambaEncoder
    | VimEncoder
    | ResNet3dEncoder
    | CtVitEncoder
    | SwinUnetrEncoder
)
"""The encoder that these records build."""


@dataclass(frozen=True, slots=True)
class InputSize:
    """Input of an encoder: squares of ``image`` pixels, or volumes (D, H, W)."""

    image: int
    volume: tuple[int, int, int] | None = None


@runtime_checkable
class CountsTokens(Protocol):
    """An encoder that may say itself how many tokens it makes of a square image: its pass depends on numbers."""

    def count_tokens(self, image_size: int) -> int | None: ...


def tokens_of(encoder: nn.Module, size: InputSize) -> int:
    """The number of tokens that the encoder makes of one view, from shapes alone."""
    counted = encoder.count_tokens(size.image) if isinstance(encoder, CountsTokens) else None
    if counted is not None:
        return counted
    space = (size.image, size.image) if size.volume is None else size.volume
    state = {**dict(encoder.named_parameters()), **dict(encoder.named_buffers())}
    shapes = {name: torch.empty_like(value, device="meta") for name, value in state.items()}
    training = encoder.training
    encoder.eval()
    with torch.no_grad():
        view = torch.empty(1, 1, *space, device="meta")
        tokens: torch.Tensor = torch.func.functional_call(encoder, shapes, (view,)).tokens
    encoder.train(training)
    return tokens.shape[1]


def encoders_for(modality: Modality) -> list[str]:
    """The kinds of encoder that read volumes or images."""
    return sorted(str(record.model_fields["kind"].default) for record in VISION_RECORDS if record.reads == modality)


__all__ = [
    "VISION_RECORDS",
    "AnyVisionConfig",
    "CtVitConfig",
    "InputSize",
    "ResNet3dConfig",
    "ResNetConfig",
    "SwinConfig",
    "SwinUnetrConfig",
    "VMambaConfig",
    "ViTConfig",
    "VimConfig",
    "VisionEncoderConfig",
    "VisionPart",
    "VisionRecord",
    "encoders_for",
    "tokens_of",
]
