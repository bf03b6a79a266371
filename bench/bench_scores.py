"""Time and memory of scores that leaderboards use.

    python bench/bench_scores.py bertscore --pairs 30000     # with a tiny random encoder
    python bench/bench_scores.py bert-score --pairs 30000    # the same by the package, in an environment that has it
    python bench/bench_scores.py words --pairs 227000        # every score that needs no model

Reports are made of random words. Each part prints one line of JSON per score. bert-score 0.3.13 needs transformers 4:
with 5 it refuses empty texts and leaves the blank before a text's first word out.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.metrics.score_folders import WORDS, write_roberta

FloatArray = NDArray[np.float64]
NORMAL = "The heart is normal. The lungs are clear. No effusion or pneumothorax."


def made_up(number: int, seed: int) -> list[str]:
    """Reports of 20 to 69 words of radiology; one in ten is the same normal report."""
    rng = np.random.default_rng(seed)
    words = np.array(WORDS)
    texts = []
    for length in rng.integers(20, 70, number):
        drawn = words[rng.integers(0, len(words), length)]
        texts.append(" ".join(drawn) + " ." if rng.random() > 0.1 else NORMAL)
    return texts


def measured(name: str, run: Callable[[], object], **facts: object) -> None:
    """Print the seconds of a call, those of the processor, and the peak memory of the process."""
    start, processor = time.perf_counter(), time.process_time()
    run()
    seconds, processor = time.perf_counter() - start, time.process_time() - processor
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    record = {"score": name, "seconds": round(seconds, 2), "cpu_seconds": round(processor, 2), "peak_mb": round(peak)}
    print(json.dumps({**record, **facts}), flush=True)


def encoder(home: str) -> Path:
    """A tiny random encoder; its first layer is scored."""
    return write_roberta(Path(home) / "encoder", layers=2, dim=16, positions=514)


def bertscore(number: int) -> FloatArray:
    """BERTScore of pairs: computed, and from states on disk."""
    import torch

    from radweave.metrics.bertscore import BertScorer

    drafts, references = made_up(number, 1), made_up(number, 2)
    pairs = list(zip(drafts, references, strict=True))
    scores = np.zeros(0)
    with tempfile.TemporaryDirectory() as home:
        folder, cache = encoder(home), Path(home) / "states"

        def own(states: Path | None, scored: int = number) -> None:
            nonlocal scores
            scorer = BertScorer(folder, references[:scored], device=torch.device("cpu"), cache=states)
            rescaled = scorer.score(pairs[:scored], idf=False).rescaled
            assert rescaled is not None
            scores = rescaled

        own(None, 64)  # imports
        measured("BERTScore", lambda: own(None), pairs=number)
        measured("BERTScore, states written", lambda: own(cache), pairs=number)
        measured("BERTScore, states from disk", lambda: own(cache), pairs=number)
    return scores


def package(number: int) -> FloatArray:
    """BERTScore of the same pairs by the bert-score package."""
    from bert_score import BERTScorer

    drafts, references = made_up(number, 1), made_up(number, 2)
    scores = np.zeros(0)
    with tempfile.TemporaryDirectory() as home:
        folder = encoder(home)

        def theirs(scored: int = number) -> None:
            nonlocal scores
            scorer = BERTScorer(
                model_type=str(folder), num_layers=1, lang="en", rescale_with_baseline=True, nthreads=0,
                baseline_path=str(folder / "distilroberta-base.tsv"), device="cpu",
            )  # fmt: skip
            scores = scorer.score(drafts[:scored], references[:scored], batch_size=64)[2].double().numpy()

        theirs(64)  # imports
        measured("BERTScore of bert-score", theirs, pairs=number)
    return scores


def words(number: int) -> None:
    """Every score that needs no model."""
    from radweave.labels import get_labeler
    from radweave.metrics import Pair, get_protocol
    from radweave.metrics.clinical import clinical_statistics, crg_statistic, label_pairs
    from radweave.metrics.language import language_statistics, sentence_bleu_2
    from radweave.metrics.prepare import prepare
    from radweave.metrics.temporal import temporal_f1

    drafts, references = made_up(number, 1), made_up(number, 2)
    pairs = [Pair(str(i), *both) for i, both in enumerate(zip(drafts, ([text] for text in references), strict=True))]
    protocol = get_protocol("full")
    measured("BLEU_2_sentence", lambda: sentence_bleu_2(drafts, references), pairs=number)
    measured("temporal_F1", lambda: temporal_f1(drafts, [[text] for text in references]), pairs=number)
    for name in ("chexpert14", "ct18"):
        labelled = None

        def label(name: str = name) -> None:
            nonlocal labelled
            labelled = label_pairs(pairs, get_labeler(name))

        measured(f"labels of {name}", label, pairs=number)
        assert labelled is not None
        measured(f"findings P, R, F1 of {name}", lambda rows=labelled: clinical_statistics(rows), pairs=number)
        measured(f"CRG of {name}", lambda rows=labelled: crg_statistic(rows).corpus(), pairs=number)
    measured("BLEU, ROUGE, CIDEr", lambda: language_statistics(prepare(pairs, protocol), protocol), pairs=number)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("bertscore", "bert-score", "words"))
    parser.add_argument("--pairs", type=int, default=30_000)
    parser.add_argument("--scores", type=Path, help="numpy file that the scores are written to")
    chosen = parser.parse_args()
    made = {"bertscore": bertscore, "bert-score": package, "words": words}[chosen.part](chosen.pairs)
    if chosen.scores is not None and made is not None:
        np.save(chosen.scores, made)
