"""A safetensors file that is written piece by piece: a bank may be larger than memory.

The library makes bytes of all tensors before it writes the first; what it would write is written here, a few rows at a
time. Reading needs nothing of the kind: the library maps the file.

Format: https://huggingface.co/docs/safetensors, "Format": eight bytes with the length of the header, the header as JSON
padded with blanks to a multiple of eight, then the tensors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

PIECE_BYTES = 1 << 22
_NAMES = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""In the order in which the library sorts them: widest first."""


def pieces(tensor: Tensor) -> Iterator[tuple[int, Tensor]]:
    """A tensor in runs of rows that fit in little memory, on the CPU, each with the number of its first row."""
    row_bytes = tensor[:1].numel() * tensor.element_size()
    step = max(1, PIECE_BYTES // max(1, row_bytes))
    for start in range(0, len(tensor), step):
        yield start, tensor[start : start + step].detach().cpu().contiguous()


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors of at least one axis; the bytes are those of the library.

    Raises:
        OSError: if it cannot be written.
    """
    order = sorted(tensors, key=lambda name: (list(_NAMES).index(tensors[name].dtype), name))
    header, end = {}, 0
    for name in order:
        tensor = tensors[name]
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            for _, piece in pieces(tensors[name]):
                file.write(piece.view(-1).view(torch.uint8).numpy().data)
