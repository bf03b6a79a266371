"""InfoNCE against a plain loop."""

from __future__ import annotations

import math

import pytest
import torch

from radweave.nn.global_batch import gather_batch, symmetric_info_nce


def test_info_nce_equals_a_plain_loop() -> None:
    torch.manual_seed(0)
    left, right, tau = torch.randn(5, 3), torch.randn(5, 3), 0.2
    total = 0.0
    for i in range(5):
        own = float(torch.cosine_similarity(left[i], right[i], dim=0)) / tau
        rows = [float(torch.cosine_similarity(left[i], right[j], dim=0)) / tau for j in range(5)]
        columns = [float(torch.cosine_similarity(left[j], right[i], dim=0)) / tau for j in range(5)]
        for others in (rows, columns):
            total -= own - math.log(sum(math.exp(value) for value in others))
    assert float(symmetric_info_nce(left, right, tau)) == pytest.approx(total / 10, abs=1e-5)


def test_in_one_process_the_batch_is_the_rows_themselves() -> None:
    rows = torch.randn(3, 2)
    assert gather_batch(rows) is rows
