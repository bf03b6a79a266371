"""All n-gram metrics of a set of prepared texts."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from radweave.evaluation.cleaning import rouge_score_tokens, tokens_13a
from radweave.evaluation.metrics.bleu import coco_bleu, hf_bleu
from radweave.evaluation.metrics.cider import DF_SOURCE, MAX_ORDER, cider
from radweave.evaluation.metrics.frequencies import ReportStatistics
from radweave.evaluation.metrics.ngrams import (
    NgramCounts,
    PairedCounts,
    PairedTexts,
    count_ngrams,
    owners_of,
    pair_counts,
)
from radweave.evaluation.metrics.rouge import coco_rouge_l, rouge_score_l, rouge_score_n
from radweave.evaluation.prepare import PreparedTexts
from radweave.evaluation.protocols import EvalProtocol
from radweave.evaluation.statistics import RunningSums, Statistic, joined, mean_statistic

STUDIES_AT_A_TIME = 2048

_COCO_DEFINITIONS = {
    **{f"BLEU_{n}": f"BLEU-{n} of coco's scorer; corpus value from summed counts" for n in range(1, 5)},
    "ROUGE_L": "ROUGE-L of coco's scorer (beta 1.2), mean over studies",
}
_HF_DEFINITIONS = {
    **{f"BLEU_{n}": f"BLEU-{n} of HF evaluate with smoothing, 13a tokens, mean over studies" for n in range(1, 5)},
    **{f"BLEU_{n}_corpus": f"BLEU-{n} of HF evaluate with smoothing, 13a tokens, corpus" for n in range(1, 5)},
    "ROUGE_L": "ROUGE-L F1 of rouge-score without stemming, mean over studies",
}
_SHARED_DEFINITIONS = {
    "ROUGE_1": "ROUGE-1 F1 of rouge-score without stemming, mean over studies",
    "ROUGE_2": "ROUGE-2 F1 of rouge-score without stemming, mean over studies",
    "ROUGE_L_F1": "ROUGE-L F1 of rouge-score without stemming, mean over studies",
    "METEOR": "METEOR 1.5 (Java, -l en -norm), corpus value from summed statistics",
    "METEOR_segment_mean": "METEOR 1.5 (Java, -l en -norm), mean over studies",
    "CIDEr": f"CIDEr-D, which coco's scorer and the papers call CIDEr; document frequencies: {DF_SOURCE}",
    "CIDEr_plain": f"CIDEr without clipping and length penalty; document frequencies: {DF_SOURCE}",
}
ONE_STUDY_CIDER = "undefined for one study: its document frequencies come from the evaluated set"


def definitions(protocol: EvalProtocol) -> dict[str, str]:
    """What each metric name means under a protocol."""
    if protocol.metrics == "hf":
        shared = {name: text for name, text in _SHARED_DEFINITIONS.items() if name != "ROUGE_L_F1"}
        return {**_HF_DEFINITIONS, **shared}
    return {**_COCO_DEFINITIONS, **_SHARED_DEFINITIONS}


def language_statistics(texts: PreparedTexts, protocol: EvalProtocol) -> dict[str, Statistic]:
    """BLEU, ROUGE and CIDEr by the protocol's implementation; CIDEr is left out for a single study."""
    return language_and_floors(texts, {}, protocol)[0]


def language_and_floors(
    texts: PreparedTexts, floors: Mapping[str, Sequence[str]], protocol: EvalProtocol
) -> tuple[dict[str, Statistic], dict[str, dict[str, float]]]:
    """The statistics of texts, and the corpus scores of floors, prepared hypotheses for the same references.

    Studies are counted a few at a time, so that memory is that of the texts; references are split once for all.
    """
    frequencies = ReportStatistics.of(
        (text.split() for group in texts.refs for text in group), MAX_ORDER, owners_of(texts.refs)
    )
    found, sums = [], {name: RunningSums() for name in floors}
    for first in range(0, len(texts.hyps), STUDIES_AT_A_TIME):
        part = slice(first, min(first + STUDIES_AT_A_TIME, len(texts.hyps)))
        studies = _Part(texts.refs[part], [texts.hyps[part], *(floor[part] for floor in floors.values())], protocol)
        whole, *others = studies.statistics(frequencies, len(texts.hyps))
        found.append(whole)
        for name, other in zip(floors, others, strict=True):
            sums[name].add(other)
    return joined(found), {name: total.corpus() for name, total in sums.items()}


class _Part:
    """A few studies: R references of N studies, and several sets of N hypotheses that are counted together."""

    def __init__(self, refs: Sequence[Sequence[str]], sets: Sequence[Sequence[str]], protocol: EvalProtocol) -> None:
        self.owner, self.protocol, self.sets = owners_of(refs), protocol, sets
        self.texts = [*(text for group in refs for text in group), *(text for hyps in sets for text in hyps)]

    def statistics(self, bank: ReportStatistics, num_studies: int) -> list[dict[str, Statistic]]:
        """Per set the statistics of these studies, of ``num_studies`` in all."""
        numbers = [bank.encode(text.split()) for text in self.texts]
        words = self._paired(numbers)
        tables, frequencies = bank.count(numbers)
        word_counts = self._counts(tables)
        rouge_texts = [rouge_score_tokens(text) for text in self.texts]
        rouge = self._paired(rouge_texts)
        rouge_counts = self._counts(count_ngrams(rouge_texts, 2))
        if self.protocol.metrics == "hf":
            hf_texts = [tokens_13a(text) for text in self.texts]
            hf = zip(self._paired(hf_texts), self._counts(count_ngrams(hf_texts, MAX_ORDER)), strict=True)
            scores = [hf_bleu(texts, counts) for texts, counts in hf]
        else:
            scores = [coco_bleu(texts, counts) for texts, counts in zip(words, word_counts, strict=True)]
        blanks = self._paired([text.split(" ") for text in self.texts])
        for number, found in enumerate(scores):
            found["ROUGE_1"] = rouge_score_n(rouge[number], rouge_counts[number][0], 1)
            found["ROUGE_2"] = rouge_score_n(rouge[number], rouge_counts[number][1], 2)
            if self.protocol.metrics == "hf":
                found["ROUGE_L"] = rouge_score_l(rouge[number])
            else:
                found["ROUGE_L"] = coco_rouge_l(blanks[number])
                found["ROUGE_L_F1"] = rouge_score_l(rouge[number])
            if num_studies > 1:
                clipped, plain = cider(words[number], word_counts[number], frequencies, num_studies)
                found["CIDEr"], found["CIDEr_plain"] = mean_statistic(clipped), mean_statistic(plain)
        return scores

    def _places(self) -> list[slice]:
        """Where each set stands among the texts, behind the references."""
        starts = np.cumsum([len(self.owner), *(len(hyps) for hyps in self.sets)]).tolist()
        return [slice(start, end) for start, end in itertools.pairwise(starts)]

    def _paired(self, split: Sequence[Sequence[Hashable]]) -> list[PairedTexts]:
        return [PairedTexts(split[place], split[: len(self.owner)], self.owner) for place in self._places()]

    def _counts(self, tables: Sequence[NgramCounts]) -> list[list[PairedCounts]]:
        refs = slice(0, len(self.owner))
        return [[pair_counts(table, place, refs, self.owner) for table in tables] for place in self._places()]
