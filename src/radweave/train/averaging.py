"""A running average of the weights that train: it is what validation sees and what a stage leaves behind.

Source: Polyak and Juditsky, "Acceleration of stochastic approximation by averaging", 1992; the exponential form is that
of common practice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class AveragedWeights:
    """a <- d a + (1 - d) w after every update, with d = min(decay, (1 + n) / (10 + n)) of update number n.

    The first updates count less, since the average begins at weights that know nothing.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
        self.tensors: dict[str, Tensor] = {name: value.detach().clone() for name, value in self._trained.items()}

    @torch.no_grad()
    def update(self, number: int) -> None:
        """Take in the weights after update ``number``, from 0."""
        kept = min(self.decay, (1 + number) / (10 + number))
        for name, value in self._trained.items():
            self.tensors[name].lerp_(value, 1 - kept)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Go on from a saved average."""
        for name, value in tensors.items():
            self.tensors[name].copy_(value)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has the averaged weights inside, and its own again afterwards."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def leave(self) -> None:
        """Leave the averaged weights in the model."""
        for name, value in self._trained.items():
            value.copy_(self.tensors[name])

    @torch.no_grad()
    def _swap(self) -> None:
        for name, value in self._trained.items():
            own = value.detach().clone()
            value.copy_(self.tensors[name])
            self.tensors[name].copy_(own)
