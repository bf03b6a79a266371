"""Candidates with what they state and what their words are worth, made from training reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from radweave.base.study import LabelState
from radweave.drafting.candidates import Candidate, CandidateOptions, build_candidates
from radweave.evaluation.metrics.pairwise import BleuPoint, PairwiseWording, WordingWeights
from radweave.evaluation.prepare import prepare_hypotheses
from radweave.evaluation.protocols import get_protocol
from radweave.labels import Labeler
from radweave.labels.contradictions import claims_of
from radweave.labels.places import without_place
from radweave.labels.unprompted import remove_comparisons
from radweave.nn.decoding import ExpectedUtilityConfig


def candidate_options(config: ExpectedUtilityConfig, *, marks: bool = False) -> dict[str, bool]:
    """The options that decide which candidates there are; with ``marks`` those with de-identification marks too."""
    options = {"composites": config.composites, "consistent": config.consistent, "marks": marks}
    return options | ({"places": keeps_places(config)} if config.consistent else {})


def keeps_places(config: ExpectedUtilityConfig) -> bool:
    """Whether findings keep the places that they have in the training reports."""
    return not config.consistent or config.unsupported_places == "keep"


def cleaned(text: str, labeler: Labeler, *, compares: bool, places: bool) -> str:
    """A sentence as a draft may have it: without comparisons unless ``compares``, and without a place unless
    ``places`` or where it only denies; empty where that cannot be had.
    """
    now = text if compares else remove_comparisons(text, labeler)[0]
    claims = claims_of(now)
    if places or (claims and all(claim.denied for claim in claims)):
        return now
    return without_place(now, labeler) or ""


def wording_options(config: ExpectedUtilityConfig) -> dict[str, float]:
    """The options that decide what words are worth."""
    return {"cider": config.cider, "rouge_l": config.rouge_l, "bleu": config.bleu}


@dataclass(frozen=True, slots=True)
class CandidatePool:
    """Candidates, and the classes that each states (M, K)."""

    candidates: Sequence[Candidate]
    asserts: NDArray[np.float64]

    @classmethod
    def build(
        cls, reports: Sequence[str], labeler: Labeler, config: ExpectedUtilityConfig, *, marks: bool = False
    ) -> CandidatePool:
        """Training reports and composites, without comparisons: a draft has nothing to compare with.

        Raises:
            ValueError: if no report has a sentence that can be used.
        """
        options = CandidateOptions(composites=config.composites, consistent=config.consistent, marks=marks)
        clean = partial(cleaned, labeler=labeler, compares=False, places=keeps_places(config))
        candidates = build_candidates(reports, labeler, options=options, clean=clean)
        return cls(candidates, stated([candidate.text for candidate in candidates], labeler))


def stated(texts: Sequence[str], labeler: Labeler) -> NDArray[np.float64]:
    """Classes that texts affirm (N, K), 0 and 1; an uncertain mention affirms nothing."""
    read = labeler.label(texts)
    rows = [[mentions[name].state is LabelState.POSITIVE for name in labeler.classes] for mentions in read]
    return np.array(rows, dtype=np.float64).reshape(len(texts), len(labeler.classes))


def utilities(
    candidates: Sequence[Candidate], reports: Sequence[str], config: ExpectedUtilityConfig, point: BleuPoint | None
) -> NDArray[np.float32]:
    """What the words of candidates are worth for reports (M, J). Without a point BLEU counts for nothing."""
    weights = WordingWeights(config.cider, config.rouge_l, config.bleu if point is not None else 0.0)
    return np.concatenate([block for _, block in _wording(candidates, reports).blocks(weights, point)])


def bleu_point(candidates: Sequence[Candidate], reports: Sequence[str], neighbours: Sequence[int]) -> BleuPoint | None:
    """The point of a training set that drafts each report by that of its neighbour; None if no draft has one's words.

    ``neighbours`` (J,) are rows of the reports.
    """
    of_row = {candidate.sentences[0].row: number for number, candidate in enumerate(candidates) if candidate.is_whole}
    pairs = [(of_row[near], row) for row, near in enumerate(neighbours) if near in of_row]
    return _wording(candidates, reports).bleu_point(np.array(pairs)) if pairs else None


def _wording(candidates: Sequence[Candidate], reports: Sequence[str]) -> PairwiseWording:
    protocol = get_protocol("full")
    words = [
        [text.split() for text in prepare_hypotheses(texts, protocol)]
        for texts in ([candidate.text for candidate in candidates], list(reports))
    ]
    return PairwiseWording(*words)
