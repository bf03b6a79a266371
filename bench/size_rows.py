"""What the rows of ``bench_size.py`` make and do. Run by it, in a process of its own for each.

    python bench/size_rows.py make|ready|do ROW FOLDER SIZE

``make`` writes what a row needs, whatever tree is measured; ``ready`` brings the row's caches into the state that it
begins with; ``do`` is what is measured, and may print a JSON object of more figures.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from made_up import made_up_sentence
from numpy.typing import NDArray
from PIL import Image

SEED, SIDE, FULL = 0, 32, (3056, 2544)
BLOCK = 1000
UPDATES = (5, 25)
"""An update is the mean of those between."""
OVERRIDES = [f"data.image_size={SIDE}", "stages.encoder.epochs=0", "model.vision_encoder.start=nothing"]
OLDER_OVERRIDES = [f"data.image_size={SIDE}", "stages.vision.epochs=0"]
TEST_SHARE, VAL_SHARE = 50, 100
"""Every so many studies is one of the split: as many as MIMIC-CXR has."""


class EnoughError(Exception):
    """What is measured is over."""


def named(name: str, *places: str) -> Any:
    """What has that name in the first room of radweave that this tree has: an older one has it elsewhere."""
    for place in places:
        with suppress(ModuleNotFoundError):
            return getattr(import_module(f"radweave.{place}"), name)
    raise ModuleNotFoundError(f"this tree has {name} nowhere among {places}")


def begin_training(folder: Path, out: str, watch: Any, *overrides: str) -> None:
    """Train the baseline until the watch has seen enough, in this tree's place for it or an older one's."""
    train = named("train", "runs.train", "runs")
    older = train.__module__ == "radweave.engine"
    given = [*(OLDER_OVERRIDES if older else OVERRIDES), *overrides]
    with suppress(EnoughError):
        train("baseline", folder / "data", folder / out, overrides=given, watch=watch, overwrite=True)


def training_watch(stage: Callable[[str], Any]) -> Any:
    return named("TrainingWatch", "runs.stages", "stages")(stage=stage)


def sentence(draw: random.Random) -> str:
    """One in ten has a word of a long tail, as misspellings and names give."""
    tail = f"w{int(draw.paretovariate(0.6)) % 50_000} " if draw.random() < 0.1 else ""
    return tail + made_up_sentence(draw)


def make_pairs(folder: Path, size: int) -> None:
    draw = random.Random(SEED)
    with (folder / "pairs.jsonl").open("w", encoding="utf-8") as file:
        for study in range(size):
            ref = [sentence(draw) for _ in range(draw.randint(4, 9))]
            hyp = [kept if draw.random() < 0.5 else sentence(draw) for kept in ref]
            row = {"study_id": f"s{study}", "hyp": " ".join(hyp), "ref": " ".join(ref), "modality": "xray"}
            file.write(json.dumps(row) + "\n")


def small_pictures(size: int) -> Iterator[NDArray[np.uint8]]:
    """Smooth pictures (SIDE, SIDE) that differ from each other as chests do not: each from 5 x 5 random values."""
    drawn = np.random.default_rng(SEED)
    places = np.linspace(0, 4, SIDE)
    tents = np.maximum(0, 1 - np.abs(places[:, None] - np.arange(5))).astype(np.float32)
    for start in range(0, size, BLOCK):
        coarse = drawn.integers(0, 256, (min(BLOCK, size - start), 5, 5)).astype(np.float32)
        yield from np.rint(tents @ coarse @ tents.T).astype(np.uint8)


def full_pictures(size: int) -> Iterator[NDArray[np.uint8]]:
    """Pictures as large as MIMIC-CXR's."""
    y, x = np.mgrid[-1 : 1 : FULL[0] * 1j, -1 : 1 : FULL[1] * 1j]
    for number in range(size):
        drawn = np.random.default_rng(number)
        bumps = sum(40 * np.cos(a * x + b) * np.cos(c * y + d) for a, b, c, d in drawn.uniform(1, 6, (4, 4)))
        yield np.clip(128 + bumps + drawn.normal(0, 2, x.shape), 0, 255).astype(np.uint8)


def make_source(folder: Path, size: int, *, full: bool = False) -> None:
    """A table and a folder of pictures, as a hospital might export them."""
    draw, source = random.Random(SEED), folder / "source"
    source.mkdir()
    with (source / "reports.csv").open("w", encoding="utf-8") as table:
        table.write("study_id,patient_id,image,view,findings,split\n")
        for number, pixels in enumerate(full_pictures(size) if full else small_pictures(size)):
            path = Path(str(number // BLOCK)) / f"{number}.{'jpg' if full else 'png'}"
            (source / path).parent.mkdir(exist_ok=True)
            picture = Image.fromarray(pixels)
            picture.save(source / path, quality=95) if full else picture.save(source / path, compress_level=1)
            split = "test" if number % TEST_SHARE == 0 else "val" if number % VAL_SHARE == 1 else "train"
            text = " ".join(sentence(draw) for _ in range(draw.randint(4, 9)))
            table.write(f"s{number},p{number},{path},PA,{text},{split}\n")


def make_data(folder: Path, size: int, *, full: bool = False) -> None:
    """The data set of a source, as it is imported without a look at the pictures."""
    from radweave.data.importers import ImportOptions, import_dataset

    if not (folder / "source").exists():
        make_source(folder, size, full=full)
    import_dataset("folder", folder / "source", folder / "data", options=ImportOptions(verify=False, link=True))


def nothing(folder: Path, size: int) -> None: ...


def no_import(folder: Path, size: int) -> None:
    shutil.rmtree(folder / "imported", ignore_errors=True)


def no_cache(folder: Path, size: int) -> None:
    shutil.rmtree(folder / "data" / ".cache", ignore_errors=True)


def a_cache(folder: Path, size: int) -> None:
    """Everything that a first start of this tree keeps."""
    with redirect_stdout(StringIO()):
        begin(folder, size)


def a_run(folder: Path, size: int) -> None:
    """A baseline that this tree trained for one update, to draft with, and what its first start keeps."""
    a_cache(folder, size)
    begin_training(folder, "run", None, "stages.report.max_steps=1", "decoding.max_new_tokens=24")


def do_import(folder: Path, size: int) -> None:
    from radweave.data.importers import ImportOptions, import_dataset

    import_dataset("folder", folder / "source", folder / "imported", options=ImportOptions(link=True))


def check(folder: Path, size: int, *, read_images: bool = True) -> None:
    from radweave.data.check import check_dataset

    report = check_dataset(folder / "data", read_images=read_images)
    print(json.dumps({"exit_code": report.exit_code, "warnings": sum(fault.count for fault in report.warnings)}))


def cache(folder: Path, size: int) -> None:
    from radweave.data.dataset import Dataset

    build_cache = named("build_cache", "data.cache.images", "data.cache")
    build_cache(Dataset.open(folder / "data"), size=224 if folder.name.startswith("full") else SIDE)


def begin(folder: Path, size: int) -> None:
    """Start a training of the baseline, and stop where its first stage begins."""

    def began(name: str) -> Any:
        raise EnoughError

    begin_training(folder, "begun", training_watch(began))


def updates(folder: Path, size: int) -> None:
    """Some updates of the baseline; prints the CPU milliseconds of one."""
    from radweave.engine.loop import Watch

    times: dict[int, float] = {}

    def step(number: int, total: int, figures: dict[str, float]) -> None:
        times[number] = time.process_time()
        if number == UPDATES[1]:
            one = (times[UPDATES[1]] - times[UPDATES[0]]) / (UPDATES[1] - UPDATES[0])
            print(json.dumps({"update_ms": one * 1000, "updates": total}))
            raise EnoughError

    more = [f"data.{option}" for option in ("keep_features=false", "keep_stages=false")]
    more += ["stages.report.epochs=1", "stages.report.batch_size=16"]
    begin_training(folder, "begun", training_watch(lambda name: Watch(step=step)), *more)


def draft(folder: Path, size: int) -> None:
    restore = named("restore", "runs.restore", "runs")
    generate_split = named("generate_split", "generate.split", "predict")
    run = restore(folder / "run")
    older = hasattr(run, "predictor")
    predictor = run.predictor() if older else named("Predictor", "generate.predictor").of(run)
    done = generate_split(run, predictor, folder / "data", "test", folder / "drafts.jsonl", overwrite=True)
    print(json.dumps({"reports": done.written}))


def evaluate(folder: Path, size: int) -> None:
    """Label tables, floors, the published protocol beside, 1,000 resamples; without METEOR."""
    places = "evaluation.commands.evaluate", "evaluation.commands"
    request = named("EvaluateRequest", *places)(pairs=(folder / "pairs.jsonl",), meteor=False, out=folder / "scores")
    shutil.rmtree(folder / "scores", ignore_errors=True)
    with redirect_stdout(StringIO()):
        named("run_evaluate", *places)(request)


def label(folder: Path, size: int) -> None:
    places = "evaluation.commands.label", "evaluation.label_command"
    request = {"reports": folder / "pairs.jsonl", "text_field": "ref", "out": folder / "labels.jsonl"}
    named("run_label", *places)(named("LabelRequest", *places)(**request, overwrite=True))


def full(make: Callable[..., None]) -> Callable[[Path, int], None]:
    return lambda folder, size: make(folder, size, full=True)


def text_only(folder: Path, size: int) -> None:
    check(folder, size, read_images=False)


# What it needs, how it begins, what is measured. What two rows need is made once.
ROWS: dict[str, tuple[str, Callable[[Path, int], None], Callable[[Path, int], None]]] = {
    "import": ("source", no_import, do_import),
    "check": ("data", nothing, check),
    "check without images": ("data", nothing, text_only),
    "cache": ("data", no_cache, cache),
    "start": ("data", a_cache, begin),
    "update": ("data", a_cache, updates),
    "draft": ("data", a_run, draft),
    "evaluate": ("pairs", nothing, evaluate),
    "label": ("pairs", nothing, label),
    "full import": ("full source", no_import, do_import),
    "full check": ("full data", nothing, check),
    "full cache": ("full data", no_cache, cache),
}
MAKE: dict[str, Callable[[Path, int], None]] = {
    "source": make_source,
    "data": make_data,
    "pairs": make_pairs,
    "full source": full(make_source),
    "full data": full(make_data),
}


def main() -> None:
    what, row, folder, size = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
    needed, ready, do = ROWS[row]
    place = folder / (needed.rpartition(" ")[2] if needed != "pairs" else "pairs.jsonl")
    if what == "make" and not place.exists():
        MAKE[needed](folder, size)
    if what == "ready":
        ready(folder, size)
    if what == "do":
        do(folder, size)


if __name__ == "__main__":
    main()
