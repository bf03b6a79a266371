"""Rewards of reports for training: numbers in [0, 1] from a text and its reference.

Whatever a reward knows beside the two texts is of the training split: class weights, document frequencies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from radweave.core.errors import InputError
from radweave.drafting.choice import prepared
from radweave.labels import NO_FINDING, Labeler
from radweave.labels.contradictions import contradictions
from radweave.labels.text import sentences_by_part
from radweave.methods.model import TrainingView
from radweave.methods.outside import load_reward, outside_rewards
from radweave.metrics.clinical import is_positive, states_of
from radweave.metrics.language import MAX_ORDER, cider, hf_bleu
from radweave.metrics.ngrams import PairedTexts, ReportStatistics, count_ngrams, count_pairs, pair_counts

Floats = NDArray[np.float64]
Reward = Callable[[Sequence[str], Sequence[str]], Floats]
"""N texts and their N references to N numbers in [0, 1]."""

RARITY: Final = 0.5
"""A class weighs its share of the training reports to the power of minus this."""
REPEATED: Final = 3
"""Words of a sequence that is repeated."""


@dataclass(frozen=True, slots=True)
class TrainingTexts:
    """The reports of the training split, and the labeler of the run."""

    texts: tuple[str, ...]
    labeler: Labeler

    @classmethod
    def of(cls, view: TrainingView, labeler: Labeler) -> TrainingTexts:
        """The reports of a view.

        Raises:
            InputError: for another split than the training split.
        """
        if view.split != "train":
            reason = "class weights and document frequencies of rewards are of the training split alone"
            raise InputError(reason, field="rewards", got=view.split, expected="train")
        return cls(tuple(view.reports), labeler)


class FindingsReward:
    """F1 between the findings that a text and its reference state, with class weights.

        F1 = 2 sum_c w_c t_c r_c / (sum_c w_c t_c + sum_c w_c r_c),   w_c = share_c ^ -1/2

    t and r are 1 for classes that a text states as present; uncertain counts as absent, and No Finding is no class
    here. Two texts without a finding agree: 1. A class that no training report states weighs as if one did.
    """

    def __init__(self, training: TrainingTexts) -> None:
        self.labeler = training.labeler
        self.columns = [k for k, name in enumerate(self.labeler.classes) if name != NO_FINDING]
        counts = self.stated(training.texts).sum(axis=0)
        self.weights = (np.maximum(counts, 1) / max(len(training.texts), 1)) ** -RARITY

    def stated(self, texts: Sequence[str]) -> NDArray[np.bool_]:
        """Findings (N, K) that texts state."""
        return is_positive(states_of(texts, self.labeler), "negative")[:, self.columns]

    def __call__(self, texts: Sequence[str], references: Sequence[str]) -> Floats:
        both = self.stated([*texts, *references])
        own, wanted = both[: len(texts)], both[len(texts) :]
        common, total = (own & wanted) @ self.weights, own @ self.weights + wanted @ self.weights
        return np.where(total > 0, 2 * common / np.where(total > 0, total, 1), 1.0)


class CiderReward:
    """CIDEr-D over 10, with the document frequencies of the training reports."""

    def __init__(self, training: TrainingTexts) -> None:
        self.bank = ReportStatistics.of(prepared(training.texts), MAX_ORDER)

    def __call__(self, texts: Sequence[str], references: Sequence[str]) -> Floats:
        num = len(texts)
        words = [self.bank.encode(text) for text in prepared([*texts, *references])]
        tables, frequencies = self.bank.count(words)
        paired = PairedTexts(words[:num], words[num:], np.arange(num))
        sides = slice(0, num), slice(num, 2 * num)
        counts = [pair_counts(table, *sides, paired.ref_owner) for table in tables]
        return cider(paired, counts, frequencies, len(self.bank))[0] / 10


def bleu_reward(texts: Sequence[str], references: Sequence[str]) -> Floats:
    """BLEU-4 of each text, smoothed: one is added to the matches and candidates of every order."""
    words = prepared([*texts, *references])
    paired = PairedTexts.of(words[: len(texts)], [[words] for words in words[len(texts) :]])
    return hf_bleu(paired, count_pairs(paired, MAX_ORDER))["BLEU_4"].per_study


def length_reward(texts: Sequence[str], references: Sequence[str]) -> Floats:
    """The shorter of a text's and its reference's lengths in words over the longer one; 1 where both are empty."""
    lengths = [(len(text.split()), len(other.split())) for text, other in zip(texts, references, strict=True)]
    return np.array([min(pair) / max(pair) if max(pair) else 1.0 for pair in lengths])


def repetition_reward(texts: Sequence[str], references: Sequence[str]) -> Floats:
    """Share of a text's trigrams of words that are distinct; 1 for a text of fewer than three words."""
    grams = count_ngrams([text.lower().split() for text in texts], REPEATED)[REPEATED - 1]
    distinct = np.bincount(grams.text, minlength=len(texts))
    total = np.bincount(grams.text, weights=grams.count, minlength=len(texts))
    return np.where(total > 0, distinct / np.maximum(total, 1), 1.0)


def contradiction_reward(texts: Sequence[str], references: Sequence[str]) -> Floats:
    """Share of a text's sentences that take back nothing that another one states (``labels.contradictions``)."""
    return np.array([_consistent_share([sentence for _, sentence in sentences_by_part(text)]) for text in texts])


def _consistent_share(sentences: Sequence[str]) -> float:
    return 1.0 - len({one.denies for one in contradictions(sentences)}) / max(len(sentences), 1)


REWARDS: Final[Mapping[str, Callable[[TrainingTexts], Reward]]] = MappingProxyType(
    {
        "findings": FindingsReward,
        "cider": CiderReward,
        "bleu": lambda training: bleu_reward,
        "length": lambda training: length_reward,
        "repetition": lambda training: repetition_reward,
        "contradictions": lambda training: contradiction_reward,
    }
)
"""Rewards of this package; others come by the entry point ``radweave.rewards``."""


def refuse_unknown_rewards(names: Sequence[str]) -> None:
    """Refuse a reward that neither this package nor another one has.

    Raises:
        InputError: naming those that exist.
    """
    known = [*REWARDS, *(name for name in outside_rewards() if name not in REWARDS)]
    for name in names:
        if name not in known:
            raise InputError("there is no such reward", field="rewards", got=name, expected=f"of {', '.join(known)}")


class Rewards:
    """The rewards of a stage and their weights.

    Args:
        weights: name -> weight, some above 0.
        training: what rewards may know of other reports.

    Raises:
        InputError: for an unknown reward, or one of another package that cannot be used.
    """

    def __init__(self, weights: Mapping[str, float], training: TrainingTexts) -> None:
        refuse_unknown_rewards(tuple(weights))
        self.weights = dict(weights)
        self.functions = {
            name: REWARDS[name](training) if name in REWARDS else load_reward(outside_rewards()[name])
            for name in weights
        }

    def parts(self, texts: Sequence[str], references: Sequence[str]) -> dict[str, Floats]:
        """Each reward (N,) of N texts; equal pairs of text and reference are read once.

        Raises:
            InputError: if a reward is no finite number in [0, 1].
        """
        numbers: dict[tuple[str, str], int] = {}
        row = [numbers.setdefault(pair, len(numbers)) for pair in zip(texts, references, strict=True)]
        own, wanted = [text for text, _ in numbers], [reference for _, reference in numbers]
        return {name: self._checked(name, own, wanted)[row] for name in self.functions}

    def _checked(self, name: str, texts: Sequence[str], references: Sequence[str]) -> Floats:
        values = np.asarray(self.functions[name](texts, references), dtype=np.float64)
        expected = f"{len(texts)} finite numbers in [0, 1]"
        if values.shape != (len(texts),):
            raise InputError(
                "not one reward for each text", field=f"rewards.{name}", got=values.shape, expected=expected
            )
        wrong = values[~((values >= 0) & (values <= 1 + 1e-9))]
        if len(wrong):
            reason = "a reward is no finite number in [0, 1]"
            raise InputError(reason, field=f"rewards.{name}", got=float(wrong[0]), expected=expected)
        return np.minimum(values, 1.0)

    def total(self, parts: Mapping[str, Floats]) -> Floats:
        """The weighted mean (N,) of the rewards."""
        total: Floats = sum((weight * parts[name] for name, weight in self.weights.items()), np.zeros(1))
        return total / sum(self.weights.values())
