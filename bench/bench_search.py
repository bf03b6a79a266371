"""Exact search over a memory-mapped bank beside FAISS's flat index, and what approximate indices find of it.

    OMP_NUM_THREADS=1 python bench/bench_search.py [ROWS ...] [--alone ROWS ...]

CPU time of this process for 1, 16 and 256 queries, the median of seven rounds that take turns, in one run: ours as
methods call it (candidates, own study and patient barred, scored again), torch's product with topk alone, and FAISS's
flat index alone, once by BLAS and once by its own loops; the ratio is to the faster of the two. A million rows take
2 GB of disk, and as much memory for FAISS. Recall is the share of the exact 10 rows, of 30,000 rows in 64 clusters,
with the CPU time of the 64 queries. With ``--alone`` the vectors have 16 bits, a gigabyte for a million rows, and only
ours runs, where FAISS would not fit beside it; its first search reads the file.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import faiss
import torch

from radweave.nn.memory.backends import FaissIndex, recall
from radweave.nn.memory.bank import Bank, Owners, load_bank, save_bank
from radweave.nn.memory.index import ExactIndex

ROWS, DIM, K, FEW = 270_000, 512, 10, 30_000
ROUNDS = 7
BLAS = 1, 1 << 30
"""Queries from which FAISS multiplies matrices by BLAS: always, and never."""


def cpu_ms(**ways: Callable[[], object]) -> dict[str, float]:
    """Milliseconds of each way, the median of the rounds."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, work in ways.items():
            start = time.process_time()
            work()
            times[name].append(time.process_time() - start)
    return {name: median(taken) * 1000 for name, taken in times.items()}


def bank_in(folder: Path, rows: int) -> Bank:
    vectors = torch.randn(rows, DIM, generator=torch.Generator().manual_seed(0))
    names = tuple({"study_id": f"s{row}", "patient": f"p{row // 2}"} for row in range(rows))
    save_bank(Bank({"vectors": vectors}, names), folder / "bank")
    return load_bank(folder / "bank")


def flat_beside_exact(rows: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        bank = bank_in(Path(name), rows)
        vectors = bank.tensors["vectors"]
        index = ExactIndex(vectors, bank.owners())
        flat = faiss.IndexFlatIP(DIM)
        for start in range(0, rows, FEW):
            flat.add(vectors[start : start + FEW].numpy())

        def by_faiss(queries: torch.Tensor, blas_from: int) -> object:
            faiss.cvar.distance_compute_blas_threshold = blas_from
            return flat.search(queries.numpy(), K)

        for number in (1, 16, 256):
            queries = torch.randn(number, DIM, generator=torch.Generator().manual_seed(number))
            own = {"study_ids": ["s7"] * number, "patient_ids": ["p1"] * number}
            taken = cpu_ms(
                exact=lambda queries=queries, own=own: index.search(queries, K, **own),
                torch=lambda queries=queries: (queries @ vectors.T).topk(K),
                faiss_blas=lambda queries=queries: by_faiss(queries, BLAS[0]),
                faiss_loops=lambda queries=queries: by_faiss(queries, BLAS[1]),
            )
            said = ", ".join(f"{way} {ms:.0f} ms" for way, ms in taken.items())
            ratio = taken["exact"] / min(taken["faiss_blas"], taken["faiss_loops"])
            print(f"{rows} x {DIM}, {number} queries: {said}, exact / faiss {ratio:.2f}", flush=True)


def exact_alone(rows: int) -> None:
    """Ours over a mapped file of 16-bit vectors: seconds of the clock too, since the disk may be what it waits for."""
    with tempfile.TemporaryDirectory() as name:
        path, generator = Path(name) / "vectors", torch.Generator().manual_seed(0)
        vectors = torch.from_file(str(path), shared=True, size=rows * DIM, dtype=torch.float16).view(rows, DIM)
        for start in range(0, rows, FEW):
            some = vectors[start : start + FEW]
            some.copy_(torch.randn(some.shape, generator=generator))
        index = ExactIndex(vectors, Owners([f"s{row}" for row in range(rows)], [f"p{row // 2}" for row in range(rows)]))
        for number in (1, 32, 256):
            queries = torch.randn(number, DIM, generator=torch.Generator().manual_seed(number))
            own = {"study_ids": ["s7"] * number, "patient_ids": ["p1"] * number}
            began = time.perf_counter()
            taken = cpu_ms(exact=lambda queries=queries, own=own: index.search(queries, K, **own))["exact"]
            clock = (time.perf_counter() - began) / ROUNDS
            print(
                f"{rows} x {DIM} of 16 bits, {number} queries: {taken:.0f} ms, {clock:.1f} s of the clock", flush=True
            )


def approximate_beside_exact() -> None:
    generator = torch.Generator().manual_seed(1)
    centres = torch.randn(64, DIM, generator=generator)
    clustered = centres[torch.arange(FEW) % 64] + torch.randn(FEW, DIM, generator=generator)
    queries = centres + torch.randn(64, DIM, generator=generator)
    owners = Owners([f"s{row}" for row in range(FEW)], [f"p{row}" for row in range(FEW)])
    exact = ExactIndex(clustered, owners)
    own = {"study_ids": ["x"] * 64, "patient_ids": ["y"] * 64}
    for factory, search in (
        ("IVF256,Flat", ""),
        ("IVF256,Flat", "nprobe=16"),
        ("HNSW16", ""),
        ("HNSW16", "efSearch=256"),
    ):
        index = FaissIndex(clustered, owners, factory, search)
        found = recall(index, exact, queries, K, owners=[("x", "y")] * 64)
        taken = cpu_ms(
            exact=lambda: exact.search(queries, K, **own),
            approximate=lambda index=index: index.search(queries, K, **own),
        )
        said = f"{taken['approximate']:.0f} ms where exact takes {taken['exact']:.0f}"
        print(
            f"{factory} {search or 'as FAISS sets it'}: recall {found:.3f} of the exact {K} of {FEW}, {said}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=int, nargs="*", metavar="ROWS")
    parser.add_argument("--alone", type=int, nargs="+", default=[], metavar="ROWS")
    given = parser.parse_args()
    for rows in given.rows or ([] if given.alone else [ROWS]):
        flat_beside_exact(rows)
    for rows in given.alone:
        exact_alone(rows)
    approximate_beside_exact()


if __name__ == "__main__":
    main()
