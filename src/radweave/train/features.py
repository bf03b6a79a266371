"""Frozen features once: the patch tokens of a frozen encoder, computed before the stage and memory-mapped.

DATASET/.cache/features/KEY/tokens.npy (M, S, D) float32, index.json

The key is a hash of the encoder's weights and record, the data and the preprocessing; any change makes a new store.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
from torch import nn

from radweave.data.loader import Example, Features
from radweave.errors import InputError
from radweave.storage import read_json, sha256_json, write_folder, write_json

BATCH = 32
MOST_VOXELS = 1 << 24
"""Of a batch; large scans go in smaller batches."""


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
) -> Features:
    """Open the features of these examples' images under this encoder; compute them where there are none yet.

    ``folder`` is the data set's cache; ``identity`` says what the images are and how they were prepared.
    """
    rows = sorted({row for example in examples for row in example.rows})
    key = sha256_json({**identity, "weights": weights_hash(encoder), "rows": rows})[:16]
    place = folder / "features" / key
    if not (place / "index.json").is_file():
        try:
            _compute(encoder, examples[0].source, rows, place, progress)
        except (InputError, PermissionError):
            place = Path(mkdtemp(prefix="radweave-features-")) / key
            _compute(encoder, examples[0].source, rows, place, progress)
    index = read_json(place / "index.json")
    tokens = np.load(place / "tokens.npy", mmap_mode="r", allow_pickle=False)
    return Features(tokens, tuple(index["grid"]), {row: number for number, row in enumerate(rows)})


@torch.no_grad()
def _compute(
    encoder: nn.Module,
    source: Any,
    rows: Sequence[int],
    place: Path,
    progress: Callable[[int, int], None] | None,
) -> None:
    device = next(encoder.parameters()).device
    was_training = encoder.training
    encoder.eval()
    with write_folder(place, overwrite=True) as partial:
        tokens: Any = None
        grid: tuple[int, ...] = ()
        batch = max(1, min(BATCH, MOST_VOXELS // math.prod(source.shape[1:])))
        for start in range(0, len(rows), batch):
            chunk = rows[start : start + batch]
            pixels = torch.from_numpy(np.stack([source[row] for row in chunk])).to(device)
            encoded = encoder(pixels[:, None].float() / 255.0)
            if tokens is None:
                grid, shape = encoded.grid, (len(rows), *encoded.tokens.shape[1:])
                tokens = np.lib.format.open_memmap(partial / "tokens.npy", mode="w+", dtype=np.float32, shape=shape)
            tokens[start : start + len(chunk)] = encoded.tokens.float().cpu().numpy()
            if progress is not None:
                progress(start + len(chunk), len(rows))
        tokens.flush()
        write_json(partial / "index.json", {"grid": list(grid), "images": len(rows)})
    encoder.train(was_training)
