"""Options of decoding do what they say."""

from __future__ import annotations

import pytest
import torch

from radweave.nn.decoding import DecodingConfig
from radweave.nn.language_model import LlamaConfig


@pytest.mark.parametrize("seed", [0, 1])
def test_a_positive_length_penalty_favours_long_reports(seed: int) -> None:
    """Scores of beams are sums of negative log-probabilities over the length to the power of the penalty."""
    torch.manual_seed(seed)
    model = (
        LlamaConfig(hidden_size=16, num_layers=1, num_heads=2).build(vocab_size=6, bos_id=1, eos_id=2, pad_id=0).eval()
    )
    prefix, mask = torch.randn(4, 3, 16), torch.ones(4, 3, dtype=torch.bool)

    def lengths(penalty: float) -> list[int]:
        ids, _ = model.generate(prefix, mask, DecodingConfig(num_beams=4, max_new_tokens=12, length_penalty=penalty))
        return [len(row) for row in ids]

    short, long = lengths(-5.0), lengths(5.0)
    assert all(a <= b for a, b in zip(short, long, strict=True))
    assert sum(short) < sum(long)
