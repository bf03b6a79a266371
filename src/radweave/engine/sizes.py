"""How large a model is, found out before it has memory: what is built here is on torch's meta device."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn

from radweave.core.errors import InputError

_MOST_ABSENT = 1_000_000
"""Numbers without a tensor that may be built, for ``load_weights`` to name them better."""


def refuse_giant(empty: nn.Module) -> None:
    """Refuse a model whose weights alone are more than this machine's memory.

    Raises:
        InputError: with both sizes.
    """
    needed = sum(weight.numel() * weight.element_size() for weight in empty.parameters())
    present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > present:
        raise InputError(
            "the model does not fit into this machine's memory",
            field="model",
            got=f"{needed / 1e9:,.0f} GB of weights",
            expected=f"at most {present / 1e9:,.0f} GB",
        )


_FLOATS = ("F32", "F16", "BF16")
_STORED = {
    **dict.fromkeys((torch.float32, torch.float16, torch.bfloat16), _FLOATS),
    torch.float64: ("F64",), torch.int64: ("I64",), torch.int32: ("I32",), torch.bool: ("BOOL",),
}  # fmt: skip
"""How a tensor may be stored; the three short floats stand for each other."""


def refuse_other_shapes(empty: nn.Module, path: Path) -> None:
    """Compare the header of a weights file with a model that was built on the meta device.

    It comes before a model that has memory: a configuration that asks for far more than its weights hold takes none.

    Raises:
        InputError: if the file is broken, a tensor has another shape, or many weights have no tensor.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            stored = {name: list(part.get_shape()) for name, part in slices.items()}
            kinds = {name: str(part.get_dtype()) for name, part in slices.items()}
    except FileNotFoundError:
        raise InputError("file is missing", file=path) from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"weights do not fit this model: {error}", file=path) from None
    names: dict[int, list[str]] = {}
    sizes: dict[int, int] = {}
    for name, tensor in empty.state_dict(keep_vars=True).items():
        names.setdefault(id(tensor), []).append(name)
        sizes[id(tensor)] = tensor.numel()
        if name in stored and stored[name] != list(tensor.shape):
            raise InputError(
                "weights do not fit this model", file=path, field=name, got=stored[name], expected=list(tensor.shape)
            )
        # Whole numbers, or yes and no, in the place of weights would be cast without a word.
        if name in kinds and kinds[name] not in _STORED.get(tensor.dtype, (kinds[name],)):
            raise InputError(
                "weights do not fit this model", file=path, field=name, got=kinds[name],
                expected=" or ".join(_STORED[tensor.dtype]),
            )  # fmt: skip
    # Weights that share memory are stored under one of their names.
    absent = [key for key, group in names.items() if not any(name in stored for name in group)]
    if sum(sizes[key] for key in absent) > _MOST_ABSENT:
        raise InputError(
            f"weights do not fit this model: {len(absent)} have no tensor", file=path, field=names[absent[0]][0]
        )
