"""Retrieval indices to choose from by configuration: exact search in torch, or FAISS.

FAISS proposes candidates, which are filtered and scored again as exact search does it: its flat index returns the same
rows and scores. It is an extra, for banks that a scan is too slow for (an approximate index).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from radweave.core.config import Config, Count
from radweave.core.errors import InputError
from radweave.core.extras import refuse_without
from radweave.nn.memory.bank import Owners
from radweave.nn.memory.index import ExactIndex, Index, ProposedIndex

RECALL_ROWS = 64
TRIED_WIDTH = 13_440
"""A factory string is tried at this width: it divides by the powers of two up to 128, and by 3, 5 and 7."""

_TRIED_ROWS = torch.randn(256, 64, generator=torch.Generator().manual_seed(0)).numpy()
# Parts of a factory string: cells, codes that are fitted to many rows, and transforms of the vectors.
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
        """Make, train and fill the index.

        Raises:
            InputError: if FAISS cannot make it, train it on these vectors, fill it, or search it as ``search`` says.
        """
        super().__init__(vectors, owners)
        self.description, self.is_exact = factory, factory == "Flat"
        values = vectors.detach().cpu().float().contiguous().numpy()
        self._index = _new_index(vectors.shape[1], factory)
        if not self._index.is_trained:
            with _refused("FAISS cannot fit this index to the bank", factory, f"one for {len(values)} rows"):
                self._index.train(values)
        _add(self._index, values, factory)
        _set_search(self._index, search)
        _try_search(self._index, values[:1], 1, factory, search)

    def _proposed(self, queries: Float[Tensor, "batch dim"], count: int) -> Int[Tensor, "batch count"]:
        _, rows = self._index.search(queries.numpy(), count)
        return torch.from_numpy(rows).long()  # -1 where an approximate index has fewer


BuildIndex = Callable[[Float[Tensor, "rows dim"], Owners], Index]
"""From a bank's vectors and the owners of its rows to an index over them."""


class ExactIndexConfig(Config):
    """Exact search in torch, in chunks of ``chunk_rows`` rows."""

    kind: Literal["exact"] = "exact"
    chunk_rows: Count = 65_536

    def build(self) -> BuildIndex:
        """Return the builder of the index; the bank exists only after the model."""
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
        """Return the builder of the index, after a trial on a few made-up rows.

        Raises:
            InputError: if the extra is not installed, FAISS does not know the factory string, or an index of that kind
                takes no rows or cannot be searched as ``search`` says.
        """
        refuse_without("faiss", "this index", field="index.kind", got="faiss")
        _set_search(_new_index(TRIED_WIDTH, self.factory), self.search)  # before hours of training, not after
        _try(self.factory, self.search)
        return partial(FaissIndex, factory=self.factory, search=self.search)


IndexConfig = Annotated[ExactIndexConfig | FaissIndexConfig, Field(discriminator="kind")]


def recall(
    index: Index, exact: Index, queries: Float[Tensor, "batch dim"], k: int, *, owners: Sequence[tuple[str, str]]
) -> float:
    """The share of the exact ``k`` rows of all queries that ``index`` finds; 1 for an exact one.

    ``owners`` are study and patient id of each query.
    """
    studies, patients = ([name[part] for name in owners] for part in (0, 1))
    rows, exact_rows = (each.search(queries, k, study_ids=studies, patient_ids=patients)[1] for each in (index, exact))
    return _share(rows, exact_rows)


def _share(rows: Int[Tensor, "batch k"], exact_rows: Int[Tensor, "batch k"]) -> float:
    """The share of the exact rows that are among ``rows``; -1 is none."""
    hits = (rows[:, :, None] == exact_rows[:, None, :]).any(1) & (exact_rows >= 0)
    return float(hits.sum() / (exact_rows >= 0).sum().clamp(min=1))


def stated_recall(index: ProposedIndex, k: int = 10) -> str:
    """State in one line the recall of an index for some of its own rows, each without itself."""
    sample = torch.arange(0, len(index.vectors), max(1, len(index.vectors) // RECALL_ROWS))[:RECALL_ROWS]
    no_owner = {"study_ids": [""] * len(sample), "patient_ids": [""] * len(sample)}
    both = (index, ExactIndex(index.vectors, index.owners))
    rows = (each.search(index.vectors[sample], k + 1, **no_owner)[1] for each in both)
    share = _share(*(each.masked_fill(each == sample[:, None], -1) for each in rows))
    return f"the index {index.description} finds {share:.1%} of the {k} nearest of {len(sample)} training studies"


def stated_recalls(parts: Iterable[object]) -> Iterator[str]:
    """A line for each of the parts whose ``index`` is an approximate one."""
    for part in parts:
        index = getattr(part, "index", None)
        if isinstance(index, ProposedIndex) and not index.is_exact:
            yield stated_recall(index)


# Calls of FAISS, whose errors are reported with the option that causes them.


@contextmanager
def _refused(problem: str, got: str, expected: str, field: Literal["search", "factory"] = "factory") -> Iterator[None]:
    """Turn an error of FAISS into an ``InputError``, without the place in its source code."""
    try:
        yield
    except RuntimeError as error:
        reason = re.sub(r"(?s).*\.\w+:\d+: (?:Error: )?", "", str(error))[:120]
        raise InputError(f"{problem}: {reason}", field=f"index.{field}", got=got, expected=expected) from error


def _new_index(width: int, factory: str) -> Any:
    """An empty index."""
    import faiss

    with _refused("FAISS cannot make this index", factory, "such as Flat or IVF1024,Flat"):
        return faiss.index_factory(width, factory, faiss.METRIC_INNER_PRODUCT)


def _set_search(index: Any, search: str) -> None:
    """Set how thoroughly an index looks."""
    import faiss

    parameters: Any = faiss.ParameterSpace()
    if search:
        with _refused("this FAISS index has no such parameter", search, "such as nprobe=16", "search"):
            parameters.set_index_parameters(index, search)


def _add(index: Any, values: Any, factory: str) -> None:
    """Add rows to an index; one that wants a number with each row does not take them."""
    with _refused("FAISS cannot add rows to this index", factory, "such as Flat or IVF1024,Flat, without IDMap"):
        index.add(values)


def _try_search(index: Any, queries: Any, count: int, factory: str, search: str) -> None:
    """Search an index once, to see that it can be searched."""
    problem = "FAISS cannot search this index so"
    with (
        _refused(problem, search, "such as nprobe=16, and no less than 1", "search")
        if search
        else _refused(problem, factory, "such as Flat or IVF1024,Flat")
    ):
        index.search(queries, count)


def _try(factory: str, search: str) -> None:
    """Fill and search a small index of this kind, without the parts that must be fitted to many rows."""
    if "_PQ" in factory:
        return  # a graph over codes: minutes, however small
    small = _CELLS.sub("IVF1", _CODES.sub("Flat", _TRANSFORMS.sub("", factory)))
    try:
        index = _new_index(_TRIED_ROWS.shape[1], small)
        _set_search(index, search)
        if not index.is_trained:
            index.train(_TRIED_ROWS)
    except (InputError, RuntimeError):
        return  # a small index is impossible: an error is reported once the bank exists
    _add(index, _TRIED_ROWS, factory)
    _try_search(index, _TRIED_ROWS[:1], 3, factory, search)
