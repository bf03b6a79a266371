"""Do the memories of AM-MRG reach the drafts? Trained runs draft with both memories and with both emptied, by hand.

    python bench/am_mrg_memories.py DATASET RUN [RUN ...]

The test split is drafted by the run's own decoder and by expected utility, with the share of own wording that training
fitted. Printed: the share of drafts that change when nothing is remembered, and findings F1 before and after.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from radweave.data.cache.images import build_cache
from radweave.data.dataset import Dataset
from radweave.engine.prepare import prepare
from radweave.engine.restore import Run, restore
from radweave.inference.predictor import Predictor
from radweave.methods.am_mrg.memory import HopfieldMemory
from radweave.methods.am_mrg.model import AmMrgModel
from radweave.metrics.clinical import ClinicalKey
from radweave.metrics.commands import score
from radweave.nn.memory.bank import Bank

F1 = ClinicalKey("negative", "without_no_finding", "micro", "f1")
WAYS = {"own decoder": "kind=likelihood", "by utility": "kind=expected_utility"}


def forget(run: Run) -> None:
    """Empty both memories."""
    assert isinstance(run.model, AmMrgModel)
    for memory in (run.model.visual_memory, run.model.report_memory):
        assert isinstance(memory, HopfieldMemory)
        memory.remember(Bank({"patterns": torch.zeros(0, memory.pattern_dim)}, ()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    options = parser.parse_args()
    data = Dataset.open(options.dataset)
    references = [study.report or "" for study in data.studies("test")]
    for folder in options.runs:
        run = restore(folder)
        cache = build_cache(data, size=run.experiment.data.image_size)
        examples = prepare(data, "test", run.experiment, run.tokenizer, cache, need_text=False).examples
        drafts: dict[str, list[list[str]]] = {name: [] for name in WAYS}
        for _ in range(2):
            for name, kind in WAYS.items():
                predictor = Predictor.of(run, decoding=[kind])
                drafts[name].append([report.text for report in predictor.reports(examples)])
            forget(run)
        for name, (before, after) in drafts.items():
            changed = sum(a != b for a, b in zip(before, after, strict=True)) / len(before)
            f1 = [score(texts, references).clinical_statistics[F1].corpus() for texts in (before, after)]
            print(f"{folder.name}, {name}: {changed:.0%} change; F1 {f1[0]:.3f}, without {f1[1]:.3f}", flush=True)


if __name__ == "__main__":
    main()
