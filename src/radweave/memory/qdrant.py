"""A Qdrant server as a retrieval index, or the exact search in memory that its client has (extra ``qdrant``).

Which server is no part of a run: whoever opens one says so in the environment, or its vectors would go where somebody
else wrote. The server gets vectors and row numbers, and no name of a study or a patient. A collection is called by the
hash of what it holds. It is filled by whoever comes first, found by all others, and deleted by nobody here.
"""

from __future__ import annotations

import hashlib
import os
import re
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import httpx
import torch
from jaxtyping import Float, Int
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse
from torch import Tensor

from radweave.base.errors import InputError
from radweave.memory.bank import Owners
from radweave.memory.index import ProposedIndex

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
