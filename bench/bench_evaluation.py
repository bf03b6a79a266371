"""Time of the language metrics, the whole evaluation and the comparison on 3,858 pairs (size of MIMIC-CXR's test set).

    OMP_NUM_THREADS=2 python bench/bench_evaluation.py [PAIRS.jsonl]

Without a file the reports are made up: 3,858 references of about 60 words with many shared sentences, and outputs that
keep some of their sentences. pycocoevalcap scores the same tokens in the same run, where it is installed.
"""

from __future__ import annotations

import importlib.util
import random
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from made_up import made_up_sentence

from radweave.labels import get_labeler
from radweave.metrics import Options, Pair, evaluate_pairs, get_protocol, read_pairs
from radweave.metrics.language import language_statistics
from radweave.metrics.prepare import prepare
from radweave.metrics.significance import compare

STUDIES = 3858


def made_up_pairs(seed: int = 0) -> list[Pair]:
    draw = random.Random(seed)
    pairs = []
    for study in range(STUDIES):
        ref = [made_up_sentence(draw) for _ in range(draw.randint(4, 9))]
        hyp = [kept if draw.random() < 0.5 else made_up_sentence(draw) for kept in ref]
        pairs.append(Pair(f"s{study}", " ".join(hyp), (" ".join(ref),)))
    return pairs


def best_of(repeats: int, work: Callable[[], Any]) -> float:
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def coco_seconds(hyps: list[str], refs: list[list[str]]) -> dict[str, float]:
    """Seconds of coco's BLEU, ROUGE-L and CIDEr scorers."""
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    results = {i: [text] for i, text in enumerate(hyps)}
    truths = dict(enumerate(refs))
    seconds = {}
    for name, scorer in (("BLEU", Bleu(4)), ("ROUGE-L", Rouge()), ("CIDEr-D", Cider())):
        with redirect_stdout(StringIO()):
            seconds[name] = best_of(1, lambda scorer=scorer: scorer.compute_score(truths, results))
    return seconds


def main() -> None:
    pairs = list(read_pairs(Path(sys.argv[1])).pairs) if len(sys.argv) > 1 else made_up_pairs()
    protocol = get_protocol("full")
    prepared = prepare(pairs, protocol)
    effects = prepared.effects
    print(f"{len(pairs)} pairs, {effects.mean_reference_tokens:.0f} tokens a reference")
    ours = best_of(3, lambda: language_statistics(prepare(pairs, protocol), protocol))
    print(f"own metrics (BLEU-1..4, ROUGE-1/2/L twice, CIDEr and -D), with cleaning: {ours:.2f} s")
    labeler = get_labeler("chexpert14")
    quick = best_of(1, lambda: evaluate_pairs(pairs, options=Options(meteor=False)))
    print(f"evaluate without METEOR and labels: floors, honesty rows, 1,000 resamples: {quick:.2f} s")
    whole = best_of(1, lambda: evaluate_pairs(pairs, labeler=labeler, options=Options(meteor=False)))
    print(f"evaluate without METEOR, with the rule-based labels and their intervals: {whole:.2f} s")
    plain = Options(meteor=False, floors=False, resamples=0)
    a = evaluate_pairs(pairs, options=plain)
    shifted = [Pair(p.study_id, q.hyp, p.refs) for p, q in zip(pairs, pairs[1:] + pairs[:1], strict=True)]
    b = evaluate_pairs(shifted, options=plain)
    print(f"compare, 1,000 resamples of both tests: {best_of(1, lambda: compare(a, b)):.2f} s")
    if importlib.util.find_spec("pycocoevalcap") is None:
        print("pycocoevalcap is not installed: no ratio")
        return
    coco = coco_seconds(prepared.hyps, prepared.refs)
    total = sum(coco.values())
    print("pycocoevalcap: " + ", ".join(f"{name} {s:.2f} s" for name, s in coco.items()) + f", together {total:.2f} s")
    print(f"ratio pycocoevalcap / own (which computes more): {total / ours:.1f}")


if __name__ == "__main__":
    main()
