"""Rewards against plain loops, and what they refuse."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import pytest

from radweave.core.errors import InputError
from radweave.core.study import LabelState
from radweave.drafting.choice import prepared
from radweave.engine import rewards as module
from radweave.engine.rewards import REWARDS, Rewards, TrainingTexts, refuse_unknown_rewards
from radweave.labels import NO_FINDING, get_labeler
from radweave.labels.contradictions import contradictions
from radweave.labels.text import split_sentences
from radweave.methods.model import TrainingView

LABELER = get_labeler("chexpert14")
TRAINING = (
    "Heart size is normal. The lungs are clear.",
    "The heart is enlarged. No pleural effusion.",
    "Small left pleural effusion. Heart size is normal.",
    "Right pneumothorax. The heart is enlarged.",
    "The heart is enlarged. Small left pleural effusion.",
    "The lungs are clear. No pleural effusion or pneumothorax.",
)
TEXTS = (
    "The heart is enlarged. Small left pleural effusion.",
    "The lungs are clear. The lungs are clear. The lungs are clear.",
    "Small left pleural effusion. No pleural effusion.",
    "",
    "The heart is enlarged. Right pneumothorax.",
    "Effusion",
)
REFERENCES = (
    "Right pneumothorax. The heart is enlarged.",
    "Heart size is normal. The lungs are clear.",
    "Small left pleural effusion. Heart size is normal.",
    "The lungs are clear.",
    "The heart is enlarged. Right pneumothorax.",
    "",
)


def reward(name: str, texts: Sequence[str] = TEXTS, references: Sequence[str] = REFERENCES) -> list[float]:
    values = Rewards({name: 1.0}, TrainingTexts(TRAINING, LABELER)).parts(texts, references)[name]
    return [float(value) for value in values]


def words_of(text: str) -> list[str]:
    return prepared([text])[0]


def grams(words: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[at : at + order]) for at in range(len(words) - order + 1))


def test_findings_agree_by_class_and_rare_ones_weigh_more() -> None:
    def stated(text: str) -> set[str]:
        (mentions,) = LABELER.label([text])
        return {n for n, m in mentions.items() if m.state is LabelState.POSITIVE and n != NO_FINDING}

    share = {name: max(sum(name in stated(text) for text in TRAINING), 1) / len(TRAINING) for name in LABELER.classes}
    expected = []
    for text, reference in zip(TEXTS, REFERENCES, strict=True):
        own, wanted = stated(text), stated(reference)
        weight = {name: share[name] ** -0.5 for name in own | wanted}
        total = sum(weight[name] for name in own) + sum(weight[name] for name in wanted)
        expected.append(2 * sum(weight[name] for name in own & wanted) / total if total else 1.0)
    assert reward("findings") == pytest.approx(expected, abs=1e-12)
    assert len({*expected}) > 2
    both = "The heart is enlarged. Right pneumothorax."
    common, rare = reward("findings", ["The heart is enlarged.", "Right pneumothorax."], [both, both])
    assert rare > common, "one report in six has a pneumothorax, every second one a large heart"


def test_cider_has_the_document_frequencies_of_the_training_reports() -> None:
    documents = [words_of(text) for text in TRAINING]
    expected = []
    for text, reference in zip(TEXTS, REFERENCES, strict=True):
        own, wanted = words_of(text), words_of(reference)
        total = 0.0
        for order in range(1, 5):
            frequency = Counter(gram for words in documents for gram in grams(words, order))

            def idf(gram: tuple[str, ...], frequency: Counter[tuple[str, ...]] = frequency) -> float:
                return math.log(len(documents)) - math.log(max(frequency[gram], 1))

            mine, theirs = grams(own, order), grams(wanted, order)
            product = sum(min(n, theirs[gram]) * theirs[gram] * idf(gram) ** 2 for gram, n in mine.items())
            norms = [math.sqrt(sum((n * idf(gram)) ** 2 for gram, n in side.items())) for side in (mine, theirs)]
            total += product / (norms[0] * norms[1]) if all(norms) else 0.0
        difference = max(len(own) - 1, 0) - max(len(wanted) - 1, 0)
        expected.append(total / 4 * math.exp(-(difference**2) / 72))
    assert reward("cider") == pytest.approx(expected, abs=1e-9)
    assert max(expected) > 0.5


def test_bleu_is_smoothed_and_of_each_text_alone() -> None:
    expected = []
    for text, reference in zip(TEXTS, REFERENCES, strict=True):
        own, wanted = words_of(text), words_of(reference)
        if not own:
            expected.append(0.0)
            continue
        logs = [
            math.log((sum((grams(own, n) & grams(wanted, n)).values()) + 1) / (max(len(own) - n + 1, 0) + 1))
            for n in range(1, 5)
        ]
        brevity = 1.0 if len(own) > len(wanted) else math.exp(1 - len(wanted) / len(own))
        expected.append(math.exp(sum(logs) / 4) * brevity)
    assert reward("bleu") == pytest.approx(expected, abs=1e-12)


def test_length_is_the_shorter_one_over_the_longer_one() -> None:
    assert reward("length", ["a b c", "a", "", "a"], ["a b c", "a b c d", "", ""]) == [1.0, 0.25, 1.0, 0.0]


def test_repetition_is_the_share_of_distinct_trigrams() -> None:
    expected = []
    for text in TEXTS:
        counts = grams(text.lower().split(), 3)
        expected.append(len(counts) / counts.total() if counts else 1.0)
    assert reward("repetition") == pytest.approx(expected, abs=1e-12)
    assert expected[1] < 0.5 < expected[0]


def test_contradictions_are_the_share_of_sentences_that_take_another_one_back() -> None:
    expected = []
    for text in TEXTS:
        sentences = split_sentences(text)
        denying = {one.denies for one in contradictions(sentences)}
        expected.append(1 - len(denying) / len(sentences) if sentences else 1.0)
    assert reward("contradictions") == expected
    assert expected[2] == 0.5


def test_every_reward_is_between_0_and_1_and_does_not_depend_on_the_other_texts() -> None:
    for name in REWARDS:
        together = reward(name)
        assert all(0 <= value <= 1 for value in together), name
        alone = [reward(name, [text], [other])[0] for text, other in zip(TEXTS, REFERENCES, strict=True)]
        assert together == pytest.approx(alone, abs=1e-12), name


def test_the_reward_is_the_weighted_mean_and_one_without_weight_is_only_measured() -> None:
    both = Rewards({"length": 3.0, "repetition": 1.0, "bleu": 0.0}, TrainingTexts(TRAINING, LABELER))
    parts = both.parts(TEXTS, REFERENCES)
    assert set(parts) == {"length", "repetition", "bleu"}
    expected = (3 * np.array(reward("length")) + np.array(reward("repetition"))) / 4
    assert both.total(parts) == pytest.approx(expected, abs=1e-12)


def test_rewards_of_another_split_are_refused() -> None:
    view = TrainingView((), (), (), 0, 0, split="val")
    with pytest.raises(InputError, match="training split alone"):
        TrainingTexts.of(view, LABELER)


def test_an_unknown_reward_is_refused_with_the_names_that_there_are() -> None:
    with pytest.raises(InputError, match=r"no such reward.*findings"):
        refuse_unknown_rewards(["findings", "radgraph"])


class _Own(EntryPoint):
    """An entry point whose function is given."""

    def load(self) -> Any:
        return {"nan": lambda t, r: [math.nan] * len(t), "above": lambda t, r: [2.0] * len(t),
                "few": lambda t, r: [0.5], "half": lambda t, r: [0.5] * len(t), "none": 3}[self.name]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nan", "no finite number in"),
        ("above", "no finite number in"),
        ("few", "not one reward for each text"),
        ("none", "is no function"),
    ],
)
def test_a_reward_of_another_package_that_is_no_reward_is_refused(
    name: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = {one: _Own(one, "x", "radweave.rewards") for one in ("nan", "above", "few", "half", "none")}
    monkeypatch.setattr(module, "outside_rewards", lambda: entries)
    training = TrainingTexts(TRAINING, LABELER)
    assert Rewards({"half": 1.0}, training).parts(TEXTS, REFERENCES)["half"].tolist() == [0.5] * 6
    with pytest.raises(InputError, match=reason):
        Rewards({name: 1.0}, training).parts(TEXTS, REFERENCES)
