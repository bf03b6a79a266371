"""Disease states from image and similar reports, their logit-adjusted loss, and the prompt tokens that they become.

Source: the paper's Eq. 9 after PromptMRG (Jin et al., AAAI 2024) and Menon et al., "Long-tail learning via logit
adjustment", ICLR 2021.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from radweave.core.config import Config
from radweave.nn.global_batch import mean_over_batch, sum_over_ranks
from radweave.nn.heads import POSITIVE, UNLABELED

STATES = ("blank", "positive", "negative", "uncertain")
"""In the order of ``Batch.class_labels``."""
Adjustment = Literal["none", "frequency", "relative", "adaptive"]
MOMENTUM = 0.99


def adjusted_loss(
    logits: Float[Tensor, "batch classes 4"],
    class_labels: Int[Tensor, "batch classes"],
    log_prior: Float[Tensor, " classes"],
) -> Float[Tensor, ""]:
    """Cross-entropy over the four states with log pi_D added to the positive logit alone (Eq. 9).

    A rare disease's positive logit must be larger by -log pi_D to count the same. Mean over what is labelled.
    """
    bonus = F.one_hot(torch.tensor(POSITIVE, device=logits.device), len(STATES)).to(logits.dtype)
    adjusted = logits + log_prior[:, None].to(logits.dtype) * bonus
    losses = F.cross_entropy(adjusted.flatten(0, 1), class_labels.flatten(), ignore_index=UNLABELED, reduction="sum")
    return mean_over_batch(losses, (class_labels != UNLABELED).sum())


class DiseaseStates(nn.Module):
    """Per class a head over four states, and an embedding for each state of each class.

        logits = W [mean image token; mean similar token] + b

    ``adjustment`` says what pi_D is: the class's ``frequency`` of positive studies in the training split; the same
    ``relative`` to the most frequent class; or ``adaptive``, which starts as relative and then follows how probable
    the model finds the positive state of studies that have it: a running mean over training batches, relative to the
    best class. Nothing is added after training.
    """

    def __init__(self, dim: int, width: int, num_classes: int, adjustment: Adjustment, taught: float) -> None:
        super().__init__()
        self.adjustment = adjustment
        self.taught = taught
        self.head = nn.Linear(2 * dim, num_classes * len(STATES))
        self.prompts = nn.Parameter(torch.randn(num_classes, len(STATES), width) * width**-0.5)
        self.prior: Tensor
        self.register_buffer("prior", torch.ones(num_classes))

    def set_prior(self, class_states: Int[Tensor, "studies classes"]) -> None:
        """Take the share of positive studies of each class; a class without one counts as half a study."""
        known = (class_states != UNLABELED).sum(0).clamp(min=1)
        positive = (class_states == POSITIVE).sum(0).clamp(min=0.5)
        self.prior.copy_(positive / known)

    @property
    def log_prior(self) -> Float[Tensor, " classes"]:
        """The log of pi_D as the loss takes it."""
        if self.adjustment == "none":
            return torch.zeros_like(self.prior)
        prior = self.prior if self.adjustment == "frequency" else self.prior / self.prior.max()
        return prior.log()

    def forward(
        self, image: Float[Tensor, "batch dim"], similar: Float[Tensor, "batch dim"]
    ) -> Float[Tensor, "batch classes 4"]:
        """Logits of the four states."""
        out: Tensor = self.head(torch.cat([image, similar], dim=-1)).unflatten(-1, (-1, len(STATES)))
        return out

    def loss(
        self, logits: Float[Tensor, "batch classes 4"], class_labels: Int[Tensor, "batch classes"]
    ) -> Float[Tensor, ""]:
        """Eq. 9; while training an adaptive prior learns from the batch, after it was used."""
        prior = self.log_prior
        if self.training and self.adjustment == "adaptive":
            self._adapt(logits.detach().float(), class_labels)
        return adjusted_loss(logits.float(), class_labels, prior)

    @torch.no_grad()
    def _adapt(self, logits: Tensor, class_labels: Tensor) -> None:
        hits = class_labels == POSITIVE
        probability = logits.softmax(-1)[..., POSITIVE]
        count = sum_over_ranks(hits.float().sum(0))
        mean = sum_over_ranks((probability * hits).sum(0)) / count.clamp(min=1)
        moved = MOMENTUM * self.prior + (1 - MOMENTUM) * mean.to(self.prior.dtype)
        self.prior.copy_(torch.where(count > 0, moved, self.prior))

    def shown(
        self, logits: Float[Tensor, "batch classes 4"], class_labels: Int[Tensor, "batch classes"] | None
    ) -> Int[Tensor, "batch classes"]:
        """States for the decoder's prompt: the most probable; while training, for a share ``taught``, the labels."""
        states = logits.argmax(-1)
        if not self.training or class_labels is None:
            return states
        teach = torch.rand(len(states), 1, device=states.device) < self.taught
        return torch.where(teach & (class_labels != UNLABELED), class_labels, states)

    def prompt(self, states: Int[Tensor, "batch classes"]) -> Float[Tensor, "batch classes width"]:
        """One prompt token for each class, of the state it is in."""
        out: Tensor = self.prompts[torch.arange(states.shape[1], device=states.device), states]
        return out


class DiseaseStatesConfig(Config):
    """Heads and prompt tokens. ``taught`` is the share of training studies whose prompt shows the labels rather than
    the prediction, which is what the prompt shows otherwise.
    """

    adjustment: Adjustment = "adaptive"
    taught: float = Field(default=1.0, ge=0, le=1)

    def build(self, dim: int, width: int, num_classes: int) -> DiseaseStates:
        return DiseaseStates(dim, width, num_classes, self.adjustment, self.taught)
