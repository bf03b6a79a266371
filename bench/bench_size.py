"""How cost grows with the number of studies: CPU seconds and peak memory of one command at each size.

    OMP_NUM_THREADS=1 python bench/bench_size.py evaluate 2000 30000 [--profile]

Each size runs in a process of its own, so that its peak memory is its own; CPU seconds are those of that process and
its children, start of Python included. The exponent is that of the last two sizes.

``evaluate``: ``radweave evaluate`` of made-up pairs of some 60 words, with label tables, floors, the published protocol
beside and 1,000 resamples; without METEOR.

``start``: ``radweave train`` up to the first stage, the second time: images of 16 pixels are in the cache, their
files hashed. Give ``--first`` for the first time, which hashes files and reads texts.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path

from bench_evaluation import made_up_sentence

SEED = 0
SIDE = 16


def pairs_file(folder: Path, size: int) -> Path:
    """So many made-up pairs; one sentence in ten has a word of a long tail, as misspellings and names give."""
    draw = random.Random(SEED)

    def sentence() -> str:
        tail = f"w{int(draw.paretovariate(0.6)) % 50_000} " if draw.random() < 0.1 else ""
        return tail + made_up_sentence(draw)

    path = folder / "pairs.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for study in range(size):
            ref = [sentence() for _ in range(draw.randint(4, 9))]
            hyp = [kept if draw.random() < 0.5 else sentence() for kept in ref]
            row = {"study_id": f"s{study}", "hyp": " ".join(hyp), "ref": " ".join(ref), "modality": "xray"}
            file.write(json.dumps(row) + "\n")
    return path


def evaluate(folder: Path) -> None:
    """Score the pairs as the command line does, into a folder."""
    from radweave.evaluation.commands.evaluate import EvaluateRequest, run_evaluate

    with redirect_stdout(StringIO()):
        run_evaluate(EvaluateRequest(pairs=(folder / "pairs.jsonl",), meteor=False, out=folder / "scores"))


def training_set(folder: Path, size: int) -> None:
    """A data set of so many studies, each with a picture of its own, whose images are in the cache already."""
    import numpy as np
    from PIL import Image

    from radweave.base.json_files import write_json
    from radweave.base.study import ImageRef, Study, View
    from radweave.data.cache.arrays import checksum, stamp, write_rows
    from radweave.data.cache.images import cache_key
    from radweave.data.cache.index import CacheIndex
    from radweave.data.dataset import Dataset, DatasetCard, DatasetWriter

    draw, random_pixels = random.Random(SEED), np.random.default_rng(SEED)
    card = DatasetCard(name="made up")
    pictures = folder / "pictures"
    pictures.mkdir()
    rows, sums = {}, []
    pixels = random_pixels.integers(0, 256, (size, SIDE, SIDE), dtype=np.uint8)
    with DatasetWriter(folder / "data", card, link=True) as writer:
        for number in range(size):
            path = f"images/{number // 1000}/{number}.png"
            source = pictures / f"{number}.png"
            Image.fromarray(pixels[number]).save(source, compress_level=1)
            text = " ".join(made_up_sentence(draw) for _ in range(draw.randint(4, 9)))
            labels = {"chexpert14": {"Edema": "positive", "Support Devices": "negative"}}
            writer.add(
                Study(
                    study_id=f"s{number}", patient_id=f"p{number}", report=text, findings=text, labels=labels,
                    split="val" if number % 1000 == 0 else "train",
                    images=(ImageRef(path=path, modality="xray", view=View.PA),),
                ),
                {path: source},
            )  # fmt: skip
            rows[path] = number
            sums.append(checksum(pixels[number]))
    dataset = Dataset.open(folder / "data")
    cache = dataset.path / ".cache" / cache_key(dataset, SIDE, None)
    cache.mkdir(parents=True)
    with write_rows(cache / "pixels.npy", np.uint8, pixels.shape) as give:
        give(pixels)
    stamps = {path: stamp(dataset.path / path) for path in rows}
    index = CacheIndex(rows=rows, unreadable={}, stamps=stamps, sums=tuple(sums), kept=(stamp(cache / "pixels.npy"),))
    write_json(cache / "index.json", index.model_dump())


def start(folder: Path) -> None:
    """Start a training of the baseline, and stop where its first stage begins."""
    from radweave.runs.stages import TrainingWatch
    from radweave.runs.train import train

    class BeganError(Exception):
        """Training begins."""

    def began(_: Path) -> None:
        raise BeganError

    overrides = [f"data.image_size={SIDE}", "stages.eyes.epochs=0", "model.vision_encoder.start=nothing"]
    with suppress(BeganError):
        watch = TrainingWatch(began=began)
        train("baseline", folder / "data", folder / "run", overrides=overrides, watch=watch, overwrite=True)


MAKE: dict[str, Callable[[Path, int], object]] = {"evaluate": pairs_file, "start": training_set}
DO: dict[str, Callable[[Path], None]] = {"evaluate": evaluate, "start": start}


def child(what: str, folder: Path, *, profile: bool) -> None:
    """Do it once in this process, and print CPU seconds and peak memory in MB."""
    if profile:
        import cProfile
        import pstats

        with cProfile.Profile() as profiler:
            DO[what](folder)
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("cumulative").print_stats(45)
    else:
        DO[what](folder)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = sum(usage.ru_utime + usage.ru_stime for usage in used)
    print(json.dumps({"seconds": seconds, "megabytes": max(usage.ru_maxrss for usage in used) / 1024}))


def measure(what: str, size: int, *, profile: bool, first: bool) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as name:
        MAKE[what](Path(name), size)
        if what == "start" and not first:
            subprocess.run([sys.executable, __file__, what, "--child", name], check=True, stdout=subprocess.DEVNULL)
        line = [sys.executable, __file__, what, "--child", name, *(["--profile"] if profile else [])]
        done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True, env=os.environ)
    found = json.loads(done.stdout.splitlines()[-1])
    return found["seconds"], found["megabytes"]


def table(what: str, sizes: Sequence[int], *, profile: bool, first: bool) -> None:
    found: list[tuple[int, float]] = []
    for size in sizes:
        seconds, megabytes = measure(what, size, profile=profile, first=first)
        found.append((size, seconds))
        print(f"{what} {size}: {seconds:.1f} CPU seconds, {megabytes:.0f} MB at the peak", flush=True)
    if len(found) > 1:
        (few, fast), (many, slow) = found[-2:]
        print(f"exponent {math.log(slow / fast) / math.log(many / few):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=sorted(MAKE))
    parser.add_argument("sizes", type=int, nargs="*", default=[2000, 30_000])
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    parser.add_argument("--first", action="store_true", help="start: time the first one")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        child(given.what, given.child, profile=given.profile)
    else:
        table(given.what, given.sizes, profile=given.profile, first=given.first)


if __name__ == "__main__":
    main()
