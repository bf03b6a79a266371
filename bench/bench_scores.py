"""Time and memory of scores that leaderboards use.

    python bench/bench_scores.py bertscore --pairs 30000     # with a tiny random encoder
    python bench/bench_scores.py bert-score --pairs 30000    # the same by the package, in an environment that has it
    python bench/bench_scores.py words --pairs 227000        # every score that needs no model, one process for each
    python bench/bench_scores.py language --pairs 227000     # one of them

Reports are made of random words. Each part prints one line of JSON per score. bert-score 0.3.13 needs transformers 4:
with 5 it refuses empty texts and leaves the blank before a text's first word out.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))
from made_up import made_up_sentence

if TYPE_CHECKING:
    from radweave.metrics import Pair

FloatArray = NDArray[np.float64]
NORMAL = "The heart is normal. The lungs are clear. No effusion or pneumothorax."


def made_up(number: int, seed: int) -> list[str]:
    """Reports of 20 to 69 words of radiology for encoders; one in ten is the same normal report."""
    from tests.metrics.score_folders import WORDS

    rng = np.random.default_rng(seed)
    words = np.array(WORDS)
    texts = []
    for length in rng.integers(20, 70, number):
        drawn = words[rng.integers(0, len(words), length)]
        texts.append(" ".join(drawn) + " ." if rng.random() > 0.1 else NORMAL)
    return texts


def made_up_texts(number: int, seed: int) -> list[str]:
    """Reports of three to eight sentences with findings; one in ten is the same normal report."""
    draw = random.Random(seed)
    return [
        NORMAL if draw.random() < 0.1 else " ".join(made_up_sentence(draw) for _ in range(draw.randint(3, 8)))
        for _ in range(number)
    ]


def made_up_pairs(number: int) -> list[Pair]:
    """Pairs of made-up reports."""
    from radweave.metrics import Pair

    both = zip(made_up_texts(number, 1), made_up_texts(number, 2), strict=True)
    return [Pair(str(index), draft, (reference,)) for index, (draft, reference) in enumerate(both)]


def measured(name: str, run: Callable[[], object], **facts: object) -> None:
    """Print the seconds of a call, those of the processors, and the peak memory; programs that it starts count too."""
    start, processor = time.perf_counter(), processor_seconds()
    run()
    seconds, processor = time.perf_counter() - start, processor_seconds() - processor
    peak = sum(resource.getrusage(who).ru_maxrss for who in _PROCESSES) / 1024
    record = {"score": name, "seconds": round(seconds, 2), "cpu_seconds": round(processor, 2), "peak_mb": round(peak)}
    print(json.dumps({**record, **facts}), flush=True)


_PROCESSES = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


def processor_seconds() -> float:
    used = map(resource.getrusage, _PROCESSES)
    return sum(one.ru_utime + one.ru_stime for one in used)


def encoder(home: str) -> Path:
    """A tiny random encoder; its first layer is scored."""
    from tests.metrics.score_folders import write_roberta

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


def of_labels(ontology: str, number: int) -> None:
    """Labels of both sides, and the scores that are read from them."""
    from radweave.labels import get_labeler
    from radweave.metrics.clinical import LabelledPairs, clinical_statistics, crg_statistic, label_pairs

    pairs, labeler = made_up_pairs(number), get_labeler(ontology)
    labelled: list[LabelledPairs] = []
    measured(f"labels of {ontology}", lambda: labelled.append(label_pairs(pairs, labeler)), pairs=number)
    measured(f"findings P, R, F1 of {ontology}", lambda: clinical_statistics(labelled[0]), pairs=number)
    measured(f"CRG of {ontology}", lambda: crg_statistic(labelled[0]).corpus(), pairs=number)


def sentence_bleu(number: int) -> None:
    from radweave.metrics.language import sentence_bleu_2

    drafts, references = made_up_texts(number, 1), made_up_texts(number, 2)
    measured("BLEU_2_sentence", lambda: sentence_bleu_2(drafts, references), pairs=number)


def temporal(number: int) -> None:
    from radweave.metrics.temporal import temporal_f1

    drafts, references = made_up_texts(number, 1), [[text] for text in made_up_texts(number, 2)]
    measured("temporal_F1", lambda: temporal_f1(drafts, references), pairs=number)


def language(number: int) -> None:
    from radweave.metrics import get_protocol
    from radweave.metrics.language import language_statistics
    from radweave.metrics.prepare import prepare

    pairs, protocol = made_up_pairs(number), get_protocol("full")
    measured("BLEU, ROUGE, CIDEr", lambda: language_statistics(prepare(pairs, protocol), protocol), pairs=number)


def sides(number: int) -> None:
    from radweave.metrics.laterality import read_sides

    pairs = made_up_pairs(number)
    measured("sided findings", lambda: read_sides(pairs), pairs=number)


def meteor(number: int) -> None:
    from radweave.metrics import get_protocol
    from radweave.metrics.meteor import meteor_statistics
    from radweave.metrics.prepare import prepare
    from radweave.metrics.statistics import Unavailable

    texts = prepare(made_up_pairs(number), get_protocol("full"))

    def run() -> None:
        made = meteor_statistics(texts.hyps, texts.refs)
        if isinstance(made, Unavailable):
            raise SystemExit(made.reason)

    measured("METEOR", run, pairs=number)


WORD_SCORES: Mapping[str, Callable[[int], None]] = {
    "sentence-bleu": sentence_bleu,
    "temporal": temporal,
    "chexpert14": partial(of_labels, "chexpert14"),
    "ct18": partial(of_labels, "ct18"),
    "sides": sides,
    "language": language,
    "meteor": meteor,
}


def words(number: int) -> None:
    """Every score that needs no model, each in a process of its own."""
    for part in WORD_SCORES:
        subprocess.run([sys.executable, __file__, part, "--pairs", str(number)], check=False)


PARTS: Mapping[str, Callable[[int], FloatArray | None]] = {
    "bertscore": bertscore,
    "bert-score": package,
    "words": words,
    **WORD_SCORES,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=tuple(PARTS))
    parser.add_argument("--pairs", type=int, default=30_000)
    parser.add_argument("--scores", type=Path, help="numpy file that the scores are written to")
    chosen = parser.parse_args()
    made = PARTS[chosen.part](chosen.pairs)
    if chosen.scores is not None and made is not None:
        np.save(chosen.scores, made)
