"""From a radiograph to the square a vision encoder sees, and augmentation of a batch."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field
from torch import Tensor

from radweave.config import Config

PREPROCESSING_VERSION = 1
"""Part of every cache key; raise it when ``to_square`` changes its result."""


def to_square(pixels: NDArray[np.float32], size: int) -> NDArray[np.uint8]:
    """Fit (H, W) pixels in [0, 1] into (size, size) grey values, keeping the aspect ratio, black beside.

    Eight bits are kept everywhere, in training and in use, so that a cached image equals a fresh one.
    """
    top, left, new_height, new_width = place_in_square(pixels.shape[0], pixels.shape[1], size)
    image = Image.fromarray(np.ascontiguousarray(pixels, dtype=np.float32))
    resized = np.asarray(image.resize((new_width, new_height), Image.Resampling.BILINEAR), dtype=np.float32)
    square = np.zeros((size, size), dtype=np.uint8)
    square[top : top + new_height, left : left + new_width] = np.rint(resized.clip(0.0, 1.0) * 255.0)
    return square


def place_in_square(height: int, width: int, size: int) -> tuple[int, int, int, int]:
    """Where ``to_square`` puts an image of (height, width) pixels: top, left, height and width in the square."""
    scale = size / max(height, width)
    new_height, new_width = max(1, round(height * scale)), max(1, round(width * scale))
    return (size - new_height) // 2, (size - new_width) // 2, new_height, new_width


class NoAugmentation(Config):
    """Images as they are."""

    kind: Literal["none"] = "none"

    def apply(
        self, pixel_values: Float[Tensor, "n c h w"], generator: torch.Generator, *, passed: int = 0
    ) -> Float[Tensor, "n c h w"]:
        return pixel_values


class LightAugmentation(Config):
    """Small rotations, shifts, zooms and contrast changes. Never mirrored: left and right mean something."""

    kind: Literal["light"] = "light"
    rotation_degrees: float = 7.0
    shift: float = 0.06
    zoom: float = 0.08
    contrast: float = 0.2

    def apply(
        self, pixel_values: Float[Tensor, "n c h w"], generator: torch.Generator, *, passed: int = 0
    ) -> Float[Tensor, "n c h w"]:
        """Change each image by its own draw from ``generator``; the first ``passed`` draws are other images'."""
        count = pixel_values.shape[0]
        # Drawn where the generator is, so that a device sees what the CPU would have.
        draw = torch.rand(passed + count, 6, generator=generator, device=generator.device)[passed:]
        draw = draw.to(pixel_values.device) * 2 - 1
        angle = draw[:, 0] * self.rotation_degrees * (torch.pi / 180)
        zoom = 1 + draw[:, 1] * self.zoom
        theta = torch.zeros(count, 2, 3, device=pixel_values.device)
        theta[:, 0, 0] = theta[:, 1, 1] = torch.cos(angle) / zoom
        theta[:, 0, 1] = -torch.sin(angle) / zoom
        theta[:, 1, 0] = torch.sin(angle) / zoom
        theta[:, 0, 2], theta[:, 1, 2] = draw[:, 2] * 2 * self.shift, draw[:, 3] * 2 * self.shift
        grid = F.affine_grid(theta, list(pixel_values.shape), align_corners=False)
        moved = F.grid_sample(pixel_values, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
        gain = (1 + draw[:, 4] * self.contrast).view(-1, 1, 1, 1)
        offset = (draw[:, 5] * self.contrast / 2).view(-1, 1, 1, 1)
        return (moved * gain + offset).clamp(0.0, 1.0)


AugmentationConfig = Annotated[NoAugmentation | LightAugmentation, Field(discriminator="kind")]
