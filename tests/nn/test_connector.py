"""The connector against its formula."""

from __future__ import annotations

import pytest
import torch

from radweave.nn.connector import LinearConnectorConfig, MlpConnectorConfig


@pytest.mark.parametrize("config", [LinearConnectorConfig(), MlpConnectorConfig(expansion=2.0)])
def test_it_projects_adds_the_view_and_normalises(config: LinearConnectorConfig | MlpConnectorConfig) -> None:
    torch.manual_seed(0)
    connector = config.build(5, 8)
    tokens = torch.randn(2, 3, 4, 5)
    view_ids = torch.tensor([[1, 2, 0], [1, 1, 0]])
    out = connector(tokens, view_ids)
    for row in range(2):
        for view in range(3):
            raw = connector.projection(tokens[row, view]) + connector.view_embedding.weight[view_ids[row, view]]
            expected = (raw - raw.mean(-1, keepdim=True)) / (raw.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
            torch.testing.assert_close(out[row, view], expected, atol=1e-5, rtol=0)


def test_the_mlp_has_the_width_it_was_given() -> None:
    connector = MlpConnectorConfig(expansion=2.0).build(5, 8)
    assert [tuple(p.shape) for p in connector.projection.parameters()] == [(16, 5), (16,), (8, 16), (8,)]
