"""Start weights that the package brings: an encoder that has seen phantoms, and no patient.

``make eyes`` makes the file again (bench/make_eyes.py); docs/eyes.md says how it was made and what it is worth.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import torch
from torch import nn

from radweave.base.errors import InputError
from radweave.base.hashes import sha256_file

Start = Literal["nothing", "phantom"]
FIELD: Final = "vision_encoder.start"
WEIGHTS: Final = Path(__file__).with_name("phantom_eyes.safetensors")
SHA256: Final = "db50d84dbedcf6845b83e38ff81696547e036de12839369bb67de9588ba5aeaf"
STATED: Final = "encoder starts from weights trained on synthetic phantoms (shipped with the package; no patient data)"
"""What a run says of such a start, in its card and while it trains."""


def load_start(network: nn.Module, path: Path = WEIGHTS, sha256: str = SHA256) -> None:
    """Fill a network with the start weights.

    Raises:
        InputError: if the file is not the one that belongs to this version, or the network is of another shape.
    """
    from safetensors.torch import load_file

    if not path.is_file() or sha256_file(path) != sha256:
        raise InputError(
            "the start weights are not those of this version", file=path, field=FIELD, got="phantom", expected="nothing"
        )
    given, wanted = load_file(str(path)), network.state_dict()
    if {name: value.shape for name, value in given.items()} != {name: value.shape for name, value in wanted.items()}:
        raise InputError(
            "the start weights are of another shape", field=FIELD, got="phantom", expected="nothing, for other sizes"
        )
    network.load_state_dict({name: value.to(wanted[name].dtype) for name, value in given.items()})


def is_empty(network: nn.Module) -> bool:
    """Whether the network has no memory yet: it is only measured."""
    return next(network.parameters()).device == torch.device("meta")
