"""A report model as the engine sees it: named parts, losses as terms, memories, reports.

A method's model is a dataclass of its parts, which are its children in that order, and of what it needs beside them.
Its losses stand in a table of terms; a term is a method of a lazy view of one batch (``Seen``), so that what several
terms need is computed once:

    class Seen:
        @cached_property
        def views(self) -> ViewTokens: ...
        def disease(self) -> Tensor: ...

    TERMS = {"disease": Term(reads=("vision_encoder", "disease_tokens"), loss=Seen.disease)}
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from radweave.base.batch import Batch, Generation, VisionEncoder
from radweave.base.config import Config
from radweave.base.errors import InputError
from radweave.drafting.smoothers import Evidence
from radweave.memory.bank import Bank, BankLayout
from radweave.nn.decoding import DecodingConfig

if TYPE_CHECKING:
    from radweave.contract.view import Look, TrainingView

SeenT = TypeVar("SeenT", contravariant=True)
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Reads:
    """What the engine knows of a term: the parts that it reads.

    No other part may change it: kept stages rely on that, and a contract test checks it. A ``common`` term is the same
    function in every method that has it, and reads nothing of the model's record but its parts.
    """

    reads: tuple[str, ...]
    common: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Term(Reads, Generic[SeenT]):
    """A loss, and how it comes of a batch as its model sees it. A part that is absent makes it 0."""

    loss: Callable[[SeenT], Tensor]


def losses(known: Mapping[str, Term[SeenT]], seen: SeenT, asked: Sequence[str]) -> dict[str, Tensor]:
    """The terms asked for, computed in the order of the table: random numbers are drawn in that order.

    Raises:
        InputError: for a term that the model does not have.
    """
    refuse_unknown("losses", asked, known)
    return {name: term.loss(seen) for name, term in known.items() if name in asked}


def refuse_unknown(field: str, asked: Sequence[str], known: Mapping[str, object]) -> None:
    """Refuse a name that a model does not have.

    Raises:
        InputError: naming those that exist.
    """
    for name in asked:
        if name not in known:
            what = "loss" if field.endswith("losses") else "part"
            raise InputError(f"the model has no such {what}", field=field, got=name, expected=f"of {', '.join(known)}")


class ReportModel(nn.Module, ABC):
    """What the engine asks of a method's model. No number is computed here.

    One of its parts is a vision encoder; a model with none or several does not get past its first use.
    """

    terms: Mapping[str, Reads]
    """The losses by name, in the order in which they are computed."""

    def __new__(cls, *args: object, **parts: object) -> Self:
        # A dataclass sets its fields in ``__init__``; torch wants to be ready before the first part is set.
        model = super().__new__(cls)
        nn.Module.__init__(model)
        return model

    @property
    def encoder(self) -> nn.Module:
        """The one part that is a vision encoder; where it is frozen, what it gives may be computed once and kept."""
        (encoder,) = (part for part in self.children() if isinstance(part, VisionEncoder))
        return encoder

    @abstractmethod
    def loss(self, batch: Batch, terms: Sequence[str]) -> dict[str, Tensor]:
        """The scalar terms that are asked for, which are those the stage gives a weight.

        Raises:
            InputError: for a term that it does not have.
        """

    @abstractmethod
    def generate(self, batch: Batch, decoding: DecodingConfig) -> Generation:
        """A report and its evidence for each study of the batch."""

    def build_memories(self, stage: str, training: TrainingView) -> dict[str, Bank]:
        """The banks that are made before a stage, by name, from the training split alone; none unless a method says."""
        return {}

    def figures(self) -> Mapping[str, Mapping[str, float | None]]:
        """What each of its sources of evidence is worth, by name, as its training found: shown with the run."""
        return {}

    def memory_layouts(self) -> Mapping[str, BankLayout]:
        """What the banks that it cannot do without must look like, by name. A run that lacks one is refused."""
        return {}

    def asks_priors(self) -> bool:
        """Whether a study's prior is given to it; without, a draft compares with nothing."""
        return True

    def set_memories(self, banks: Mapping[str, Bank]) -> None:
        """Take the banks of a run, by name.

        Raises:
            InputError: if there are some and the method has no use for any.
        """
        if banks:
            raise InputError("this method has no memories", got=", ".join(banks))


def device_of(model: nn.Module) -> torch.device:
    """Where a model is. One that has nothing to train still has buffers."""
    for parameter in model.parameters():
        return parameter.device
    return next(model.buffers()).device


def parts_of(model: nn.Module) -> dict[str, nn.Module]:
    """The parts of a model by name: its children. A stage trains some of them, a term reads some of them."""
    return dict(model.named_children())


def encoder_name(model: ReportModel) -> str:
    """The name of the part that reads the images."""
    return next(name for name, part in parts_of(model).items() if part is model.encoder)


class Saves(Protocol):
    """What writes itself into a folder as transformers does: a model's shape, a tokenizer."""

    def save_pretrained(self, save_directory: str) -> object: ...


@runtime_checkable
class Shaped(Protocol):
    """A part whose shape is kept with a run, which then restores without a checkpoint; None if there is none."""

    @property
    def architecture(self) -> Saves | None: ...


@runtime_checkable
class Tokenizing(Protocol):
    """A part with a tokenizer of its own, kept beside its shape."""

    @property
    def tokenizer(self) -> Saves: ...


@runtime_checkable
class PartlyUntrained(Protocol):
    """A part of which a checkpoint lacked some parameters, named here: they train where only adapters do."""

    @property
    def untrained(self) -> frozenset[str]: ...


@runtime_checkable
class LearnsTargets(Protocol):
    """A part whose targets are found in the training split, by token ids and label states, before a stage trains it."""

    def learn_targets(self, reports: Iterable[Sequence[int]], class_states: Tensor) -> None: ...


@runtime_checkable
class Classifying(Protocol):
    """A model with heads for the classes: their logits (B, K), higher for likelier."""

    def class_logits(self, batch: Batch) -> Tensor: ...


@runtime_checkable
class Witness(Protocol):
    """A model that says itself how much each training study speaks for a study, in the order of the training split.

    ``left_out`` is the same for the training studies, each without its patient's; it is asked once, after the memories
    were built. ``speaks_log_odds`` says whether the scores are log-odds, or smoothed labels, about 0 to 1.
    """

    def testify(self, batch: Batch) -> list[Evidence]: ...

    def left_out(self) -> list[Evidence]: ...

    def speaks_log_odds(self) -> bool: ...


@runtime_checkable
class Proposing(Protocol):
    """A witness with a language model that writes reports for each study, given what was said of it: they join what a
    draft is chosen from.
    """

    def propose(self, batch: Batch, said: Sequence[Evidence], decoding: DecodingConfig) -> list[list[str]]: ...


@runtime_checkable
class Varied(Protocol):
    """A model of which something may be set anew for a trained run: experiments of a paper that train nothing.

    ``settings`` is a record of what may be set, as the run has it. ``vary`` sets it otherwise in this process alone;
    ``look`` opens a split of a data set, given its folder, or of the data set that is reported on.
    """

    @property
    def settings(self) -> Config: ...

    def vary(self, settings: Any, look: Look) -> None: ...


def given(value: Value | None) -> Value:
    """A field of the batch that this loss cannot do without; the loader fills it in training."""
    assert value is not None
    return value


def written(
    ids: list[list[int]], log_probs: list[list[float]], evidence: Sequence[Mapping[str, Any]] | None = None
) -> Generation:
    """What a language model wrote for each study, with the evidence."""
    rows = [{}] * len(ids) if evidence is None else evidence
    shown = [{"token_log_probs": values, **row} for values, row in zip(log_probs, rows, strict=True)]
    return Generation(token_ids=ids, intermediates=shown)
