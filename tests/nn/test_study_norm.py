"""Normalisation over studies: every channel of every token by itself, and what tells tokens apart."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from radweave.nn.study_norm import StudyNorm, over_studies


def test_every_channel_of_every_token_is_normalised_over_studies() -> None:
    torch.manual_seed(0)
    norm = StudyNorm(3, 2, marks=0.5)
    # A large part that all studies share, a small one that differs.
    tokens = 9 * torch.randn(3, 2) + 0.1 * torch.randn(40, 3, 2)
    out = norm(tokens).detach()
    mark = norm.norm.bias.detach().view(3, 2)
    for token in range(3):
        for channel in range(2):
            values = tokens[:, token, channel].tolist()
            mean = sum(values) / 40
            spread = (sum((value - mean) ** 2 for value in values) / 40 + 1e-5) ** 0.5
            for study, value in enumerate(values):
                wanted = (value - mean) / spread + float(mark[token, channel])
                assert float(out[study, token, channel]) == pytest.approx(wanted, abs=1e-3)
    assert float(mark.square().mean()) > 0.01
    assert float(StudyNorm(3, 2).norm.bias.detach().abs().sum()) == 0


def test_one_study_is_normalised_by_the_running_statistics() -> None:
    torch.manual_seed(0)
    norm = StudyNorm(3, 2)
    norm(torch.randn(40, 3, 2) + 2)
    running = norm.norm.running_mean
    assert running is not None
    before, alone = running.clone(), torch.randn(1, 3, 2)
    out = norm(alone)
    assert torch.equal(running, before)
    torch.testing.assert_close(out, norm.eval()(alone))


def test_nothing_is_normalised_unless_asked_for() -> None:
    assert isinstance(over_studies("none", 3, 2), nn.Identity)
    assert isinstance(over_studies("studies", 0, 2), nn.Identity)
    assert isinstance(over_studies("studies", 3, 2), StudyNorm)
