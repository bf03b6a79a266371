"""Neg-Pos matching: images and reports with the same label vector lie close, all others apart.

Source: the paper's Sec. 2.3, Eq. 8.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from radweave.core.config import Config, Width
from radweave.nn.global_batch import gather_batch

Denominator = Literal["all", "negatives"]


def neg_pos_loss(
    image: Float[Tensor, "batch dim"],
    report: Float[Tensor, "batch dim"],
    class_labels: Int[Tensor, "batch classes"],
    temperature: float,
    denominator: Denominator = "all",
) -> Float[Tensor, ""]:
    """Supervised contrastive loss between images and reports, mean of the two directions.

        l_i = - 1/|P(i)| sum_{p in P(i)} log(e^{f(x_i, y_p)} / sum_{j in D(i)} e^{f(x_i, y_j)}),   f = cos / temperature

    P(i) are the studies with i's label vector, i itself among them, since its own report is another sample than its
    image. D(i) is the whole batch, or the negatives alone as Eq. 8 prints, which has no lower bound. An anchor without
    a negative contributes nothing, and neither does it count. A study without labels is alike to itself only.

    Over several processes the batch is the global one.
    """
    image, report = (gather_batch(F.normalize(x.float(), dim=-1)) for x in (image, report))
    labels = gather_batch(class_labels)
    unlabeled = (labels < 0).all(1)
    positive = (labels[:, None] == labels[None]).all(-1) & ~unlabeled[:, None]
    positive = positive | torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    usable = (~positive).any(1)
    if not usable.any():
        return (image * 0).sum() + (report * 0).sum()
    allowed = torch.ones_like(positive) if denominator == "all" else ~positive
    scores = image @ report.T / temperature
    total = scores.new_zeros(())
    for direction in (scores, scores.T):
        # Anchors that have no negative are left out before the logarithm, or their gradient would not be a number.
        logits, mine = direction[usable], positive[usable].to(direction.dtype)
        normaliser = logits.masked_fill(~allowed[usable], float("-inf")).logsumexp(1)
        total = total + (normaliser - (logits * mine).sum(1) / mine.sum(1)).mean()
    return total / 2


class NegPosMatching(nn.Module):
    """The loss between projections of both sides; CLIP's temperature, for the paper gives none."""

    def __init__(self, dim: int, text_dim: int, width: int, temperature: float, denominator: Denominator) -> None:
        super().__init__()
        self.image = nn.Linear(dim, width)
        self.report = nn.Linear(text_dim, width)
        self.temperature = temperature
        self.denominator: Denominator = denominator

    def loss(self, image: Tensor, report: Tensor, class_labels: Tensor) -> Tensor:
        """Row i of ``image`` (B, d) and of ``report`` (B, T) belong together."""
        return neg_pos_loss(self.image(image), self.report(report), class_labels, self.temperature, self.denominator)


class NoMatching(nn.Module):
    """No contrastive loss ("w/o SCL" of Table 2); asked for it, it is 0."""

    def loss(self, image: Tensor, report: Tensor, class_labels: Tensor) -> Tensor:
        return image.new_zeros(())


class NoMatchingConfig(Config):
    """Switch the loss off."""

    kind: Literal["none"] = "none"

    def build(self, dim: int, text_dim: int) -> NoMatching:
        return NoMatching()


class NegPosMatchingConfig(Config):
    """Supervised contrastive loss."""

    kind: Literal["neg_pos"] = "neg_pos"
    width: Width = 128
    temperature: float = Field(default=0.07, gt=0)
    denominator: Denominator = "all"

    def build(self, dim: int, text_dim: int) -> NegPosMatching:
        return NegPosMatching(dim, text_dim, self.width, self.temperature, self.denominator)


MatchingConfig = Annotated[NoMatchingConfig | NegPosMatchingConfig, Field(discriminator="kind")]
