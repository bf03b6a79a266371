"""What may be set for a trained run: which references there are, and which one a study gets.

Source: the paper's Tables 5 and 7 to 10 (appendices C and F), which train nothing: pairings are drawn again, or the
references are exchanged while the studies stay the same.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from radweave.base.config import Config, Seed
from radweave.methods.diffvp.pool import PoolConfig


class AtTest(Config):
    """Settings of a trained run.

    ``pairing_seed`` decides which reference a study gets; null is the run's own seed. ``pool`` are the pool's options,
    which see. ``data`` is the folder of the data set that the references are of, null the one that is reported on;
    ``split`` its split: with ``test`` the references are images of the test split, as in the paper. ``noise`` is the
    deviation of Gaussian noise on the references' pixels, which lie in [0, 1]: with much of it nothing is left of
    them.
    """

    pairing_seed: Seed | None = None
    pool: PoolConfig = PoolConfig()
    data: str | None = None
    split: Literal["train", "test"] = "train"
    noise: float = Field(default=0.0, ge=0, le=10)
