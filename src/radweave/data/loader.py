"""Studies to batches, in an order that depends on seed and epoch only.

A batch is found by its step alone, so that a resumed run sees what an unbroken one would have seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from radweave.base.batch import Batch, Slice
from radweave.base.study import ImageRef, LabelState, View
from radweave.data.augmentation import AugmentationConfig, NoAugmentation
from radweave.data.cache.ct import ScanRows
from radweave.data.order import ShuffleAll, ShuffleConfig, mixed_order
from radweave.data.prefetch import made_ahead
from radweave.data.read_ahead import reading_ahead

STATE_IDS = {LabelState.BLANK: 0, LabelState.POSITIVE: 1, LabelState.NEGATIVE: 2, LabelState.UNCERTAIN: 3}


@dataclass(frozen=True, slots=True)
class Example:
    """A study ready for batching.

    Its views are the ``rows`` of ``source`` (N, H, W) uint8, an array that examples share; a CT study has one row of a
    source (N, D, H, W). ``view_ids`` are their kinds; ``token_ids`` the target with its end token; ``class_states`` the
    label states (K); ``report`` the target as text. ``prior`` is the patient's study before this one, if the experiment
    asks for it; it has a report. ``origin`` is the data set of a mixture that it is of. ``told_ids`` is what the model
    is told beside the images (``radweave.data.told``); None where no study is told anything.
    """

    study_id: str
    patient_id: str
    source: NDArray[np.uint8] | ScanRows
    rows: tuple[int, ...]
    view_ids: tuple[int, ...]
    token_ids: tuple[int, ...] | None = None
    class_states: tuple[int, ...] | None = None
    report: str | None = None
    prior: Example | None = None
    origin: str | None = None
    told_ids: tuple[int, ...] | None = None

    @property
    def pixels(self) -> NDArray[np.uint8]:
        """The views (V, H, W), or the scan (1, D, H, W), read from the source."""
        return np.stack([self.source[row] for row in self.rows])


@dataclass(frozen=True, slots=True)
class Features:
    """Patch tokens of images: ``tokens`` (M, S, D) float32 over ``grid``; ``positions`` image row -> place in them."""

    tokens: NDArray[np.float32]
    grid: tuple[int, ...]
    positions: dict[int, int]


VIEW_KINDS = ("unknown", "frontal", "lateral")
"""What the numbers of ``view_id`` mean."""


def view_id(view: View) -> int:
    """0 unknown, 1 frontal, 2 lateral."""
    return 1 if view.is_frontal else 2 if view is View.LATERAL else 0


def ordered_views(images: Sequence[ImageRef], limit: int) -> list[ImageRef]:
    """Frontal views first, then lateral, then unknown, at most ``limit``; file order within a kind."""
    rank = {1: 0, 2: 1, 0: 2}
    return sorted(images, key=lambda ref: rank[view_id(ref.view)])[:limit]


def class_states(labels: Mapping[str, LabelState], classes: Sequence[str]) -> tuple[int, ...]:
    """Label states as integers in the order of ``classes``."""
    return tuple(STATE_IDS[labels.get(name, LabelState.BLANK)] for name in classes)


def collate(
    examples: Sequence[Example], *, pad_id: int, features: Features | None = None, views: int | None = None
) -> Batch:
    """Pad views with False in the mask and reports on the right with -100 labels.

    With ``features`` the batch holds those instead of pixels, which are then not read at all. ``views`` is the number
    to pad to where it is not that of these examples.
    """
    views = views or max(len(example.view_ids) for example in examples)
    view_mask = torch.zeros(len(examples), views, dtype=torch.bool)
    view_ids = torch.zeros(len(examples), views, dtype=torch.long)
    for row, example in enumerate(examples):
        count = len(example.view_ids)
        view_mask[row, :count] = True
        view_ids[row, :count] = torch.tensor(example.view_ids)
    batch = Batch(
        study_ids=[example.study_id for example in examples],
        patient_ids=[example.patient_id for example in examples],
        view_mask=view_mask,
        view_ids=view_ids,
    )
    if features is None:
        _add_pictures(batch, examples, views)
    else:
        batch.vision_grid = features.grid
        batch.vision_tokens = torch.zeros(len(examples), views, *features.tokens.shape[1:])
        for row, example in enumerate(examples):
            read = torch.from_numpy(features.tokens[[features.positions[number] for number in example.rows]])
            batch.vision_tokens[row, : len(example.view_ids)] = read
    if all(example.token_ids is not None for example in examples):
        _add_text(batch, examples, pad_id)
        batch.reports = [example.report or "" for example in examples]
    if all(example.told_ids is not None for example in examples):
        batch.told_ids, batch.told_mask = _padded([example.told_ids or () for example in examples], pad_id)
    known = next((example.class_states for example in examples if example.class_states is not None), None)
    if known is not None:
        absent = (-1,) * len(known)
        batch.class_labels = torch.tensor([example.class_states or absent for example in examples])
    priors = {row: example.prior for row, example in enumerate(examples) if example.prior is not None}
    if priors:
        batch.prior_of = tuple(priors)
        batch.priors = collate(tuple(priors.values()), pad_id=pad_id, features=features)
    return batch


def _drop_view(batch: Batch, view_mask: Tensor, dropped: Tensor, which: Tensor) -> None:
    """Leave out a view of the studies that are ``dropped`` (B) and have several; ``which`` (B), 0 to 1, says which."""
    count = view_mask.sum(1)
    place = (which * count).long()
    rows = torch.nonzero(dropped & (count > 1)).flatten()
    view_mask[rows, place[rows]] = False
    if batch.pixel_values is not None:
        batch.pixel_values[rows, place[rows]] = 0.0


def _add_pictures(batch: Batch, examples: Sequence[Example], views: int) -> None:
    """Radiographs as ``pixel_values`` (B, V, 1, H, W), scans as ``volume`` (B, 1, D, H, W); both from 0 to 1."""
    size = examples[0].source.shape[1:]
    if len(size) == 3:
        batch.volume = torch.stack([torch.from_numpy(example.pixels).float() / 255.0 for example in examples])
        return
    batch.pixel_values = torch.zeros(len(examples), views, 1, *size)
    for row, example in enumerate(examples):
        batch.pixel_values[row, : len(example.view_ids), 0] = torch.from_numpy(example.pixels).float() / 255.0


def _add_text(batch: Batch, examples: Sequence[Example], pad_id: int) -> None:
    batch.input_ids, batch.attention_mask = _padded([example.token_ids or () for example in examples], pad_id)
    batch.labels = batch.input_ids.masked_fill(~batch.attention_mask, -100)


def _padded(texts: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Token ids (B, T), padded on the right, and where they are."""
    ids = torch.full((len(texts), max(len(text) for text in texts)), pad_id)
    mask = torch.zeros(ids.shape, dtype=torch.bool)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = torch.tensor(text, dtype=torch.long)
        mask[row, : len(text)] = True
    return ids, mask


@dataclass(slots=True)
class StudyLoader:
    """Batches of a list of examples; shuffled and augmented by seed and epoch, or in order.

    ``hidden_views`` is the share of studies whose view kinds are set to unknown, so that a model learns to read images
    that do not say which view they are (most PNG files). A share ``dropped_views`` of those with several views loses
    one. A share ``hidden_sections`` is told nothing. With ``size`` processes, each ``rank`` gets its slice of every
    batch, and in it what a single process would have seen there. ``shares`` says how much of a shuffled epoch is of
    which data set of a mixture; without, each study comes once. ``order`` says how an epoch is shuffled; ``workers``
    processes make batches ahead.
    """

    examples: Sequence[Example]
    batch_size: int
    pad_id: int
    seed: int = 0
    shuffle: bool = False
    augmentation: AugmentationConfig = field(default_factory=NoAugmentation)
    hidden_views: float = 0.0
    dropped_views: float = 0.0
    hidden_sections: float = 0.0
    features: Features | None = None
    rank: int = 0
    size: int = 1
    shares: Mapping[str, float] = field(default_factory=dict)
    order: ShuffleConfig = field(default_factory=ShuffleAll)
    workers: int = 0

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.examples) // self.batch_size)

    def part(self, step: int) -> Slice:
        """The rank's slice of the batch number ``step`` of an epoch."""
        total = min(self.batch_size, len(self.examples) - step * self.batch_size)
        return Slice.of(total, self.rank, self.size)

    def epoch(self, epoch: int = 0, first_step: int = 0, stride: int = 1) -> Iterator[Batch]:
        """Yield the batches of one epoch, from ``first_step`` on; with a ``stride`` only every so many."""
        order = self._order(epoch)

        def chosen(step: int) -> list[Example]:
            places = order[step * self.batch_size : (step + 1) * self.batch_size]
            return [self.examples[place] for place in places]

        def own(step: int) -> list[Example]:
            part = self.part(step)
            return chosen(step)[part.first : part.first + part.count]

        def make(step: int) -> Batch:
            generator = torch.Generator().manual_seed(hash((self.seed, epoch, step)) & 0x7FFFFFFF)
            return self._batch(chosen(step), self.part(step), generator)

        steps = range(first_step, self.steps_per_epoch, stride)
        batches = made_ahead(make, steps, self.workers)
        window = self.order.window()
        if not self.shuffle or self.features is not None or window is None:
            yield from batches
            return
        with reading_ahead(own, steps, -(-window // self.batch_size)) as at:
            for step, batch in zip(steps, batches, strict=True):
                at(step)
                yield batch

    def _order(self, epoch: int) -> NDArray[np.int64]:
        places = np.arange(len(self.examples))
        if not self.shuffle:
            return places
        random = np.random.default_rng([self.seed, epoch])
        if not self.shares:
            return self.order.order(places, random)
        return mixed_order([example.origin for example in self.examples], self.shares, random, self.order)

    def _batch(self, whole: Sequence[Example], part: Slice, generator: torch.Generator) -> Batch:
        """The slice of a batch. Draws are made for the whole of it, so that they do not depend on the slicing."""
        own = slice(part.first, part.first + part.count)
        views = max(len(example.view_ids) for example in whole)
        batch = collate(whole[own], pad_id=self.pad_id, features=self.features, views=views)
        if batch.view_ids is not None and self.hidden_views:
            hidden = torch.rand(len(whole), generator=generator) < self.hidden_views
            batch.view_ids[hidden[own]] = 0
        if batch.view_mask is not None and self.dropped_views:
            draw = torch.rand(len(whole), 2, generator=generator)[own]
            _drop_view(batch, batch.view_mask, draw[:, 0] < self.dropped_views, draw[:, 1])
        if batch.told_mask is not None and self.hidden_sections:
            batch.told_mask[(torch.rand(len(whole), generator=generator) < self.hidden_sections)[own]] = False
        if isinstance(self.augmentation, NoAugmentation):
            return batch
        if batch.volume is not None:
            batch.volume = self.augmentation.apply(batch.volume, generator, passed=part.first)
        if batch.pixel_values is not None:
            shape = batch.pixel_values.shape
            flat = batch.pixel_values.flatten(0, 1)
            batch.pixel_values = self.augmentation.apply(flat, generator, passed=part.first * views).view(shape)
        return batch
