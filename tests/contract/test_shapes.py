"""Shapes in annotations are checked while tests run (``addopts`` in pyproject.toml)."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import TypeCheckError

from radweave.methods.dast.fusion import masked_mean
from radweave.nn.connector import LinearConnectorConfig, ViewTokens


def test_a_wrong_shape_in_a_network_is_found() -> None:
    connector = LinearConnectorConfig().build(4, 6)
    connector(torch.zeros(2, 3, 4), torch.zeros(2, dtype=torch.long))
    with pytest.raises(TypeCheckError, match="view_ids"):
        connector(torch.zeros(2, 3, 4), torch.zeros(3, dtype=torch.long))


def test_a_wrong_shape_in_a_method_is_found() -> None:
    """Without the check this one computes a number: a mask of one column is spread over all patches."""
    patches = torch.randn(2, 5, 4)
    with pytest.raises(TypeCheckError, match="mask"):
        masked_mean(patches, torch.ones(2, 1, dtype=torch.bool))


def test_a_wrong_shape_in_a_record_is_found() -> None:
    with pytest.raises(TypeCheckError, match="view_mask"):
        ViewTokens(torch.zeros(2, 1, 3, 4), torch.ones(1, 1, dtype=torch.bool), torch.zeros(2, 1).long(), (3,))
