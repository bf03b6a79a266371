"""Which words does the report hold? A head on the image alone, to teach an encoder that starts from nothing.

Source: Joulin et al., "Learning visual features from large weakly supervised data", ECCV 2016: images predict the bag
of words of their text. A language model that trains together with a raw encoder first learns to write without looking;
an encoder that has seen words is worth looking at.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from radweave.base.config import Config
from radweave.nn.dense_head import DenseHead, DenseHeadConfig


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
"""What these records build."""
WordHeadConfig = Annotated[NoWordHeadConfig | LinearWordHeadConfig | DenseHeadConfig, Field(discriminator="kind")]
