"""All n-gram metrics of a set of prepared texts."""

from __future__ import annotations

import numpy as np

from radweave.evaluation.cleaning import rouge_score_tokens, tokens_13a
from radweave.evaluation.metrics.bleu import coco_bleu, hf_bleu
from radweave.evaluation.metrics.cider import DF_SOURCE, cider
from radweave.evaluation.metrics.ngrams import PairedTexts, count_pairs
from radweave.evaluation.metrics.rouge import coco_rouge_l, rouge_score_l, rouge_score_n
from radweave.evaluation.prepare import PreparedTexts
from radweave.evaluation.protocols import EvalProtocol
from radweave.evaluation.statistics import Statistic, mean_statistic

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
    rouge = PairedTexts.of(
        [rouge_score_tokens(text) for text in texts.hyps],
        [[rouge_score_tokens(text) for text in group] for group in texts.refs],
    )
    rouge_counts = count_pairs(rouge, 2)
    words = PairedTexts.of(
        [text.split() for text in texts.hyps], [[text.split() for text in group] for group in texts.refs]
    )
    word_counts = count_pairs(words, 4)
    scores: dict[str, Statistic] = {}
    if protocol.metrics == "hf":
        split = PairedTexts.of(
            [tokens_13a(text) for text in texts.hyps], [[tokens_13a(text) for text in group] for group in texts.refs]
        )
        scores.update(hf_bleu(split, count_pairs(split, 4)))
    else:
        scores.update(coco_bleu(words, word_counts))
    scores["ROUGE_1"] = rouge_score_n(rouge, rouge_counts[0], 1)
    scores["ROUGE_2"] = rouge_score_n(rouge, rouge_counts[1], 2)
    if protocol.metrics == "hf":
        scores["ROUGE_L"] = rouge_score_l(rouge)
    else:
        blanks = PairedTexts.of(
            [text.split(" ") for text in texts.hyps], [[text.split(" ") for text in group] for group in texts.refs]
        )
        scores["ROUGE_L"] = coco_rouge_l(blanks)
        scores["ROUGE_L_F1"] = rouge_score_l(rouge)
    if len(texts.hyps) > 1:
        clipped, plain = cider(words, word_counts)
        scores["CIDEr"] = mean_statistic(np.asarray(clipped))
        scores["CIDEr_plain"] = mean_statistic(np.asarray(plain))
    return scores
