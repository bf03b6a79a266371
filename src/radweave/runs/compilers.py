"""Whether a run can compile the step of its decoding, and on which device it would: found out before it trains."""

from __future__ import annotations

import torch

from radweave.base.devices import default_device
from radweave.base.errors import InputError
from radweave.contract.model import ReportModel, device_of, parts_of
from radweave.nn.decoding import DecodingConfig, refuse_uncompilable
from radweave.train.compiled import Writers, refuse_no_compiler


def refuse_uncompiled_decoding(decoding: DecodingConfig, model: ReportModel) -> None:
    """Refuse to compile a step of decoding on a machine, or for a language model, that it cannot be compiled for.

    Raises:
        InputError: for the field ``decoding.compile``.
    """
    writers = [part for part in parts_of(model).values() if isinstance(part, Writers)]
    if decoding.compile == "none" or not writers:
        return
    for writer in writers:
        refuse_uncompilable(writer.model, decoding)
    try:
        refuse_no_compiler(computes_on(model))
    except InputError as error:
        needed = "a C++ compiler, on a GPU Triton; or none"
        raise InputError(error.reason, field="decoding.compile", got=error.got, expected=needed) from None


def computes_on(model: ReportModel) -> torch.device:
    """The device that a model computes on; that of a dry run has no numbers and would be put on the default one."""
    device = device_of(model)
    return default_device() if device.type == "meta" else device
