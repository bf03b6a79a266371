"""Many targets at once for an encoder that has seen few studies: the classes, and the words of the report.

A study says little through fourteen classes of which most are absent, and more through some hundred words. Rare targets
count more by a weight w = sqrt((1 - p) / p), which moves the logits up by log w; that is taken off again where a
probability is wanted.

Sources: Joulin et al., "Learning visual features from large weakly supervised data", ECCV 2016, for the words; Menon et
al., "Long-tail learning via logit adjustment", ICLR 2021, for taking the weight off again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from radweave.core.config import Config
from radweave.core.ontology import NO_FINDING
from radweave.nn.connector import ViewTokens, mean_and_largest
from radweave.nn.global_batch import mean_over_batch

# Label states of a batch as targets of a classifier.


BLANK, POSITIVE, NEGATIVE, UNCERTAIN, UNLABELED = 0, 1, 2, 3, -1
"""The integers of ``Batch.class_labels``."""

UncertainPolicy = Literal["positive", "negative", "ignore"]


def binary_targets(
    class_labels: Int[Tensor, "batch classes"], uncertain: UncertainPolicy = "positive"
) -> tuple[Float[Tensor, "batch classes"], Bool[Tensor, "batch classes"]]:
    """Targets in {0, 1} and where they are known. A class that is not mentioned counts as absent."""
    targets = class_labels == POSITIVE
    known = class_labels != UNLABELED
    if uncertain == "positive":
        targets = targets | (class_labels == UNCERTAIN)
    elif uncertain == "ignore":
        known = known & (class_labels != UNCERTAIN)
    return targets.float(), known


def binary_loss(
    logits: Float[Tensor, "batch classes"],
    class_labels: Int[Tensor, "batch classes"],
    uncertain: UncertainPolicy = "positive",
) -> Float[Tensor, ""]:
    """Binary cross-entropy averaged over what is known; 0 (with a gradient of 0) where nothing is."""
    targets, known = binary_targets(class_labels, uncertain)
    losses = F.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none")
    return mean_over_batch(torch.where(known, losses, torch.zeros_like(losses)).sum(), known.sum())


def are_normal(class_states: Int[Tensor, "studies classes"], classes: Sequence[str]) -> Bool[Tensor, " studies"]:
    """Mark the studies without a stated abnormality: no class is positive or uncertain, "No Finding" aside.

    A report that suspects something does not say that there is nothing (appendix B), whatever an uncertain label counts
    as for a classifier. A class that is not mentioned counts as absent. Devices count as findings: they change the
    picture. A study without labels is not normal.
    """
    counted = [place for place, name in enumerate(classes) if name != NO_FINDING]
    states = class_states[:, counted]
    stated = (states == POSITIVE) | (states == UNCERTAIN)
    return ~stated.any(1) & (states != UNLABELED).all(1)


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
        mentioned = (labels[:, None, :] == self.word_ids[None, :, None]).any(-1)
        logits = self.words(pooled)
        apart = F.binary_cross_entropy_with_logits(
            logits, mentioned.to(logits.dtype), pos_weight=self.word_weight.to(logits.dtype), reduction="none"
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


# Prediction of the report's words from the image alone: it trains an encoder that starts from random weights.
#
# Source: Joulin et al., "Learning visual features from large weakly supervised data", ECCV 2016: images predict the bag
# of words of their text. A language model that trains together with a raw encoder first learns to write without the
# image; with an encoder that was trained on words it uses the image.


class WordHead(nn.Module):
    """Linear map from the mean visual feature of a study to one logit per word of the vocabulary."""

    def __init__(self, dim: int, vocab_size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.linear = nn.Linear(dim, vocab_size)

    def loss(
        self,
        tokens: Float[Tensor, "batch views tokens dim"],
        view_mask: Bool[Tensor, "batch views"],
        labels: Int[Tensor, "batch text"],
        class_labels: Int[Tensor, "batch classes"] | None = None,
    ) -> Float[Tensor, ""]:
        """Binary cross-entropy over the vocabulary, summed per study and averaged over studies."""
        weight = view_mask[:, :, None].to(tokens.dtype)
        pooled = (tokens.mean(2) * weight).sum(1) / weight.sum(1)
        logits = self.linear(self.norm(pooled))
        present = torch.zeros_like(logits)
        present.scatter_add_(1, labels.clamp(min=0), (labels >= 0).to(logits.dtype))
        return F.binary_cross_entropy_with_logits(logits, present.clamp(max=1), reduction="sum") / len(labels)


class NoWordHead(nn.Module):
    """No head; asked for its loss it is 0."""

    def loss(self, tokens: Tensor, view_mask: Tensor, labels: Tensor, class_labels: Tensor | None = None) -> Tensor:
        return tokens.new_zeros(())


class NoWordHeadConfig(Config):
    """For encoders that are pretrained."""

    kind: Literal["none"] = "none"

    def build(self, dim: int, vocab_size: int, num_classes: int = 0) -> NoWordHead:
        return NoWordHead()


class LinearWordHeadConfig(Config):
    """For encoders that start from nothing."""

    kind: Literal["linear"] = "linear"

    def build(self, dim: int, vocab_size: int, num_classes: int = 0) -> WordHead:
        return WordHead(dim, vocab_size)


WordPart = WordHead | DenseHead | NoWordHead
"""The head that these records build."""
WordHeadConfig = Annotated[NoWordHeadConfig | LinearWordHeadConfig | DenseHeadConfig, Field(discriminator="kind")]


# Noisy-OR: a class is there if any token says so. In logarithms, so that thousands of sure tokens are no zero.
#
# Source: Tian et al., "DiffVP", arXiv:2603.17718, appendix D.


FAR, SERIES = -15.0, 1e-4
Prior = Annotated[float, Field(gt=0, lt=1)]
FIRST_PRIOR = 0.1
"""About how frequent a finding is; every class starts there."""


def log_softplus(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """log(log(1 + exp(x))), exact where softplus itself is no number any more: far below 0 it is x - exp(x) / 2."""
    far = x < FAR
    # Each branch sees harmless values where the other one counts: an infinite gradient times zero is no number.
    near = torch.where(far, torch.zeros_like(x), x)
    below = torch.where(far, x, torch.full_like(x, FAR))
    return torch.where(far, below - below.exp() / 2, F.softplus(near).log())


def noisy_or_logits(
    voxel_logits: Float[Tensor, "batch voxels classes"], mask: Bool[Tensor, "batch voxels"]
) -> Float[Tensor, "batch classes"]:
    """The logit of P = 1 - prod_v (1 - p_v), p_v = sigmoid(x_v), over the voxels that are there.

    With s = -log(1 - P) = sum_v softplus(x_v) it is log(exp(s) - 1): for small s log s + log((exp(s) - 1) / s), and
    log s = logsumexp_v log softplus(x_v). So neither products of thousands of factors nor a sum that is too small for
    its type leave the logarithm, and however sure of absence all voxels are, each has its share of the gradient.
    """
    absent = ~mask[:, :, None]
    log_s = log_softplus(voxel_logits).masked_fill(absent, -torch.inf).logsumexp(1)
    s = F.softplus(voxel_logits).masked_fill(absent, 0.0).sum(1)
    small = s < 1
    low, high = torch.where(small, s, torch.ones_like(s)), torch.where(small, torch.ones_like(s), s)
    # log((exp(s) - 1) / s) is s / 2 + s^2 / 24 but for terms of s^4, which no float holds below SERIES.
    tiny = low < SERIES
    ratio = torch.where(tiny, torch.ones_like(low), low)
    rest = torch.where(tiny, low / 2 + low.square() / 24, (torch.expm1(ratio) / ratio).log())
    return torch.where(small, log_s + rest, high + torch.log1p(-torch.exp(-high)))


def first_logit(prior: float, num_voxels: int) -> float:
    """The first logit of a voxel, with which all of them together give P = ``prior``: log((1 - prior)^(-1/n) - 1)."""
    return math.log(math.expm1(-math.log1p(-prior) / num_voxels))


class NoisyOrHead(nn.Module):
    """A 1 x 1 (x 1) convolution over the grid, that is a linear map of every token, and Noisy-OR over all of them.

    A fresh head gives every class the probability ``prior``, whatever the number of voxels; with voxels that start at 0
    thousands of them would be certain of everything.
    """

    def __init__(self, dim: int, num_classes: int, prior: float, num_voxels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, num_classes)
        nn.init.constant_(self.linear.bias, first_logit(prior, num_voxels))

    def forward(self, views: ViewTokens) -> Float[Tensor, "batch classes"]:
        tokens, mask = views.flat()
        return noisy_or_logits(self.linear(tokens), mask)
