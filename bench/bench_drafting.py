"""What drafting costs: pairwise utilities against the metrics called pair by pair, a draft, and large banks.

    OMP_NUM_THREADS=1 python bench/bench_drafting.py [DATASET]
    OMP_NUM_THREADS=1 python bench/bench_drafting.py --large 27000 270000

With DATASET, the training reports of that data set folder and the candidates that a run would make of them; without,
made-up reports. The metrics are called for a few candidates with every report, each a pair of its own; the same pairs
must come out equal to 1e-6. ``--large`` drafts from banks of so many reports, each a shuffle of sentences that the
phantom's writer wrote, with the 256 nearest of them. Run by hand; time is processor time.
"""

from __future__ import annotations

import random
import resource
import sys
import time
from pathlib import Path

import numpy as np

from radweave.data.dataset import Dataset
from radweave.drafting.candidates import (
    Candidate,
    CandidateOptions,
    CandidatePool,
    Sentence,
    affirmed_classes,
    build_candidates,
)
from radweave.drafting.choice import ExpectedUtility, NearbyUtility, nearest_rows
from radweave.labels import LABELER_OF, get_labeler
from radweave.metrics.language import cider, coco_rouge_l
from radweave.metrics.ngrams import PairedTexts, count_pairs
from radweave.metrics.pairwise import BleuPoint, PairwiseWording, WordingWeights
from radweave.metrics.prepare import prepare_hypotheses
from radweave.metrics.protocols import get_protocol
from radweave.nn.decoding import ExpectedUtilityConfig
from radweave.phantom.anatomy import draw_anatomy
from radweave.phantom.findings import draw_findings
from radweave.phantom.report import body_sentences

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


def drafts(num_candidates: int = 5700, num_reports: int = 1684, num_classes: int = 14, rounds: int = 50) -> None:
    """Milliseconds that the choice among so many candidates takes, given the evidence."""
    rng = np.random.default_rng(0)
    made = [Candidate((Sentence("a", "report", row % num_reports),)) for row in range(num_candidates)]
    chooser = ExpectedUtility(
        made,
        (rng.random((num_candidates, num_classes)) < 0.1).astype(float),
        rng.random((num_candidates, num_reports), dtype=np.float32),
        classes=[str(number) for number in range(num_classes)],
        thresholds=np.full(num_classes, 0.2),
    )
    weights, barred = rng.random((rounds, num_reports)), np.arange(num_reports) == 3
    start = time.process_time()
    for row in weights:
        chooser.best(1, rng.random(num_classes), row / row.sum(), barred)
    each = (time.process_time() - start) / rounds
    print(f"{num_candidates} candidates, {num_reports} reports: {each * 1e3:.1f} ms a draft")


def _body(rng: np.random.Generator) -> list[str]:
    findings = draw_findings(rng, draw_anatomy(rng), "long-tail", "xray")
    return [sentence.text for sentence in body_sentences([describe(finding, rng) for finding in findings], rng)]


def phantom_reports(count: int, written: int = 4000) -> list[str]:
    """Reports of the phantom's writer, then shuffles of sentences that it wrote."""
    rng, chance = np.random.default_rng(0), random.Random(0)
    bodies = [_body(rng) for _ in range(min(written, count))]
    made = [" ".join(body) for body in bodies]
    while len(made) < count:
        body = chance.choice(bodies)
        made.append(" ".join(chance.sample([*body, chance.choice(chance.choice(bodies))], len(body))))
    return made


def large(count: int, rounds: int = 5) -> None:
    """What a bank of so many reports takes: memory, the search, and the rest of a draft."""
    reports = phantom_reports(count)
    labeler = get_labeler("chexpert14")
    built = build_candidates(reports[:1000], labeler, options=CandidateOptions())
    composed = [candidate for candidate in built if candidate.is_composed]
    first: dict[str, int] = {}
    for row, text in enumerate(reports):
        first.setdefault(text, row)
    whole = [Candidate((Sentence(text, "report", row),)) for text, row in first.items()]
    asserts = np.zeros((len(whole) + len(composed), len(labeler.classes)))
    asserts[len(whole) :] = affirmed_classes([candidate.text for candidate in composed], labeler)
    before, start = peak(), time.process_time()
    chooser = NearbyUtility(
        [*whole, *composed],
        asserts,
        reports,
        classes=labeler.classes,
        thresholds=np.full(len(labeler.classes), 0.2),
        weights=WordingWeights(),
        point=BleuPoint((9.0, 3.0, 1.2, 0.6), (26.0, 25.0, 24.0, 23.0), 32.0),
    )
    built_in = time.process_time() - start
    bank = chooser.bank
    kept = bank.tokens.nbytes + bank.starts.nbytes + sum(some.nbytes for some in (*bank.keys, *bank.frequencies))
    rng, barred = np.random.default_rng(0), np.zeros(count, dtype=bool)
    all_weights = rng.random((rounds, count)) ** 4
    all_weights /= all_weights.sum(axis=1, keepdims=True)
    start = time.process_time()
    for weights in all_weights:
        nearest_rows(weights, barred, chooser.nearest)
    search = (time.process_time() - start) / rounds
    start = time.process_time()
    for weights in all_weights:
        chooser.best(1, rng.random(len(labeler.classes)) * 0.3, weights, barred)
    each = (time.process_time() - start) / rounds
    print(
        f"{count} reports, {len(whole)} distinct, {len(composed)} composites: made in {built_in:.1f} s, holds"
        f" {kept / 2**20:.0f} MiB (peak of the process {before:.0f} -> {peak():.0f} MiB);"
        f" a draft {each * 1e3:.0f} ms, of it the search {search * 1e3:.1f} ms"
    )


def peak() -> float:
    """Most memory that the process has had, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    if sys.argv[1:2] == ["--large"]:
        for count in sys.argv[2:]:
            large(int(count))
        return
    drafts()
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
