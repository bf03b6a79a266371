"""Class activation maps from the last visual tokens, for convolutional and for token encoders alike.

A convolutional map (D, h, w) and h x w tokens of width D are the same thing to these formulas. Notation: A activations
and G = dy/dA gradients of one class's score y, both (N, S, D), S positions; every map is (N, S), never negative.

    gradcam    relu(sum_c w_c A_c),  w_c = mean_s G_sc                      Selvaraju et al., ICCV 2017
    gradcam++  the same,  w_c = sum_s a_sc relu(G_sc),
               a_sc = G_sc^2 / (2 G_sc^2 + sum_t A_tc G_sc^3)               Chattopadhay et al., WACV 2018
    hirescam   relu(sum_c G_sc A_sc)                                        Draelos and Carin, 2020
    xgradcam   relu(sum_c w_c A_c),  w_c = sum_s G_sc A_sc / sum_s A_sc     Fu et al., BMVC 2020
    eigencam   relu(A v), v the first right singular vector of A            Muhammad and Yeasin, IJCNN 2020

eigencam knows no class. Deviations: gradcam++ is for y = exp(score); the factor exp(score) is the same at all positions
and drops out where maps are scaled to their peak. A singular vector has no sign: it gets the one that makes the map's
sum positive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from radweave.nn.views import ViewTokens

CamKind = Literal["gradcam", "gradcam++", "hirescam", "xgradcam", "eigencam"]
CAM_KINDS: tuple[CamKind, ...] = ("gradcam", "gradcam++", "hirescam", "xgradcam", "eigencam")
EPSILON = 1e-7

Score = Callable[[Tensor], Tensor]
"""From tokens of any shape (B, ...) to scores (B, K); a study's scores depend on its own tokens only."""


def class_activation_map(
    kind: CamKind, activations: Float[Tensor, "n s d"], gradients: Float[Tensor, "n s d"]
) -> Float[Tensor, "n s"]:
    """The map of one class for each of ``n`` images."""
    if kind == "eigencam":
        maps = _eigen_map(activations)
    elif kind == "hirescam":
        maps = (gradients * activations).sum(-1)
    else:
        weights = _channel_weights(kind, activations, gradients)
        maps = torch.einsum("nsd,nd->ns", activations, weights)
    return F.relu(maps)


def _channel_weights(kind: CamKind, activations: Tensor, gradients: Tensor) -> Tensor:
    if kind == "gradcam":
        return gradients.mean(1)
    if kind == "gradcam++":
        square = gradients.square()
        denominator = 2 * square + activations.sum(1, keepdim=True) * square * gradients
        share = torch.where(denominator.abs() > EPSILON, square / denominator, torch.zeros_like(square))
        return (share * F.relu(gradients)).sum(1)
    total = activations.sum(1)
    safe = torch.where(total.abs() > EPSILON, total, torch.full_like(total, EPSILON))
    return (gradients * activations).sum(1) / safe


def _eigen_map(activations: Tensor) -> Tensor:
    # The largest eigenvector of A^T A is the first right singular vector of A; doubles, for a steady direction.
    wide = activations.double()
    vector = torch.linalg.eigh(wide.transpose(1, 2) @ wide).eigenvectors[:, :, -1]
    maps = torch.einsum("nsd,nd->ns", wide, vector)
    sign = torch.where(maps.sum(1, keepdim=True) < 0, -1.0, 1.0)
    return (maps * sign).to(activations.dtype)


def score_gradients(score: Score, activations: Float[Tensor, "batch ..."], classes: Sequence[int]) -> list[Tensor]:
    """The gradient of each asked class's score by the activations; works inside ``no_grad`` and ``inference_mode``."""
    with torch.inference_mode(False), torch.enable_grad():
        leaf = activations.detach().clone().requires_grad_()
        totals = score(leaf).sum(0)
        return [
            torch.autograd.grad(totals[number], leaf, retain_graph=place + 1 < len(classes))[0]
            for place, number in enumerate(classes)
        ]


def view_maps(
    kind: CamKind, views: ViewTokens, score: Score, classes: Sequence[int]
) -> Float[Tensor, "classes batch views h w"]:
    """Maps of the asked classes for all views of each study, scaled so that a study's strongest place is 1.

    A map without any positive place stays 0. ``score`` takes the tokens (B, V, S, D).
    """
    batch, num_views, _, dim = views.tokens.shape
    height, width = views.grid
    flat = views.tokens.detach().reshape(batch * num_views, -1, dim)
    maps = []
    for gradient in score_gradients(score, views.tokens, classes):
        found = class_activation_map(kind, flat, gradient.reshape(flat.shape)).view(batch, num_views, height, width)
        found = found * views.view_mask[:, :, None, None]
        peak = found.flatten(1).amax(1)[:, None, None, None]
        maps.append(found / peak.clamp(min=EPSILON))
    return torch.stack(maps) if maps else flat.new_zeros(0, batch, num_views, height, width)


def cell_means(maps: Float[Tensor, "n h w"], image_size: int, cell: int) -> Float[Tensor, "n rows columns"]:
    """Mean of each map, enlarged to the image, over square cells of ``cell`` pixels."""
    enlarged = F.interpolate(maps[:, None], size=(image_size, image_size), mode="bilinear", align_corners=False)
    return F.avg_pool2d(enlarged, cell, ceil_mode=True, count_include_pad=False)[:, 0]
