"""Exact nearest-neighbour search by inner product, which never returns the query's own study or patient.

Vectors may come straight from ``load_bank``: safetensors are memory-mapped, and a chunk is read when it is searched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from radweave.memory.bank import Owners

MARGIN = 32
"""Candidates beyond k that are scored again exactly, so that rounding in the first pass cannot lose a neighbour."""


class Index(Protocol):
    """What a retrieval index does; see ``ExactIndex.search``."""

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
        return score_again(self.vectors, queries, rows.masked_fill(scores.isneginf(), -1), k)

    def _candidates(self, queries: Tensor, count: int, own: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        best_scores = torch.empty(len(queries), 0)
        best_rows = torch.empty(len(queries), 0, dtype=torch.long)
        for start in range(0, len(self.vectors), self.chunk_rows):
            block = self.vectors[start : start + self.chunk_rows]
            scores = (queries.float() @ block.float().T).cpu()
            barred = self.owners.barred(own, slice(start, start + len(block)))
            scores = scores.masked_fill(barred, float("-inf"))
            scores, rows = scores.topk(min(count, scores.shape[1]), dim=1)
            best_scores = torch.cat([best_scores, scores], 1)
            best_rows = torch.cat([best_rows, rows + start], 1)
            best_scores, order = best_scores.topk(min(count, best_scores.shape[1]), dim=1)
            best_rows = best_rows.gather(1, order)
        return best_scores, best_rows


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
        exact = (vectors[allowed.to(vectors.device)].double() * query).sum(1).cpu()
        order = exact.sort(descending=True, stable=True).indices[:k]
        out_scores[number, : len(order)] = exact[order]
        out_rows[number, : len(order)] = allowed[order]
    return out_scores.float(), out_rows
