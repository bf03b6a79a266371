"""Sources that learn: heads on the members' tokens, one for each member, trained on what that member was.

dense: classes and words of the report (the head that trains the encoder, ``radweave.nn.heads``)
tokens: one learned query per class that reads the patches (DAST, ``radweave.nn.query_transformer``)
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
from radweave.nn.connector import ViewTokens, encode_views
from radweave.nn.heads import DenseHead, DenseHeadConfig, binary_loss
from radweave.nn.query_transformer import DiseaseTokens, DiseaseTokensConfig

if TYPE_CHECKING:
    from radweave.methods.model import TrainingView


class LearnedSource(nn.Module, ABC):
    """A head on the tokens of each member; none where the source is left out."""

    def __init__(self, heads: Sequence[nn.Module], *, is_source: bool) -> None:
        super().__init__()
        self.each = nn.ModuleList(heads)
        self.is_source = is_source

    @abstractmethod
    def logits(self, number: int, views: ViewTokens) -> Float[Tensor, "batch classes"]:
        """Log-odds of each class by the head of one member."""

    def loss(self, number: int, views: ViewTokens, batch: Batch) -> Tensor:
        """Loss of the head of one member: of the classes."""
        return binary_loss(self.logits(number, views), required(batch.class_labels), "negative")

    def cross_fitted_loss(self, batch: Batch, folds: Tensor | None, encoder: Members) -> Tensor:
        """Losses of all heads (``cross_fitted``), each by the tokens of its member; 0 without a head."""
        if not len(self.each):
            return torch.zeros((), device=device_of(encoder))

        def of(number: int, some: Batch) -> Tensor:
            return self.loss(number, encode_views(encoder.each[number], some), some)

        return cross_fitted(batch, folds, list(self.each), of, encoder.alone)


class DenseSource(LearnedSource):
    """A dense head for each member. Without ``is_source`` it trains the encoder all the same, and is not asked."""

    def fit(self, training: TrainingView, folds: Folds) -> None:
        """Words and weights of each head, from the studies that its member trains on."""
        fold = folds.of(example.patient_id for example in training.examples)
        for number in range(len(self.each)):
            rows = (fold != number).nonzero().flatten().tolist()
            words = (training.examples[row].token_ids or () for row in rows)
            self.head(number).learn_targets(words, training.class_states[rows])

    def head(self, number: int) -> DenseHead:
        """The head of one member."""
        head = self.each[number]
        assert isinstance(head, DenseHead)
        return head

    def loss(self, number: int, views: ViewTokens, batch: Batch) -> Tensor:
        """Classes and words."""
        return self.head(number).loss(views.tokens, views.view_mask, required(batch.labels), batch.class_labels)

    def logits(self, number: int, views: ViewTokens) -> Float[Tensor, "batch classes"]:
        """Log-odds of each class."""
        return self.head(number).class_logits(views.tokens, views.view_mask)


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

    def logits(self, number: int, views: ViewTokens) -> Float[Tensor, "batch classes"]:
        """Log-odds of each class."""
        tokens = self.each[number]
        assert isinstance(tokens, DiseaseTokens)
        logits: Tensor = tokens(*views.flat()).logits
        return logits


class NoTokensConfig(Config):
    """Leave the source out."""

    kind: Literal["none"] = "none"

    def build(self, members: Members, num_classes: int) -> TokenSource:
        return TokenSource([], is_source=False)


class TokenSourceConfig(Config):
    """Disease tokens as DAST has them."""

    kind: Literal["disease_tokens"] = "disease_tokens"
    tokens: DiseaseTokensConfig = DiseaseTokensConfig()

    def build(self, members: Members, num_classes: int) -> TokenSource:
        return TokenSource([self.tokens.build(num_classes, members.width) for _ in members.each], is_source=True)


TokenSetting = Annotated[NoTokensConfig | TokenSourceConfig, Field(discriminator="kind")]
