"""How a report would be worded: the weights over training reports that sources give, mixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from radweave.base.config import Config
from radweave.drafting.nearby import prepared
from radweave.drafting.smoothers import Floats, Mask
from radweave.evaluation.metrics.pairwise import PairwiseWording, WordingWeights

NAMES = ("kernels", "recall")
"""The sources that say how a report would be worded."""
STEPS = 10
"""Shares are tried in so many steps from one source to the other."""


class WordingConfig(Config):
    """How much each source that remembers reports decides the wording. With ``fitted`` these are the shares where only
    one of them is there; where both are, those by which the training reports are worded best, out of fold.
    """

    kernels: float = Field(default=0.7, ge=0)
    recall: float = Field(default=0.3, ge=0)
    fitted: bool = False

    def build(self) -> Wording:
        return Wording(self)


class Wording(nn.Module):
    """Shares of the sources; among the weights of a run where they are fitted."""

    shares: Tensor

    def __init__(self, config: WordingConfig) -> None:
        super().__init__()
        self.fitted = config.fitted
        known = torch.tensor([config.kernels, config.recall], dtype=torch.float64)
        self.register_buffer("shares", known, persistent=config.fitted)

    def mixed(self, weights: Mapping[str, Floats], barred: Mask) -> Floats:
        """The weights (J,) of the sources that have some, mixed; equal ones where none has."""
        shares = dict(zip(NAMES, self.shares.tolist(), strict=True))
        kept = {name: shares[name] for name in weights if shares[name] > 0}
        if not kept:
            allowed = np.where(barred, 0.0, 1.0)
            return np.asarray(allowed / max(float(allowed.sum()), 1.0))
        total = sum(kept.values())
        return np.asarray(np.sum([weights[name] * (share / total) for name, share in kept.items()], axis=0))

    def fit(self, weights: Mapping[str, Floats], texts: Sequence[str], patients: NDArray[Any]) -> None:
        """Take the shares by which J training reports are worded best.

        Args:
            weights: of each source (J, J), those that it gives the reports for each study, none to its own patient's.
            texts: the reports.
            patients: (J,), whose each is.
        """
        if not self.fitted or set(weights) != set(NAMES):
            return
        words = prepared(texts)
        worth = PairwiseWording(words, words).blocks(WordingWeights(bleu=0.0))
        utilities = np.concatenate([block for _, block in worth])
        own = patients[:, None] == patients[None]
        by_kernels, by_recall = (weights[name].astype(np.float32) @ utilities.T for name in NAMES)
        best = -np.inf
        for share in np.linspace(0, 1, STEPS + 1).tolist():
            chosen = np.where(own, -np.inf, share * by_kernels + (1 - share) * by_recall).argmax(axis=1)
            reached = float(utilities[chosen, np.arange(len(chosen))].mean())
            if reached > best:
                best = reached
                self.shares.copy_(torch.tensor([share, 1 - share], dtype=torch.float64))
