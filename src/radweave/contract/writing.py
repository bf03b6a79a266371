"""Reports that a language model writes: a method says what stands before them, and what becomes of the words.

    def to_write(self, batch): return ToWrite(Prefixes(*Seen(self, batch).prefix), written)

Batches are then written one after the other, and studies of the next take the places of those that are done
(``radweave.nn.continuous``). What was seen of a batch is kept until its last report is there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from radweave.base.batch import Batch, Generation
from radweave.contract.model import ReportModel
from radweave.nn.decoding import DecodingConfig, Prefixes, Written


@dataclass(frozen=True, slots=True)
class ToWrite:
    """What stands before the reports of a batch, and what makes reports with evidence of ids and log-probabilities."""

    prefixes: Prefixes
    finish: Callable[[list[list[int]], list[list[float]]], Generation]


@runtime_checkable
class Writes(Protocol):
    """A language model that writes batch after batch."""

    def write(self, batches: Iterator[Prefixes], decoding: DecodingConfig) -> Iterator[Written]: ...


@runtime_checkable
class WritesByPrefix(Protocol):
    """A model of which a language model writes all reports, where it has one."""

    language_model: Any

    def to_write(self, batch: Batch) -> ToWrite: ...


def generations(model: ReportModel, batches: Iterator[Batch], decoding: DecodingConfig) -> Iterator[Generation]:
    """What ``model.generate`` gives for each batch, in order. The next batch may be asked for before one is given."""
    if not isinstance(model, WritesByPrefix) or not isinstance(model.language_model, Writes):
        yield from (model.generate(batch, decoding) for batch in batches)
        return
    unfinished: deque[ToWrite] = deque()

    def prefixes() -> Iterator[Prefixes]:
        for batch in batches:
            unfinished.append(model.to_write(batch))
            yield unfinished[-1].prefixes

    for ids, log_probs in model.language_model.write(prefixes(), decoding):
        yield unfinished.popleft().finish(ids, log_probs)


def generation(model: ReportModel, batch: Batch, decoding: DecodingConfig) -> Generation:
    """The reports of one batch."""
    return next(generations(model, iter([batch]), decoding))
