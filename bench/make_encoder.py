"""Make the start weights of the tiny presets' encoder from phantoms: minutes on two cores.

    python bench/make_encoder.py WORK

Draws 2,200 phantom studies of a seed that no benchmark uses, trains the stage ``encoder`` of the baseline on them from
nothing, and writes the encoder in bfloat16 to ``radweave/nn/vision/phantom_encoder.safetensors``. It prints the file's
SHA-256, which goes into ``radweave/nn/vision/pretrained.py``: the file is used only if it has that one.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from radweave.core.storage import sha256_file
from radweave.engine.loop import Watch
from radweave.engine.stages import TrainingWatch
from radweave.engine.train import train
from radweave.nn.vision.pretrained import WEIGHTS
from radweave.phantom.study import PhantomOptions, write_phantom_dataset

SEED, STUDIES, EDGE, PASSES = 20_260_722, 2200, 192, 10
PART = "vision_encoder.backbone."
OVERRIDES = (
    "model.vision_encoder.start=nothing",
    "stages.encoder.optimizer.learning_rate=2e-3",  # twice that of a start from something
    f"stages.encoder.epochs={PASSES}",
    "stages.report.epochs=0",
)


def watch_of(name: str) -> Watch:
    return Watch(epoch=lambda number, figures: print(f"{name}: pass {number + 1}, {figures}", flush=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path, help="folder for the phantoms and the run")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    data, run = options.work / "phantom", options.work / "run"
    if not data.is_dir():
        drawn = PhantomOptions(prevalence="balanced", image_size=EDGE)
        write_phantom_dataset(data, modality="xray", num_studies=STUDIES, seed=SEED, options=drawn, jobs=options.jobs)
    train("baseline", data, run, overrides=OVERRIDES, overwrite=True, watch=TrainingWatch(stage=watch_of, note=print))
    weights = load_file(str(run / "weights.safetensors"))
    encoder = {
        name.removeprefix(PART): (value.to(torch.bfloat16) if value.is_floating_point() else value).contiguous()
        for name, value in weights.items()
        if name.startswith(PART)
    }
    save_file(encoder, str(WEIGHTS))
    print(f"{WEIGHTS.name}: {WEIGHTS.stat().st_size:,} bytes, SHA-256 {sha256_file(WEIGHTS)}")


if __name__ == "__main__":
    main()
