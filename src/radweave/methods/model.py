"""A report model as the engine sees it: named parts, losses as terms, memories, reports.

A method's model is a dataclass of its parts, which are its children in that order, and of what it needs beside them.
Its losses stand in a table of terms; a term is a method of a lazy view of one batch (``Forward``), so that what several
terms need is computed once:

    class Forward:
        @cached_property
        def views(self) -> ViewTokens: ...
        def disease(self) -> Tensor: ...

    TERMS = {"disease": Term(reads=("vision_encoder", "disease_tokens"), loss=Forward.disease)}
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar, cast, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from radweave.core.batch import Batch, Generation, VisionEncoder
from radweave.core.config import Config
from radweave.core.errors import InputError
from radweave.core.evidence import DraftEvidence, OwnReports, RecalledText
from radweave.core.map_kinds import OF_WORDS
from radweave.core.study import Split, Study
from radweave.data.loader import Example, Features, StudyLoader
from radweave.drafting.smoothers import Evidence
from radweave.methods.renamed import rename_parts
from radweave.nn.connector import ViewTokens, encode_views
from radweave.nn.decoding import DecodingConfig, Prefixes, Written
from radweave.nn.heads import WordPart
from radweave.nn.language_model import CausalLanguageModel, study_nats
from radweave.nn.memory.bank import Bank, BankLayout
from radweave.nn.prompt import PromptTemplate, Slot

PassT = TypeVar("PassT", contravariant=True)
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Reads:
    """The parts that a loss term reads.

    No other part may change it: kept stages rely on that, and a contract test checks it. A ``common`` term is the same
    function in every method that has it, and reads nothing of the model's record but its parts. One that reads the
    ``images`` themselves cannot do with kept features of a frozen encoder.
    """

    reads: tuple[str, ...]
    common: bool = field(default=False, kw_only=True)
    images: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Term(Reads, Generic[PassT]):
    """A loss, and how it comes of a batch as its model sees it. A part that is absent makes it 0.

    ``silent`` is the reason why a step on it need not change what the decoder reads; empty where it must
    (``radweave.experiments.probe``).
    """

    loss: Callable[[PassT], Tensor]
    silent: str = field(default="", kw_only=True)


@dataclass(frozen=True, slots=True)
class DecoderInput:
    """A named input of the decoder: tokens that stand before a report, or that it cross-attends to.

    ``part`` is the idea that they carry, in the words of a page. ``silent`` is the reason why the exchange of it need
    not cost anything; empty where it must (``radweave.experiments.probe``). ``covered_by`` names the inputs that are
    expected to tell the same, with the reason in ``because``: its exchange need not cost anything beside them, and has
    to cost where it is alone.
    """

    part: str
    silent: str = ""
    covered_by: tuple[str, ...] = field(default=(), kw_only=True)
    because: str = field(default="", kw_only=True)


@dataclass(frozen=True, slots=True)
class InputSource:
    """Features that become the input ``of`` of the decoder by reading the image, as they are before.

    An input that has read the image may owe the image what its exchange costs; its source owes it no such reading.
    What else is made of the source changes with it.
    """

    part: str
    of: str


InputReader = Callable[[str, Slot], Slot]
"""Input of the decoder, or source, by name, to what stands in its place: withheld in training, exchanged by a probe."""


class Withheld:
    """Reader that withholds inputs of single studies in one training pass.

    Each input of ``shares`` is withheld from its own share of the studies, independently. A share ``single`` of the
    studies is written after one input alone, drawn evenly among ``inputs``. A decoder that always has the image need
    never read what was made of it, and one that always has two inputs of the same content need read only one of them.

    Source: modality dropout, Neverova et al., "ModDrop", TPAMI 2016.
    """

    def __init__(self, shares: Mapping[str, float], single: float = 0.0, inputs: Sequence[str] = ()) -> None:
        self.shares = shares
        self.single = single
        self.inputs = tuple(inputs)
        self.places = {name: place for place, name in enumerate(self.inputs)}
        self.drawn: Tensor | None = None

    def __call__(self, name: str, slot: Slot) -> Slot:
        tokens, mask = slot
        share = self.shares.get(name, 0.0)
        if share:
            mask = mask & (torch.rand(len(mask), 1, device=mask.device) >= share)
        if self.single:
            only = self._only(mask)
            mask = mask & ((only < 0) | (only == self.places.get(name, len(self.inputs))))
        return tokens, mask

    def _only(self, mask: Bool[Tensor, "batch tokens"]) -> Int[Tensor, "batch 1"]:
        """Place of the one input that a study is written after; -1 where it is written after all."""
        if self.drawn is None:
            chosen = torch.randint(len(self.inputs), (len(mask), 1), device=mask.device)
            alone = torch.rand(len(mask), 1, device=mask.device) < self.single
            self.drawn = torch.where(alone, chosen, -1)
        return self.drawn


def losses(known: Mapping[str, Term[PassT]], forward: PassT, names: Sequence[str]) -> dict[str, Tensor]:
    """The terms asked for, computed in the order of the table: random numbers are drawn in that order.

    Raises:
        InputError: for a term that the model does not have.
    """
    refuse_unknown("losses", names, known)
    return {name: term.loss(forward) for name, term in known.items() if name in names}


def refuse_unknown(field: str, names: Sequence[str], known: Mapping[str, object]) -> None:
    """Refuse a name that a model does not have.

    Raises:
        InputError: naming those that exist.
    """
    for name in names:
        if name not in known:
            what = {"losses": "loss", "withheld": "input of its decoder"}.get(field, "part")
            raise InputError(f"the model has no such {what}", field=field, got=name, expected=f"of {', '.join(known)}")


class ReportModel(nn.Module, ABC):
    """Interface of a method's model to the engine. No number is computed here.

    One of its parts is a vision encoder; a model with none or several does not get past its first use.
    """

    terms: Mapping[str, Reads]
    """The losses by name, in the order in which they are computed."""
    inputs: Mapping[str, DecoderInput] = {}
    """Inputs of the decoder by name, in the order of the prompt: what every report is written after."""
    input_sources: Mapping[str, InputSource] = {}
    """Sources of inputs that read the image, by name."""
    reader: InputReader | None = None
    """Stands between the inputs and the decoder while it is set (``reading_by``)."""
    source_reader: InputReader | None = None
    """Stands between the sources and the image that they read."""

    def __new__(cls, *args: object, **parts: object) -> Self:
        # A dataclass sets its fields in ``__init__``; torch wants to be ready before the first part is set.
        model = super().__new__(cls)
        nn.Module.__init__(model)
        model.register_load_state_dict_pre_hook(rename_parts)  # type: ignore[no-untyped-call]
        return model

    @property
    def absent_inputs(self) -> frozenset[str]:
        """Inputs without a single token, since the configuration leaves out the part that makes them."""
        return frozenset()

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

    def report_nats(self, batch: Batch) -> Float[Tensor, " batch"]:
        """Mean negative log-likelihood per token of each study's report, as the model stands.

        Raises:
            InputError: if the method has no decoder.
        """
        raise InputError("the method has no decoder that writes after named inputs", field="method")

    @contextmanager
    def reading_by(self, reader: InputReader | None, sources: InputReader | None = None) -> Iterator[None]:
        """Let a reader stand between the inputs and the decoder within the block, and another behind the sources."""
        before = self.reader, self.source_reader
        self.reader, self.source_reader = reader, sources
        try:
            yield
        finally:
            self.reader, self.source_reader = before

    def build_memories(self, stage: str, training: TrainingView) -> dict[str, Bank]:
        """The banks that are made before a stage, by name, from the training split alone; none unless a method says."""
        return {}

    def figures(self) -> Mapping[str, Mapping[str, float | None]]:
        """Figures of merit of each evidence source, by name, measured in training: shown with the run."""
        return {}

    def memory_layouts(self) -> Mapping[str, BankLayout]:
        """Layouts of the banks that the model needs, by name. A run that lacks one is refused."""
        return {}

    def set_memories(self, banks: Mapping[str, Bank]) -> None:
        """Take the banks of a run, by name.

        Raises:
            InputError: if there are some and the method has no use for any.
        """
        if banks:
            raise InputError("this method has no memories", got=", ".join(banks))


def device_of(model: nn.Module) -> torch.device:
    """Device of a model. One that has nothing to train still has buffers."""
    for parameter in model.parameters():
        return parameter.device
    return next(model.buffers()).device


def named_parts(model: nn.Module) -> dict[str, nn.Module]:
    """The parts of a model by name: its children. A stage trains some of them, a term reads some of them."""
    return dict(model.named_children())


def encoder_name(model: ReportModel) -> str:
    """The name of the part that reads the images."""
    return next(name for name, part in named_parts(model).items() if part is model.encoder)


class Saves(Protocol):
    """An object that saves itself as transformers does: a model's shape, a tokenizer."""

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
class EvidenceSource(Protocol):
    """A model that says itself how much each training study speaks for a study, in the order of the training split.

    ``left_out`` is the same for the training studies, each without its patient's; it is asked once, after the memories
    were built. ``scores_are_log_odds`` says whether the scores are log-odds, or smoothed labels, about 0 to 1.
    """

    def evidence_for(self, batch: Batch) -> list[Evidence]: ...

    def left_out(self) -> list[Evidence]: ...

    def scores_are_log_odds(self) -> bool: ...


@runtime_checkable
class Proposing(Protocol):
    """A witness whose language model writes reports for each study after its evidence: see ``own_reports``."""

    def propose(self, batch: Batch, evidence: Sequence[Evidence], decoding: DecodingConfig) -> list[list[str]]: ...


@dataclass(frozen=True, slots=True)
class StudySize:
    """Size of what a model gets of a study: ``views`` of ``tokens`` visual tokens each, so many tokens of ``context``,
    and its prior or not.
    """

    views: int
    tokens: int
    context: int = 0
    prior: bool = False


@runtime_checkable
class Prompting(Protocol):
    """A model that says from its shape alone how many tokens its decoder reads before a report, at most: those of the
    prompt, and of a memory that is read by cross-attention.
    """

    def prompt_tokens(self, study: StudySize) -> int: ...


@runtime_checkable
class Varied(Protocol):
    """A model of which something may be set anew for a trained run: experiments of a paper that train nothing.

    ``settings`` is a record of what may be set, as the run has it. ``vary`` sets it otherwise in this process alone;
    ``look`` opens a split of a data set, given its folder, or of the data set that is reported on.
    """

    @property
    def settings(self) -> Config: ...

    def vary(self, settings: Any, look: Look) -> None: ...


@runtime_checkable
class Published(Protocol):
    """A model in the layout of published ones, that other programs open.

    ``save_merged`` writes a whole checkpoint, with adapters merged in the model itself, ``save_adapters`` adapters for
    the checkpoint ``base`` where no part but those in ``whole`` trained as a whole.
    """

    def save_merged(self, folder: Path) -> None: ...

    def save_adapters(self, folder: Path, *, base: str, whole: Collection[str]) -> None: ...


@runtime_checkable
class Served(Protocol):
    """A model that another program serves: every report costs a request.

    ``keep_answers`` keeps answers in a folder as they come, and takes those that are there; of what is left of the
    job's budget this process gets one of ``share`` equal parts. ``allow_remote`` says if images may leave this machine,
    whatever the run's configuration says: it may be somebody else's.
    """

    def keep_answers(self, folder: Path, share: int = 1) -> None: ...

    def allow_remote(self, allowed: bool) -> None: ...


def required(value: Value | None) -> Value:
    """A field of the batch that this loss cannot do without; the loader fills it in training."""
    assert value is not None
    return value


def written(
    ids: list[list[int]], log_probs: list[list[float]], evidence: Sequence[DraftEvidence] | None = None
) -> Generation:
    """A language model's output for each study, with the evidence."""
    rows: Sequence[DraftEvidence] = [{}] * len(ids) if evidence is None else evidence
    shown: list[DraftEvidence] = [
        {"token_log_probs": values, **row} for values, row in zip(log_probs, rows, strict=True)
    ]
    return Generation(token_ids=ids, intermediates=shown)


# A batch as a model sees it, and the losses that several methods have.


ModelT = TypeVar("ModelT", bound=ReportModel)


@dataclass
class ForwardPass(Generic[ModelT]):
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
    def context(self) -> Slot | None:
        """Embedded clinical context of each study; None where no study has any."""
        ids, mask = self.batch.context_ids, self.batch.context_mask
        if ids is None or mask is None:
            return None
        model = cast(Writer, self.model)
        return model.language_model.embed(ids), mask

    def decoder_input(self, name: str, slot: Slot) -> Slot:
        """An input of the decoder as the decoder gets it: every input goes through here once."""
        assert name in self.model.inputs, f"the model does not declare its input {name}"
        return slot if self.model.reader is None else self.model.reader(name, slot)

    def input_source(self, name: str, slot: Slot) -> Slot:
        """A source of an input as it reads the image: every source goes through here once."""
        assert name in self.model.input_sources, f"the model does not declare its source {name}"
        return slot if self.model.source_reader is None else self.model.source_reader(name, slot)

    def spliced(self, template: PromptTemplate, slots: Mapping[str, Slot]) -> Slot:
        """The prompt with these slots, after the context of each study: every method's prompts come from here."""
        return template.splice(cast(Writer, self.model).language_model.embed, slots, self.context)


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


def report_loss(forward: Prompted) -> Tensor:
    """The report, per token, after the prompt."""
    return prompted_loss(forward, forward.prefix)


def prompted_loss(forward: Text, prefix: Slot) -> Tensor:
    """The report, per token, after this prefix."""
    batch = forward.batch
    ids, labels = required(batch.input_ids), required(batch.labels)
    return forward.model.language_model.loss(*prefix, ids, labels, batch.label_weights)


def prompted_nats(forward: Prompted) -> Float[Tensor, " batch"]:
    """Mean negative log-likelihood per token of each report, after the prompt."""
    batch = forward.batch
    labels = required(batch.labels)
    logits = forward.model.language_model.logits(*forward.prefix, required(batch.input_ids), labels)
    return study_nats(logits, labels)


def text_loss(forward: Text) -> Tensor:
    """The report, per token, after nothing."""
    batch = forward.batch
    return forward.model.language_model.text_loss(
        required(batch.input_ids), required(batch.labels), batch.label_weights
    )


def words_loss(forward: Viewed) -> Tensor:
    """The report's content, from the image alone: its words, and with a dense head its classes too."""
    views, batch = forward.encoded, forward.batch
    return forward.model.word_head.loss(views.tokens, views.view_mask, required(batch.labels), batch.class_labels)


WORDS_TERM: Term[Viewed] = Term(("vision_encoder", "word_head"), words_loss, common=True)
"""The same for every method: a stage that trains by it alone is trained once for all of them."""


# View of the data for building a memory: the training split and nothing else.


@dataclass(frozen=True, slots=True)
class TrainingView:
    """The training studies that are used, in the order of the manifest.

    ``studies`` and ``examples`` run in parallel. There is no way from here to another split. ``open_other`` opens the
    same split of another data set, given its folder; its studies carry that data set's name in ``origin``. Training
    never makes a view of another ``split``: experiments at test time may, and say so (``radweave.engine.restore``).
    """

    studies: tuple[Study, ...]
    examples: tuple[Example, ...]
    classes: tuple[str, ...]
    pad_id: int
    seed: int
    features: Features | None = None
    origin: str | None = None
    open_other: Callable[[Path], TrainingView] | None = None
    split: Split = "train"

    def __post_init__(self) -> None:
        assert all(study.split == self.split for study in self.studies), "a training view holds training studies only"
        assert [study.study_id for study in self.studies] == [example.study_id for example in self.examples]

    def __len__(self) -> int:
        return len(self.examples)

    def spread(self, most: int) -> TrainingView:
        """At most so many of the studies, evenly spread over the split."""
        if len(self) <= most:
            return self
        rows = [number * len(self) // most for number in range(most)]
        return replace(
            self, studies=tuple(self.studies[row] for row in rows), examples=tuple(self.examples[row] for row in rows)
        )

    def row_id(self, study_id: str) -> str:
        """Name of a study in a bank's row: its id, after the data set's name where that is another one."""
        return study_id if self.origin is None else f"{self.origin}:{study_id}"

    @property
    def reports(self) -> list[str]:
        """The target text of every study."""
        return [example.report or "" for example in self.examples]

    @property
    def class_states(self) -> Int[Tensor, "studies classes"]:
        """Label states as in ``Batch.class_labels``; -1 for a study without labels."""
        absent = (-1,) * len(self.classes)
        return torch.tensor([example.class_states or absent for example in self.examples])

    def batches(self, batch_size: int = 32, *, pixels: bool = False) -> Iterator[Batch]:
        """Every study once, unshuffled and unaugmented; features in place of pixels where they are there.

        ``pixels`` asks for the images even then.
        """
        features = None if pixels else self.features
        return StudyLoader(self.examples, batch_size, self.pad_id, features=features).epoch()


Look = Callable[[str | None, Split], TrainingView]
"""Opens a split of a data set by its folder; None is the data set that is reported on."""


# Reports that a language model writes: a method says what stands before them, and what becomes of the words.
#
# def to_write(self, batch): return ToWrite(Prefixes(*Forward(self, batch).prefix), written)
#
# Batches are then written one after the other, and studies of the next take the places of those that are done
# (``radweave.nn.decoding``). What was seen of a batch is kept until its last report is there.


@dataclass(frozen=True, slots=True)
class ToWrite:
    """Prefixes of the reports of a batch; ``finish`` makes reports with evidence of ids and log-probabilities."""

    prefixes: Prefixes
    finish: Callable[[list[list[int]], list[list[float]]], Generation]


@runtime_checkable
class Writes(Protocol):
    """A language model that writes batch after batch."""

    def write(self, batches: Iterator[Prefixes], decoding: DecodingConfig) -> Iterator[Written]: ...


@runtime_checkable
class WritesByPrefix(Protocol):
    """A model of which a language model writes all reports, where it has one (``language_model_of``).

    A protocol of the attribute would not do: from Python 3.12 on ``isinstance`` does not see a module's parts.
    """

    def to_write(self, batch: Batch) -> ToWrite: ...


def language_model_of(model: ReportModel) -> Any:
    """The part that writes reports; None for a model without one."""
    return getattr(model, "language_model", None)


def generations(model: ReportModel, batches: Iterator[Batch], decoding: DecodingConfig) -> Iterator[Generation]:
    """Results of ``model.generate`` for each batch, in order. The next batch may be read before a result is there."""
    writer = language_model_of(model)
    if not isinstance(model, WritesByPrefix) or not isinstance(writer, Writes):
        yield from (model.generate(batch, decoding) for batch in batches)
        return
    unfinished: deque[ToWrite] = deque()

    def prefixes() -> Iterator[Prefixes]:
        for batch in batches:
            unfinished.append(model.to_write(batch))
            yield unfinished[-1].prefixes

    for ids, log_probs in writer.write(prefixes(), decoding):
        yield unfinished.popleft().finish(ids, log_probs)


def generation(model: ReportModel, batch: Batch, decoding: DecodingConfig) -> Generation:
    """The reports of one batch."""
    return next(generations(model, iter([batch]), decoding))


# Reports of a method for a study, for drafts by expected utility.


@runtime_checkable
class Draws(Writes, Protocol):
    """A language model that writes the likeliest report of each study, and draws others."""

    def write_draws(
        self, prompts: Sequence[Prefixes], decoding: DecodingConfig, draws: int, *, numbered_from: int | None = None
    ) -> list[list[list[int]]]: ...


def writes_own(model: ReportModel) -> bool:
    """True for a model with a language model whose reports may be drawn."""
    return isinstance(model, WritesByPrefix) and isinstance(language_model_of(model), Draws)


def own_reports(
    model: ReportModel,
    batch: Batch,
    evidence: Sequence[Evidence],
    decoding: DecodingConfig,
    decode: Callable[[list[int]], str],
) -> list[OwnReports]:
    """Reports of a method's own decoder for each study, and texts that it recalled for it.

    Each study is read by itself and has the same numbers to draw by, so that neither depends on the batch.
    """
    if isinstance(model, Proposing):
        return [OwnReports(tuple(texts)) for texts in model.propose(batch, evidence, decoding)]
    writer = language_model_of(model)
    if not isinstance(model, WritesByPrefix) or not isinstance(writer, Draws):
        return [OwnReports()] * len(batch)
    begun = [model.to_write(batch.only([row])) for row in range(len(batch))]
    prefixes = [one.prefixes for one in begun]
    drawn = writer.write_draws(prefixes, decoding, decoding.expected_utility.samples)
    each = []
    for one, reports in zip(begun, drawn, strict=True):
        (shown,) = one.finish(reports[:1], [[0.0] * len(reports[0])]).intermediates
        each.append(OwnReports(tuple(map(decode, reports)), _recalled(shown.get("recalled", ())), _maps(shown)))
    return each


def _maps(shown: DraftEvidence) -> DraftEvidence:
    """Maps of a method's evidence; none of the words of its own report, which the draft need not have."""
    maps = shown.get("attention_maps")
    if not maps or shown.get("map_kind") == OF_WORDS:
        return {}
    return {"attention_maps": maps, **({"map_kind": shown["map_kind"]} if "map_kind" in shown else {})}


def _recalled(rows: Iterable[Mapping[str, Any]]) -> tuple[RecalledText, ...]:
    """Distinct reports and sentences of training studies; none of the patient's own prior."""
    texts = (
        RecalledText(str(row["text"]), str(row["study_id"]), row["kind"] == "sentence")
        for row in rows
        if row["kind"] in ("report", "sentence") and row.get("text") and not row.get("is_prior")
    )
    return tuple({one.text: one for one in texts}.values())
