"""CPU time of the exchange probe over that of ``generate``, on the same studies in one process.

    OMP_NUM_THREADS=1 python bench/bench_probe.py DATASET RUN [RUN ...] [--studies 100] [--rounds 2]

The probe with drafts, reports by the run's own options, as ``generate`` writes them, and reports by its own decoder
take turns, on studies of the test split whose images are cached. Printed: CPU seconds, the least of the rounds, and
ratios.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from radweave.data.cache.images import build_cache
from radweave.data.dataset import Dataset
from radweave.data.loader import Example
from radweave.engine.prepare import prepare
from radweave.engine.restore import Run, restore
from radweave.experiments.probe import probe
from radweave.inference.predictor import Predictor
from radweave.nn.decoding import OWN_DECODER


def probed(run: Run, data: Dataset, studies: int) -> list[Example]:
    """The studies that the probe draws."""
    experiment = run.experiment
    cache = build_cache(data, size=experiment.data.image_size, ct=experiment.data.ct)
    examples = prepare(data, "test", experiment, run.tokenizer, cache, need_text=True).examples
    return [examples[number] for number in np.random.default_rng(experiment.seed).permutation(len(examples))[:studies]]


def write(run: Run, data: Dataset, studies: int, decoding: Sequence[str] = ()) -> None:
    """Draft them."""
    predictor = Predictor.of(run, decoding=decoding)
    assert len(list(predictor.reports(probed(run, data, studies)))) > 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--studies", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = Dataset.open(options.dataset)
    print("| run | method | studies | probe, CPU s | generate | own decoder | probe / generate | probe / own decoder |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for folder in options.runs:
        run = restore(folder)
        write(run, data, 2)  # reads the cache, and what is read once
        ways: dict[str, Callable[[], object]] = {
            "probe": partial(probe, run, options.dataset, studies=options.studies),
            "generate": partial(write, run, data, options.studies),
            "own decoder": partial(write, run, data, options.studies, [OWN_DECODER]),
        }
        least = dict.fromkeys(ways, float("inf"))
        for _ in range(options.rounds):
            for name, way in ways.items():
                started = time.process_time()
                way()
                least[name] = min(least[name], time.process_time() - started)
        took = " | ".join(f"{seconds:.1f}" for seconds in least.values())
        ratios = " | ".join(f"{least['probe'] / least[name]:.2f}" for name in ("generate", "own decoder"))
        studies = len(probed(run, data, options.studies))
        print(f"| {folder.name} | {run.card.method} | {studies} | {took} | {ratios} |", flush=True)


if __name__ == "__main__":
    main()
