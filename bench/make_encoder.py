"""Make the start weights of the tiny presets' encoders from phantoms: minutes on two cores for each.

    python bench/make_encoder.py WORK [--only scans]

Draws phantom studies of a seed that no benchmark uses, trains the stage ``encoder`` of the baseline on them from
nothing, and writes the encoder in bfloat16 beside ``radweave/nn/vision/pretrained.py``. It prints the file's SHA-256,
which goes into that module: the file is used only if it has that one.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from radweave.core.storage import sha256_file
from radweave.core.study import Modality
from radweave.engine.loop import Watch
from radweave.engine.stages import TrainingWatch
from radweave.engine.train import train
from radweave.nn.vision.pretrained import RADIOGRAPHS, SCANS, StartWeights
from radweave.phantom.study import PhantomOptions, write_phantom_dataset


@dataclass(frozen=True, slots=True)
class Start:
    """What the weights of one encoder are made from. ``part`` is the encoder's name in a run's weights."""

    weights: StartWeights
    modality: Modality
    preset: str
    part: str
    seed: int
    studies: int
    passes: int
    batch_size: int
    options: PhantomOptions


STARTS = {
    "radiographs": Start(
        RADIOGRAPHS,
        "xray",
        "tiny",
        "vision_encoder.backbone.",
        seed=20_260_722,
        studies=2200,
        passes=10,
        batch_size=32,
        options=PhantomOptions(prevalence="balanced", image_size=192),
    ),
    "scans": Start(
        SCANS,
        "ct",
        "tiny-ct",
        "vision_encoder.",
        seed=4711,
        studies=3000,
        passes=20,
        batch_size=16,
        options=PhantomOptions(prevalence="balanced", turnover="real", volume_size=64, slices=32),
    ),
}


def watch_of(name: str) -> Watch:
    return Watch(epoch=lambda number, figures: print(f"{name}: pass {number + 1}, {figures}", flush=True))


def make(start: Start, work: Path, jobs: int) -> None:
    """Draw, train, and write the file."""
    data = work / "phantom"
    if not data.is_dir():
        write_phantom_dataset(
            data,
            modality=start.modality,
            num_studies=start.studies,
            seed=start.seed,
            options=start.options,
            jobs=jobs,
        )
    overrides = (
        "model.vision_encoder.start=nothing",
        "stages.encoder.optimizer.learning_rate=2e-3",  # twice that of a start from something
        f"stages.encoder.epochs={start.passes}",
        f"stages.encoder.batch_size={start.batch_size}",
        "stages.report.epochs=0",
        "decoding.expected_utility.samples=1",
        "decoding.max_new_tokens=16",
    )
    watch = TrainingWatch(stage=watch_of, note=print)
    train("baseline", data, work / "run", preset=start.preset, overrides=overrides, overwrite=True, watch=watch)
    weights = load_file(str(work / "run" / "weights.safetensors"))
    encoder = {
        name.removeprefix(start.part): (value.to(torch.bfloat16) if value.is_floating_point() else value).contiguous()
        for name, value in weights.items()
        if name.startswith(start.part)
    }
    path = start.weights.path
    save_file(encoder, str(path))
    path.chmod(0o644)
    print(f"{path.name}: {path.stat().st_size:,} bytes, SHA-256 {sha256_file(path)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path, help="folder for the phantoms and the runs")
    parser.add_argument("--only", choices=STARTS, help="one of the encoders")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    for name, start in STARTS.items():
        if options.only in (None, name):
            make(start, options.work / name, options.jobs)


if __name__ == "__main__":
    main()
