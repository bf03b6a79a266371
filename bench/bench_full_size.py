"""CPU time of a radiograph of full size into the cache and through the check, and of the nearest-image floor.

    python bench/bench_full_size.py

The files are made here: 2,544 x 3,056 pixels, as MIMIC-CXR has them. Time of this process and of the reading process.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from radweave.data.leaks.images import thumbnail, without_borders
from radweave.data.square import to_square
from radweave.inference.floors import nearest_rows
from radweave.io.images import radiograph_from_raster, read_raster
from radweave.io.raster_parse import parse_raster

ROUNDS = 7
REQUEST = {"max_side_px": 16_384, "max_pixels": 100 << 20}
BANK, QUERIES, VALUES = 222_000, 64, 1024


def cpu_ms(work: Callable[[], object]) -> float:
    """Least CPU time of a few rounds."""
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times) * 1000


def picture() -> np.ndarray:
    y, x = np.mgrid[-1:1:3056j, -1:1:2544j]
    noise = np.random.default_rng(0).normal(0, 2, x.shape)
    return np.clip(128 + 90 * np.cos(2 * x) * np.cos(y) + noise, 0, 255).astype(np.uint8)


def measure(path: Path) -> dict[str, float]:
    whole, raster = {**REQUEST, "path": str(path)}, read_raster(path)
    pixels = radiograph_from_raster(path, raster).pixels
    decode, both = cpu_ms(lambda: parse_raster({**whole, "doubts": False})), cpu_ms(lambda: parse_raster(whole))
    bare = cpu_ms(lambda: radiograph_from_raster(path, raster, doubts=False))
    doubted = cpu_ms(lambda: radiograph_from_raster(path, raster))
    look = cpu_ms(lambda: thumbnail(without_borders(pixels)))
    square = cpu_ms(lambda: to_square(pixels, 224))
    return {"decoding alone": cpu_ms(lambda: np.asarray(Image.open(path))), "into the cache": decode + bare + square,
            "through the check": both + doubted + look}  # fmt: skip


def main() -> None:
    print(f"{os.cpu_count()} cores; one thread where OMP_NUM_THREADS=1\n")
    with tempfile.TemporaryDirectory() as folder:
        for name, options in (("full.jpg", {"quality": 95}), ("full.png", {"compress_level": 1})):
            Image.fromarray(picture()).save(Path(folder) / name, **options)
            for what, found in measure(Path(folder) / name).items():
                print(f"{name:10} {what:20} {found:7.1f} ms of CPU")
    drawn = np.random.default_rng(0)
    bank = drawn.integers(-128, 128, (BANK, VALUES), dtype=np.int16)
    queries, allowed = bank[:QUERIES], np.ones((QUERIES, BANK), dtype=bool)
    print(f"\nnearest of {BANK:,} thumbnails, {QUERIES} at once: "
          f"{cpu_ms(lambda: nearest_rows(bank, queries, allowed)) / QUERIES:.1f} ms of CPU each")  # fmt: skip


if __name__ == "__main__":
    main()
