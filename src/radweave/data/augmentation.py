"""Augmentation of a batch of images or volumes."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from radweave.core.config import Config


class NoAugmentation(Config):
    """Images as they are."""

    kind: Literal["none"] = "none"

    def apply(
        self, pixel_values: Float[Tensor, "n c *size"], generator: torch.Generator, *, passed: int = 0
    ) -> Float[Tensor, "n c *size"]:
        return pixel_values


class LightAugmentation(Config):
    """Small rotations, shifts, zooms and contrast changes. Never mirrored: left and right mean something.

    A volume is turned in its axial plane. Its grey values are densities, so ``contrast`` should be small there: 0.04
    shifts them by at most 2 % of the window and scales them by 4 %. ``cutout`` is the edge of a square that turns black
    somewhere in a radiograph, as a share of the image's; 0 for none.
    """

    kind: Literal["light"] = "light"
    rotation_degrees: float = 7.0
    shift: float = 0.06
    zoom: float = 0.08
    contrast: float = 0.2
    cutout: float = Field(default=0.0, ge=0, lt=1)

    def apply(
        self, pixel_values: Float[Tensor, "n c *size"], generator: torch.Generator, *, passed: int = 0
    ) -> Float[Tensor, "n c *size"]:
        """Change each image or volume by its own draw from ``generator``; the first ``passed`` draws are skipped."""
        count, axes = pixel_values.shape[0], pixel_values.ndim - 2
        # Drawn on the generator's device, so that every device gets the draws of the CPU.
        draw = torch.rand(passed + count, 4 + axes, generator=generator, device=generator.device)[passed:]
        draw = draw.to(pixel_values.device) * 2 - 1
        theta = self._moves(draw, pixel_values.shape[-2] / pixel_values.shape[-1])
        grid = F.affine_grid(theta, list(pixel_values.shape), align_corners=False)
        moved = F.grid_sample(pixel_values, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
        ones = (1,) * (axes + 1)
        gain = (1 + draw[:, 2 + axes] * self.contrast).view(-1, *ones)
        offset = (draw[:, 3 + axes] * self.contrast / 2).view(-1, *ones)
        changed = (moved * gain + offset).clamp(0.0, 1.0)
        if self.cutout and axes == 2:
            corner = torch.rand(passed + count, 2, generator=generator, device=generator.device)[passed:]
            changed = changed * self._outside(corner.to(changed.device), changed.shape[-2], changed.shape[-1])
        return changed

    def _outside(self, corner: Float[Tensor, "n two"], height: int, width: int) -> Float[Tensor, "n one h w"]:
        """0 in a square of each image, 1 outside. The first corner is drawn; the square may reach beyond the image."""
        edge = self.cutout
        start = corner * (1 + edge) - edge
        y = torch.linspace(0, 1, height, device=corner.device)[None]
        x = torch.linspace(0, 1, width, device=corner.device)[None]
        tall = (y >= start[:, :1]) & (y < start[:, :1] + edge)
        wide = (x >= start[:, 1:]) & (x < start[:, 1:] + edge)
        return 1 - (tall[:, :, None] & wide[:, None, :])[:, None].float()

    def _moves(self, draw: Float[Tensor, "n draws"], tall: float) -> Float[Tensor, "n axes more"]:
        """Affine maps from output to input, with axes x, y (and z) from -1 to 1; ``tall`` is height by width."""
        axes = draw.shape[1] - 4
        angle = draw[:, 0] * self.rotation_degrees * (torch.pi / 180)
        zoom = 1 + draw[:, 1] * self.zoom
        theta = torch.zeros(len(draw), axes, axes + 1, device=draw.device)
        theta[:, 0, 0] = theta[:, 1, 1] = torch.cos(angle) / zoom
        theta[:, 0, 1] = -torch.sin(angle) / zoom * tall
        theta[:, 1, 0] = torch.sin(angle) / zoom / tall
        for axis in range(axes):
            theta[:, axis, axes] = draw[:, 2 + axis] * 2 * self.shift
        if axes == 3:
            theta[:, 2, 2] = 1 / zoom
        return theta


AugmentationConfig = Annotated[NoAugmentation | LightAugmentation, Field(discriminator="kind")]
