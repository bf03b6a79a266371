"""Shared parts of the adapters for trained labelers: finding, checking and loading a user's local weights.

Nothing is downloaded. Weights are safetensors, or a torch file that is read with ``weights_only=True``: tensors and
plain containers, never code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from radweave.core.errors import InputError
from radweave.core.foreign_models import refuse_unusable_weights

MAX_TOKENS = 512
_SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")
# Position indices were stored as a buffer by older versions of transformers; they hold nothing learned.
_IGNORED = ("embeddings.position_ids", "embeddings.token_type_ids")


def weights_file(folder: Path, *, labeler: str) -> Path:
    """The one weights file of a folder.

    Raises:
        InputError: if the folder or the file is missing, or there are several.
    """
    if not folder.is_dir():
        raise InputError(f"no folder with the weights of {labeler}", file=folder, expected="a local folder")
    files = sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES and path.is_file())
    if len(files) != 1:
        raise InputError(
            f"the weights of {labeler} are not clear",
            file=folder,
            got=", ".join(path.name for path in files) or "no weights file",
            expected=f"one file ending in {', '.join(_SUFFIXES)}",
        )
    return files[0]


def require_files(folder: Path, choices: Sequence[Sequence[str]], *, labeler: str) -> None:
    """Check that the folder holds all files of at least one choice.

    Raises:
        InputError: naming what is missing.
    """
    if not any(all((folder / name).is_file() for name in names) for names in choices):
        wanted = " or ".join(" and ".join(names) for names in choices)
        raise InputError(f"{labeler} needs files that are missing", file=folder, expected=wanted)


def read_state(path: Path) -> dict[str, Tensor]:
    """Tensors of a weights file by name, without the "module." that DataParallel puts in front.

    A torch file holds the tensors themselves or under "model_state_dict" or "state_dict".

    Raises:
        InputError: if the file cannot be read, or holds anything but tensors there.
    """
    try:
        if path.suffix == ".safetensors":
            state: object = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a broken file fails anywhere in its parser, with any error
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise InputError(f"not a readable weights file: {reason}", file=path) from None
    for key in ("model_state_dict", "state_dict"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict) or not state or not all(isinstance(value, Tensor) for value in state.values()):
        raise InputError("holds no state dict", file=path, expected="a mapping of parameter names to tensors")
    return {str(name).removeprefix("module."): value for name, value in state.items()}


def load_strictly(network: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    """Copy ``state`` into ``network``; every name and every shape must fit.

    Raises:
        InputError: naming the first parameters that are missing, left over, of another shape, or not finite.
    """
    loaded = {name: value for name, value in state.items() if not name.endswith(_IGNORED)}
    wanted = {name: value for name, value in network.state_dict().items() if not name.endswith(_IGNORED)}
    missing, extra = sorted(wanted.keys() - loaded.keys()), sorted(loaded.keys() - wanted.keys())
    if missing or extra:
        raise InputError(
            "the weights are not those of this network",
            file=path,
            got=f"{len(extra)} unknown parameters ({', '.join(extra[:3])})" if extra else None,
            expected=f"{len(missing)} that are missing ({', '.join(missing[:3])})" if missing else None,
        )
    for name, value in wanted.items():
        if value.shape != loaded[name].shape:
            raise InputError(
                "a parameter has another shape",
                file=path,
                field=name,
                got=tuple(loaded[name].shape),
                expected=tuple(value.shape),
            )
    network.load_state_dict(loaded, strict=False)
    refuse_unusable_weights(network, path)


def check_vocabulary(tokenizer: Any, vocab_size: int, folder: Path) -> None:
    """Check that the network has an embedding for every word of the tokenizer.

    Raises:
        InputError: if it has too few.
    """
    if len(tokenizer) > vocab_size:
        got = f"{len(tokenizer)} words"
        raise InputError("the vocabulary does not fit the network", file=folder, got=got, expected=vocab_size)


@torch.inference_mode()
def run_each(network: nn.Module, tokenizer: Any, max_tokens: int, texts: Sequence[str], device: str) -> list[Tensor]:
    """The network's logits for each text, cut at ``max_tokens``, one text at a time.

    One at a time and without padding, so that no text's label depends on the length of others in the batch.

    Raises:
        InputError: if an entry is not a string.
    """
    if isinstance(texts, str):
        raise InputError("texts must be a list of reports", got="one string", expected="a list of strings")
    network.eval()
    results = []
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError("a report must be text", field=f"texts[{number}]", got=type(text).__name__, expected="str")
        encoded = tokenizer(" ".join(text.split()), truncation=True, max_length=max_tokens, return_tensors="pt")
        results.append(network(encoded["input_ids"].to(device), encoded["attention_mask"].to(device)))
    return results
