"""Reports that a language model wrote for one study, held against the best that the training reports have to say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from radweave.base.parts import NO_PART, PARTS, is_parted, parts_of
from radweave.drafting.candidates import Candidate, Sentence, names_device, reconciled
from radweave.drafting.changes import ChangeWorth, Stated
from radweave.drafting.choice import Choice
from radweave.drafting.nearby import NEAREST, Floats, nearest_rows, prepared, shares
from radweave.drafting.pool import cleaned, stated
from radweave.drafting.smoothers import Changes
from radweave.evaluation.metrics.frequencies import ReportStatistics
from radweave.evaluation.metrics.pairwise import MAX_ORDER, BleuPoint, PairwiseWording, WordingWeights
from radweave.labels import Labeler
from radweave.labels.marks import MARK
from radweave.labels.text import split_sentences

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
        counts: Floats,
        thresholds: Floats,
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
        self.parts = set(PARTS) if all(map(is_parted, reports)) else {NO_PART}

    def choose(
        self,
        draft: Choice,
        texts: Sequence[str],
        probabilities: Floats,
        weights: Floats,
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
        probabilities: Floats,
        weights: Floats,
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
        said = parts_of(text) if NO_PART not in self.parts else {NO_PART: text}
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
