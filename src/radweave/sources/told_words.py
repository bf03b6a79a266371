"""How alike what is told of studies is: bags of its tokens, and their part in the distance between two studies."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from radweave.base.batch import Batch
from radweave.base.errors import InputError
from radweave.memory.bank import Bank

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]

COLUMN: Final = "told"
"""The tensor of a bank whose studies were told something."""
BAGS: Final = 512
"""Tokens share places in a bag by their number; two rarely meet in texts that are a line long."""
SHARE: Final = 0.25
"""What is told counts this much beside how studies look. It was not tuned."""


def bags_of(batch: Batch) -> Singles | None:
    """Bags (B, BAGS) of length 1, 0 of a study that is told nothing; None where none ever is."""
    if batch.told_ids is None or batch.told_mask is None:
        return None
    bags = np.zeros((len(batch), BAGS), dtype=np.float32)
    for row, (ids, mask) in enumerate(zip(batch.told_ids.tolist(), batch.told_mask.tolist(), strict=True)):
        for token in {number for number, there in zip(ids, mask, strict=True) if there}:
            bags[row, token % BAGS] = 1
    return np.asarray(bags / np.maximum(np.linalg.norm(bags, axis=1, keepdims=True), 1))


def kept_bags(bank: Bank) -> Singles | None:
    """The bags (J, BAGS) of a bank; None where its studies were told nothing.

    Raises:
        InputError: if they are none.
    """
    tensor = bank.tensors.get(COLUMN)
    if tensor is None:
        return None
    if tensor.shape != (len(bank), BAGS) or not bool(tensor.isfinite().all()):
        got, expected = list(tensor.shape), [len(bank), BAGS]
        raise InputError("the bank does not fit this model", field=COLUMN, got=got, expected=expected)
    return tensor.float().numpy()


def beside(looks: Floats, left: Singles | None, right: Singles) -> Floats:
    """Squared distances (N, J) with what was told of each, about 1 where two are told other things."""
    if left is None:
        left = np.zeros((len(looks), BAGS), dtype=np.float32)
    # One study at a time: alone and in any batch the same.
    apart = np.stack([((row[None].astype(np.float64) - right) ** 2).sum(axis=1) for row in left]) / 2
    return (looks + SHARE * apart) / (1 + SHARE)
