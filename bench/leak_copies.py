"""Which copies of an image ``radweave data check`` finds in another split, and how often it is wrong.

    python bench/leak_copies.py --iu IU_XRAY_FOLDER --images 3

Each image is changed in 24 ways and put into the test part; all images stand in the training part. False alarms are
counted among the images of different patients in different parts of the set as it is. Prints Markdown tables.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from radweave.data.dataset import Dataset
from radweave.data.importers import ImportOptions, import_dataset
from radweave.data.leaks.images import ImageIndex
from radweave.io.images import read_radiograph
from radweave.phantom.study import write_phantom_dataset

Pixels = NDArray[np.float32]
Change = Callable[[Pixels], Pixels]


def as_image(pixels: Pixels) -> Image.Image:
    return Image.fromarray(np.rint(pixels.clip(0, 1) * 255).astype(np.uint8))


def as_pixels(image: Image.Image) -> Pixels:
    return np.asarray(image, dtype=np.float32) / 255


def jpeg(quality: int) -> Change:
    def change(pixels: Pixels) -> Pixels:
        buffer = io.BytesIO()
        as_image(pixels).save(buffer, "JPEG", quality=quality)
        return as_pixels(Image.open(buffer))

    return change


def resized(across: float, down: float) -> Change:
    def change(pixels: Pixels) -> Pixels:
        size = round(pixels.shape[1] * across), round(pixels.shape[0] * down)
        return as_pixels(as_image(pixels).resize(size, Image.Resampling.BICUBIC))

    return change


def cropped(left: float, top: float, right: float, bottom: float) -> Change:
    def change(pixels: Pixels) -> Pixels:
        height, width = pixels.shape
        rows = slice(round(top * height), height - round(bottom * height))
        return pixels[rows, round(left * width) : width - round(right * width)]

    return change


def turned(degrees: float) -> Change:
    return lambda pixels: as_pixels(as_image(pixels).rotate(degrees, Image.Resampling.BICUBIC))


def shifted(count: int) -> Change:
    """Moved right and up by ``count`` pixels; what comes in is black."""

    def change(pixels: Pixels) -> Pixels:
        moved = np.zeros_like(pixels)
        moved[:-count, count:] = pixels[count:, :-count]
        return moved

    return change


def bordered(value: float) -> Change:
    return lambda pixels: np.pad(pixels, round(0.05 * max(pixels.shape)), constant_values=value)


def blurred(radius: float) -> Change:
    return lambda pixels: as_pixels(as_image(pixels).filter(ImageFilter.GaussianBlur(radius)))


def noisy(pixels: Pixels) -> Pixels:
    noise = np.random.default_rng(0).normal(0, 0.06, pixels.shape)
    return (pixels + noise).clip(0, 1).astype(np.float32)


def mirrored(pixels: Pixels) -> Pixels:
    return pixels[:, ::-1]


def several(pixels: Pixels) -> Pixels:
    return jpeg(60)(turned(2)(cropped(0.02, 0.02, 0.02, 0.02)((1 - mirrored(pixels)) ** 0.8)))


KINDS: dict[str, Change] = {
    "saved anew without loss": lambda pixels: as_pixels(as_image(pixels)),
    "JPEG of quality 90": jpeg(90),
    "JPEG of quality 30": jpeg(30),
    "half the size": resized(0.5, 0.5),
    "1.5 times the size": resized(1.5, 1.5),
    "stretched by 5 %": resized(1.05, 1.0),
    "crop of 1 % at each side": cropped(0.01, 0.01, 0.01, 0.01),
    "crop of 3 % at two sides": cropped(0.03, 0.03, 0, 0),
    "crop of 5 % at each side": cropped(0.05, 0.05, 0.05, 0.05),
    "turned by 1 degree": turned(1),
    "turned by 3 degrees": turned(-3),
    "moved by 2 pixels": shifted(2),
    "moved by 10 pixels": shifted(10),
    "mirrored": mirrored,
    "gamma 0.6": lambda pixels: pixels**0.6,
    "gamma 1.6": lambda pixels: pixels**1.6,
    "inverted": lambda pixels: 1 - pixels,
    "brighter by 0.2": lambda pixels: (pixels + 0.2).clip(0, 1),
    "half the contrast": lambda pixels: pixels * 0.5 + 0.25,
    "blurred (radius 2)": blurred(2),
    "black border of 5 %": bordered(0.0),
    "white border of 5 %": bordered(1.0),
    "noise of 6 %": noisy,
    "mirrored, inverted, gamma, crop, turn, JPEG 60": several,
}


def read_all(dataset: Dataset) -> tuple[list[Pixels], list[int], list[str]]:
    """All radiographs, with the number of their patient and their split."""
    pixels, patients, splits = [], [], []
    numbers: dict[str, int] = {}
    for study in dataset.studies():
        for ref in study.images:
            pixels.append(read_radiograph(dataset.image_path(ref.path)).pixels)
            patients.append(numbers.setdefault(study.patient_id, len(numbers)))
            splits.append(study.split or "train")
    return pixels, patients, splits


def found_by_kind(pixels: list[Pixels], patients: list[int], count: int) -> dict[str, int]:
    """Of ``count`` images, how many are found again in each of their changed forms."""
    chosen = np.random.default_rng(5).choice(len(pixels), count, replace=False).tolist()
    index = ImageIndex()
    for item, image in enumerate(pixels):
        index.add(item, "train", image)
    found = {}
    weakest = index.least_similarity(lambda item: patients[item])
    for kind, change in KINDS.items():
        for item in chosen:
            index.add(item, kind, change(pixels[item]))
        found[kind] = sum(pair.item == pair.other for pair in index.pairs_across(kind, "train", weakest=weakest))
    return found


def false_alarms(pixels: list[Pixels], patients: list[int], splits: list[str]) -> str:
    """Pairs of different patients in different splits that are taken for one picture."""
    index = ImageIndex()
    start = time.process_time()
    for item, (image, split) in enumerate(zip(pixels, splits, strict=True)):
        index.add(item, split, image)
    added = time.process_time() - start
    start = time.process_time()
    weakest = index.least_similarity(lambda item: patients[item])
    order = (("val", "train"), ("test", "train"), ("test", "val"))
    pairs = [pair for names in order for pair in index.pairs_across(*names, weakest=weakest)]
    compared = time.process_time() - start
    wrong = [(pair.item, pair.other) for pair in pairs if patients[pair.item] != patients[pair.other]]
    counts = {split: splits.count(split) for split in ("train", "val", "test")}
    signatures = list(index.signatures.values())
    size = sum(sum(a.nbytes for a in (*one.thumbnails, *one.descriptors)) for one in signatures)
    held_out = counts["val"] + counts["test"]
    return (
        f"{len(pixels)} images ({counts}), least likeness {weakest:.2f}: {len(wrong)} false alarms {wrong[:20]}; "
        f"{added / len(pixels) * 1e3:.2f} s and {size / len(pixels) / 1e3:.1f} MB per 1,000 images, "
        f"{compared / held_out * 1e3:.1f} s per 1,000 held-out images"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iu", type=Path, help="the IU X-Ray folder with manifest.jsonl")
    parser.add_argument("--images", type=int, default=3)
    parser.add_argument("--phantom", type=int, default=600, help="studies of the phantom")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        phantom = Path(folder) / "phantom"
        sets = {"phantom": write_phantom_dataset(phantom, modality="xray", num_studies=options.phantom, seed=0)}
        if options.iu is not None:
            kept = ImportOptions(link=True, keep="all")
            sets["IU X-Ray"] = import_dataset("iu-xray", options.iu, Path(folder) / "iu", options=kept)
        tables = {}
        for name, dataset in sets.items():
            pixels, patients, splits = read_all(dataset)
            print(f"{name}: {false_alarms(pixels, patients, splits)}", flush=True)
            tables[name] = found_by_kind(pixels, patients, options.images)
    print("\n| kind of copy | " + " | ".join(tables) + " |\n| --- |" + " --- |" * len(tables))
    for kind in KINDS:
        print(f"| {kind} | " + " | ".join(f"{table[kind]} of {options.images}" for table in tables.values()) + " |")
    sums = (f"{sum(table.values())} of {len(KINDS) * options.images}" for table in tables.values())
    print("| all | " + " | ".join(sums) + " |")


if __name__ == "__main__":
    main()
