"""The diagnostic anchor E: a classifier of its own, whose findings stand in the prompt as words (appendix D)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from radweave.base.batch import Batch
from radweave.base.config import Config, Prompt
from radweave.base.errors import InputError
from radweave.nn.supervision import POSITIVE, UNCERTAIN, UncertainPolicy, binary_loss
from radweave.nn.text_pretraining import TokenSlot, pad_rows
from radweave.nn.views import ViewTokens, encode_views
from radweave.nn.vision import VisionEncoderConfig

if TYPE_CHECKING:
    from radweave.contract.view import TrainingView

SMALLEST = -1e-7
UNFITTED = 0.5


def log1mexp(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """log(1 - exp(x)) for x < 0, exact near 0 and far from it.

    Source: Mächler, "Accurately computing log(1 - exp(-|a|))", 2012. x is kept below -1e-7, where the result is -16.
    """
    x = x.clamp(max=SMALLEST)
    near = x > -math.log(2)
    # Each branch sees harmless values where the other one counts: an infinite gradient times zero is no number.
    close = torch.where(near, x, torch.full_like(x, -1.0))
    far = torch.where(near, torch.full_like(x, -1.0), x)
    return torch.where(near, torch.log(-torch.expm1(close)), torch.log1p(-torch.exp(far)))


def noisy_or_logits(
    voxel_logits: Float[Tensor, "batch voxels classes"], mask: Bool[Tensor, "batch voxels"]
) -> Float[Tensor, "batch classes"]:
    """The logit of P = 1 - prod_v (1 - p_v), p_v = sigmoid(x_v), over the voxels that are there.

    log(1 - P) = sum_v logsigmoid(-x_v), and the logit is log P - log(1 - P): products of thousands of factors never
    leave the logarithm.
    """
    log_absent = F.logsigmoid(-voxel_logits).masked_fill(~mask[:, :, None], 0.0).sum(1)
    return log1mexp(log_absent) - log_absent


class NoisyOrHead(nn.Module):
    """A 1 x 1 (x 1) convolution over the grid, that is a linear map of every token, and Noisy-OR over all of them.

    ``first_logit`` is what a fresh head says of every voxel; were it 0, thousands of voxels would be certain of
    everything.
    """

    def __init__(self, dim: int, num_classes: int, first_logit: float) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, num_classes)
        nn.init.constant_(self.linear.bias, first_logit)

    def forward(self, views: ViewTokens) -> Float[Tensor, "batch classes"]:
        tokens, mask = views.flat()
        return noisy_or_logits(self.linear(tokens), mask)


def best_thresholds(
    probabilities: Float[Tensor, "studies classes"], positive: Bool[Tensor, "studies classes"]
) -> Float[Tensor, " classes"]:
    """For every class the probability from which on F1 is largest; of several the largest, 0.5 for a class never seen.

    F1 is asked at the probabilities of the positive studies: between two of them it does not grow.
    """
    found = torch.full((probabilities.shape[1],), UNFITTED, device=probabilities.device)
    for place in range(probabilities.shape[1]):
        values, truth = probabilities[:, place], positive[:, place]
        candidates = values[truth].sort().values
        if len(candidates):
            called = values[None] >= candidates[:, None]
            scores = 2 * (called & truth).sum(1) / (called.sum(1) + truth.sum())
            found[place] = candidates[scores == scores.max()].max()
    return found


@dataclass(frozen=True, slots=True)
class DiagnosisText:
    """How findings are put in words, as token ids: ``intro``, then each class's name, or ``none``."""

    intro: tuple[int, ...]
    names: tuple[tuple[int, ...], ...]
    none: tuple[int, ...]

    def tokens(self, found: Bool[Tensor, "batch classes"]) -> TokenSlot:
        """The words for each study, in the order of the classes."""
        rows = []
        for study in found.tolist():
            named = [token for name, there in zip(self.names, study, strict=True) if there for token in name]
            rows.append([*self.intro, *(named or self.none)])
        return pad_rows(rows, found.device)


def noisy_findings(
    class_labels: Int[Tensor, "batch classes"], generator: torch.Generator, *, missed: float, wrong: float
) -> Bool[Tensor, "batch classes"]:
    """The findings that labels state, as a classifier would have seen them: some missed, some not there.

    Each one stated (positive or uncertain) is missed with probability ``missed``, each other put in with ``wrong``.
    """
    stated = (class_labels == POSITIVE) | (class_labels == UNCERTAIN)
    draw = torch.rand(class_labels.shape, generator=generator).to(class_labels.device)
    return torch.where(stated, draw >= missed, draw < wrong)


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

    def found(self, logits: Float[Tensor, "batch classes"]) -> Bool[Tensor, "batch classes"]:
        """The classes that are put in words."""
        return logits.sigmoid() >= self.thresholds

    def words(self, logits: Float[Tensor, "batch classes"], text: DiagnosisText) -> TokenSlot:
        """The classes found, as token ids."""
        return text.tokens(self.found(logits))

    def loss(
        self,
        logits: Float[Tensor, "batch classes"],
        class_labels: Int[Tensor, "batch classes"],
        policy: UncertainPolicy,
    ) -> Float[Tensor, ""]:
        """Binary cross-entropy."""
        return binary_loss(logits, class_labels, policy)

    def fit(self, training: TrainingView, shared: nn.Module) -> None:
        """With no threshold given, take for every class the one of the best F1 on the training studies.

        ``shared`` is the model's encoder.
        """
        if not self.fits_thresholds:
            return
        logits, device = [], self.thresholds.device
        for batch in training.batches(pixels=self.encoder is not None):
            moved = batch.to(device)
            logits.append(self.logits(moved, encode_views(shared, moved)).cpu())
        positive = training.class_states == POSITIVE
        self.thresholds.copy_(best_thresholds(torch.cat(logits).sigmoid(), positive))


class NoDiagnosis(nn.Module):
    """Without E: the first row of Table 4, and Table 6. It knows no class, names none, and its loss is 0."""

    def logits(self, batch: Batch, views: ViewTokens) -> Float[Tensor, "batch 0"]:
        return views.tokens.new_zeros(len(batch), 0)

    def words(self, logits: Float[Tensor, "batch 0"], text: DiagnosisText) -> TokenSlot:
        return logits.long(), logits.bool()

    def loss(
        self, logits: Float[Tensor, "batch 0"], class_labels: Int[Tensor, "batch classes"], policy: UncertainPolicy
    ) -> Float[Tensor, ""]:
        return logits.new_zeros(())

    def fit(self, training: TrainingView, shared: nn.Module) -> None:
        """Nothing is fitted."""


Diagnosis = NoisyOrDiagnosis | NoDiagnosis


class NoDiagnosisConfig(Config):
    """No classes in the prompt."""

    kind: Literal["none"] = "none"

    def build(self, num_classes: int, dim: int, image_size: int, saved: Path | None) -> NoDiagnosis:
        return NoDiagnosis()


class NoisyOrConfig(Config):
    """E. ``encoder`` is its own; null shares the model's frozen one, so that only the head is E's.

    Classes count as found from ``threshold`` on; with null each from the probability on that has the best F1 on the
    training split, which is found before reports are learned. ``first_logit`` is that of every voxel at the start:
    about minus the logarithm of their number.
    """

    kind: Literal["noisy_or"] = "noisy_or"
    encoder: VisionEncoderConfig | None = None
    threshold: float | None = Field(default=None, gt=0, lt=1)
    first_logit: float = -7.0

    def build(self, num_classes: int, dim: int, image_size: int, saved: Path | None) -> NoisyOrDiagnosis:
        encoder: nn.Module | None = None
        if self.encoder is not None:
            built = self.encoder.build(image_size, saved=saved)
            encoder, dim = built, built.dim
        return NoisyOrDiagnosis(encoder, NoisyOrHead(dim, num_classes, self.first_logit), self.threshold)


DiagnosisSetting = Annotated[NoDiagnosisConfig | NoisyOrConfig, Field(discriminator="kind")]


class DiagnosisTextConfig(Config):
    """How findings are put in words: ``intro``, then each name and a comma, or ``none`` where nothing is found."""

    intro: Prompt = ""
    none: Prompt = ""

    def build(self, encode: Callable[[str], Sequence[int]], classes: Sequence[str]) -> DiagnosisText:
        """Tokenise the words; names are written small."""
        intro, none = (tuple(encode(text)) if text else () for text in (self.intro, self.none))
        return DiagnosisText(intro, tuple(tuple(encode(f"{name.lower()},")) for name in classes), none)
