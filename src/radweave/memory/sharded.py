"""Exact search over a bank that is cut into one part per process. The result is that of the whole bank, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor

from radweave.memory.index import ExactIndex

Found = tuple[Tensor, Tensor]


class ShardedIndex:
    """One process's part of a bank: ``rows`` of all ranks run on from rank to rank.

    Every rank calls ``search`` at the same time, with its own queries (or none). Each searches its part for the queries
    of all; what it finds is merged by score and row number where the query came from.
    """

    def __init__(self, part: ExactIndex) -> None:
        self.part = part
        counts: list[int] = [0] * dist.get_world_size()
        dist.all_gather_object(counts, len(part))
        self.first_row = sum(counts[: dist.get_rank()])
        self.rows = sum(counts)

    def __len__(self) -> int:
        return self.rows

    @torch.no_grad()
    def search(
        self,
        queries: Float[Tensor, "batch dim"],
        k: int,
        *,
        study_ids: Sequence[str],
        patient_ids: Sequence[str],
    ) -> tuple[Float[Tensor, "batch k"], Int[Tensor, "batch k"]]:
        """As ``ExactIndex.search``; row numbers are those of the whole bank."""
        asked: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(asked, (queries.detach().cpu(), k, list(study_ids), list(patient_ids)))
        answers = [
            self._search_part(their_queries, their_k, their_studies, their_patients)
            for their_queries, their_k, their_studies, their_patients in asked
        ]
        all_answers: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(all_answers, answers)
        return merge([answers_of_rank[dist.get_rank()] for answers_of_rank in all_answers], k)

    def _search_part(self, queries: Tensor, k: int, study_ids: Sequence[str], patient_ids: Sequence[str]) -> Found:
        scores, rows = self.part.search_exactly(queries, k, study_ids=study_ids, patient_ids=patient_ids)
        return scores, torch.where(rows < 0, rows, rows + self.first_row)


def merge(parts: Sequence[Found], k: int) -> Found:
    """The best ``k`` of what the parts of a bank gave, parts in the order of their rows."""
    scores = torch.cat([scores for scores, _ in parts], dim=1)
    rows = torch.cat([rows for _, rows in parts], dim=1)
    # Stable: within a part equal scores come by row, and so do the parts.
    best = scores.sort(dim=1, descending=True, stable=True).indices[:, :k]
    return scores.gather(1, best).float(), rows.gather(1, best)
