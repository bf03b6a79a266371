"""Label states as targets."""

from __future__ import annotations

import math

import pytest
import torch

from radweave.nn.heads import binary_loss, binary_targets

STATES = torch.tensor([[0, 1, 2, 3], [-1, -1, -1, -1]])


@pytest.mark.parametrize(
    ("uncertain", "targets", "known"),
    [
        ("positive", [0, 1, 0, 1], [True] * 4),
        ("negative", [0, 1, 0, 0], [True] * 4),
        ("ignore", [0, 1, 0, 0], [True, True, True, False]),
    ],
)
def test_states_become_targets(uncertain: str, targets: list[int], known: list[bool]) -> None:
    got, where = binary_targets(STATES, uncertain)  # type: ignore[arg-type]
    assert got[0].tolist() == targets
    assert where[0].tolist() == known
    assert not where[1].any()


def test_the_loss_is_the_mean_over_what_is_known() -> None:
    logits = torch.tensor([[0.5, -1.0, 2.0, 0.1], [9.0, 9.0, 9.0, 9.0]], requires_grad=True)
    loss = binary_loss(logits, STATES, "ignore")
    terms = [math.log1p(math.exp(0.5)), math.log1p(math.exp(1.0)), math.log1p(math.exp(2.0))]
    assert float(loss) == pytest.approx(sum(terms) / 3, rel=1e-6)
    loss.backward()  # type: ignore[no-untyped-call]
    assert (logits.grad[1] == 0).all()  # type: ignore[index]


def test_a_batch_without_labels_costs_nothing() -> None:
    logits = torch.ones(1, 4, requires_grad=True)
    assert float(binary_loss(logits, STATES[1:])) == 0.0
