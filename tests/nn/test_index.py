"""The exact index against a plain loop, and what it must never return."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radweave.nn.memory.bank import Owners, patient_code
from radweave.nn.memory.index import ExactIndex


def make_index(vectors: torch.Tensor, *, chunk_rows: int = 65_536) -> ExactIndex:
    """Row i is of study ``s{i}``; two rows in a row share a patient."""
    numbers = range(len(vectors))
    codes = [patient_code(f"p{number // 2}") for number in numbers]
    return ExactIndex(vectors, Owners([f"s{number}" for number in numbers], codes), chunk_rows=chunk_rows)


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 90), k=st.integers(1, 7), chunk=st.integers(1, 100), seed=st.integers(0, 999))
def test_it_finds_what_a_plain_loop_finds(rows: int, k: int, chunk: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(rows, 5, generator=generator)
    queries = torch.randn(3, 5, generator=generator)
    index = make_index(vectors, chunk_rows=chunk)
    scores, found = index.search(queries, k, study_ids=["s0", "x", "y"], patient_ids=["p0", "p1", "z"])
    barred = [{0, 1}, {2, 3}, set()]
    for number in range(3):
        expected = sorted(
            (-float(vectors[row].double() @ queries[number].double()), row)
            for row in range(rows)
            if row not in barred[number]
        )[:k]
        assert found[number].tolist() == [row for _, row in expected] + [-1] * (k - len(expected))
        for place, (negative, _) in enumerate(expected):
            assert float(scores[number, place]) == pytest.approx(-negative, abs=1e-5)
        assert torch.isneginf(scores[number, len(expected) :]).all()


def test_a_query_finds_the_same_alone_and_in_any_batch() -> None:
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
def test_more_ties_than_the_margin_holds_are_found_in_order_alone_and_together(noise: float, chunk: int) -> None:
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
