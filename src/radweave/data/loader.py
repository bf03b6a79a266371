"""Studies to batches, in an order that depends on seed and epoch only.

A batch depends on its step alone, so that a resumed run reads the batches of an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from radweave.core.batch import Batch, Slice
from radweave.core.config import Config, Count
from radweave.core.study import ImageRef, LabelState, View
from radweave.data.augmentation import AugmentationConfig, NoAugmentation
from radweave.data.boxes import Window

if TYPE_CHECKING:
    from radweave.data.cache.ct import ScanRows

# Order of the studies of an epoch, equal on every rank and after a resume.
#
# ``all`` shuffles all studies. Its random reads cost nothing while the cache fits into memory or lies on flash.
# ``blocks`` shuffles the studies of a few contiguous blocks at a time, so that a disk with slow random access reads
# each block once and in order.

Indices = NDArray[np.int64]


class ShuffleAll(Config):
    """Any study may come after any other."""

    kind: Literal["all"] = "all"

    def order(self, indices: Indices, random: np.random.Generator) -> Indices:
        """The shuffled indices."""
        return random.permutation(indices)

    def window(self) -> int | None:
        """Number of studies that are shuffled together; None for all."""
        return None


class ShuffleBlocks(Config):
    """Blocks of ``size`` studies in random order; the studies of each ``together`` blocks are shuffled.

    More blocks make a batch depend less on neighbourhood in the data set, which is mostly by patient and date; ``size``
    times ``together`` studies are in memory at a time.
    """

    kind: Literal["blocks"] = "blocks"
    size: Count = 256
    together: Count = 16

    def order(self, indices: Indices, random: np.random.Generator) -> Indices:
        """The shuffled indices, ``together`` blocks after each other."""
        starts = random.permutation(np.arange(0, len(indices), self.size))
        groups = (starts[first : first + self.together] for first in range(0, len(starts), self.together))
        mixed = [
            random.permutation(np.concatenate([indices[start : start + self.size] for start in group]))
            for group in groups
        ]
        return np.concatenate([indices[:0], *mixed])

    def window(self) -> int | None:
        """Number of studies that are shuffled together."""
        return self.size * self.together


ShuffleConfig = Annotated[ShuffleAll | ShuffleBlocks, Field(discriminator="kind")]


def mixed_order(
    origins: Sequence[str | None],
    shares: Mapping[str, float],
    random: np.random.Generator,
    shuffle: ShuffleAll | ShuffleBlocks,
) -> Indices:
    """As many indices as studies, in random order, with the given share of each data set.

    A set with fewer studies than its share repeats, each study once before any comes twice; one with more is sampled.
    Remaining places go to the largest remainders.
    """
    wanted = np.array([shares[name] for name in shares]) * len(origins) / sum(shares.values())
    counts = np.floor(wanted).astype(int)
    counts[np.argsort(counts - wanted, kind="stable")[: len(origins) - counts.sum()]] += 1
    chosen = []
    for name, count in zip(shares, counts.tolist(), strict=True):
        own = np.array([index for index, origin in enumerate(origins) if origin == name])
        rounds = [shuffle.order(own, random) for _ in range(-(-count // len(own)))]
        chosen.append(np.concatenate([np.zeros(0, dtype=np.int64), *rounds])[:count])
    if isinstance(shuffle, ShuffleAll):
        return random.permutation(np.concatenate(chosen))
    return _interleaved(chosen, random)


def balanced_order(states: Sequence[tuple[int, ...] | None], balance: float, random: np.random.Generator) -> Indices:
    """As many indices as studies, drawn with replacement, in random order: a study by the rarest of its findings.

        w = max over its positive classes of share(class)^(-balance),   p = w / sum w

    ``states`` are label states as in ``Batch.class_labels``, None for a study without labels. A study without a
    positive class is drawn as one whose class every study has, with w = 1.
    Source: repeat factor sampling, Gupta et al., "LVIS", CVPR 2019, Sec. 5 (without its threshold, power 1/2 there).
    """
    width = max((len(row) for row in states if row is not None), default=0)
    positive = np.array([(row or (0,) * width) for row in states]).reshape(len(states), width) == _POSITIVE
    share = positive.mean(0).clip(min=1 / max(1, len(states)))
    weight = np.where(positive, share**-balance, 1.0).max(1, initial=1.0)
    return random.choice(len(states), len(states), p=weight / weight.sum())


def _interleaved(chosen: Sequence[Indices], random: np.random.Generator) -> Indices:
    """A random interleaving that keeps the order within each set."""
    turns = random.permutation(np.repeat(np.arange(len(chosen)), [len(own) for own in chosen]))
    order = np.zeros(len(turns), dtype=np.int64)
    for number, own in enumerate(chosen):
        order[turns == number] = own
    return order


# Batches prefetched by worker processes, so that reading and augmenting do not delay the training.
#
# A batch depends on its step alone, so its bits do not depend on the number of workers. Workers are forked and share
# the arrays and lists of this process (lists are copied gradually by their reference counts). Batches return in shared
# memory (/dev/shm).

AHEAD: Final = 2
"""Batches prefetched by each worker."""


def prefetched(make: Callable[[int], Batch], steps: Sequence[int], workers: int) -> Iterator[Batch]:
    """The batch of each step in order, by ``workers`` processes; by 0, in this process on demand.

    Raises:
        Exception: that of ``make``, in place of its batch.
    """
    if not workers or len(steps) < 2:
        yield from map(make, steps)
        return
    loader: DataLoader[Any] = DataLoader(
        _BatchDataset(make),
        sampler=steps,
        batch_size=None,
        num_workers=min(workers, len(steps)),
        collate_fn=lambda batch: batch,
        prefetch_factor=AHEAD,
        multiprocessing_context="fork",
        generator=torch.Generator(),  # torch draws a seed for the processes, which nothing here uses
    )
    for batch in loader:
        if isinstance(batch, Exception):
            raise batch
        yield batch


class _BatchDataset(Dataset[Any]):
    def __init__(self, make: Callable[[int], Batch]) -> None:
        self._make = make

    def __getitem__(self, step: int) -> Batch | Exception:
        try:
            return self._make(step)
        except Exception as error:  # torch would wrap it into a text of many lines
            return error


# Read-ahead of the images of the next studies into the page cache, in disk order.

CHUNK_BYTES: Final = 4 << 20
GAP_ROWS: Final = 8
"""Largest gap between needed rows that is read too: reading is faster than seeking."""


class HasRows(Protocol):
    """A study whose images are the ``rows`` of ``source``."""

    @property
    def source(self) -> Any: ...

    @property
    def rows(self) -> tuple[int, ...]: ...


@contextmanager
def read_ahead(
    chosen: Callable[[int], Iterable[HasRows]], steps: range, together: int
) -> Iterator[Callable[[int], None]]:
    """Yield a callback for each step: while ``together`` steps run, the images of as many following ones are read.

    Args:
        chosen: the studies of a step.
        steps: the remaining steps of the epoch.
    """
    pool, read_to = ThreadPoolExecutor(max_workers=1), -1

    def at(step: int) -> None:
        nonlocal read_to
        for number in range(max(read_to + 1, step // together), step // together + 2):
            some = (part for part in range(number * together, (number + 1) * together) if part in steps and part > step)
            pool.submit(read, [study for part in some for study in chosen(part)])
            read_to = number

    try:
        yield at
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def read(studies: Iterable[HasRows]) -> int:
    """Read the radiographs of these studies from their cache, each file in order; returns the number of bytes.

    Scans have a file each, which the system reads ahead by itself.
    """
    rows_of: dict[int, tuple[np.memmap[Any, Any], set[int]]] = {}
    for study in studies:
        if isinstance(study.source, np.memmap):
            rows_of.setdefault(id(study.source), (study.source, set()))[1].update(study.rows)
    return sum(_read(source, sorted(rows)) for source, rows in rows_of.values())


def _read(source: np.memmap[Any, Any], rows: Sequence[int]) -> int:
    total, buffer = 0, memoryview(bytearray(CHUNK_BYTES))
    size = source.strides[0]
    # Read errors surface where the data are used.
    with suppress(OSError), open(str(source.filename), "rb", buffering=0) as file:
        for first, last in runs(rows):
            file.seek(source.offset + first * size)
            left = (last + 1 - first) * size
            while left > 0 and (count := file.readinto(buffer[: min(left, CHUNK_BYTES)])):
                left, total = left - count, total + count
    return total


def runs(rows: Sequence[int]) -> list[tuple[int, int]]:
    """First and last row of each run of ascending ``rows`` without a wide gap."""
    stretches: list[tuple[int, int]] = []
    for row in rows:
        if stretches and row - stretches[-1][1] <= GAP_ROWS:
            stretches[-1] = (stretches[-1][0], row)
        else:
            stretches.append((row, row))
    return stretches


_POSITIVE: Final = 1

STATE_IDS = {LabelState.BLANK: 0, LabelState.POSITIVE: 1, LabelState.NEGATIVE: 2, LabelState.UNCERTAIN: 3}


@dataclass(frozen=True, slots=True)
class Example:
    """A study ready for batching.

    Its views are the ``rows`` of ``source`` (N, H, W) uint8, an array that examples share; a CT study has one row of a
    source (N, D, H, W). ``view_ids`` are their kinds; ``token_ids`` the target with its end token; ``class_states`` the
    label states (K); ``report`` the target as text. ``prior`` is the patient's previous study with a report, if
    the experiment uses priors. ``origin`` is its data set in a mixture. ``context_ids`` are the tokens of the context
    (``radweave.data.targets``); None for a model without context. ``abnormal`` marks the tokens of sentences that state
    a finding; None where nothing asks for them. ``window`` gives the part of the image that a view of the model's input
    covers (``radweave.data.boxes``), by the view's index.
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
    context_ids: tuple[int, ...] | None = None
    abnormal: tuple[bool, ...] | None = None
    window: Callable[[int], Window] | None = None

    @property
    def pixels(self) -> NDArray[np.uint8]:
        """The views (V, H, W), or the scan (1, D, H, W), read from the source."""
        return np.stack([self.source[row] for row in self.rows])


@dataclass(frozen=True, slots=True)
class Features:
    """Patch tokens of images: ``tokens`` (M, S, D) float32 over ``grid``; ``positions`` image row -> index."""

    tokens: NDArray[np.float32]
    grid: tuple[int, ...]
    positions: dict[int, int]


VIEW_KINDS = ("unknown", "frontal", "lateral")
"""Names of the values of ``view_id``."""


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

    With ``features`` the batch holds those instead of pixels, which are not read. ``views`` is the number of views to
    pad to, by default the largest of these examples.
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
        batch.input_ids, batch.attention_mask = _padded([example.token_ids or () for example in examples], pad_id)
        batch.labels = batch.input_ids.masked_fill(~batch.attention_mask, -100)
        batch.reports = [example.report or "" for example in examples]
    if all(example.context_ids is not None for example in examples):
        batch.context_ids, batch.context_mask = _padded([example.context_ids or () for example in examples], pad_id)
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
    """Drop a view of the ``dropped`` (B) studies with several; ``which`` (B), 0 to 1, selects it."""
    count = view_mask.sum(1)
    view = (which * count).long()
    rows = torch.nonzero(dropped & (count > 1)).flatten()
    view_mask[rows, view[rows]] = False
    if batch.pixel_values is not None:
        batch.pixel_values[rows, view[rows]] = 0.0


def _add_pictures(batch: Batch, examples: Sequence[Example], views: int) -> None:
    """Radiographs as ``pixel_values`` (B, V, 1, H, W), scans as ``volume`` (B, 1, D, H, W); both from 0 to 1."""
    size = examples[0].source.shape[1:]
    if len(size) == 3:
        batch.volume = torch.stack([torch.from_numpy(example.pixels).float() / 255.0 for example in examples])
        return
    batch.pixel_values = torch.zeros(len(examples), views, 1, *size)
    for row, example in enumerate(examples):
        batch.pixel_values[row, : len(example.view_ids), 0] = torch.from_numpy(example.pixels).float() / 255.0


def _label_weights(examples: Sequence[Example], labels: Tensor, abnormal_weight: float) -> Tensor:
    """Weight (B, T) of each label: ``abnormal_weight`` where its token is marked, else 1."""
    weights = torch.ones(labels.shape)
    for row, example in enumerate(examples):
        assert example.abnormal is not None, "a split is prepared with the marks that its stages ask for"
        weights[row, : len(example.abnormal)][torch.tensor(example.abnormal, dtype=torch.bool)] = abnormal_weight
    return weights


def _padded(texts: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Token ids (B, T), padded on the right, and their mask."""
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
    of unstated view (most PNG files). A share ``dropped_views`` of those with several views loses one. A share
    ``hidden_sections`` loses its context. With ``size`` processes, each ``rank`` gets its slice of every batch, equal
    to that slice in a single process. ``shares`` are the shares of a mixture's data sets in a shuffled epoch; without,
    each study comes once. ``order`` shuffles an epoch; ``workers`` processes prefetch batches. ``abnormal_weight`` is
    the weight of the labels in sentences that state a finding, with 1 for the others. ``balance`` above 0 draws the
    studies of a shuffled epoch by their rarest finding (``balanced_order``).
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
    abnormal_weight: float = 1.0
    balance: float = 0.0

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
            rows = order[step * self.batch_size : (step + 1) * self.batch_size]
            return [self.examples[row] for row in rows]

        def own(step: int) -> list[Example]:
            part = self.part(step)
            return chosen(step)[part.first : part.first + part.count]

        def make(step: int) -> Batch:
            generator = torch.Generator().manual_seed(hash((self.seed, epoch, step)) & 0x7FFFFFFF)
            return self._batch(chosen(step), self.part(step), generator)

        steps = range(first_step, self.steps_per_epoch, stride)
        batches = prefetched(make, steps, self.workers)
        window = self.order.window()
        if not self.shuffle or self.features is not None or window is None:
            yield from batches
            return
        with read_ahead(own, steps, -(-window // self.batch_size)) as at:
            for step, batch in zip(steps, batches, strict=True):
                at(step)
                yield batch

    def _order(self, epoch: int) -> NDArray[np.int64]:
        indices = np.arange(len(self.examples))
        if not self.shuffle:
            return indices
        random = np.random.default_rng([self.seed, epoch])
        if self.balance:
            return balanced_order([example.class_states for example in self.examples], self.balance, random)
        if not self.shares:
            return self.order.order(indices, random)
        return mixed_order([example.origin for example in self.examples], self.shares, random, self.order)

    def _batch(self, whole: Sequence[Example], part: Slice, generator: torch.Generator) -> Batch:
        """The slice of a batch. Random draws cover the whole batch, so that they do not depend on the slicing."""
        own = slice(part.first, part.first + part.count)
        views = max(len(example.view_ids) for example in whole)
        batch = collate(whole[own], pad_id=self.pad_id, features=self.features, views=views)
        if self.abnormal_weight != 1 and batch.labels is not None:
            batch.label_weights = _label_weights(whole[own], batch.labels, self.abnormal_weight)
        if batch.view_ids is not None and self.hidden_views:
            hidden = torch.rand(len(whole), generator=generator) < self.hidden_views
            batch.view_ids[hidden[own]] = 0
        if batch.view_mask is not None and self.dropped_views:
            draw = torch.rand(len(whole), 2, generator=generator)[own]
            _drop_view(batch, batch.view_mask, draw[:, 0] < self.dropped_views, draw[:, 1])
        if batch.context_mask is not None and self.hidden_sections:
            batch.context_mask[(torch.rand(len(whole), generator=generator) < self.hidden_sections)[own]] = False
        if isinstance(self.augmentation, NoAugmentation):
            return batch
        if batch.volume is not None:
            batch.volume = self.augmentation.apply(batch.volume, generator, passed=part.first)
        if batch.pixel_values is not None:
            shape = batch.pixel_values.shape
            flat = batch.pixel_values.flatten(0, 1)
            batch.pixel_values = self.augmentation.apply(flat, generator, passed=part.first * views).view(shape)
        return batch
