"""Neg-Pos matching: images and reports with the same label vector lie close, all others apart.

Source: the paper's Sec. 2.3, Eq. 8.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from radweave.core.config import Config, Width
from radweave.nn.global_batch import gather_batch

Denominator = Literal["all", "negatives"]
Contrasted = Literal["inputs", "outputs"]
"""The image's mean token alone, or the outputs of aggregation too, with the difference features as negatives."""


def neg_pos_loss(
    image: Float[Tensor, "batch dim"],
    report: Float[Tensor, "batch dim"],
    class_labels: Int[Tensor, "batch classes"],
    temperature: float,
    denominator: Denominator = "all",
    differences: Float[Tensor, "batch dim"] | None = None,
) -> Float[Tensor, ""]:
    """Supervised contrastive loss between images and reports, mean of the two directions.

        l_i = - 1/|P(i)| sum_{p in P(i)} log(e^{f(x_i, y_p)} / sum_{j in D(i)} e^{f(x_i, y_j)}),   f = cos / temperature

    P(i) are the studies with i's label vector, i itself among them, since its own report is another sample than its
    image. D(i) is the whole batch, or the negatives alone as Eq. 8 prints, which has no lower bound. An anchor without
    a negative contributes nothing, and neither does it count. A study without labels is alike to itself only.
    ``differences`` are further negatives of every anchor.

    Over several processes the batch is the global one.
    """
    image, report = (gather_batch(_unit(x)) for x in (image, report))
    labels = gather_batch(class_labels)
    unlabeled = (labels < 0).all(1)
    positive = (labels[:, None] == labels[None]).all(-1) & ~unlabeled[:, None]
    positive = positive | torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    apart = image.new_zeros(0, image.shape[1]) if differences is None else gather_batch(_unit(differences))
    usable = (~positive).any(1) | (len(apart) > 0)
    if not usable.any():
        return (image * 0).sum() + (report * 0).sum()
    allowed = torch.ones_like(positive) if denominator == "all" else ~positive
    scores = image @ report.T / temperature
    total = scores.new_zeros(())
    for direction, anchors in ((scores, image), (scores.T, report)):
        # Anchors that have no negative are left out before the logarithm, or their gradient would not be a number.
        logits, mine = direction[usable], positive[usable].to(direction.dtype)
        below = logits.masked_fill(~allowed[usable], float("-inf"))
        normaliser = torch.cat([below, anchors[usable] @ apart.T / temperature], dim=1).logsumexp(1)
        total = total + (normaliser - (logits * mine).sum(1) / mine.sum(1)).mean()
    return total / 2


def _unit(vectors: Tensor) -> Tensor:
    return F.normalize(vectors.float(), dim=-1)


@dataclass(frozen=True, slots=True)
class Outputs:
    """Means of the outputs of both passes (B, d) over the cases of each study, and which studies have any (B)."""

    similar: Float[Tensor, "batch dim"]
    difference: Float[Tensor, "batch dim"]
    has_cases: Bool[Tensor, " batch"]


class NegPosMatching(nn.Module):
    """The loss between projections of both sides; CLIP's temperature, for the paper gives none.

    Over ``outputs`` it is the mean of two: the image's mean token against the reports, and what aggregation made of the
    similar cases against the reports, with the difference features as negatives that no study is alike to ("contrastive
    learning with feature-differential negative samples").
    """

    def __init__(
        self,
        dim: int,
        text_dim: int,
        width: int,
        temperature: float,
        denominator: Denominator,
        over: Contrasted = "inputs",
    ) -> None:
        super().__init__()
        self.image = nn.Linear(dim, width)
        self.report = nn.Linear(text_dim, width)
        self.outputs = nn.Linear(dim, width) if over == "outputs" else None
        self.width = width
        self.temperature = temperature
        self.denominator: Denominator = denominator

    def of_image(self, image: Float[Tensor, "*n dim"]) -> Float[Tensor, "*n width"]:
        """A mean image token in the space that the loss aligns: of unit length, for the loss knows directions alone."""
        return F.normalize(self.image(image), dim=-1)

    def of_report(self, report: Float[Tensor, "*n text_dim"]) -> Float[Tensor, "*n width"]:
        """The feature of a report in the space that the loss aligns, of unit length."""
        return F.normalize(self.report(report), dim=-1)

    def loss(
        self, image: Tensor, report: Tensor, class_labels: Tensor, outputs: Callable[[], Outputs]
    ) -> Float[Tensor, ""]:
        """Row i of ``image`` (B, d) and of ``report`` (B, T) belong together, and so do those of ``outputs()``."""
        rest = class_labels, self.temperature, self.denominator
        own = self.report(report)
        loss = neg_pos_loss(self.image(image), own, *rest)
        if self.outputs is None:
            return loss
        means = outputs()
        # A study without cases is a zero vector: alike to nothing.
        has_cases = means.has_cases[:, None]
        similar, difference = (self.outputs(one) * has_cases for one in (means.similar, means.difference))
        return (loss + neg_pos_loss(similar, own, *rest, difference)) / 2


class NoMatching(nn.Module):
    """No contrastive loss ("w/o SCL" of Table 2); asked for it, it is 0. It aligns no space."""

    width: None = None

    def loss(
        self, image: Tensor, report: Tensor, class_labels: Tensor, outputs: Callable[[], Outputs]
    ) -> Float[Tensor, ""]:
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
    over: Contrasted = "inputs"

    def build(self, dim: int, text_dim: int) -> NegPosMatching:
        return NegPosMatching(dim, text_dim, self.width, self.temperature, self.denominator, self.over)


MatchingConfig = Annotated[NoMatchingConfig | NegPosMatchingConfig, Field(discriminator="kind")]
