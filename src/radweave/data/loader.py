"""Studies to batches, in an order that depends on seed and epoch only.

A batch is found by its step alone, so that a resumed run sees what an unbroken one would have seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, Protocol

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
from radweave.data.cache.ct import ScanRows

# The order of the studies of an epoch. It depends on seed and epoch only: on every rank and after a resume the same.
#
# ``all`` draws among all studies. Each image then lies anywhere on the disk, which costs nothing while the cache fits
# into memory or lies on flash. ``blocks`` draws among the studies of a few stretches of the data set at a time, so that
# a disk that is slow at random reads each stretch once and in its order (``data/loader.py``).


Places = NDArray[np.int64]


class ShuffleAll(Config):
    """Any study may come after any other."""

    kind: Literal["all"] = "all"

    def order(self, places: Places, random: np.random.Generator) -> Places:
        """The places in another order."""
        return random.permutation(places)

    def window(self) -> int | None:
        """How many studies come from one part of the data set; None for all."""
        return None


class ShuffleBlocks(Config):
    """Stretches of ``size`` studies come in random order, and the studies of ``together`` of them are mixed.

    The more are mixed, the less a batch tells of its neighbourhood in the data set; ``size`` times ``together`` studies
    lie in memory at a time. What decides the neighbourhood is the importer: mostly the patient and the date.
    """

    kind: Literal["blocks"] = "blocks"
    size: Count = 256
    together: Count = 16

    def order(self, places: Places, random: np.random.Generator) -> Places:
        """The places in another order, some ``together`` blocks of them after each other."""
        starts = random.permutation(np.arange(0, len(places), self.size))
        groups = (starts[first : first + self.together] for first in range(0, len(starts), self.together))
        mixed = [
            random.permutation(np.concatenate([places[start : start + self.size] for start in group]))
            for group in groups
        ]
        return np.concatenate([places[:0], *mixed])

    def window(self) -> int | None:
        """How many studies are mixed with each other."""
        return self.size * self.together


ShuffleConfig = Annotated[ShuffleAll | ShuffleBlocks, Field(discriminator="kind")]


def mixed_order(
    origins: Sequence[str | None],
    shares: Mapping[str, float],
    random: np.random.Generator,
    shuffle: ShuffleAll | ShuffleBlocks,
) -> Places:
    """As many places as there are studies, of each data set its share, in random order.

    A set that has fewer studies than its share comes again, each study once before any comes twice; one that has more
    is drawn from. What rounding leaves goes to the largest remainders.
    """
    wanted = np.array([shares[name] for name in shares]) * len(origins) / sum(shares.values())
    counts = np.floor(wanted).astype(int)
    counts[np.argsort(counts - wanted, kind="stable")[: len(origins) - counts.sum()]] += 1
    chosen = []
    for name, count in zip(shares, counts.tolist(), strict=True):
        own = np.array([place for place, origin in enumerate(origins) if origin == name])
        rounds = [shuffle.order(own, random) for _ in range(-(-count // len(own)))]
        chosen.append(np.concatenate([np.zeros(0, dtype=np.int64), *rounds])[:count])
    if isinstance(shuffle, ShuffleAll):
        return random.permutation(np.concatenate(chosen))
    return _interleaved(chosen, random)


def _interleaved(chosen: Sequence[Places], random: np.random.Generator) -> Places:
    """All of these, each set in its own order: whose turn it is is drawn."""
    turns = random.permutation(np.repeat(np.arange(len(chosen)), [len(own) for own in chosen]))
    order = np.zeros(len(turns), dtype=np.int64)
    for number, own in enumerate(chosen):
        order[turns == number] = own
    return order


# Batches made ahead by processes beside the training: reading and augmenting cost it no time.
#
# A batch depends on its number alone, so the batches are the same bits for any number of processes. They are forked, and
# share the arrays and lists of this process; of lists a copy grows as they are read. Batches come back in shared memory
# (/dev/shm).


AHEAD: Final = 2
"""Batches that each process has ready."""


def made_ahead(make: Callable[[int], Batch], steps: Sequence[int], workers: int) -> Iterator[Batch]:
    """The batch of each step, in their order, by so many processes; by none, each is made when it is asked for.

    Raises:
        Exception: what ``make`` raised, where its batch would have come.
    """
    if not workers or len(steps) < 2:
        yield from map(make, steps)
        return
    loader: DataLoader[Any] = DataLoader(
        _Made(make),
        sampler=steps,
        batch_size=None,
        num_workers=min(workers, len(steps)),
        collate_fn=_as_it_is,
        prefetch_factor=AHEAD,
        multiprocessing_context="fork",
        generator=torch.Generator(),  # torch draws a seed for the processes, which nothing here uses
    )
    for made in loader:
        if isinstance(made, Exception):
            raise made
        yield made


class _Made(Dataset[Any]):
    def __init__(self, make: Callable[[int], Batch]) -> None:
        self._make = make

    def __getitem__(self, step: int) -> Batch | Exception:
        try:
            return self._make(step)
        except Exception as error:  # torch would wrap it into a text of many lines
            return error


def _as_it_is(made: Any) -> Any:
    return made


# Bring the images of the next studies into memory, in the order in which they lie on the disk.
#
# What is read goes nowhere: the system keeps it, and the map of the cache finds it there.


CHUNK_BYTES: Final = 4 << 20
GAP_ROWS: Final = 8
"""Rows between two that are wanted which are read too: a disk is there sooner by reading than by seeking."""


class Placed(Protocol):
    """Something whose images are the ``rows`` of ``source``."""

    @property
    def source(self) -> Any: ...

    @property
    def rows(self) -> tuple[int, ...]: ...


@contextmanager
def reading_ahead(
    chosen: Callable[[int], Iterable[Placed]], steps: range, together: int
) -> Iterator[Callable[[int], None]]:
    """Give what is told of each step: while ``together`` steps are used, the images of as many after them are read.

    Args:
        chosen: what a step uses.
        steps: all that are left of the epoch.
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


def read(studies: Iterable[Placed]) -> int:
    """Read the radiographs of these studies from their cache, each file from front to back; how many bytes.

    Scans have a file each, and the system reads those ahead by itself.
    """
    wanted: dict[int, tuple[np.memmap[Any, Any], set[int]]] = {}
    for study in studies:
        if isinstance(study.source, np.memmap):
            wanted.setdefault(id(study.source), (study.source, set()))[1].update(study.rows)
    return sum(_read(source, sorted(rows)) for source, rows in wanted.values())


def _read(source: np.memmap[Any, Any], rows: Sequence[int]) -> int:
    total, buffer = 0, memoryview(bytearray(CHUNK_BYTES))
    size = source.strides[0]
    # What cannot be read here is found out by who needs it.
    with suppress(OSError), open(str(source.filename), "rb", buffering=0) as file:
        for first, last in runs(rows):
            file.seek(source.offset + first * size)
            left = (last + 1 - first) * size
            while left > 0 and (count := file.readinto(buffer[: min(left, CHUNK_BYTES)])):
                left, total = left - count, total + count
    return total


def runs(rows: Sequence[int]) -> list[tuple[int, int]]:
    """First and last row of each stretch of ascending ``rows`` without a wide gap."""
    found: list[tuple[int, int]] = []
    for row in rows:
        if found and row - found[-1][1] <= GAP_ROWS:
            found[-1] = (found[-1][0], row)
        else:
            found.append((row, row))
    return found


STATE_IDS = {LabelState.BLANK: 0, LabelState.POSITIVE: 1, LabelState.NEGATIVE: 2, LabelState.UNCERTAIN: 3}


@dataclass(frozen=True, slots=True)
class Example:
    """A study ready for batching.

    Its views are the ``rows`` of ``source`` (N, H, W) uint8, an array that examples share; a CT study has one row of a
    source (N, D, H, W). ``view_ids`` are their kinds; ``token_ids`` the target with its end token; ``class_states`` the
    label states (K); ``report`` the target as text. ``prior`` is the patient's study before this one, if the experiment
    asks for it; it has a report. ``origin`` is the data set of a mixture that it is of. ``context_ids`` is what the model
    is told beside the images (``radweave.data.targets``); None where no study is told anything.
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
