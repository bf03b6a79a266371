"""The training images of a run, one after the other, read only when asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from radweave.data.loader import Example


class TrainingPictures(Sequence[NDArray[np.uint8]]):
    """Every view (S, S) or scan (D, H, W) of some examples, as the model sees it; ``patients`` says whose it is."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self.patients = [example.patient_id for example in examples for _ in example.rows]
        self._places = [(example.source, row) for example in examples for row in example.rows]

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, place: int) -> NDArray[np.uint8]: ...
    @overload
    def __getitem__(self, place: slice) -> list[NDArray[np.uint8]]: ...
    def __getitem__(self, place: int | slice) -> NDArray[np.uint8] | list[NDArray[np.uint8]]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        source, row = self._places[place]
        return np.asarray(source[row])
