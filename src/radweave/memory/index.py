"""Exact nearest-neighbour search by inner product, which never returns the query's own study or patient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from radweave.memory.bank import patient_code

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

    ``study_ids`` and ``patients`` (codes, see ``patient_code``) say what each row is of. The candidates of a fast pass
    are scored again in float64, each query for itself: the result is the same alone and in any batch. Equal scores
    are ordered by row.
    """

    def __init__(
        self,
        vectors: Float[Tensor, "rows dim"],
        study_ids: Sequence[str],
        patients: Sequence[str],
        *,
        chunk_rows: int = 65_536,
    ) -> None:
        assert len(vectors) == len(study_ids) == len(patients), "one study and one patient per vector"
        self.vectors = vectors
        self.chunk_rows = chunk_rows
        self._studies = {name: number for number, name in enumerate(dict.fromkeys(study_ids))}
        self._patients = {name: number for number, name in enumerate(dict.fromkeys(patients))}
        self._study_of_row = torch.tensor([self._studies[name] for name in study_ids], dtype=torch.long)
        self._patient_of_row = torch.tensor([self._patients[name] for name in patients], dtype=torch.long)

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
        own_study = torch.tensor([self._studies.get(name, -1) for name in study_ids])
        own_patient = torch.tensor([self._patients.get(patient_code(name), -1) for name in patient_ids])
        scores, rows = self._candidates(queries, k + MARGIN, own_study, own_patient)
        return self._rescored(queries, scores, rows, k)

    def _candidates(
        self, queries: Tensor, count: int, own_study: Tensor, own_patient: Tensor
    ) -> tuple[Tensor, Tensor]:
        best_scores = torch.empty(len(queries), 0)
        best_rows = torch.empty(len(queries), 0, dtype=torch.long)
        for start in range(0, len(self.vectors), self.chunk_rows):
            block = self.vectors[start : start + self.chunk_rows]
            scores = (queries.float() @ block.float().T).cpu()
            span = slice(start, start + len(block))
            barred = self._study_of_row[span] == own_study[:, None]
            barred |= self._patient_of_row[span] == own_patient[:, None]
            scores = scores.masked_fill(barred, float("-inf"))
            scores, rows = scores.topk(min(count, scores.shape[1]), dim=1)
            best_scores = torch.cat([best_scores, scores], 1)
            best_rows = torch.cat([best_rows, rows + start], 1)
            best_scores, order = best_scores.topk(min(count, best_scores.shape[1]), dim=1)
            best_rows = best_rows.gather(1, order)
        return best_scores, best_rows

    def _rescored(self, queries: Tensor, scores: Tensor, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
        out_scores = torch.full((len(queries), k), float("-inf"))
        out_rows = torch.full((len(queries), k), -1, dtype=torch.long)
        for number, query in enumerate(queries.double()):
            allowed = rows[number][scores[number] > float("-inf")].sort().values
            exact = (self.vectors[allowed.to(self.vectors.device)].double() * query).sum(1).cpu()
            order = exact.sort(descending=True, stable=True).indices[:k]
            out_scores[number, : len(order)] = exact[order].float()
            out_rows[number, : len(order)] = allowed[order]
        return out_scores, out_rows
