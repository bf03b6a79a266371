"""Baselines that look at no image, or at nothing but the image: no n-gram score is shown without them.

A constant report scores as high as published systems on normal-heavy sets, so a score means little until it stands
beside one. Baselines that come with the predictions (a line's ``floors``) are made from training data by whoever wrote
them; the others are made here, from training reports if given. A constant chosen among the evaluated references says
so: it is a little better than a fair one. Where a patient has an earlier study, its report is a floor of its own
(``radweave.metrics.priors``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from radweave.core.errors import InputError
from radweave.core.study import Study
from radweave.labels import NO_FINDING, Labeler
from radweave.metrics.clinical import is_positive, states_of
from radweave.metrics.language import MAX_ORDER
from radweave.metrics.ngrams import count_ngrams
from radweave.metrics.pairs import Pair
from radweave.metrics.pairwise import PairwiseWording
from radweave.metrics.prepare import prepare_hypotheses
from radweave.metrics.priors import ELSE_COPY, ELSE_FLOOR, else_prior
from radweave.metrics.protocols import EvalProtocol

# The best constant reports, each chosen for one score among training reports, on training reports. A report that states
# the most frequent finding has a high micro F1, and a well-worded normal report a high CIDEr; each fails by the other.

FINDINGS, WORDING = "constant_findings", "constant_wording"
"""Names of the two floors: chosen for micro F1 of the findings, and for mean CIDEr + ROUGE-L."""
SOURCES = {
    FINDINGS: "the training report with the best micro F1 of findings on the training set",
    WORDING: "the training report with the best mean CIDEr + ROUGE-L on the training set",
}
MOST_REFERENCES, MOST_CANDIDATES, MOST_EQUALS = 2000, 4000, 200


def training_reports(studies: Iterable[Study]) -> tuple[str, ...]:
    """Reports of training studies, to choose a floor from.

    Raises:
        InputError: for a study of another split: a floor that has seen what it is scored on is none.
    """
    chosen = list(studies)
    for study in chosen:
        if study.split != "train":
            raise InputError(
                "a floor is chosen on training reports only", field="split", got=study.split, expected="train"
            )
    return tuple(study.report.strip() for study in chosen if study.report and study.report.strip())


def best_constants(train_texts: Sequence[str], protocol: EvalProtocol, labeler: Labeler | None) -> dict[str, str]:
    """Floor name -> report. Without a labeler, or without any finding, there is none for findings."""
    best = {WORDING: best_for_wording(train_texts, protocol)}
    findings = best_for_findings(train_texts, protocol, labeler) if labeler is not None else None
    return best | ({FINDINGS: findings} if findings is not None else {})


def best_for_findings(train_texts: Sequence[str], protocol: EvalProtocol, labeler: Labeler) -> str | None:
    """The report whose findings, stated of every training study, have the highest micro F1; the best worded of equals.

    None if no report states a finding.
    """
    counted = [number for number, name in enumerate(labeler.classes) if name != NO_FINDING]
    stated = is_positive(states_of(train_texts, labeler), "negative")[:, counted]
    scores = constant_f1(stated)
    if not scores.any():
        return None
    equal = list(dict.fromkeys(train_texts[row] for row in np.flatnonzero(scores == scores.max()).tolist()))
    return best_for_wording(train_texts, protocol, _spread(equal, MOST_EQUALS))


def constant_f1(stated: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Micro F1 (N,) of giving row n of ``stated`` (N, K) to all N studies."""
    frequency = stated.sum(axis=0)
    hits = stated @ frequency
    num_stated = len(stated) * stated.sum(axis=1)
    return np.asarray(2 * hits / np.maximum(num_stated + frequency.sum(), 1), dtype=np.float64)


def best_for_wording(
    train_texts: Sequence[str], protocol: EvalProtocol, candidates: Sequence[str] | None = None
) -> str:
    """The candidate with the highest mean CIDEr-D + ROUGE-L over the training reports, itself left out once.

    Of more than ``MOST_REFERENCES`` reports and ``MOST_CANDIDATES`` distinct ones, the most frequent are tried, then an
    even spread of the others.
    """
    references = _spread(train_texts, MOST_REFERENCES)
    counts = Counter(train_texts)
    if candidates is None:
        often = [text for text, count in counts.most_common(MOST_CANDIDATES // 2) if count > 1]
        known = set(often)
        candidates = [*often, *_spread([text for text in counts if text not in known], MOST_CANDIDATES - len(often))]
    words = [[text.split() for text in prepare_hypotheses(texts, protocol)] for texts in (candidates, references)]
    wording = PairwiseWording(*words)
    first = {text: row for row, text in reversed(list(enumerate(references)))}
    own = np.array([first.get(text, -1) for text in candidates])
    worth = np.zeros(len(candidates))
    for start in range(0, len(candidates), 256):
        rows = slice(start, min(start + 256, len(candidates)))
        utility = wording.cider(rows) + wording.rouge_l(rows)
        taken = own[rows] >= 0
        utility[np.flatnonzero(taken), own[rows][taken]] = 0
        worth[rows] = utility.sum(axis=1) / np.maximum(len(references) - taken, 1)
    return candidates[int(worth.argmax())]


def _spread(texts: Sequence[str], most: int) -> list[str]:
    """At most so many of them, evenly spread."""
    return [texts[number * len(texts) // most] for number in range(most)] if len(texts) > most else list(texts)


# Number of reports tried as the constant one: as many as this number of comparisons allows, within these limits.
_COMPARISONS = 500_000
_LEAST_CANDIDATES, _MOST_CANDIDATES = 200, 1000
_SELECTION_TEXTS = 2000

# Names under which a line's ``floors`` may give a baseline, and the name it gets in the table.
_FLOOR_ALIASES = {"constant": "constant_report", "nearest_neighbor": "nearest_neighbour"}
FLOOR_TITLES: Mapping[str, str] = {
    "constant_report": "one constant report",
    FINDINGS: "constant report, best for findings",
    WORDING: "constant report, best for wording",
    "nearest_neighbour": "nearest training image",
    "train_copy": "a training report by chance",
    "shuffled_pairing": "own reports, shuffled",
    ELSE_FLOOR: ELSE_COPY,
}


def floor_title(name: str) -> str:
    """Title of a floor in tables; the name of one that came with the predictions under another."""
    return FLOOR_TITLES.get(_FLOOR_ALIASES.get(name, name), name)


@dataclass(frozen=True, slots=True)
class Floor:
    """One baseline: a report per study, or the reason why there is none."""

    source: str
    texts: tuple[str, ...] | None


def build_floors(
    pairs: Sequence[Pair],
    protocol: EvalProtocol,
    train_texts: Sequence[str] | None,
    seed: int,
    labeler: Labeler | None = None,
) -> dict[str, Floor]:
    """Make every baseline there is material for; the rest is named with what it needs."""
    floors = _given_floors(pairs)
    if "constant_report" not in floors:
        floors["constant_report"] = _constant(pairs, protocol, train_texts)
    if not {FINDINGS, WORDING} <= floors.keys():
        floors = _best_constants(pairs, protocol, train_texts, labeler) | floors
    if "train_copy" not in floors:
        floors["train_copy"] = _train_copy(pairs, train_texts, seed)
    if "shuffled_pairing" not in floors:
        floors["shuffled_pairing"] = shuffled_pairing(pairs, seed)
    if any(pair.prior_report is not None for pair in pairs):
        floors[ELSE_FLOOR] = Floor("the prior's report where there is one, else the draft", tuple(else_prior(pairs)))
    if "nearest_neighbour" not in floors:
        reason = "unavailable: the predictions carry no floors.nearest_neighbour text"
        floors["nearest_neighbour"] = Floor(reason, None)
    return dict(sorted(floors.items()))


def _given_floors(pairs: Sequence[Pair]) -> dict[str, Floor]:
    names = sorted({name for pair in pairs for name in pair.floors})
    floors = {}
    for name in names:
        texts = [pair.floors[name] for pair in pairs if name in pair.floors]
        missing = len(pairs) - len(texts)
        floors[_FLOOR_ALIASES.get(name, name)] = (
            Floor(f"unavailable: {missing} of {len(pairs)} predictions lack floors.{name}", None)
            if missing
            else Floor("given with the predictions", tuple(texts))
        )
    return floors


def _constant(pairs: Sequence[Pair], protocol: EvalProtocol, train_texts: Sequence[str] | None) -> Floor:
    if train_texts:
        best = _best_for_itself(train_texts, protocol)
        return Floor(f"best of the training reports on the training set ({len(train_texts)})", (best,) * len(pairs))
    if len(pairs) < 3:
        return Floor("unavailable: fewer than three studies and no training reports", None)
    source = (
        "chosen among the evaluated references, for want of training reports: a little better than a fair one;"
        " no study gets its own report"
    )
    return Floor(source, _best_of_references([pair.refs[0] for pair in pairs], protocol))


def _best_constants(
    pairs: Sequence[Pair], protocol: EvalProtocol, train_texts: Sequence[str] | None, labeler: Labeler | None
) -> dict[str, Floor]:
    """One report for everybody, the best for findings and the best for wording."""
    best = best_constants(train_texts, protocol, labeler) if train_texts else {}
    missing = {
        WORDING: "unavailable: needs training reports",
        FINDINGS: "unavailable: needs training reports that state a finding, and a label set",
    }
    return {
        name: Floor(SOURCES[name], (best[name],) * len(pairs)) if name in best else Floor(reason, None)
        for name, reason in missing.items()
    }


def _candidates(texts: Sequence[str], num_refs: int) -> list[str]:
    """The most frequent texts, ties in order of appearance, then evenly spread ones; fewer against more references."""
    most = min(_MOST_CANDIDATES, max(_LEAST_CANDIDATES, _COMPARISONS // max(num_refs, 1)))
    counts = Counter(texts)
    repeated = [text for text, count in counts.most_common(most // 2) if count > 1]
    known = set(repeated)
    others = [text for text in counts if text not in known]
    step = max(1, -(-len(others) // (most - len(repeated))))
    return repeated + others[::step]


def _match_rows(candidates: Sequence[str], refs: Sequence[str]) -> NDArray[np.int64]:
    """BLEU sums of every candidate against every reference (C, R, 10), in the order of ``bleu`` rows."""
    split = [text.split() for text in (*refs, *candidates)]
    lengths = np.array([len(tokens) for tokens in split], dtype=np.int64)
    num_refs, num_candidates = len(refs), len(candidates)
    rows = np.zeros((num_candidates, num_refs, 2 * MAX_ORDER + 2), dtype=np.int64)
    for order, table in enumerate(count_ngrams(split, MAX_ORDER)):
        cut = int(np.searchsorted(table.text, num_refs))
        ref_text, ref_gram, ref_count = table.text[:cut], table.gram[:cut], table.count[:cut]
        in_candidate = np.zeros(max(table.num_grams, 1), dtype=np.int64)
        for candidate in range(num_candidates):
            first, last = np.searchsorted(table.text, [num_refs + candidate, num_refs + candidate + 1])
            in_candidate[table.gram[first:last]] = table.count[first:last]
            matched = np.minimum(in_candidate[ref_gram], ref_count)
            rows[candidate, :, order] = np.bincount(ref_text, matched, num_refs)
            in_candidate[table.gram[first:last]] = 0
        rows[:, :, MAX_ORDER + order] = np.maximum(lengths[num_refs:, None] - order, 0)
    rows[:, :, 8] = lengths[num_refs:, None]
    rows[:, :, 9] = lengths[None, :num_refs]
    return rows


def _bleu_4(sums: NDArray[np.int64]) -> NDArray[np.float64]:
    """BLEU-4 from summed rows (..., 10); only to rank candidates."""
    precision = (sums[..., :4] + 1e-9) / (sums[..., 4:8] + 1e-6)
    ratio = np.maximum(sums[..., 8], 1e-9) / np.maximum(sums[..., 9], 1e-9)
    return np.asarray(np.prod(precision, axis=-1) ** 0.25 * np.exp(np.minimum(1.0 - 1.0 / ratio, 0.0)))


def _without_self(rows: NDArray[np.int64], candidates: Sequence[str], refs: Sequence[str]) -> NDArray[np.int64]:
    """Sums (C, 10) of each candidate over the references, but not over the one it was taken from."""
    total: NDArray[np.int64] = rows.sum(axis=1)
    source = {text: index for index, text in reversed(list(enumerate(refs)))}
    for candidate, text in enumerate(candidates):
        if text in source:
            total[candidate] -= rows[candidate, source[text]]
    return total


def _best_for_itself(train_texts: Sequence[str], protocol: EvalProtocol) -> str:
    """The training report with the highest BLEU-4 against (an even spread of) the other training reports."""
    spread = train_texts[:: max(1, -(-len(train_texts) // _SELECTION_TEXTS))]
    candidates = _candidates(train_texts, len(spread))
    rows = _match_rows(prepare_hypotheses(candidates, protocol), prepare_hypotheses(spread, protocol))
    return candidates[int(np.argmax(_bleu_4(_without_self(rows, candidates, spread))))]


def best_candidate(candidates: Sequence[str], refs: Sequence[str], protocol: EvalProtocol) -> str:
    """The candidate with the highest BLEU-4 when it is given for every reference."""
    rows = _match_rows(prepare_hypotheses(candidates, protocol), prepare_hypotheses(refs, protocol))
    return candidates[int(np.argmax(_bleu_4(rows.sum(axis=1))))]


def _best_of_references(refs: Sequence[str], protocol: EvalProtocol) -> tuple[str, ...]:
    """The reference that scores best on the other studies, for every study; its own study gets the second best.

    Choosing anew for each study without that study would be wrong the other way: of two candidates close together it
    picks, for every study, the one that fits that study less.
    """
    spread = refs[:: max(1, -(-len(refs) // _SELECTION_TEXTS))]
    candidates = _candidates(refs, len(spread))
    rows = _match_rows(prepare_hypotheses(candidates, protocol), prepare_hypotheses(spread, protocol))
    order = np.argsort(-_bleu_4(_without_self(rows, candidates, spread)), kind="stable")
    best = candidates[int(order[0])]
    second = candidates[int(order[1])] if len(candidates) > 1 else best
    # A report that several studies have in the same words is a fair constant for them, too.
    unique = refs.count(best) == 1
    return tuple(second if unique and ref == best else best for ref in refs)


def _train_copy(pairs: Sequence[Pair], train_texts: Sequence[str] | None, seed: int) -> Floor:
    if not train_texts:
        return Floor("unavailable: needs training reports", None)
    drawn = np.random.default_rng([seed, 1]).integers(len(train_texts), size=len(pairs))
    return Floor(f"a random training report for each study (seed {seed})", tuple(train_texts[i] for i in drawn))


def shuffled_pairing(pairs: Sequence[Pair], seed: int) -> Floor:
    """Give each study another study's generated report: a random cycle, so that nobody keeps the own one."""
    if len(pairs) < 2:
        return Floor("unavailable: one study only", None)
    order = np.random.default_rng([seed, 2]).permutation(len(pairs))
    texts = [""] * len(pairs)
    for place, study in enumerate(order.tolist()):
        texts[study] = pairs[int(order[(place + 1) % len(order)])].hyp
    return Floor(f"the generated reports of other studies (seed {seed})", tuple(texts))
