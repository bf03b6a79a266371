"""All n-gram metrics of a set of prepared texts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from radweave.core.extras import missing, not_installed
from radweave.metrics.ngrams import (
    Ints,
    NgramCounts,
    PairedCounts,
    PairedTexts,
    ReportStatistics,
    clipped_matches,
    count_ngrams,
    count_pairs,
    owners_of,
    pair_counts,
)
from radweave.metrics.prepare import PreparedTexts
from radweave.metrics.protocols import EvalProtocol, rouge_score_tokens, tokens_13a
from radweave.metrics.records import Json
from radweave.metrics.statistics import RunningSums, Statistic, concatenated, mean_statistic

# BLEU-1 to BLEU-4, as coco's scorer defines it and as HF evaluate does with smoothing.
#
# Source: Papineni et al., "BLEU", ACL 2002. The implementations differ in the reference length they take (coco: the
# closest, of two equally close the shorter; HF: the shortest) and in smoothing (coco adds 1e-15 and 1e-9; HF adds one
# to matches and candidates of every order).


Floats = NDArray[np.float64]

MAX_ORDER = 4
_TINY = 1e-15
_SMALL = 1e-9


def _rows(texts: PairedTexts, counts: list[PairedCounts], ref_length: Floats) -> Floats:
    """Sums per study (N, 10): matches of order 1-4, candidates of order 1-4, hypothesis length, reference length."""
    num = len(texts.hyps)
    lengths = np.array([len(tokens) for tokens in texts.hyps], dtype=np.float64)
    matches = [clipped_matches(table, texts.ref_owner, num).astype(np.float64) for table in counts[:MAX_ORDER]]
    candidates = [np.maximum(lengths - order, 0.0) for order in range(MAX_ORDER)]
    return np.stack([*matches, *candidates, lengths, ref_length], axis=1)


def _ref_lengths(texts: PairedTexts, closest: bool) -> Floats:
    """Reference length per study (N,): the closest to the hypothesis (ties: the shorter), or the shortest."""
    ref = np.array([len(tokens) for tokens in texts.refs], dtype=np.int64)
    hyp = np.array([len(tokens) for tokens in texts.hyps], dtype=np.int64)
    distance = np.abs(ref - hyp[texts.ref_owner]) if closest else np.zeros_like(ref)
    order = np.lexsort((ref, distance, texts.ref_owner))
    first = np.searchsorted(texts.ref_owner, np.arange(len(texts.hyps)))
    return ref[order][first].astype(np.float64)


def _coco_value(order: int) -> Callable[[Floats], Floats]:
    def value(sums: Floats) -> Floats:
        precision = (sums[..., :order] + _TINY) / (sums[..., MAX_ORDER : MAX_ORDER + order] + _SMALL)
        ratio = (sums[..., 8] + _TINY) / (sums[..., 9] + _SMALL)
        # The penalty of a far too short text underflows to 0, as it should.
        with np.errstate(over="ignore", under="ignore"):
            penalty = np.where(ratio < 1.0, np.exp(np.minimum(1.0 - 1.0 / ratio, 0.0)), 1.0)
        return np.asarray(np.prod(precision, axis=-1) ** (1.0 / order) * penalty)

    return value


def _hf_value(order: int) -> Callable[[Floats], Floats]:
    def value(sums: Floats) -> Floats:
        precision = (sums[..., :order] + 1.0) / (sums[..., MAX_ORDER : MAX_ORDER + order] + 1.0)
        with np.errstate(divide="ignore", invalid="ignore", under="ignore"):
            ratio = sums[..., 8] / sums[..., 9]
            penalty = np.where(ratio > 1.0, 1.0, np.exp(1.0 - 1.0 / ratio))
        score = np.exp(np.mean(np.log(precision), axis=-1)) * penalty
        return np.asarray(np.where(sums[..., 8] > 0, score, 0.0))

    return value


def coco_bleu(texts: PairedTexts, counts: list[PairedCounts]) -> dict[str, Statistic]:
    """BLEU_1 .. BLEU_4 of coco's scorer, corpus and per study."""
    rows = _rows(texts, counts, _ref_lengths(texts, closest=True))
    return {
        f"BLEU_{order}": Statistic(rows, _coco_value(order), _coco_value(order)(rows))
        for order in range(1, MAX_ORDER + 1)
    }


def hf_bleu(texts: PairedTexts, counts: list[PairedCounts]) -> dict[str, Statistic]:
    """Smoothed BLEU as HF evaluate computes it, on tokens of mteval-13a.

    ``BLEU_n`` is the mean over studies of the sentence score, ``BLEU_n_corpus`` the score of the whole corpus; an empty
    hypothesis scores 0 where HF divides by zero.
    """
    rows = _rows(texts, counts, _ref_lengths(texts, closest=False))
    scores: dict[str, Statistic] = {}
    for order in range(1, MAX_ORDER + 1):
        sentence = _hf_value(order)(rows)
        scores[f"BLEU_{order}"] = mean_statistic(sentence)
        scores[f"BLEU_{order}_corpus"] = Statistic(rows, _hf_value(order), sentence)
    return scores


_NO_MATCH = 0.1


_PAIRS_AT_A_TIME = 16_384


def sentence_bleu_2(drafts: Sequence[str], references: Sequence[str]) -> Floats:
    """BLEU-2 of M pairs of texts (M,), each by itself, on words in lower case with the full stop as a word.

    An order without a match counts as 0.1 matches; a draft without any common word scores 0. Source: Chen and Cherry,
    "A Systematic Comparison of Smoothing Techniques for Sentence-Level BLEU", 2014, method 1, as the fast-bleu package
    computes it for CXR-Report-Metric and ReXrank.
    """
    blocks = [slice(first, first + _PAIRS_AT_A_TIME) for first in range(0, len(drafts), _PAIRS_AT_A_TIME)]
    return np.concatenate([_sentence_bleu_2(drafts[own], references[own]) for own in blocks])


def _sentence_bleu_2(drafts: Sequence[str], references: Sequence[str]) -> Floats:
    """``sentence_bleu_2`` of so few pairs that their words fit into memory."""
    words = [[[word for word in text.lower().replace(".", " .").split(" ") if word] for text in side]
             for side in (drafts, references)]  # fmt: skip
    texts = PairedTexts(words[0], words[1], np.arange(len(drafts), dtype=np.int64))
    drafts_length, reference_length = (np.array([len(tokens) for tokens in side], dtype=np.float64) for side in words)
    logarithms = np.zeros(len(drafts))
    for order, table in enumerate(count_pairs(texts, 2)):
        matches = clipped_matches(table, texts.ref_owner, len(drafts)).astype(np.float64)
        if order == 0:
            has_common_word = matches > 0
        candidates = np.maximum(drafts_length - order, 1.0)
        logarithms += np.log(np.where(matches > 0, matches, _NO_MATCH) / candidates) / 2.0
    with np.errstate(divide="ignore"):
        penalty = np.minimum(1.0 - reference_length / drafts_length, 0.0)
        return np.asarray(np.where(has_common_word, np.exp(logarithms + penalty), 0.0))


# CIDEr-D and plain CIDEr.
#
# Source: Vedantam et al., "CIDEr", CVPR 2015. What coco's scorer and the report-generation papers print as "CIDEr" is
# CIDEr-D: counts clipped to the reference's, and a Gaussian penalty on the difference in length with sigma 6. Plain
# CIDEr has neither. Both are times 10, the mean over n = 1..4 and over the references. Document frequencies and the
# number of documents come from the references of the evaluated set itself, so that a score belongs to the whole set and
# a single study has none.


_SIGMA = 6.0


def document_frequency(counts: PairedCounts, ref_owner: Ints) -> Ints:
    """In how many studies' references each n-gram occurs (num_grams,)."""
    studies = np.unique(ref_owner[counts.ref.text] * max(counts.ref.num_grams, 1) + counts.ref.gram)
    return np.bincount(studies % max(counts.ref.num_grams, 1), minlength=max(counts.ref.num_grams, 1))


def cider(
    texts: PairedTexts,
    counts: Sequence[PairedCounts],
    frequencies: Sequence[Ints] | None = None,
    num_documents: int | None = None,
) -> tuple[Floats, Floats]:
    """CIDEr-D and plain CIDEr of each study, two arrays (N,); the corpus score is their mean.

    Args:
        texts: N studies.
        counts: of order 1 to 4.
        frequencies: per order in how many documents each n-gram stands (num_grams,), where the studies are a part of
            an evaluated set; None if they are all of it.
        num_documents: the studies of the evaluated set; N without it.
    """
    num, num_refs = len(texts.hyps), len(texts.refs)
    owner = texts.ref_owner
    # coco takes the number of bigrams as the length of a text.
    hyp_length = np.bincount(counts[1].hyp.text, weights=counts[1].hyp.count, minlength=num)
    ref_length = np.bincount(counts[1].ref.text, weights=counts[1].ref.count, minlength=num_refs)
    penalty = np.exp(-((hyp_length[owner] - ref_length) ** 2) / (2.0 * _SIGMA**2))
    clipped_sum = np.zeros(num_refs)
    plain_sum = np.zeros(num_refs)
    for order, table in enumerate(counts[:MAX_ORDER]):
        frequency = document_frequency(table, owner) if frequencies is None else frequencies[order]
        idf = np.log(num_documents or num) - np.log(np.maximum(frequency, 1))
        hyp_norm = np.bincount(table.hyp.text, (table.hyp.count * idf[table.hyp.gram]) ** 2, num)
        ref_norm = np.bincount(table.ref.text, (table.ref.count * idf[table.ref.gram]) ** 2, num_refs)
        weight = idf[table.ref.gram] ** 2 * table.ref.count
        clipped = np.bincount(table.ref.text, weight * np.minimum(table.hyp_count_at_ref, table.ref.count), num_refs)
        plain = np.bincount(table.ref.text, weight * table.hyp_count_at_ref, num_refs)
        norm = np.sqrt(hyp_norm[owner]) * np.sqrt(ref_norm)
        norm = np.where(norm > 0, norm, 1.0)
        clipped_sum += clipped / norm
        plain_sum += plain / norm
    refs_per_study = np.bincount(owner, minlength=num)
    scale = 10.0 / (MAX_ORDER * refs_per_study)
    return (
        np.bincount(owner, clipped_sum * penalty, num) * scale,
        np.bincount(owner, plain_sum, num) * scale,
    )


# ROUGE-L as coco's scorer has it, ROUGE-1, ROUGE-2 and ROUGE-L as the rouge-score package has them.
#
# Source: Lin, "ROUGE: a package for automatic evaluation of summaries", 2004. coco's ROUGE-L weighs recall with beta
# 1.2, splits at every single blank (so that doubled blanks are tokens) and takes the best precision and the best recall
# over the references, which may come from different ones. rouge-score takes plain F1, the best over the references.


_BETA_SQUARED = 1.2**2


def lcs_length(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """Length of the longest common subsequence, with one bit per token of ``b``.

    Source: Hyyro, "Bit-parallel LCS-length computation revisited", 2004.
    """
    positions: dict[Hashable, int] = {}
    for index, token in enumerate(b):
        positions[token] = positions.get(token, 0) | (1 << index)
    every = (1 << len(b)) - 1
    row = every
    for token in a:
        hit = positions.get(token)
        if hit is None:
            continue
        common = row & hit
        row = ((row + common) | (row - common)) & every
    return len(b) - row.bit_count()


def _lcs_of_refs(texts: PairedTexts) -> Floats:
    """LCS length of each reference (R,) with its study's hypothesis; equal pairs of texts are computed once."""
    known: dict[tuple[tuple[Hashable, ...], tuple[Hashable, ...]], int] = {}
    lengths = []
    for owner, ref in zip(texts.ref_owner.tolist(), texts.refs, strict=True):
        key = (tuple(texts.hyps[owner]), tuple(ref))
        length = known.get(key)
        if length is None:
            length = known[key] = lcs_length(*key)
        lengths.append(length)
    return np.array(lengths, dtype=np.float64)


def _best(values: Floats, texts: PairedTexts) -> Floats:
    """Largest value over the references of each study (N,)."""
    first = np.searchsorted(texts.ref_owner, np.arange(len(texts.hyps)))
    return np.asarray(np.maximum.reduceat(values, first))


def coco_rouge_l(texts: PairedTexts) -> Statistic:
    """ROUGE_L of coco; give tokens split at every single blank."""
    common = _lcs_of_refs(texts)
    hyp = np.array([len(tokens) for tokens in texts.hyps], dtype=np.float64)
    ref = np.array([len(tokens) for tokens in texts.refs], dtype=np.float64)
    precision = _best(common / hyp[texts.ref_owner], texts)
    recall = _best(common / ref, texts)
    with np.errstate(invalid="ignore"):
        score = (1.0 + _BETA_SQUARED) * precision * recall / (recall + _BETA_SQUARED * precision)
    return mean_statistic(np.where((precision > 0) & (recall > 0), score, 0.0))


def _f1(overlap: Floats, hyp: Floats, ref: Floats) -> Floats:
    precision = overlap / np.maximum(hyp, 1.0)
    recall = overlap / np.maximum(ref, 1.0)
    total = precision + recall
    return np.asarray(np.where(total > 0, 2.0 * precision * recall / np.where(total > 0, total, 1.0), 0.0))


def rouge_score_n(texts: PairedTexts, counts: PairedCounts, order: int) -> Statistic:
    """ROUGE_n F1 of rouge-score; give its tokens and the counts of that order."""
    overlap = np.bincount(
        counts.ref.text,
        weights=np.minimum(counts.hyp_count_at_ref, counts.ref.count),
        minlength=len(texts.refs),
    ).astype(np.float64)
    hyp = np.array([max(len(texts.hyps[i]) - order + 1, 0) for i in texts.ref_owner.tolist()], dtype=np.float64)
    ref = np.array([max(len(tokens) - order + 1, 0) for tokens in texts.refs], dtype=np.float64)
    return mean_statistic(_best(_f1(overlap, hyp, ref), texts))


def rouge_score_l(texts: PairedTexts) -> Statistic:
    """ROUGE-L F1 of rouge-score (the whole text as one sentence); give its tokens."""
    hyp = np.array([len(texts.hyps[i]) for i in texts.ref_owner.tolist()], dtype=np.float64)
    ref = np.array([len(tokens) for tokens in texts.refs], dtype=np.float64)
    return mean_statistic(_best(_f1(_lcs_of_refs(texts), hyp, ref), texts))


STUDIES_AT_A_TIME = 2048

ONE_STUDY_CIDER = "undefined for one study: its document frequencies come from the evaluated set"


def language_statistics(texts: PreparedTexts, protocol: EvalProtocol) -> dict[str, Statistic]:
    """BLEU, ROUGE and CIDEr by the protocol's implementation; CIDEr is left out for a single study."""
    return language_and_floors(texts, {}, protocol)[0]


def language_and_floors(
    texts: PreparedTexts,
    floors: Mapping[str, Sequence[str]],
    protocol: EvalProtocol,
    some: NDArray[np.bool_] | None = None,
) -> tuple[dict[str, Statistic], dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    """The statistics of texts, and the corpus scores of floors, prepared hypotheses for the same references.

    Studies are counted a few at a time, so that memory is that of the texts; references are split once for all.

    Returns:
        The statistics; the scores of each floor over all studies; and over ``some`` of them (N,), empty without.
    """
    frequencies = ReportStatistics.of(
        (text.split() for group in texts.refs for text in group), MAX_ORDER, owners_of(texts.refs)
    )
    parts, sums, some_sums = [], {name: RunningSums() for name in floors}, {name: RunningSums() for name in floors}
    for first in range(0, len(texts.hyps), STUDIES_AT_A_TIME):
        part = slice(first, min(first + STUDIES_AT_A_TIME, len(texts.hyps)))
        studies = _Part(texts.refs[part], [texts.hyps[part], *(floor[part] for floor in floors.values())], protocol)
        whole, *others = studies.statistics(frequencies, len(texts.hyps))
        parts.append(whole)
        for name, other in zip(floors, others, strict=True):
            sums[name].add(other)
            if some is not None:
                some_sums[name].add(other, some[part])
    of_all, of_some = ({name: own.corpus() for name, own in each.items()} for each in (sums, some_sums))
    return concatenated(parts), of_all, of_some


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
        for number, metrics in enumerate(scores):
            metrics["ROUGE_1"] = rouge_score_n(rouge[number], rouge_counts[number][0], 1)
            metrics["ROUGE_2"] = rouge_score_n(rouge[number], rouge_counts[number][1], 2)
            if self.protocol.metrics == "hf":
                metrics["ROUGE_L"] = rouge_score_l(rouge[number])
            else:
                metrics["ROUGE_L"] = coco_rouge_l(blanks[number])
                metrics["ROUGE_L_F1"] = rouge_score_l(rouge[number])
            if num_studies > 1:
                clipped, plain = cider(words[number], word_counts[number], frequencies, num_studies)
                metrics["CIDEr"], metrics["CIDEr_plain"] = mean_statistic(clipped), mean_statistic(plain)
        return scores

    def _places(self) -> list[slice]:
        """Range of each set among the texts, after the references."""
        starts = np.cumsum([len(self.owner), *(len(hyps) for hyps in self.sets)]).tolist()
        return [slice(start, end) for start, end in itertools.pairwise(starts)]

    def _paired(self, split: Sequence[Sequence[Hashable]]) -> list[PairedTexts]:
        return [PairedTexts(split[place], split[: len(self.owner)], self.owner) for place in self._places()]

    def _counts(self, tables: Sequence[NgramCounts]) -> list[list[PairedCounts]]:
        refs = slice(0, len(self.owner))
        return [[pair_counts(table, place, refs, self.owner) for table in tables] for place in self._places()]


# The same scores by rouge-score and sacrebleu, where they are installed. They get the same texts and tokens, so that a
# difference beyond rounding is a fault on one side.


@dataclass(frozen=True, slots=True)
class SecondOpinion:
    """A score by this package (``own``) and by another program."""

    own: float
    other: float

    @property
    def difference(self) -> float:
        return self.own - self.other

    def to_json(self) -> Json:
        return {"ours": self.own, "theirs": self.other, "difference": self.difference}


@dataclass(frozen=True, slots=True)
class NoOpinion:
    """The reason why a program gives no score."""

    unavailable: str

    def to_json(self) -> Json:
        return asdict(self)


Opinions = dict[str, SecondOpinion | NoOpinion]


def second_opinions(texts: PreparedTexts, protocol: EvalProtocol, statistics: Mapping[str, Statistic]) -> Opinions:
    """Metric and program -> both scores, or the reason why the program gives none."""
    return {**_rouge(texts, protocol, statistics), **_sacrebleu(texts, protocol, statistics)}


def _rouge(texts: PreparedTexts, protocol: EvalProtocol, statistics: Mapping[str, Statistic]) -> Opinions:
    if "rouge_score" in missing("metrics"):
        return {"rouge-score": NoOpinion(not_installed("metrics", "it"))}
    from rouge_score.rouge_scorer import RougeScorer

    metric_of = {
        "rouge1": "ROUGE_1",
        "rouge2": "ROUGE_2",
        "rougeL": "ROUGE_L" if protocol.metrics == "hf" else "ROUGE_L_F1",
    }
    scorer = RougeScorer(list(metric_of), use_stemmer=False)
    sums = dict.fromkeys(metric_of, 0.0)
    for hyp, refs in zip(texts.hyps, texts.refs, strict=True):
        for name, score in scorer.score_multi(refs, hyp).items():
            sums[name] += score.fmeasure
    return {
        f"{metric_of[name]} (rouge-score)": SecondOpinion(statistics[metric_of[name]].corpus(), total / len(texts.hyps))
        for name, total in sums.items()
    }


def _sacrebleu(texts: PreparedTexts, protocol: EvalProtocol, statistics: Mapping[str, Statistic]) -> Opinions:
    """Corpus BLEU-4 on the same tokens; sacrebleu has no add-one smoothing of order 1, so it cannot score HF's BLEU."""
    if "sacrebleu" in missing("metrics"):
        return {"sacrebleu": NoOpinion(not_installed("metrics", "it"))}
    if protocol.metrics == "hf":
        return {"sacrebleu": NoOpinion("it does not smooth as HF evaluate does")}
    from sacrebleu.metrics import BLEU

    most = max(len(group) for group in texts.refs)
    streams = [[group[i] if i < len(group) else None for group in texts.refs] for i in range(most)]
    score = BLEU(tokenize="none", smooth_method="none", force=True).corpus_score(texts.hyps, streams)
    return {"BLEU_4 (sacrebleu)": SecondOpinion(statistics["BLEU_4"].corpus(), score.score / 100.0)}
