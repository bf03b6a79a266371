"""A batch as a model sees it, and the losses that several methods have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, Protocol, TypeVar, cast

from torch import Tensor

from radweave.base.batch import Batch
from radweave.contract.model import ReportModel, Term, given
from radweave.nn.language_model import CausalLanguageModel
from radweave.nn.prompt import PromptTemplate, Slot
from radweave.nn.views import ViewTokens, encode_views
from radweave.nn.word_head import WordPart

ModelT = TypeVar("ModelT", bound=ReportModel)


@dataclass
class SeenBatch(Generic[ModelT]):
    """One batch through a model. A method adds what its terms need, each computed once, when it is first asked for."""

    model: ModelT
    batch: Batch

    @cached_property
    def encoded(self) -> ViewTokens:
        """The tokens of all views, as the encoder gives them."""
        return encode_views(self.model.encoder, self.batch)

    @cached_property
    def views(self) -> ViewTokens:
        """The tokens of all views, as the method reads them."""
        return self.encoded

    @cached_property
    def told(self) -> Slot | None:
        """What the language model is told of each study beside its images; None where it is told nothing of any."""
        ids, mask = self.batch.told_ids, self.batch.told_mask
        if ids is None or mask is None:
            return None
        model = cast(Writer, self.model)
        return model.language_model.embed(ids), mask

    def spliced(self, template: PromptTemplate, slots: Mapping[str, Slot]) -> Slot:
        """The prompt with these slots, after what is told of each study: every method's prompts come from here."""
        return template.splice(cast(Writer, self.model).language_model.embed, slots, self.told)


class Writer(Protocol):
    """A model with a causal language model."""

    @property
    def language_model(self) -> CausalLanguageModel: ...


class Text(Protocol):
    """A batch of a model that writes."""

    @property
    def model(self) -> Writer: ...
    @property
    def batch(self) -> Batch: ...


class Prompted(Text, Protocol):
    """A batch whose prompt is made of what was seen."""

    @property
    def prefix(self) -> Slot: ...


class WordModel(Protocol):
    """A model with a word head."""

    @property
    def word_head(self) -> WordPart: ...


class Viewed(Protocol):
    """A batch whose images were read, of a model with a word head."""

    @property
    def model(self) -> WordModel: ...
    @property
    def batch(self) -> Batch: ...
    @property
    def encoded(self) -> ViewTokens: ...


def report_loss(seen: Prompted) -> Tensor:
    """The report, per token, after the prompt."""
    return prompted_loss(seen, seen.prefix)


def prompted_loss(seen: Text, prefix: Slot) -> Tensor:
    """The report, per token, after this prefix."""
    batch = seen.batch
    return seen.model.language_model.loss(*prefix, given(batch.input_ids), given(batch.labels))


def text_loss(seen: Text) -> Tensor:
    """The report, per token, after nothing."""
    return seen.model.language_model.text_loss(given(seen.batch.input_ids), given(seen.batch.labels))


def words_loss(seen: Viewed) -> Tensor:
    """What the report says, off the image alone: its words, and with a dense head its classes too."""
    views, batch = seen.encoded, seen.batch
    return seen.model.word_head.loss(views.tokens, views.view_mask, given(batch.labels), batch.class_labels)


WORDS_TERM: Term[Viewed] = Term(("vision_encoder", "word_head"), words_loss, common=True)
"""The same for every method: a stage that trains by it alone is trained once for all of them."""
