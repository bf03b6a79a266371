"""Do Eq. 1's distances of DiffRGenNet tell a study from a case whose findings differ? Trained runs, by hand.

    python bench/diffrgennet_distances.py DATASET RUN [RUN ...]

For every study of the validation and test splits and each of its recalled cases: the distances between them, averaged
over tokens, against the number of classes that only one of the two reports affirms. Spearman's correlation of each
distance with that number, over all pairs; cosine and dot product measure nearness, so that theirs should be negative.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from scipy.stats import spearmanr

from radweave.data.cache.images import build_cache
from radweave.data.dataset import Dataset
from radweave.engine.prepare import prepare
from radweave.engine.restore import Run, restore
from radweave.experiments.probe import encoded_batches
from radweave.labels import get_labeler
from radweave.methods.diffrgennet.difference import METRICS
from radweave.methods.diffrgennet.model import DiffRGenNetModel, Forward
from radweave.metrics.clinical import is_positive, states_of


def correlations(run: Run, data: Dataset, splits: Sequence[str] = ("val", "test")) -> tuple[dict[str, float], int]:
    """Spearman's correlation of each distance with the classes that differ, and the number of pairs."""
    model, labeler = run.model, get_labeler(run.experiment.data.label_set)
    assert isinstance(model, DiffRGenNetModel)
    cache = build_cache(data, size=run.experiment.data.image_size)
    apart: list[list[float]] = []
    mismatch: list[int] = []
    for split in splits:
        examples = prepare(data, split, run.experiment, run.tokenizer, cache, need_text=True).examples
        for batch in encoded_batches(model, examples, int(run.tokenizer.pad_token_id)):
            with torch.no_grad():
                study = Forward(model, batch).study
            for row, report in enumerate(batch.reports or ()):
                texts = [report, *(case.text for case in study.recalled.cases[row])]
                own, *others = is_positive(states_of(texts, labeler), "negative")
                mismatch += [int((own != other).sum()) for other in others]
                apart += study.apart[row, : len(others)].tolist()
    columns = zip(METRICS, zip(*apart, strict=True), strict=True)
    return {name: float(spearmanr(values, mismatch)[0]) for name, values in columns}, len(mismatch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    options = parser.parse_args()
    data = Dataset.open(options.dataset)
    for folder in options.runs:
        found, pairs = correlations(restore(folder), data)
        print(f"{folder}: {', '.join(f'{name} {value:+.3f}' for name, value in found.items())}; {pairs} pairs")


if __name__ == "__main__":
    main()
