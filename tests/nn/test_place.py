"""Places of findings over tokens: cells, losses, and boxes of maps."""

from __future__ import annotations

import pytest
import torch

from radweave.nn.connector import ViewTokens
from radweave.nn.place import PlaceHead, PlaceTargets, box_overlap, boxes_of_map, cell_edges, place_loss

GRID = (4, 4)
CLASSES, PLACES, DIM = 2, 5, 8


def views_of(tokens: torch.Tensor, kinds: list[list[int]], mask: list[list[bool]] | None = None) -> ViewTokens:
    ids = torch.tensor(kinds)
    present = torch.ones_like(ids, dtype=torch.bool) if mask is None else torch.tensor(mask)
    return ViewTokens(tokens, present, ids, GRID)


def head(axes: int = 2) -> PlaceHead:
    torch.manual_seed(0)
    return PlaceHead(DIM, axes, CLASSES, PLACES, 16).eval()


def targets(boxes: list[list[float]], states: list[list[float]]) -> PlaceTargets:
    nowhere = torch.full((len(states), CLASSES, PLACES), torch.nan)
    return PlaceTargets(
        torch.tensor(states), nowhere, torch.tensor(boxes).view(len(boxes), len(boxes[0]) if boxes else 3)
    )


def test_cells_tile_the_image_in_row_major_order() -> None:
    low, high = cell_edges((2, 4))
    assert low.tolist()[:2] == [[0.0, 0.0], [0.0, 0.25]]
    assert (low[4].tolist(), high[4].tolist()) == ([0.5, 0.0], [1.0, 0.25])
    assert float((high - low).prod(1).sum()) == pytest.approx(1.0)


def test_a_study_does_not_depend_on_its_neighbours_or_on_padding() -> None:
    model, tokens = head(), torch.randn(2, 2, 16, DIM)
    tokens[1, 1] = 0
    both = model(views_of(tokens, [[1, 2], [1, 0]], [[True, True], [True, False]]))
    alone = model(views_of(tokens[1:, :1], [[1]]))
    torch.testing.assert_close(both.places[1], alone.places[0])
    torch.testing.assert_close(both.present[1], alone.present[0])
    torch.testing.assert_close(both.maps[1, 0], alone.maps[0, 0])


def test_a_lateral_view_says_no_side_beside_a_frontal_one() -> None:
    model, tokens = head(), torch.randn(1, 2, 16, DIM)
    before = model(views_of(tokens, [[1, 2]])).places
    tokens[0, 1] += 1.0
    torch.testing.assert_close(model(views_of(tokens, [[1, 2]])).places, before)
    alone = model(views_of(tokens[:, 1:], [[2]])).places
    assert not alone.isnan().any(), "alone it says what it can"
    assert not torch.allclose(alone, before)


def test_volumes_have_maps_and_boxes_of_three_axes() -> None:
    tokens = torch.randn(1, 1, 24, DIM)
    logits = head(3)(ViewTokens(tokens, torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, 1).long(), (2, 3, 4)))
    assert logits.maps.shape == (1, 1, 24, CLASSES)
    assert logits.boxes.shape == (1, 1, 24, CLASSES, 6)


def test_unknown_targets_cost_nothing() -> None:
    views = views_of(torch.randn(1, 1, 16, DIM), [[1]])
    logits = head()(views)
    nothing = targets([], [[torch.nan, torch.nan]])
    assert float(place_loss(logits, nothing, views)) == 0.0
    assert float(place_loss(logits, targets([], [[1.0, torch.nan]]), views)) > 0
    # A box says nothing of a class without one, unless that class is absent.
    boxes = [[0.0, 0.0, 0.0, 0.25, 0.25, 0.5, 0.5]]
    own, absent = (place_loss(logits, targets(boxes, [[torch.nan, other]]), views) for other in (torch.nan, 0.0))
    assert 0 < float(own) != float(absent)


def test_training_finds_a_box_and_its_side_from_tokens() -> None:
    """Tokens that mark the cells of a box; half of the boxes are on each side, and the words say which."""
    torch.manual_seed(0)
    model = PlaceHead(DIM, 2, CLASSES, PLACES, 16)
    tokens, boxes, places = torch.randn(32, 1, 16, DIM) * 0.1, [], torch.full((32, CLASSES, PLACES), torch.nan)
    for study in range(32):
        column = study % 4
        tokens[study, 0, [4 + column, 8 + column], 0] += 3.0
        boxes.append([study, 0, 0, 0.25, column / 4, 0.75, (column + 1) / 4])
        places[study, 0, :2] = torch.tensor([float(column > 1), float(column < 2)])
    views = views_of(tokens, [[1]] * 32)
    wanted = PlaceTargets(torch.tensor([[1.0, 0.0]] * 32), places, torch.tensor(boxes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        place_loss(model(views), wanted, views).backward()
        optimizer.step()
    with torch.no_grad():
        logits = model.eval()(views)
    overlaps = []
    for study in range(32):
        found = boxes_of_map(logits.maps[study, 0, :, 0], logits.boxes[study, 0, :, 0], GRID, 0.5)
        assert len(found) == 1
        overlaps.append(float(box_overlap(torch.tensor(found[0][0]), wanted.boxes[study, 3:])))
    assert min(overlaps) > 0.7
    assert torch.equal(logits.places[:, 0, :2] > 0, places[:, 0, :2] > 0.5)
    assert boxes_of_map(logits.maps[0, 0, :, 1], logits.boxes[0, 0, :, 1], GRID, 0.5) == [], "the class is absent"


def test_boxes_of_one_finding_are_one_box_and_of_two_are_two() -> None:
    maps = torch.full((16,), -4.0)
    maps[[5, 6, 15]] = torch.tensor([2.0, 1.0, 0.5])
    corners = torch.zeros(16, 4)
    corners[5], corners[6] = torch.tensor([0.2, 0.2, 0.5, 0.5]), torch.tensor([0.2, 0.2, 0.5, 0.6])
    corners[15] = torch.tensor([0.8, 0.8, 1.0, 1.0])
    made = boxes_of_map(maps, corners, GRID, 0.5)
    assert [box for box, _ in made] == [corners[5].tolist(), corners[15].tolist()]
    assert made[0][1] == pytest.approx(torch.tensor(2.0).sigmoid().item())
    assert boxes_of_map(maps, corners, GRID, 0.9) == []


def test_without_learned_corners_a_box_holds_the_cells_of_half_the_peak() -> None:
    maps = torch.full((16,), -4.0)
    maps[[5, 6]] = torch.tensor([2.0, 1.0])
    assert boxes_of_map(maps, None, GRID, 0.5) == [([0.25, 0.25, 0.5, 0.75], pytest.approx(0.8808, abs=1e-4))]
