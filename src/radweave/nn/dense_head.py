"""Many targets at once for an encoder that has seen few studies: the classes, and the words of the report.

A study says little through fourteen classes of which most are absent, and more through some hundred words. Rare targets
count more by a weight w = sqrt((1 - p) / p), which moves the logits up by log w; that is taken off again where a
probability is wanted.

Sources: Joulin et al., "Learning visual features from large weakly supervised data", ECCV 2016, for the words; Menon et
al., "Long-tail learning via logit adjustment", ICLR 2021, for taking the weight off again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from radweave.base.config import Config
from radweave.nn.global_batch import mean_over_batch
from radweave.nn.supervision import UNLABELED, binary_targets
from radweave.nn.views import mean_and_largest

LIGHTEST, HEAVIEST = 0.2, 8.0
"""Bounds of a target's weight."""


def positive_weight(share: Float[Tensor, " targets"]) -> Float[Tensor, " targets"]:
    """sqrt((1 - p) / p) of the share p of studies that have the target, within bounds."""
    odds = (1 - share) / share.clamp(min=1e-6)
    return odds.clamp(min=0).sqrt().clamp(LIGHTEST, HEAVIEST)


class DenseHead(nn.Module):
    """Linear maps of the mean and the largest token of a study to one logit per class and per frequent word.

    ``learn_targets`` says from the training split which words there are and how rare each target is; the head is of no
    use before, and ``learned`` says so. ``weighted`` gives rare targets more weight, ``corrected`` takes it off the
    logits again.
    """

    learned: Tensor
    word_ids: Tensor
    class_weight: Tensor
    word_weight: Tensor

    def __init__(self, dim: int, num_classes: int, num_words: int, config: DenseHeadConfig) -> None:
        super().__init__()
        self.weighted, self.corrected, self.share_of_words = config.weighted, config.corrected, config.words
        self.dropout = nn.Dropout(config.dropout)
        self.classes = nn.Linear(2 * dim, num_classes)
        self.words = nn.Linear(2 * dim, num_words)
        self.register_buffer("learned", torch.tensor(False))
        self.register_buffer("word_ids", torch.arange(num_words))
        self.register_buffer("class_weight", torch.ones(num_classes))
        self.register_buffer("word_weight", torch.ones(num_words))

    @torch.no_grad()
    def learn_targets(self, reports: Iterable[Sequence[int]], class_states: Int[Tensor, "studies classes"]) -> None:
        """Take the words that tell most studies apart, and the weights, from token ids and label states of training."""
        texts = [set(report) for report in reports]
        most = max((token for text in texts for token in text), default=0) + 1
        counts = torch.zeros(max(most, len(self.word_ids)))
        for text in texts:
            counts[list(text)] += 1
        share = counts / max(len(texts), 1)
        chosen = (share * (1 - share)).topk(len(self.word_ids)).indices.sort().values
        self.word_ids.copy_(chosen)
        self.learned.fill_(True)
        targets, known = binary_targets(class_states, "negative")
        positive = (targets * known).sum(0) / known.sum(0).clamp(min=1)
        if self.weighted:
            self.class_weight.copy_(positive_weight(positive))
            self.word_weight.copy_(positive_weight(share[chosen]))

    def class_logits(
        self, tokens: Float[Tensor, "batch views tokens dim"], view_mask: Bool[Tensor, "batch views"]
    ) -> Float[Tensor, "batch classes"]:
        """Log-odds of each class."""
        logits: Tensor = self.classes(mean_and_largest(tokens, view_mask))
        return logits - self.class_weight.log() if self.corrected else logits

    def loss(
        self,
        tokens: Float[Tensor, "batch views tokens dim"],
        view_mask: Bool[Tensor, "batch views"],
        labels: Int[Tensor, "batch text"],
        class_labels: Int[Tensor, "batch classes"] | None = None,
    ) -> Float[Tensor, ""]:
        """Weighted binary cross-entropy: the mean over words, and the mean over the classes that are known."""
        pooled = self.dropout(mean_and_largest(tokens, view_mask))
        said = (labels[:, None, :] == self.word_ids[None, :, None]).any(-1)
        logits = self.words(pooled)
        apart = F.binary_cross_entropy_with_logits(
            logits, said.to(logits.dtype), pos_weight=self.word_weight.to(logits.dtype), reduction="none"
        )
        # Of a batch that is cut, a head that sees some of the studies alone counts those of all slices.
        words = mean_over_batch(apart.mean(1).sum(), len(apart))
        if class_labels is None:
            return self.share_of_words * words
        targets, known = binary_targets(class_labels, "negative")
        known = known & (class_labels != UNLABELED)
        logits = self.classes(pooled)
        apart = F.binary_cross_entropy_with_logits(
            logits, targets.to(logits.dtype), pos_weight=self.class_weight.to(logits.dtype), reduction="none"
        )
        classes = mean_over_batch(torch.where(known, apart, torch.zeros_like(apart)).sum(), known.sum())
        return classes + self.share_of_words * words


class DenseHeadConfig(Config):
    """Classes and ``num_words`` words as targets; ``words`` is the weight of the words beside the classes."""

    kind: Literal["dense"] = "dense"
    num_words: int = Field(default=300, ge=1, le=65_536)
    words: float = Field(default=1.0, ge=0)
    dropout: float = Field(default=0.2, ge=0, lt=1)
    weighted: bool = True
    corrected: bool = True

    def build(self, dim: int, vocab_size: int, num_classes: int) -> DenseHead:
        return DenseHead(dim, num_classes, min(self.num_words, vocab_size), self)
