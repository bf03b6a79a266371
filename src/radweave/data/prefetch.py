"""Batches made ahead by processes beside the training: reading and augmenting cost it no time.

A batch depends on its number alone, so the batches are the same bits for any number of processes. They are forked, and
share the arrays and lists of this process; of lists a copy grows as they are read. Batches come back in shared memory
(/dev/shm).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
from torch.utils.data import DataLoader, Dataset

from radweave.base.batch import Batch

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
