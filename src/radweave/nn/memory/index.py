"""Exact nearest-neighbour search by inner product, which never returns the query's own study or patient.

Vectors may come straight from ``load_bank``: safetensors are memory-mapped, and a chunk is read when it is searched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from radweave.nn.memory.bank import Owners

MARGIN = 32
"""Candidates beyond k that are scored again exactly, so that rounding in the first pass loses no neighbour.

Where rounding alone may put the last of them behind the k-th, every row that near is a candidate.
"""

# Scores that are held at a time, and the fewest rows that they are of.
_SCORES, _LEAST_ROWS = 1 << 22, 4096
_GROUP = 64
# Rows that are converted to another width at a time: memory for more would be new to the process each time.
_WIDENED = 2048


@runtime_checkable
class Index(Protocol):
    """Interface of a retrieval index; see ``ExactIndex.search``."""

    def search(
        self,
        queries: Float[Tensor, "batch dim"],
        k: int,
        *,
        study_ids: Sequence[str],
        patient_ids: Sequence[str],
    ) -> tuple[Float[Tensor, "batch k"], Int[Tensor, "batch k"]]: ...


class ExactIndex:
    """Search over all vectors (N, D), in chunks of ``chunk_rows`` rows.

    ``owners`` says what each row is of. The candidates of a fast pass are scored again in float64, each query for
    itself: the result is the same alone and in any batch. Equal scores are ordered by row.
    """

    def __init__(self, vectors: Float[Tensor, "rows dim"], owners: Owners, *, chunk_rows: int = 65_536) -> None:
        assert len(vectors) == len(owners), "one study per vector"
        self.vectors = vectors
        self.chunk_rows = chunk_rows
        self.owners = owners
        self._longest: float | None = None

    def __len__(self) -> int:
        return len(self.vectors)

    @torch.no_grad()
    def search(
        self,
        queries: Float[Tensor, "batch dim"],
        k: int,
        *,
        study_ids: Sequence[str],
        patient_ids: Sequence[str],
    ) -> tuple[Float[Tensor, "batch k"], Int[Tensor, "batch k"]]:
        """The ``k`` rows with the largest inner product, best first.

        Returns:
            Scores and row numbers. Where fewer than ``k`` rows are allowed the rest is -inf and row -1.
        """
        queries = queries.detach().to(self.vectors.device)
        own = self.owners.of_queries(study_ids, patient_ids)
        scores, rows = self._candidates(queries, k + MARGIN, own)
        best = score_again(self.vectors, queries, rows.masked_fill(scores.isneginf(), -1), k)
        if k > 0 and k + MARGIN < len(self):
            last, limits = scores[:, -1], scores[:, k - 1] - 2 * self._rounding(queries)
            for number in ((last >= limits) & ~last.isneginf()).nonzero()[:, 0].tolist():
                alone = slice(number, number + 1)
                near = self._near(queries[alone], float(limits[number]), (own[0][alone], own[1][alone]))
                for part, exact in zip(best, score_again(self.vectors, queries[alone], near, k), strict=True):
                    part[alone] = exact
        return best

    def _rounding(self, queries: Tensor) -> Tensor:
        """The most by which a float32 product of each query and any row can be off (Higham 2002, section 3.1)."""
        if self._longest is None:
            pieces = (self.vectors[start : start + _WIDENED] for start in range(0, len(self), _WIDENED))
            self._longest = max(float(piece.float().norm(dim=1).max()) for piece in pieces)
        steps = (queries.shape[1] + 4) * 2.0**-24
        off: Tensor = queries.double().norm(dim=1) * self._longest * steps
        return off.float().cpu()

    def _near(self, query: Tensor, limit: float, own: tuple[Tensor, Tensor]) -> Int[Tensor, "one rows"]:
        """All rows whose product with one query is ``limit`` or more, those of its own study and patient left out."""
        near_rows = []
        for start in range(0, len(self), self.chunk_rows):
            scores = _products(query.float(), self.vectors[start : start + self.chunk_rows])
            near_rows.append((scores[0] >= limit).nonzero()[:, 0] + start)
        rows = torch.cat(near_rows)[None]
        near: Tensor = rows[~self.owners.barred(own, rows)]
        return near[None]

    def _candidates(self, queries: Tensor, count: int, own: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        best_scores = torch.empty(len(queries), 0)
        best_rows = torch.empty(len(queries), 0, dtype=torch.long)
        query, row = self.owners.barred_rows(own)
        size = min(self.chunk_rows, max(_LEAST_ROWS, _SCORES // max(len(queries), 1)))
        buffer = torch.empty(len(queries) * min(size, len(self)))  # new memory for each block would take a tenth longer
        for start in range(0, len(self.vectors), size):
            scores = _products(queries.float(), self.vectors[start : start + size], buffer)
            inside = (row >= start) & (row < start + scores.shape[1])
            scores[query[inside], row[inside] - start] = float("-inf")
            scores, rows = _largest(scores, count, best_scores[:, -1] if best_scores.shape[1] == count else None)
            best_scores = torch.cat([best_scores, scores], 1)
            best_rows = torch.cat([best_rows, rows + start], 1)
            best_scores, order = best_scores.topk(min(count, best_scores.shape[1]), dim=1)
            best_rows = best_rows.gather(1, order)
        return best_scores, best_rows


class ProposedIndex(ABC):
    """An index of another library or a server, which proposes rows; they are filtered and scored again here.

    What it returns can therefore miss a row, and never has a wrong score or the query's own study or patient.

    Attributes:
        description: the index in a few words, for users.
        is_exact: whether it is known to propose the nearest rows.
    """

    description: str
    is_exact: bool

    def __init__(self, vectors: Float[Tensor, "rows dim"], owners: Owners) -> None:
        assert len(vectors) == len(owners), "one study per vector"
        self.vectors = vectors
        self.owners = owners

    def __deepcopy__(self, memo: dict[int, object]) -> ProposedIndex:
        """An index never changes: a copy of a model shares it."""
        return self

    @torch.no_grad()
    def search(
        self,
        queries: Float[Tensor, "batch dim"],
        k: int,
        *,
        study_ids: Sequence[str],
        patient_ids: Sequence[str],
    ) -> tuple[Float[Tensor, "batch k"], Int[Tensor, "batch k"]]:
        """As ``ExactIndex.search``."""
        own = self.owners.of_queries(study_ids, patient_ids)
        query, _ = self.owners.barred_rows(own)
        most_barred = int(query.bincount().max()) if len(query) else 0
        count = min(len(self.owners), k + MARGIN + most_barred)
        rows = torch.full((len(queries), 0), -1)
        if count:
            rows = self._proposed(queries.detach().cpu().float().contiguous(), count)
            rows = rows.masked_fill(self.owners.barred(own, rows.clamp(min=0)), -1)
        return score_again(self.vectors, queries.detach().to(self.vectors.device), rows, k)

    @abstractmethod
    def _proposed(self, queries: Float[Tensor, "batch dim"], count: int) -> Int[Tensor, "batch count"]:
        """The ``count`` rows that seem nearest, each once; -1 where there are fewer. ``queries`` are on the CPU."""


def _products(
    queries: Float[Tensor, "batch dim"], block: Float[Tensor, "rows dim"], out: Float[Tensor, " values"] | None = None
) -> Float[Tensor, "batch rows"]:
    """Inner products in float32 on the CPU, in the memory of ``out`` where it is given.

    By NumPy, whose BLAS takes half of the time of torch's for one query, and 0.8 for many, on processors of AMD.
    """
    if block.device.type != "cpu":
        return (queries @ block.float().T).cpu()
    size = len(queries) * len(block)
    products = (torch.empty(size) if out is None else out[:size]).view(len(queries), len(block))
    step = max(len(block), 1) if block.dtype == torch.float32 else _WIDENED
    for start in range(0, len(block), step):
        rows = slice(start, start + step)
        np.matmul(queries.numpy(), block[rows].float().numpy().T, out=products.numpy()[:, rows])
    return products


def _largest(
    scores: Float[Tensor, "batch rows"], count: int, least: Float[Tensor, " batch"] | None = None
) -> tuple[Float[Tensor, "batch some"], Int[Tensor, "batch some"]]:
    """The ``count`` largest of each row and where they stand, as ``topk``; with ``least``, those that reach it.

    The largest value of each group is found at the speed of memory. At least ``count`` values reach the ``count``-th of
    them, and few others do. Where a row has fewer values than another, the rest is -inf.
    """
    whole = scores.shape[1] // _GROUP * _GROUP
    if whole // _GROUP <= count or not len(scores):
        return scores.topk(min(count, scores.shape[1]), dim=1)
    groups = scores[:, :whole].view(len(scores), -1, _GROUP)
    largest = groups.amax(2)
    if least is None:
        least = largest.topk(count, dim=1).values[:, -1]
    query, group = (largest < least[:, None]).logical_not().nonzero(as_tuple=True)  # NaN is no less
    values = groups[query, group]
    number, inside = (values < least[query, None]).logical_not().nonzero(as_tuple=True)
    query, place, values = query[number], group[number] * _GROUP + inside, values[number, inside]
    counts = query.bincount(minlength=len(scores))
    column = torch.arange(len(query)) - (counts.cumsum(0) - counts)[query]
    padded, places = (torch.zeros(len(scores), int(counts.max()), dtype=each.dtype) for each in (values, place))
    padded.fill_(float("-inf"))[query, column] = values
    places[query, column] = place
    rest = torch.arange(whole, scores.shape[1]).expand(len(scores), -1)
    places = torch.cat([places, rest], 1)
    values, order = torch.cat([padded, scores[:, whole:]], 1).topk(min(count, places.shape[1]), dim=1)
    return values, places.gather(1, order)


def score_again(
    vectors: Float[Tensor, "rows dim"],
    queries: Float[Tensor, "batch dim"],
    rows: Int[Tensor, "batch candidates"],
    k: int,
) -> tuple[Float[Tensor, "batch k"], Int[Tensor, "batch k"]]:
    """The best ``k`` of each query's candidates, by inner product in float64; candidate -1 stands for none."""
    out_scores = torch.full((len(queries), k), float("-inf"), dtype=torch.float64)
    out_rows = torch.full((len(queries), k), -1, dtype=torch.long)
    for number, query in enumerate(queries.double()):
        allowed = rows[number][rows[number] >= 0].sort().values
        pieces = (allowed[start : start + _WIDENED] for start in range(0, max(len(allowed), 1), _WIDENED))
        exact = torch.cat([(vectors[piece.to(vectors.device)].double() * query).sum(1).cpu() for piece in pieces])
        order = exact.sort(descending=True, stable=True).indices[:k]
        out_scores[number, : len(order)] = exact[order]
        out_rows[number, : len(order)] = allowed[order]
    return out_scores.float(), out_rows
