"""The Qdrant index: what a server is sent, which servers and collections are refused, and what their answers may be."""

from __future__ import annotations

import copy
import gzip
import json
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from qdrant_client import QdrantClient, models
from qdrant_server import Reply, Server, serving
from torch import Tensor

from radweave.core.errors import InputError
from radweave.nn.memory import backends
from radweave.nn.memory.backends import KEY, URL, Graph, QdrantIndex, QdrantIndexConfig, stated_recalls
from radweave.nn.memory.bank import Owners, patient_code
from radweave.nn.memory.index import ExactIndex

ROWS, DIM = 90, 7
QUERIES = torch.randn(5, DIM, generator=torch.Generator().manual_seed(1))
OWN: dict[str, Any] = {"study_ids": ["s0", "s7", "x", "y", "s80"], "patient_ids": ["p0", "p9", "p20", "y", "z"]}


def made_up(seed: int = 0, rows: int = ROWS) -> tuple[Tensor, Owners]:
    vectors = torch.randn(rows, DIM, generator=torch.Generator().manual_seed(seed))
    return vectors, Owners([f"s{row}" for row in range(rows)], [patient_code(f"p{row // 2}") for row in range(rows)])


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serving() as made:
        monkeypatch.setenv(URL, made.url)
        yield made


@pytest.fixture
def client() -> QdrantClient:
    return QdrantClient(":memory:")


def test_a_server_proposes_what_exact_search_finds_and_learns_no_name(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "_MOST_NUMBERS", 3 * DIM)  # several requests for the rows, and for the queries
    vectors, owners = made_up()
    index = QdrantIndexConfig(hnsw_ef=77).build()(vectors, owners)
    scores, rows = index.search(QUERIES, 4, **OWN)
    wanted_scores, wanted_rows = ExactIndex(vectors, owners).search(QUERIES, 4, **OWN)
    assert torch.equal(rows, wanted_rows)
    assert torch.equal(scores, wanted_scores)
    assert server.uploads() == ROWS // 3
    bodies = [json.loads(body) for body in server.bodies if body]
    assert {word for body in bodies for word in words(body)} == {"Dot"}
    assert [one["params"]["hnsw_ef"] for body in bodies for one in body.get("searches", ())] == [77] * len(QUERIES)
    ids = "|".join([*OWN["study_ids"], *OWN["patient_ids"], patient_code("p0")])
    assert not any(re.search(rf"/({ids})\b", path) for _, path in server.asked)


def words(value: Any) -> Iterator[str]:
    """Every text that stands as a value in JSON."""
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from words(inner)


def test_the_same_bank_is_sent_once_and_another_stands_beside_it(server: Server) -> None:
    vectors, owners = made_up()
    first = QdrantIndex(vectors, owners)
    assert server.uploads() == 1
    assert QdrantIndex(vectors.clone(), owners, Graph(hnsw_ef=9, exact=True)).collection == first.collection
    assert server.uploads() == 1
    others = [
        QdrantIndex(*made_up(seed=3)),
        QdrantIndex(vectors, owners, Graph(m=4)),
        QdrantIndex(vectors[:0], Owners([], [])),
    ]
    assert len({first.collection, *(other.collection for other in others)}) == 4
    assert others[2].search(QUERIES, 2, **OWN)[1].eq(-1).all()


def test_a_copy_of_a_model_shares_its_index(client: QdrantClient) -> None:
    index = QdrantIndex(*made_up(), client=client)
    assert copy.deepcopy([index])[0] is index


def test_its_recall_is_stated(client: QdrantClient) -> None:
    index = QdrantIndex(*made_up(), client=client)
    part, exact = (
        SimpleNamespace(index=index),
        SimpleNamespace(index=QdrantIndex(*made_up(), Graph(exact=True), client)),
    )
    assert list(stated_recalls([part, exact])) == [
        "the index qdrant (m 16, ef_construct 100, hnsw_ef 128) finds 100.0% of the 10 nearest of 64 training studies"
    ]
    wrong = torch.arange(ROWS).flip(0)
    index._proposed = lambda queries, count: wrong[:count].expand(len(queries), -1)  # type: ignore[method-assign]
    assert "100.0%" not in next(stated_recalls([part]))


@pytest.mark.parametrize(
    ("size", "distance", "change", "extra", "said"),
    [
        (DIM + 1, "Dot", 0.0, 0, f"another width or distance, expected width {DIM}"),
        (DIM, "Cosine", 0.0, 0, "another width or distance"),
        (DIM, "Dot", 1e-3, 0, "another vector, expected that of row"),
        (DIM, "Dot", 0.0, 3, f"{ROWS + 3} rows, expected {ROWS}"),
    ],
)
def test_a_collection_of_something_else_is_refused(
    client: QdrantClient, size: int, distance: str, change: float, extra: int, said: str
) -> None:
    vectors, owners = made_up()
    name = f"radweave-{backends._fingerprint(vectors, Graph())[:32]}"
    client.create_collection(name, models.VectorParams(size=size, distance=models.Distance(distance)))
    others = torch.zeros(ROWS + extra, size)
    others[:ROWS, :DIM] = vectors + change
    client.upsert(name, models.Batch(ids=list(range(len(others))), vectors=others.tolist()))
    with pytest.raises(InputError, match=said):
        QdrantIndex(vectors, owners, client=client)


def test_a_collection_that_was_left_half_full_is_filled(client: QdrantClient) -> None:
    vectors, owners = made_up()
    index = QdrantIndex(vectors, owners, client=client)
    client.delete(index.collection, models.PointIdsList(points=list(range(40, ROWS))))
    again = QdrantIndex(vectors, owners, client=client)
    assert client.count(index.collection).count == ROWS
    assert torch.equal(again.search(QUERIES, 3, **OWN)[1], ExactIndex(vectors, owners).search(QUERIES, 3, **OWN)[1])


@pytest.mark.parametrize("stranger", [ROWS, "5c56c793-69f3-4fbf-87e6-c4bf54c28c26"])
def test_a_row_that_the_bank_lacks_is_refused_when_it_comes(client: QdrantClient, stranger: int | str) -> None:
    """Such as one of a study that is not of the training split."""
    index = QdrantIndex(*made_up(), client=client)
    client.delete(index.collection, models.PointIdsList(points=[1]))
    client.upsert(index.collection, models.Batch(ids=[stranger], vectors=[[99.0] * DIM]))
    with pytest.raises(InputError, match=f"a row that the bank lacks, expected rows 0 to {ROWS - 1}"):
        index.search(torch.ones(1, DIM), 1, study_ids=["x"], patient_ids=["y"])


def test_rows_are_taken_once_and_few_are_enough(client: QdrantClient, monkeypatch: pytest.MonkeyPatch) -> None:
    index = QdrantIndex(*made_up(), client=client)
    answer = SimpleNamespace(points=[SimpleNamespace(id=row) for row in (8, 9, 8)])
    monkeypatch.setattr(client, "query_batch_points", lambda **named: [answer] * len(named["requests"]))
    assert index.search(QUERIES, 3, **OWN)[1].sort().values.tolist() == [[-1, 8, 9]] * 5


def test_nobody_searches_before_the_graph_is_built(client: QdrantClient, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    whole = client.get_collection

    def get_collection(**named: Any) -> models.CollectionInfo:
        color = models.CollectionStatus.YELLOW if len(waited) < 3 else models.CollectionStatus.GREEN
        return whole(**named).model_copy(update={"status": color})

    monkeypatch.setattr(client, "get_collection", get_collection)
    monkeypatch.setattr("radweave.nn.memory.backends.time.sleep", waited.append)
    QdrantIndex(*made_up(), client=client)
    assert len(waited) == 3
    waited.clear()
    monkeypatch.setattr(backends, "BUILT_WITHIN_S", -1)
    with pytest.raises(InputError, match="builds its graph for more than"):
        QdrantIndex(*made_up(), client=client)


def test_two_processes_may_make_the_collection_at_once(client: QdrantClient, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = client.create_collection

    def create_collection(**named: Any) -> None:
        whole(**named)
        raise ValueError("it is there already")

    monkeypatch.setattr(client, "create_collection", create_collection)
    assert len(QdrantIndex(*made_up(), client=client).owners) == ROWS
    monkeypatch.setattr(client, "create_collection", lambda **named: [][0])
    with pytest.raises(InputError, match=r"cannot be read .IndexError"):
        QdrantIndex(*made_up(seed=4), client=client)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("", "no address of a Qdrant server.*expected https://HOST or :memory: in the environment"),
        ("/srv/qdrant", "no address"),
        ("ftp://127.0.0.1", "no address"),
        ("http://10.0.0.7:6333", "in the clear.*expected https"),
        ("http://127.0.0.1.example.org", "in the clear"),
        ("https://name:hidden@host", "no address"),
        ("https://127.0.0.1\\@host", "no address"),
        ("http://127.0.0.1:1", "cannot be reached or understood .ConnectError"),
        ("http://127.0.0.1:65536", "no address"),
    ],
)
def test_an_address_that_will_not_do_is_refused_before_training(
    address: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(URL, address)
    with pytest.raises(InputError, match=f"'{URL}'.*{said}") as refused:
        QdrantIndexConfig().build()
    assert "hidden" not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection")
def test_the_key_is_sent_and_never_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "opensesame")
    with serving(lambda path: (401, {}, b"opensesame")) as server:
        monkeypatch.setenv(URL, server.url)
        with pytest.raises(InputError, match=f"HTTP 401; is its key in {KEY}") as refused:
            QdrantIndexConfig().build()
    assert [headers["api-key"] for headers in server.headers] == ["opensesame"]
    assert "opensesame" not in str(refused.value)
    assert "opensesame" not in repr(QdrantIndexConfig())


def test_no_redirect_is_followed_and_no_proxy_of_the_environment_used(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    QdrantIndexConfig().build()
    asked = len(server.asked)
    with serving(lambda path: (307, {"Location": f"{server.url}{path}"}, b"")) as sly:
        monkeypatch.setenv(URL, sly.url)
        with pytest.raises(InputError, match="HTTP 307"):
            QdrantIndexConfig().build()
    assert len(sly.asked) == 1
    assert len(server.asked) == asked


EMPTY = b'{"status": "ok", "time": 0.0, "result": {"collections": []}}'


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ((200, {}, b"no JSON"), "cannot be re"),
        ((200, {}, EMPTY + b" " * 1000), "cannot be reached or understood .ReadError"),
        ((200, {"Content-Encoding": "gzip"}, gzip.compress(EMPTY)), "cannot be reached or understood .DecodingError"),
        ((429, {"Retry-After": "soon"}, b"{}"), "cannot be read"),
    ],
)
def test_an_answer_that_is_none_is_refused(reply: Reply, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_MOST_BYTES", 500)
    with serving(lambda path: reply) as server:
        monkeypatch.setenv(URL, server.url)
        with pytest.raises(InputError, match=said):
            QdrantIndexConfig().build()
    with serving(lambda path: (200, {}, EMPTY)) as server:
        monkeypatch.setenv(URL, server.url)
        QdrantIndexConfig().build()
