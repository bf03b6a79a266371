"""Retrieval indices against a plain loop; none returns the query's own study or patient."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from radweave.core.errors import InputError
from radweave.methods import resolve
from radweave.nn.memory.backends import (
    ExactIndexConfig,
    FaissIndex,
    FaissIndexConfig,
    IndexConfig,
    recall,
    stated_recall,
)
from radweave.nn.memory.bank import Bank, Owners, patient_code, save_bank
from radweave.nn.memory.index import ExactIndex, Index, _largest


def make_index(vectors: torch.Tensor, *, chunk_rows: int = 65_536) -> ExactIndex:
    """Row i is of study ``s{i}``; two rows in a row share a patient."""
    numbers = range(len(vectors))
    codes = [patient_code(f"p{number // 2}") for number in numbers]
    return ExactIndex(vectors, Owners([f"s{number}" for number in numbers], codes), chunk_rows=chunk_rows)


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 90), k=st.integers(1, 7), chunk=st.integers(1, 100), seed=st.integers(0, 999))
def test_the_exact_index_equals_a_plain_loop(rows: int, k: int, chunk: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(rows, 5, generator=generator)
    queries = torch.randn(3, 5, generator=generator)
    index = make_index(vectors, chunk_rows=chunk)
    scores, result = index.search(queries, k, study_ids=["s0", "x", "y"], patient_ids=["p0", "p1", "z"])
    barred = [{0, 1}, {2, 3}, set()]
    for number in range(3):
        expected = sorted(
            (-float(vectors[row].double() @ queries[number].double()), row)
            for row in range(rows)
            if row not in barred[number]
        )[:k]
        assert result[number].tolist() == [row for _, row in expected] + [-1] * (k - len(expected))
        for place, (negative, _) in enumerate(expected):
            assert float(scores[number, place]) == pytest.approx(-negative, abs=1e-5)
        assert torch.isneginf(scores[number, len(expected) :]).all()


def test_a_query_has_the_same_result_alone_and_in_any_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    # Near ties: the vectors differ in the last bits only.
    vectors = torch.ones(200, 64) + 1e-6 * torch.randn(200, 64, generator=generator)
    queries = torch.randn(21, 64, generator=generator)
    index = make_index(vectors)
    ids = [f"q{number}" for number in range(21)]
    together = index.search(queries, 3, study_ids=ids, patient_ids=ids)
    for number in range(21):
        alone = index.search(queries[number : number + 1], 3, study_ids=ids[number : number + 1], patient_ids=["q"])
        assert torch.equal(alone[1][0], together[1][number])
        assert torch.equal(alone[0][0], together[0][number])


def test_equal_scores_come_in_the_order_of_the_rows() -> None:
    index = make_index(torch.ones(10, 4))
    _, rows = index.search(torch.ones(1, 4), 4, study_ids=["q"], patient_ids=["q"])
    assert rows.tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("queries", [1, 3])
def test_vectors_of_another_width_are_searched_as_their_values_are(dtype: torch.dtype, queries: int) -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(5000, 8, generator=generator).to(dtype)
    wanted = torch.randn(queries, 8, generator=generator)
    ids = [f"q{number}" for number in range(queries)]
    scores, rows = make_index(vectors).search(wanted, 5, study_ids=ids, patient_ids=ids)
    best = (wanted.double() @ vectors.double().T).topk(5)
    assert torch.equal(rows, best.indices)
    assert torch.allclose(scores.double(), best.values, atol=1e-5)


@pytest.mark.parametrize("noise", [0.0, 1e-7])
@pytest.mark.parametrize("chunk", [1000, 65_536])
def test_ties_beyond_the_margin_keep_their_order_for_any_batch_size(noise: float, chunk: int) -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.nn.functional.normalize(torch.randn(6000, 64, generator=generator), dim=1)
    copies = torch.randperm(6000, generator=generator)[:300].sort().values
    vectors[copies] = vectors[copies[0]] + noise * torch.randn(300, 64, generator=generator)
    queries = vectors[copies[:1]] + 0.01 * torch.randn(40, 64, generator=generator)
    ids = [f"s{copies[1]}", *(f"q{number}" for number in range(39))]
    index = make_index(vectors, chunk_rows=chunk)
    together = index.search(queries, 5, study_ids=ids, patient_ids=ids)[1]
    exact = (queries.double()[:, None] * vectors[copies].double()).sum(2)
    exact[0, 1] = -1.0  # its own study
    wanted = copies[exact.sort(dim=1, descending=True, stable=True).indices[:, :5]]
    assert torch.equal(together, wanted)
    for number in range(40):
        alone = index.search(queries[number : number + 1], 5, study_ids=[ids[number]], patient_ids=["q"])[1]
        assert torch.equal(alone[0], wanted[number])


ROWS, DIM = 150, 12
Build = Callable[[Tensor, list[str], list[str]], Index]


def built(config: IndexConfig) -> Build:
    return lambda vectors, study_ids, patients: config.build()(vectors, Owners(study_ids, patients))


BUILDS: list[Any] = [
    pytest.param(built(ExactIndexConfig(chunk_rows=40)), id="exact in chunks"),
    pytest.param(built(FaissIndexConfig()), id="faiss"),
]


def made_up(seed: int, near_ties: bool) -> tuple[Tensor, list[str], list[str]]:
    """Three rows in a row are of one patient, two of one study."""
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(ROWS, DIM, generator=generator)
    if near_ties:
        vectors = torch.ones(ROWS, DIM) + 1e-7 * vectors
        vectors[20:30] = vectors[20]
    return vectors, [f"s{row // 2}" for row in range(ROWS)], [patient_code(f"p{row // 3}") for row in range(ROWS)]


@pytest.mark.parametrize("near_ties", [False, True])
@pytest.mark.parametrize("build", BUILDS)
def test_rows_and_scores_are_those_of_a_plain_loop(build: Build, near_ties: bool) -> None:
    vectors, studies, patients = made_up(1, near_ties)
    # Where scores differ in the last bits only the margin saves a proposal of float32: no more rows than it holds.
    count = 33 if near_ties else ROWS
    vectors, studies, patients = vectors[:count], studies[:count], patients[:count]
    index = build(vectors, studies, patients)
    queries = torch.randn(6, DIM, generator=torch.Generator().manual_seed(2))
    own_studies = ["s0", "s3", "s10", "x", "s5", "y"]
    own_patients = ["p0", "z", "p9", "p2", "p1", "unknown"]
    scores, rows = index.search(queries, 5, study_ids=own_studies, patient_ids=own_patients)
    for number, query in enumerate(queries.double()):
        allowed = [
            (-float((vectors[row].double() * query).sum()), row)
            for row in range(len(vectors))
            if studies[row] != own_studies[number] and patients[row] != patient_code(own_patients[number])
        ]
        best = sorted(allowed)[:5]
        assert rows[number].tolist() == [row for _, row in best]
        assert scores[number].tolist() == pytest.approx([-score for score, _ in best], abs=1e-5)


@pytest.mark.parametrize("build", BUILDS)
def test_own_study_and_patient_never_come_back_even_when_they_are_nearest(build: Build) -> None:
    vectors, studies, patients = made_up(3, near_ties=False)
    # Forty rows of one patient, all nearer to the query than any other row.
    vectors[:40] = 10.0
    patients[:40] = [patient_code("mine")] * 40
    index = build(vectors, studies, patients)
    scores, rows = index.search(torch.ones(1, DIM), 100, study_ids=["s30"], patient_ids=["mine"])
    assert {studies[row] for row in rows[0].tolist()}.isdisjoint({"s30"})
    assert rows.min() >= 40
    assert len(set(rows[0].tolist())) == 100
    assert scores[0].tolist() == sorted(scores[0].tolist(), reverse=True)


@pytest.mark.parametrize("build", BUILDS)
def test_missing_neighbours_are_padded(build: Build) -> None:
    vectors, studies, patients = made_up(4, near_ties=False)
    index = build(vectors[:75], studies[:75], patients[:75])
    scores, rows = index.search(torch.ones(2, DIM), 80, study_ids=["x", "s0"], patient_ids=["y", "p0"])
    assert (rows[0] >= 0).sum() == 75
    assert (rows[1] >= 0).sum() == 72
    assert torch.isneginf(scores[rows < 0]).all()


def test_an_approximate_index_scores_what_it_finds_exactly() -> None:
    vectors, studies, patients = made_up(5, near_ties=False)
    index = FaissIndexConfig(factory="IVF4,Flat").build()(vectors, Owners(studies, patients))
    queries = torch.randn(4, DIM, generator=torch.Generator().manual_seed(6))
    scores, rows = index.search(queries, 3, study_ids=["q"] * 4, patient_ids=["q"] * 4)
    assert torch.allclose(scores, (vectors[rows] * queries[:, None]).sum(-1), atol=1e-5)
    with pytest.raises(InputError, match="factory"):
        FaissIndexConfig(factory="Nonsense").build()
    with pytest.raises(InputError, match=r"factory.*for 9 rows"):
        FaissIndexConfig(factory="IVF16,Flat").build()(vectors[:9], Owners(studies[:9], patients[:9]))


def test_barred_pairs_equal_the_barred_mask() -> None:
    _, studies, patients = made_up(7, near_ties=False)
    owners = Owners(studies[::-1], patients)
    own = owners.of_queries(["s3", "none", "s0", "s70"], ["p9", "none", "p49", "unknown"])
    query, row = owners.barred_rows(own)
    result = torch.zeros(4, ROWS, dtype=torch.bool)
    result[query, row] = True
    assert torch.equal(result, owners.barred(own, slice(None)))
    assert result.sum(1).tolist() == [5, 0, 3, 2]


def test_the_largest_of_many_are_those_of_a_sort() -> None:
    """More columns than the groups that are sorted hold, ties, and a rest that fills no group."""
    scores = torch.randn(3, 20 * 64 + 7, generator=torch.Generator().manual_seed(8))
    scores[0, 100:110], scores[1, -1], scores[2, :70] = 9.0, 50.0, float("-inf")
    for count in (1, 5, 12):
        values, places = _largest(scores, count)
        assert torch.equal(values, scores.sort(1, descending=True).values[:, :count])
        assert torch.equal(scores.gather(1, places), values)
        assert all(len(set(row)) == count for row in places.tolist())
    assert _largest(scores[:0], 5)[1].shape == (0, 5), "no queries"


def test_the_largest_that_reach_a_limit_are_those_of_a_sort() -> None:
    """Rows with more values than are wanted, with fewer, and with none but those that fill no group."""
    scores = torch.randn(4, 20 * 64 + 7, generator=torch.Generator().manual_seed(8))
    least = torch.tensor([0.0, 2.6, 9.0, 9.0])
    scores[3, -2] = 9.0
    values, places = _largest(scores, 12, least)
    for row in range(4):
        wanted = scores[row][scores[row] >= least[row]].sort(descending=True).values[:12]
        reached = values[row] >= least[row]
        assert torch.equal(values[row][reached], wanted)
        assert torch.equal(scores[row, places[row][reached]], wanted)
    assert 0 < int((scores[1] >= 2.6).sum()) < 12


def test_a_query_that_is_not_finite_finds_rows_as_others_do() -> None:
    vectors = torch.randn(8192, 8, generator=torch.Generator().manual_seed(0))
    queries = torch.stack([vectors[5], torch.full((8,), float("nan"))])
    ids = ["q0", "q1"]
    scores, rows = make_index(vectors, chunk_rows=4096).search(queries, 3, study_ids=ids, patient_ids=ids)
    assert torch.equal(rows[0], (vectors[5].double() * vectors.double()).sum(1).topk(3).indices)
    assert scores[1].isnan().all()
    assert len(set(rows[1].tolist())) == 3


def test_recall_ignores_the_row_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, studies, patients = made_up(9, near_ties=False)
    vectors = torch.nn.functional.normalize(vectors, dim=1)
    index = FaissIndexConfig(factory="IVF8,Flat").build()(vectors, Owners(studies, patients))
    monkeypatch.setattr(index, "_proposed", lambda queries, count: (queries @ vectors.T).topk(1).indices)
    assert "finds 0.0% of the 10 nearest" in stated_recall(index)


def test_an_approximate_index_states_its_recall() -> None:
    """Of one cell of eight it finds some of the exact rows, of all cells all."""
    vectors, studies, patients = made_up(9, near_ties=False)
    exact = ExactIndexConfig().build()(vectors, Owners(studies, patients))
    queries = torch.randn(20, DIM, generator=torch.Generator().manual_seed(10))
    shares = []
    for search in ("", "nprobe=8"):
        index = FaissIndexConfig(factory="IVF8,Flat", search=search).build()(vectors, Owners(studies, patients))
        shares.append(recall(index, exact, queries, 5, owners=[("s1", "p0")] * 20))
        assert ("finds 100.0%" in stated_recall(index)) == bool(search)
    assert 0 < shares[0] < 0.9
    assert shares[1] == 1.0
    with pytest.raises(InputError, match=r"index\.search"):
        FaissIndexConfig(factory="Flat", search="nonsense=3").build()


WRONG = [
    ("IDMap,Flat", "", "factory"),
    ("IDMap2,IVF1024,PQ8", "", "factory"),
    ("IVF1024,Flat", "nprobe=0", "search"),
    ("IVF1024,Flat", "nprobe=-3", "search"),
    ("OPQ16_64,IVF65536_HNSW32,PQ16", "nprobe=0", "search"),
    ("Flat,RFlat", "k_factor_rf=0", "search"),
]


@pytest.mark.parametrize(("factory", "search", "field"), WRONG)
def test_unusable_faiss_options_are_refused_before_training(factory: str, search: str, field: str) -> None:
    with pytest.raises(InputError) as caught:
        FaissIndexConfig(factory=factory, search=search).build()
    assert caught.value.field == f"index.{field}"
    assert caught.value.got == (search or factory)
    assert caught.value.expected
    assert ".cpp" not in caught.value.reason


@pytest.mark.parametrize(
    ("factory", "search"),
    [
        ("IVF65536_HNSW32,Flat", "nprobe=16"),
        ("OPQ16_64,IVF1024,PQ16x4fs", "nprobe=16"),
        ("PCA32,IVF1024,SQ8,RFlat", "k_factor_rf=4"),
        ("HNSW32_PQ8", "efSearch=128"),
        ("PQ8x10", "ht=12"),
    ],
)
def test_options_of_large_banks_are_not_refused(factory: str, search: str, capfd: pytest.CaptureFixture[str]) -> None:
    FaissIndexConfig(factory=factory, search=search).build()
    assert "WARNING" not in capfd.readouterr().err


@pytest.mark.parametrize(("factory", "search", "field"), [("IDMap,Flat", "", "factory"), *WRONG[2:4]])
def test_options_that_fail_on_the_bank_are_named(factory: str, search: str, field: str) -> None:
    vectors, studies, patients = made_up(11, near_ties=False)
    with pytest.raises(InputError, match=rf"index\.{field}"):
        FaissIndex(vectors, Owners(studies, patients), factory.replace("1024", "4"), search)


MEASURE = """
import sys
from pathlib import Path
from radweave.nn.memory.bank import load_bank
def resident(): return int(open("/proc/self/statm").read().split()[1]) * 4096
load_bank(Path(sys.argv[2]))  # what it needs is imported now
before = resident()
vectors = load_bank(Path(sys.argv[1])).tensors["vectors"]
opened = resident()
float(vectors.sum())
print(opened - before, resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_a_bank_is_mapped_and_not_read_until_it_is_searched(tmp_path: Path) -> None:
    for name, dim in (("large", 8192), ("small", 1)):
        origin = tuple({"study_id": f"s{row}", "patient": "p"} for row in range(1000))
        save_bank(Bank({"vectors": torch.ones(1000, dim)}, origin), tmp_path / name)
    command = [sys.executable, "-c", MEASURE, tmp_path / "large", tmp_path / "small"]
    opened, read = map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    size = 1000 * 8192 * 4
    assert opened < size / 4
    assert read > size / 2


def test_a_bank_with_a_vector_that_is_not_finite_is_not_written(tmp_path: Path) -> None:
    rows = tuple({"study_id": f"s{row}", "patient": "p"} for row in range(2))
    bank = Bank({"vectors": torch.tensor([[1.0], [float("nan")]])}, rows)
    with pytest.raises(InputError, match=r"not finite.*s1"):
        save_bank(bank, tmp_path / "bank")
    assert not (tmp_path / "bank").exists()


def test_a_missing_extra_is_named_when_the_model_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radweave.core.extras.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"radweave\[faiss\]"):
        FaissIndexConfig().build()


@pytest.mark.parametrize("method", ["dast", "diffrgennet"])
def test_the_configuration_of_a_method_chooses_its_index(method: str) -> None:
    overrides = ["model.retrieval.index=faiss", "model.retrieval.index.factory=HNSW8"]
    retrieval = resolve(method, "tiny", overrides).model.retrieval  # type: ignore[attr-defined]
    part = retrieval.build() if method == "dast" else retrieval.build(torch.nn.Linear(1, 1))
    vectors, studies, patients = made_up(7, near_ties=False)
    index = part.build_index(vectors, Owners(studies, patients))
    assert isinstance(index, FaissIndex)
    assert index.search(vectors[40:41], 1, study_ids=["x"], patient_ids=["x"])[1].shape == (1, 1)


def test_a_removed_index_is_refused_by_its_name() -> None:
    with pytest.raises(InputError, match=r"index=qdrant.*exact, faiss"):
        resolve("dast", "tiny", ["model.retrieval.index=qdrant"])
