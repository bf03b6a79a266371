"""Which precision a stage computes its losses in, on the machine at hand."""

from __future__ import annotations

import torch

from radweave.contract.stage import Precision


def computes_in_bfloat16(precision: Precision, device: torch.device) -> bool:
    """Whether losses are computed in bfloat16; ``auto`` asks whether the processor has instructions for it."""
    return precision == "bfloat16" or (precision == "auto" and has_bfloat16(device))


def has_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 is multiplied by the device itself; on others it is emulated, and slower than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    found = torch.cpu.get_capabilities()
    return bool(found.get("avx512_bf16") or found.get("amx_bf16") or found.get("bf16"))
