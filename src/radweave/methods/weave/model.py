"""weave: a stack of heads and smoothers, fitted to what they say of studies they never saw, and drafts chosen by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from radweave.core.batch import Batch, Generation
from radweave.core.errors import InputError
from radweave.core.evidence import DraftEvidence
from radweave.drafting.smoothers import Evidence, Floats, Mask
from radweave.labels import NO_FINDING
from radweave.methods.model import (
    DecoderInput,
    ForwardPass,
    ReportModel,
    StudySize,
    Term,
    ToWrite,
    device_of,
    generation,
    losses,
    required,
    written,
)
from radweave.methods.neighbours import fit_neighbours, neighbour_columns
from radweave.methods.weave.heads import DenseSource, TokenSource
from radweave.methods.weave.members import Folds, Members, mean_of_members, unbiased_members, votes_of
from radweave.methods.weave.memory import KernelSource, Memory
from radweave.methods.weave.stack import EqualWeightsConfig, FittedStack, Kind, OutOfFold, Stack, StackConfig
from radweave.methods.weave.writing import HINTS, Prompts
from radweave.nn.connector import Connector, ViewTokens, connect_views, encode_views
from radweave.nn.decoding import DecodingConfig, Prefixes
from radweave.nn.heads import POSITIVE
from radweave.nn.language_model import CausalLanguageModel, study_nats
from radweave.nn.memory.bank import Bank, BankLayout, Column, report_rows
from radweave.nn.prompt import Slot
from radweave.nn.text_pretraining import hint_generator, noisy_findings

if TYPE_CHECKING:
    from radweave.methods.model import TrainingView

# Evidence of all sources: for new studies when a draft is made, for training studies to fit the stack.


KINDS: Mapping[str, Kind] = {"dense": "log_odds", "tokens": "log_odds", "kernels": "smoothed"}
"""The sources in the order in which they stand in a stack, and what their scores are."""
SOURCES = tuple(KINDS)
LEARNED = ("dense", "tokens")


@dataclass(frozen=True, slots=True)
class SourceScores:
    """Evidence of all sources for one study: scores (S, C), and weights (J,) over the training reports."""

    scores: Floats
    weights: Floats


@torch.no_grad()
def learned_scores(model: WeaveModel, views: ViewTokens, members: Tensor) -> Floats:
    """Log-odds (B, S, C) of each source that learned, as the members that are asked (B, K) see the studies."""
    scores = []
    for source in (model.dense, model.tokens):
        if source.is_source:
            each = [source.logits(number, model.encoder.of(number, views)) for number in range(len(model.encoder))]
            counted = votes_of(members, model.folds.number).to(each[0])
            scores.append(mean_of_members(torch.stack(each), counted).double().cpu().numpy())
    return np.array(scores).reshape(len(scores), len(members), len(model.classes)).swapaxes(0, 1)


@torch.no_grad()
def score_sources(model: WeaveModel, memory: Memory, batch: Batch) -> Iterator[SourceScores]:
    """Evidence of all sources for each study, one after the other: alone and in any batch the same."""
    own = memory.owners.of_queries(batch.study_ids, batch.patient_ids)
    barred = np.asarray(memory.owners.barred(own, slice(0, len(memory.rows))).numpy())
    members_of = unbiased_members(barred, torch.from_numpy(memory.folds), len(model.encoder))
    for row in range(len(batch)):
        alone, members = batch.only([row]), members_of[row : row + 1]
        views = encode_views(model.encoder, alone)
        scores, weights = learned_scores(model, views, members)[0], equal_weights(barred[row])
        for kernels in model.kernels.evidence_for(memory, alone, barred[row : row + 1]):
            scores, weights = np.concatenate([scores, kernels.scores[None]]), kernels.weights
        yield SourceScores(scores, weights)


def equal_weights(barred: Mask) -> Floats:
    """Weights (J,) of the reports where no source words: equal ones, 0 for the barred."""
    allowed = np.where(barred, 0.0, 1.0)
    return np.asarray(allowed / max(float(allowed.sum()), 1.0))


@dataclass(frozen=True, slots=True)
class Gathered:
    """The bank of training studies, what all sources say of each, out of fold, and weights (J,) over the reports."""

    bank: Bank
    out_of_fold: OutOfFold
    weights: list[Floats]


@torch.no_grad()
def gather(model: WeaveModel, training: TrainingView) -> Gathered:
    """Ask every source of every training study, each of those that never saw it, and keep what sources remember."""
    folds = model.folds.of(example.patient_id for example in training.examples)
    labels = (training.class_states == POSITIVE).double().numpy()
    members = own_members(folds, len(model.encoder))
    scores, rows = score_training(model, training, members)
    tensors: dict[str, Tensor] = {"folds": folds[:, None]}
    weights = None
    if model.kernels.descriptors is not None:
        fitted = fit_neighbours(model.kernels.descriptors, training)
        tensors |= fitted.tensors
        scores = np.concatenate([scores, np.stack([one.scores for one in fitted.left_out])[:, None]], axis=1)
        weights = [one.weights for one in fitted.left_out]
    bank = Bank(tensors, tuple(rows))
    memory = model.read(bank)
    if weights is None:
        patients = memory.owners.patient_of_row.numpy()
        weights = [equal_weights(patients == own) for own in patients]
    names = [str(row["patient"]) for row in rows]
    withheld = withheld_of(members.numpy())
    return Gathered(bank, OutOfFold(scores, labels, memory.folds, withheld, names, training.split), weights)


def own_members(folds: Tensor, number: int) -> Tensor:
    """The members (J, K) that are asked of each training study: the one that lacked its fold."""
    return folds[:, None] == torch.arange(number)


def withheld_of(members: Mask) -> NDArray[np.int64]:
    """The fold (J,) that the members lacked which were asked (J, K) of each study; each of one alone."""
    assert (members.sum(axis=1) == 1).all(), "a training study is asked of one member"
    return np.asarray(members.argmax(axis=1))


def score_training(model: WeaveModel, training: TrainingView, members: Tensor) -> tuple[Floats, list[dict[str, Any]]]:
    """Scores (J, S, C) of the sources that learned, by the members that are asked (J, K); rows of the bank."""
    learned, rows = list[Floats](), list[dict[str, Any]]()
    device = device_of(model.encoder)
    for batch in training.batches():
        views = encode_views(model.encoder, batch.to(device))
        learned.append(learned_scores(model, views, members[len(rows) : len(rows) + len(batch)]))
        rows += report_rows(batch)
    return np.concatenate(learned), rows


def shown_sources(
    names: Sequence[str], classes: Sequence[str], log_odds: Floats, weights: Floats
) -> dict[str, dict[str, dict[str, float]]]:
    """Per class what each source says by itself, as a probability, and its weight in the stack."""
    probabilities = 1 / (1 + np.exp(-log_odds))
    return {
        name: {
            source: {"probability": float(probabilities[s, c]), "weight": float(weights[s, c])}
            for s, source in enumerate(names)
        }
        for c, name in enumerate(classes)
    }


STUDIES = "studies"
"""Name of the bank."""


class Forward(ForwardPass["WeaveModel"]):
    """One batch as the model sees it: tokens of all members, what the sources that learned say of it, and a prompt."""

    @cached_property
    def folds(self) -> Tensor | None:
        """The fold of each study in training; none else, when all members may say something."""
        return self.model.folds.of(self.batch.patient_ids) if self.model.training else None

    @cached_property
    def barred(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """The rows (B, J) of the memory that are of the study itself or of its patient."""
        memory = self.model.memory
        if memory is None:
            return np.zeros((len(self.batch), 0), dtype=bool)
        own = memory.owners.of_queries(self.batch.study_ids, self.batch.patient_ids)
        return np.asarray(memory.owners.barred(own, slice(0, len(memory.rows))).numpy())

    @cached_property
    def members(self) -> Tensor:
        """The members (B, K) that are asked of each study: in training the one that lacked its patient."""
        memory, number = self.model.memory, len(self.model.encoder)
        if self.folds is not None:
            return own_members(self.folds, number)
        folds = torch.zeros(0, dtype=torch.long) if memory is None else torch.from_numpy(memory.folds)
        return unbiased_members(self.barred, folds, number)

    @cached_property
    def learned(self) -> Floats:
        """Scores of each learned source (B, S, C)."""
        return learned_scores(self.model, self.views, self.members)

    @cached_property
    def log_odds(self) -> Floats:
        """Joint log-odds of the learned sources (B, C); minus infinity before they are weighed."""
        bare = self.model.bare
        if not bool(bare.fitted):
            return np.full((len(self.batch), len(self.model.classes)), -np.inf)
        return bare.as_fitted(self.learned)

    @cached_property
    def evidence(self) -> list[Evidence]:
        """Evidence of all sources; of the learned ones for a model without memory."""
        model = self.model
        if model.memory is not None:
            return model.evidence_for(self.batch)
        if not bool(model.bare.fitted):
            return [Evidence(row, row) for row in self.log_odds]
        fitted = model.bare.as_fitted
        each = zip(self.log_odds, self.learned, strict=True)
        names = [name for name in model.sources if name in LEARNED]
        return [Evidence(row, row, model.shown(names, fitted, scores)) for row, scores in each]

    @cached_property
    def asserted(self) -> Tensor:
        """The findings (B, C) that all sources together assert."""
        model = self.model
        stack = model.bare if model.memory is None else model.stack
        return model.asserted(np.stack([one.scores for one in self.evidence]), stack)

    def dense(self) -> Tensor:
        return self.model.dense.cross_fitted_loss(self.batch, self.folds, self.model.encoder)

    def tokens(self) -> Tensor:
        return self.model.tokens.cross_fitted_loss(self.batch, self.folds, self.model.encoder)

    def prefix(self, findings: Tensor) -> Slot:
        """The prompt with these findings (B, C) in words."""
        model, prompts = self.model, self.model.prompts
        image = connect_views(model.connector, self.views)
        slots = prompts.slots(model.language_model, image, findings.to(self.views.tokens.device))
        return self.spliced(prompts.template, {name: self.decoder_input(name, slot) for name, slot in slots.items()})

    def report(self) -> Tensor:
        """Loss per token of the reference reports."""
        model, batch = self.model, self.batch
        generator = hint_generator(model.training)
        # Every other batch is told what its own reports say, so that what is asserted is worth being read.
        if model.training and torch.rand(1, generator=generator) < 0.5:
            findings = noisy_findings(required(batch.class_labels), "negative", generator, **HINTS)
        else:
            findings = model.asserted(self.log_odds, model.bare)
        given_ids, labels = required(batch.input_ids), required(batch.labels)
        return model.language_model.loss(*self.prefix(findings), given_ids, labels, batch.label_weights)


INPUTS = {
    "image": DecoderInput("projected patch tokens of all members"),
    "findings": DecoderInput("findings that the stack asserts, in words"),
}
TERMS: Mapping[str, Term[Forward]] = {
    "dense": Term(("vision_encoder", "dense"), Forward.dense),
    "tokens": Term(("vision_encoder", "tokens"), Forward.tokens),
    "report": Term(("vision_encoder", "connector", "language_model", "bare", *LEARNED), Forward.report),
}


@dataclass(eq=False, repr=False, kw_only=True)
class WeaveModel(ReportModel):
    """logit p_c = b_c + sum_s w_sc z_sc over sources s, of which those that learn are K members that each lack a fold.

    Stage ``encoder`` trains the members, ``sources`` the heads on their tokens. Before ``report`` all sources score the
    training studies, each member its own fold alone, and the stack is fitted to the scores. ``report`` trains the
    language model. Drafts are chosen by expected utility (``EvidenceSource``) among training reports, composites, and
    reports of the language model.

    There is no paper: docs/methods/weave.md.
    """

    vision_encoder: Members
    dense: DenseSource
    tokens: TokenSource
    kernels: KernelSource
    folds: Folds
    stack: Stack
    bare: Stack
    connector: Connector
    language_model: CausalLanguageModel
    prompts: Prompts
    decode: Callable[[Sequence[int]], str]
    weighing: EqualWeightsConfig | StackConfig
    classes: tuple[str, ...]
    max_studies: int | None
    memory: Memory | None = None
    gathered: list[Evidence] = field(default_factory=list)
    terms = TERMS
    inputs = INPUTS

    @property
    def encoder(self) -> Members:
        """The members."""
        return self.vision_encoder

    def prompt_tokens(self, study: StudySize) -> int:
        """The prompt with the tokens of all views and every finding in words."""
        slots = {"image": study.views * study.tokens, "findings": self.prompts.findings.longest}
        return self.prompts.template.length(slots, study.context)

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources that the stack weighs, in its order."""
        return tuple(name for name in SOURCES if getattr(self, name).is_source)

    def loss(self, batch: Batch, terms: Sequence[str]) -> dict[str, Tensor]:
        """Losses: ``dense`` (classes and words, of the members), ``tokens`` of the disease tokens, ``report`` per token
        of the language model.
        """
        return losses(self.terms, Forward(self, batch), terms)

    def report_nats(self, batch: Batch) -> Float[Tensor, " batch"]:
        """Mean negative log-likelihood per token of each study's report, after the findings that the stack asserts."""
        forward, labels = Forward(self, batch), required(batch.labels)
        prefix = forward.prefix(forward.asserted)
        return study_nats(self.language_model.logits(*prefix, required(batch.input_ids), labels), labels)

    @torch.no_grad()
    def generate(self, batch: Batch, decoding: DecodingConfig) -> Generation:
        """The language model's own report, told what the stack asserts.

        Evidence: the probability of each class, what each source says of it and its weight.
        """
        return generation(self, batch, decoding)

    def to_write(self, batch: Batch) -> ToWrite:
        """Prefixes of the reports of a batch, with the asserted findings."""
        forward = Forward(self, batch)
        shown: list[DraftEvidence] = [
            {"class_probabilities": self._probable(one.scores), **one.shown} for one in forward.evidence
        ]
        prefix = Prefixes(*forward.prefix(forward.asserted))
        return ToWrite(prefix, lambda ids, log_probs: written(ids, log_probs, shown))

    def asserted(self, log_odds: Floats, stack: Stack) -> Tensor:
        """The findings (B, C) from whose probability on asserting pays off."""
        probabilities = 1 / (1 + np.exp(-log_odds))
        findings = (probabilities >= float(stack.threshold)) & np.array([name != NO_FINDING for name in self.classes])
        return torch.from_numpy(findings)

    def evidence_for(self, batch: Batch) -> list[Evidence]:
        """Evidence of all sources together: log-odds, and weights of the wording.

        Raises:
            InputError: if the model has no memory.
        """
        if self.memory is None:
            raise InputError("the sources remember training studies, and there are none", field="memories")
        fitted = self.stack.as_fitted
        return [
            Evidence(fitted(one.scores), one.weights, self.shown(self.sources, fitted, one.scores))
            for one in score_sources(self, self.memory, batch)
        ]

    def scores_are_log_odds(self) -> bool:
        """Yes: scores are those of the stack."""
        return True

    def left_out(self) -> list[Evidence]:
        """The same of each training study, by members, neighbours and a stack that never saw it."""
        assert self.gathered, "asked after the memories were built"
        return self.gathered

    @torch.no_grad()
    def build_memories(self, stage: str, training: TrainingView) -> dict[str, Bank]:
        """Before the members learn, their targets; before reports, all sources are asked of the training studies, and
        the stacks are fitted to what they said.
        """
        if stage == "encoder":
            self.dense.fit(training, self.folds)
        if stage != "report":
            return {}
        training = training if self.max_studies is None else training.spread(self.max_studies)
        gathered = gather(self, training)
        counted = np.array([name != NO_FINDING for name in self.classes])
        log_odds, stacks = self.stack.fit(gathered.out_of_fold, self.weighing, counted)
        self.stack.ask_what_each_adds(gathered.out_of_fold, stacks, self.weighing, counted)
        learned = [number for number, name in enumerate(self.sources) if name in LEARNED]
        if learned:
            self.bare.fit(gathered.out_of_fold.of(learned), self.weighing, counted)
        self.gathered = [Evidence(scores, weights) for scores, weights in zip(log_odds, gathered.weights, strict=True)]
        return {} if self.max_studies is None else {STUDIES: gathered.bank}

    def figures(self) -> dict[str, dict[str, float | None]]:
        """Gain of each source: average precision out of fold with all sources and without it."""
        return self.stack.added(self.sources) if bool(self.stack.fitted) else {}

    def memory_layouts(self) -> Mapping[str, BankLayout]:
        """The training studies, unless none are kept."""
        if self.max_studies is None:
            return {}
        tensors = {"folds": Column("whole", (1,))}
        if self.kernels.is_source:
            tensors |= neighbour_columns(len(self.classes))
        return {STUDIES: BankLayout(tensors, texts=True)}

    def set_memories(self, banks: Mapping[str, Bank]) -> None:
        """Take the training studies."""
        if STUDIES in banks:
            self.memory = self.read(banks[STUDIES])

    def read(self, bank: Bank) -> Memory:
        """A bank as the sources read it."""
        return Memory.of(bank)

    @torch.no_grad()
    def propose(self, batch: Batch, evidence: Sequence[Evidence], decoding: DecodingConfig) -> list[list[str]]:
        """Reports that the language model writes for each study, told what the stack asserts: its likeliest, then drawn
        ones.

        Each study is read by itself, and its draws are its own: neither depends on the batch.
        """
        prefixes = []
        for row, one in enumerate(evidence):
            findings = self.asserted(one.scores[None], self.stack)
            prefixes.append(Prefixes(*Forward(self, batch.only([row])).prefix(findings)))
        reports = self.language_model.write_draws(prefixes, decoding, decoding.expected_utility.samples)
        return [list(dict.fromkeys(self.decode(ids) for ids in row)) for row in reports]

    def _probable(self, log_odds: Floats) -> dict[str, float]:
        probabilities = 1 / (1 + np.exp(-log_odds))
        return dict(zip(self.classes, probabilities.tolist(), strict=True))

    def shown(self, sources: Sequence[str], fitted: FittedStack, scores: Floats) -> DraftEvidence:
        """Probability of each class by each source, and the weight of the source."""
        return {"sources": shown_sources(sources, self.classes, fitted.log_odds(scores), fitted.weights)}
