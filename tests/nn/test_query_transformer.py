"""Cross-attention of learned queries and disease tokens against plain loops."""

from __future__ import annotations

import math

import torch

from radweave.nn.query_transformer import CrossAttention, DiseaseTokens, QueryTransformer


def test_cross_attention_equals_a_plain_loop() -> None:
    torch.manual_seed(0)
    layer = CrossAttention(8, 6, 2).double()
    queries, source = torch.randn(2, 3, 8).double(), torch.randn(2, 5, 6).double()
    mask = torch.tensor([[True] * 5, [True, True, False, True, False]])
    out, weights = layer(queries, source, mask)
    q, k, v = layer.query(queries), layer.key(source), layer.value(source)
    for b in range(2):
        for i in range(3):
            read, observed = [], torch.zeros(5, dtype=torch.float64)
            for head in (slice(0, 4), slice(4, 8)):
                scores = [math.exp(float(q[b, i, head] @ k[b, j, head]) / 2.0) if mask[b, j] else 0.0 for j in range(5)]
                shares = [score / sum(scores) for score in scores]
                read.append(sum(share * v[b, j, head] for j, share in enumerate(shares)))
                observed += torch.tensor(shares, dtype=torch.float64) / 2
            assert torch.allclose(out[b, i], layer.out(torch.cat(read)), atol=1e-12)
            assert torch.allclose(weights[b, i], observed, atol=1e-12)


def test_reading_without_the_weights_gives_the_same() -> None:
    torch.manual_seed(0)
    layer = CrossAttention(8, 6, 2, dropout=0.5).double()
    queries, source = torch.randn(2, 3, 8).double(), torch.randn(2, 5, 6).double()
    mask = torch.tensor([[True] * 5, [True, True, False, True, False]])
    for training, present in ((False, mask), (False, None), (True, mask)):
        layer.train(training)
        result = []
        for read in (layer.read, lambda *inputs: layer(*inputs)[0]):
            torch.manual_seed(1)
            out = read(queries, source, present)
            result.append([out, *torch.autograd.grad(out.square().sum(), layer.parameters())])
        for own, written_out in zip(*result, strict=True):
            torch.testing.assert_close(own, written_out, rtol=0, atol=1e-12)


def test_absent_tokens_and_batch_mates_change_nothing() -> None:
    torch.manual_seed(0)
    model = QueryTransformer(4, 8, 6, num_layers=2, num_heads=2).eval()
    source = torch.randn(3, 5, 6)
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[1, 3:] = False
    together = model(source, mask)
    assert together.tokens.shape == (3, 4, 8)
    assert torch.allclose(together.attention.sum(-1), torch.ones(3, 4), atol=1e-6)
    assert (together.attention[1, :, 3:] == 0).all()
    alone = model(source[1:2, :3])
    assert torch.allclose(alone.tokens[0], together.tokens[1], atol=1e-6)


def test_without_self_attention_queries_do_not_see_each_other() -> None:
    torch.manual_seed(0)
    source = torch.randn(1, 5, 6)
    for self_attention in (False, True):
        model = QueryTransformer(3, 8, 6, num_heads=2, self_attention=self_attention).eval()
        before = model(source).tokens
        with torch.no_grad():
            model.queries[2] += 1.0
        changed = not torch.equal(before[0, 0], model(source).tokens[0, 0])
        assert changed == self_attention


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
            read, observed = [], [0.0] * 5
            for head in (slice(0, 4), slice(4, 8)):
                weights = [
                    math.exp(float(query[head] @ keys[study, patch, head]) / math.sqrt(4))
                    if mask[study, patch]
                    else 0.0
                    for patch in range(5)
                ]
                shares = [weight / sum(weights) for weight in weights]
                read.append(sum(share * values[study, patch, head] for patch, share in enumerate(shares)))
                observed = [old + share / 2 for old, share in zip(observed, shares, strict=True)]
            summed = layer.tokens[number] + attention.out(torch.cat(read))
            variance = ((summed - summed.mean()) ** 2).mean()
            token = (summed - summed.mean()) / torch.sqrt(variance + layer.norm.eps)  # the norm starts as the identity
            logit = sum(float(layer.head_weight[number, d] * token[d]) for d in range(8)) + float(
                layer.head_bias[number]
            )
            # Float64 throughout: only the order of additions differs.
            assert torch.allclose(reading.tokens[study, number], token, atol=1e-10)
            assert abs(float(reading.logits[study, number]) - logit) < 1e-10
            assert torch.allclose(reading.attention[study, number], torch.tensor(observed).double(), atol=1e-7)


def test_a_head_reads_its_own_token_only() -> None:
    torch.manual_seed(0)
    layer = DiseaseTokens(num_classes=4, dim=8, num_heads=2, dropout=0.0)
    reading = layer(torch.randn(1, 6, 8), torch.ones(1, 6, dtype=torch.bool))
    (gradient,) = torch.autograd.grad(reading.logits[0, 2], reading.tokens)
    assert gradient[0, 2].abs().sum() > 0
    assert gradient[0, [0, 1, 3]].abs().sum() == 0
