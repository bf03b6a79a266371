"""Retrieval indices to choose from by configuration: exact search in torch, or FAISS.

FAISS proposes candidates, which are filtered and scored again as exact search does it: its flat index returns the same
rows and scores. It is an extra, for banks that a scan is too slow for (an approximate index).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from radweave.base.config import Config, Count
from radweave.base.errors import InputError
from radweave.base.extras import refuse_without
from radweave.memory.bank import Owners
from radweave.memory.index import MARGIN, ExactIndex, Index, score_again

RECALL_ROWS = 64
TRIED_WIDTH = 13_440
"""A factory string is tried at this width: what is divided by a power of two up to 128, by 3, 5 or 7 can be made."""


class FaissIndex:
    """Search by a FAISS index of inner products, made by ``faiss.index_factory`` from ``factory``."""

    def __init__(
        self,
        vectors: Float[Tensor, "rows dim"],
        owners: Owners,
        factory: str = "Flat",
        search: str = "",
    ) -> None:
        self.vectors = vectors
        self.owners = owners
        self.factory = factory
        values = vectors.detach().cpu().float().contiguous().numpy()
        self._index = _made(vectors.shape[1], factory)
        if not self._index.is_trained:
            _fit(self._index, values, factory)
        self._index.add(values)
        _set(self._index, search)

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
        _, found = self._index.search(queries.detach().cpu().float().contiguous().numpy(), count)
        rows = torch.from_numpy(found).long()  # -1 where an approximate index found less
        rows = rows.masked_fill(self.owners.barred(own, rows.clamp(min=0)), -1)
        return score_again(self.vectors, queries.detach().to(self.vectors.device), rows, k)


BuildIndex = Callable[[Float[Tensor, "rows dim"], Owners], Index]
"""From a bank's vectors and what its rows are of to an index over them."""


class ExactIndexConfig(Config):
    """Exact search in torch, in chunks of ``chunk_rows`` rows."""

    kind: Literal["exact"] = "exact"
    chunk_rows: Count = 65_536

    def build(self) -> BuildIndex:
        """What makes the index of a bank; the bank comes when the model has been built."""
        return partial(ExactIndex, chunk_rows=self.chunk_rows)


class FaissIndexConfig(Config):
    """A FAISS index (extra ``faiss``); ``factory`` as ``faiss.index_factory`` reads it. ``Flat`` is exact.

    ``search`` is how thoroughly an approximate index looks, as FAISS's parameter space reads it: ``nprobe=16`` cells of
    an IVF index (FAISS takes 1), ``efSearch=128`` of an HNSW graph (16). ``recall`` says what that costs.
    """

    kind: Literal["faiss"] = "faiss"
    factory: str = Field(default="Flat", max_length=64)
    search: str = Field(default="", max_length=64)

    def build(self) -> BuildIndex:
        """What makes the index of a bank.

        Raises:
            InputError: if the extra is not installed, or FAISS does not know the factory string.
        """
        refuse_without("faiss", "this index", field="index.kind", got="faiss")
        _set(_made(TRIED_WIDTH, self.factory), self.search)  # before hours of training, not after
        return partial(FaissIndex, factory=self.factory, search=self.search)


IndexConfig = Annotated[ExactIndexConfig | FaissIndexConfig, Field(discriminator="kind")]


def recall(
    index: Index, exact: Index, queries: Float[Tensor, "batch dim"], k: int, *, owners: Sequence[tuple[str, str]]
) -> float:
    """The share of the exact ``k`` rows of all queries that ``index`` finds; 1 for an exact one.

    ``owners`` are study and patient id of each query.
    """
    studies, patients = ([name[part] for name in owners] for part in (0, 1))
    found, wanted = (one.search(queries, k, study_ids=studies, patient_ids=patients)[1] for one in (index, exact))
    hits = (found[:, :, None] == wanted[:, None, :]).any(1) & (wanted >= 0)
    return float(hits.sum() / (wanted >= 0).sum().clamp(min=1))


def stated_recall(index: FaissIndex, k: int = 10) -> str:
    """In one line, which share of the exact ``k`` nearest of some of its own rows an index finds."""
    rows = torch.arange(0, len(index.vectors), max(1, len(index.vectors) // RECALL_ROWS))[:RECALL_ROWS]
    nobody = [("", "")] * len(rows)  # a row finds itself; it counts on both sides
    exact = ExactIndex(index.vectors, index.owners)
    share = recall(index, exact, index.vectors[rows], k + 1, owners=nobody)
    return f"the index {index.factory} finds {share:.1%} of {len(rows)} training studies and the {k} nearest of each"


def stated_recalls(parts: Iterable[object]) -> Iterator[str]:
    """A line for each of the parts whose ``index`` is an approximate one."""
    for part in parts:
        index = getattr(part, "index", None)
        if isinstance(index, FaissIndex) and index.factory != "Flat":
            yield stated_recall(index)


def _set(index: Any, search: str) -> None:
    """Tell an index how thoroughly to look.

    Raises:
        InputError: if it has no such parameter.
    """
    if not search:
        return
    import faiss

    parameters: Any = faiss.ParameterSpace()
    try:
        parameters.set_index_parameters(index, search)
    except RuntimeError as error:
        raise InputError(
            "this FAISS index has no such parameter", field="index.search", got=search, expected="such as nprobe=16"
        ) from error


def _fit(index: Any, values: Any, factory: str) -> None:
    """Train an index that needs it, such as one with cells.

    Raises:
        InputError: if the bank has too few rows for it.
    """
    try:
        index.train(values)
    except RuntimeError as error:
        raise InputError(
            "FAISS cannot fit this index to a bank of so few rows",
            field="index.factory",
            got=factory,
            expected=f"one for {len(values)} rows",
        ) from error


def _made(width: int, factory: str) -> Any:
    """An empty index.

    Raises:
        InputError: if FAISS cannot make it.
    """
    import faiss

    try:
        return faiss.index_factory(width, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise InputError(
            "FAISS cannot make this index", field="index.factory", got=factory, expected="such as Flat or IVF1024,Flat"
        ) from error
