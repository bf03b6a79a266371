"""The word head against a plain loop over its formula."""

from __future__ import annotations

import torch

from radweave.nn.heads import LinearWordHeadConfig, NoWordHeadConfig


def test_the_loss_is_the_binary_cross_entropy_of_the_words_in_the_report() -> None:
    torch.manual_seed(0)
    head = LinearWordHeadConfig().build(5, 7)
    tokens = torch.randn(2, 2, 3, 5)
    view_mask = torch.tensor([[True, True], [True, False]])
    labels = torch.tensor([[1, 4, 4, 2], [6, -100, -100, -100]])
    total = 0.0
    for row, words in enumerate([{1, 2, 4}, {6}]):
        pooled = tokens[row, view_mask[row]].mean((0, 1))
        for word, logit in enumerate(head.linear(head.norm(pooled))):
            probability = logit.sigmoid()
            total -= float((probability if word in words else 1 - probability).log().detach())
    # float32 sums of fourteen terms in another order
    torch.testing.assert_close(float(head.loss(tokens, view_mask, labels).detach()), total / 2, atol=1e-5, rtol=0)


def test_no_head_has_no_weights_and_no_loss() -> None:
    head = NoWordHeadConfig().build(5, 7)
    assert not list(head.parameters())
    assert float(head.loss(torch.randn(1, 1, 3, 5), torch.ones(1, 1, dtype=torch.bool), torch.tensor([[1]]))) == 0.0
