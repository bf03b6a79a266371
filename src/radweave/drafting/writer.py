"""Drafts by expected utility, from the drafting store of a run, the evidence for a study, and the options."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from radweave.core.evidence import DraftEvidence, RecalledEvidence, SentenceEvidence, UtilityEvidence
from radweave.core.study import NO_SECTION, SECTIONS, has_both_sections, split_sections
from radweave.drafting.calibration import RunCalibration
from radweave.drafting.candidates import (
    Candidate,
    CandidatePool,
    Sentence,
    SentenceLabels,
    affirmed_classes,
    candidate_options,
    clean_sentence,
    compose,
    keeps_places,
    names_device,
    utilities,
    utility_options,
    without_contradictions,
)
from radweave.drafting.changes import Change, ChangeUtility, ComparisonPool
from radweave.drafting.choice import (
    NEAREST,
    Choice,
    Doubles,
    ExpectedUtility,
    NearbyUtility,
    nearest_rows,
    prepared,
    shares,
)
from radweave.drafting.smoothers import Changes, Evidence, Floats
from radweave.drafting.store import DraftingStore
from radweave.labels import NO_FINDING, Labeler, get_labeler
from radweave.labels.comparisons import MARK
from radweave.labels.contradictions import DEVICES
from radweave.labels.text import split_sentences
from radweave.metrics.ngrams import ReportStatistics
from radweave.metrics.pairwise import MAX_ORDER, BleuPoint, PairwiseWording, WordingWeights
from radweave.nn.decoding import ExpectedUtilityConfig

# Composites of more findings, for one study. Candidates are made before any study, so that a composite states two
# findings at most: of three there would be too many. Further findings are added to the draft one after the other.


class FindingSentences:
    """The sentences of composites that state one finding, and drafts with one of them more.

    Args:
        candidates: as ``build_candidates`` makes them; without composites there is nothing to add.
        consistent: a sentence that calls the organ normal gives way to a finding.
    """

    def __init__(self, candidates: Sequence[Candidate], labeler: Labeler, *, consistent: bool) -> None:
        self.labels, self.consistent = SentenceLabels(labeler), consistent
        groups = (
            tuple(sentence for sentence in candidate.sentences if sentence.kind == "finding")
            for candidate in candidates
        )
        stated = [group for group in dict.fromkeys(groups) if group]
        self.labels.read(sentence.text for group in stated for sentence in group)
        self.sentences: Mapping[str, list[tuple[Sentence, ...]]] = defaultdict(list)
        for group in stated:
            names = frozenset().union(*(self.labels.affirmed(sentence.text) for sentence in group))
            if len(names) == 1:
                self.sentences[min(names)].append(group)

    def variants(self, draft: Choice, names: Iterable[str], barred: NDArray[np.bool_]) -> Iterator[Candidate]:
        """The draft with one finding more, for each of the classes ``names`` that it does not state.

        ``barred`` (J,) are reports of the study's own patient, which lend no sentence.
        """
        self.labels.read(sentence.text for sentence in draft.candidate.sentences)
        for name in names:
            if name in draft.asserted:
                continue
            for group in self.sentences.get(name, ()):
                if not any(barred[sentence.row] for sentence in group):
                    made = compose(draft.candidate, group, self.labels, consistent=self.consistent)
                    if made.sentences:
                        yield made


# Reports that a language model wrote for one study, compared with the best draft of the training reports.


FURTHER = 0.5
"""Weight of a finding beside those of the chosen report, rare or not; see docs/drafting.md."""
NO_ROW = -1
"""The row of a sentence that is from no training report."""


class Proposals:
    """Chooses between a draft and reports that were written for the same study, by the same expected utility.

    Words are worth what they are for the reports with the greatest weights, of the draft as of the others. Sentences
    with de-identification marks are left out unless ``marks``. Where training reports have two parts, a text that lacks
    one is none. Where the study was compared with its prior, each change that a text states counts by its probability
    (``ChangeWorth``); elsewhere comparisons are left out. With ``consistent`` nothing is taken that contradicts itself.
    ``counts`` (K,) is what stating a class counts, 0 for one that is no finding. ``bank`` has the same reports, where
    they have been counted already.
    """

    def __init__(
        self,
        reports: Sequence[str],
        labeler: Labeler,
        *,
        counts: Doubles,
        thresholds: Doubles,
        weights: WordingWeights,
        point: BleuPoint | None,
        beta: float,
        marks: bool,
        consistent: bool = False,
        places: bool = True,
        bank: ReportStatistics | None = None,
    ) -> None:
        self.consistent, self.places = consistent, places
        self.labeler, self.counts, self.thresholds, self.beta, self.marks = labeler, counts, thresholds, beta, marks
        self.weights = WordingWeights(weights.cider, weights.rouge_l, weights.bleu if point is not None else 0.0)
        self.point, self.bank = point, bank or ReportStatistics.of(prepared(reports), MAX_ORDER)
        self.parts = set(SECTIONS) if all(map(has_both_sections, reports)) else {NO_SECTION}

    def choose(
        self,
        draft: Choice,
        texts: Sequence[str],
        probabilities: Doubles,
        weights: Doubles,
        barred: NDArray[np.bool_],
        changes: Changes | None = None,
        *,
        devices: bool = True,
    ) -> Choice:
        """The best of a draft and of these texts; the draft where none is better.

        A language model gets no prior: its comparisons are taken out, unless the study was compared with a prior, which
        gives probabilities of changes.

        Args:
            draft: the best of the training reports and composites.
            texts: reports of the language model.
            probabilities: (K,) of the classes.
            weights: (J,) of the training reports.
            barred: (J,) reports of the study's own patient.
            changes: those from the prior, where the study was compared with one.
            devices: the evidence supports a sentence on a device.
        """
        made = (self._candidate(text, compares=changes is not None) for text in texts)
        written = [one for one in made if one is not None and (devices or not names_device(one))]
        return self.best(draft, written, probabilities, weights, barred, changes)

    def best(
        self,
        draft: Choice,
        others: Sequence[Candidate],
        probabilities: Doubles,
        weights: Doubles,
        barred: NDArray[np.bool_],
        changes: Changes | None,
        *,
        further: bool = False,
    ) -> Choice:
        """The best of a draft and of other candidates; the draft where none is better.

        ``further``: they state findings beside those of the draft, which count ``FURTHER``.
        """
        if self.consistent:
            others = [candidate for candidate in map(without_contradictions, others) if candidate.sentences]
        candidates = list(dict.fromkeys([draft.candidate, *others]))
        if len(candidates) == 1:
            return draft
        texts = [candidate.text for candidate in candidates]
        rows = nearest_rows(weights, barred, NEAREST)
        wording = self._utilities(texts, rows) @ shares(weights, barred, rows).astype(np.float32)
        asserts = affirmed_classes(texts, self.labeler) * self.counts
        gains = self.beta * (asserts @ (probabilities - self.thresholds))
        compared: list[tuple[Change, ...]] = [()] * len(texts)
        change = np.zeros(len(texts))
        if changes is not None:
            utility = ChangeUtility(changes, self.labeler.classes, self.labeler)
            compared = utility.stated(texts)
            change = self.beta * utility(compared)
        counted = FURTHER * np.minimum(asserts, 1) if further else asserts
        paid = self.beta * (counted @ (probabilities - self.thresholds))
        best = int((wording + paid + change).argmax())
        if best == 0:
            return draft
        asserted = tuple(name for name, count in zip(self.labeler.classes, asserts[best], strict=True) if count)
        return Choice(
            candidates[best],
            asserted,
            float(wording[best]),
            float(gains[best]),
            compared[best],
            float(change[best]),
        )

    def _candidate(self, text: str, *, compares: bool) -> Candidate | None:
        sections = split_sections(text) if NO_SECTION not in self.parts else {NO_SECTION: text}
        cleaned = (
            (part, clean_sentence(sentence, self.labeler, compares=compares, places=self.places))
            for part, own in sections.items()
            for sentence in split_sentences(own)
        )
        sentences = tuple(
            Sentence(sentence, "language_model", NO_ROW, part)
            for part, sentence in (dict.fromkeys(cleaned) if self.consistent else cleaned)
            if sentence and (self.marks or not MARK.search(sentence))
        )
        return Candidate(sentences) if {sentence.part for sentence in sentences} == self.parts else None

    def _utilities(self, texts: Sequence[str], rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Utilities (M, N) of texts for reports of the bank."""
        numbers = [self.bank.encode(words) for words in prepared(texts)]
        pairs = PairwiseWording.within(numbers, [self.bank.words_of(row) for row in rows.tolist()], self.bank)
        return np.concatenate([block for _, block in pairs.blocks(self.weights, self.point)])


MOST_IN_PAIRS = 4096
"""Training reports up to which all pairs with candidates are computed; of more, the nearest (``NearbyUtility``)."""
RECALLED = 3
"""Training reports that are shown with a draft: those with the greatest weights."""
NOTHING_LEFT = "no draft: every training report is of the study's own patient"


@dataclass(frozen=True, slots=True)
class UtilityDraft:
    """A draft, its evidence, and warnings."""

    text: str
    evidence: DraftEvidence
    warnings: tuple[str, ...] = ()


class UtilityWriter:
    """Writes drafts from evidence over the reports of a store.

    Candidates and utilities that were made with other options than these are made again, which takes seconds.
    """

    def __init__(
        self,
        store: DraftingStore,
        calibration: RunCalibration,
        config: ExpectedUtilityConfig,
        *,
        marks: bool = False,
    ) -> None:
        facts = store.facts
        self.rows = store.bank.rows
        self.calibration, self.rule, self.macro = calibration, config.thresholds, config.macro
        pool = CandidatePool(store.candidates, store.asserts)
        same = facts.candidates == candidate_options(config, marks=marks)
        if not same:
            pool = CandidatePool.build(store.texts, get_labeler(facts.label_set), config, marks=marks)
        # "No Finding" follows from the others: asserting it does not count.
        counts = np.minimum(calibration.weights(config.thresholds, config.macro), config.heaviest)
        self.counts = np.array([name != NO_FINDING for name in facts.classes]) * counts
        self.consistent = config.consistent
        self.thresholds = calibration.thresholds(config.thresholds, config.macro)
        self.further = config.further_findings if config.findings else 0
        weights = WordingWeights(config.cider, config.rouge_l, config.bleu)
        self.chooser = self._chooser(store, pool, config, weights, ready=same)
        self.devices = [k for k, name in enumerate(facts.classes) if name in DEVICES]
        named = np.array([config.consistent and names_device(candidate) for candidate in pool.candidates], dtype=bool)
        self.naming_device = named if named.any() else None
        self.labeler = get_labeler(facts.label_set)
        self.config, self.marks, self.point, self.weights = config, marks, facts.bleu_point, weights
        self.texts, self.candidates = store.texts, pool.candidates

    @cached_property
    def proposals(self) -> Proposals:
        return Proposals(
            self.texts,
            self.labeler,
            counts=self.counts,
            thresholds=self.thresholds,
            weights=self.weights,
            point=self.point,
            beta=self.config.findings,
            marks=self.marks,
            consistent=self.consistent,
            places=keeps_places(self.config),
            bank=self.chooser.bank if isinstance(self.chooser, NearbyUtility) else None,
        )

    @cached_property
    def comparisons(self) -> ComparisonPool:
        places = keeps_places(self.config)
        return ComparisonPool(self.texts, self.labeler, marks=self.marks, consistent=self.consistent, places=places)

    @cached_property
    def finding_sentences(self) -> FindingSentences:
        return FindingSentences(self.candidates, self.labeler, consistent=self.consistent)

    def _chooser(
        self,
        store: DraftingStore,
        pool: CandidatePool,
        config: ExpectedUtilityConfig,
        weights: WordingWeights,
        *,
        ready: bool,
    ) -> ExpectedUtility | NearbyUtility:
        """Among all pairs, or in a large bank among the nearest. ``ready``: the candidates are those of the store."""
        facts, asserts = store.facts, pool.asserts * self.counts
        if len(store.bank) > MOST_IN_PAIRS:
            return NearbyUtility(
                pool.candidates,
                asserts,
                store.texts,
                classes=facts.classes,
                thresholds=self.thresholds,
                weights=weights,
                point=facts.bleu_point,
                beta=config.findings,
            )
        wording = store.utilities if ready and facts.wording == utility_options(config) else None
        if wording is None:
            wording = utilities(pool.candidates, store.texts, config, facts.bleu_point)
        return ExpectedUtility(
            pool.candidates,
            asserts,
            wording,
            classes=facts.classes,
            thresholds=self.thresholds,
            beta=config.findings,
        )

    def write(self, evidence: Evidence, barred: NDArray[np.bool_], proposed: Sequence[str] = ()) -> UtilityDraft:
        """The draft of a study whose own and whose patient's rows are ``barred`` (J,).

        ``proposed`` are reports of a language model. The draft's evidence: calibrated probabilities, the source of each
        sentence, the terms of the expected utility, and the training reports with the greatest weights.
        """
        probabilities = self.calibration(evidence.scores[None])[0]
        shown: DraftEvidence = {
            **self.calibration.evidence(evidence.scores, self.rule, self.macro),
            **evidence.shown,
            "recalled": self._recalled(evidence, barred),
        }
        devices = not self.consistent or bool((probabilities >= self.thresholds)[self.devices].any())
        refused = None if devices else self.naming_device
        choice = self.chooser.choose(probabilities, evidence.weights, barred, refused)
        if choice is None:
            return UtilityDraft("", shown, (NOTHING_LEFT,))
        choice = self._add_findings(choice, evidence, probabilities, barred)
        if proposed:
            written = self.proposals.choose(
                choice,
                proposed,
                probabilities,
                evidence.weights,
                barred,
                evidence.changes,
                devices=devices,
            )
            choice = choice if written is choice else self._add_findings(written, evidence, probabilities, barred)
        choice = self._add_changes(choice, evidence, probabilities, barred)
        return UtilityDraft(choice.candidate.text, {**shown, **self._of(choice)})

    def _add_findings(
        self, choice: Choice, evidence: Evidence, probabilities: Floats, barred: NDArray[np.bool_]
    ) -> Choice:
        """The draft with further findings that pay off, one after the other while that makes it better."""
        gains = self.counts * (probabilities - self.thresholds)
        names = [name for name, gain in zip(self.calibration.classes, gains, strict=True) if gain > 0]
        if not self.further or {*names} <= {*choice.asserted}:
            return choice

        def better(choice: Choice) -> Choice:
            variants = list(self.finding_sentences.variants(choice, names, barred))
            return self.proposals.best(
                choice, variants, probabilities, evidence.weights, barred, evidence.changes, further=True
            )

        return _improved(choice, better, self.further)

    def _add_changes(
        self, choice: Choice, evidence: Evidence, probabilities: Floats, barred: NDArray[np.bool_]
    ) -> Choice:
        """The draft with sentences on changes from the prior, one after the other while that makes it better."""
        changes, classes = evidence.changes, tuple(self.calibration.classes)
        if changes is None:
            return choice

        def better(choice: Choice) -> Choice:
            variants = list(self.comparisons.variants(choice.candidate, changes, classes, barred))
            return self.proposals.best(choice, variants, probabilities, evidence.weights, barred, changes)

        return _improved(choice, better, len(classes))

    def _of(self, choice: Choice) -> DraftEvidence:
        sentences: list[SentenceEvidence] = [
            cast(
                SentenceEvidence,
                {
                    "text": sentence.text,
                    "source": {"kind": sentence.kind, "study_id": self._study_of(sentence)},
                    **({"section": sentence.part} if sentence.part else {}),
                },
            )
            for sentence in choice.candidate.sentences
        ]
        terms: dict[str, Any] = {"wording": choice.wording, "findings": choice.findings}
        if choice.compared:
            terms |= {"changes": choice.changes, "compared": [list(change) for change in choice.compared]}
        utility = cast(UtilityEvidence, {**terms, "asserted": list(choice.asserted)})
        return {"sentences": sentences, "expected_utility": utility}

    def _study_of(self, sentence: Sentence) -> str | None:
        """The training study that a sentence is from; none of one that a language model wrote."""
        return None if sentence.row == NO_ROW else str(self.rows[sentence.row]["study_id"])

    def _recalled(self, evidence: Evidence, barred: NDArray[np.bool_]) -> list[RecalledEvidence]:
        weights = np.where(barred, -np.inf, evidence.weights)
        best = [row for row in np.argsort(-weights, kind="stable")[:RECALLED].tolist() if np.isfinite(weights[row])]
        return [
            {
                "kind": "report",
                "study_id": self.rows[row]["study_id"],
                "text": self.rows[row]["text"],
                "scores": {"weight": float(weights[row])},
            }
            for row in best
        ]


def _improved(choice: Choice, better: Callable[[Choice], Choice], most: int) -> Choice:
    """Replace a draft by a better one, at most so many times, until it stays the same."""
    for _ in range(most):
        improved = better(choice)
        if improved is choice:
            break
        choice = improved
    return choice
