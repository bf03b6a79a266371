"""Sources that learn: heads on the members' tokens, one for each member, trained on what that member was.

dense: classes and words of the report (the head that trains the encoder, ``radweave.nn.heads``)
tokens: one learned query per class that reads the patches (DAST, ``radweave.nn.query_transformer``)
difference: Noisy-OR over what differs from normal studies of the same view (DiffVP, ``radweave.nn.heads``)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from radweave.core.batch import Batch
from radweave.core.config import Config
from radweave.methods.model import device_of, required
from radweave.methods.weave.members import Folds, Members, cross_fitted
from radweave.nn.connector import NUM_VIEW_KINDS, ViewTokens, encode_views
from radweave.nn.heads import FIRST_PRIOR, DenseHead, DenseHeadConfig, NoisyOrHead, Prior, are_normal, binary_loss
from radweave.nn.query_transformer import DiseaseTokens, DiseaseTokensConfig

if TYPE_CHECKING:
    from radweave.methods.model import TrainingView


class NoSource(nn.Module):
    """A source that is not there: it says nothing, and its loss is 0."""

    is_there = is_source = False

    def fit(self, training: TrainingView, encoder: Members, folds: Folds) -> None:
        """Nothing to fit."""

    def cross_fitted_loss(self, batch: Batch, folds: Tensor | None, encoder: Members) -> Tensor:
        """Zero."""
        return torch.zeros((), device=device_of(encoder))


class NoSourceConfig(Config):
    """Leave the source out."""

    kind: Literal["none"] = "none"

    def build(self, *_: object) -> NoSource:
        return NoSource()


class LearnedSource(nn.Module, ABC):
    """Heads on the members' tokens, one for each member."""

    each: nn.ModuleList

    @abstractmethod
    def logits(self, number: int, views: ViewTokens) -> Float[Tensor, "batch classes"]:
        """Log-odds of each class by the head of one member."""

    def loss(self, number: int, views: ViewTokens, batch: Batch) -> Tensor:
        """Loss of the head of one member: of the classes."""
        return binary_loss(self.logits(number, views), required(batch.class_labels), "negative")

    def cross_fitted_loss(self, batch: Batch, folds: Tensor | None, encoder: Members) -> Tensor:
        """Losses of all heads (``cross_fitted``), each by the tokens of its member."""

        def of(number: int, some: Batch) -> Tensor:
            return self.loss(number, encode_views(encoder.each[number], some), some)

        return cross_fitted(batch, folds, list(self.each), of, encoder.alone)


class DenseSource(LearnedSource):
    """A dense head for each member. Without ``is_source`` it trains the encoder all the same, and is not asked."""

    def __init__(self, heads: Sequence[DenseHead], *, is_source: bool) -> None:
        super().__init__()
        self.each = nn.ModuleList(heads)
        self.is_source = is_source

    def fit(self, training: TrainingView, folds: Folds) -> None:
        """Words and weights of each head, from the studies that its member trains on."""
        fold = folds.of(example.patient_id for example in training.examples)
        for number, head in enumerate(self.each):
            rows = (fold != number).nonzero().flatten().tolist()
            assert isinstance(head, DenseHead)
            head.learn_targets((training.examples[row].token_ids or () for row in rows), training.class_states[rows])

    def loss(self, number: int, views: ViewTokens, batch: Batch) -> Tensor:
        """Classes and words."""
        head = self.each[number]
        assert isinstance(head, DenseHead)
        return head.loss(views.tokens, views.view_mask, required(batch.labels), batch.class_labels)

    def logits(self, number: int, views: ViewTokens) -> Float[Tensor, "batch classes"]:
        """Log-odds of each class."""
        head = self.each[number]
        assert isinstance(head, DenseHead)
        return head.class_logits(views.tokens, views.view_mask)


class DenseSourceConfig(Config):
    """The head that trains the encoder. ``is_source`` says whether it is evidence too."""

    kind: Literal["dense"] = "dense"
    head: DenseHeadConfig = DenseHeadConfig()
    is_source: bool = True

    def build(self, members: Members, vocab_size: int, num_classes: int) -> DenseSource:
        heads = [self.head.build(members.width, vocab_size, num_classes) for _ in members.each]
        return DenseSource(heads, is_source=self.is_source)


class TokenSource(LearnedSource):
    """Disease tokens for each member."""

    is_there = is_source = True

    def __init__(self, tokens: Sequence[DiseaseTokens]) -> None:
        super().__init__()
        self.each = nn.ModuleList(tokens)

    def fit(self, training: TrainingView, encoder: Members, folds: Folds) -> None:
        """Nothing is fitted before it learns."""

    def logits(self, number: int, views: ViewTokens) -> Float[Tensor, "batch classes"]:
        logits: Tensor = self.each[number](*views.flat()).logits
        return logits


class TokenSourceConfig(Config):
    """Disease tokens as DAST has them."""

    kind: Literal["disease_tokens"] = "disease_tokens"
    tokens: DiseaseTokensConfig = DiseaseTokensConfig()

    def build(self, members: Members, num_classes: int, num_tokens: int) -> TokenSource:
        return TokenSource([self.tokens.build(num_classes, members.width) for _ in members.each])


class DifferenceSource(LearnedSource):
    """Noisy-OR over the tokens of (V - N) / s for each member.

    N (S, D) is the mean of the normal training studies' tokens at the same place of the same kind of view, s (D,) their
    deviation; of a member those of the studies that it was trained on.
    """

    is_there = is_source = True
    normal: Tensor
    spread: Tensor

    def __init__(self, heads: Sequence[NoisyOrHead], num_tokens: int, width: int) -> None:
        super().__init__()
        self.each = nn.ModuleList(heads)
        self.register_buffer("normal", torch.zeros(len(heads), NUM_VIEW_KINDS, num_tokens, width))
        self.register_buffer("spread", torch.ones(len(heads), width))

    @torch.no_grad()
    def fit(self, training: TrainingView, encoder: Members, folds: Folds) -> None:
        """Take the normal tokens from the training studies; of all studies where none is normal."""
        fold = folds.of(example.patient_id for example in training.examples)
        normal = are_normal(training.class_states, training.classes)
        apart = torch.arange(len(encoder))[:, None] != fold[None]
        counts = normal[None] & apart
        counts = torch.where(counts.any(1, keepdim=True), counts, apart)
        device, first = device_of(encoder), 0
        sums, squares = self.normal.double().zero_(), self.spread.double().zero_()
        number = torch.zeros(len(encoder), NUM_VIEW_KINDS, dtype=torch.float64, device=device)
        for batch in training.batches():
            views = encode_views(encoder, batch.to(device))
            own, first = counts[:, first : first + len(batch)].to(device), first + len(batch)
            for member in range(len(encoder)):
                own_views = encoder.of(member, views)
                present = own_views.view_mask & own[member][:, None]
                tokens = own_views.tokens[present].double()
                # Of a view whose kind is not known, all count.
                for kind in range(NUM_VIEW_KINDS):
                    of_kind = tokens if kind == 0 else tokens[own_views.view_ids[present] == kind]
                    sums[member, kind] += of_kind.sum(0)
                    number[member, kind] += len(of_kind)
                squares[member] += tokens.square().mean(1).sum(0)
        known = torch.where(number[..., None, None] > 0, sums, sums[:, :1])
        count = torch.where(number > 0, number, number[:, :1]).clamp(min=1)
        self.normal.copy_(known / count[..., None, None])
        centre = self.normal[:, 0].double()
        variance = squares / count[:, :1] - centre.square().mean(1)
        spread = variance.clamp(min=1e-6).sqrt()
        self.spread.copy_(torch.where(number[:, :1] > 0, spread, torch.ones_like(spread)))

    def logits(self, number: int, views: ViewTokens) -> Float[Tensor, "batch classes"]:
        apart = (views.tokens - self.normal[number][views.view_ids]) / self.spread[number]
        difference = ViewTokens(apart, views.view_mask, views.view_ids, views.grid)
        logits: Tensor = self.each[number](difference)
        return logits


class DifferenceSourceConfig(Config):
    """``prior`` is the probability of every class that a fresh head gives to one view."""

    kind: Literal["noisy_or"] = "noisy_or"
    prior: Prior = FIRST_PRIOR

    def build(self, members: Members, num_classes: int, num_tokens: int) -> DifferenceSource:
        heads = [NoisyOrHead(members.width, num_classes, self.prior, num_tokens) for _ in members.each]
        return DifferenceSource(heads, num_tokens, members.width)


TokenSetting = Annotated[NoSourceConfig | TokenSourceConfig, Field(discriminator="kind")]
DifferenceSetting = Annotated[NoSourceConfig | DifferenceSourceConfig, Field(discriminator="kind")]
Learned = TokenSource | DifferenceSource | NoSource
