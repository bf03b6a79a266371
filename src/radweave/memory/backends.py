"""Retrieval indices to choose from by configuration: exact search in torch, FAISS, or a Qdrant server.

FAISS and Qdrant propose candidates, which are filtered and scored again as exact search does it: FAISS's flat index
returns the same rows and scores. They are extras, for banks that a scan is too slow for (an approximate index).
"""

from __future__ import annotations

import re
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
from radweave.memory.index import ExactIndex, Index, ProposedIndex

RECALL_ROWS = 64
TRIED_WIDTH = 13_440
"""A factory string is tried at this width: what is divided by a power of two up to 128, by 3, 5 or 7 can be made."""

_TRIED_ROWS = torch.randn(256, 64, generator=torch.Generator().manual_seed(0)).numpy()
# Of a factory string: cells, codes that are fitted to many rows, and changes of the vectors that come first.
_CELLS = re.compile(r"(?:IVF|IMI)[^,_]*")
_CODES = re.compile(r"(?<![A-Za-z_])(?:PQ|P?RQ|P?LSQ)[^,]*")
_TRANSFORMS = re.compile(r"(?<![A-Za-z_])(?:OPQ|PCA|ITQ)[^,]*,")


class FaissIndex(ProposedIndex):
    """Search by a FAISS index of inner products, made by ``faiss.index_factory`` from ``factory``."""

    def __init__(
        self,
        vectors: Float[Tensor, "rows dim"],
        owners: Owners,
        factory: str = "Flat",
        search: str = "",
    ) -> None:
        """Make the index.

        Raises:
            InputError: if FAISS cannot make it, fit it to these vectors, fill it, or look at it as ``search`` says.
        """
        super().__init__(vectors, owners)
        self.said, self.is_exact = factory, factory == "Flat"
        values = vectors.detach().cpu().float().contiguous().numpy()
        self._index = _made(vectors.shape[1], factory)
        if not self._index.is_trained:
            _fit(self._index, values, factory)
        _add(self._index, values, factory)
        _set(self._index, search)
        _look(self._index, values[:1], 1, search or factory, "search" if search else "factory")

    def _proposed(self, queries: Float[Tensor, "batch dim"], count: int) -> Int[Tensor, "batch count"]:
        _, found = self._index.search(queries.numpy(), count)
        return torch.from_numpy(found).long()  # -1 where an approximate index found less


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
            InputError: if the extra is not installed, FAISS does not know the factory string, or an index of that kind
                takes no rows or cannot look at them as ``search`` says.
        """
        refuse_without("faiss", "this index", field="index.kind", got="faiss")
        _set(_made(TRIED_WIDTH, self.factory), self.search)  # before hours of training, not after
        _try(self.factory, self.search)
        return partial(FaissIndex, factory=self.factory, search=self.search)


class QdrantIndexConfig(Config):
    """A Qdrant server's graph (extra ``qdrant``): ``m`` edges a row, searched ``ef_construct`` wide when it is built.

    ``hnsw_ef`` is how wide a query searches it; ``exact`` has the server compare all rows. ``RADWEAVE_QDRANT_URL`` in
    the environment says which server, or ``:memory:`` for none; ``RADWEAVE_QDRANT_KEY`` is its key.
    """

    kind: Literal["qdrant"] = "qdrant"
    m: int = Field(default=16, ge=2, le=512)
    ef_construct: int = Field(default=100, ge=4, le=10_000)
    hnsw_ef: int = Field(default=128, ge=1, le=100_000)
    exact: bool = False

    def build(self) -> BuildIndex:
        """What makes the index of a bank.

        Raises:
            InputError: if the extra is not installed, the environment names no server, or it does not answer.
        """
        refuse_without("qdrant", "this index", field="index.kind", got="qdrant")
        from radweave.memory.qdrant import Graph, QdrantIndex, refuse_silent

        refuse_silent()  # before hours of training, not after
        return partial(QdrantIndex, graph=Graph(self.m, self.ef_construct, self.hnsw_ef, self.exact))


IndexConfig = Annotated[ExactIndexConfig | FaissIndexConfig | QdrantIndexConfig, Field(discriminator="kind")]


def recall(
    index: Index, exact: Index, queries: Float[Tensor, "batch dim"], k: int, *, owners: Sequence[tuple[str, str]]
) -> float:
    """The share of the exact ``k`` rows of all queries that ``index`` finds; 1 for an exact one.

    ``owners`` are study and patient id of each query.
    """
    studies, patients = ([name[part] for name in owners] for part in (0, 1))
    found, wanted = (one.search(queries, k, study_ids=studies, patient_ids=patients)[1] for one in (index, exact))
    return _share(found, wanted)


def _share(found: Int[Tensor, "batch k"], wanted: Int[Tensor, "batch k"]) -> float:
    """How many of the wanted rows were found; -1 is none."""
    hits = (found[:, :, None] == wanted[:, None, :]).any(1) & (wanted >= 0)
    return float(hits.sum() / (wanted >= 0).sum().clamp(min=1))


def stated_recall(index: ProposedIndex, k: int = 10) -> str:
    """In one line, which share of the exact ``k`` nearest of some of its own rows an index finds, themselves apart."""
    asked = torch.arange(0, len(index.vectors), max(1, len(index.vectors) // RECALL_ROWS))[:RECALL_ROWS]
    nobody = {"study_ids": [""] * len(asked), "patient_ids": [""] * len(asked)}
    found, wanted = (
        one.search(index.vectors[asked], k + 1, **nobody)[1] for one in (index, ExactIndex(index.vectors, index.owners))
    )
    others = (rows.masked_fill(rows == asked[:, None], -1) for rows in (found, wanted))
    return f"the index {index.said} finds {_share(*others):.1%} of the {k} nearest of {len(asked)} training studies"


def stated_recalls(parts: Iterable[object]) -> Iterator[str]:
    """A line for each of the parts whose ``index`` is an approximate one."""
    for part in parts:
        index = getattr(part, "index", None)
        if isinstance(index, ProposedIndex) and not index.is_exact:
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


def _try(factory: str, search: str) -> None:
    """Fill and search a small index of this kind, which what would have to be fitted to many rows is left out of.

    Raises:
        InputError: if that cannot be done.
    """
    if "_PQ" in factory:
        return  # a graph over codes: minutes, however small
    small = _CELLS.sub("IVF1", _CODES.sub("Flat", _TRANSFORMS.sub("", factory)))
    try:
        index = _made(_TRIED_ROWS.shape[1], small)
        _set(index, search)
        if not index.is_trained:
            index.train(_TRIED_ROWS)
    except (InputError, RuntimeError):
        return  # no small one can be had: what is wrong with it is said when the bank is there
    _add(index, _TRIED_ROWS, factory)
    _look(index, _TRIED_ROWS[:1], 3, search or factory, "search" if search else "factory")


def _add(index: Any, values: Any, factory: str) -> None:
    """Add rows to an index.

    Raises:
        InputError: if it does not take them, as one that wants a number with each does not.
    """
    try:
        index.add(values)
    except RuntimeError as error:
        raise InputError(
            f"FAISS cannot add rows to this index: {_reason(error)}",
            field="index.factory",
            got=factory,
            expected="such as Flat or IVF1024,Flat, without IDMap",
        ) from error


def _look(index: Any, queries: Any, count: int, got: str, field: Literal["search", "factory"]) -> None:
    """Search an index once.

    Raises:
        InputError: if it cannot be searched so.
    """
    try:
        index.search(queries, count)
    except RuntimeError as error:
        raise InputError(
            f"FAISS cannot search this index so: {_reason(error)}",
            field=f"index.{field}",
            got=got,
            expected="such as nprobe=16, and no less than 1" if field == "search" else "such as Flat or IVF1024,Flat",
        ) from error


def _reason(error: RuntimeError) -> str:
    """What FAISS says, without where in its code it says so."""
    return re.sub(r"(?s).*\.\w+:\d+: (?:Error: )?", "", str(error))[:120]


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
