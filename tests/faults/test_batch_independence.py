"""A report must not hang on who is written beside it, whatever options it is written with."""

from __future__ import annotations

import pytest
import torch

from radweave.nn.decoding import DecodingConfig
from radweave.nn.language_model import CausalLanguageModel, LlamaConfig

OPTIONS = {
    # Transformers' option spares as many words of a report as its prompt was padded by: none of a study alone.
    "penalty": {"repetition_penalty": 3.0},
    "penalty, beams": {"repetition_penalty": 3.0, "num_beams": 2},
    # Torch draws for all rows of a batch at once.
    "drawn": {"do_sample": True, "seed": 5},
}


@pytest.mark.parametrize("cache", ["static", "growing"])
@pytest.mark.parametrize("name", OPTIONS)
def test_a_report_does_not_depend_on_longer_prompts_in_the_batch(name: str, cache: str) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=16, num_layers=1, num_heads=2, embedding_std=0.1)
    writer: CausalLanguageModel = config.build(vocab_size=12, bos_id=1, eos_id=2, pad_id=0).eval()
    prefix, mask = torch.randn(2, 12, 16), torch.ones(2, 12, dtype=torch.bool)
    mask[1, :9] = False
    decoding = DecodingConfig.model_validate(
        {"max_new_tokens": 10, "min_new_tokens": 8, "cache": cache, **OPTIONS[name]}
    )
    together, _ = writer.generate(prefix, mask, decoding)
    alone, _ = writer.generate(prefix[1:, 9:], mask[1:, 9:], decoding)
    assert together[1] == alone[0]
    assert len(set(alone[0])) > 2
