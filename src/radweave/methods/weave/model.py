"""weave: what five methods and a memory see, weighed for each class, and a draft chosen by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from radweave.base.batch import Batch, Generation
from radweave.base.errors import InputError
from radweave.contract.model import ReportModel, Term, given, losses, written
from radweave.contract.terms import SeenBatch
from radweave.contract.writing import ToWrite, generation
from radweave.drafting.smoothers import Evidence, Floats
from radweave.labels import NO_FINDING
from radweave.memory.bank import Bank, BankLayout, Column
from radweave.methods.weave.at_test import AtTest
from radweave.methods.weave.beside import FoldStacks, compare, learn_changes
from radweave.methods.weave.evidence import (
    LEARNED,
    SOURCES,
    Said,
    gather,
    learned_scores,
    own_members,
    say,
    shown_sources,
    vectors_of,
)
from radweave.methods.weave.heads import DenseSource, Learned, NoSource
from radweave.methods.weave.members import Folds, Members, asked_members, cross_fitted
from radweave.methods.weave.recall import CasesSource, KernelSource, Memory, RecallSource
from radweave.methods.weave.stack import EqualWeightsConfig, FittedStack, Stack, StackConfig
from radweave.methods.weave.wording import Wording
from radweave.methods.weave.writing import HINTS, NoLanguageModel, Prompts, WriterPart
from radweave.nn.connector import Connector
from radweave.nn.decoding import DecodingConfig, Prefixes
from radweave.nn.finding_words import noisy_findings
from radweave.nn.language_model import CausalLanguageModel
from radweave.nn.prompt import Slot
from radweave.nn.text_pretraining import hint_generator
from radweave.nn.views import connect_views, encode_views
from radweave.sources.alike import alike_columns
from radweave.sources.since_prior import Change, NoChange

if TYPE_CHECKING:
    from radweave.contract.view import Look, TrainingView

STUDIES = "studies"
"""Name of the bank."""


class Seen(SeenBatch["WeaveModel"]):
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
    def asked(self) -> Tensor:
        """The members (B, K) that are asked of each study: in training the one that lacked its patient."""
        memory, number = self.model.memory, len(self.model.encoder)
        if self.folds is not None:
            return own_members(self.folds, number)
        folds = torch.zeros(0, dtype=torch.long) if memory is None else torch.from_numpy(memory.folds)
        return asked_members(self.barred, folds, number)

    @cached_property
    def log_odds(self) -> Floats:
        """What the sources that learned say together (B, C); minus infinity before they are weighed."""
        model = self.model
        if not bool(model.bare.fitted):
            return np.full((len(self.batch), len(model.classes)), -np.inf)
        return model.bare.as_fitted(self.learned)

    @cached_property
    def learned(self) -> Floats:
        """What each of them says (B, S, C)."""
        return np.stack(learned_scores(self.model, self.views, self.asked), axis=1)

    def source_loss(self, source: DenseSource | Learned) -> Tensor:
        """The loss of a source that learns on the members' tokens; 0 of one that is not there."""
        if isinstance(source, NoSource):
            return self.views.tokens.new_zeros(())
        learner, encoder = source, self.model.encoder

        def of(number: int, some: Batch) -> Tensor:
            return learner.loss(number, encode_views(encoder.each[number], some), some)

        return cross_fitted(self.batch, self.folds, list(learner.each), of, encoder.alone)

    def eyes(self) -> Tensor:
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
        vectors, asked = vectors_of(model, self.views), self.asked.numpy()
        return [memory.nearest(vectors[row], asked[row], self.barred[row]) for row in range(len(self.batch))]

    def prefix(self, findings: Tensor) -> Slot:
        """The prompt with these findings (B, C) in words."""
        model, memory = self.model, self.model.memory
        texts = [None if row is None or memory is None else str(memory.rows[row]["text"]) for row in self.nearest]
        writer, connector = model.writer
        slots = model.prompts.slots(writer, connect_views(connector, self.views), findings, texts)
        return self.spliced(model.prompts.template, slots)

    def report(self) -> Tensor:
        model, batch = self.model, self.batch
        if isinstance(model.language_model, NoLanguageModel):
            return self.views.tokens.new_zeros(())
        generator = hint_generator(model.training)
        # Every other batch is told what its own reports say, so that what is asserted is worth being read.
        if model.training and torch.rand(1, generator=generator) < 0.5:
            findings = noisy_findings(given(batch.class_labels), "negative", generator, **HINTS)
        else:
            findings = self.asserted(self.log_odds, model.bare)
        given_ids, labels = given(batch.input_ids), given(batch.labels)
        return model.writer[0].loss(*self.prefix(findings), given_ids, labels)

    def asserted(self, log_odds: Floats, stack: Stack) -> Tensor:
        """The findings (B, C) that a stack asserts at these log-odds."""
        return self.model.asserted(log_odds, stack).to(self.views.tokens.device)


TERMS: Mapping[str, Term[Seen]] = {
    "eyes": Term(("vision_encoder", "dense"), Seen.eyes),
    "tokens": Term(("vision_encoder", "tokens"), Seen.tokens),
    "difference": Term(("vision_encoder", "difference"), Seen.difference),
    "report": Term(("vision_encoder", "connector", "language_model", "recall", "bare", *LEARNED), Seen.report),
}


@dataclass(eq=False, repr=False, kw_only=True)
class WeaveModel(ReportModel):
    """logit p_c = b_c + sum_s w_sc z_sc over sources s, of which those that learn are K members that each lack a fold.

    Stage ``eyes`` trains the members, ``sources`` the heads on their tokens; before ``report`` all sources are asked of
    the training studies, each member of its own fold alone, and the stack is fitted to that. ``report`` trains the
    language model. Drafts are chosen by expected utility (``Witness``) among training reports, composites, and what the
    language model writes.

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
    language_model: WriterPart
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

    @property
    def encoder(self) -> Members:
        """The members."""
        return self.vision_encoder

    @property
    def writer(self) -> tuple[CausalLanguageModel, Connector]:
        """The language model and what brings tokens to it.

        Raises:
            InputError: if there is none.
        """
        if isinstance(self.language_model, NoLanguageModel) or isinstance(self.connector, NoLanguageModel):
            raise InputError("the run has no language model", field="model.language_model", got="none")
        return self.language_model, self.connector

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources that the stack weighs, in its order."""
        return tuple(name for name in SOURCES if getattr(self, name).speaks)

    def loss(self, batch: Batch, terms: Sequence[str]) -> dict[str, Tensor]:
        """Losses: ``eyes`` (classes and words, of the members), ``tokens`` and ``difference`` of the sources that
        learn, ``report`` per token of the language model.
        """
        return losses(TERMS, Seen(self, batch), terms)

    @torch.no_grad()
    def generate(self, batch: Batch, decoding: DecodingConfig) -> Generation:
        """The language model's own report, told what the stack asserts; without one, the nearest training report.

        Evidence: the probability of each class, what each source says of it and its weight, and the nearest report.

        Raises:
            InputError: if there is neither a language model nor a memory.
        """
        if not isinstance(self.language_model, NoLanguageModel):
            return generation(self, batch, decoding)
        seen = Seen(self, batch)
        _, shown = self._asserted(seen, batch)
        copies = [self._copied(row)[: decoding.max_new_tokens] for row in seen.nearest]
        return Generation(token_ids=copies, intermediates=shown)

    def to_write(self, batch: Batch) -> ToWrite:
        """What the language model is told of each study of a batch."""
        seen = Seen(self, batch)
        findings, shown = self._asserted(seen, batch)
        return ToWrite(Prefixes(*seen.prefix(findings)), lambda ids, log_probs: written(ids, log_probs, shown))

    def _asserted(self, seen: Seen, batch: Batch) -> tuple[Tensor, list[dict[str, Any]]]:
        """The findings that the stack asserts (B, C), and the evidence."""
        said = None if self.memory is None else self.testify(batch)
        log_odds = seen.log_odds if said is None else np.stack([one.scores for one in said])
        each = self._bare(seen, log_odds) if said is None else said
        shown = [
            {**self._probable(one.scores), "recalled": self._recalled(near), **one.shown}
            for one, near in zip(each, seen.nearest, strict=True)
        ]
        return seen.asserted(log_odds, self.bare if said is None else self.stack), shown

    def _bare(self, seen: Seen, log_odds: Floats) -> list[Evidence]:
        """What the sources that learned say, where no study is remembered."""
        if not bool(self.bare.fitted):
            return [Evidence(row, row) for row in log_odds]
        fitted = self.bare.as_fitted
        shown = [{"sources": self._by_source(fitted, scores)} for scores in seen.learned]
        return [Evidence(row, row, own) for row, own in zip(log_odds, shown, strict=True)]

    def asserted(self, log_odds: Floats, stack: Stack) -> Tensor:
        """The findings (B, C) from whose probability on asserting pays off."""
        probabilities = 1 / (1 + np.exp(-log_odds))
        found = (probabilities >= float(stack.threshold)) & np.array([name != NO_FINDING for name in self.classes])
        return torch.from_numpy(found)

    def testify(self, batch: Batch) -> list[Evidence]:
        """What all sources together say of each study, as log-odds, and how its report would be worded.

        Raises:
            InputError: if the model has no memory.
        """
        if self.memory is None:
            raise InputError("the sources remember training studies, and there are none", field="memories")
        fitted = self.stack.as_fitted
        return [self._weighed(fitted, said) for said in say(self, self.memory, batch)]

    def _weighed(self, fitted: FittedStack, said: Said) -> Evidence:
        """What the stack makes of it; of a study with a prior, what changed has the last word."""
        log_odds = fitted(said.scores)
        shown = {"sources": self._by_source(fitted, said.scores)}
        moved = compare(self, said.before, log_odds, said.vectors, said.asked)
        if moved is None:
            return Evidence(log_odds, said.weights, shown)
        return Evidence(moved.log_odds, said.weights, {**shown, **moved.shown}, moved.changes)

    def speaks_log_odds(self) -> bool:
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
        if stage == "eyes":
            self.dense.fit(training, self.folds)
        if stage == "sources":
            for source in (self.tokens, self.difference):
                if not isinstance(source, NoSource):
                    source.fit(training, self.encoder, self.folds)
        if stage != "report":
            return {}
        training = training if self.max_studies is None else training.spread(self.max_studies)
        gathered = gather(self, training)
        counted = np.array([name != NO_FINDING for name in self.classes])
        log_odds, stacks = self.stack.fit(gathered.seen, self.weighing, counted)
        self.stack.ask_what_each_adds(gathered.seen, stacks, self.weighing, counted)
        learned, of_priors = [number for number, name in enumerate(self.sources) if name in LEARNED], FoldStacks()
        if learned:
            _, of_fold = self.bare.fit(gathered.seen.of(learned), self.weighing, counted)
            of_priors = FoldStacks(of_fold, self.bare.as_fitted)
        if gathered.before is not None:
            log_odds = learn_changes(self, training, gathered.before, log_odds, gathered.vectors, of_priors)
        self.gathered = [Evidence(scores, weights) for scores, weights in zip(log_odds, gathered.weights, strict=True)]
        return {} if self.max_studies is None else {STUDIES: gathered.bank}

    def figures(self) -> dict[str, dict[str, float | None]]:
        """What each source adds: average precision out of fold with all sources and without it."""
        return self.stack.added(self.sources) if bool(self.stack.fitted) else {}

    def memory_layouts(self) -> Mapping[str, BankLayout]:
        """The training studies, unless none are kept."""
        if self.max_studies is None:
            return {}
        tensors = {"folds": Column("whole", (1,)), "labels": Column("flag", (len(self.classes),))}
        if self.kernels.is_there:
            tensors |= alike_columns(len(self.classes))
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
    def propose(self, batch: Batch, said: Sequence[Evidence], decoding: DecodingConfig) -> list[list[str]]:
        """Reports that the language model writes for each study, told what the stack asserts: its likeliest, then
        ``samples`` drawn ones. None where there is no language model.

        Each study is read by itself, and its draws are its own: neither depends on the batch.
        """
        if isinstance(self.language_model, NoLanguageModel):
            return [[] for _ in said]
        prefixes = []
        for row, one in enumerate(said):
            seen = Seen(self, batch.only([row]))
            prefixes.append(Prefixes(*seen.prefix(seen.asserted(one.scores[None], self.stack))))
        drawn = decoding.model_copy(update={"temperature": self.temperature})
        reports = self.language_model.write_draws(prefixes, drawn, self.samples)
        return [list(dict.fromkeys(self.decode(ids) for ids in row)) for row in reports]

    def _probable(self, log_odds: Floats) -> dict[str, Any]:
        probabilities = 1 / (1 + np.exp(-log_odds))
        return {"class_probabilities": dict(zip(self.classes, probabilities.tolist(), strict=True))}

    def _by_source(self, fitted: FittedStack, scores: Floats) -> dict[str, Any]:
        return shown_sources(self.sources, self.classes, fitted.log_odds(scores), fitted.weights)

    def _recalled(self, row: int | None) -> list[dict[str, Any]]:
        if row is None or self.memory is None:
            return []
        found = self.memory.rows[row]
        return [{"kind": "report", "study_id": found["study_id"], "text": found["text"]}]

    def _copied(self, row: int | None) -> list[int]:
        return [] if row is None or self.memory is None else self.encode(str(self.memory.rows[row]["text"]))
