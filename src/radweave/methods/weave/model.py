"""weave: what five methods and a memory see, weighed for each class, and a draft chosen by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from radweave.core.batch import Batch, Generation
from radweave.core.config import Config
from radweave.core.errors import InputError
from radweave.core.evidence import ClassChange, DraftEvidence, RecalledEvidence
from radweave.drafting.smoothers import Changes, Evidence, Floats, Mask
from radweave.labels import NO_FINDING
from radweave.labels.comparisons import STATES, possible, stated_changes
from radweave.labels.registry import labeler_of
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
from radweave.methods.prior_change import Change, NoChange, Pairs, only_of_one_patient, there_now
from radweave.methods.weave.heads import DenseSource, Learned, NoSource
from radweave.methods.weave.members import Folds, Members, mean_of_members, unbiased_members, votes_of
from radweave.methods.weave.recall import CasesSource, KernelSource, Memory, RecallSource
from radweave.methods.weave.stack import EqualWeightsConfig, FittedStack, Kind, OutOfFold, Stack, StackConfig
from radweave.methods.weave.writing import HINTS, Prompts, Wording
from radweave.nn.connector import Connector, ViewTokens, connect_views, encode_views, mean_and_largest
from radweave.nn.decoding import DecodingConfig, Prefixes
from radweave.nn.heads import POSITIVE, UNLABELED
from radweave.nn.language_model import CausalLanguageModel, study_nats
from radweave.nn.memory.bank import Bank, BankLayout, Column, report_rows
from radweave.nn.prompt import Slot
from radweave.nn.text_pretraining import hint_generator, noisy_findings

if TYPE_CHECKING:
    from radweave.methods.model import Look, TrainingView

# A study beside its prior: what the sources that learned say of both, for ``radweave.methods.prior_change``.


KEY = "changes"
"""In the evidence: class -> ``before``, what the report of the prior says of it, and the probability of each state."""


@dataclass(frozen=True, slots=True)
class PriorStudies:
    """Priors of P studies, which are ``rows`` of a batch or of the training split: scores (P, S, C) of the sources that
    learned, vectors (P, K, V), and what their reports affirm (P, C; 1 yes, 0 no, -1 not known).
    """

    rows: NDArray[np.int64]
    scores: Floats
    vectors: Floats
    reported: NDArray[np.int64]

    @classmethod
    def of(cls, parts: Sequence[PriorStudies]) -> PriorStudies | None:
        """Several together; None of none."""
        if not parts:
            return None
        each = ([getattr(one, name) for one in parts] for name in ("rows", "scores", "vectors", "reported"))
        return cls(*(np.concatenate(values) for values in each))

    def pairs_with(self, now: Floats, vectors: Floats, before: Floats) -> Pairs:
        """With log-odds ``now`` (N, C) and vectors (N, K, V) of all studies, and log-odds (P, C) of the priors."""
        return Pairs(now[self.rows], before, self.reported, vectors[self.rows], self.vectors)


def learn_changes(
    model: WeaveModel, training: TrainingView, before: PriorStudies, now: Floats, vectors: Floats, stacks: FoldStacks
) -> Floats:
    """Let the part learn from training studies with a prior; return the log-odds (J, C) of all, those moved.

    Args:
        model: its part ``change`` is fitted.
        training: the J studies.
        before: the priors of some.
        now: (J, C), cross-fitted log-odds.
        vectors: (J, K, V).
        stacks: for the sources that learned, one that was fitted without each fold.
    """
    change = model.change
    assert isinstance(change, Change)
    folds = model.folds.of(training.examples[row].patient_id for row in before.rows).numpy()
    pairs = before.pairs_with(now, vectors, stacks(before.scores, folds))
    allowed, stated = states_of_reports(training, before)
    counted = np.array([name != NO_FINDING for name in model.classes])
    states = change.fit(pairs, folds, allowed, stated, counted)
    if states is None:
        return now
    moved = now.copy()
    moved[before.rows] = there_now(states)
    return moved


@dataclass(frozen=True, slots=True)
class FoldStacks:
    """A stack for each fold that was fitted without it; ``whole`` for any other. None where no source learned."""

    of_fold: Mapping[int, FittedStack] = field(default_factory=dict)
    whole: FittedStack | None = None

    def __call__(self, scores: Floats, folds: NDArray[np.int64]) -> Floats:
        """Log-odds (P, C) of scores (P, S, C) of studies of these folds (P,)."""
        log_odds = np.zeros((len(scores), scores.shape[2]))
        for row, fold in enumerate(folds.tolist()):
            stack = self.of_fold.get(fold, self.whole)
            if stack is not None:
                log_odds[row] = stack(scores[row])
        return log_odds


def states_of_reports(training: TrainingView, before: PriorStudies) -> tuple[Mask, Mask]:
    """The states that reports of studies and priors leave open, and those that the studies' reports say (P, C, 6)."""
    classes, labeler = training.classes, labeler_of(training.classes)
    now = training.class_states.numpy() == POSITIVE
    texts = [training.examples[row].report or "" for row in before.rows]
    allowed = np.zeros((len(texts), len(classes), len(STATES)), dtype=bool)
    stated_states = np.zeros_like(allowed)
    for number, (row, words) in enumerate(zip(before.rows, stated_changes(texts, labeler), strict=True)):
        for place, name in enumerate(classes):
            affirmed = before.reported[number, place]
            stated = words.get(name, frozenset())
            left = possible(None if affirmed < 0 else bool(affirmed), bool(now[row, place]), stated)
            allowed[number, place] = [state in left for state in STATES]
            stated_states[number, place] = [state in stated for state in STATES]
    return allowed, stated_states


@dataclass(frozen=True, slots=True)
class Moved:
    """Log-odds (C,) of a study that its prior has a part in, its changes, and what is shown of them."""

    log_odds: Floats
    changes: Changes
    shown: DraftEvidence


def compare(
    model: WeaveModel, before: PriorStudies | None, log_odds: Floats, vectors: Floats, members: Mask
) -> Moved | None:
    """One study with these log-odds (C,) and vectors (K, V) beside its prior; None without one, or where nothing was
    learned of change.
    """
    change = model.change
    if before is None or not isinstance(change, Change) or not bool(change.fitted):
        return None
    learned = model.bare.as_fitted if bool(model.bare.fitted) else None
    then = FoldStacks(whole=learned)(before.scores, np.zeros(1, dtype=np.int64))
    pairs = replace(before, rows=np.zeros(1, dtype=np.int64)).pairs_with(log_odds[None], vectors[None], then)
    states = change.states(pairs, members[None])[0]
    words = {1: "affirmed", 0: "not affirmed", -1: "not known"}
    shown: dict[str, ClassChange] = {
        name: {"before": words[int(before.reported[0, c])], **dict(zip(STATES, states[c].tolist(), strict=True))}
        for c, name in enumerate(model.classes)
        if name != NO_FINDING
    }
    return Moved(there_now(states), change.changes(states), {"changes": shown})


# Evidence of all sources: for new studies when a draft is made, for training studies to fit the stack.


LEARNED = ("dense", "tokens", "difference")
REMEMBERED = ("kernels", "recall", "cases")
SOURCES = (*LEARNED, *REMEMBERED)
"""In the order in which they stand in a stack."""
KINDS: dict[str, Kind] = {name: "log_odds" if name in LEARNED else "smoothed" for name in SOURCES}


@dataclass(frozen=True, slots=True)
class SourceScores:
    """Evidence of all sources for one study: scores (S, C), and weights (J,) over the training reports.

    ``before`` is its prior, which is compared by the vectors (K, V) of the members that are ``asked`` (K,).
    """

    scores: Floats
    weights: Floats
    vectors: Floats
    members: Mask
    before: PriorStudies | None


@torch.no_grad()
def learned_scores(model: WeaveModel, views: ViewTokens, members: Tensor) -> list[Floats]:
    """Log-odds (B, C) of each source that learned, as the members that are asked (B, K) see the studies."""
    scores = []
    for name in LEARNED:
        source = getattr(model, name)
        if source.is_source:
            each = [source.logits(number, model.encoder.of(number, views)) for number in range(len(model.encoder))]
            counted = votes_of(members, model.folds.number).to(each[0])
            scores.append(mean_of_members(torch.stack(each), counted).double().cpu().numpy())
    return scores


@torch.no_grad()
def vectors_of(model: WeaveModel, views: ViewTokens) -> Floats:
    """The vectors (B, K, D) by which studies are remembered: mean and largest token of each member."""
    encoder = model.encoder
    member_views = [encoder.of(number, views) for number in range(len(encoder))]
    vectors = torch.stack([mean_and_largest(one.tokens, one.view_mask) for one in member_views], dim=1)
    return np.asarray(vectors.double().cpu().numpy())


@torch.no_grad()
def score_sources(model: WeaveModel, memory: Memory, batch: Batch) -> Iterator[SourceScores]:
    """Evidence of all sources for each study, one after the other: alone and in any batch the same."""
    own = memory.owners.of_queries(batch.study_ids, batch.patient_ids)
    barred = np.asarray(memory.owners.barred(own, slice(0, len(memory.rows))).numpy())
    members_of = unbiased_members(barred, torch.from_numpy(memory.folds), len(model.encoder))
    for row in range(len(batch)):
        alone = batch.only([row])
        views = encode_views(model.encoder, alone)
        scores = [scores_of[0] for scores_of in learned_scores(model, views, members_of[row : row + 1])]
        shares: dict[str, Floats] = {}
        if memory.neighbours is not None and isinstance(model.kernels, KernelSource):
            (neighbours,) = memory.neighbours.evidence_for(model.kernels.descriptors, alone, barred[row : row + 1])
            scores.append(neighbours.scores)
            shares["kernels"] = neighbours.weights
        vectors, members = vectors_of(model, views)[0], members_of[row].numpy()
        _remember(model, memory, vectors, members, barred[row], scores, shares)
        weights = model.wording.mixed(shares, barred[row])
        before = score_priors(model, alone, members_of[row : row + 1])
        yield SourceScores(stacked(scores, len(model.classes)), weights, vectors, members, before)


@torch.no_grad()
def score_priors(model: WeaveModel, batch: Batch, members: Tensor, first: int = 0) -> PriorStudies | None:
    """The priors of a batch, as the members that are asked of its studies (B, K) see them; None where there are none.

    ``first`` is added to the numbers of the rows.

    Raises:
        InputError: if a prior is of another patient.
    """
    if not isinstance(model.change, Change) or batch.priors is None:
        return None
    rows = list(batch.prior_of)
    only_of_one_patient([batch.patient_ids[row] for row in rows], batch.priors.patient_ids)
    views = encode_views(model.encoder, batch.priors)
    learned = learned_scores(model, views, members[rows])
    classes = len(model.classes)
    scores = np.array(learned).reshape(len(learned), len(rows), classes).swapaxes(0, 1)
    states = batch.priors.class_labels
    reported = np.full((len(rows), classes), -1, dtype=np.int64)
    if states is not None:
        known = states.cpu().numpy()
        reported = np.where(known == UNLABELED, -1, (known == POSITIVE).astype(np.int64))
    return PriorStudies(np.array(rows, dtype=np.int64) + first, scores, vectors_of(model, views), reported)


def stacked(scores: Sequence[Floats], classes: int) -> Floats:
    """Scores (S, C) of sources, of which there may be none."""
    return np.array(scores).reshape(len(scores), classes)


def _remember(
    model: WeaveModel,
    memory: Memory,
    vectors: Floats,
    members: Mask,
    barred: Mask,
    scores: list[Floats],
    shares: dict[str, Floats],
) -> None:
    """Add what the memory of the members' vectors says."""
    nothing = np.zeros(len(model.classes))
    counted = votes_of(torch.from_numpy(members)[None], model.folds.number)[0].numpy()
    if model.recall.is_there:
        recalled = memory.recalled(vectors, counted, barred)
        if recalled is not None:
            shares["recall"] = recalled.weights
        if model.recall.is_source:
            scores.append(nothing if recalled is None else recalled.scores)
    if model.cases.is_there:
        compared = memory.compared(vectors, counted, barred)
        scores.append(nothing if compared is None else compared)


@dataclass(frozen=True, slots=True)
class Gathered:
    """The bank of training studies, and what all sources say of each, out of fold; vectors (J, K, V), and priors."""

    bank: Bank
    out_of_fold: OutOfFold
    weights: list[Floats]
    vectors: Floats
    before: PriorStudies | None


@torch.no_grad()
def gather(model: WeaveModel, training: TrainingView) -> Gathered:
    """Ask every source of every training study, each of those that never saw it, and keep what sources remember."""
    folds = model.folds.of(example.patient_id for example in training.examples)
    labels = (training.class_states == POSITIVE).double().numpy()
    tensors: dict[str, Tensor] = {
        "folds": folds[:, None],
        "labels": torch.from_numpy(labels.astype(np.uint8)),
    }
    learned, vectors, rows, before, members_of_each = score_training(model, training, folds)
    fitted = None
    if isinstance(model.kernels, KernelSource):
        fitted = fit_neighbours(model.kernels.descriptors, training)
        tensors |= fitted.tensors
    if model.recall.is_there or model.cases.is_there:
        tensors["vectors"] = torch.from_numpy(vectors).float()
    bank = Bank(tensors, tuple(rows))
    memory = model.read(bank)
    patients = memory.owners.patient_of_row.numpy()
    all_scores, each_source = [], []
    for row in range(len(rows)):
        barred, members = patients == patients[row], members_of_each[row]
        scores, shares = [scores_of[row] for scores_of in learned], dict[str, Floats]()
        if fitted is not None:
            scores.append(fitted.left_out[row].scores)
            shares["kernels"] = fitted.left_out[row].weights
        _remember(model, memory, vectors[row], members, barred, scores, shares)
        all_scores.append(stacked(scores, len(model.classes)))
        each_source.append(shares)
    # A member whose fold holds all patients but one remembers too few for that one to be worded by.
    in_all = [name for name in each_source[0] if all(name in shares for shares in each_source)]
    worded = {name: np.stack([shares[name] for shares in each_source]) for name in in_all}
    model.wording.fit(worded, [str(row["text"]) for row in rows], patients)
    weights = [model.wording.mixed(shares, patients == own) for shares, own in zip(each_source, patients, strict=True)]
    out_of_fold = OutOfFold(
        scores=np.stack(all_scores),
        labels=labels,
        folds=memory.folds,
        withheld=withheld_of(members_of_each),
        patients=[str(row["patient"]) for row in rows],
        split=training.split,
    )
    return Gathered(bank, out_of_fold, weights, vectors, before)


def own_members(folds: Tensor, number: int) -> Tensor:
    """The members (J, K) that are asked of each training study: the one that lacked its fold."""
    return folds[:, None] == torch.arange(number)


def withheld_of(members: Mask) -> NDArray[np.int64]:
    """The fold (J,) that the members lacked which were asked (J, K) of each study; each of one alone."""
    assert (members.sum(axis=1) == 1).all(), "a training study is asked of one member"
    return np.asarray(members.argmax(axis=1))


def score_training(
    model: WeaveModel, training: TrainingView, folds: Tensor
) -> tuple[list[Floats], Floats, list[dict[str, Any]], PriorStudies | None, Mask]:
    """Scores (J, C) of each source that learned, by the member that lacked it; vectors (J, K, V); rows; priors; and
    the members (J, K) that were asked.
    """
    learned: list[list[Floats]] = []
    vectors: list[Floats] = []
    rows: list[dict[str, Any]] = []
    before: list[PriorStudies] = []
    members: list[Tensor] = []
    device = device_of(model.encoder)
    for batch in training.batches():
        moved = batch.to(device)
        views = encode_views(model.encoder, moved)
        own = own_members(folds[len(rows) : len(rows) + len(batch)], len(model.encoder))
        members.append(own)
        learned.append(learned_scores(model, views, own))
        vectors.append(vectors_of(model, views))
        priors = score_priors(model, moved, own, len(rows))
        before += [] if priors is None else [priors]
        rows += report_rows(batch)
    scores = [np.concatenate(each) for each in zip(*learned, strict=True)]
    return scores, np.concatenate(vectors), rows, PriorStudies.of(before), torch.cat(members).numpy()


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


# Setting at test time: comparison with the prior study.


class AtTest(Config):
    """Settings of a trained run. With ``priors`` false a study's prior is not looked at, as if there were none."""

    priors: bool = True


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
    def log_odds(self) -> Floats:
        """Joint log-odds of the learned sources (B, C); minus infinity before they are weighed."""
        model = self.model
        if not bool(model.bare.fitted):
            return np.full((len(self.batch), len(model.classes)), -np.inf)
        return model.bare.as_fitted(self.learned)

    @cached_property
    def learned(self) -> Floats:
        """Scores of each learned source (B, S, C)."""
        return np.stack(learned_scores(self.model, self.views, self.members), axis=1)

    def source_loss(self, source: DenseSource | Learned) -> Tensor:
        """The loss of a source that learns on the members' tokens."""
        return source.cross_fitted_loss(self.batch, self.folds, self.model.encoder)

    def dense(self) -> Tensor:
        return self.source_loss(self.model.dense)

    def tokens(self) -> Tensor:
        return self.source_loss(self.model.tokens)

    def difference(self) -> Tensor:
        return self.source_loss(self.model.difference)

    @cached_property
    def nearest(self) -> list[int | None]:
        """The row of the training study that is nearest to each study; none of its own patient."""
        memory, model = self.model.memory, self.model
        if memory is None or not model.recall.is_there:
            return [None] * len(self.batch)
        vectors, members = vectors_of(model, self.views), self.members.numpy()
        return [memory.nearest(vectors[row], members[row], self.barred[row]) for row in range(len(self.batch))]

    @cached_property
    def recalled(self) -> list[str | None]:
        """The report that is nearest to each study."""
        memory = self.model.memory
        return [None if row is None or memory is None else str(memory.rows[row]["text"]) for row in self.nearest]

    def report(self) -> Tensor:
        return self.model.writer.loss(self)

    def asserted(self, log_odds: Floats, stack: Stack) -> Tensor:
        """The findings (B, C) that a stack asserts at these log-odds."""
        return self.model.asserted(log_odds, stack).to(self.views.tokens.device)


class NoLanguageModel(nn.Module):
    """Place of a language model, or of what brings images to it, in a model without."""


@dataclass(frozen=True, slots=True)
class CopyingWriter:
    """Reports without a language model: copies of the nearest training report. It proposes none for a draft."""

    language_model: NoLanguageModel = field(default_factory=NoLanguageModel)
    connector: NoLanguageModel = field(default_factory=NoLanguageModel)

    def loss(self, forward: Forward) -> Tensor:
        """Zero: there is nothing to train."""
        return forward.views.tokens.new_zeros(())

    def prefix(self, forward: Forward, findings: Tensor) -> Slot:
        """Refuse: nothing reads a prompt.

        Raises:
            InputError: always.
        """
        raise InputError("the run has no language model", field="model.language_model", got="none")

    def nats(self, forward: Forward, findings: Tensor) -> Float[Tensor, " batch"]:
        """Refuse, as ``prefix`` does."""
        raise InputError("the run has no language model", field="model.language_model", got="none")

    def generate(self, model: WeaveModel, batch: Batch, decoding: DecodingConfig) -> Generation:
        """The nearest training report of each study.

        Raises:
            InputError: if the model has no memory.
        """
        forward = Forward(model, batch)
        _, shown = model.assert_findings(forward, batch)
        texts = [[] if text is None else model.encode(text) for text in forward.recalled]
        return Generation(token_ids=[ids[: decoding.max_new_tokens] for ids in texts], intermediates=shown)

    def propose(
        self, model: WeaveModel, batch: Batch, evidence: Sequence[Evidence], decoding: DecodingConfig
    ) -> list[list[str]]:
        """No reports."""
        return [[] for _ in evidence]


@dataclass(frozen=True, slots=True)
class LanguageModelWriter:
    """Reports of a language model, whose prompt has the image, the findings in words and the nearest report."""

    language_model: CausalLanguageModel
    connector: Connector

    def prefix(self, forward: Forward, findings: Tensor) -> Slot:
        """The prompt with these findings (B, C) in words."""
        prompts, image = forward.model.prompts, connect_views(self.connector, forward.views)
        slots = prompts.slots(self.language_model, image, findings, forward.recalled)
        return forward.spliced(
            prompts.template, {name: forward.decoder_input(name, slot) for name, slot in slots.items()}
        )

    def loss(self, forward: Forward) -> Tensor:
        """Loss per token of the reference reports."""
        model, batch = forward.model, forward.batch
        generator = hint_generator(model.training)
        # Every other batch is told what its own reports say, so that what is asserted is worth being read.
        if model.training and torch.rand(1, generator=generator) < 0.5:
            findings = noisy_findings(required(batch.class_labels), "negative", generator, **HINTS)
        else:
            findings = forward.asserted(forward.log_odds, model.bare)
        given_ids, labels = required(batch.input_ids), required(batch.labels)
        weights = batch.label_weights
        return self.language_model.loss(*self.prefix(forward, findings), given_ids, labels, weights)

    def nats(self, forward: Forward, findings: Tensor) -> Float[Tensor, " batch"]:
        """Mean negative log-likelihood per token of each reference report."""
        ids, labels = required(forward.batch.input_ids), required(forward.batch.labels)
        return study_nats(self.language_model.logits(*self.prefix(forward, findings), ids, labels), labels)

    def generate(self, model: WeaveModel, batch: Batch, decoding: DecodingConfig) -> Generation:
        """The likeliest report of each study."""
        return generation(model, batch, decoding)

    def propose(
        self, model: WeaveModel, batch: Batch, evidence: Sequence[Evidence], decoding: DecodingConfig
    ) -> list[list[str]]:
        """The likeliest report of each study, and ``samples`` drawn ones; each study is read by itself."""
        prefixes = []
        for row, one in enumerate(evidence):
            forward = Forward(model, batch.only([row]))
            findings = forward.asserted(one.scores[None], model.stack)
            prefixes.append(Prefixes(*self.prefix(forward, findings)))
        drawn = decoding.model_copy(update={"temperature": model.temperature})
        reports = self.language_model.write_draws(prefixes, drawn, model.samples)
        return [list(dict.fromkeys(model.decode(ids) for ids in row)) for row in reports]


INPUTS = {
    "image": DecoderInput("projected patch tokens of all members"),
    "findings": DecoderInput("findings that the stack asserts, in words"),
    "recalled": DecoderInput("report of the nearest training study"),
}
TERMS: Mapping[str, Term[Forward]] = {
    "dense": Term(("vision_encoder", "dense"), Forward.dense),
    "tokens": Term(("vision_encoder", "tokens"), Forward.tokens),
    "difference": Term(("vision_encoder", "difference"), Forward.difference),
    "report": Term(("vision_encoder", "connector", "language_model", "recall", "bare", *LEARNED), Forward.report),
}


@dataclass(eq=False, repr=False, kw_only=True)
class WeaveModel(ReportModel):
    """logit p_c = b_c + sum_s w_sc z_sc over sources s, of which those that learn are K members that each lack a fold.

    Stage ``encoder`` trains the members, ``sources`` the heads on their tokens. Before ``report`` all sources score the
    training studies, each member its own fold alone, and the stack is fitted to the scores. ``report`` trains the
    language model. Drafts are chosen by expected utility (``EvidenceSource``) among training reports, composites, and
    reports of the language model.

    Deviations from the papers: docs/methods/weave.md.
    """

    vision_encoder: Members
    dense: DenseSource
    tokens: Learned
    difference: Learned
    kernels: KernelSource | NoSource
    recall: RecallSource | NoSource
    cases: CasesSource | NoSource
    change: Change | NoChange
    folds: Folds
    stack: Stack
    bare: Stack
    connector: Connector | NoLanguageModel
    language_model: CausalLanguageModel | NoLanguageModel
    writer: LanguageModelWriter | CopyingWriter
    prompts: Prompts
    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]
    weighing: EqualWeightsConfig | StackConfig
    wording: Wording
    classes: tuple[str, ...]
    samples: int
    temperature: float
    max_studies: int | None
    memory: Memory | None = None
    gathered: list[Evidence] = field(default_factory=list)
    settings: AtTest = field(default_factory=AtTest)
    terms = TERMS
    inputs = INPUTS

    @property
    def encoder(self) -> Members:
        """The members."""
        return self.vision_encoder

    def prompt_tokens(self, study: StudySize) -> int:
        """The prompt with the tokens of all views, every finding in words, and a recalled report of full length."""
        slots = {
            "image": study.views * study.tokens,
            "findings": self.prompts.findings.longest,
            "recalled": self.prompts.around.length(self.prompts.max_tokens),
        }
        return self.prompts.template.length(slots, study.context)

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources that the stack weighs, in its order."""
        return tuple(name for name in SOURCES if getattr(self, name).is_source)

    def loss(self, batch: Batch, terms: Sequence[str]) -> dict[str, Tensor]:
        """Losses: ``dense`` (classes and words, of the members), ``tokens`` and ``difference`` of the sources that
        learn, ``report`` per token of the language model.
        """
        return losses(self.terms, Forward(self, batch), terms)

    def report_nats(self, batch: Batch) -> Float[Tensor, " batch"]:
        """Mean negative log-likelihood per token of each study's report, after the findings that the stack asserts.

        Raises:
            InputError: if the run has no language model.
        """
        forward = Forward(self, batch)
        return self.writer.nats(forward, self.assert_findings(forward, batch)[0])

    @torch.no_grad()
    def generate(self, batch: Batch, decoding: DecodingConfig) -> Generation:
        """The language model's own report, told what the stack asserts; without one, the nearest training report.

        Evidence: the probability of each class, what each source says of it and its weight, and the nearest report.

        Raises:
            InputError: if there is neither a language model nor a memory.
        """
        return self.writer.generate(self, batch, decoding)

    def to_write(self, batch: Batch) -> ToWrite:
        """Prefixes of the reports of a batch, with the asserted findings."""
        forward = Forward(self, batch)
        findings, shown = self.assert_findings(forward, batch)
        return ToWrite(
            Prefixes(*self.writer.prefix(forward, findings)), lambda ids, log_probs: written(ids, log_probs, shown)
        )

    def assert_findings(self, forward: Forward, batch: Batch) -> tuple[Tensor, list[DraftEvidence]]:
        """The findings that the stack asserts (B, C), and the evidence."""
        evidence = None if self.memory is None else self.evidence_for(batch)
        log_odds = forward.log_odds if evidence is None else np.stack([one.scores for one in evidence])
        each = self._bare(forward, log_odds) if evidence is None else evidence
        shown: list[DraftEvidence] = [
            {"class_probabilities": self._probable(one.scores), "recalled": self._recalled(near), **one.shown}
            for one, near in zip(each, forward.nearest, strict=True)
        ]
        return forward.asserted(log_odds, self.bare if evidence is None else self.stack), shown

    def _bare(self, forward: Forward, log_odds: Floats) -> list[Evidence]:
        """Evidence of the learned sources, for a model without memory."""
        if not bool(self.bare.fitted):
            return [Evidence(row, row) for row in log_odds]
        fitted = self.bare.as_fitted
        shown: list[DraftEvidence] = [{"sources": self._by_source(fitted, scores)} for scores in forward.learned]
        return [Evidence(row, row, own) for row, own in zip(log_odds, shown, strict=True)]

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
        return [self._weighed(fitted, scores) for scores in score_sources(self, self.memory, batch)]

    def _weighed(self, fitted: FittedStack, source: SourceScores) -> Evidence:
        """The stacked evidence; for a study with a prior, moved by the change."""
        log_odds = fitted(source.scores)
        shown: DraftEvidence = {"sources": self._by_source(fitted, source.scores)}
        moved = compare(self, source.before, log_odds, source.vectors, source.members)
        if moved is None:
            return Evidence(log_odds, source.weights, shown)
        return Evidence(moved.log_odds, source.weights, {**shown, **moved.shown}, moved.changes)

    def scores_are_log_odds(self) -> bool:
        """Yes: scores are those of the stack."""
        return True

    def left_out(self) -> list[Evidence]:
        """The same of each training study, by members, neighbours and a stack that never saw it."""
        assert self.gathered, "asked after the memories were built"
        return self.gathered

    @torch.no_grad()
    def build_memories(self, stage: str, training: TrainingView) -> dict[str, Bank]:
        """Before the members learn, their targets; before the heads, what is normal; before reports, all sources are
        asked of the training studies, and the stack and what compares with priors are fitted to what they said.
        """
        if stage == "encoder":
            self.dense.fit(training, self.folds)
        if stage == "sources":
            for source in (self.tokens, self.difference):
                source.fit(training, self.encoder, self.folds)
        if stage != "report":
            return {}
        training = training if self.max_studies is None else training.spread(self.max_studies)
        gathered = gather(self, training)
        counted = np.array([name != NO_FINDING for name in self.classes])
        log_odds, stacks = self.stack.fit(gathered.out_of_fold, self.weighing, counted)
        self.stack.ask_what_each_adds(gathered.out_of_fold, stacks, self.weighing, counted)
        learned, of_priors = [number for number, name in enumerate(self.sources) if name in LEARNED], FoldStacks()
        if learned:
            _, of_fold = self.bare.fit(gathered.out_of_fold.of(learned), self.weighing, counted)
            of_priors = FoldStacks(of_fold, self.bare.as_fitted)
        if gathered.before is not None:
            log_odds = learn_changes(self, training, gathered.before, log_odds, gathered.vectors, of_priors)
        self.gathered = [Evidence(scores, weights) for scores, weights in zip(log_odds, gathered.weights, strict=True)]
        return {} if self.max_studies is None else {STUDIES: gathered.bank}

    def figures(self) -> dict[str, dict[str, float | None]]:
        """Gain of each source: average precision out of fold with all sources and without it."""
        return self.stack.added(self.sources) if bool(self.stack.fitted) else {}

    def memory_layouts(self) -> Mapping[str, BankLayout]:
        """The training studies, unless none are kept."""
        if self.max_studies is None:
            return {}
        tensors = {"folds": Column("whole", (1,)), "labels": Column("flag", (len(self.classes),))}
        if self.kernels.is_there:
            tensors |= neighbour_columns(len(self.classes))
        if self.recall.is_there or self.cases.is_there:
            tensors["vectors"] = Column("float", (len(self.encoder), 2 * self.encoder.width))
        return {STUDIES: BankLayout(tensors, texts=True)}

    def set_memories(self, banks: Mapping[str, Bank]) -> None:
        """Take the training studies."""
        if STUDIES in banks:
            self.memory = self.read(banks[STUDIES])

    def asks_priors(self) -> bool:
        """As it was told at test time."""
        return self.settings.priors

    def vary(self, settings: AtTest, look: Look) -> None:
        """Report with or without priors."""
        self.settings = settings

    def read(self, bank: Bank) -> Memory:
        """A bank as the sources read it."""
        return Memory.of(bank, len(self.encoder), self.cases)

    @torch.no_grad()
    def propose(self, batch: Batch, evidence: Sequence[Evidence], decoding: DecodingConfig) -> list[list[str]]:
        """Reports that the language model writes for each study, told what the stack asserts: its likeliest, then
        ``samples`` drawn ones. None where there is no language model.

        Each study is read by itself, and its draws are its own: neither depends on the batch.
        """
        return self.writer.propose(self, batch, evidence, decoding)

    def _probable(self, log_odds: Floats) -> dict[str, float]:
        probabilities = 1 / (1 + np.exp(-log_odds))
        return dict(zip(self.classes, probabilities.tolist(), strict=True))

    def _by_source(self, fitted: FittedStack, scores: Floats) -> dict[str, dict[str, dict[str, float]]]:
        return shown_sources(self.sources, self.classes, fitted.log_odds(scores), fitted.weights)

    def _recalled(self, row: int | None) -> list[RecalledEvidence]:
        if row is None or self.memory is None:
            return []
        report = self.memory.rows[row]
        return [{"kind": "report", "study_id": report["study_id"], "text": report["text"]}]
