"""The largest numbers that options take. A test holds that each number has bounds."""

from __future__ import annotations

from typing import Final

MAX_SEED: Final = 2**32 - 1
"""The largest that all generators of random numbers take."""
MAX_RESAMPLES: Final = 100_000
"""Intervals and p-values change in the fourth digit by then; a resample of 600 studies takes some milliseconds."""
MAX_STUDIES: Final = 10_000_000
MAX_BATCH: Final = 65_536
MAX_JOBS: Final = 1024
MAX_SEEDS: Final = 1000
MAX_EPOCHS: Final = 1_000_000
