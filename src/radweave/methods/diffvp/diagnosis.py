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
from radweave.nn.supervision import UncertainPolicy, binary_loss, binary_targets
from radweave.nn.text_pretraining import TokenSlot, pad_rows
from radweave.nn.views import ViewTokens, encode_views
from radweave.nn.vision import InputSize, VisionEncoderConfig, VisionPart, tokens_of

if TYPE_CHECKING:
    from radweave.contract.view import TrainingView

FAR, SERIES = -15.0, 1e-4
UNFITTED = 0.5
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
    """What every voxel must say for all of them together to give P = ``prior``: log((1 - prior)^(-1/n) - 1)."""
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


def best_thresholds(
    probabilities: Float[Tensor, "studies classes"],
    positive: Bool[Tensor, "studies classes"],
    known: Bool[Tensor, "studies classes"],
) -> Float[Tensor, " classes"]:
    """For every class the probability from which on F1 over what is known is largest; of several the largest, 0.5 for a
    class never seen.

    F1 is asked at the probabilities of the positive studies: between two of them it does not grow.
    """
    found = torch.full((probabilities.shape[1],), UNFITTED, device=probabilities.device)
    for place in range(probabilities.shape[1]):
        there = known[:, place]
        values, truth = probabilities[there, place], positive[there, place]
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
    class_labels: Int[Tensor, "batch classes"],
    policy: UncertainPolicy,
    generator: torch.Generator,
    *,
    missed: float,
    wrong: float,
) -> Bool[Tensor, "batch classes"]:
    """The findings that labels state, as a classifier would have seen them: some missed, some not there.

    Each one stated is missed with probability ``missed``, each other put in with ``wrong``. An uncertain label counts
    as ``policy`` says, as for the classifier itself; one that is to be ignored is not stated.
    """
    targets, known = binary_targets(class_labels, policy)
    stated = (targets > 0) & known
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


class DiagnosisTextConfig(Config):
    """How findings are put in words: ``intro``, then each name and a comma, or ``none`` where nothing is found."""

    intro: Prompt = ""
    none: Prompt = ""

    def build(self, encode: Callable[[str], Sequence[int]], classes: Sequence[str]) -> DiagnosisText:
        """Tokenise the words; names are written small."""
        intro, none = (tuple(encode(text)) if text else () for text in (self.intro, self.none))
        return DiagnosisText(intro, tuple(tuple(encode(f"{name.lower()},")) for name in classes), none)
