"""The device that models run on: the one that was asked for, or the first CUDA device, or the CPU."""

from __future__ import annotations

import os

import torch

from radweave.base.errors import InputError

VARIABLE = "RADWEAVE_DEVICE"
"""The environment variable that names it; processes that are started inherit it."""


def use_device(name: str) -> None:
    """Run models on ``name`` from here on: cpu, cuda, cuda:1, mps.

    Raises:
        InputError: if there is no such device.
    """
    found_device(name)
    os.environ[VARIABLE] = name


def default_device() -> torch.device:
    """The device that was asked for, else a CUDA device where there is one, else the CPU.

    Raises:
        InputError: if the environment asks for one that is not here.
    """
    asked = os.environ.get(VARIABLE)
    return found_device(asked) if asked else torch.device("cuda" if torch.cuda.is_available() else "cpu")


def found_device(name: str, *, field: str = "--device") -> torch.device:
    """The device of this name.

    Raises:
        InputError: if there is none here, naming ``field``.
    """
    here = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    here.update(_of_others())
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or (device.index or 0) >= here.get(device.type, 0):
        known = [
            kind if count == 1 else f"{kind}, {kind}:0 to {kind}:{count - 1}" for kind, count in here.items() if count
        ]
        raise InputError("there is no such device here", field=field, got=name, expected=" or ".join(known))
    return device


def _of_others() -> dict[str, int]:
    """Devices of a backend that a package outside of torch has brought; it takes the one name that torch keeps free."""
    kind = torch._C._get_privateuse1_backend_name()
    brought = getattr(torch, kind, None)
    return {kind: int(brought.device_count())} if brought is not None else {}
