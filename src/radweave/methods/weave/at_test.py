"""What may be set for a trained run: whether a study is compared with the one before it."""

from __future__ import annotations

from radweave.base.config import Config


class AtTest(Config):
    """Settings of a trained run. With ``priors`` false a study's prior is not looked at, as if there were none."""

    priors: bool = True
