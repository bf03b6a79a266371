"""The connector against its formula."""

from __future__ import annotations

import pytest
import torch

from radweave.nn.connector import ConnectorConfig, LinearConnectorConfig, MlpConnectorConfig, TokenNorm


@pytest.mark.parametrize("config", [LinearConnectorConfig(), MlpConnectorConfig(expansion=2.0)])
def test_it_projects_adds_the_view_and_normalises(config: ConnectorConfig) -> None:
    torch.manual_seed(0)
    connector = config.build(5, 8)
    tokens = torch.randn(3, 4, 5)
    view_ids = torch.tensor([1, 2, 0])
    out = connector(tokens, view_ids)
    for view in range(3):
        raw = connector.projection(tokens[view]) + connector.view_embedding.weight[view_ids[view]]
        expected = (raw - raw.mean(-1, keepdim=True)) / (raw.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
        torch.testing.assert_close(out[view], expected, atol=1e-5, rtol=0)


def test_the_mlp_has_the_configured_width() -> None:
    connector = MlpConnectorConfig(expansion=2.0).build(5, 8)
    assert [tuple(p.shape) for p in connector.projection.parameters()] == [(16, 5), (16,), (8, 16), (8,)]


def test_token_norm_removes_the_common_mean() -> None:
    torch.manual_seed(0)
    shared = 10 * torch.randn(6)
    tokens = shared + torch.randn(16, 9, 6)
    norm = TokenNorm(6)
    out = norm(tokens)
    torch.testing.assert_close(out.mean((0, 1)), torch.zeros(6), atol=1e-5, rtol=0)
    pooled = torch.nn.functional.normalize(out.mean(1), dim=-1)
    before = torch.nn.functional.normalize(tokens.mean(1), dim=-1)
    assert (before @ before.T).mean() > 0.9
    assert (pooled @ pooled.T).mean() < 0.2
    # In use it takes what it has learned: an image does not depend on its batch mates.
    norm.eval()
    torch.testing.assert_close(norm(tokens[:1]), norm(tokens)[:1], atol=0, rtol=0)
