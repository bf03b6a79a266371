"""The context of text that a small language model is pretrained on."""

from __future__ import annotations

import torch

from radweave.nn.text_pretraining import finding_names, hint_generator, similar_reports, word_hints


def report_ids(*lengths: int) -> torch.Tensor:
    """Reports whose tokens say whose they are: 100 * row + place."""
    labels = torch.full((len(lengths), max(lengths)), -100)
    for row, length in enumerate(lengths):
        labels[row, :length] = 100 * (row + 1) + torch.arange(length)
    return labels


def test_hints_are_tokens_of_the_report_in_another_order() -> None:
    labels = report_ids(40, 25, 60)
    ids, mask = word_hints(labels, torch.Generator().manual_seed(3), largest_share=1.0, wrong=0.0)
    for row in range(3):
        hints = ids[row][mask[row]].tolist()
        assert set(hints) <= set(labels[row][labels[row] >= 0].tolist())
        assert len(set(hints)) == len(hints)
        assert len(hints) < 5 or hints != sorted(hints)
    assert mask.any(0).all(), "no column is empty throughout"


def test_hints_have_the_configured_error_rate() -> None:
    labels = report_ids(*[50] * 8)
    ids, mask = word_hints(labels, torch.Generator().manual_seed(1), largest_share=1.0, wrong=0.3)
    foreign = torch.cat([ids[row][mask[row]] // 100 != row + 1 for row in range(8)]).float().mean()
    assert 0.1 < foreign < 0.5


def test_hints_are_fresh_in_training_and_the_same_in_validation() -> None:
    def drawn(training: bool) -> list[float]:
        return torch.rand(4, generator=hint_generator(training)).tolist()

    assert drawn(False) == drawn(False)
    assert drawn(True) != drawn(True)


def test_the_share_of_hints_is_bounded() -> None:
    labels = report_ids(*[80] * 16)
    _, mask = word_hints(labels, torch.Generator().manual_seed(0), largest_share=0.25)
    assert mask.sum(1).max() < 80 * 0.45  # four standard deviations above a quarter


def test_the_similar_report_agrees_most_and_is_of_another_patient() -> None:
    labels = report_ids(5, 6, 7, 8)
    states = torch.tensor([[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 0, 2], [0, 0, 3, 3]])
    ids, mask = similar_reports(labels, states, ["a", "a", "b", "c"], torch.Generator().manual_seed(0))
    owners = [int(ids[row][mask[row]][0]) // 100 - 1 for row in range(4)]
    assert owners[0] == 2
    assert owners[1] == 2
    assert owners[2] in (0, 1)
    assert ids[0][mask[0]].tolist() == labels[2][labels[2] >= 0].tolist()


def test_a_batch_of_one_patient_has_no_similar_report() -> None:
    labels = report_ids(5, 6)
    _, mask = similar_reports(labels, torch.ones(2, 3).long(), ["a", "a"], torch.Generator().manual_seed(0))
    assert not mask.any()


def test_finding_names_are_those_of_stated_classes_in_any_order() -> None:
    names = [[10, 11], [20], [30, 31, 32], [40]]
    states = torch.tensor([[1, 0, 3, 2], [2, 2, 0, 0]])
    ids, mask = finding_names(states, names, torch.Generator().manual_seed(0), missed=0.0, wrong=0.0)
    assert ids[0][mask[0]].tolist() in ([10, 11, 30, 31, 32], [30, 31, 32, 10, 11])
    assert not mask[1].any()


def test_finding_names_are_sometimes_missed_or_wrong() -> None:
    names = [[number] for number in range(10)]
    states = torch.tensor([[1] * 5 + [0] * 5]).expand(400, -1)
    ids, mask = finding_names(states, names, torch.Generator().manual_seed(0), missed=0.2, wrong=0.1)
    stated = ((ids < 5) & mask).sum() / (5 * 400)
    others = ((ids >= 5) & mask).sum() / (5 * 400)
    # Four standard deviations of a binomial share over 2,000 draws.
    assert abs(float(stated) - 0.8) < 0.036
    assert abs(float(others) - 0.1) < 0.027
