"""The dense head against plain loops over its formulas."""

from __future__ import annotations

import math

import torch

from radweave.nn.heads import DenseHead, DenseHeadConfig

TOKENS = torch.randn(3, 2, 4, 5, generator=torch.Generator().manual_seed(0))
VIEWS = torch.tensor([[True, True], [True, False], [True, True]])
WORDS = torch.tensor([[1, 4, 4, -100], [6, -100, -100, -100], [1, 6, 2, -100]])
STATES = torch.tensor([[1, 0], [3, 1], [-1, -1]])


def head_of(**changes: object) -> DenseHead:
    torch.manual_seed(1)
    head = DenseHeadConfig.model_validate({"num_words": 3, "dropout": 0.0, **changes}).build(5, 7, 2)
    head.learn_targets([[1, 4, 2], [6, 2], [1, 6, 2], [2]], torch.tensor([[1, 0], [0, 1], [0, 0], [0, 0]]))
    return head


def pooled(row: int) -> torch.Tensor:
    views = [view for view, there in zip(TOKENS[row], VIEWS[row], strict=True) if there]
    return torch.stack([torch.cat([view.mean(0), view.max(0).values]) for view in views]).mean(0)


def test_the_words_that_tell_most_studies_apart_are_targets() -> None:
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
        said = [float(word in WORDS[row].tolist()) for word in head.word_ids.tolist()]
        words += terms(head.words(pooled(row)), said, head.word_weight)
        if row < 2:  # the third study has no labels; an uncertain finding is not there
            classes += terms(head.classes(pooled(row)), [float(state == 1) for state in STATES[row]], head.class_weight)
    expected = sum(classes) / len(classes) + 0.5 * sum(words) / len(words)
    found = head.loss(TOKENS, VIEWS, WORDS, STATES)
    torch.testing.assert_close(float(found.detach()), expected, atol=1e-5, rtol=0)
    without = head.loss(TOKENS, VIEWS, WORDS)
    torch.testing.assert_close(float(without.detach()), 0.5 * sum(words) / len(words), atol=1e-5, rtol=0)


def terms(logits: torch.Tensor, said: list[float], weights: torch.Tensor) -> list[float]:
    found = []
    for logit, target, weight in zip(logits.tolist(), said, weights.tolist(), strict=True):
        chance = 1 / (1 + math.exp(-logit))
        found.append(-weight * target * math.log(chance) - (1 - target) * math.log(1 - chance))
    return found


def test_the_weight_is_taken_off_the_logits_unless_one_asks_for_them_as_they_are() -> None:
    corrected, plain = head_of(), head_of(corrected=False)
    difference = plain.class_logits(TOKENS, VIEWS) - corrected.class_logits(TOKENS, VIEWS)
    torch.testing.assert_close(difference, corrected.class_weight.log().expand(3, 2))
    assert head_of(weighted=False).class_weight.tolist() == [1.0, 1.0]
