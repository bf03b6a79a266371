"""Disease tokens against a plain loop over classes, heads and patches."""

from __future__ import annotations

import math

import torch

from radweave.nn.query_transformer import DiseaseTokens


def test_disease_tokens_equal_a_plain_loop() -> None:
    torch.manual_seed(0)
    layer = DiseaseTokens(num_classes=3, dim=8, num_heads=2, dropout=0.5).double().eval()
    patches = torch.randn(2, 5, 8).double()
    mask = torch.tensor([[True] * 5, [True, True, False, True, False]])
    reading = layer(patches, mask)
    attention = layer.attention
    keys, values = attention.key(patches), attention.value(patches)
    for study in range(2):
        for number in range(3):
            query = attention.query(layer.tokens[number])
            read, seen = [], [0.0] * 5
            for head in (slice(0, 4), slice(4, 8)):
                weights = [
                    math.exp(float(query[head] @ keys[study, patch, head]) / math.sqrt(4))
                    if mask[study, patch]
                    else 0.0
                    for patch in range(5)
                ]
                shares = [weight / sum(weights) for weight in weights]
                read.append(sum(share * values[study, patch, head] for patch, share in enumerate(shares)))
                seen = [old + share / 2 for old, share in zip(seen, shares, strict=True)]
            summed = layer.tokens[number] + attention.out(torch.cat(read))
            variance = ((summed - summed.mean()) ** 2).mean()
            token = (summed - summed.mean()) / torch.sqrt(variance + layer.norm.eps)  # the norm starts as the identity
            logit = sum(float(layer.head_weight[number, d] * token[d]) for d in range(8)) + float(
                layer.head_bias[number]
            )
            # Float64 throughout: only the order of additions differs.
            assert torch.allclose(reading.tokens[study, number], token, atol=1e-10)
            assert abs(float(reading.logits[study, number]) - logit) < 1e-10
            assert torch.allclose(reading.attention[study, number], torch.tensor(seen).double(), atol=1e-7)


def test_a_head_reads_its_own_token_only() -> None:
    torch.manual_seed(0)
    layer = DiseaseTokens(num_classes=4, dim=8, num_heads=2, dropout=0.0)
    reading = layer(torch.randn(1, 6, 8), torch.ones(1, 6, dtype=torch.bool))
    (gradient,) = torch.autograd.grad(reading.logits[0, 2], reading.tokens)
    assert gradient[0, 2].abs().sum() > 0
    assert gradient[0, [0, 1, 3]].abs().sum() == 0
