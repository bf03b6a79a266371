"""Retrieval indices to choose from by configuration: exact search in torch, FAISS, or a Qdrant server.

FAISS and Qdrant propose candidates, which are filtered and scored again as exact search does it: FAISS's flat index
returns the same rows and scores. They are extras, for banks that a scan is too slow for (an approximate index).
"""

from __future__ import annotations

import hashlib
import os
import re
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, Literal

import httpx
import torch
from jaxtyping import Float, Int
from pydantic import Field
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse
from torch import Tensor

from radweave.core.config import Config, Count
from radweave.core.errors import InputError
from radweave.core.extras import refuse_without
from radweave.nn.memory.bank import Owners
from radweave.nn.memory.index import ExactIndex, Index, ProposedIndex

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


# A Qdrant server as a retrieval index, or the exact search in memory that its client has (extra ``qdrant``).
#
# Which server is no part of a run: whoever opens one says so in the environment, or its vectors would go where somebody
# else wrote. The server gets vectors and row numbers, and no name of a study or a patient. A collection is called by the
# hash of what it holds. It is filled by whoever comes first, found by all others, and deleted by nobody here.


URL: Final = "RADWEAVE_QDRANT_URL"
KEY: Final = "RADWEAVE_QDRANT_KEY"
IN_MEMORY: Final = ":memory:"
TIMEOUT_S: Final = 60
BUILT_WITHIN_S: Final = 3600
SAMPLED_ROWS: Final = 64
_ADDRESS: Final = re.compile(r"(https?)://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?/?")
_LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
_MOST_BYTES: Final = 1 << 27
_MOST_NUMBERS: Final = 1 << 19
"""In one request: some 11 MB of JSON. Servers take 32 MB unless they are told otherwise."""


@dataclass(frozen=True, slots=True)
class Graph:
    """How the server builds its graph and searches it; see ``QdrantIndexConfig``."""

    m: int = 16
    ef_construct: int = 100
    hnsw_ef: int = 128
    exact: bool = False


class QdrantIndex(ProposedIndex):
    """Search over a collection of the server that the environment names, or over one in this process's memory."""

    def __init__(
        self,
        vectors: Float[Tensor, "rows dim"],
        owners: Owners,
        graph: Graph | None = None,
        client: QdrantClient | None = None,
    ) -> None:
        """Find the collection of these vectors, or make it, and wait until the server has built its graph.

        Raises:
            InputError: if the server does not answer, or something else stands under the collection's name.
        """
        super().__init__(vectors, owners)
        graph = graph or Graph()
        self._client = connect() if client is None else client
        self.said = f"qdrant (m {graph.m}, ef_construct {graph.ef_construct}, hnsw_ef {graph.hnsw_ef})"
        self.is_exact = graph.exact
        self.collection = f"radweave-{_fingerprint(vectors, graph)[:32]}"
        params = models.SearchParams(hnsw_ef=graph.hnsw_ef, exact=graph.exact)
        self._params = None if self._client.init_options["location"] == IN_MEMORY else params
        self._settle(graph)

    def _proposed(self, queries: Float[Tensor, "batch dim"], count: int) -> Int[Tensor, "batch count"]:
        rows = torch.full((len(queries), count), -1)
        for start, some in _portions(queries):
            requests = [models.QueryRequest(query=query, limit=count, params=self._params) for query in some.tolist()]
            for number, answer in enumerate(self._ask("query_batch_points", requests=requests), start):
                found = list(dict.fromkeys(self._row(point.id) for point in answer.points))[:count]
                rows[number, : len(found)] = torch.tensor(found, dtype=torch.long)
        return rows

    def _row(self, number: Any) -> int:
        if not isinstance(number, int) or not 0 <= number < len(self.vectors):
            raise self._misfit("a row that the bank lacks", f"rows 0 to {len(self.vectors) - 1}")
        return number

    def _settle(self, graph: Graph) -> None:
        if not self._ask("collection_exists"):
            self._create(graph)
        self._refuse_others()
        there = self._ask("count", exact=True).count
        if there > len(self.vectors):
            raise self._misfit(f"{there} rows", len(self.vectors))
        if there < len(self.vectors):  # new, or left by a process that was stopped
            for start, some in _portions(self.vectors):
                batch = models.Batch(ids=list(range(start, start + len(some))), vectors=some.tolist())
                self._ask("upsert", points=batch, wait=True)
        self._await_graph()

    def _create(self, graph: Graph) -> None:
        try:
            self._ask(
                "create_collection",
                vectors_config=models.VectorParams(size=self.vectors.shape[1], distance=models.Distance.DOT),
                hnsw_config=models.HnswConfigDiff(m=graph.m, ef_construct=graph.ef_construct),
            )
        except InputError:
            if not self._ask("collection_exists"):  # or another process has made it just now
                raise

    def _refuse_others(self) -> None:
        """Refuse a collection of vectors of another width, or with other vectors in some rows."""
        made = self._ask("get_collection").config.params.vectors
        width = self.vectors.shape[1]
        if not isinstance(made, models.VectorParams) or (made.size, made.distance) != (width, models.Distance.DOT):
            raise self._misfit("vectors of another width or distance", f"width {width}, inner products")
        step = max(1, len(self.vectors) // SAMPLED_ROWS)
        rows = list(range(0, len(self.vectors), step))[:SAMPLED_ROWS]
        for point in self._ask("retrieve", ids=rows, with_payload=False, with_vectors=True) if rows else ():
            if not torch.equal(torch.tensor(point.vector), self.vectors[self._row(point.id)].cpu().float()):
                raise self._misfit("another vector", f"that of row {point.id}")

    def _await_graph(self) -> None:
        """Wait until the graph is built: before, the server compares all rows, and its recall is another."""
        late = time.monotonic() + BUILT_WITHIN_S
        while self._ask("get_collection").status == models.CollectionStatus.YELLOW:
            if time.monotonic() > late:
                raise InputError(f"the Qdrant server builds its graph for more than {BUILT_WITHIN_S} s", field=URL)
            time.sleep(1)

    def _misfit(self, got: object, expected: object) -> InputError:
        return InputError(
            f"the collection {self.collection} is not of this bank", field=URL, got=got, expected=expected
        )

    def _ask(self, what: str, **named: Any) -> Any:
        return _asked(self._client, what, collection_name=self.collection, **named)


def connect() -> QdrantClient:
    """A client for the server that the environment names, or for the memory of this process.

    No redirect is followed, no proxy or password file of the environment is used, and no answer of more than 128 MB is
    read. Certificates are those that the system trusts, or ``SSL_CERT_FILE``.

    Raises:
        InputError: if there is no address, or one that vectors would go to in the clear.
    """
    address = os.environ.get(URL, "")
    if address == IN_MEMORY:
        return QdrantClient(IN_MEMORY)
    found = _ADDRESS.fullmatch(address)
    if found is None or int(found[3] or 1) > 65_535:
        known = None if "@" in address else address  # it may hold a password
        wanted = f"https://HOST or {IN_MEMORY} in the environment"
        raise InputError("no address of a Qdrant server", field=URL, got=known, expected=wanted)
    if found[1] == "http" and found[2].lower() not in _LOOPBACK:
        raise InputError("vectors would go through the network in the clear", field=URL, got="http", expected="https")
    return QdrantClient(
        url=address.rstrip("/"),
        api_key=os.environ.get(KEY) or None,
        timeout=TIMEOUT_S,
        check_compatibility=False,  # it would ask by a connection of its own
        headers={"Accept-Encoding": "identity"},
        transport=_BoundedTransport(verify=ssl.create_default_context()),
        trust_env=False,
        follow_redirects=False,
    )


def refuse_silent() -> None:
    """Refuse a server that does not answer.

    Raises:
        InputError: saying why, without the key.
    """
    client = connect()
    _asked(client, "get_collections")
    client.close()


def _asked(client: QdrantClient, what: str, **named: Any) -> Any:
    try:
        return getattr(client, what)(**named)
    except UnexpectedResponse as error:
        hint = f"; is its key in {KEY}?" if error.status_code in (401, 403) else ""
        reason = f"the Qdrant server answers with HTTP {error.status_code}{hint}"
    except ResponseHandlingException as error:
        reason = f"the Qdrant server cannot be reached or understood ({type(error.source).__name__})"
    except Exception as error:  # an answer that is none may fail in any way
        reason = f"the Qdrant server's answer cannot be read ({type(error).__name__})"
    raise InputError(reason, field=URL)


class _BoundedTransport(httpx.HTTPTransport):
    """Connections whose answers come as they are counted: plain, and not longer than may be."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = super().handle_request(request)
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            answer.close()
            raise httpx.DecodingError("the answer is packed")
        assert isinstance(answer.stream, httpx.SyncByteStream)
        answer.stream = _Bounded(answer.stream)
        return answer


class _Bounded(httpx.SyncByteStream):
    def __init__(self, whole: httpx.SyncByteStream) -> None:
        self._whole = whole

    def __iter__(self) -> Iterator[bytes]:
        total = 0
        for chunk in self._whole:
            total += len(chunk)
            if total > _MOST_BYTES:
                raise httpx.ReadError("the answer is too long")
            yield chunk

    def close(self) -> None:
        self._whole.close()


def _portions(vectors: Float[Tensor, "rows dim"]) -> Iterator[tuple[int, Tensor]]:
    """As many rows as one request may hold, on the CPU in float32, with the number of the first."""
    step = max(1, _MOST_NUMBERS // max(1, vectors.shape[1]))
    for start in range(0, len(vectors), step):
        yield start, vectors[start : start + step].detach().cpu().float()


def _fingerprint(vectors: Float[Tensor, "rows dim"], graph: Graph) -> str:
    """Hash of the vectors as they are sent, and of what the server builds from them."""
    digest = hashlib.sha256(f"{tuple(vectors.shape)} {graph.m} {graph.ef_construct}".encode())
    for _, some in _portions(vectors):
        digest.update(some.contiguous().numpy().tobytes())
    return digest.hexdigest()
