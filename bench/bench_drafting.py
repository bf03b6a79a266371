"""Pairwise utilities of drafting against the metrics called pair by pair, in one run: run by hand.

    OMP_NUM_THREADS=1 python bench/bench_drafting.py [DATASET]

With DATASET, the training reports of that data set folder and the candidates that a run would make of them; without,
made-up reports. The metrics are called for a few candidates with every report, each a pair of its own; the same pairs
must come out equal to 1e-6. Time is processor time.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import numpy as np

from radweave.data.dataset import Dataset
from radweave.drafting.pool import CandidatePool
from radweave.evaluation.metrics.cider import cider
from radweave.evaluation.metrics.ngrams import PairedTexts, count_pairs
from radweave.evaluation.metrics.pairwise import PairwiseWording
from radweave.evaluation.metrics.rouge import coco_rouge_l
from radweave.evaluation.prepare import prepare_hypotheses
from radweave.evaluation.protocols import get_protocol
from radweave.labels import LABELER_OF, get_labeler
from radweave.nn.decoding import ExpectedUtilityConfig

BY_THE_METRICS = 8
"""Candidates that the metrics are called for."""
WORDS = [f"word{number}" for number in range(400)]


def made_up(count: int) -> list[list[str]]:
    chance = random.Random(0)
    return [chance.choices(WORDS, [1 / (rank + 1) for rank in range(len(WORDS))], k=35) for _ in range(count)]


def of_dataset(folder: Path) -> tuple[list[list[str]], list[list[str]]]:
    dataset = Dataset.open(folder)
    reports = [study.report for study in dataset.studies("train") if study.report]
    labeler = get_labeler(LABELER_OF[dataset.card.modality])
    start = time.process_time()
    pool = CandidatePool.build(reports, labeler, ExpectedUtilityConfig())
    print(f"candidates: {len(pool.candidates)} from {len(reports)} reports, {time.process_time() - start:.1f} s")
    protocol = get_protocol("full")
    texts = [candidate.text for candidate in pool.candidates], reports
    candidates, references = ([text.split() for text in prepare_hypotheses(some, protocol)] for some in texts)
    return candidates, references


def main() -> None:
    candidates, references = of_dataset(Path(sys.argv[1])) if len(sys.argv) > 1 else (made_up(1500), made_up(500))
    start = time.process_time()
    wording = PairwiseWording(candidates, references)
    found = [
        (wording.cider(rows), wording.rouge_l(rows))
        for rows in (slice(first, min(first + 256, len(candidates))) for first in range(0, len(candidates), 256))
    ]
    ours = (time.process_time() - start) / (len(candidates) * len(references))
    ciders, rouges = (np.concatenate(parts) for parts in zip(*found, strict=True))
    sample = np.linspace(0, len(candidates) - 1, BY_THE_METRICS).astype(int).tolist()
    start = time.process_time()
    wanted = []
    for row in sample:
        pairs = PairedTexts.of([candidates[row]] * len(references), [[reference] for reference in references])
        wanted.append((cider(pairs, count_pairs(pairs, 4))[0], coco_rouge_l(pairs).per_study))
    theirs = (time.process_time() - start) / (len(sample) * len(references))
    apart = max(
        max(np.abs(ciders[row] - values[0]).max(), np.abs(rouges[row] - values[1]).max())
        for row, values in zip(sample, wanted, strict=True)
    )
    assert apart < 1e-6, f"the values are {apart} apart"
    print(
        f"{len(candidates)} x {len(references)} pairs: {ours * 1e6:.3f} us a pair, by the metrics {theirs * 1e6:.1f} us"
    )
    print(f"{theirs / ours:.0f} times faster, values at most {apart:.1e} apart")


if __name__ == "__main__":
    main()
