"""Trained stages, kept: runs that share a stage train it once.

DATASET/.cache/stages/KEY/model.safetensors  state.json

The key (``radweave.runs.stages``) is a hash of all that decides what the stage gives.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from radweave.base.errors import CannotWriteError, InputError
from radweave.base.hashes import sha256_file
from radweave.base.json_files import read_json, write_json
from radweave.base.storage import write_folder


def save_artefact(folder: Path, model: nn.Module, parts: tuple[str, ...], state: dict[str, Any]) -> None:
    """Write the weights of the named parts, whole or not at all. A folder that cannot be written is passed over."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors = {
        name: tensor.detach().cpu().clone().contiguous()
        for name, tensor in model.state_dict().items()
        if name.split(".", 1)[0] in parts
    }
    try:
        with write_folder(folder, overwrite=True) as partial:
            save_file(tensors, str(partial / "model.safetensors"))
            digest = sha256_file(partial / "model.safetensors")
            write_json(partial / "state.json", {**state, "parts": list(parts), "sha256": digest})
    except (CannotWriteError, SafetensorError):
        return


def load_artefact(folder: Path, model: nn.Module) -> dict[str, Any] | None:
    """Put a kept stage into the model and return its state; None if there is none that is whole."""
    from safetensors.torch import load_file

    path = folder / "model.safetensors"
    try:
        state: dict[str, Any] = read_json(folder / "state.json")
        if sha256_file(path) != state["sha256"]:
            return None
        tensors: dict[str, Tensor] = load_file(str(path))
    except (InputError, OSError):
        return None
    own = model.state_dict()
    wanted = {name for name in own if name.split(".", 1)[0] in state["parts"]}
    if wanted != set(tensors) or any(own[name].shape != tensor.shape for name, tensor in tensors.items()):
        return None
    with torch.no_grad():
        for name, tensor in tensors.items():
            own[name].copy_(tensor)
    return state
