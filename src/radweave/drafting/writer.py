"""Drafts from evidence: what a run kept, what a model saw of a study, and the options, in one place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from radweave.core.study import NO_SECTION, SECTIONS, has_both_sections, split_sections
from radweave.drafting.calibration import RunCalibration
from radweave.drafting.candidates import (
    Candidate,
    CandidatePool,
    Sentence,
    SentenceLabels,
    candidate_options,
    cleaned,
    compose,
    keeps_places,
    names_device,
    reconciled,
    stated,
    utilities,
    wording_options,
)
from radweave.drafting.changes import ChangeWorth, Comparing, Stated
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
from radweave.labels.text import split_sentences
from radweave.metrics.ngrams import ReportStatistics
from radweave.metrics.pairwise import MAX_ORDER, BleuPoint, PairwiseWording, WordingWeights
from radweave.nn.decoding import ExpectedUtilityConfig

# Composites of more findings, made for one study: the chosen report takes up sentences that state further ones.
#
# Candidates are made before a study is seen, so that a composite states two findings at most: of three there would be too
# many. Here what a study's evidence speaks for is added to its draft, one finding after the other.


class Growing:
    """The sentences that composites state one finding with, and drafts that they are put into.

    Args:
        candidates: as ``build_candidates`` makes them; without composites there is nothing to add.
        consistent: whether a sentence that all is well gives way to a finding.
    """

    def __init__(self, candidates: Sequence[Candidate], labeler: Labeler, *, consistent: bool) -> None:
        self.labels, self.consistent = SentenceLabels(labeler), consistent
        found = (
            tuple(sentence for sentence in candidate.sentences if sentence.kind == "finding")
            for candidate in candidates
        )
        stated = [group for group in dict.fromkeys(found) if group]
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


# Reports that a language model wrote for one study, held against the best that the training reports have to say.


FURTHER = 0.5
"""What a finding beside those of the chosen report counts, a rare one as any other: docs/drafting.md has the choice."""
NO_ROW = -1
"""Of a sentence that is from no training report."""


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

        A language model is told nothing of a prior: what it compares is taken out, but where the study was compared
        with one, which says how likely its changes are.

        Args:
            draft: the best of the training reports and composites.
            texts: what the language model wrote.
            probabilities: (K,) of the classes.
            weights: (J,) of the training reports.
            barred: (J,) reports of the study's own patient.
            changes: what became of the classes since the prior, where the study was compared with one.
            devices: whether the evidence bears a sentence on one.
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

        ``further``: they state findings beside those of the draft, which have to be worth their words with less.
        """
        candidates = list(dict.fromkeys([draft.candidate, *self._allowed(others)]))
        if len(candidates) == 1:
            return draft
        said = [candidate.text for candidate in candidates]
        rows = nearest_rows(weights, barred, NEAREST)
        wording = self._worth(said, rows) @ shares(weights, barred, rows).astype(np.float32)
        asserts = stated(said, self.labeler) * self.counts
        gains = self.beta * (asserts @ (probabilities - self.thresholds))
        compared: list[tuple[Stated, ...]] = [()] * len(said)
        moved = np.zeros(len(said))
        if changes is not None:
            worth = ChangeWorth(changes, self.labeler.classes, self.labeler)
            compared = worth.stated(said)
            moved = self.beta * worth(compared)
        counted = FURTHER * np.minimum(asserts, 1) if further else asserts
        paid = self.beta * (counted @ (probabilities - self.thresholds))
        best = int((wording + paid + moved).argmax())
        if best == 0:
            return draft
        asserted = tuple(name for name, said in zip(self.labeler.classes, asserts[best], strict=True) if said)
        return Choice(
            candidates[best],
            asserted,
            float(wording[best]),
            float(gains[best]),
            compared[best],
            float(moved[best]),
        )

    def _allowed(self, others: Sequence[Candidate]) -> Sequence[Candidate]:
        """Without sentences that deny what they state; as they are, where that is not asked."""
        if not self.consistent:
            return others
        return [one for one in map(reconciled, others) if one.sentences]

    def _candidate(self, text: str, *, compares: bool) -> Candidate | None:
        said = split_sections(text) if NO_SECTION not in self.parts else {NO_SECTION: text}
        kept = [(part, sentence) for part, own in said.items() for sentence in split_sentences(own)]
        kept = [
            (part, cleaned(sentence, self.labeler, compares=compares, places=self.places)) for part, sentence in kept
        ]
        sentences = tuple(
            Sentence(sentence, "language_model", NO_ROW, part)
            for part, sentence in kept
            if sentence and (self.marks or not MARK.search(sentence))
        )
        return Candidate(sentences) if {sentence.part for sentence in sentences} == self.parts else None

    def _worth(self, texts: Sequence[str], rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Utilities (M, N) of texts for reports of the bank."""
        numbers = [self.bank.encode(words) for words in prepared(texts)]
        pairs = PairwiseWording.within(numbers, [self.bank.words_of(row) for row in rows.tolist()], self.bank)
        return np.concatenate([block for _, block in pairs.blocks(self.weights, self.point)])


MOST_IN_PAIRS = 4096
"""Training reports of which all pairs with candidates are made; of more, the nearest are looked at (``nearby``)."""
DEVICES = frozenset({"Support Devices", "Medical material"})
"""Classes whose probability bears a sentence on a device."""
RECALLED = 3
"""Training reports that are shown with a draft: those that spoke most for its wording."""
NOTHING_LEFT = "no draft: every training report is of the study's own patient"


@dataclass(frozen=True, slots=True)
class Written:
    """A draft, its evidence, and what a reader must be told."""

    text: str
    evidence: dict[str, Any]
    warnings: tuple[str, ...] = ()


class UtilityWriter:
    """Writes drafts from testimonies over the reports of a store.

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
        # That nothing was found is no finding: it follows from the others, and asserting it pays for nothing.
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
        self._proposals: Proposals | None = None
        self._comparing: Comparing | None = None
        self._growing: Growing | None = None
        labeler = get_labeler(facts.label_set)
        self._hold = partial(
            Proposals,
            store.texts,
            labeler,
            counts=self.counts,
            thresholds=self.thresholds,
            weights=weights,
            point=facts.bleu_point,
            beta=config.findings,
            marks=marks,
            consistent=config.consistent,
            places=keeps_places(config),
            bank=self.chooser.bank if isinstance(self.chooser, NearbyUtility) else None,
        )
        self._hold_comparing = partial(
            Comparing, store.texts, labeler, marks=marks, consistent=config.consistent, places=keeps_places(config)
        )
        self._hold_growing = partial(Growing, pool.candidates, labeler, consistent=config.consistent)

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
        wording = store.utilities if ready and facts.wording == wording_options(config) else None
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

    def write(self, testimony: Evidence, barred: NDArray[np.bool_], proposed: Sequence[str] = ()) -> Written:
        """The draft of a study whose own and whose patient's rows are ``barred`` (J,). A language model ``proposed``
        reports of it.

        Evidence: calibrated probabilities, each sentence's source, the two terms of the expected utility, and the
        training reports that spoke most for the wording.
        """
        probabilities = self.calibration(testimony.scores[None])[0]
        evidence: dict[str, Any] = {
            **self.calibration.evidence(testimony.scores, self.rule, self.macro),
            **testimony.shown,
            "recalled": self._recalled(testimony, barred),
        }
        devices = not self.consistent or bool((probabilities >= self.thresholds)[self.devices].any())
        refused = None if devices else self.naming_device
        choice = self.chooser.choose(probabilities, testimony.weights, barred, refused)
        if choice is None:
            return Written("", evidence, (NOTHING_LEFT,))
        choice = self._grow(choice, testimony, probabilities, barred)
        if proposed:
            written = self._held().choose(
                choice,
                proposed,
                probabilities,
                testimony.weights,
                barred,
                testimony.changes,
                devices=devices,
            )
            choice = choice if written is choice else self._grow(written, testimony, probabilities, barred)
        choice = self._compare(choice, testimony, probabilities, barred)
        return Written(choice.candidate.text, {**evidence, **self._of(choice)})

    def _held(self) -> Proposals:
        """What holds other texts against a draft; made when the first are there."""
        self._proposals = self._proposals or self._hold()
        return self._proposals

    def _grow(self, choice: Choice, testimony: Evidence, probabilities: Floats, barred: NDArray[np.bool_]) -> Choice:
        """The draft with findings that pay off and that it does not state, one after the other while one is better."""
        gains = self.counts * (probabilities - self.thresholds)
        names = [name for name, gain in zip(self.calibration.classes, gains, strict=True) if gain > 0]
        if not self.further or {*names} <= {*choice.asserted}:
            return choice
        growing = self._growing = self._growing or self._hold_growing()
        held, said = self._held(), (probabilities, testimony.weights, barred, testimony.changes)
        for _ in range(self.further):
            better = held.best(choice, list(growing.variants(choice, names, barred)), *said, further=True)
            if better is choice:
                break
            choice = better
        return choice

    def _compare(self, choice: Choice, testimony: Evidence, probabilities: Floats, barred: NDArray[np.bool_]) -> Choice:
        """The draft with sentences on what changed since the prior, one after the other while one more is better."""
        changes, classes = testimony.changes, tuple(self.calibration.classes)
        if changes is None:
            return choice
        comparing = self._comparing = self._comparing or self._hold_comparing()
        held, said = self._held(), (probabilities, testimony.weights, barred, changes)
        for _ in classes:
            better = held.best(choice, list(comparing.variants(choice.candidate, changes, classes, barred)), *said)
            if better is choice:
                break
            choice = better
        return choice

    def _of(self, choice: Choice) -> dict[str, Any]:
        sources = [
            {
                "text": sentence.text,
                "source": {"kind": sentence.kind, "study_id": self._study_of(sentence)},
                **({"section": sentence.part} if sentence.part else {}),
            }
            for sentence in choice.candidate.sentences
        ]
        terms: dict[str, Any] = {"wording": choice.wording, "findings": choice.findings}
        if choice.compared:
            terms |= {"changes": choice.changes, "compared": [list(one) for one in choice.compared]}
        return {"sentences": sources, "expected_utility": {**terms, "asserted": list(choice.asserted)}}

    def _study_of(self, sentence: Sentence) -> str | None:
        """The training study that a sentence is from; none of one that a language model wrote."""
        return None if sentence.row == NO_ROW else str(self.rows[sentence.row]["study_id"])

    def _recalled(self, testimony: Evidence, barred: NDArray[np.bool_]) -> list[dict[str, Any]]:
        weights = np.where(barred, -np.inf, testimony.weights)
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
