"""Training on features that were computed once against encoding the images in every step: the ratio in one run.

    python bench/bench_features.py [--studies 400] [--epochs 3]

The report stage of the baseline with a frozen encoder, tiny parts, 128 px phantom radiographs, no augmentation. The two
ways take turns in one process; their loss curves are compared. The time to compute the features is given beside.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from radweave.engine.loop import Watch
from radweave.engine.stages import TrainingWatch
from radweave.engine.train import train
from radweave.phantom.study import write_phantom_dataset

BATCH = 16
SETTINGS = [
    f"stages.report.batch_size={BATCH}",
    "stages.vision.epochs=0",
    "stages.report.finetune.vision_encoder=frozen",
    "stages.report.augment=false",
    "stages.report.select=loss",
]


def run(dataset: Path, out: Path, overrides: list[str]) -> tuple[list[float], float, float]:
    """Losses of all steps, studies per second (median step, loading included), seconds until the first step."""
    started = time.perf_counter()
    times: list[float] = []
    watch = TrainingWatch(stage=lambda name: Watch(step=lambda *_: times.append(time.perf_counter())))
    train("baseline", dataset, out, overrides=overrides, watch=watch)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    seconds = sorted(after - before for before, after in pairwise(times))
    return [row["loss"] for row in rows if "loss" in row], BATCH / seconds[len(seconds) // 2], times[0] - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=400)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("overrides", nargs="*", help="other parts, for example a larger encoder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dataset = write_phantom_dataset(folder / "data", modality="xray", num_studies=options.studies, seed=0)
        settings = [*SETTINGS, f"stages.report.epochs={options.epochs}", *options.overrides]
        slow = run(dataset.path, folder / "slow", [*settings, "data.keep_features=false"])
        fast = run(dataset.path, folder / "fast", settings)
        again = run(dataset.path, folder / "again", settings)
    apart = max(abs(a - b) for a, b in zip(slow[0], fast[0], strict=True))
    print(f"encoding every step {slow[1]:7.1f} studies/s (median step)")
    print(f"features once       {fast[1]:7.1f} studies/s, {fast[1] / slow[1]:.1f} times")
    print(f"largest difference of the loss over {len(slow[0])} steps: {apart:.1e}")
    print(
        f"seconds before the first step: {slow[2]:.1f} without, {fast[2]:.1f} with, {again[2]:.1f} once they are there"
    )


if __name__ == "__main__":
    main()
