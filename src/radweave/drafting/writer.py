"""Drafts from evidence: what a run kept, what a model saw of a study, and the options, in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from radweave.drafting.candidates import Sentence
from radweave.drafting.changes import Comparing
from radweave.drafting.choice import Choice, ExpectedUtility
from radweave.drafting.nearby import NearbyUtility
from radweave.drafting.pool import CandidatePool, candidate_options, utilities, wording_options
from radweave.drafting.proposals import NO_ROW, Proposals
from radweave.drafting.run_calibration import RunCalibration
from radweave.drafting.smoothers import Changes, Evidence, Floats
from radweave.drafting.store import DraftingStore
from radweave.evaluation.metrics.pairwise import WordingWeights
from radweave.labels import NO_FINDING, get_labeler
from radweave.nn.decoding import ExpectedUtilityConfig

MOST_IN_PAIRS = 4096
"""Training reports of which all pairs with candidates are made; of more, the nearest are looked at (``nearby``)."""
RECALLED = 3
"""Training reports that are shown with a draft: those that spoke most for its wording."""
NOTHING_LEFT = "no draft: every training report is of the study's own patient"


@dataclass(frozen=True, slots=True)
class Written:
    """A draft, its evidence, and what a reader must be told."""

    text: str
    evidence: dict[str, Any]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Proposed:
    """Reports that a language model wrote for a study, and whether the study has a prior to compare with."""

    texts: Sequence[str] = ()
    has_prior: bool = False


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
        found = np.array([name != NO_FINDING for name in facts.classes]) * counts
        thresholds = calibration.thresholds(config.thresholds, config.macro)
        self._proposals: Proposals | None = None
        self._comparing: Comparing | None = None
        weights = WordingWeights(config.cider, config.rouge_l, config.bleu)
        self._hold = partial(
            Proposals,
            store.texts,
            get_labeler(facts.label_set),
            counts=found,
            thresholds=thresholds,
            weights=weights,
            point=facts.bleu_point,
            beta=config.findings,
            marks=marks,
        )
        self._hold_comparing = partial(
            Comparing, store.texts, get_labeler(facts.label_set), marks=marks, consistent=config.consistent
        )
        self.chooser: ExpectedUtility | NearbyUtility
        if len(store.bank) > MOST_IN_PAIRS:
            self.chooser = NearbyUtility(
                pool.candidates,
                pool.asserts * found,
                store.texts,
                classes=facts.classes,
                thresholds=thresholds,
                weights=weights,
                point=facts.bleu_point,
                beta=config.findings,
            )
            return
        wording = store.utilities if same and facts.wording == wording_options(config) else None
        if wording is None:
            wording = utilities(pool.candidates, store.texts, config, facts.bleu_point)
        self.chooser = ExpectedUtility(
            pool.candidates,
            pool.asserts * found,
            wording,
            classes=facts.classes,
            thresholds=thresholds,
            beta=config.findings,
        )

    def write(self, testimony: Evidence, barred: NDArray[np.bool_], proposed: Proposed = Proposed()) -> Written:
        """The draft of a study whose own and whose patient's rows are ``barred`` (J,).

        Evidence: calibrated probabilities, each sentence's source, the two terms of the expected utility, and the
        training reports that spoke most for the wording.
        """
        probabilities = self.calibration(testimony.scores[None])[0]
        evidence: dict[str, Any] = {
            **self.calibration.evidence(testimony.scores, self.rule, self.macro),
            **testimony.shown,
            "recalled": self._recalled(testimony, barred),
        }
        choice = self.chooser.choose(probabilities, testimony.weights, barred)
        if choice is None:
            return Written("", evidence, (NOTHING_LEFT,))
        if proposed.texts:
            choice = self._held().choose(
                choice,
                proposed.texts,
                probabilities,
                testimony.weights,
                barred,
                has_prior=proposed.has_prior,
                changes=testimony.changes,
            )
        if testimony.changes is not None:
            choice = self._compare(choice, testimony, testimony.changes, probabilities, barred)
        return Written(choice.candidate.text, {**evidence, **self._of(choice)})

    def _held(self) -> Proposals:
        """What holds other texts against a draft; made when the first are there."""
        self._proposals = self._proposals or self._hold()
        return self._proposals

    def _compare(
        self, choice: Choice, testimony: Evidence, changes: Changes, probabilities: Floats, barred: NDArray[np.bool_]
    ) -> Choice:
        """The draft with sentences on what changed since the prior, one after the other while one more is better."""
        self._comparing = self._comparing or self._hold_comparing()
        proposals, classes = self._held(), tuple(self.calibration.classes)
        for _ in classes:
            others = list(self._comparing.variants(choice.candidate, changes, classes, barred))
            better = proposals.best(choice, others, probabilities, testimony.weights, barred, changes)
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
