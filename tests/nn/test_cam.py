"""Class activation maps against their formulas in loops, and against what is known of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from radweave.nn.cam import CAM_KINDS, CamKind, cell_means, class_activation_map, score_gradients, view_maps
from radweave.nn.connector import ViewTokens

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
                if g != 0:
                    weight += g**2 / (2 * g**2 + total * g**3) * max(g, 0.0)
            weights.append(weight)
        else:
            total = sum(float(A[s, c]) for s in range(places))
            weights.append(sum(float(G[s, c] * A[s, c]) for s in range(places)) / total)
    return weights


def loop_eigen(A: Tensor) -> list[float]:
    """Power iteration on the covariance of the channels, from numbers; the sign that goes with the mean activation."""
    places, channels = A.shape
    means = [sum(float(A[s, c]) for s in range(places)) / places for c in range(channels)]
    centred = [[float(A[s, c]) - means[c] for c in range(channels)] for s in range(places)]
    vector = [1.0 + 0.1 * c for c in range(channels)]
    for _ in range(3000):
        projected = [sum(row[c] * vector[c] for c in range(channels)) for row in centred]
        vector = [sum(projected[s] * centred[s][c] for s in range(places)) for c in range(channels)]
        length = sum(value**2 for value in vector) ** 0.5
        vector = [value / length for value in vector]
    projected = [sum(row[c] * vector[c] for c in range(channels)) for row in centred]
    brightness = [sum(float(A[s, c]) for c in range(channels)) / channels for s in range(places)]
    average = sum(brightness) / places
    together = sum(p * (b - average) for p, b in zip(projected, brightness, strict=True))
    return projected if together >= 0 else [-value for value in projected]


def loop_map(kind: CamKind, A: Tensor, G: Tensor) -> Tensor:
    places, channels = A.shape
    if kind == "hirescam":
        values = [sum(float(G[s, c] * A[s, c]) for c in range(channels)) for s in range(places)]
    elif kind == "eigencam":
        values = loop_eigen(A)
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


@pytest.mark.parametrize("size", [1.0, 1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("kind", CAM_KINDS)
def test_a_map_is_its_formula_however_small_the_gradients_are(kind: CamKind, size: float) -> None:
    """Behind a mean over 196 tokens gradients are a thousandth of what they are behind one token."""
    activations, gradients = draw(2, 49, 5, seed=2).abs(), draw(2, 49, 5, seed=3) * size
    expected = torch.stack([loop_map(kind, a, g) for a, g in zip(activations, gradients, strict=True)])
    assert expected.any()
    peak = float(expected.max())
    maps = class_activation_map(kind, activations, gradients)
    torch.testing.assert_close(maps / peak, expected / peak, **CLOSE)
    single = class_activation_map(kind, activations.float(), gradients.float())
    # Float32, where a share 1 / (2 + S g) may divide by little.
    torch.testing.assert_close(single / peak, (expected / peak).float(), rtol=1e-3, atol=1e-4)


def test_a_zero_denominator_gives_no_weight() -> None:
    """2 g^2 + S g^3 is zero at g = -2 / S: there no share is defined, and the map stays finite."""
    activations = torch.full((1, 4, 1), -0.5)
    gradients = torch.tensor([1.0, 0.5, 0.0, -1.0]).view(1, 4, 1)
    maps = class_activation_map("gradcam++", activations, gradients)
    assert torch.isfinite(maps).all()
    # The first place's denominator vanishes; of the second it is 1: weight 0.5, times the activation, below zero.
    assert (maps == 0).all()
    assert float(class_activation_map("gradcam++", activations, -gradients * 0.5).max()) == 0
    positive = class_activation_map("gradcam++", activations.abs(), gradients)
    torch.testing.assert_close(positive, torch.full((1, 4), 0.5 * (1 / 4 + 0.5 / 3)))


def test_an_eigen_map_is_of_centred_features() -> None:
    """A large constant in every channel is no structure; the sign is that of the brighter places."""
    pattern = draw(1, 12, 1).abs()
    activations = 50.0 + pattern * torch.tensor([1.0, 2.0, -0.5], dtype=torch.float64)
    result = class_activation_map("eigencam", activations, torch.zeros_like(activations))[0]
    centred = pattern[0, :, 0] - pattern.mean()
    torch.testing.assert_close(result / result.max(), centred.clamp(min=0) / centred.max(), **CLOSE)
    # Tokens behind a LayerNorm have the same mean everywhere; then the strongest place decides.
    flat = F.layer_norm(draw(1, 12, 6, seed=5), (6,))
    one, other = (class_activation_map("eigencam", sign * flat, flat) for sign in (1.0, -1.0))
    torch.testing.assert_close(one, other, **CLOSE)


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


def test_maps_need_no_recorded_gradients() -> None:
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


@pytest.mark.parametrize("size", [1.0, 1e-9])
@pytest.mark.parametrize("kind", CAM_KINDS)
def test_views_of_a_study_share_a_peak_and_studies_nothing(kind: CamKind, size: float) -> None:
    torch.manual_seed(0)
    head = nn.Linear(6, 4).double()

    def score(tokens: Tensor) -> Tensor:
        return head(tokens.tanh().mean((1, 2))) * size

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
        result = view_maps(kind, views, lambda x: x[..., 0].amax((1, 2))[:, None], [0])
        assert int(result.flatten().argmax()) == 6, kind


@pytest.mark.parametrize(("tokens", "image", "cell"), [(4, 64, 16), (8, 64, 16), (2, 64, 16), (7, 40, 16), (3, 40, 16)])
def test_cells_are_means_of_the_tokens_that_they_cover(tokens: int, image: int, cell: int) -> None:
    maps = draw(2, tokens, tokens).abs()
    cells = cell_means(maps, image, cell)
    count = -(-image // cell)
    assert cells.shape == (2, count, count)
    for row in range(count):
        for column in range(count):
            values = [
                maps[:, y * tokens // image, x * tokens // image]
                for y in range(row * cell, min(row * cell + cell, image))
                for x in range(column * cell, min(column * cell + cell, image))
            ]
            torch.testing.assert_close(cells[:, row, column], torch.stack(values).mean(0), **CLOSE)


@pytest.mark.parametrize(("tokens", "image"), [(14, 224), (7, 224), (5, 144)])
def test_a_single_token_keeps_its_height(tokens: int, image: int) -> None:
    """Smoothed, it would fall below a threshold of 0.75 of itself, and its study would have no region. Some cell of 16
    pixels lies within every token of these grids, those of the presets among them.
    """
    alone = torch.eye(tokens * tokens).view(-1, tokens, tokens)
    cells = cell_means(alone, image, 16)
    assert (cells.flatten(1).amax(1) == 1.0).all()
    if tokens == 14:
        assert torch.equal(cells, alone)
    for number in range(tokens * tokens):
        row, column = divmod(int(cells[number].flatten().argmax()), cells.shape[2])
        middle = (torch.tensor([row, column]) * 16 + 8) * tokens // image
        assert middle.tolist() == list(divmod(number, tokens))


@pytest.mark.parametrize("kind", CAM_KINDS)
def test_an_absent_view_has_no_heat(kind: CamKind) -> None:
    torch.manual_seed(0)
    head = nn.Linear(6, 4).double()
    views = replace(toy_views(), tokens=draw(3, 2, 12, 6))
    maps = view_maps(kind, views, lambda tokens: head(tokens.tanh().mean((1, 2))), [1, 3])
    assert (maps[:, 1, 1] == 0).all()
    assert maps.amax() > 0
