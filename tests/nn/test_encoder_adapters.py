"""Adapters on encoders: every kind takes them, starts unchanged, and trains them and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from radweave.methods.stage import apply_finetune
from radweave.nn.language_model import MARK, LoraConfig
from radweave.nn.vision import (
    VISION_RECORDS,
    AnyVisionConfig,
    CtVitConfig,
    ResNet3dConfig,
    ResNetConfig,
    SwinConfig,
    SwinUnetrConfig,
    VimConfig,
    ViTConfig,
    VMambaConfig,
)
from tests.checkpoints import ENCODERS, SIZE, write_encoder

LORA = LoraConfig(rank=2)
CASES: list[tuple[Any, tuple[int, ...]]] = [
    (ResNetConfig(embedding_size=8, hidden_sizes=(8, 16), depths=(1, 1), layer_type="basic"), (64, 64)),
    (SwinConfig(embed_dim=8, depths=(1, 1), num_heads=(1, 2)), (64, 64)),
    (ViTConfig(hidden_size=16, num_layers=1, num_heads=2), (64, 64)),
    (VMambaConfig(depths=(1, 1), dims=(8, 16)), (64, 64)),
    (VimConfig(hidden_size=16, num_layers=2, d_state=2), (64, 64)),
    (ResNet3dConfig(widths=(4, 8, 8, 8)), (16, 32, 32)),
    (CtVitConfig(width=12, slab=2, patch_size=4, spatial_layers=1, temporal_layers=1, codebook_size=4), (4, 8, 8)),
    (SwinUnetrConfig(width=12, depths=(2, 1), num_heads=(1, 2), window=3), (16, 8, 8)),
]


def trains_its_adapters_alone(encoder: nn.Module, pixels: torch.Tensor) -> None:
    """Tokens as without adapters at first; then every adapter gets a gradient, and nothing else does."""
    encoder.eval()
    parts = nn.ModuleDict({"vision_encoder": encoder})
    apply_finetune(parts, {"vision_encoder": "lora"})
    with torch.no_grad():
        before = encoder(pixels).tokens
        for name, weight in encoder.named_parameters():
            assert weight.requires_grad == (MARK in name)
            if "lora_B" in name:
                assert not weight.any()
                weight.normal_(std=0.02)
    after = encoder(pixels).tokens
    assert not torch.equal(before, after)
    after.square().sum().backward()
    still = [name for name, weight in encoder.named_parameters() if MARK in name and not weight.grad.any()]
    assert still == []


def test_every_kind_is_here() -> None:
    assert {type(record) for record, _ in CASES} | {AnyVisionConfig} == set(VISION_RECORDS)


@pytest.mark.parametrize(("record", "space"), CASES, ids=lambda case: getattr(case, "kind", ""))
def test_every_kind_of_encoder_takes_adapters(record: Any, space: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    trains_its_adapters_alone(record.model_copy(update={"lora": LORA}).build(space[-1]), torch.rand(1, 1, *space))


@pytest.mark.parametrize("name", ENCODERS)
def test_every_family_of_transformers_takes_adapters(name: str, tmp_path: Path) -> None:
    write_encoder(name, tmp_path)
    trains_its_adapters_alone(AnyVisionConfig(path=str(tmp_path), lora=LORA).build(SIZE), torch.rand(1, 1, SIZE, SIZE))


def test_a_saved_adapter_is_restored(tmp_path: Path) -> None:
    record = SwinUnetrConfig(width=12, depths=(1,), num_heads=(1,), window=3, lora=LORA)
    encoder = record.build(0).eval()
    for name, weight in encoder.named_parameters():
        if MARK in name:
            nn.init.normal_(weight)
    restored = record.build(0, saved=tmp_path).eval()
    restored.load_state_dict(encoder.state_dict(), strict=True)
    pixels = torch.rand(1, 1, 8, 8, 8)
    torch.testing.assert_close(restored(pixels).tokens, encoder(pixels).tokens)
