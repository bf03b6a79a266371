"""Class activation maps from the last visual tokens, for convolutional and for token encoders alike.

A convolutional map (D, h, w) and h x w tokens of width D are the same thing to these formulas. Notation: A activations
and G = dy/dA gradients of one class's score y, both (N, S, D), S positions; every map is (N, S), never negative.

    gradcam    relu(sum_c w_c A_c),  w_c = mean_s G_sc                      Selvaraju et al., ICCV 2017
    gradcam++  the same,  w_c = sum_s a_sc relu(G_sc),
               a_sc = G_sc^2 / (2 G_sc^2 + sum_t A_tc G_sc^3)
                    = 1 / (2 + sum_t A_tc G_sc)                             Chattopadhay et al., WACV 2018
    hirescam   relu(sum_c G_sc A_sc)                                        Draelos and Carin, 2020
    xgradcam   relu(sum_c w_c A_c),  w_c = sum_s G_sc A_sc / sum_s A_sc     Fu et al., BMVC 2020
    eigencam   relu(C v), C_sc = A_sc - mean_t A_tc,
               v the first right singular vector of C                       Muhammad and Yeasin, IJCNN 2020

No formula compares gradients with a constant: they shrink with the number of positions. eigencam knows no class.
Deviations: gradcam++ is for y = exp(score); the factor exp(score) is the same at all positions and drops out where maps
are scaled to their peak. eigencam's paper does not centre, the library that AM-MRG's authors used does. A singular
vector has no sign: it gets the one that correlates with the mean activation of each position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from radweave.nn.connector import ViewTokens

CamKind = Literal["gradcam", "gradcam++", "hirescam", "xgradcam", "eigencam"]
CAM_KINDS: tuple[CamKind, ...] = ("gradcam", "gradcam++", "hirescam", "xgradcam", "eigencam")
# Sums that cancel to this share of what was added hold nothing but rounding.
CANCELLED = 1e-6

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
        denominator = 2 + activations.sum(1, keepdim=True) * gradients
        share = torch.where(denominator.abs() > 2 * CANCELLED, 1 / denominator, torch.zeros_like(denominator))
        return (share * F.relu(gradients)).sum(1)
    total = activations.sum(1)
    stands = total.abs() > CANCELLED * activations.abs().sum(1)
    return torch.where(stands, (gradients * activations).sum(1) / total, torch.zeros_like(total))


def _eigen_map(activations: Tensor) -> Tensor:
    # The largest eigenvector of C^T C is the first right singular vector of C; doubles, for a steady direction.
    wide = activations.double()
    centred = wide - wide.mean(1, keepdim=True)
    vector = torch.linalg.eigh(centred.transpose(1, 2) @ centred).eigenvectors[:, :, -1]
    maps = torch.einsum("nsd,nd->ns", centred, vector)
    brightness = centred.mean(2)
    together = (maps * brightness).sum(1, keepdim=True)
    # Behind a LayerNorm the mean activation is the same everywhere; then the strongest place is made a positive one.
    strongest = maps.gather(1, maps.abs().argmax(1, keepdim=True))
    vague = together.abs() <= CANCELLED * maps.norm(dim=1, keepdim=True) * wide.norm(dim=2).mean(1, keepdim=True)
    sign = torch.where(torch.where(vague, strongest, together) < 0, -1.0, 1.0)
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
) -> Float[Tensor, "classes batch views *grid"]:
    """Maps of the asked classes for all views of each study, scaled so that a study's strongest place is 1.

    A map without any positive place stays 0. ``score`` takes the tokens (B, V, S, D).
    """
    batch, num_views, _, dim = views.tokens.shape
    flat = views.tokens.detach().reshape(batch * num_views, -1, dim)
    maps = []
    for gradient in score_gradients(score, views.tokens, classes):
        heat = class_activation_map(kind, flat, gradient.reshape(flat.shape)).view(batch, num_views, -1)
        heat = heat * views.view_mask[:, :, None]
        peak = heat.flatten(1).amax(1)[:, None, None]
        scaled = heat / peak.clamp(min=torch.finfo(heat.dtype).tiny)
        maps.append(scaled.view(batch, num_views, *views.grid))
    return torch.stack(maps) if maps else flat.new_zeros(0, batch, num_views, *views.grid)


def cell_means(maps: Float[Tensor, "n h w"], image_size: int, cell: int) -> Float[Tensor, "n rows columns"]:
    """Mean of each map over square cells of ``cell`` pixels of the image that its tokens tile.

    A pixel has the value of its token. Smoothed between tokens, a token that stands alone would lose almost half its
    height, and a threshold close to the peak would find nothing there.
    """
    row, column = (torch.arange(image_size, device=maps.device) * side // image_size for side in maps.shape[1:])
    enlarged = maps[:, row[:, None], column[None]]
    return F.avg_pool2d(enlarged[:, None], cell, ceil_mode=True, count_include_pad=False)[:, 0]
