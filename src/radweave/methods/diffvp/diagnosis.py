"""The diagnostic anchor E: a classifier of its own, whose findings stand in the prompt as words (appendix D)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from radweave.core.batch import Batch
from radweave.core.config import Config
from radweave.core.errors import InputError
from radweave.nn.connector import ViewTokens, encode_views
from radweave.nn.heads import FIRST_PRIOR, NoisyOrHead, Prior, UncertainPolicy, binary_loss, binary_targets
from radweave.nn.text_pretraining import DiagnosisText, TokenSlot
from radweave.nn.vision import InputSize, VisionEncoderConfig, VisionPart, tokens_of

if TYPE_CHECKING:
    from radweave.methods.model import TrainingView

UNFITTED = 0.5


def best_thresholds(
    probabilities: Float[Tensor, "studies classes"],
    positive: Bool[Tensor, "studies classes"],
    known: Bool[Tensor, "studies classes"],
) -> Float[Tensor, " classes"]:
    """For every class the probability from which on F1 over what is known is largest; of several the largest, 0.5 for a
    class never seen.

    F1 is asked at the probabilities of the positive studies: between two of them it does not grow.
    """
    thresholds = torch.full((probabilities.shape[1],), UNFITTED, device=probabilities.device)
    for place in range(probabilities.shape[1]):
        labelled = known[:, place]
        values, truth = probabilities[labelled, place], positive[labelled, place]
        candidates = values[truth].sort().values
        if len(candidates):
            called = values[None] >= candidates[:, None]
            scores = 2 * (called & truth).sum(1) / (called.sum(1) + truth.sum())
            thresholds[place] = candidates[scores == scores.max()].max()
    return thresholds


class NoisyOrDiagnosis(nn.Module):
    """E: voxel logits and Noisy-OR over an encoder of its own, or over the tokens of the model's frozen one.

    With an encoder of its own it needs the images themselves, where a frozen vision encoder's features would do else.
    """

    thresholds: Tensor

    def __init__(self, encoder: nn.Module | None, head: NoisyOrHead, threshold: float | None) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.fits_thresholds = threshold is None
        classes = head.linear.out_features
        self.register_buffer("thresholds", torch.full((classes,), UNFITTED if threshold is None else threshold))

    @property
    def architecture(self) -> Any:
        """The shape of its own encoder, for the run folder."""
        return getattr(self.encoder, "architecture", None)

    def logits(self, batch: Batch, views: ViewTokens) -> Float[Tensor, "batch classes"]:
        """Logits of the classes; ``views`` are the tokens of the model's encoder.

        Raises:
            InputError: if there are features in place of the images that an encoder of its own would read.
        """
        if self.encoder is not None:
            if batch.pixel_values is None and batch.volume is None:
                raise InputError(
                    "E reads the images with an encoder of its own, and features were kept instead",
                    field="data.keep_features",
                    got=True,
                    expected="data.keep_features=false, or model.diagnosis.encoder=null",
                )
            views = encode_views(self.encoder, replace(batch, vision_tokens=None))
        logits: Tensor = self.head(views)
        return logits

    def findings(self, logits: Float[Tensor, "batch classes"]) -> Bool[Tensor, "batch classes"]:
        """The classes that are put in words."""
        return logits.sigmoid() >= self.thresholds

    def words(self, logits: Float[Tensor, "batch classes"], text: DiagnosisText) -> TokenSlot:
        """The classes found, as token ids."""
        return text.tokens(self.findings(logits))

    def longest(self, text: DiagnosisText) -> int:
        """Tokens of the words of all classes."""
        return text.longest

    def loss(
        self,
        logits: Float[Tensor, "batch classes"],
        class_labels: Int[Tensor, "batch classes"],
        policy: UncertainPolicy,
    ) -> Float[Tensor, ""]:
        """Binary cross-entropy."""
        return binary_loss(logits, class_labels, policy)

    def fit(self, training: TrainingView, shared: nn.Module, policy: UncertainPolicy) -> None:
        """With no threshold given, take for every class the one of the best F1 on the training studies.

        ``shared`` is the model's encoder; uncertain labels count as in the loss.
        """
        if not self.fits_thresholds:
            return
        logits, device = [], self.thresholds.device
        for batch in training.batches(pixels=self.encoder is not None):
            moved = batch.to(device)
            logits.append(self.logits(moved, encode_views(shared, moved)).cpu())
        targets, known = binary_targets(training.class_states, policy)
        self.thresholds.copy_(best_thresholds(torch.cat(logits).sigmoid(), targets > 0, known))


class NoDiagnosis(nn.Module):
    """Without E: the first row of Table 4, and Table 6. It knows no class, names none, and its loss is 0."""

    def logits(self, batch: Batch, views: ViewTokens) -> Float[Tensor, "batch 0"]:
        return views.tokens.new_zeros(len(batch), 0)

    def words(self, logits: Float[Tensor, "batch 0"], text: DiagnosisText) -> TokenSlot:
        return logits.long(), logits.bool()

    def longest(self, text: DiagnosisText) -> int:
        return 0

    def loss(
        self, logits: Float[Tensor, "batch 0"], class_labels: Int[Tensor, "batch classes"], policy: UncertainPolicy
    ) -> Float[Tensor, ""]:
        return logits.new_zeros(())

    def fit(self, training: TrainingView, shared: nn.Module, policy: UncertainPolicy) -> None:
        """Nothing is fitted."""


Diagnosis = NoisyOrDiagnosis | NoDiagnosis


class NoDiagnosisConfig(Config):
    """No classes in the prompt."""

    kind: Literal["none"] = "none"

    def build(self, num_classes: int, shared: VisionPart, size: InputSize, saved: Path | None) -> NoDiagnosis:
        return NoDiagnosis()


class NoisyOrConfig(Config):
    """E. ``encoder`` is its own; null shares the model's frozen one, so that only the head is E's.

    Classes count as found from ``threshold`` on; with null each from the probability on that has the best F1 on the
    training split, which is found before reports are learned. ``prior`` is the probability of every class that a fresh
    head gives to one view, from which the first logit of each of its voxels follows.
    """

    kind: Literal["noisy_or"] = "noisy_or"
    encoder: VisionEncoderConfig | None = None
    threshold: float | None = Field(default=None, gt=0, lt=1)
    prior: Prior = FIRST_PRIOR

    def build(self, num_classes: int, shared: VisionPart, size: InputSize, saved: Path | None) -> NoisyOrDiagnosis:
        own = None if self.encoder is None else self.encoder.build(size.image, saved=saved)
        reads = shared if own is None else own
        head = NoisyOrHead(reads.dim, num_classes, self.prior, tokens_of(reads, size))
        return NoisyOrDiagnosis(own, head, self.threshold)


DiagnosisSetting = Annotated[NoDiagnosisConfig | NoisyOrConfig, Field(discriminator="kind")]
