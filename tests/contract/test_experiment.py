"""How the parts of a model start."""

from __future__ import annotations

from typing import Any

import torch

from radweave.contract.experiment import BuildContext


def test_a_part_starts_by_the_seed_and_its_name_alone() -> None:
    def start(seed: int, name: str) -> tuple[float, ...]:
        words: Any = None  # no part here asks for the tokenizer
        return tuple(BuildContext(words, 32, seed=seed).part(name, lambda: torch.rand(4)).tolist())

    first = start(0, "connector")
    assert len({first, start(1, "connector"), start(0, "language_model"), start(1, "language_model")}) == 4
    torch.manual_seed(7)
    expected = torch.rand(2)
    torch.manual_seed(7)
    assert start(0, "connector") == first
    assert torch.equal(torch.rand(2), expected), "who builds a part keeps the random numbers that come next"
