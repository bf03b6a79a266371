"""Any vision model of transformers: twelve families as small checkpoints in the real layout."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from radweave.base.errors import InputError
from radweave.nn.lora import LoraConfig, has_lora
from radweave.nn.vision import AnyVisionConfig

SIZE = 32
VIT = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
    "image_size": SIZE, "patch_size": 8, "num_channels": 3,
}  # fmt: skip
TEXT = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 50,
    "max_position_embeddings": 16,
}  # fmt: skip
CONVNEXT = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "num_channels": 3}
SWIN = {"embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4, "image_size": SIZE, "patch_size": 4}
STD = [0.25, 0.3, 0.35]
MEAN = [0.5, 0.4, 0.3]


def _vit(name: str, **more: Any) -> Callable[[], Any]:
    config = getattr(transformers, f"{name}Config")
    return lambda: getattr(transformers, f"{name}Model")(config(**VIT, **more))


def _towers(name: str) -> Callable[[], Any]:
    config = getattr(transformers, f"{name}Config")
    return lambda: getattr(transformers, f"{name}Model")(config(vision_config=dict(VIT), text_config=dict(TEXT)))


# Family -> the model whose checkpoint is written, and how many of its tokens stand before the patches.
FAMILIES: dict[str, tuple[Callable[[], Any], int]] = {
    "vit": (_vit("ViT"), 1),
    "deit": (_vit("DeiT"), 2),
    "dinov2": (_vit("Dinov2", mlp_ratio=2), 1),
    "dinov2_with_registers": (_vit("Dinov2WithRegisters", mlp_ratio=2, num_register_tokens=4), 5),
    "dinov3": (_vit("DINOv3ViT", num_register_tokens=4), 5),
    "mae": (_vit("ViTMAE"), 1),
    "beit": (_vit("Beit"), 1),
    "clip": (_towers("CLIP"), 1),
    "siglip": (_towers("Siglip"), 0),
    "convnext": (lambda: transformers.ConvNextModel(transformers.ConvNextConfig(**CONVNEXT)), 0),
    "convnextv2": (lambda: transformers.ConvNextV2Model(transformers.ConvNextV2Config(**CONVNEXT)), 0),
    "swinv2": (lambda: transformers.Swinv2Model(transformers.Swinv2Config(**SWIN)), 0),
}


def _written(name: str, folder: Path, **processor: Any) -> Any:
    torch.manual_seed(0)
    model = FAMILIES[name][0]().eval()
    model.save_pretrained(folder)
    facts = {"do_normalize": True, "image_mean": MEAN, "image_std": STD, **processor}
    (folder / "preprocessor_config.json").write_text(json.dumps(facts))
    return model


def _own_pass(model: Any, pixels: Tensor) -> Tensor:
    """What the checkpoint's own vision model gives for the same image, (1, T, D)."""
    tower = getattr(model, "vision_model", model)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    options = {}
    if model.config.model_type == "vit_mae":
        tower.config.mask_ratio = model.embeddings.config.mask_ratio = 0.0
        options["noise"] = torch.arange(16).float()[None]
    states = tower(pixel_values=(pixels.expand(-1, 3, -1, -1) - mean) / std, **options).last_hidden_state
    return states.flatten(2).transpose(1, 2) if states.ndim == 4 else states


@pytest.mark.parametrize("name", FAMILIES)
def test_a_checkpoint_gives_its_own_numbers_in_grid_order(name: str, tmp_path: Path) -> None:
    model = _written(name, tmp_path)
    encoder = AnyVisionConfig(path=str(tmp_path)).build(SIZE).eval()
    pixels = torch.rand(2, 1, SIZE, SIZE)
    with torch.no_grad():
        features, own = encoder(pixels), torch.cat([_own_pass(model, image[None]) for image in pixels])
    torch.testing.assert_close(features.tokens, own[:, FAMILIES[name][1] :], atol=1e-5, rtol=1e-5)
    assert features.grid[0] * features.grid[1] == features.tokens.shape[1]
    assert features.tokens.shape[2] == encoder.dim


@pytest.mark.parametrize("name", FAMILIES)
def test_a_restored_run_needs_the_checkpoint_no_more(name: str, tmp_path: Path) -> None:
    _written(name, tmp_path / "checkpoint")
    record = AnyVisionConfig(path=str(tmp_path / "checkpoint"))
    encoder = record.build(SIZE).eval()
    encoder.architecture.save_pretrained(str(tmp_path / "run"))
    record = AnyVisionConfig(path=str(tmp_path / "gone"))
    restored = record.build(SIZE, saved=tmp_path / "run").eval()
    restored.load_state_dict(encoder.state_dict(), strict=True)
    pixels = torch.rand(1, 1, SIZE, SIZE)
    torch.testing.assert_close(restored(pixels).tokens, encoder(pixels).tokens)


@pytest.mark.parametrize("name", ["dinov2", "clip", "vit", "siglip"])
def test_positions_are_stretched_to_another_size(name: str, tmp_path: Path) -> None:
    _written(name, tmp_path)
    assert AnyVisionConfig(path=str(tmp_path)).build(48).eval()(torch.rand(1, 1, 48, 48)).grid == (6, 6)


def test_what_is_no_vision_model_or_does_not_take_the_images_is_refused(tmp_path: Path) -> None:
    transformers.LlamaModel(transformers.LlamaConfig(**{**TEXT, "hidden_size": 16})).save_pretrained(tmp_path / "words")
    with pytest.raises(InputError, match="not a vision model") as caught:
        AnyVisionConfig(path=str(tmp_path / "words")).build(SIZE)
    assert "llama" in str(caught.value)
    with pytest.raises(InputError, match="no such folder"):
        AnyVisionConfig(path=str(tmp_path / "none" / "there")).build(SIZE)
    _written("vit", tmp_path / "vit")
    with pytest.raises(InputError, match=r"data\.image_size"):
        AnyVisionConfig(path=str(tmp_path / "vit")).build(4)


@pytest.mark.parametrize(
    "processor", [{"image_mean": [0.5]}, {"image_std": [0, 1, 1]}, {"image_mean": "x"}, {"image_std": [[1], [1], [1]]}]
)
def test_a_broken_preprocessor_is_refused_by_name(processor: dict[str, Any], tmp_path: Path) -> None:
    _written("vit", tmp_path, **processor)
    with pytest.raises(InputError, match=r"preprocessor_config\.json"):
        AnyVisionConfig(path=str(tmp_path)).build(SIZE)


def test_images_that_were_not_standardised_are_left_alone(tmp_path: Path) -> None:
    _written("vit", tmp_path, do_normalize=False)
    encoder = AnyVisionConfig(path=str(tmp_path)).build(SIZE)
    assert encoder.mean.tolist() == [[[[0.0]], [[0.0]], [[0.0]]]]
    assert encoder.std.tolist() == [[[[1.0]], [[1.0]], [[1.0]]]]


def test_adapters_go_onto_all_linear_maps_and_change_nothing_at_first(tmp_path: Path) -> None:
    _written("dinov2", tmp_path)
    plain = AnyVisionConfig(path=str(tmp_path)).build(SIZE).eval()
    adapted = AnyVisionConfig(path=str(tmp_path), lora=LoraConfig(rank=2)).build(SIZE).eval()
    assert has_lora(adapted)
    pixels = torch.rand(1, 1, SIZE, SIZE)
    torch.testing.assert_close(adapted(pixels).tokens, plain(pixels).tokens)
