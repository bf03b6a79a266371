"""Frozen features once: the patch tokens of a frozen encoder, computed before the stage and memory-mapped.

DATASET/.cache/features/KEY/tokens.npy (M, S, D) float32, index.json

The key is a hash of the encoder's weights and record, the pixels, the code and the arithmetic; any change makes a new
store. One that was touched is checked before it is used, and computed again where it is damaged.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from pydantic import ValidationError
from torch import nn

from radweave.base.errors import CannotWriteError, InputError
from radweave.base.hashes import sha256_file, sha256_json
from radweave.base.json_files import read_json, write_json
from radweave.base.storage import temporary_folder, write_folder
from radweave.base.study import Record
from radweave.contract.model import device_of
from radweave.data.cache.arrays import open_rows, stamp, write_rows
from radweave.data.loader import Example, Features

LOGGER: Final = logging.getLogger(__name__)
TOKENS: Final = "tokens.npy"
BATCH = 32
MOST_VOXELS = 1 << 24
"""Of a batch; large scans go in smaller batches."""


class _Index(Record):
    """``index.json``: the encoder's grid, and what the file of tokens was when it was written."""

    grid: tuple[int, ...]
    shape: tuple[int, ...]
    stamp: str
    sha256: str


def weights_hash(module: nn.Module) -> str:
    """SHA-256 over names and values of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def build_features(
    encoder: nn.Module,
    examples: Sequence[Example],
    folder: Path,
    identity: dict[str, Any],
    progress: Callable[[int, int], None] | None = None,
    note: Callable[[str], None] = LOGGER.warning,
) -> Features:
    """Open the features of these examples' images under this encoder; compute them where there are none yet.

    ``folder`` is the data set's cache; ``identity`` says what the images are and how they were prepared. ``note`` is
    told in one line when kept ones could not be used, or none be kept.
    """
    rows = sorted({row for example in examples for row in example.rows})
    key = sha256_json({**identity, "weights": weights_hash(encoder), "rows": rows})[:16]
    place = folder / "features" / key
    features = _open(place, rows)
    if features is None:
        if place.exists():
            note("the features that were kept of the frozen encoder are damaged: they are computed again")
        try:
            _compute(encoder, examples[0].source, rows, place, progress)
        except CannotWriteError as error:
            note(f"features cannot be kept in the data set's cache ({error.reason}): they are for this command alone")
            place = temporary_folder("features") / key
            _compute(encoder, examples[0].source, rows, place, progress)
        features = _open(place, rows)
    assert features is not None, "what was just written is there"
    return features


def _open(place: Path, rows: Sequence[int]) -> Features | None:
    """The features of these rows; None where there are none that are whole."""
    try:
        index = _Index.model_validate(read_json(place / "index.json"))
    except (InputError, ValidationError, OSError, RecursionError):
        return None
    path = place / TOKENS
    tokens = open_rows(path, np.float32, index.shape)
    if tokens is None or len(tokens) != len(rows) or math.prod(index.grid) != index.shape[1]:
        return None
    if stamp(path) != index.stamp and sha256_file(path) != index.sha256:
        return None
    return Features(tokens, index.grid, {row: number for number, row in enumerate(rows)})


@torch.no_grad()
def _compute(
    encoder: nn.Module,
    source: Any,
    rows: Sequence[int],
    place: Path,
    progress: Callable[[int, int], None] | None,
) -> None:
    device = device_of(encoder)
    was_training = encoder.training
    encoder.eval()
    batch = max(1, min(BATCH, MOST_VOXELS // math.prod(source.shape[1:])))

    def encode(start: int) -> Any:
        pixels = torch.from_numpy(np.stack([source[row] for row in rows[start : start + batch]])).to(device)
        return encoder(pixels[:, None].float() / 255.0)

    with write_folder(place, overwrite=True) as partial:
        first = encode(0)
        shape = (len(rows), *first.tokens.shape[1:])
        with write_rows(partial / TOKENS, np.float32, shape) as give:
            for start in range(0, len(rows), batch):
                encoded = encode(start) if start else first
                give(encoded.tokens.float().cpu().numpy())
                if progress is not None:
                    progress(min(start + batch, len(rows)), len(rows))
        path = partial / TOKENS
        index = _Index(grid=tuple(first.grid), shape=shape, stamp=stamp(path), sha256=sha256_file(path))
        write_json(partial / "index.json", index.model_dump())
    encoder.train(was_training)
