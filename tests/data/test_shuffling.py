"""Orders that read the disk in stretches, batches made ahead by processes: the same on ranks and after a stop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from radweave.core.errors import InputError
from radweave.data import loader as read_ahead
from radweave.data.augmentation import LightAugmentation
from radweave.data.cache.ct import ScanRows
from radweave.data.loader import Example, ShuffleAll, ShuffleBlocks, StudyLoader, mixed_order, read, runs

BLOCKS = ShuffleBlocks(size=4, together=2)


class AtOnce:
    """A pool that does at once what it is given."""

    def __init__(self, max_workers: int) -> None:
        assert max_workers == 1

    def submit(self, work: Callable[[list[Example]], object], some: list[Example]) -> None:
        work(some)

    def shutdown(self, *, wait: bool, cancel_futures: bool) -> None: ...


def examples(folder: Path, count: int) -> list[Example]:
    """Studies of two images each, in the order of a cache on disk."""
    path = folder / "pixels.npy"
    np.save(path, np.random.default_rng(0).integers(0, 255, (2 * count, 8, 8), dtype=np.uint8))
    source = np.load(path, mmap_mode="r")
    return [Example(f"s{n}", f"p{n}", source, (2 * n, 2 * n + 1), (1, 2), token_ids=(3, 4)) for n in range(count)]


def test_blocks_are_exhausted_one_group_at_a_time() -> None:
    order = BLOCKS.order(np.arange(30), np.random.default_rng(0))
    assert sorted(order.tolist()) == list(range(30))
    groups = [order[start : start + 8].tolist() for start in (0, 8, 16)]
    for group in groups[:-1]:
        assert len({place // 4 for place in group}) <= 3
    assert order.tolist() != sorted(order.tolist())
    assert groups[0] != sorted(groups[0]), "studies of a window are mixed"
    repeated = BLOCKS.order(np.arange(30), np.random.default_rng(0))
    other = BLOCKS.order(np.arange(30), np.random.default_rng(1))
    assert order.tolist() == repeated.tolist() != other.tolist()
    assert BLOCKS.order(np.arange(0), np.random.default_rng(0)).tolist() == []


def test_a_mixture_in_blocks_keeps_shares_and_neighbourhood() -> None:
    origins = ["a"] * 64 + ["b"] * 16
    order = mixed_order(origins, {"a": 1, "b": 1}, np.random.default_rng(0), BLOCKS)
    counts = Counter(origins[place] for place in order.tolist())
    assert counts == {"a": 40, "b": 40}
    first = [place for place in order.tolist() if place < 64][:8]
    assert len({place // 4 for place in first}) == 2
    near = [origins[place] for place in order[:20]]
    assert 4 < near.count("a") < 16, "both sets come in turn"


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_and_a_resumed_epoch_see_the_same_blocks(tmp_path: Path, size: int) -> None:
    studies = examples(tmp_path, 23)

    def loader(rank: int = 0, ranks: int = 1) -> StudyLoader:
        return StudyLoader(studies, 5, 0, seed=3, shuffle=True, order=BLOCKS, rank=rank, size=ranks)

    whole = [batch.study_ids for batch in loader().epoch(1)]
    assert [batch.study_ids for batch in loader().epoch(1, first_step=2)] == whole[2:]
    assert [batch.study_ids for batch in loader().epoch(2)] != whole
    parts = [[batch.study_ids for batch in loader(rank, size).epoch(1)] for rank in range(size)]
    for step, ids in enumerate(whole[:-1]):
        assert [study for part in parts for study in part[step]] == ids


def test_read_ahead_covers_exactly_the_next_steps_in_disk_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_ahead, "GAP_ROWS", 1)
    studies = examples(tmp_path, 12)
    assert runs([1, 2, 3, 7, 8, 11]) == [(1, 3), (7, 8), (11, 11)]
    assert read(studies[4:6] + studies[8:9]) == 6 * 64
    assert read([Example("s", "p", ScanRows([], (2, 2, 2)), (0,), (0,))]) == 0
    texts_read: list[list[str]] = []
    monkeypatch.setattr(read_ahead, "ThreadPoolExecutor", AtOnce)
    monkeypatch.setattr(read_ahead, "read", lambda some: texts_read.append([study.study_id for study in some]))
    loader = StudyLoader(studies, 2, 0, shuffle=True, order=ShuffleBlocks(size=2, together=2))
    ids = [name for batch in loader.epoch() for name in batch.study_ids]
    assert [name for names in texts_read for name in names] == ids[2:], "the first step reads its own"
    assert [len(names) for names in texts_read if names] == [2, 4, 4]


def test_batches_made_by_processes_are_the_same_bits(tmp_path: Path) -> None:
    studies = examples(tmp_path, 11)

    def epoch(workers: int, order: ShuffleAll | ShuffleBlocks) -> list[torch.Tensor]:
        loader = StudyLoader(
            studies, 3, 0, seed=3, shuffle=True, augmentation=LightAugmentation(), hidden_views=0.5, dropped_views=0.5,
            order=order, workers=workers,
        )  # fmt: skip
        torch.manual_seed(1)
        orders = [
            part.clone()
            for batch in loader.epoch(1, first_step=1)
            for part in (batch.pixel_values, batch.view_mask, batch.view_ids, batch.input_ids)
            if part is not None
        ]
        return [*orders, torch.rand(3)]

    for order in (ShuffleAll(), BLOCKS):
        alone, ahead = epoch(0, order), epoch(2, order)
        assert len(alone) == 3 * 4 + 1
        assert all(torch.equal(one, other) for one, other in zip(alone, ahead, strict=True))


def test_worker_errors_equal_those_without_workers(tmp_path: Path) -> None:
    lost = Example("s", "p", ScanRows([tmp_path / "lost.npy"], (2, 2, 2)), (0,), (0,))
    batches = StudyLoader([lost] * 4, 2, 0, workers=2).epoch()
    with pytest.raises(InputError, match="missing or damaged") as raised:
        next(batches)
    assert raised.value.file == str(tmp_path / "lost.npy")
