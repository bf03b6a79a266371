"""Batches: order, padding, views, augmentation and the cache they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radweave.core.batch import Batch
from radweave.core.study import ImageRef, LabelState, View
from radweave.data.augmentation import LightAugmentation
from radweave.data.cache.images import build_cache
from radweave.data.dataset import Dataset
from radweave.data.examples import prepare_split
from radweave.data.loader import Example, StudyLoader, _drop_view, collate, ordered_views
from radweave.data.square import to_square
from tests.toys import write_toy_dataset


def example(index: int, views: int = 1, tokens: int = 3) -> Example:
    source = np.full((views, 8, 8), index, dtype=np.uint8)
    return Example(f"s{index}", f"p{index}", source, tuple(range(views)), (1,) * views, tuple(range(3, 3 + tokens)))


def test_collate_pads_views_and_text() -> None:
    batch = collate([example(1, views=2, tokens=2), example(2, views=1, tokens=4)], pad_id=0)
    assert batch.pixel_values is not None
    assert batch.pixel_values.shape == (2, 2, 1, 8, 8)
    assert batch.view_mask is not None
    assert batch.view_mask.tolist() == [[True, True], [True, False]]
    assert batch.input_ids is not None
    assert batch.input_ids.tolist() == [[3, 4, 0, 0], [3, 4, 5, 6]]
    assert batch.labels is not None
    assert batch.labels.tolist() == [[3, 4, -100, -100], [3, 4, 5, 6]]
    assert float(batch.pixel_values[1, 0].max()) == pytest.approx(2 / 255)


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 5))
def test_every_epoch_holds_each_study_once_and_resumes_at_any_step(count: int, size: int, epoch: int) -> None:
    loader = StudyLoader([example(index) for index in range(count)], size, 0, seed=3, shuffle=True)
    batches = [batch.study_ids for batch in loader.epoch(epoch)]
    assert len(batches) == loader.steps_per_epoch
    assert sorted(study for batch in batches for study in batch) == sorted(f"s{index}" for index in range(count))
    for first in range(len(batches)):
        assert [batch.study_ids for batch in loader.epoch(epoch, first)] == batches[first:]


def test_every_epoch_and_every_seed_has_an_order_of_its_own() -> None:
    examples = [example(index) for index in range(12)]

    def order(seed: int, epoch: int) -> tuple[str, ...]:
        (batch,) = StudyLoader(examples, 12, 0, seed=seed, shuffle=True).epoch(epoch)
        return tuple(batch.study_ids)

    assert len({order(seed, epoch) for seed in range(3) for epoch in range(3)}) == 9
    assert order(2, 1) == order(2, 1)


def test_missing_labels_differ_from_blank_labels() -> None:
    labelled = replace(example(1), class_states=(0, 1, 2))
    assert collate([example(2), labelled], pad_id=0).class_labels.tolist() == [[-1, -1, -1], [0, 1, 2]]  # type: ignore[union-attr]
    assert collate([example(2)], pad_id=0).class_labels is None


def test_augmentation_depends_on_seed_epoch_and_step_only() -> None:
    source = np.random.default_rng(0).integers(0, 255, (4, 16, 16)).astype(np.uint8)
    examples = [Example(f"s{i}", "p", source, (i,), (1,), (3,)) for i in range(4)]
    loader = StudyLoader(examples, 2, 0, seed=1, shuffle=True, augmentation=LightAugmentation(), hidden_views=0.5)
    first, resumed = list(loader.epoch(2)), list(loader.epoch(2, 1))
    assert first[1].pixel_values is not None
    assert resumed[0].pixel_values is not None
    assert torch.equal(first[1].pixel_values, resumed[0].pixel_values)
    assert first[1].view_ids is not None
    assert resumed[0].view_ids is not None
    assert torch.equal(first[1].view_ids, resumed[0].view_ids)
    other = next(iter(loader.epoch(3)))
    assert other.pixel_values is not None
    assert not torch.equal(other.pixel_values, first[0].pixel_values)


def test_augmentation_and_hidden_views_differ_between_epochs() -> None:
    # One picture for all studies: what differs is the draw.
    source = np.tile(np.random.default_rng(0).integers(0, 255, (1, 16, 16)).astype(np.uint8), (8, 1, 1))
    examples = [Example(f"s{i}", "p", source, (i,), (1,), (3,)) for i in range(8)]

    def batches(seed: int, epoch: int) -> list[Batch]:
        # Not shuffled: the same studies in the same places, whatever the epoch.
        loader = StudyLoader(examples, 4, 0, seed=seed, augmentation=LightAugmentation(), hidden_views=0.5)
        return list(loader.epoch(epoch))

    first = batches(1, 0)
    for other in (batches(1, 1), batches(2, 0), first[::-1]):
        for one, another in zip(first, other, strict=True):
            assert one.pixel_values is not None
            assert another.pixel_values is not None
            assert not torch.equal(one.pixel_values, another.pixel_values)
    hidden = [[batch.view_ids.tolist() for batch in batches(1, epoch)] for epoch in range(4)]  # type: ignore[union-attr]
    assert len({str(one) for one in hidden}) > 1


@pytest.mark.parametrize("cutout", [0.0, 0.4])
def test_a_part_of_a_batch_is_augmented_as_in_the_whole(cutout: float) -> None:
    """A process that has the last three of five images passes over the draws of the first two."""
    images, light = torch.rand(5, 1, 12, 9), LightAugmentation(cutout=cutout)
    whole = light.apply(images, torch.Generator().manual_seed(4))
    part = light.apply(images[2:], torch.Generator().manual_seed(4), passed=2)
    # One image at a time or several: sums of another order.
    torch.testing.assert_close(part, whole[2:])


@pytest.mark.parametrize(
    ("which", "left"), [(0.0, ["100", "010", "011"]), (0.5, ["100", "100", "101"]), (0.99, ["100", "100", "110"])]
)
def test_the_view_that_is_hidden_is_one_that_a_study_has(which: float, left: list[str]) -> None:
    """Studies of one, two and three views; the only one stays."""
    source = np.full((3, 4, 4), 200, np.uint8)
    views = [Example(f"s{count}", "p", source, tuple(range(count)), (1,) * count) for count in (1, 2, 3)]
    batch = collate(views, pad_id=0)
    assert batch.view_mask is not None
    assert batch.pixel_values is not None
    _drop_view(batch, batch.view_mask, torch.ones(3, dtype=torch.bool), torch.full((3,), which))
    assert ["".join(str(int(is_present)) for is_present in row) for row in batch.view_mask.tolist()] == left
    assert torch.equal(batch.pixel_values.flatten(2).any(2), batch.view_mask), "a hidden view is black"


def test_augmentation_stays_in_range_and_never_mirrors() -> None:
    pixels = torch.zeros(64, 1, 32, 32)
    pixels[:, :, 8:24, 2:8] = 1.0
    moved = LightAugmentation().apply(pixels, torch.Generator().manual_seed(0))
    assert float(moved.min()) >= 0
    assert float(moved.max()) <= 1
    left, right = moved[..., :16].sum((1, 2, 3)), moved[..., 16:].sum((1, 2, 3))
    assert (left > right).all()


@pytest.mark.parametrize("size", [(48, 48), (32, 64), (64, 32)])
def test_images_are_turned_and_not_sheared(size: tuple[int, int]) -> None:
    """A disc in the middle stays a disc of pixels, in an image of any shape."""
    rows, columns = np.ogrid[: size[0], : size[1]]
    disc = np.hypot(rows - (size[0] - 1) / 2, columns - (size[1] - 1) / 2) < 12
    pixels = torch.from_numpy(disc).float().expand(8, 1, *size)
    turns = LightAugmentation(rotation_degrees=45, shift=0, zoom=0, contrast=0)
    moved = turns.apply(pixels, torch.Generator().manual_seed(0))
    # The rim is one pixel wide and blurred by the interpolation; sheared by 45 degrees, half of the disc is elsewhere.
    assert float((moved - pixels).abs().sum((1, 2, 3)).max()) < 0.1 * float(disc.sum())
    bar = torch.zeros(8, 1, 48, 48)
    bar[..., 20:28, :] = 1
    assert float((turns.apply(bar, torch.Generator().manual_seed(0)) - bar).abs().max()) > 0.5


@pytest.mark.parametrize("shape", [(40, 20), (20, 40), (30, 30), (7, 100)])
def test_a_square_keeps_the_aspect_ratio(shape: tuple[int, int]) -> None:
    square = to_square(np.ones(shape, dtype=np.float32), 20)
    rows, columns = (square > 0).any(1).sum(), (square > 0).any(0).sum()
    assert max(rows, columns) == 20
    assert min(rows, columns) == max(1, round(20 * min(shape) / max(shape)))
    assert set(np.unique(square)) <= {0, 255}
    for is_present in ((square > 0).any(1), (square > 0).any(0)):
        before, after = int(is_present.argmax()), int(is_present[::-1].argmax())
        assert abs(before - after) <= 1, "in the middle"


def test_frontal_views_come_first() -> None:
    refs = [
        ImageRef(path=f"{i}.png", view=view) for i, view in enumerate([View.UNKNOWN, View.LATERAL, View.AP, View.PA])
    ]
    assert [ref.path for ref in ordered_views(refs, 3)] == ["2.png", "3.png", "1.png"]


def test_the_cache_is_built_once_and_lists_what_it_cannot_read(tmp_path: Path) -> None:
    dataset = write_toy_dataset(tmp_path / "dataset", tmp_path / "sources")
    (dataset.path / "images/1_0.png").write_bytes(b"no image")
    first = build_cache(dataset, size=32)
    assert list(first.unreadable) == ["images/1_0.png"]
    assert len(first.rows) == 29
    calls: list[int] = []
    resumed = build_cache(dataset, size=32, progress=lambda done, total: calls.append(done))
    assert calls == []
    assert np.array_equal(first.pixels, resumed.pixels)


def test_a_cached_square_equals_a_fresh_one(toy_dataset: Dataset) -> None:
    from radweave.data.cache.squares import read_square

    cache = build_cache(toy_dataset, size=32)
    for study in toy_dataset.studies():
        for ref in study.images:
            assert np.array_equal(cache.pixels[cache.rows[ref.path]], read_square(toy_dataset, ref, 32))


def test_unusable_studies_are_left_out_by_reason_and_long_reports_cut(toy_dataset: Dataset) -> None:
    cache = build_cache(toy_dataset, size=32)
    studies = list(toy_dataset.studies("train"))
    studies[0] = studies[0].model_copy(update={"report": " "})
    studies[1] = studies[1].model_copy(update={"images": ()})
    prepared = prepare_split(
        studies, cache, encode=lambda texts: [[5] * len(text.split()) for text in texts],
        end_id=2, max_views=1, max_tokens=6, label_set="chexpert14", classes=("Lung Opacity",), need_text=True,
    )  # fmt: skip
    assert prepared.left_out == {"s000": "the report is empty", "s001": "no image"}
    assert all(item.token_ids == (5, 5, 5, 5, 5, 2) for item in prepared.examples)
    assert all(item.class_states == (1,) for item in prepared.examples)
    assert all(len(item.rows) == 1 for item in prepared.examples)
    assert all(item.abnormal is None for item in prepared.examples)


def test_marks_are_cut_with_the_report_and_the_end_token_has_none(toy_dataset: Dataset) -> None:
    prepared = prepare_split(
        toy_dataset.studies("train"), build_cache(toy_dataset, size=32),
        encode=lambda texts: [[5] * len(text.split()) for text in texts],
        mark=lambda texts: [[word.startswith("opacity") for word in text.split()] for text in texts],
        end_id=2, max_views=1, max_tokens=6, label_set="chexpert14", classes=(), need_text=True,
    )  # fmt: skip
    for item in prepared.examples:
        words = (item.report or "").split()[:5]
        assert item.abnormal == (*(word.startswith("opacity") for word in words), False)
        assert len(item.abnormal) == len(item.token_ids or ())
    assert any(any(item.abnormal or ()) for item in prepared.examples)


def test_reports_without_labels_are_read_together_and_each_gets_its_own(
    toy_dataset: Dataset,
) -> None:
    cache = build_cache(toy_dataset, size=32)
    studies = [
        study.model_copy(update={"labels": {} if number % 2 else study.labels, "report": f"text {number}"})
        for number, study in enumerate(toy_dataset.studies("train"))
    ]
    texts_read: list[list[str]] = []

    def label(texts: Sequence[str]) -> list[dict[str, LabelState]]:
        texts_read.append(list(texts))
        return [{"Edema": LabelState.POSITIVE if int(text[5:]) % 4 == 1 else LabelState.NEGATIVE} for text in texts]

    prepared = prepare_split(
        studies, cache, encode=lambda texts: [[5]] * len(texts), end_id=2, max_views=1, max_tokens=6,
        label_set="chexpert14", classes=("Edema",), need_text=True, label=label,
    )  # fmt: skip
    unlabeled = [f"text {number}" for number in range(1, len(studies), 2)]
    assert texts_read == [unlabeled]
    for example in prepared.examples:
        number = int((example.report or "")[5:])
        if number % 2:
            assert example.class_states == ((1,) if number % 4 == 1 else (2,))


def test_context_is_padded_and_hidden_independently_of_slicing() -> None:
    examples = [replace(example(index), context_ids=tuple(range(3, 3 + index % 3))) for index in range(20)]
    whole = collate(examples[:3], pad_id=0)
    assert whole.context_ids is not None
    assert whole.context_ids.tolist() == [[0, 0], [3, 0], [3, 4]]
    assert whole.context_mask is not None
    assert whole.context_mask.tolist() == [[False, False], [True, False], [True, True]]
    assert collate([example(1)], pad_id=0).context_ids is None
    nothing = collate([examples[0]], pad_id=0).context_ids
    assert nothing is not None
    assert nothing.shape == (1, 0), "nothing to tell is not the same as never told"

    def masks(rank: int, size: int) -> list[list[bool]]:
        (batch,) = StudyLoader(examples, 20, 0, hidden_sections=0.5, rank=rank, size=size).epoch(1)
        assert batch.context_mask is not None
        return [any(row) for row in batch.context_mask.tolist()]  # type: ignore[misc]

    alone = masks(0, 1)
    assert [*masks(0, 2), *masks(1, 2)] == alone
    had = [bool(one.context_ids) for one in examples]
    assert 0 < sum(alone) < sum(had)
    assert all(before or not after for before, after in zip(had, alone, strict=True))


MARKED = [
    replace(example(index, tokens=2 + index % 3), abnormal=tuple(place == index % 3 for place in range(2 + index % 3)))
    for index in range(12)
]


def test_marked_tokens_weigh_more_and_padding_and_the_others_one() -> None:
    (batch,) = StudyLoader(MARKED[:3], 3, 0, abnormal_weight=2.5).epoch()
    assert batch.label_weights is not None
    assert batch.label_weights.tolist() == [[2.5, 1, 1, 1], [1, 2.5, 1, 1], [1, 1, 2.5, 1]]
    (plain,) = StudyLoader(MARKED[:3], 3, 0).epoch()
    assert plain.label_weights is None


def test_weights_follow_their_study_in_any_batch_order_and_slice() -> None:
    def weights(**options: Any) -> dict[str, list[float]]:
        rows: dict[str, list[float]] = {}
        for batch in StudyLoader(MARKED, seed=5, pad_id=0, abnormal_weight=3, **options).epoch(2):
            assert batch.label_weights is not None
            assert batch.labels is not None
            for study, own, labels in zip(batch.study_ids, batch.label_weights, batch.labels, strict=True):
                rows[study] = own[labels != -100].tolist()
        return rows

    alone = weights(batch_size=1)
    assert alone == weights(batch_size=5, shuffle=True) == weights(batch_size=12)
    for whole in (12, 10):  # halves of six are marked alike, halves of five are not
        assert alone == weights(batch_size=whole, rank=0, size=2) | weights(batch_size=whole, rank=1, size=2)
    assert all(sorted(row)[-1] == 3 and row.count(3) == 1 for study, row in alone.items())


def rare(count: int) -> list[Example]:
    """Every tenth study has the rare class, every second one the common one, some no label at all."""
    return [
        replace(example(index), class_states=None if index % 10 == 3 else (int(index % 10 == 0), int(index % 2 == 0)))
        for index in range(count)
    ]


def test_a_balanced_epoch_draws_rare_findings_more_often_and_resumes_at_any_step() -> None:
    examples = rare(200)

    def drawn(balance: float, first: int = 0, epoch: int = 0) -> list[str]:
        loader = StudyLoader(examples, 16, 0, seed=1, shuffle=True, balance=balance)
        return [study for batch in loader.epoch(epoch, first) for study in batch.study_ids]

    def rare_share(studies: list[str]) -> float:
        return sum(int(study[1:]) % 10 == 0 for study in studies) / len(studies)

    assert len(drawn(0.5)) == len(examples)
    assert rare_share(drawn(0)) == pytest.approx(0.1)
    shares = [np.mean([rare_share(drawn(balance, epoch=epoch)) for epoch in range(10)]) for balance in (0.5, 1.0)]
    # Weights of 10 studies: one of 0.1^-b, four of 0.5^-b, five of 1.
    for balance, share in zip((0.5, 1.0), shares, strict=True):
        rarest = 0.1**-balance
        assert share == pytest.approx(rarest / (rarest + 4 * 0.5**-balance + 5), abs=0.03)
    assert drawn(0.5, first=3) == drawn(0.5)[48:]
    assert drawn(0.5) != drawn(0.5, epoch=1)


def test_a_balanced_epoch_does_not_depend_on_slices_and_an_unshuffled_one_is_in_order() -> None:
    examples = rare(40)
    (whole,) = StudyLoader(examples, 40, 0, shuffle=True, balance=0.5).epoch()
    halves = [next(StudyLoader(examples, 40, 0, shuffle=True, balance=0.5, rank=r, size=2).epoch()) for r in (0, 1)]
    assert whole.study_ids == halves[0].study_ids + halves[1].study_ids
    (ordered,) = StudyLoader(examples, 40, 0, balance=0.5).epoch()
    assert ordered.study_ids == [one.study_id for one in examples]
    (unlabelled,) = StudyLoader([example(index) for index in range(9)], 9, 0, shuffle=True, balance=1.0).epoch()
    assert len(unlabelled) == 9
