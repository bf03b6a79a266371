"""Heads: targets of label states, and the dense and word heads against plain loops."""

from __future__ import annotations

import math

import pytest
import torch

from radweave.nn.heads import (
    DenseHead,
    DenseHeadConfig,
    LinearWordHeadConfig,
    NoWordHeadConfig,
    binary_loss,
    binary_targets,
)

STATES = torch.tensor([[0, 1, 2, 3], [-1, -1, -1, -1]])


@pytest.mark.parametrize(
    ("uncertain", "targets", "known"),
    [
        ("positive", [0, 1, 0, 1], [True] * 4),
        ("negative", [0, 1, 0, 0], [True] * 4),
        ("ignore", [0, 1, 0, 0], [True, True, True, False]),
    ],
)
def test_states_become_targets(uncertain: str, targets: list[int], known: list[bool]) -> None:
    got, where = binary_targets(STATES, uncertain)  # type: ignore[arg-type]
    assert got[0].tolist() == targets
    assert where[0].tolist() == known
    assert not where[1].any()


def test_the_loss_is_the_mean_over_known_labels() -> None:
    logits = torch.tensor([[0.5, -1.0, 2.0, 0.1], [9.0, 9.0, 9.0, 9.0]], requires_grad=True)
    loss = binary_loss(logits, STATES, "ignore")
    terms = [math.log1p(math.exp(0.5)), math.log1p(math.exp(1.0)), math.log1p(math.exp(2.0))]
    assert float(loss) == pytest.approx(sum(terms) / 3, rel=1e-6)
    loss.backward()  # type: ignore[no-untyped-call]
    assert (logits.grad[1] == 0).all()  # type: ignore[index]


def test_a_batch_without_labels_costs_nothing() -> None:
    logits = torch.ones(1, 4, requires_grad=True)
    assert float(binary_loss(logits, STATES[1:])) == 0.0


TOKENS = torch.randn(3, 2, 4, 5, generator=torch.Generator().manual_seed(0))
VIEWS = torch.tensor([[True, True], [True, False], [True, True]])
WORDS = torch.tensor([[1, 4, 4, -100], [6, -100, -100, -100], [1, 6, 2, -100]])
TWO_STATES = torch.tensor([[1, 0], [3, 1], [-1, -1]])


def head_of(**changes: object) -> DenseHead:
    torch.manual_seed(1)
    head = DenseHeadConfig.model_validate({"num_words": 3, "dropout": 0.0, **changes}).build(5, 7, 2)
    head.learn_targets([[1, 4, 2], [6, 2], [1, 6, 2], [2]], torch.tensor([[1, 0], [0, 1], [0, 0], [0, 0]]))
    return head


def pooled(row: int) -> torch.Tensor:
    views = [view for view, present in zip(TOKENS[row], VIEWS[row], strict=True) if present]
    return torch.stack([torch.cat([view.mean(0), view.max(0).values]) for view in views]).mean(0)


def test_words_near_half_of_the_studies_are_targets() -> None:
    # Word 2 is in every report and tells nothing; words 1 and 6 are in half of them, word 4 in a quarter.
    assert head_of().word_ids.tolist() == [1, 4, 6]


def test_a_target_weighs_the_root_of_its_odds_within_bounds() -> None:
    head = head_of()
    torch.testing.assert_close(head.class_weight, torch.tensor([3.0, 3.0]).sqrt())
    torch.testing.assert_close(head.word_weight, torch.tensor([1.0, 3.0**0.5, 1.0]))
    head.learn_targets([[1]] * 1000, torch.tensor([[1, 0]] * 1000))
    assert head.class_weight.tolist() == [torch.tensor(0.2).item(), 8.0]


def test_the_loss_is_the_weighted_cross_entropy_of_classes_and_words() -> None:
    head, classes, words = head_of(words=0.5), [], []
    for row in range(3):
        word_targets = [float(word in WORDS[row].tolist()) for word in head.word_ids.tolist()]
        words += terms(head.words(pooled(row)), word_targets, head.word_weight)
        if row < 2:  # the third study has no labels; an uncertain finding is not there
            classes += terms(
                head.classes(pooled(row)), [float(state == 1) for state in TWO_STATES[row]], head.class_weight
            )
    expected = sum(classes) / len(classes) + 0.5 * sum(words) / len(words)
    result = head.loss(TOKENS, VIEWS, WORDS, TWO_STATES)
    torch.testing.assert_close(float(result.detach()), expected, atol=1e-5, rtol=0)
    without = head.loss(TOKENS, VIEWS, WORDS)
    torch.testing.assert_close(float(without.detach()), 0.5 * sum(words) / len(words), atol=1e-5, rtol=0)


def terms(logits: torch.Tensor, word_targets: list[float], weights: torch.Tensor) -> list[float]:
    result = []
    for logit, target, weight in zip(logits.tolist(), word_targets, weights.tolist(), strict=True):
        chance = 1 / (1 + math.exp(-logit))
        result.append(-weight * target * math.log(chance) - (1 - target) * math.log(1 - chance))
    return result


def test_logits_are_corrected_for_class_weights_by_default() -> None:
    corrected, plain = head_of(), head_of(corrected=False)
    difference = plain.class_logits(TOKENS, VIEWS) - corrected.class_logits(TOKENS, VIEWS)
    torch.testing.assert_close(difference, corrected.class_weight.log().expand(3, 2))
    assert head_of(weighted=False).class_weight.tolist() == [1.0, 1.0]


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
