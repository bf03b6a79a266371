"""Class activation maps against their formulas in loops, and against what is known of them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from radweave.nn.cam import CAM_KINDS, CamKind, cell_means, class_activation_map, score_gradients, view_maps
from radweave.nn.views import ViewTokens

# float64 against loops: only the order of additions differs.
CLOSE = {"rtol": 1e-8, "atol": 1e-9}


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def loop_weights(kind: CamKind, A: Tensor, G: Tensor) -> list[float]:
    """Channel weights of one image, written from the papers."""
    places, channels = A.shape
    weights = []
    for c in range(channels):
        if kind == "gradcam":
            weights.append(sum(float(G[s, c]) for s in range(places)) / places)
        elif kind == "gradcam++":
            total = sum(float(A[s, c]) for s in range(places))
            weight = 0.0
            for s in range(places):
                g = float(G[s, c])
                if abs(2 * g**2 + total * g**3) > 1e-7:
                    weight += g**2 / (2 * g**2 + total * g**3) * max(g, 0.0)
            weights.append(weight)
        else:
            total = sum(float(A[s, c]) for s in range(places))
            weights.append(sum(float(G[s, c] * A[s, c]) for s in range(places)) / total)
    return weights


def loop_map(kind: CamKind, A: Tensor, G: Tensor) -> Tensor:
    places, channels = A.shape
    if kind == "hirescam":
        values = [sum(float(G[s, c] * A[s, c]) for c in range(channels)) for s in range(places)]
    elif kind == "eigencam":
        _, _, right = torch.linalg.svd(A, full_matrices=False)
        projected = A @ right[0]
        values = (projected if projected.sum() >= 0 else -projected).tolist()
    else:
        weights = loop_weights(kind, A, G)
        values = [sum(weights[c] * float(A[s, c]) for c in range(channels)) for s in range(places)]
    return torch.tensor([max(value, 0.0) for value in values], dtype=A.dtype)


@pytest.mark.parametrize("kind", CAM_KINDS)
def test_a_map_is_its_formula(kind: CamKind) -> None:
    activations, gradients = draw(3, 12, 5), draw(3, 12, 5, seed=1)
    gradients[:, ::4] = 0.0  # places without any influence must not divide 0 by 0
    maps = class_activation_map(kind, activations, gradients)
    expected = torch.stack([loop_map(kind, a, g) for a, g in zip(activations, gradients, strict=True)])
    torch.testing.assert_close(maps, expected, **CLOSE)
    assert (maps >= 0).all()
    assert maps.any()


@pytest.mark.parametrize("kind", ["gradcam", "hirescam"])
def test_after_mean_pooling_and_a_linear_head_the_map_is_cam(kind: CamKind) -> None:
    """Zhou et al., CVPR 2016: there the class weights themselves weigh the channels (here over S positions)."""
    torch.manual_seed(0)
    conv, head = nn.Conv2d(1, 6, 3, padding=1).double(), nn.Linear(6, 4).double()
    features = conv(draw(2, 1, 5, 7)).relu()
    tokens = features.flatten(2).transpose(1, 2)
    (gradient,) = score_gradients(lambda x: head(x.mean(1)), tokens, [2])
    maps = class_activation_map(kind, tokens.detach(), gradient)
    expected = torch.einsum("ndhw,d->nhw", features, head.weight[2]).relu().flatten(1) / tokens.shape[1]
    torch.testing.assert_close(maps, expected.detach(), **CLOSE)


def test_gradients_are_there_where_none_are_recorded() -> None:
    head = nn.Linear(6, 4).double()
    with torch.inference_mode():
        tokens = draw(2, 10, 6) * 1.0
        gradients = score_gradients(lambda x: head(x.mean(1)), tokens, [0, 3])
    assert len(gradients) == 2
    torch.testing.assert_close(gradients[1][0, 0], head.weight[3].detach() / 10, **CLOSE)


def toy_views(batch: int = 3) -> ViewTokens:
    mask = torch.tensor([[True, True], [True, False], [True, True]])[:batch]
    tokens = draw(3, 2, 12, 6)[:batch] * mask[:, :, None, None]
    return ViewTokens(tokens, mask, torch.ones(batch, 2, dtype=torch.long), (3, 4))


@pytest.mark.parametrize("kind", CAM_KINDS)
def test_views_of_a_study_share_a_peak_and_studies_nothing(kind: CamKind) -> None:
    torch.manual_seed(0)
    head = nn.Linear(6, 4).double()

    def score(tokens: Tensor) -> Tensor:
        return head(tokens.tanh().mean((1, 2)))

    maps = view_maps(kind, toy_views(), score, [1, 3])
    assert maps.shape == (2, 3, 2, 3, 4)
    assert (maps[:, 1, 1] == 0).all(), "a view that is absent shows nothing"
    torch.testing.assert_close(maps.flatten(2).amax(2), torch.ones(2, 3, dtype=maps.dtype), **CLOSE)
    alone = view_maps(kind, toy_views(1), score, [1, 3])
    torch.testing.assert_close(alone[:, 0], maps[:, 0], **CLOSE)
    assert view_maps(kind, toy_views(), score, []).shape[0] == 0


def test_a_map_points_at_the_place_that_decides() -> None:
    tokens = torch.full((1, 1, 16, 3), 0.1, dtype=torch.float64)
    tokens[0, 0, 6, 0] = 5.0
    views = ViewTokens(tokens, torch.ones(1, 1).bool(), torch.ones(1, 1).long(), (4, 4))
    for kind in CAM_KINDS:
        found = view_maps(kind, views, lambda x: x[..., 0].amax((1, 2))[:, None], [0])
        assert int(found.flatten().argmax()) == 6, kind


def test_cells_are_means_of_the_enlarged_map() -> None:
    maps = draw(2, 4, 4).abs()
    cells = cell_means(maps, 64, 16)
    enlarged = F.interpolate(maps[:, None], size=(64, 64), mode="bilinear", align_corners=False)[:, 0]
    for row in range(4):
        for column in range(4):
            part = enlarged[:, 16 * row : 16 * row + 16, 16 * column : 16 * column + 16]
            torch.testing.assert_close(cells[:, row, column], part.mean((1, 2)), **CLOSE)
    assert cell_means(maps, 40, 16).shape == (2, 3, 3)
