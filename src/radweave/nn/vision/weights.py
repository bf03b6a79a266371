"""Weights of encoders we wrote ourselves: published files read without pickle, renamed, and loaded strictly."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from radweave.core.config import Config
from radweave.core.errors import InputError
from radweave.core.foreign_files import refuse_stub
from radweave.core.foreign_models import refuse_unusable_weights
from radweave.core.json_files import write_json

SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".ckpt", ".tar")
SETTINGS_CLASSES = (
    "yacs.config.CfgNode",
    "argparse.Namespace",
    "lightning.fabric.utilities.data.AttributeDict",
    "lightning.pytorch.utilities.parsing.AttributeDict",
    "lightning_fabric.utilities.data.AttributeDict",
    "pytorch_lightning.utilities.parsing.AttributeDict",
)
"""Classes of the training settings in published files: VMamba's, ARM's and Vim's, MambaXray-VL's."""
FIELD = "vision_encoder.path"
WHAT = "a vision encoder"


@dataclass(frozen=True, slots=True)
class Shape:
    """The record an encoder was built from; a run folder keeps it so that the run restores without the checkpoint."""

    record: Config

    def save_pretrained(self, folder: str) -> None:
        """Write ``config.json``, as the encoders of transformers do."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        write_json(path / "config.json", self.record.model_dump(mode="json"))


def find_weights(path: Path) -> Path:
    """The weights file: ``path`` itself, or the only one in that folder, safetensors before others.

    Raises:
        InputError: if there is none, or no single one, or something else was downloaded in its place.
    """
    file = path if path.is_file() else _only_one(path)
    try:
        refuse_stub(file, what=WHAT)
    except InputError as error:
        raise error.at(file=file, field=FIELD) from None
    return file


def _only_one(path: Path) -> Path:
    if not path.is_dir():
        raise InputError(f"cannot load {WHAT}: no such file or folder", file=path, field=FIELD)
    files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
    safe = [file for file in files if file.suffix == ".safetensors"]
    choice = safe or files
    if len(choice) != 1:
        raise InputError(
            "cannot tell which weights file to load", file=path, field=FIELD, got=f"{len(choice)} files", expected="one"
        )
    return choice[0]


def read_weights(file: Path) -> dict[str, Tensor]:
    """Tensors by their published names, without the ``module.`` that data-parallel training puts before them.

    A torch file is read with ``weights_only=True``: nothing in it is run. The tensors lie at its top, or under
    ``model`` or ``state_dict``.

    Raises:
        InputError: if the file is neither, is damaged, or holds anything but tensors there.
    """
    content: Any
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            content = load_file(file)
        else:
            # Such files also hold the settings of their training, in classes of other packages. Nobody needs them; they
            # are read as plain dictionaries, and no package is imported.
            with torch.serialization.safe_globals([(OrderedDict, name) for name in SETTINGS_CLASSES]):
                content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can raise anything from the zip, pickle and safetensors readers
        reason = (str(error) or type(error).__name__).strip().splitlines()[0][:150]
        raise InputError(f"not a readable weights file: {reason}", file=file, field=FIELD) from None
    for key in ("model", "state_dict"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if (
        not isinstance(content, Mapping)
        or not content
        or not all(isinstance(value, Tensor) for value in content.values())
    ):
        raise InputError("holds no tensors by name", file=file, field=FIELD)
    return {str(name).removeprefix("module."): value for name, value in content.items()}


def load_published(
    network: nn.Module, path: Path | str, rename: Callable[[str], str], ignored: Sequence[str]
) -> tuple[str, ...]:
    """Load the weights at ``path`` into ``network``; returns the names that were left aside.

    ``rename`` turns a published name into ours. Names that start with one of ``ignored`` belong to a head we do not
    have. Everything else must fit exactly: every tensor has its place, its shape, and none is missing.

    Raises:
        InputError: naming what is missing, unexpected, of another shape, or not finite.
    """
    file = find_weights(Path(path))
    published = read_weights(file)
    left_aside = tuple(sorted(name for name in published if name.startswith(tuple(ignored))))
    load_named(network, {rename(name): tensor for name, tensor in published.items() if name not in left_aside}, file)
    return left_aside


def load_named(network: nn.Module, tensors: dict[str, Tensor], file: Path) -> None:
    """Load tensors under the network's own names, which ``file`` held: every one has its place, and none is missing.

    Raises:
        InputError: naming what is missing, unexpected, of another shape, or not finite.
    """
    wanted = network.state_dict()
    # Counts of batches seen are no weights, and older files lack them.
    counters = [name for name in wanted if name.endswith("num_batches_tracked")]
    tensors = {**{name: wanted[name] for name in counters}, **tensors}
    missing, unexpected = sorted(wanted.keys() - tensors.keys()), sorted(tensors.keys() - wanted.keys())
    if missing or unexpected:
        raise InputError(
            "the weights do not belong to this network",
            file=file,
            field=FIELD,
            got=_some("unexpected", unexpected) if unexpected else _some("missing", missing),
            expected=_some("also", missing) if unexpected and missing else None,
        )
    state = {}
    for name, tensor in tensors.items():
        squeezed = tensor.flatten(1) if tensor.ndim == 4 and wanted[name].ndim == 2 else tensor
        if squeezed.shape != wanted[name].shape:
            raise InputError(
                f"'{name}' has another shape",
                file=file,
                field=FIELD,
                got=list(tensor.shape),
                expected=list(wanted[name].shape),
            )
        state[name] = squeezed
    network.load_state_dict(state, strict=True)
    refuse_unusable_weights(network, file)


def _some(what: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{what} {', '.join(names[:3])}{more}"
