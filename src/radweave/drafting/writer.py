"""Drafts from evidence: what a run kept, what a model saw of a study, and the options, in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from radweave.drafting.candidates import Sentence, names_device
from radweave.drafting.changes import Comparing
from radweave.drafting.choice import Choice, ExpectedUtility
from radweave.drafting.growth import Growing
from radweave.drafting.nearby import NearbyUtility
from radweave.drafting.pool import CandidatePool, candidate_options, keeps_places, utilities, wording_options
from radweave.drafting.proposals import NO_ROW, Proposals
from radweave.drafting.run_calibration import RunCalibration
from radweave.drafting.smoothers import Evidence, Floats
from radweave.drafting.store import DraftingStore
from radweave.evaluation.metrics.pairwise import WordingWeights
from radweave.labels import NO_FINDING, get_labeler
from radweave.nn.decoding import ExpectedUtilityConfig

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
