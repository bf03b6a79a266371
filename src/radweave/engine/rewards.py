"""Rewards of reports for training: numbers in [0, 1] from a text, its reference and the report of the prior study.

Whatever a reward knows beside these texts is of the training split: class weights, document frequencies.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
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
from radweave.methods.outside import load_reward, outside_rewards, package_of
from radweave.methods.stage import BREAK_EVEN
from radweave.metrics.clinical import is_positive, label_pairs, states_of
from radweave.metrics.language import MAX_ORDER, cider, hf_bleu
from radweave.metrics.ngrams import PairedTexts, ReportStatistics, count_ngrams, count_pairs, pair_counts
from radweave.metrics.pairs import Pair
from radweave.metrics.priors import Change, change_rows, read_priors
from radweave.metrics.radgraph import LEVELS, RadGraphReader, radgraph_f1

Floats = NDArray[np.float64]
Priors = Sequence[str | None]
"""The reports of N prior studies; None for a study without one."""
Reward = Callable[..., Floats]
"""N texts and their N references to N numbers in [0, 1]; one with a parameter ``priors`` gets ``Priors`` as well."""
PRIORS: Final = "priors"
CHANGE, RADGRAPH = "change", "radgraph"
"""Rewards that need a prior study's report, and a folder of the user's."""

RARITY: Final = 0.5
"""A class weighs its share of the training reports to the power of minus this."""
REPEATED: Final = 3
"""Words of a sequence that is repeated."""
REWARDED_CHANGES: Final[tuple[Change, ...]] = ("changed", "worse", "better")
RADGRAPH_LEVEL: Final = LEVELS.index("RadGraph_partial")
CACHED_GRAPHS: Final = 65_536


@dataclass(frozen=True, slots=True)
class TrainingTexts:
    """The reports of the training split, and the labeler of the run.

    ``radgraph`` is the folder with RadGraph's weights, which are read onto ``device``. A finding that is stated pays
    from the probability ``break_even`` on.
    """

    texts: tuple[str, ...]
    labeler: Labeler
    radgraph: Path | None = None
    device: str = "cpu"
    break_even: float = BREAK_EVEN

    @classmethod
    def of(
        cls,
        view: TrainingView,
        labeler: Labeler,
        radgraph: Path | None = None,
        device: str = "cpu",
        break_even: float = BREAK_EVEN,
    ) -> TrainingTexts:
        """The reports of a view.

        Raises:
            InputError: for another split than the training split.
        """
        if view.split != "train":
            reason = "class weights and document frequencies of rewards are of the training split alone"
            raise InputError(reason, field="rewards", got=view.split, expected="train")
        return cls(tuple(view.reports), labeler, radgraph, device, break_even)


class FindingsReward:
    """F1 between the findings that a text and its reference state, with class weights.

        F1 = 2 sum_c w_c t_c r_c / (sum_c w_c t_c + sum_c w_c r_c),   w_c = share_c ^ -1/2

    t and r are 1 for classes that a text states as present; uncertain counts as absent, and No Finding is no class
    here. Two texts without a finding agree: 1. A class that no training report states weighs as if one did.
    """

    def __init__(self, training: TrainingTexts) -> None:
        self.labeler = training.labeler
        self.columns = [k for k, name in enumerate(self.labeler.classes) if name != NO_FINDING]
        stated = self.stated(training.texts)
        self.known = dict(zip(training.texts, stated, strict=True))
        counts = stated.sum(axis=0)
        self.weights = (np.maximum(counts, 1) / max(len(training.texts), 1)) ** -RARITY

    def stated(self, texts: Sequence[str]) -> NDArray[np.bool_]:
        """Findings (N, K) that texts state."""
        return is_positive(states_of(texts, self.labeler), "negative")[:, self.columns]

    def __call__(self, texts: Sequence[str], references: Sequence[str]) -> Floats:
        own, wanted = self._read(texts), self._read(references)
        common, total = (own & wanted) @ self.weights, own @ self.weights + wanted @ self.weights
        return np.where(total > 0, 2 * common / np.where(total > 0, total, 1), 1.0)

    def _read(self, texts: Sequence[str]) -> NDArray[np.bool_]:
        """``stated``, which is known of training reports."""
        new = list(dict.fromkeys(text for text in texts if text not in self.known))
        read = dict(zip(new, self.stated(new), strict=True))
        return np.stack([self.known[text] if text in self.known else read[text] for text in texts])


class StatementsReward(FindingsReward):
    """Gain of the findings that a text states, with class weights.

        r = 1/2 + sum_c w_c t_c (r_c - tau) / (2 (1 - tau) max(sum_c w_c r_c, mean_c w_c))

    A statement pays from a probability of tau on, ``break_even``. F1 over all studies is highest where findings are
    stated from a probability of half of that F1 on, so that 1/4 suits an F1 around one half. ``FindingsReward``
    averages over studies instead, and where most studies are normal it is highest for drafts that state next to
    nothing.

    Source of the threshold: Lipton et al., "Optimal thresholding of classifiers to maximize F1 measure", ECML 2014.
    """

    def __init__(self, training: TrainingTexts) -> None:
        super().__init__(training)
        self.break_even = training.break_even

    def __call__(self, texts: Sequence[str], references: Sequence[str]) -> Floats:
        own, wanted = self._read(texts), self._read(references)
        gain = (own & wanted) @ self.weights - self.break_even * (own @ self.weights)
        most = (1 - self.break_even) * np.maximum(wanted @ self.weights, self.weights.mean())
        return np.asarray(np.clip(0.5 + 0.5 * gain / most, 0.0, 1.0), dtype=np.float64)


class ChangeReward:
    """F1 of the changes since the prior study that a text and its reference state, over the findings of the labeler.

    A finding changes that is new or resolved beside the prior's report, or that a sentence calls worse or better
    (``radweave.metrics.priors``); all of these cells count alike. Two texts without a change agree: 1. A study without
    a prior has 1 whatever the text says, which teaches nothing.
    """

    def __init__(self, training: TrainingTexts) -> None:
        self.labeler = training.labeler

    def __call__(self, texts: Sequence[str], references: Sequence[str], priors: Priors) -> Floats:
        values = np.ones(len(texts))
        rows = [row for row, prior in enumerate(priors) if prior is not None]
        pairs = [Pair(str(row), texts[row], (references[row],), prior_report=priors[row]) for row in rows]
        if not pairs:
            return values
        labelled = label_pairs(pairs, self.labeler)
        findings = read_priors(pairs, labelled, self.labeler)
        assert findings is not None, "all of these have a prior"
        counted = change_rows([pair.hyp for pair in pairs], labelled.hyp, findings)
        cells = np.stack([counted[name] for name in REWARDED_CHANGES]).astype(np.int64)
        common, false, missed = cells.sum(axis=0).T
        total = 2 * common + false + missed
        values[rows] = np.where(total > 0, 2 * common / np.maximum(total, 1), 1.0)
        return values


class RadGraphReward:
    """RadGraph F1 of entities and whether they are related, by the weights in a folder of the user's.

    Source: Delbrouck et al., Findings of EMNLP 2022, Sec. 3 (RG_ER).

    Raises:
        InputError: if the folder or a file of it cannot be used.
    """

    def __init__(self, training: TrainingTexts) -> None:
        reader = radgraph_reader(training.radgraph, training.device)
        self.graph = lru_cache(maxsize=CACHED_GRAPHS)(reader.graph)

    def __call__(self, texts: Sequence[str], references: Sequence[str]) -> Floats:
        pairs = zip(texts, references, strict=True)
        return np.array([radgraph_f1(self.graph(text), self.graph(other))[RADGRAPH_LEVEL] for text, other in pairs])


def radgraph_reader(folder: Path | None, device: str = "cpu") -> RadGraphReader:
    """Read the weights of RadGraph.

    Raises:
        InputError: for the field ``radgraph``, naming the file that is missing or damaged.
    """
    if folder is None:
        reason = "the reward needs a local folder with RadGraph's weights"
        raise InputError(reason, field=RADGRAPH, got="none", expected="stages.reward.radgraph=FOLDER")
    try:
        return RadGraphReader(folder, device=device)
    except InputError as error:
        raise error.at(field=RADGRAPH) from None


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
    split = [[sentence for _, sentence in sentences_by_part(text)] for text in texts]
    return np.array([1.0 - len({one.denies for one in contradictions(own)}) / max(len(own), 1) for own in split])


REWARDS: Final[Mapping[str, Callable[[TrainingTexts], Reward]]] = MappingProxyType(
    {
        "findings": FindingsReward,
        "statements": StatementsReward,
        CHANGE: ChangeReward,
        RADGRAPH: RadGraphReward,
        "cider": CiderReward,
        "bleu": lambda training: bleu_reward,
        "length": lambda training: length_reward,
        "repetition": lambda training: repetition_reward,
        "contradictions": lambda training: contradiction_reward,
    }
)
"""Rewards of this package; others come by the entry point ``radweave.rewards``."""


def refuse_unusable_rewards(names: Sequence[str], radgraph: Path | None) -> None:
    """Refuse a reward that does not exist, that another package brings and cannot be used, or whose weights are not
    there.

    Raises:
        InputError: naming the field, and the rewards that exist.
    """
    known = [*REWARDS, *(name for name in outside_rewards() if name not in REWARDS)]
    for name in names:
        if name not in known:
            raise InputError("there is no such reward", field="rewards", got=name, expected=f"of {', '.join(known)}")
        if name == RADGRAPH:
            radgraph_reader(radgraph)
        if name not in REWARDS:
            load_reward(outside_rewards()[name])


def takes_priors(reward: Reward) -> bool:
    """True for a reward with a parameter ``priors``."""
    try:
        return PRIORS in inspect.signature(reward).parameters
    except (TypeError, ValueError):  # some functions of C say nothing of their parameters
        return False


class Rewards:
    """The rewards of a stage and their weights.

    Args:
        weights: name -> weight, some above 0.
        training: what rewards may know of other reports.

    Raises:
        InputError: for an unknown reward, or one that cannot be used.
    """

    def __init__(self, weights: Mapping[str, float], training: TrainingTexts) -> None:
        refuse_unusable_rewards([name for name in weights if name != RADGRAPH], training.radgraph)
        self.weights = dict(weights)
        self.outside = {name: outside_rewards()[name] for name in weights if name not in REWARDS}
        self.functions: dict[str, Reward] = {
            name: load_reward(self.outside[name]) if name in self.outside else REWARDS[name](training)
            for name in weights
        }
        self.with_priors = frozenset(name for name, reward in self.functions.items() if takes_priors(reward))

    def parts(self, texts: Sequence[str], references: Sequence[str], priors: Priors | None = None) -> dict[str, Floats]:
        """Each reward (N,) of N texts, whose equals are read once. Without ``priors`` no study has one.

        Raises:
            InputError: if a reward is no finite number in [0, 1], or fails.
        """
        before = [None] * len(texts) if priors is None or not self.with_priors else priors
        numbers: dict[tuple[str, str, str | None], int] = {}
        row = [numbers.setdefault(read, len(numbers)) for read in zip(texts, references, before, strict=True)]
        return {name: self._checked(name, list(numbers))[row] for name in self.functions}

    def _checked(self, name: str, read: Sequence[tuple[str, str, str | None]]) -> Floats:
        texts, references, priors = ([one[place] for one in read] for place in range(3))
        field, expected = f"rewards.{name}", f"{len(texts)} finite numbers in [0, 1]"
        more = {PRIORS: priors} if name in self.with_priors else {}
        try:
            values = np.asarray(self.functions[name](texts, references, **more), dtype=np.float64)
        except Exception as error:
            if name not in self.outside:
                raise
            fault = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            reason = f"{package_of(self.outside[name])}: the reward failed ({fault})"
            raise InputError(reason, field=field, expected=expected) from None
        if values.shape != (len(texts),):
            raise InputError("not one reward for each text", field=field, got=values.shape, expected=expected)
        wrong = values[~((values >= 0) & (values <= 1 + 1e-9))]
        if len(wrong):
            reason = "a reward is no finite number in [0, 1]"
            raise InputError(reason, field=field, got=float(wrong[0]), expected=expected)
        return np.minimum(values, 1.0)

    def total(self, parts: Mapping[str, Floats]) -> Floats:
        """The weighted mean (N,) of the rewards."""
        total: Floats = sum((weight * parts[name] for name, weight in self.weights.items()), np.zeros(1))
        return total / sum(self.weights.values())
