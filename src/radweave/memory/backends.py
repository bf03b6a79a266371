"""Retrieval indices to choose from by configuration: exact search in torch, FAISS, Qdrant.

The other two propose candidates, which are filtered and scored again as exact search does it: with FAISS's flat index,
and with Qdrant's exact search, all three return the same rows and scores. They are for banks that a scan is too slow
for (FAISS with an approximate index) or that live in a database (Qdrant). Both are extras.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from radweave.base.config import Config, Count
from radweave.base.errors import InputError
from radweave.memory.bank import Owners
from radweave.memory.index import MARGIN, ExactIndex, Index, score_again

UPLOAD_ROWS = 1024


class FaissIndex:
    """Search by a FAISS index of inner products, made by ``faiss.index_factory`` from ``factory``."""

    def __init__(
        self,
        vectors: Float[Tensor, "rows dim"],
        owners: Owners,
        factory: str = "Flat",
    ) -> None:
        import faiss

        self.vectors = vectors
        self.owners = owners
        values = vectors.detach().cpu().float().contiguous().numpy()
        try:
            self._index: Any = faiss.index_factory(vectors.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
            if not self._index.is_trained:
                self._index.train(values)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1][:200]
            raise InputError(f"FAISS cannot make this index: {reason}", field="factory", got=factory) from None
        self._index.add(values)

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
        most_barred = int(self.owners.barred(own, slice(None)).sum(1).max()) if len(queries) else 0
        count = min(len(self.owners), k + MARGIN + most_barred)
        _, found = self._index.search(queries.detach().cpu().float().contiguous().numpy(), count)
        rows = torch.from_numpy(found).long()  # -1 where an approximate index found less
        rows = rows.masked_fill(self.owners.barred(own, rows.clamp(min=0)), -1)
        scores, rows = score_again(self.vectors, queries.detach().to(self.vectors.device), rows, k)
        return scores.float(), rows


class QdrantIndex:
    """Search by a Qdrant collection. ``location`` is ``:memory:``, or the address of a server.

    The collection is made anew from the vectors; its points are row numbers with the numbers of study and patient, so
    that the database holds neither ids nor text.
    """

    def __init__(
        self,
        vectors: Float[Tensor, "rows dim"],
        owners: Owners,
        location: str = ":memory:",
        collection: str = "radweave",
    ) -> None:
        from qdrant_client import QdrantClient, models

        self.vectors = vectors
        self.owners = owners
        self._models: Any = models
        self._collection = collection
        self._client: Any = QdrantClient(location=location)
        # In this process it searches exactly anyway.
        self._exact: Any = None if location == ":memory:" else models.SearchParams(exact=True)
        if self._client.collection_exists(collection):
            self._client.delete_collection(collection)
        parameters = models.VectorParams(size=vectors.shape[1], distance=models.Distance.DOT)
        self._client.create_collection(collection, vectors_config=parameters)
        for start in range(0, len(vectors), UPLOAD_ROWS):
            self._client.upsert(collection, points=self._points(start))

    def _points(self, start: int) -> list[Any]:
        rows = range(start, min(start + UPLOAD_ROWS, len(self.vectors)))
        return [
            self._models.PointStruct(
                id=row,
                vector=self.vectors[row].float().tolist(),
                payload={"study": int(self.owners.study_of_row[row]), "patient": int(self.owners.patient_of_row[row])},
            )
            for row in rows
        ]

    def search(
        self,
        queries: Float[Tensor, "batch dim"],
        k: int,
        *,
        study_ids: Sequence[str],
        patient_ids: Sequence[str],
    ) -> tuple[Float[Tensor, "batch k"], Int[Tensor, "batch k"]]:
        """As ``ExactIndex.search``."""
        count = min(len(self.owners), k + MARGIN)
        rows = torch.full((len(queries), count), -1, dtype=torch.long)
        own = self.owners.of_queries(study_ids, patient_ids)
        for number, (query, study, patient) in enumerate(zip(queries.detach().cpu().float(), *own, strict=True)):
            found = self._client.query_points(
                self._collection,
                query=query.tolist(),
                query_filter=self._neither(int(study), int(patient)),
                search_params=self._exact,
                limit=count,
            ).points
            rows[number, : len(found)] = torch.tensor([int(point.id) for point in found], dtype=torch.long)
        scores, rows = score_again(self.vectors, queries.detach().to(self.vectors.device), rows, k)
        return scores.float(), rows

    def _neither(self, study: int, patient: int) -> Any:
        match = self._models.MatchValue
        fields = (("study", study), ("patient", patient))
        return self._models.Filter(
            must_not=[self._models.FieldCondition(key=key, match=match(value=value)) for key, value in fields]
        )


class ExactIndexConfig(Config):
    """Exact search in torch, in chunks of ``chunk_rows`` rows."""

    kind: Literal["exact"] = "exact"
    chunk_rows: Count = 65_536

    def build(self, vectors: Float[Tensor, "rows dim"], owners: Owners) -> Index:
        return ExactIndex(vectors, owners, chunk_rows=self.chunk_rows)


class FaissIndexConfig(Config):
    """A FAISS index (extra ``faiss``); ``factory`` as ``faiss.index_factory`` reads it. ``Flat`` is exact."""

    kind: Literal["faiss"] = "faiss"
    factory: str = "Flat"

    def build(self, vectors: Float[Tensor, "rows dim"], owners: Owners) -> Index:
        """Build the index.

        Raises:
            InputError: if the extra is not installed, or FAISS does not know the factory string.
        """
        _need("faiss", "faiss")
        return FaissIndex(vectors, owners, self.factory)


class QdrantIndexConfig(Config):
    """A Qdrant collection (extra ``qdrant``): in this process, or on the server at ``location``."""

    kind: Literal["qdrant"] = "qdrant"
    location: str = ":memory:"
    collection: str = "radweave"

    def build(self, vectors: Float[Tensor, "rows dim"], owners: Owners) -> Index:
        """Fill the collection.

        Raises:
            InputError: if the extra is not installed.
        """
        _need("qdrant_client", "qdrant")
        return QdrantIndex(vectors, owners, self.location, self.collection)


IndexConfig = Annotated[ExactIndexConfig | FaissIndexConfig | QdrantIndexConfig, Field(discriminator="kind")]


def _need(module: str, extra: str) -> None:
    if find_spec(module) is None:
        raise InputError(f"needs the extra '{extra}': pip install 'radweave[{extra}]'", field="index.kind", got=extra)
