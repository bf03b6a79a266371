"""Scores used while training and for choosing, not for reporting: no intervals, no floors, protocol ``full``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from radweave.evaluation.floors import best_candidate
from radweave.evaluation.metrics.language import language_statistics
from radweave.evaluation.pairs import Pair
from radweave.evaluation.prepare import prepare
from radweave.evaluation.protocols import get_protocol

METRICS = ("BLEU_4", "ROUGE_L", "CIDEr")


def corpus_scores(hyps: Mapping[str, str], refs: Mapping[str, str]) -> dict[str, float]:
    """Corpus BLEU-4, ROUGE-L and CIDEr of the reports, paired by study id."""
    protocol = get_protocol("full")
    pairs = [Pair(study_id=study_id, hyp=hyps[study_id], refs=(ref,)) for study_id, ref in refs.items()]
    statistics = language_statistics(prepare(pairs, protocol), protocol)
    return {name: statistics[name].corpus() for name in METRICS if name in statistics}


def best_constant(candidates: Sequence[str], references: Sequence[str]) -> str:
    """The candidate with the highest BLEU-4 when it is given for every reference."""
    return best_candidate(candidates, references, get_protocol("full"))
