"""Exact search over a memory-mapped bank beside FAISS's flat index, and what approximate indices find of it.

    OMP_NUM_THREADS=1 python bench/bench_search.py [ROWS]

CPU time of this process for 1, 16 and 256 queries, the least of three rounds, in one run: ours as methods call it
(candidates, own study and patient barred, scored again), torch's product with topk alone, and FAISS's flat index alone.
Recall is the share of the exact 10 rows, of 30,000 rows in 64 clusters.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import faiss
import torch

from radweave.memory.backends import FaissIndex, recall
from radweave.memory.bank import Bank, Owners, load_bank, save_bank
from radweave.memory.index import ExactIndex

ROWS, DIM, K, FEW = 270_000, 512, 10, 30_000


def cpu_ms(work: Callable[[], object]) -> float:
    times = []
    for _ in range(3):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times) * 1000


def bank_in(folder: Path, rows: int) -> Bank:
    vectors = torch.randn(rows, DIM, generator=torch.Generator().manual_seed(0))
    names = tuple({"study_id": f"s{row}", "patient": f"p{row // 2}"} for row in range(rows))
    save_bank(Bank({"vectors": vectors}, names), folder / "bank")
    return load_bank(folder / "bank")


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    with tempfile.TemporaryDirectory() as name:
        bank = bank_in(Path(name), rows)
        vectors = bank.tensors["vectors"]
        index = ExactIndex(vectors, bank.owners())
        flat = faiss.IndexFlatIP(DIM)
        flat.add(vectors.numpy())
        for number in (1, 16, 256):
            queries = torch.randn(number, DIM, generator=torch.Generator().manual_seed(number))
            own = {"study_ids": ["s7"] * number, "patient_ids": ["p1"] * number}
            ours = cpu_ms(lambda queries=queries, own=own: index.search(queries, K, **own))
            plain = cpu_ms(lambda queries=queries: (queries @ vectors.T).topk(K))
            theirs = cpu_ms(lambda queries=queries: flat.search(queries.numpy(), K))
            print(f"{rows} x {DIM}, {number} queries: {ours:.0f} ms, torch {plain:.0f} ms, FAISS flat {theirs:.0f} ms")
        del flat
    generator = torch.Generator().manual_seed(1)
    centres = torch.randn(64, DIM, generator=generator)
    clustered = centres[torch.arange(FEW) % 64] + torch.randn(FEW, DIM, generator=generator)
    queries = centres + torch.randn(64, DIM, generator=generator)
    owners = Owners([f"s{row}" for row in range(FEW)], [f"p{row}" for row in range(FEW)])
    exact = ExactIndex(clustered, owners)
    for factory, search in (
        ("IVF256,Flat", ""),
        ("IVF256,Flat", "nprobe=16"),
        ("HNSW16", ""),
        ("HNSW16", "efSearch=256"),
    ):
        found = recall(FaissIndex(clustered, owners, factory, search), exact, queries, K, owners=[("x", "y")] * 64)
        print(f"{factory} {search or 'as FAISS sets it'}: recall {found:.3f} of the exact {K} of {FEW}")


if __name__ == "__main__":
    main()
