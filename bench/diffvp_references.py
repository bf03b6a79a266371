"""What the reference is worth to the reports of a `diffvp` run: nats per token after other references less the own.

    python bench/diffvp_references.py RUN DATASET --split test --studies 100

- another draw: another study of the run's pool. Every draw is as likely as the run's own, so that its expected cost is
  0 whatever the model does; the mean of the absolute costs of the studies says how much a draw moves.
- another study: the scan of the next study of the split, which has findings of its own.
- itself: the study, from which nothing differs.

Each cost is taken beside image and diagnosis, and where the decoder reads the difference alone. Beside both (95 %
bootstrap intervals over patients): the squared change of the prompt relative to its spread
between studies, and the share of importance of the top 8 latents.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from radweave.core.batch import Batch
from radweave.data.cache.images import build_cache
from radweave.data.dataset import Dataset
from radweave.engine.prepare import prepare
from radweave.engine.restore import restore
from radweave.experiments.probe import Alone, Cost, encoded_batches
from radweave.methods.diffvp.difference import top_share
from radweave.methods.diffvp.model import DiffvpModel, Forward
from radweave.methods.diffvp.pool import STUDY_DRAW, Reference
from radweave.methods.model import prompted_nats
from radweave.metrics.statistics import cluster_index, mean_statistic
from radweave.nn.connector import ViewTokens

Other = Callable[[ViewTokens], ViewTokens]
"""References in place of the drawn ones, made of the scans of a batch."""


@dataclass
class Compared(Forward):
    """A batch whose studies are compared with ``other``; None is the draw."""

    other: Other | None = None

    def reference(self, *, pixels: bool = False) -> tuple[ViewTokens, Reference]:
        target, drawn = super().reference(pixels=pixels)
        return target, drawn if self.other is None else replace(drawn, views=self.other(target))


def next_study(scans: ViewTokens) -> ViewTokens:
    return ViewTokens(scans.tokens.roll(-1, 0), scans.view_mask.roll(-1, 0), scans.view_ids.roll(-1, 0), scans.grid)


@dataclass(frozen=True, slots=True)
class Reading:
    """Per study: nats per token beside the other inputs and of the difference alone, the prompt of differences, and
    the share of the top 8 latents.
    """

    nats: Tensor
    alone: Tensor
    prompt: Tensor
    top: Tensor

    @classmethod
    def of(cls, model: DiffvpModel, batches: Sequence[Batch], key: int, other: Other | None) -> Reading:
        rows = []
        for batch in batches:
            seen = Compared(model, batch, key, other)
            with model.reading_by(Alone("difference")):
                alone = prompted_nats(Compared(model, batch, key, other))
            difference = seen.comparison
            rows.append((prompted_nats(seen), alone, difference.prompt.flatten(1), top_share(difference.importance())))
        return cls(*(torch.cat(part).double().cpu() for part in zip(*rows, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--split", choices=("val", "test"), default="test")
    parser.add_argument("--studies", type=int, default=100)
    options = parser.parse_args()
    run, dataset = restore(options.run), Dataset.open(options.dataset)
    model, data = run.model, run.experiment.data
    assert isinstance(model, DiffvpModel)
    cache = build_cache(dataset, size=data.image_size, ct=data.ct)
    found = prepare(dataset, options.split, run.experiment, run.tokenizer, cache, need_text=True).examples
    order = np.random.default_rng(run.experiment.seed).permutation(len(found))[: options.studies]
    examples = [found[number] for number in order]
    clusters = cluster_index([example.patient_id for example in examples])
    with torch.inference_mode():
        batches = list(encoded_batches(model, examples, int(run.tokenizer.pad_token_id)))
        own = Reading.of(model, batches, STUDY_DRAW, None)
        spread = (own.prompt - own.prompt.mean(0)).square().sum()
        own_top = float(own.top.mean())
        nats = f"{float(own.nats.mean()):.4f} nats/token, alone {float(own.alone.mean()):.4f}"
        print(f"own: {nats}, of {len(examples)} studies; top 8 {own_top:.3f}")
        others: dict[str, tuple[int, Other | None]] = {
            "another draw": (1, None),
            "another study": (STUDY_DRAW, next_study),
            "itself": (STUDY_DRAW, lambda scans: scans),
        }
        for name, (key, other) in others.items():
            after = Reading.of(model, batches, key, other)
            moved = float((after.prompt - own.prompt).square().sum() / spread)
            costs = [(after.nats - own.nats).numpy(), (after.alone - own.alone).numpy()]
            beside, alone = (
                f"{Cost.of(mean_statistic(cost), clusters)}, absolute {np.abs(cost).mean():.4f}" for cost in costs
            )
            top = float(after.top.mean())
            print(f"{name}: {beside}; alone {alone}; prompt {moved:.3f}; top 8 {top:.3f}")


if __name__ == "__main__":
    main()
